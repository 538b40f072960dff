"""A frozen schedule: each of its parts is a frozen call, and they run one after the other.

    y, h1 = part0(x, None);  y, h2 = part1(y, None)

Nothing is checked, shared out or prepared in between. Only recurrences over the caller's sequences, and the
work between them, are frozen: nested recurrences have other sequences at every call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.engines.base import Call, FrozenCall, Results
from stepnet.engines.packed import plain_call, varying_of
from stepnet.engines.part import ENDS, Frame, Values, sequence_call, takes_gaps
from stepnet.net.ends import Ends
from stepnet.net.interpret import Segments
from stepnet.net.ir import Net
from stepnet.net.types import ROWS, STEPS
from stepnet.plan.schedule import Part, Schedule
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
Step = Callable[[Values], None]


@dataclass(frozen=True)
class FrozenParts:
    """The parts of a schedule. Each adds its results to the values so far."""

    net: Net
    constants: Values
    steps: tuple[Step, ...]
    kinds: tuple[tuple[int, ...], ...]

    def __call__(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
    ) -> Results:
        """The results; such calls have no statics."""
        values = dict(self.constants)
        values.update(zip(varying_of(self.net), (*sequences, *initial), strict=True))
        for step in self.steps:
            step(values)
        made = [values[number] for number in self.net.results]
        return Results(*([made[place] for place in places] for places in self.kinds))


def frozen_parts(
    schedule: Schedule, constants: Values, bound: Sequence[Any], call: Call
) -> FrozenCall | None:
    """The frozen schedule for calls like this one; None where a part cannot be frozen.

    It is run once on the way, because each part needs the shapes of the values before it.
    """
    plain = call.begun is None and not call.statics and not call.inner and not call.last_only
    dense = int(call.lengths.sum()) == call.total and (call.is_packed or takes_gaps(schedule))
    if not plain or not dense or not call.rows or not np.all(call.lengths):
        return None
    frame = Frame(Segments(call.rows, (offsets_of(call.lengths),)), None if call.is_packed else call)
    values = dict(constants)
    values.update(zip(varying_of(schedule.net), (*call.sequences, *call.initial), strict=True))
    steps = list[Step]()
    for part, bound_part in zip(schedule.parts, bound, strict=True):
        step = frozen_part(part, bound_part, values, frame)
        if step is None:
            return None
        steps.append(step)
        step(values)
    ends = Ends.of(schedule.net)
    return FrozenParts(schedule.net, constants, tuple(steps), (ends.steps, ends.rows, ends.totals))


def frozen_part(part: Part, bound: Any, values: Values, frame: Frame) -> Step | None:
    """A function that runs one part on such values; None where it cannot be frozen."""
    if part.node is not None and part.node.operation == "reduce":
        return frozen_end(part, frame) if part.node.attributes["how"] in ENDS else None
    if part.plan is None or part.extent not in (ROWS, STEPS) or part.statics:
        return None
    sequences = part.reads[: len(part.reads) - part.memories] if part.kind == "recurrence" else part.reads
    memories = part.reads[len(sequences) :]
    if any(values[number] is None for number in sequences):
        return None
    if part.kind == "recurrence":
        call = sequence_call(part, values, frame)
    else:
        call = plain_call([values[number] for number in sequences], frame.count(part.extent))
    run = bound.frozen(call)
    if run is None:
        return None
    none = [None] * (len(call.initial) - len(memories))

    def step(values: Values) -> None:
        initial = [None if number < 0 else values[number] for number in memories]
        results = run([values[number] for number in sequences], [*initial, *none])
        given = results.outputs if part.kind == "plain" else (*results.outputs, *results.final)
        values.update(zip(part.gives, given, strict=True))

    return step


def frozen_end(part: Part, frame: Frame) -> Step:
    """A function that takes the last step of each sequence, or the first."""
    assert part.node is not None
    first = part.node.attributes["how"] == "first"
    sequences, read, gives = frame.sequences(STEPS), part.reads[0], part.gives[0]

    def step(values: Values) -> None:
        values[gives] = sequences.ends(values[read], first)

    return step
