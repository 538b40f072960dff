"""The interpreter as an engine: it runs every net, slowly. It is used only if the user requests it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import interpret
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.memory import HOST, AnyMemory
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.plan.load import CostModel
from stepnet.compiler.plan.passes import PIPELINE, Pipeline, narrowed
from stepnet.compiler.plan.passes.narrow import any_low
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import Array, Call, CalledKernel, Kernel, Results
from stepnet.compiler.targets.capabilities import LowPrecisionCell, narrow_cell
from stepnet.compiler.targets.cpu.costs import COSTS
from stepnet.compiler.targets.packed import CallPacking, NetForm, parameters_of, varying_of
from stepnet.compiler.targets.schedule_kernel import Means, in_parts
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Interpreter:
    """Engine that interprets nets: the reference for all other engines."""

    name: str = "interpret"
    pipeline: Pipeline = PIPELINE
    costs: CostModel = COSTS
    memory: AnyMemory = HOST
    runs_gradients: bool = True
    has_same_bits: bool = False  # the order of NumPy's sums depends on the shapes of products

    def refuse(self, schedule: Schedule) -> str | None:
        """Returns None, for no reason to refuse: the interpreter runs every net."""
        return None

    def compile(self, schedule: Schedule) -> Kernel:
        """Makes a kernel (an object that runs calls) that interprets the traced net as a whole. If a
        recurrence of the net is to run in low precision, such as int8, the kernel runs the parts into which
        the schedule divides the net, one after the other.
        """
        if any_low(schedule.net):
            return in_parts(schedule, Means(self.compile_plan, total))
        return InterpreterKernel(schedule.traced)

    def refuse_plan(self, plan: Plan) -> str | None:
        """Returns None, for no reason to refuse: the interpreter runs every plan."""
        return None

    def cell(self, plan: Plan) -> LowPrecisionCell | str:
        """Describes how a plan's recurrence runs in low precision, or returns as text why it cannot."""
        return narrow_cell(plan)

    def compile_plan(self, plan: Plan) -> "InterpreterKernel":
        """Makes the kernel of a part that NumPy runs, with weights rounded by their encoding."""
        return InterpreterKernel(
            narrowed(plan.traced, self.pipeline) if any_low(plan.traced) else plan.traced
        )


def unshared(results: Sequence[Array], inputs: Sequence[Array | None]) -> list[Array]:
    """Returns results as arrays that the caller may change. Results that share memory with an input or an
    earlier result are copied, and so are broadcast ones, in which several elements share memory.

    inputs: the arrays of the call and its parameters; None for a missing one.
    """
    seen_arrays = [array for array in inputs if array is not None]
    distinct = list[Array]()
    for result in results:
        if not result.flags.writeable or any(np.may_share_memory(result, other) for other in seen_arrays):
            result = result.copy()
        seen_arrays.append(result)
        distinct.append(result)
    return distinct


def total(node: Node, operands: Sequence[Array]) -> Array:
    """Computes the value of a node that combines all rows, from the values of its inputs, with NumPy."""
    return total_of(node, list(operands))


@dataclass(frozen=True)
class InterpreterKernel:
    """Net that the interpreter computes with NumPy, once it is bound to parameters."""

    net: Net

    def bind(self, parameters: Sequence[Array]) -> "InterpretedNet":
        """Binds the net to parameters (weights), in the net's order; the result can be called."""
        return InterpretedNet(self.net, tuple(parameters))


@dataclass(frozen=True)
class InterpretedNet(CalledKernel):
    """Net with its parameters, which NumPy computes when it is called."""

    net: Net
    parameters: tuple[Array, ...]

    @computed_once
    def form(self) -> NetForm:
        """The net's inputs and results by kind (sequence, memory, static), to order a call's arrays by."""
        return NetForm(self.net)

    def __call__(self, call: Call) -> Results:
        """Interprets the net on the arrays of a call, and returns its results in new arrays."""
        packing = CallPacking.of(call)
        values: dict[int, Any] = dict(zip(parameters_of(self.net), self.parameters, strict=True))
        values.update(zip(varying_of(self.net), packing.inputs(self.form, call.given), strict=True))
        inputs = [values[number] for number in self.net.inputs]
        results = unshared(interpret(self.net, inputs, packing.segments), inputs)
        return packing.results(self.form, results, call.given)
