"""The code of plans on disk, with what a call has to know of it."""

from collections.abc import Iterable, Mapping

from stepnet.disk.data import Form
from stepnet.engines.llvm.compile.compiled import Compiled, Generated, Layout
from stepnet.engines.llvm.lower.needs import Needs, Slot
from stepnet.engines.llvm.machine.image import ObjectCode
from stepnet.engines.llvm.machine.late import late
from stepnet.engines.llvm.machine.records import Axis, Field, Source, Words
from stepnet.engines.llvm.machine.stored_code import Kernel, keep, made_beside, read
from stepnet.engines.llvm.machine.target import Target, host_target
from stepnet.engines.llvm.products.constants import Constant, Constants, Packed, Places, Scaled
from stepnet.engines.threads import threads
from stepnet.net.types import Type
from stepnet.plan.load import Load, Products, Stage
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
    Scaled,
    Type,
    Axis,
    Words,
    Load,
    Stage,
    Products,
)


def stored_plan(key: str) -> Compiled | None:
    """The machine code of the plan with this key, read from disk; None where there is none."""
    made: Generated | None = read("plan", PLAN, (key,))
    return None if made is None else Compiled.of(made)


def compiled(plans: Mapping[str, Plan], target: Target) -> dict[str, Compiled]:
    """The machine code of plans by their keys, which are of them and the target: read from disk, or made, all
    that is missing in one go, and stored there.
    """
    known = {key: made for key in plans if (made := stored_plan(key)) is not None}
    missing = [key for key in plans if key not in known]
    if not missing:
        return known
    generate, lowered = late("compile.generate"), late("lower.program").lowered
    programs = [lowered(plans[key], target) for key in missing]
    layouts = [generate.layout_of(plans[key], made) for key, made in zip(missing, programs, strict=True)]
    modules = (generate.written(program, target) for program in programs)
    codes = made_beside(modules, kernels_of(layouts, target), target)
    for key, code, layout in zip(missing, codes, layouts, strict=True):
        made = Generated(code, layout)
        keep("plan", PLAN, (key,), made)
        known[key] = Compiled.of(made)
    return known


def kernels_of(layouts: Iterable[Layout], target: Target) -> list[Kernel]:
    """The kernels that calls of such plans will need: what packs their parameters, and hands over work."""
    entries = [entry for layout in layouts for _, entry in layout.constants.entries]
    packed = {
        (entry.sources[0].type.itemsize, entry.width, entry.weights)
        for entry in entries
        if isinstance(entry, Packed)
    }
    kernels: list[Kernel] = [("products.pack", target, *options) for options in sorted(packed, key=str)]
    if target == host_target() and threads() > 1:
        kernels.append(("threads.handover", target))
    return kernels
