"""A frozen schedule: its parts are frozen calls, as far as they can be, and run one after the other.

    y, h1 = part0(x, None);  y, h2 = part1(y, None)

Nothing is checked or shared out in between. Only calls whose sequences have no gaps and all the same form are
frozen: nested recurrences have other sequences at every call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.engines.base import Call, FrozenCall, Results
from stepnet.engines.packed import plain_call
from stepnet.engines.part import (
    ENDS,
    SEQUENCED,
    Frame,
    Values,
    lent_places,
    memories_of,
    own_results,
    sequence_call,
    takes_gaps,
)
from stepnet.net.ends import Ends
from stepnet.net.interpret import Segments
from stepnet.net.ir import Net
from stepnet.net.types import ROWS, STEPS
from stepnet.plan.schedule import Part, Schedule
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
Step = Callable[[Values], None]
RunPart = Callable[[int, Values, Frame], Values]
"""What runs the part at a place of a schedule as any call does, and gives its results."""
FROZEN = (*SEQUENCED, "plain")
"""The kinds of parts that an engine may have frozen calls for."""


@dataclass(frozen=True)
class FrozenParts:
    """The parts of a schedule. Each adds its results to the values so far.

    constants: the values known without a call, which may change from call to call. lent: see `own_results`.
    """

    net: Net
    ends: Ends
    constants: Values
    lent: tuple[int, ...]
    steps: tuple[Step, ...]

    def __call__(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
    ) -> Results:
        """The results."""
        values = self.constants | call_values(self.net, self.ends, (sequences, initial, statics))
        for step in self.steps:
            step(values)
        results, ends = own_results(self.net, values, self.lent), self.ends
        return Results(*([results[place] for place in kind] for kind in (ends.steps, ends.rows, ends.totals)))


def call_values(net: Net, ends: Ends, arrays: tuple[Sequence[Array | None], ...]) -> Values:
    """The sequences, initial memories and statics of a call by their numbers in a net."""
    kinds = zip((ends.sequences, ends.memories, ends.statics), arrays, strict=True)
    return {
        net.inputs[place]: array for places, kind in kinds for place, array in zip(places, kind, strict=True)
    }


def frozen_parts(
    schedule: Schedule, constants: Values, bound: Sequence[Any], run_part: RunPart, call: Call
) -> FrozenCall | None:
    """The frozen schedule for calls like this one; None where that would not be faster.

    It is run once on the way, because each part needs the shapes of the values before it.
    """
    plain = call.begun is None and not call.inner and not call.beside and not call.last_only
    dense = int(call.lengths.sum()) == call.total and (call.is_packed or takes_gaps(schedule))
    if not plain or not dense or not call.rows or not np.all(call.lengths):
        return None
    frame = Frame(Segments(call.rows, (offsets_of(call.lengths),)), None if call.is_packed else call)
    net, ends = schedule.net, Ends.of(schedule.net)
    values = constants | call_values(net, ends, (call.sequences, call.initial, call.statics))
    steps = list[Step]()
    for place, (part, bound_part) in enumerate(zip(schedule.parts, bound, strict=True)):
        if part.kind == "loop" or any(values[number] is None for number in filled(part)):
            return None
        step = frozen_part(part, bound_part, values, frame) or as_ever(place, run_part, frame)
        steps.append(step)
        step(values)
    return FrozenParts(net, ends, constants, lent_places(net, constants), tuple(steps))


def filled(part: Part) -> tuple[int, ...]:
    """The values that a part reads, without initial memories, which a call may leave out."""
    if part.kind not in SEQUENCED:
        return part.reads
    first, last = memories_of(part)
    return (*part.reads[:first], *part.reads[last:])


def as_ever(place: int, run_part: RunPart, frame: Frame) -> Step:
    """A function that runs a part as any call does.

    Frozen parts read values as they lie: one that is repeated for all rows, a view of stride 0, is copied.
    """

    def step(values: Values) -> None:
        made = run_part(place, values, frame)
        values.update({number: np.asarray(array, order="C") for number, array in made.items()})

    return step


def frozen_part(part: Part, bound: Any, values: Values, frame: Frame) -> Step | None:
    """A function that runs one part on such values; None where it cannot be frozen."""
    if part.node is not None and part.node.operation == "reduce" and part.node.attributes["how"] in ENDS:
        return frozen_end(part, frame)
    if part.kind not in FROZEN or part.late or part.extent not in (ROWS, STEPS):
        return None
    if part.kind in SEQUENCED:
        first, last = memories_of(part)
        call = sequence_call(part, values, frame)
    else:
        first = last = len(part.reads)
        call = plain_call([values[number] for number in part.reads], frame.count(part.extent))
    sequences, memories, statics = part.reads[:first], part.reads[first:last], part.reads[last:]
    run = bound.frozen(call)
    if run is None:
        return None
    none = [None] * (len(call.initial) - len(memories))

    def step(values: Values) -> None:
        initial = [None if number < 0 else values[number] for number in memories]
        arrays = [[values[number] for number in numbers] for numbers in (sequences, statics)]
        results = run(arrays[0], [*initial, *none], arrays[1])
        made = results.outputs if part.kind == "plain" else results.arrays
        values.update(zip(part.results, made, strict=True))

    return step


def frozen_end(part: Part, frame: Frame) -> Step:
    """A function that takes the last step of each sequence, or the first."""
    assert part.node is not None
    first = part.node.attributes["how"] == "first"
    sequences, read, result = frame.sequences(STEPS), part.reads[0], part.results[0]

    def step(values: Values) -> None:
        values[result] = sequences.ends(values[read], first)

    return step
