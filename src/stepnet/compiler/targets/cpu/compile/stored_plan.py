"""Compiled plans on disk: object code and its layout, read or generated and stored."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.load import InnerStepWork, Load, Products, StageLoad
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.compile.compiled import DRIVER, CompiledPlan, Generated, Layout
from stepnet.compiler.targets.cpu.lower.needs import Needs, Slot
from stepnet.compiler.targets.cpu.machine.image import ObjectCode
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.machine.processor import Processor, host_processor
from stepnet.compiler.targets.cpu.machine.records import Axis, Field, InnerArray, RowSource
from stepnet.compiler.targets.cpu.machine.stored_code import Kernel, compile_with_kernels, keep, read
from stepnet.compiler.targets.cpu.products import constants
from stepnet.compiler.targets.threads import threads

PLAN = Serializer(
    Generated,
    ObjectCode,
    Layout,
    Needs,
    Slot,
    RowSource,
    Field,
    constants.Constants,
    constants.ConstantNode,
    constants.Elements,
    constants.PackedParameters,
    constants.Scaled,
    Type,
    Axis,
    InnerArray,
    Load,
    StageLoad,
    Products,
    InnerStepWork,
)


def stored_plan(key: str, processor: Processor) -> CompiledPlan | None:
    """Reads a plan compiled for a processor from disk, by its key, and loads it; None if it is not stored."""
    compiled_plan: Generated | None = read("plan", PLAN, (key,))
    return None if compiled_plan is None else CompiledPlan.of(compiled_plan, processor)


def compiled(plans: Mapping[str, Plan], processor: Processor) -> dict[str, CompiledPlan]:
    """Returns compiled plans (machine code of parts of a net) by key: read from disk, or compiled together
    now and stored.

    plans: by their cache keys, which include the processor.
    """
    known = {
        key: compiled_plan for key in plans if (compiled_plan := stored_plan(key, processor)) is not None
    }
    missing = [key for key in plans if key not in known]
    if not missing:
        return known
    new = Writing([plans[key] for key in missing], processor)
    codes = compile_with_kernels(new.modules(), new.kernels(), processor)
    for key, code, layout in zip(missing, codes, new.layouts, strict=True):
        compiled_plan = Generated(code, layout)
        keep("plan", PLAN, (key,), compiled_plan)
        known[key] = CompiledPlan.of(compiled_plan, processor)
    return known


class Writing:
    """Generator of the LLVM modules of new plans and of the kernels that they need.

    Their order keeps LLVM busy from the start: first the driver of calls and the handover of work to threads,
    which depend on no plan; then the packing of parameters; then the plans.
    """

    def __init__(self, plans: Sequence[Plan], processor: Processor) -> None:
        """Takes the plans to compile. Their layouts and their loops are filled in by the method `kernels`."""
        self.plans, self.processor = plans, processor
        self.layouts = list[Layout]()
        self.programs = list[Any]()

    def kernels(self) -> Iterator[Kernel]:
        """Yields the keys of the machine code that calls of the plans (each a part's operations in their
        order) will need besides their own, so that it can be compiled ahead: `DRIVER`, which runs blocks of
        steps (those computed together); the code that hands tasks to threads, if there are several; and the
        packing of parameters. Before the packings, the plans are lowered to loops, in `programs`, and
        described, in `layouts`.
        """
        yield DRIVER, self.processor
        if self.processor == host_processor() and threads() > 1:
            yield "threads.handover", self.processor
        generate, lowered = lazy_import("compile.generate"), lazy_import("lower.program").lowered
        for plan in self.plans:
            self.programs.append(lowered(plan, self.processor))
            self.layouts.append(generate.layout_of(plan, self.programs[-1], self.processor))
        entries = (entry for layout in self.layouts for _, entry in layout.constants.entries)
        packed = {
            (entry.sources[0].type.itemsize, entry.width, entry.weights)
            for entry in entries
            if isinstance(entry, constants.PackedParameters)
        }
        for options in sorted(packed, key=str):
            yield "products.pack", self.processor, *options

    def modules(self) -> Iterator[Any]:
        """Yields the LLVM modules of the plans, in order, from `programs`, which `kernels` fills."""
        generate = lazy_import("compile.generate")
        for program in self.programs:
            yield generate.llvm_module(program, self.processor)
