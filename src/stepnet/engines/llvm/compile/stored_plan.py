"""The code of plans on disk, with what a call has to know of it."""

from stepnet.disk.data import Form
from stepnet.engines.llvm.compile.compiled import Compiled, Generated, Layout
from stepnet.engines.llvm.lower.needs import Needs, Slot
from stepnet.engines.llvm.machine.image import ObjectCode
from stepnet.engines.llvm.machine.late import late
from stepnet.engines.llvm.machine.records import Field, Source
from stepnet.engines.llvm.machine.stored_code import keep, read
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.constants import Constant, Constants, Encoded, Packed, Places
from stepnet.net.types import Type
from stepnet.plan.load import Load, Products, Stage, Tiling
from stepnet.plan.plan import Plan

PLAN = Form(
    Generated,
    ObjectCode,
    Layout,
    Needs,
    Slot,
    Source,
    Field,
    Constants,
    Constant,
    Places,
    Packed,
    Encoded,
    Type,
    Load,
    Stage,
    Products,
    Tiling,
)


def stored_plan(key: str) -> Compiled | None:
    """The machine code of the plan with this key, read from disk; None where there is none."""
    made: Generated | None = read("plan", PLAN, (key,))
    return None if made is None else Compiled.of(made)


def compiled(plan: Plan, key: str, target: Target) -> Compiled:
    """The machine code of a plan, read from disk, or made and stored there; key: of it and the target."""
    if (known := stored_plan(key)) is not None:
        return known
    made: Generated = late("compile.generate").generated(plan, target)
    keep("plan", PLAN, (key,), made)
    return Compiled.of(made)
