"""The engine: recurrences that compute a cell of oneDNN's by its primitives, and what lies between by llvm.

It is not in "auto": stepnet's own machine code needs no padding. It is for a comparison on the same net, and
for machines that oneDNN knows best.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stepnet.engines.base import Bound, Call, Cell, FrozenCall, Kernel, Results
from stepnet.engines.llvm.engine import LlvmEngine
from stepnet.engines.onednn.arranged import arranged, recurrence_of, refusal
from stepnet.engines.onednn.library import Library, library
from stepnet.engines.onednn.padding import Padding, padding
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.run import ran
from stepnet.engines.onednn.weights import Weights
from stepnet.engines.packed import called_again
from stepnet.engines.parts import in_parts
from stepnet.errors import LibraryError
from stepnet.net.interpret import Segments, evaluated, interpret
from stepnet.net.ir import Net, Node
from stepnet.net.types import CONST, STEPS
from stepnet.plan.groups import results_of
from stepnet.plan.plan import Plan
from stepnet.plan.recognise import Recognised, Refused, recognise
from stepnet.plan.schedule import Part, Schedule

Array = np.ndarray
LLVM = LlvmEngine()


@dataclass(frozen=True)
class OneDnnEngine:
    """The engine on the library of STEPNET_ONEDNN, or on the one that is installed."""

    name: str = "onednn"

    def refuse(self, schedule: Schedule) -> str | None:
        """Why a recurrence does not run on oneDNN, or a part between them on llvm; None if all of it runs."""
        if reason := missing():
            return reason
        known = 0
        for part in parts_of(schedule):
            if part.plan is None:
                continue
            made = known_plan(part.plan)
            known += isinstance(made, Known)
            if isinstance(made, str) and (part.node is not None or schedule.whole is not None):
                return made
            if isinstance(made, str) and (reason := LLVM.refuse_plan(part.plan)) is not None:
                return reason
        return None if known else "there is no recurrence that oneDNN has"

    def refuse_plan(self, plan: Plan) -> str | None:
        """Why a part does not run on oneDNN itself; None for a recurrence that does."""
        made = self.cell(plan)
        return made if isinstance(made, str) else None

    def cell(self, plan: Plan) -> Cell | str:
        """What oneDNN has for a recurrence; a reason where it has nothing."""
        if reason := missing():
            return reason
        made = known_plan(plan)
        return made if isinstance(made, str) else Cell(made.reads, str(made.recurrence))

    def compile(self, schedule: Schedule) -> Kernel:
        """Every part on oneDNN or llvm, to be run one after the other."""
        return in_parts(schedule, self.compile_plan, self.total)

    def compile_plan(self, plan: Plan) -> Kernel:
        """One plan: a recurrence on oneDNN, anything else on llvm."""
        known = known_plan(plan)
        return LLVM.compile_plan(plan) if isinstance(known, str) else OneDnnKernel(known)

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """A value over all rows, as llvm computes it."""
        return LLVM.total(node, operands)


def missing() -> str | None:
    """Why there is no library; None where there is one."""
    try:
        library()
    except LibraryError as error:
        return str(error)
    return None


def parts_of(schedule: Schedule) -> Iterator[Part]:
    """All parts, those inside loops included."""
    for part in schedule.parts:
        yield part
        if part.inner is not None:
            yield from parts_of(part.inner)


@dataclass(frozen=True)
class Known:
    """A plan whose recurrence oneDNN has.

    reads: the sequences that x is made of, by their places in a call. memories: h, and c, by their places
    among the initial memories. parameters: the constants of the net that the body reads, by number. outputs,
    final: for each result of the net of that kind, "h" or "c".
    """

    net: Net
    cell: Recognised
    recurrence: Recurrence
    reads: tuple[int, ...]
    memories: tuple[int, ...]
    parameters: tuple[int, ...]
    outputs: tuple[str, ...]
    final: tuple[str, ...]


def known_plan(plan: Plan) -> Known | str:
    """What oneDNN runs of a plan, or the reason why it does not."""
    net, ends = plan.traced, plan.ends
    numbers = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    if len(numbers) != 1:
        return f"a primitive is one recurrence, and here are {len(numbers)}"
    node = net.nodes[numbers[0]]
    recur = node.recur
    if recur.following == recur.memories:
        return "it has no recurrence"
    cell = recognise(recur)
    if isinstance(cell, Refused):
        return f"oneDNN has no such cell: {cell.reason}"
    reason = refusal(cell.semantics)
    if reason is not None:
        return reason
    given = recur.operands_by_kind(node.inputs)
    outputs, final = recur.results_by_kind(results_of(net, numbers[0]))
    names = "hc"[: recur.memory_count]
    kinds = {n: kind for n, kind in zip(outputs, cell.outputs, strict=True) if n >= 0}
    kinds |= {
        final[place]: name for name, place in zip(names, (cell.h, cell.c), strict=False) if place is not None
    }
    sequences = [net.inputs[place] for place in ends.sequences]
    memories = [net.inputs[place] for place in ends.memories]
    if any(net.type_of(number).extent != CONST for number in given.others):
        return "its step reads values that each sequence has, and oneDNN's cells have none"
    if not {*given.sequences} <= {*sequences} or not {*given.memories} <= {*memories}:
        return "its inputs or first memories are computed in the same plan"
    if any(kinds.get(number) is None for number in net.results):
        return "its results are more than the memory after each step"
    types = [net.type_of(number) for number in (*sequences, *memories)]
    if any(type_.dtype != "float32" for type_ in types) or any(
        s.extent != STEPS for s in types[: len(sequences)]
    ):
        return "oneDNN runs float32, and this is " + ", ".join(sorted({type_.dtype for type_ in types}))
    sizes = [net.type_of(memories[place]).size for place in range(len(memories))]
    projected = sizes[memories.index(given.memories[cell.h])]
    recurrence = recurrence_of(
        cell.semantics, cell.inputs, cell.hidden, cell.names, projected, recur.reverse
    ).in_precision(recur.precision)
    if recur.precision is not None and (reason := recurrence.refuse(library())):
        return reason
    return Known(
        net,
        cell,
        recurrence,
        tuple(sequences.index(given.sequences[place]) for place in cell.sequences),
        tuple(memories.index(given.memories[place]) for place in (cell.h, cell.c) if place is not None),
        tuple(
            n
            for n, inside in zip(given.others, recur.others, strict=True)
            if recur.body.type_of(inside).extent == CONST
        ),
        tuple(kinds[net.results[place]] or "" for place in ends.steps),
        tuple(kinds[net.results[place]] or "" for place in ends.rows),
    )


@dataclass(frozen=True)
class OneDnnKernel:
    """A recurrence of oneDNN's without its parameters."""

    known: Known

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """What runs a call with these parameters, which are arranged now."""
        return BoundRecurrence(self.known, library(), *self.weights(parameters))

    def weights(self, parameters: Sequence[Array]) -> tuple[Recurrence, Weights]:
        """The weights that these parameters make, and the recurrence with the scales of these in int8."""
        known, cell, net = self.known, self.known.cell, self.known.net
        inputs = [number for number in net.inputs if net.type_of(number).extent == CONST]
        values = evaluated(
            net, dict(zip(inputs, parameters, strict=True)), sorted({*known.parameters} - {*inputs})
        )
        made = interpret(cell.weights, [values[number] for number in known.parameters], Segments(1))
        arrays = dict(zip(cell.names, made, strict=True))
        if cell.projected is not None:  # each feature of x is what one unit of one gate is given
            arrays["W"] = np.zeros((cell.inputs, len(cell.projected)), np.float32)
            arrays["W"][list(cell.projected), np.arange(len(cell.projected))] = 1
        weights = Weights.of(known.recurrence, arranged(known.recurrence, cell.semantics, arrays))
        return known.recurrence.scaled(weights.arrays, library().largest_weight), weights


class BoundRecurrence:
    """A recurrence with its weights."""

    def __init__(self, known: Known, loaded: Library, recurrence: Recurrence, weights: Weights) -> None:
        self.known, self.library, self.recurrence, self.weights = known, loaded, recurrence, weights

    def __call__(self, call: Call) -> Results:
        """The results of a call."""
        return self.results(padding(call, self.known.cell.recur.reverse), call, call.sequences, call.initial)

    def results(
        self, places: Padding, call: Call, sequences: Sequence[Array], initial: Sequence[Array | None]
    ) -> Results:
        """The results for arrays that lie as those of a call."""
        known = self.known
        flat = [laid_flat(sequences[place], call.total) for place in known.reads]
        x = flat[0] if len(flat) == 1 else np.concatenate([np.zeros((call.total, 0), np.float32), *flat], -1)
        made = ran(
            self.library,
            self.recurrence,
            self.weights,
            places,
            x,
            [initial[place] for place in known.memories],
            last_c="c" in known.final,
            all_c="c" in known.outputs,
        )
        steps = {"h": made.outputs, "c": made.cells}
        rows = {"h": made.h, "c": made.c}
        outputs = own([steps[kind] for kind in known.outputs])
        if call.last_only:
            outputs = [call.ends(output, known.cell.recur.reverse) for output in outputs]
        return Results(outputs, own([rows[kind] for kind in known.final]))

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Takes other parameters."""
        self.recurrence, self.weights = OneDnnKernel(self.known).weights(parameters)
        return True

    def release(self) -> None:
        """Nothing: primitives and weights are kept for others, and bounded."""

    def again(self, call: Call, results: Results, whole: bool = False) -> Callable[[], None]:
        """What runs this call whenever it is called."""
        return called_again(self, call, results)

    def frozen(self, call: Call) -> FrozenCall | None:
        """What runs calls like this one: where its steps lie is known."""
        places = padding(call, self.known.cell.recur.reverse)
        if call.last_only:
            return None

        def run(
            sequences: Sequence[Array], initial: Sequence[Array | None], statics: Sequence[Array] = ()
        ) -> Results:
            return self.results(places, call, sequences, initial)

        return run


def laid_flat(sequence: Array, total: int) -> Array:
    """A sequence as [total, size]; a frozen call has one as the caller's array."""
    return sequence.reshape(total, sequence.size // total if total else prod(sequence.shape[1:]))


def own(arrays: Sequence[Array | None]) -> list[Array]:
    """The arrays, each with memory of its own: one that is there twice is copied."""
    seen: set[int] = set()
    made: list[Array] = []
    for array in arrays:
        assert array is not None
        made.append(array.copy() if id(array) in seen else array)
        seen.add(id(array))
    return made
