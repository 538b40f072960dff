"""A schedule whose parts run one after the other, each on the kernel that an engine has for it.

part 0 recurrence   values 0 1 2   -> 5 6        machine code, where the caller's sequences lie
part 1 plain        values 5 3     -> 8          machine code, each value a sequence of one step
part 2 across       value 8        -> 9          NumPy
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.engines.base import Bound, Call, FrozenCall, Kernel, Results
from stepnet.engines.kept import Kept, kept_plain, kept_results
from stepnet.engines.packed import Packed, called_again, ends_at, parameters_of
from stepnet.engines.reductions import REDUCTIONS
from stepnet.interpret import Segments, by_steps, expand
from stepnet.ir import Net
from stepnet.once import computed_once
from stepnet.passes.lift import is_constant
from stepnet.plan import Plan
from stepnet.schedule import Part, Schedule
from stepnet.types import CONST, ROWS, STEPS, Extent

Array = np.ndarray
Values = dict[int, Any]
"""The values of a net's nodes so far; None for a memory that begins at zeros."""
ENDS = ("first", "last")
"""Reductions that pick one step, whatever lies between sequences."""


Compile = Callable[[Plan], Kernel]


def in_parts(schedule: Schedule, compile_plan: Compile) -> Kernel:
    """A kernel of a schedule out of those of its plans: the plan's own where one plan is all there is."""
    if schedule.whole is not None:
        return compile_plan(schedule.whole)
    return PartsKernel.of(schedule, compile_plan)


@dataclass(frozen=True)
class PartsKernel:
    """A schedule and the kernels of its parts; None for those that NumPy runs."""

    schedule: Schedule
    kernels: "tuple[Kernel | PartsKernel | None, ...]"

    @classmethod
    def of(cls, schedule: Schedule, compile_plan: Compile) -> "PartsKernel":
        """The kernel of a schedule, its parts compiled one by one."""

        def kernel(part: Part) -> "Kernel | PartsKernel | None":
            if part.plan is not None:
                return compile_plan(part.plan)
            return None if part.inner is None else cls.of(part.inner, compile_plan)

        return cls(schedule, tuple(map(kernel, schedule.parts)))

    def bind(self, parameters: Sequence[Array]) -> "BoundParts":
        """What runs a call with these parameters."""
        return self.bound_to(dict(zip(parameters_of(self.schedule.net), parameters, strict=True)))

    def bound_to(self, parameters: Mapping[int, Array]) -> "BoundParts":
        """The same with parameters by their numbers in the schedule's net."""
        constants = constant_values(self.schedule.net, parameters)
        bound: list[Bound | BoundParts | None] = []
        for part, kernel in zip(self.schedule.parts, self.kernels, strict=True):
            if isinstance(kernel, PartsKernel) and part.inner is not None and part.node is not None:
                inside = zip(part.inner.net.inputs, part.node.inputs, strict=True)
                fixed = {inner: constants[outer] for inner, outer in inside if outer in constants}
                bound.append(kernel.bound_to(fixed))
            else:
                bound.append(None if kernel is None else kernel.bind([constants[n] for n in part.parameters]))
        return BoundParts(self.schedule, constants, tuple(bound))


@dataclass(frozen=True)
class BoundParts:
    """A schedule with its parameters. constants: the values of its net that are known without a call."""

    schedule: Schedule
    constants: Values
    bound: "tuple[Bound | BoundParts | None, ...]"

    @property
    def net(self) -> Net:
        """The net whose values the parts read and give."""
        return self.schedule.net

    @computed_once
    def takes_gaps(self) -> bool:
        """Whether sequences with gaps between them are run where they lie."""
        return takes_gaps(self.schedule)

    @computed_once
    def clean(self) -> set[int]:
        """The places of the net's results that are zeros in gaps between sequences: what recurrences give."""
        made = {n for part in self.schedule.parts if part.kind == "recurrence" for n in part.gives}
        return {place for place, number in enumerate(self.net.results) if number in made}

    def __call__(self, call: Call) -> Results:
        """The results of a call, in new arrays."""
        packed = Packed.of(call, pack=not self.takes_gaps)
        varying = [number for number in self.net.inputs if number not in self.constants]
        values = dict(zip(varying, packed.arrays(self.net), strict=True))
        made = self.results(values, Frame(packed.segments, packed.gaps))
        return packed.results(self.schedule.traced, made, self.clean)

    def again(self, call: Call, results: Results, whole: bool = False) -> Callable[[], None]:
        """What runs this call whenever it is called."""
        return called_again(self, call, results)

    def frozen(self, call: Call) -> FrozenCall | None:
        """None: between its parts there is something to find out at every call."""
        return None

    def results(self, given: Values, frame: "Frame") -> list[Array]:
        """The results of the net, for the values of all inputs that are no parameters.

        Those of a loop's step hold until the next step.
        """
        values = {**self.constants, **given}
        for part, bound in zip(self.schedule.parts, self.bound, strict=True):
            values.update(KINDS[part.kind](self.net, part, bound, values, frame))
        return [values[result] for result in self.net.results]


def constant_values(net: Net, parameters: Mapping[int, Array]) -> Values:
    """The values of all constants of a net."""
    values: Values = {number: np.asarray(value) for number, value in parameters.items()}
    with np.errstate(all="ignore"):
        for number, node in enumerate(net.nodes):
            if node.operation != "input" and is_constant(node):
                operands = [values[operand] for operand in node.inputs]
                values[number] = node.row.meaning(*operands, **node.attributes)
    return values


# ---- each kind of part -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """Where the values of each extent lie while a schedule runs.

    gaps: the call whose sequences lie with gaps between them, as padded ones do; None where they lie end to
    end. kept: what the steps of a loop keep for one another, None outside of loops.
    """

    segments: Segments
    gaps: Call | None = None
    kept: Kept | None = None

    def sequences(self, extent: Extent) -> tuple[Array, Array, int]:
        """Where each sequence along the innermost axis of an extent starts, its length, and the total."""
        if self.gaps is not None and extent == STEPS:
            return self.gaps.starts, self.gaps.lengths, self.gaps.total
        offsets = self.segments.into(extent)
        return offsets[:-1], np.diff(offsets), int(offsets[-1])

    def count(self, extent: Extent) -> int:
        """How many values there are at an extent, those in gaps included."""
        gaps = self.gaps is not None and extent == STEPS
        return self.gaps.total if gaps and self.gaps is not None else self.segments.count(extent)


def takes_gaps(schedule: Schedule) -> bool:
    """Whether all parts run on sequences with gaps between them: none of them looks at what lies there."""

    def fits(part: Part) -> bool:
        if part.plan is not None and part.extent in (ROWS, STEPS):
            kinds = {node.kind for net in (part.plan.net, part.plan.body) for node in net.nodes}
            return part.kind == "recurrence" or "gather" not in kinds
        reduces = part.node is not None and part.node.operation == "reduce"
        return reduces and part.node.attributes["how"] in ENDS if part.node is not None else False

    return all(map(fits, schedule.parts))


def sequence_call(part: Part, values: Values, frame: Frame) -> Call:
    """The call of a recurrence over the sequences at its extent."""
    arrays = [None if n < 0 or values[n] is None else np.ascontiguousarray(values[n]) for n in part.reads]
    first = len(arrays) - part.statics - part.memories
    starts, lengths, total = frame.sequences(part.extent)
    return Call(
        [array for array in arrays[:first] if array is not None],
        starts,
        lengths,
        total,
        arrays[first : first + part.memories],
        [array for array in arrays[first + part.memories :] if array is not None],
        part.last_only,
        frame.segments.begun if part.extent == STEPS else None,
    )


def plain_call(arrays: Sequence[Array], count: int) -> Call:
    """The call of nodes without a recurrence: each value is a sequence of one step."""
    return Call(arrays, np.arange(count, dtype=np.int64), np.ones(count, np.int64), count, [None])


def run_recurrence(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """A flat recurrence over the sequences at its extent."""
    call, results = sequence_call(part, values, frame), None
    if frame.kept is not None:
        results = kept_results(part, bound, call, frame.segments.into(part.extent), frame.kept)
    if results is None:
        made = bound(call)
        results = [*made.outputs, *made.final]
    return {n: array for n, array in zip(part.gives, results, strict=True) if n >= 0}


def run_plain(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """Nodes without a recurrence."""
    count = frame.count(part.extent)
    arrays = [np.ascontiguousarray(values[number]) for number in part.reads]
    if frame.kept is None or not count:
        outputs = bound(plain_call(arrays, count)).outputs
    else:
        outputs = kept_plain(net, part, bound, arrays, count, frame.kept)
    return dict(zip(part.gives, outputs, strict=True))


def run_across(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """A value of one extent at another."""
    assert part.node is not None
    value, extent = values[part.reads[0]], net.type_of(part.reads[0]).extent
    if part.node.operation == "expand":
        return {part.gives[0]: expand(net, part.node, [value], frame.segments)}
    how: str = part.node.attributes["how"]
    if how in ENDS:
        starts, lengths, _ = frame.sequences(extent)
        return {part.gives[0]: ends_at(value, starts, lengths, how == "first")}
    return {part.gives[0]: REDUCTIONS[how](value, frame.segments.into(extent))}


def run_loop(net: Net, part: Part, bound: Any, values: Values, frame: Frame) -> Values:
    """A recurrence step by step, for the rows that have one."""
    assert part.node is not None
    body: Net = bound.net
    varying = [place for place, number in enumerate(body.inputs) if body.type_of(number).extent != CONST]
    counted = [number for number, node in enumerate(body.nodes) if node.operation == "index"]
    kept: Kept = {} if frame.kept is None else frame.kept

    def run(arrays: Sequence[Array], inside: Segments, index: Array) -> list[Array]:
        given = {body.inputs[place]: arrays[place] for place in varying}
        return bound.results(given | dict.fromkeys(counted, index), Frame(inside, kept=kept))

    made = by_steps(net, part.node, [values[n] for n in part.reads], frame.segments, run)
    return {n: array for n, array in zip(part.gives, made, strict=True) if n >= 0}


KINDS: dict[str, Callable[..., Values]] = {
    "recurrence": run_recurrence,
    "plain": run_plain,
    "across": run_across,
    "loop": run_loop,
}
