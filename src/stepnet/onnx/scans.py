"""Scan, and Loop over the steps of a sequence, as recurrences of a model.

    Scan(h0, xs; body)    -->    recurrence: step(x, h) = body(h, x)
    Loop(T, true, h0; body: ... Gather(xs, i) ...)    -->    the same, with xs as its sequences

A body is run on values whose axes are those of one step: all but the steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stepnet.errors import ModelError
from stepnet.graph.operators.call import Call
from stepnet.graph.operators.facts import UNKNOWN, Kept
from stepnet.graph.operators.padding import fact_of
from stepnet.graph.operators.placed import AxesError, Placed, constant, words
from stepnet.graph.operators.recurrent import padded_ends
from stepnet.graph.operators.sizes import SEQUENCES, STEPS, Size
from stepnet.net.types import ROWS
from stepnet.rnn.recurrence import RNN
from stepnet.trace.step import Spec
from stepnet.trace.traced import Traced, apply
from stepnet.values.dtypes import computed

OLD = 9
"""The opset from which on a Scan has no axis of sequences of its own."""


class Body(Protocol):
    """A body of a node."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def outside(self) -> dict[Any, Placed]:
        """The traced values around it that it reads."""
        ...

    def gathered(self, iteration: int) -> dict[Any, tuple[Any, int]]:
        """The values that are its outer values' slices at the number of its iteration: of each, the outer
        value's key and the axis.
        """
        ...

    def run(self, operands: Sequence[Placed | None], outside: dict[Any, Placed]) -> list[Placed]:
        """Its outputs. outside: other values for those around it, and for its own."""
        ...


@dataclass(frozen=True)
class Steps:
    """A body as a step: the axes of a step's inputs, of its memory, and of what it reads from around it."""

    body: Body
    arranged: Callable[[Sequence[Placed], Sequence[Placed]], list[Placed | None]]
    inputs: tuple[Placed, ...]
    memory: tuple[Placed, ...]
    still: dict[Any, Placed]
    sliced: tuple[Any, ...]
    results: list[list[Placed]]
    kept: tuple[Kept, ...]

    @property
    def __name__(self) -> str:
        return self.body.name

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """The outputs and the states after a step."""
        traced = iter(x)
        inputs = [like if like.is_constant else replace(like, value=next(traced)) for like in self.inputs]
        before = [
            replace(like, value=value, fact=fact)
            for like, value, fact in zip(self.memory, memory, self.kept, strict=True)
        ]
        others = {
            key: replace(like, value=value)
            for (key, like), value in zip(self.still.items(), statics or (), strict=True)
        }
        others |= dict(zip(self.sliced, inputs, strict=False))
        made = self.body.run(self.arranged(before, inputs), others)
        count = len(self.memory)
        self.results.append(made)
        values = [value.value for value in made]
        for old, new in zip(self.memory, made, strict=False):
            if new.axes != old.axes:
                raise AxesError(
                    f"a state is [{words(old.axes)}] before a step and [{words(new.axes)}] after it"
                )
        return tuple(values[count:]), tuple(values[:count])


def scan(call: Call) -> list[Placed]:
    """The last states and the outputs of each step of a Scan."""
    old = call.opset < OLD
    operands = list(call.operands[1:] if old else call.operands)
    if old and call.optional(0) is not None:
        raise ModelError("the sequence_lens of an old Scan are not supported")
    count = int(call.attributes["num_scan_inputs"])
    if not 0 < count <= len(operands):
        raise ModelError(f"its num_scan_inputs is {count}, and it has {len(operands)} inputs")
    states, scanned = operands[:-count], operands[-count:]
    if old:
        return old_scan(call, states, scanned)
    axes = list(call.attributes.get("scan_input_axes", [0] * count))
    reverse = is_reverse(call, "scan_input_directions", len(states))
    inputs = [without_steps(present(value), axis) for value, axis in zip(scanned, axes, strict=True)]
    made = recurrence(
        call.bodies["body"],
        [present(state) for state in states],
        inputs,
        reverse=reverse,
        arranged=lambda before, x: [*before, *x],
    )
    placed = call.attributes.get("scan_output_axes", [0] * (len(made) - len(states)))
    final, outputs = made[: len(states)], made[len(states) :]
    outputs = [with_steps(value, axis) for value, axis in zip(outputs, placed, strict=True)]
    return [*last_states(call, final, reverse), *outputs]


def last_states(call: Call, states: Sequence[Placed], reverse: bool) -> list[Placed]:
    """The last states of a recurrence over all steps of a padded array, those that are kept in the padding.

    Raises `ModelError` for one that begins in the padding, and changes a state there.
    """
    is_kept = [isinstance(state.fact, Kept) for state in states]
    final = [state.with_value(state.value) for state in states]
    if not call.padded or all(is_kept):
        return final
    ends = padded_ends(final, reverse)
    return [state if kept else end for state, end, kept in zip(final, ends, is_kept, strict=True)]


def is_reverse(call: Call, name: str, states: int) -> bool:
    """Whether a Scan runs backwards. name: the attribute of its inputs' directions; that of the outputs is 0
    where it is not stated, as in a Scan of opset 8.
    """
    outputs = max(call.outputs - states, 0)
    ways = {*call.attributes.get(name, [0]), *call.attributes.get("scan_output_directions", [0] * outputs)}
    if len(ways) > 1:
        raise ModelError("it scans in both directions at once")
    return ways == {1}


def old_scan(call: Call, states: Sequence[Placed | None], scanned: Sequence[Placed | None]) -> list[Placed]:
    """A Scan of opset 8, which has an axis of sequences, the first of all values, that its body has not."""
    inputs = [without_batch(without_steps(present(value), 1)) for value in scanned]
    before = [without_batch(present(state)) for state in states]
    reverse = is_reverse(call, "directions", len(states))
    made = recurrence(call.bodies["body"], before, inputs, reverse, lambda h, x: [*h, *x])
    final, outputs = made[: len(states)], made[len(states) :]
    return [
        *(value.with_value(value.value, SEQUENCES + value.axes) for value in final),
        *(value.with_value(value.value, SEQUENCES + STEPS + value.axes) for value in outputs),
    ]


def without_batch(value: Placed) -> Placed:
    """A value without the axis of sequences, which is its first."""
    if not value.axes.startswith(SEQUENCES):
        raise AxesError(f"it runs over [{words(value.axes)}], and the first axis should be sequences")
    return value.with_value(value.value, value.axes[1:])


def present(value: Placed | None) -> Placed:
    """An operand; raises `ModelError` where it is missing."""
    if value is None:
        raise ModelError("an input is missing")
    return value


def without_steps(value: Placed, axis: int) -> Placed:
    """A sequence with the axes of one of its steps."""
    axis = value.axis(axis)
    if value.axes[axis] != STEPS:
        raise AxesError(f"it runs over axis {axis} of [{words(value.axes)}], which are not its steps")
    return replace(value, axes=value.axes[:axis] + value.axes[axis + 1 :])


def with_steps(value: Placed, axis: int) -> Placed:
    """A value of each step with the axis of the steps."""
    axis = value.axis(axis, 1)
    return replace(value, axes=value.axes[:axis] + STEPS + value.axes[axis:])


def recurrence(
    body: Body,
    states: Sequence[Placed],
    inputs: Sequence[Placed],
    reverse: bool,
    arranged: Callable[[Sequence[Placed], Sequence[Placed]], list[Placed | None]],
    sliced: Sequence[Any] = (),
) -> list[Placed]:
    """The last states, and then the outputs, with the axes of a step."""
    first = next((value.value for value in inputs if isinstance(value.value, Traced)), None)
    if first is None:
        raise ModelError("it runs over a constant")
    still = {
        key: value
        for key, value in body.outside().items()
        if isinstance(value.value, Traced) and key not in sliced and value.value.type.extent == ROWS
    }
    begins = [as_rows(first, state) for state in states]
    owner = object()
    kept = tuple(Kept(owner, place, value.type.dtype) for place, value in enumerate(begins))
    step = Steps(body, arranged, tuple(inputs), tuple(states), still, tuple(sliced), [], kept)
    memory = tuple(Spec(value.type.shape, value.type.dtype) for value in begins)
    outputs, final = RNN(step, memory=memory, reverse=reverse)(
        tuple(value.value for value in inputs if isinstance(value.value, Traced)),
        initial=tuple(begins),
        statics=tuple(value.value for value in still.values()) or None,
    )
    made = step.results[-1]
    facts = [like.fact if like.fact == kept else UNKNOWN for like, kept in zip(made, step.kept, strict=False)]
    facts += [fact_of(like) for like in made[len(states) :]]
    every = zip(made, (*final, *outputs), facts, strict=True)
    return [replace(like, value=value, fact=fact) for like, value, fact in every]


def as_rows(first: Traced, state: Placed) -> Traced:
    """A state as a value that each sequence has."""
    if isinstance(state.value, Traced) and state.value.type.extent == ROWS:
        return state.value
    if isinstance(state.value, Traced):
        raise AxesError("a state begins with a value of each step")
    literal = Traced(first.builder, first.builder.constant(computed(state.value)))
    return apply("expand", literal, extent=ROWS)


# ---- loops -------------------------------------------------------------------------------------------------


def loop(call: Call) -> list[Placed]:
    """The last states and the outputs of each step of a Loop over the steps of a sequence."""
    times, condition = call.optional(0), call.optional(1)
    if times is None or not times.is_constant or not is_steps(times.array.item()):
        raise AxesError("it does not run once for each step of a sequence: only such a Loop is a recurrence")
    if condition is not None and not (condition.is_constant and bool(condition.array)):
        raise ModelError("its condition is computed, and only a Loop over all steps is a recurrence")
    body: Body = call.bodies["body"]
    slices, around = body.gathered(0), body.outside()
    inputs, keys = list[Placed](), list[Any]()
    for key, (source, axis) in slices.items():
        if source in around and STEPS in around[source].axes:
            inputs.append(without_steps(around[source], axis))
            keys.append(key)
    if not inputs:
        raise ModelError("its body takes no step of a sequence by the number of its iteration")
    made = recurrence(
        LoopBody(body),
        [present(state) for state in call.operands[2:]],
        inputs,
        reverse=False,
        arranged=lambda before, x: [None, constant(True), *before],
        sliced=keys,
    )
    count = len(call.operands) - 2
    final = last_states(call, made[:count], reverse=False)
    return [*final, *(with_steps(value, 0) for value in made[count:])]


def is_steps(size: Any) -> bool:
    """Whether a number is that of the steps."""
    return isinstance(size, Size) and size.letters == STEPS and size.times == 1


@dataclass(frozen=True)
class LoopBody:
    """A body of a Loop, whose first output is a condition."""

    body: Body

    @property
    def name(self) -> str:
        """See `Body`."""
        return self.body.name

    def outside(self) -> dict[Any, Placed]:
        """See `Body`."""
        return self.body.outside()

    def gathered(self, iteration: int) -> dict[Any, tuple[Any, int]]:
        """See `Body`."""
        return self.body.gathered(iteration)

    def run(self, operands: Sequence[Placed | None], outside: dict[Any, Placed]) -> list[Placed]:
        """See `Body`; raises `ModelError` where the condition is computed."""
        goes_on, *others = self.body.run(operands, outside)
        if not goes_on.is_constant or not bool(goes_on.value):
            raise ModelError("its condition is computed, and only a Loop over all steps is a recurrence")
        return others
