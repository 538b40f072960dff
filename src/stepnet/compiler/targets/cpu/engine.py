"""The CPU engine: machine code generated for the processor at hand."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.memory import HOST, AnyMemory
from stepnet.compiler.plan.load import CostModel, Load, Machine
from stepnet.compiler.plan.passes import PIPELINE, Pipeline
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import Array, Kernel, first_refusal
from stepnet.compiler.targets.capabilities import LowPrecisionCell, narrow_cell
from stepnet.compiler.targets.cpu.compile.compiled import MOST_BYTES, CompiledPlan, CompiledPlans
from stepnet.compiler.targets.cpu.compile.stored_plan import compiled, stored_plan
from stepnet.compiler.targets.cpu.costs import LLVM_COSTS, machine_for
from stepnet.compiler.targets.cpu.machine.lazy import late_import, lazy_import
from stepnet.compiler.targets.cpu.machine.processor import (
    Processor,
    host_processor,
    processor_texts,
    requested,
)
from stepnet.compiler.targets.cpu.products.constants import constant_values
from stepnet.compiler.targets.cpu.running.finish import Finish
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.run import Runner, chained
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions

if TYPE_CHECKING:
    from stepnet.compiler.plan.waves import Across
    from stepnet.compiler.targets.library import BuiltLibrary, CallSpecification
    from stepnet.compiler.targets.schedule_kernel import BoundParts, WholeCalls


@dataclass(frozen=True)
class LlvmEngine:
    """Engine that runs machine code for one processor; by default for the one at hand."""

    processor: Processor | None = None
    name: str = "llvm"
    pipeline: Pipeline = PIPELINE
    costs: CostModel = LLVM_COSTS
    memory: AnyMemory = HOST
    runs_gradients: bool = True
    has_same_bits: bool = True

    def refuse(self, schedule: Schedule) -> str | None:
        """Returns why this engine cannot run a schedule (a net cut into parts); None if it can."""
        return first_refusal(self, schedule)

    def refuse_plan(self, plan: Plan) -> str | None:
        """Returns why this engine cannot run the plan of one part, naming an operation without machine code;
        None if it can. A plan with compiled code in the cache or on disk is not checked, as it can run: that
        would import the modules that generate code.
        """
        if self.known(plan) is not None:
            return None
        reason: str | None = lazy_import("lower.refusals").plan_refusal(plan)
        return reason

    def compile(self, schedule: Schedule) -> Kernel:
        """Compiles a schedule (a net cut into parts): the plan of each part that is not cached yet is
        compiled, in parallel with others. Returns the kernel, the compiled code of all parts, which is then
        bound to parameters; in it consecutive parts run as one chain, by one call of machine code.
        """
        plans = {self.key(plan): plan for plan in schedule.plans}
        missing = {key: plan for key, plan in plans.items() if key not in KEPT.entries}
        for key, compiled_plan in compiled(missing, self.processor or host_processor()).items():
            KEPT.put(key, compiled_plan)
        if schedule.single_plan is not None:
            return self.compile_plan(schedule.single_plan)
        with IMPORTS:  # late: a single plan needs nothing of this
            from stepnet.compiler.targets.schedule_kernel import Means, in_parts
        means = Means(self.compile_plan, self.total, chained=chained, whole=whole, paired=self.paired)
        return in_parts(schedule, means)

    def cell(self, plan: Plan) -> LowPrecisionCell | str:
        """Describes how a plan's recurrence runs in low precision, or returns as text why it cannot."""
        return narrow_cell(plan)

    def compile_plan(self, plan: Plan) -> "LlvmKernel":
        """Compiles the plan (the operations in their order) of one part of a net to a kernel, an object that
        runs its machine code, or takes the code from the cache. Plans that are equal but for their direction
        share code.
        """
        processor, key = self.processor or host_processor(), self.key(plan)
        compiled_plan = KEPT.get(key, lambda: compiled({key: plan}, processor)[key])
        return LlvmKernel(plan, compiled_plan, processor)

    def code_for(self) -> str | None:
        """Describes the instruction set that STEPNET_CPU sets for generated code; None if it sets none."""
        return processor_texts()[0] if requested() else None

    def load(self, plan: Plan) -> Load:
        """Returns the work and memory traffic of a plan's steps, to estimate times, without compiling it."""
        known = self.known(plan)
        if known is not None:
            return known.load
        load: Load = lazy_import("lower.program").lowered(plan, self.processor or host_processor()).load
        return load

    def known(self, plan: Plan) -> CompiledPlan | None:
        """Returns the compiled code of a plan from the cache or the disk; None if it is in neither."""
        key = self.key(plan)
        return KEPT.get(key, lambda: stored_plan(key, self.processor or host_processor()))

    def machine(self) -> Machine:
        """Returns this machine's rates and caches, to estimate the time of code with such vectors."""
        return machine_for(self.processor or host_processor())

    def threads(self) -> int:
        """Returns the number of threads that a call may use: the user's setting, or the system's limit."""
        return threads()

    def key(self, plan: Plan) -> str:
        """Computes the key of a plan's code in the cache and on disk: a digest of plan and processor."""
        return digest(self.processor or host_processor(), plan.key)

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """Computes a value that combines all rows: by machine code for weight gradients, else by NumPy."""
        made: Array = late_import("running.finish_tasks").total(
            node, operands, self.processor or host_processor()
        )
        return made

    def library(self, call: "CallSpecification", name: str, platform: str, beside: bool) -> "BuiltLibrary":
        """Builds a library for C that runs the call of a model; see `LibraryEngine.library`."""
        library: BuiltLibrary = lazy_import("library.generate").built_library(call, name, platform, beside)
        return library

    def library_name(self, data: bytes) -> str:
        """Reads the prefix of the function names of a library from its bytes; see `LibraryEngine`."""
        name: str = late_import("library.library_file").library_name(data)
        return name

    def paired(self, across: "Across", operands: Sequence[Array], positions: Sequence[Positions]) -> Array:
        """Computes a group of operations at pairs of steps, such as attention, that runs alone, by the
        machine code that it also has in a chain of several parts (one call); returns its result.

        across: the group. operands: the arrays that it reads. positions: where the steps of the sequences
        lie, for each extent of these arrays.
        """
        return late_import("running.pairs").computed(
            across, operands, positions, self.processor or host_processor()
        )


KEPT = CompiledPlans(MOST_BYTES)


def whole(bound: "BoundParts") -> "WholeCalls":
    """Makes the runner of a schedule as one block of machine code. Its modules are imported at first use."""
    made: WholeCalls = late_import("running.prepared_layouts").PreparedLayouts(bound)
    return made


@dataclass(frozen=True)
class LlvmKernel:
    """Compiled code of a plan, to be bound to parameters."""

    plan: Plan
    compiled: CompiledPlan
    processor: Processor

    def bind(self, parameters: Sequence[Array]) -> Runner:
        """Packs parameters, in the net's order, as the machine code reads them; returns a runner of calls."""
        values = constant_values(self.plan, parameters)
        constants = self.compiled.constants.filled(values, self.processor)
        finish = Finish.of(self.plan, self.compiled, values, constants, self.processor)
        return Runner(Native(self.plan, self.compiled, constants, finish, self.processor))
