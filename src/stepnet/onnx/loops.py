"""Reads Loop: over the steps of sequences as a recurrence, and of a known number of iterations by repetition.

    the number of iterations      the Loop
    that of the steps             a recurrence whose step is the body
    a constant                    the body, so many times
    0, or a false condition       the states as they begin

A condition that the body computes ends each sequence by itself, as if it were alone: its states stay as they
are from then on.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.axes import AxesError, Axis, is_steps, text_of
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.importers.selecting import concatenate
from stepnet.importers.shaping import step_numbers, unsqueeze
from stepnet.importers.sizes import Size
from stepnet.model.counting import at_axis
from stepnet.onnx.branches import condition_of
from stepnet.onnx.call import OnnxCall
from stepnet.onnx.scans import (
    Body,
    last_states,
    recurrence,
    required_operand,
    with_steps,
    without_steps,
)
from stepnet.onnx.sequences import Listed, appended, joined_steps, list_of

MOST = 128
"""The most iterations of a Loop whose body is repeated."""
ENDED = "its condition is computed, so that its outputs of each iteration end early, with no axis of steps"
NONE = "it has no iterations, and so no outputs of them"


class LoopGraph(Body, Protocol):
    """Body of a Loop node, as functions that convert the node need it."""

    def gathered(self, iteration: int) -> dict[Any, tuple[Any, int]]:
        """Finds the slices by which a Loop's body reads a sequence step by step: those of values outside the
        body, at the index of the iteration.

        iteration: the position of the body's input that is this index. Returns {key of the slice: (key of the
        outer value, axis)}; a key is the graph that has the value, and its name.
        """
        ...

    def reads(self, position: int, besides: Sequence[Any]) -> bool:
        """Tells whether the body reads its input at a position, for more than the values `besides`."""
        ...

    def passes_on(self, output: int, position: int) -> bool:
        """Tells whether the body's output at an index is its input at a position."""
        ...

    def appends(self, output: int, position: int) -> int | None:
        """Returns the axis along which the body's output at an index is the body's input at `position` with
        another value appended, if nothing else reads this input; None for another output.
        """
        ...

    def hoist(self) -> None:
        """Computes the body's nodes that depend only on values outside of it once, outside of it."""
        ...

    def inlined(self, operands: Sequence[Placed | None]) -> list[Placed]:
        """Computes the outputs of the body as a part of the graph around it, for these inputs."""
        ...


def loop(call: OnnxCall) -> list[Placed]:
    """Computes the results of a Loop node: its final states, and its outputs of each iteration.

    Raises `ModelError` for a number of iterations that is computed, negative or more than `MOST`, and
    `AxesError` for the number of sequences.
    """
    states = [required_operand(state) for state in call.operands[2:]]
    begins = call.optional(1)
    condition = constant(np.asarray(True)) if begins is None else condition_of(begins)
    count = iterations(call.optional(0))
    if condition.is_constant and not bool(condition.array):
        count = 0
    if isinstance(count, Size):
        return over_steps(call, states, condition, count)
    if count > MOST:
        raise ModelError(
            f"it has {count} iterations or fewer: a Loop runs once for each step of a sequence, or a known "
            f"number of times that is at most {MOST}"
        )
    return repeated(call, states, condition, count)


def iterations(times: Placed | None) -> Any:
    """Returns the number of iterations of a Loop, an integer or the number of steps (`Size`).

    Raises `ModelError` for a number that is computed or negative, and `AxesError` for that of the sequences.
    """
    if times is None:
        return np.iinfo(np.int64).max
    if not times.is_constant or np.size(times.value) != 1:
        raise AxesError(
            "it does not run once for each step of a sequence: its number of iterations is computed"
        )
    count: Any = np.ravel(times.value)[0]
    if isinstance(count, Size):
        if len(count.symbols) != 1 or count.times != 1 or not is_steps(count.symbols[0]):
            raise AxesError(
                f"it does not run once for each step of a sequence, but {count} times: only such a Loop is a "
                "recurrence"
            )
        return count
    if np.asarray(times.value).dtype.kind not in "iu" or int(count) < 0:
        raise ModelError(f"its number of iterations is {count}: it is a whole number from 0 on")
    return int(count)


# ---- repetitions -------------------------------------------------------------------------------------------


def repeated(call: OnnxCall, states: Sequence[Placed], condition: Placed, count: int) -> list[Placed]:
    """Runs the body of a Loop `count` times, one iteration after the other; ends early where the condition is
    known to be false. Returns the final states, then each output of the body, joined along a new first axis
    of iterations; placeholders stand for outputs whose number of iterations differs between sequences.

    states: the initial states. condition: the condition of the first iteration.
    """
    body: LoopGraph = call.body
    outputs, running = list[list[Placed]](), condition
    for index in range(count):
        if running.is_constant and not bool(running.array):
            break
        goes_on, *results = body.inlined([constant(np.int64(index)), constant(True), *states])
        after = results[: len(states)]
        if len(after) < len(states):
            raise ModelError(f"its body has {len(results)} outputs for {len(states)} states")
        states = [ended(running, *pair) for pair in zip(after, states, strict=True)]
        outputs.append(results[len(states) :])
        running = both_true(running, condition_of(goes_on))
    if not running.is_constant:
        gone: list[Placed] = [Placed(Unusable(ENDED), ()) for _ in outputs[0]]
        return [*states, *gone]
    if not outputs:
        return [*states, *(Placed(Unusable(NONE), ()) for _ in range(call.outputs - len(states)))]
    every = zip(*outputs, strict=True)
    return [*states, *(concatenate([unsqueeze(value, [0]) for value in each], 0) for each in every)]


def both_true(first: Placed, second: Placed) -> Placed:
    """Computes whether two conditions are both true; a constant if that is known when the model is read."""
    for condition, other in ((first, second), (second, first)):
        if condition.is_constant:
            return other if bool(condition.array) else condition
    return pointwise.elementwise("logical_and", first, second)


def ended(running: Placed, after: Placed, before: Placed) -> Placed:
    """Returns a state of a Loop after an iteration: `after` for sequences that still run, `before` for those
    whose Loop has ended (`running` is False). Raises `ModelError` for a state of another dtype, and for one
    of other axes where it may have ended.
    """
    if isinstance(after.value, Listed):
        return after if running.is_constant else Placed(Unusable(ENDED), ())
    for value in (after, before):
        if isinstance(value.value, Unusable):
            raise ModelError(value.value.reason)
    texts = [f"{pointwise.dtype_of(value)} {text_of(value.axes)}" for value in (before, after)]
    is_other = pointwise.dtype_of(before) != pointwise.dtype_of(after)
    if is_other or (texts[0] != texts[1] and not running.is_constant):
        raise ModelError(f"a state is {texts[0]} before an iteration and {texts[1]} after it")
    if running.is_constant:
        return after
    return pointwise.where(running, after, before)


# ---- over steps --------------------------------------------------------------------------------------------


def over_steps(call: OnnxCall, states: Sequence[Placed], condition: Placed, count: Size) -> list[Placed]:
    """Converts a Loop over the steps of sequences to a recurrence; returns its final states, and its outputs
    at each step.

    states: the initial states. condition: the condition of the first step. count: the number of steps.
    """
    body: LoopGraph = call.body
    body.hoist()
    time: Axis = (count.symbols[0],)
    inputs, keys = slices_of(body, time)
    counts = not inputs or body.reads(0, keys)
    inputs += [index_of_steps(call, time)] if counts else []
    grown = {index: axis for index, state in enumerate(states) for axis in grown_axis(body, index, state)}
    lists = tuple(index for index, state in enumerate(states) if index in grown or is_list(state))
    step = LoopBody(body, len(states), lists, grown, not condition.is_constant or not body.passes_on(0, 1))
    begins = [state for index, state in enumerate(states) if index not in lists]
    begins += [condition] if step.ends else []

    def arranged(before: Sequence[Placed], x: Sequence[Placed]) -> list[Placed | None]:
        """Returns the operands of the Loop's body in ONNX's order: the number of the iteration, the condition
        and the states. before: the states before the step. x: the inputs of the step.
        """
        own = iter(before)
        each = [list_of() if index in lists else next(own) for index in range(len(states))]
        return [x[-1] if counts else None, before[-1] if step.ends else constant(True), *each]

    results = recurrence(step, begins, inputs, False, arranged, keys)
    final = last_states(call, results[: len(begins)], reverse=False)
    gone = Placed(Unusable(ENDED), ())
    return step.results(
        final, [gone if step.ends else with_steps(value, 0, time) for value in results[len(begins) :]]
    )


def slices_of(body: LoopGraph, time: Axis) -> tuple[list[Placed], list[Any]]:
    """Returns the sequences of which the body of a Loop reads one step in each iteration, given without their
    axis of steps, `time`; and, in the same order, the keys (graph, name) of the values in the body that are
    these steps.
    """
    outside = body.outside()
    found = [
        (key, without_steps(outside[source], axis, time))
        for key, (source, axis) in body.gathered(0).items()
        if source in outside and time in outside[source].axes
    ]
    return [value for _, value in found], [key for key, _ in found]


def is_list(state: Placed) -> bool:
    """Tells whether a state of a Loop is a list of tensors; raises `ModelError` for one that is not empty,
    since a Loop over steps may only fill it.
    """
    own = state.value
    if isinstance(own, Listed) and (own.entries or own.by_step is not None):
        raise ModelError("a Loop over steps adds to a list that has entries before")
    return isinstance(own, Listed)


def grown_axis(body: LoopGraph, index: int, state: Placed) -> Iterator[int]:
    """Yields the axis along which each iteration of a Loop appends a value to a state that is an array of
    length 0 there at first; nothing for another state. index: the position of the state among the states.
    """
    axis = body.appends(index + 1, index + 2)
    if axis is not None and (0,) in state.axes and state.axes[state.axis(axis)] == (0,):
        yield state.axis(axis)


def index_of_steps(call: OnnxCall, time: Axis) -> Placed:
    """Returns the index of each step along an axis, without that axis, as a body reads it; raises
    `ModelError` if the Loop is itself inside of the body of another.
    """
    if not isinstance(call.like, Traced):
        raise ModelError(
            f"its body reads the index of its iteration, over {text_of((time,))}, inside of a body"
        )
    return without_steps(step_numbers(at_axis(call.like, str(time[0])), np.int64), 0, time)


@dataclass(frozen=True)
class LoopBody:
    """Body of a Loop without its first output, the condition; then it can be run as the body of a Scan.

    body: the body. states: the number of states. lists: those that are lists, to which each step adds an
    entry, which is one more output. grown: the axis of each of these that is an array instead, to which
    entries are joined. ends: whether the condition is computed; then whether the Loop still runs is one more
    state.
    """

    body: LoopGraph
    states: int
    lists: tuple[int, ...]
    grown: Mapping[int, int]
    ends: bool

    @property
    def name(self) -> str:
        """Name of the Loop's body (the graph of one step), for messages."""
        return self.body.name

    def outside(self) -> dict[Any, Placed]:
        """Returns the traced values outside the Loop's body that it reads, by (scope, name)."""
        return self.body.outside()

    def run(self, operands: Sequence[Placed | None], outside: dict[Any, Placed]) -> list[Placed]:
        """Runs the Loop's body (the graph of one step). Returns its states that are no lists; then, if the
        Loop may end before the last step, whether it still runs; then its outputs of the step and what it
        adds to each list.
        """
        goes_on, *others = self.body.run(operands, outside)
        running, *before = [required_operand(value) for value in operands[1:]]
        after = [pair for at, pair in enumerate(zip(others, before, strict=False)) if at not in self.lists]
        states = [ended(running, *pair) if self.ends else pair[0] for pair in after]
        still = [both_true(running, condition_of(goes_on))] if self.ends else []
        entries = [appended(others[index]) for index in self.lists]
        return [*states, *still, *others[self.states :], *entries]

    def results(self, final: Sequence[Placed], outputs: Sequence[Placed]) -> list[Placed]:
        """Returns the results of a Loop node: the final states in ONNX's order, then the outputs of each
        step. A state that is a list of tensors is made of the outputs that the steps added to it.

        final: the final states that are no lists. outputs: the outputs of each step, additions to lists last.
        """
        own, count = iter(final), len(outputs) - len(self.lists)
        entries = dict(zip(self.lists, outputs[count:], strict=True))
        lists = {index: each if self.ends else self.whole(index, each) for index, each in entries.items()}
        return [*(lists[at] if at in lists else next(own) for at in range(self.states)), *outputs[:count]]

    def whole(self, index: int, entries: Placed) -> Placed:
        """Returns a list, or an array to which each iteration appended, from the values that were added at
        each step.

        index: the position of the state that is this list or array. entries: the added values, with the steps
        as their first axis.
        """
        if index in self.grown:
            return joined_steps(entries, self.grown[index], is_new=False)
        return list_of(by_step=entries)
