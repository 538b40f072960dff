"""Reads Scan as a recurrence of a graph, and has what a Loop over the steps of sequences needs too."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from stepnet.compiler.net.types import ROWS, is_pairs, whole_axis
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.dtypes import computed
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import BATCH, TIME, AxesError, Axis, is_steps, is_time, text_of
from stepnet.importers.facts import UNKNOWN, StateInPadding
from stepnet.importers.padding import fact_of
from stepnet.importers.placed import Placed, Unusable
from stepnet.importers.recurrent import padded_ends
from stepnet.model.recurrence import RNN
from stepnet.onnx.call import OnnxCall

OLD = 9
"""The opset since which a Scan has no separate batch axis."""


class Body(Protocol):
    """Body of a Scan or Loop node, as functions that convert the node need it."""

    @property
    def name(self) -> str:
        """Name of the Scan's or Loop's body (the graph of one step), for messages."""
        ...

    def outside(self) -> dict[Any, Placed]:
        """Returns the traced values outside the Scan's or Loop's body that it reads, by (scope, name)."""
        ...

    def run(self, operands: Sequence[Placed | None], outside: dict[Any, Placed]) -> list[Placed]:
        """Runs the body of a Scan or Loop (the graph of one step) and returns its outputs.

        operands: the values of its inputs. outside: values to use in place of values outside the body, or in
        it, by (scope, name): the graph that has the value, and its name there.
        """
        ...


@dataclass(frozen=True)
class BodyStep:
    """Body of a Scan or Loop (the graph of one step) as the step function of a recurrence.

    arranged: orders memories and inputs as the body's operands.
    inputs, memory: the axes of the inputs and memories of a step.
    still: the outer values that the body reads and that are the same at all steps, by key. Sequences among
        them are read whole.
    pairs: placeholders for outer values at pairs of steps, which a step cannot read, by key.
    sliced: the keys of the outer values of which each step reads a slice.
    results: the results of each run of the body; the last is the one that counts.
    kept: for each memory, the fact that it is unchanged in the padding.
    """

    body: Body
    arranged: Callable[[Sequence[Placed], Sequence[Placed]], list[Placed | None]]
    inputs: tuple[Placed, ...]
    memory: tuple[Placed, ...]
    still: dict[Any, Placed]
    pairs: dict[Any, Placed]
    sliced: tuple[Any, ...]
    results: list[list[Placed]]
    kept: tuple[StateInPadding, ...]

    @property
    def __name__(self) -> str:
        """Name of the step, that of the Scan's or Loop's body, which messages about the recurrence show."""
        return self.body.name

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """Runs the Scan's or Loop's body for one step; returns (outputs, memory after the step).

        x: the inputs of the step that are not constants; slices of values outside the body come first.
        memory: the states before the step. params: not used. statics: the values outside the body that are
        the same at all steps.

        Appends all results of the body to `self.results`. Raises `ModelError` for a result that is unusable,
        and `AxesError` for a state whose axes change.
        """
        traced = iter(x)
        inputs = [like if like.is_constant else replace(like, value=next(traced)) for like in self.inputs]
        before = [
            replace(like, value=value, fact=fact)
            for like, value, fact in zip(self.memory, memory, self.kept, strict=True)
        ]
        others = {
            key: replace(read_whole(like), value=value)
            for (key, like), value in zip(self.still.items(), statics or (), strict=True)
        }
        others |= self.pairs | dict(zip(self.sliced, inputs, strict=False))
        results = self.body.run(self.arranged(before, inputs), others)
        for value in results:
            if isinstance(value.value, Unusable):
                raise ModelError(value.value.reason)
        count = len(self.memory)
        self.results.append(results)
        values = [value.value for value in results]
        for old, new in zip(self.memory, results, strict=False):
            if new.axes != old.axes:
                raise AxesError(
                    f"a state is {text_of(old.axes)} before a step and {text_of(new.axes)} after it"
                )
        return tuple(values[count:]), tuple(values[:count])


def scan(call: OnnxCall) -> list[Placed]:
    """Converts a Scan node, which runs a graph at each step of its inputs, to a recurrence; returns its final
    states, and its outputs at each step.
    """
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
    values = [required_operand(value) for value in scanned]
    time = steps_at(values[0], axes[0])
    inputs = [without_steps(value, axis, time) for value, axis in zip(values, axes, strict=True)]
    results = recurrence(
        call.body,
        [required_operand(state) for state in states],
        inputs,
        reverse=reverse,
        arranged=lambda before, x: [*before, *x],
    )
    placed = call.attributes.get("scan_output_axes", [0] * (len(results) - len(states)))
    final, outputs = results[: len(states)], results[len(states) :]
    outputs = [with_steps(value, axis, time) for value, axis in zip(outputs, placed, strict=True)]
    return [*last_states(call, final, reverse), *outputs]


def last_states(call: OnnxCall, states: Sequence[Placed], reverse: bool) -> list[Placed]:
    """Returns the final states of a recurrence over all steps of a padded array, as a Scan or Loop node has
    them.

    A state that the padding changes becomes a placeholder which no operator may read. Raises `ModelError` for
    a reverse recurrence, which begins in the padding after a sequence's end, if it changes a state there.
    states: the final states of the sequences.
    """
    is_kept = [isinstance(state.fact, StateInPadding) for state in states]
    final = [state.with_value(state.value) for state in states]
    if not call.padded or all(is_kept):
        return final
    ends = padded_ends(final, reverse)
    return [
        state if is_unchanged else end for state, end, is_unchanged in zip(final, ends, is_kept, strict=True)
    ]


def is_reverse(call: OnnxCall, name: str, states: int) -> bool:
    """Tells whether a Scan node runs backwards; raises `ModelError` for a Scan in both directions at once.

    name: the attribute with the directions of the inputs. The directions of outputs default to 0, as in a
    Scan of opset 8. states: the number of states.
    """
    outputs = max(call.outputs - states, 0)
    directions = {
        *call.attributes.get(name, [0]),
        *call.attributes.get("scan_output_directions", [0] * outputs),
    }
    if len(directions) > 1:
        raise ModelError("it scans in both directions at once")
    return directions == {1}


def old_scan(
    call: OnnxCall, states: Sequence[Placed | None], scanned: Sequence[Placed | None]
) -> list[Placed]:
    """Converts a Scan of opset 8, whose values have the batch as their first axis; values of its body have
    not.

    states: the initial states. scanned: the values of which each step reads one entry. Returns final states
    and outputs.
    """
    inputs = [without_batch(without_steps(required_operand(value), 1, TIME)) for value in scanned]
    before = [without_batch(required_operand(state)) for state in states]
    reverse = is_reverse(call, "directions", len(states))
    results = recurrence(call.body, before, inputs, reverse, lambda h, x: [*h, *x])
    final, outputs = results[: len(states)], results[len(states) :]
    return [
        *(value.with_value(value.value, (BATCH, *value.axes)) for value in final),
        *(value.with_value(value.value, (BATCH, TIME, *value.axes)) for value in outputs),
    ]


def without_batch(value: Placed) -> Placed:
    """Removes the batch, the first axis, as a Scan's body has none; `AxesError` if it is another axis."""
    if value.axes[:1] != (BATCH,):
        raise AxesError(f"it runs over {text_of(value.axes)}, and the first axis should be sequences")
    return value.with_value(value.value, value.axes[1:])


def required_operand(value: Placed | None) -> Placed:
    """Returns an operand of an ONNX node unchanged; raises `ModelError` if it is missing."""
    if value is None:
        raise ModelError("an input is missing")
    return value


def steps_at(value: Placed, axis: int) -> Axis:
    """Returns the axis of steps that a value has at a position; raises `AxesError` for another axis."""
    axis = value.axis(axis)
    if not is_time(value.axes[axis]):
        raise AxesError(f"it runs over axis {axis} of {text_of(value.axes)}, which is not its axis of steps")
    return value.axes[axis]


def without_steps(value: Placed, axis: int, time: Axis) -> Placed:
    """Removes the axis `axis` of a value, which must be that of the steps, as the body of a Scan reads one
    step; raises `AxesError` if it is another axis. time: the axis of the steps over which the body runs.
    """
    axis = value.axis(axis)
    if steps_at(value, axis) != time:
        raise AxesError(f"it runs over {text_of((time,))}, and axis {axis} is of {text_of(value.axes)}")
    return replace(value, axes=value.axes[:axis] + value.axes[axis + 1 :])


def with_steps(value: Placed, axis: int, time: Axis) -> Placed:
    """Inserts an axis of steps at position `axis` of a Scan output, which the body computes for one step."""
    axis = value.axis(axis, 1)
    return replace(value, axes=(*value.axes[:axis], time, *value.axes[axis:]))


def recurrence(
    body: Body,
    states: Sequence[Placed],
    inputs: Sequence[Placed],
    reverse: bool,
    arranged: Callable[[Sequence[Placed], Sequence[Placed]], list[Placed | None]],
    sliced: Sequence[Any] = (),
) -> list[Placed]:
    """Adds a recurrence to the net whose step is `body`, the graph of one step in an ONNX model; returns the
    values of the final states, then of the outputs at each step.

    states: the initial states. inputs: the sequences of which each step reads one entry; axes of inputs and
        results are given without the axis of steps. reverse: whether it runs from the last step.
    arranged: takes the states and the inputs of a step, and returns them in the order of the body's operands.
    sliced: the keys of values outside the body of which each step reads a slice; they are among the inputs.
    """
    traced = next((value.value for value in inputs if isinstance(value.value, Traced)), None)
    if traced is None:
        raise ModelError("it runs over a constant")
    outside = {key: value for key, value in body.outside().items() if isinstance(value.value, Traced)}
    outside = {key: value for key, value in outside.items() if key not in sliced}
    deeper = {key: value for key, value in outside.items() if is_pairs(value.value.type.extent)}
    pairs = {key: at_pairs(key, value) for key, value in deeper.items()}
    statics = {key: value for key, value in outside.items() if value.value.type.extent and key not in pairs}
    initial = [as_rows(traced, state) for state in states]
    owner = object()
    unchanged = tuple(StateInPadding(owner, index, value.type.dtype) for index, value in enumerate(initial))
    step = BodyStep(
        body, arranged, tuple(inputs), tuple(states), statics, pairs, tuple(sliced), [], unchanged
    )
    memory = tuple(Spec(value.type.shape, value.type.dtype) for value in initial)
    outputs, final = RNN(step, memory=memory, reverse=reverse)(
        tuple(value.value for value in inputs if isinstance(value.value, Traced)),
        initial=tuple(initial),
        statics=tuple(value.value for value in statics.values()) or None,
    )
    step_results = step.results[-1]
    facts = [
        like.fact if like.fact == unchanged else UNKNOWN
        for like, unchanged in zip(step_results, step.kept, strict=False)
    ]
    facts += [fact_of(like) for like in step_results[len(states) :]]
    placed_results = zip(step_results, (*final, *outputs), facts, strict=True)
    return [replace(like, value=value, fact=fact) for like, value, fact in placed_results]


def at_pairs(key: Any, value: Placed) -> Placed:
    """Makes the placeholder for a value at pairs of steps, such as a mask of attention. The body of a loop
    has one step at a time, so that only the sizes of the value can be read there.
    """
    reason = f"a body reads {key[1]!r}, {text_of(value.axes)}, which has a value at each pair of steps"
    return value.with_value(Unusable(reason))


def read_whole(value: Placed) -> Placed:
    """Renames the axes of steps of a value outside of a loop's body, so that each step of the body may read
    the value at all steps: they are no longer the axis over which the body runs.
    """
    named = [tuple(whole_axis(str(part)) if is_steps(part) else part for part in axis) for axis in value.axes]
    stated = tuple((whole_axis(name) if is_steps(name) else name, size) for name, size in value.stated)
    return replace(value, axes=tuple(named), stated=stated)


def as_rows(first: Traced, state: Placed) -> Traced:
    """Makes an initial state a value per sequence, by repeating a constant for each sequence; raises
    `AxesError` for a state with an axis of steps.

    first: a traced input, to whose net the constant is added.
    """
    if isinstance(state.value, Traced) and state.value.type.extent == ROWS:
        return state.value
    if isinstance(state.value, Traced):
        raise AxesError("the initial value of a state has an axis of steps")
    literal = Traced(first.builder, first.builder.constant(computed(state.value)))
    return apply("expand", literal, extent=ROWS)
