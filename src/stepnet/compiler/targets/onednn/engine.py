"""The engine onednn: known cells run on oneDNN's primitives, everything between them on another engine.

The order "auto" does not include it: stepnet's own machine code needs no padding. It is for comparisons on
the same net, and for processors on which oneDNN is faster.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.memory import HOST, AnyMemory
from stepnet.compiler.plan.load import CostModel
from stepnet.compiler.plan.passes import PIPELINE, Pipeline
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets.base import (
    Bound,
    Call,
    CalledKernel,
    Kernel,
    Places,
    PreparedCall,
    Results,
    TableLayout,
)
from stepnet.compiler.targets.capabilities import LowPrecisionCell, TotalEngine
from stepnet.compiler.targets.cpu.costs import COSTS
from stepnet.compiler.targets.onednn.known import KnownPlan, known_plan
from stepnet.compiler.targets.onednn.library import OneDnnLibrary, library
from stepnet.compiler.targets.onednn.padding import Padding, padding
from stepnet.compiler.targets.onednn.primitives import RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.compiler.targets.onednn.run import run_recurrence
from stepnet.compiler.targets.schedule_kernel import Means, in_parts
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LibraryError

Array = np.ndarray


@dataclass(frozen=True)
class OneDnnKernel:
    """Kernel of a recurrence on oneDNN, to be bound to parameters."""

    known: KnownPlan

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """Copies parameters, in the net's order, into oneDNN's layout; returns the recurrence to call."""
        return BoundRecurrence(self.known, library(), *self.weights(parameters))

    def weights(self, parameters: Sequence[Array]) -> tuple[OneDnnRecurrence, RecurrenceWeights]:
        """Converts parameters, in the net's order, to a oneDNN recurrence with its scales, and weights."""
        known = self.known
        weights = RecurrenceWeights.of(known.recurrence, known.arrays(parameters))
        return known.recurrence.scaled(weights.arrays, library().largest_weight), weights


class BoundRecurrence(CalledKernel):
    """Recurrence of oneDNN with its weights. Primitives and weights are in shared, bounded caches."""

    def __init__(
        self,
        known: KnownPlan,
        loaded: OneDnnLibrary,
        recurrence: OneDnnRecurrence,
        weights: RecurrenceWeights,
    ) -> None:
        """Takes a plan (the operations of a net in their order) with the cell that oneDNN has for it, the
        library, oneDNN's recurrence with its int8 scales if it has some, and its weights.
        """
        self.known, self.library, self.recurrence, self.weights = known, loaded, recurrence, weights

    def __call__(self, call: Call) -> Results:
        """Runs the recurrence on a call's sequences and initial memories; returns its results."""
        return self.results(padding(call, self.known.cell.recur.reverse), call, call.sequences, call.initial)

    def results(
        self, layout: Padding, call: Call, sequences: Sequence[Array], initial: Sequence[Array | None]
    ) -> Results:
        """Runs the recurrence on the arrays of a call, or on other arrays of the same shapes; returns the
        results.

        layout: the positions of the call's steps in oneDNN's padded arrays.
        sequences, initial: the sequences and the initial memories (recurrent states) to run on; None for
        zeros.
        """
        known = self.known
        x = features(known, sequences, call.positions.total)
        results = run_recurrence(
            self.library,
            self.recurrence,
            self.weights,
            layout,
            x,
            [initial[index] for index in known.memories],
            last_c="c" in known.final,
            all_c="c" in known.outputs,
        )
        steps = {"h": results.outputs, "c": results.cells}
        rows = {"h": results.h, "c": results.c}
        outputs = without_aliases([steps[kind] for kind in known.outputs])
        if call.last_only:
            outputs = [call.positions.ends(output, known.cell.recur.reverse) for output in outputs]
        return Results(outputs, without_aliases([rows[kind] for kind in known.final]))

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the parameters (weights) for later calls. Returns True, as this is always possible."""
        self.recurrence, self.weights = OneDnnKernel(self.known).weights(parameters)
        return True

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        """Prepares later calls with other arrays and the same lengths, for which the padded layout (where
        each step lies in oneDNN's arrays) need not be found again. None if the call returns last outputs
        only, or if later lengths may differ, so that `layout` says how their sequences lie.
        """
        if call.last_only or layout is not None:
            return None
        padded = padding(call, self.known.cell.recur.reverse)

        def run(given: Sequence[Any], places: Places | None) -> Results:
            """Runs the recurrence on other arrays of the same layout; oneDNN's cells have no statics."""
            count = len(call.sequences)
            return self.results(padded, call, given[:count], given[count:])

        return PreparedCall(run, 0)  # 0 bytes: primitives and paddings are in shared caches


def features(known: KnownPlan, sequences: Sequence[Array], total: int) -> Array:
    """Concatenates the sequences that a recurrence reads along their features, to oneDNN's only input [total,
    inputs].

    known: has the positions of those that it reads. sequences: all sequences of the call. total: the number
    of steps of each array, over all sequences.
    """
    flat = [flattened(sequences[index], total) for index in known.reads]
    return flat[0] if len(flat) == 1 else np.concatenate([np.zeros((total, 0), np.float32), *flat], -1)


def flattened(sequence: Array, total: int) -> Array:
    """Reshapes a sequence, perhaps of shape [batch, time, features...], to [total, features]."""
    return sequence.reshape(total, sequence.size // total if total else prod(sequence.shape[1:]))


def without_aliases(arrays: Sequence[Array | None]) -> list[Array]:
    """Returns arrays of results with repeated ones copied, so that no two share a buffer."""
    seen: set[int] = set()
    unshared: list[Array] = []
    for array in arrays:
        assert array is not None
        unshared.append(array.copy() if id(array) in seen else array)
        seen.add(id(array))
    return unshared


@dataclass(frozen=True)
class OneDnnEngine:
    """Engine on the library that STEPNET_ONEDNN names, or on the installed one.

    others: the engine that runs the parts between the cells of oneDNN.
    """

    others: TotalEngine
    name: str = "onednn"
    pipeline: Pipeline = PIPELINE
    costs: CostModel = COSTS
    memory: AnyMemory = HOST
    runs_gradients: bool = False  # no cell of oneDNN returns the values that its gradient reads
    has_same_bits: bool = False

    def refuse(self, schedule: Schedule) -> str | None:
        """Returns the reason why this engine cannot run a schedule; None if it can: at least one recurrence
        runs on oneDNN, and the other engine takes all other parts.
        """
        if reason := missing():
            return reason
        count = 0
        for part in parts_of(schedule):
            if part.plan is None:
                continue
            known = known_plan(part.plan)
            count += isinstance(known, KnownPlan)
            if isinstance(known, str) and (part.node is not None or schedule.single_plan is not None):
                return known
            if isinstance(known, str) and (reason := self.others.refuse_plan(part.plan)) is not None:
                return reason
        return None if count else "there is no recurrence that oneDNN has"

    def refuse_plan(self, plan: Plan) -> str | None:
        """Returns the reason why oneDNN cannot compute the plan of a part; None if it can."""
        cell = self.cell(plan)
        return cell if isinstance(cell, str) else None

    def cell(self, plan: Plan) -> LowPrecisionCell | str:
        """Describes oneDNN's cell for the recurrence of a plan, or returns, as text, why there is none."""
        if reason := missing():
            return reason
        known = known_plan(plan)
        return known if isinstance(known, str) else LowPrecisionCell(known.reads, str(known.recurrence))

    def compile(self, schedule: Schedule) -> Kernel:
        """Compiles a schedule: its parts run one after the other, each on oneDNN or on the other engine."""
        return in_parts(schedule, Means(self.compile_plan, self.total))

    def compile_plan(self, plan: Plan) -> Kernel:
        """Compiles the plan of a part: for oneDNN if it has the recurrence, else for the other engine."""
        known = known_plan(plan)
        return self.others.compile_plan(plan) if isinstance(known, str) else OneDnnKernel(known)

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """Computes the value of a node that combines all rows, such as the gradient of a weight."""
        return self.others.total(node, operands)


def missing() -> str | None:
    """Returns the reason why no library of oneDNN can be loaded; None if one can."""
    try:
        library()
    except LibraryError as error:
        return str(error)
    return None


def parts_of(schedule: Schedule) -> Iterator[Part]:
    """Yields all parts of a schedule (a net cut into parts). A loop is followed by the parts of its step."""
    for part in schedule.parts:
        yield part
        if part.inner is not None:
            yield from parts_of(part.inner)
