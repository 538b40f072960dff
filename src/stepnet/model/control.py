"""Control of the loop by wrapping steps: a step with a mask, and a step that ends its sequence.

Each wrapper is itself a step, so every engine runs it. What a wrapper remembers is stored in the memory,
after the memory of the wrapped step; its inputs and outputs are added in the same way. The recurrence
supplies and removes these, and the caller never sees them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypedDict, cast

import numpy as np

from stepnet.compiler.net.interpret import LevelSizes, of_rows, within_steps
from stepnet.compiler.net.ir import Builder, Net, all_nodes
from stepnet.compiler.net.recur import OperandsByKind
from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.targets import Bound, Call, EarlyEnds, Results
from stepnet.compiler.trace.lines import defined_at, refuse
from stepnet.compiler.trace.step import Spec, Step, TracedStep, row_value, trace_step
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import array_of, kind
from stepnet.compiler.values.structure import arranged, leaves, rebuild, transform
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import ends_of, offsets_of, positions_of
from stepnet.ragged.positions import Positions

Array = np.ndarray
Until = Callable[[Any, Any], Any]

MASKED = ("repeat", "zero")

PIECES = (8, 128)
"""The first and the largest number of steps of each sequence between two checks for ended sequences, for
engines that do not check by themselves.
"""


def next_piece(before: int) -> int:
    """The number of steps of each sequence in the next call, after a call with `before` steps."""
    fewest, most = PIECES
    return min(max(2 * before, fewest), most)


class Controls(TypedDict, total=False):
    """The arguments of a call that control its steps, as `RNN.__call__` documents them."""

    mask: Any
    masked: str
    begun: Any
    time_major: bool


@dataclass(frozen=True)
class Control:
    """The control of a step: a mask, an early end, or both. It is false without either.

    masked: the output at masked steps, "repeat" or "zero"; None without a mask.
    until: the condition that ends a sequence; None for no early end.
    """

    masked: str | None = None
    until: Until | None = None

    def __bool__(self) -> bool:
        return self.masked is not None or self.until is not None

    def around(self, step: Step, traced: TracedStep) -> TracedStep:
        """The trace of a step that is wrapped for this control, given the step and its own trace."""
        inputs, memory, statics, params = traced.inputs, traced.memory, traced.statics, traced.params
        own = len(leaves(memory))
        precision = traced.precision
        if self.until is not None:
            step, memory = ending(step, self.until), {"memory": memory, "done": Spec((), "bool")}
            traced = trace_step(step, inputs, memory, statics, params)
        if self.masked is not None:
            shown, repeats = output_specs(traced), self.masked == "repeat"
            step = maskable(step, shown, repeats)
            memory = {"memory": memory, "previous": shown if repeats else None}
            inputs = {"x": inputs, "mask": Spec((), "bool")}
            traced = trace_step(step, inputs, memory, statics, params)
        if self.until is not None:
            step, memory = counting(step, own), {"memory": memory, "taken": Spec((), "int64")}
            traced = trace_step(step, inputs, memory, statics, params)
        return replace(traced, precision=precision)


# ---- wrapped steps -----------------------------------------------------------------------------------------


def maskable(step: Step, shown: Any, repeats: bool) -> Step:
    """A step with inputs {"x", "mask"} that keeps its memory where the mask is False.

    The output at a masked step is zeros or, with `repeats`, the output of the step before (zeros before the
    first step).

    shown: the `Spec`s of the output.
    """

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> tuple[Any, Any]:
        output, after = step(x["x"], memory["memory"], params, **extras)
        zeros = transform(lambda spec: np.zeros(spec.shape, spec.dtype), shown)
        output = chosen(x["mask"], output, memory["previous"] if repeats else zeros, shown)
        after = chosen(x["mask"], after, memory["memory"])
        return output, {"memory": after, "previous": output if repeats else None}

    return run


def ending(step: Step, until: Until) -> Step:
    """A step that keeps its memory after the first step at which `until` holds.

    The wrapper adds a last memory "done", which tells whether the sequence has ended.
    """

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> tuple[Any, Any]:
        ended = memory["done"]
        output, after = (
            in_every_row(ended.builder, part) for part in step(x, memory["memory"], params, **extras)
        )
        done = until(output, after)
        if not isinstance(done, Traced) or (done.type.extent, done.type.element) != (ROWS, "bool[]"):
            described = done.type if isinstance(done, Traced) else f"a {type(done).__name__}"
            raise refuse(f"until gives one bool per row, not {described}", defined_at(until))
        done = ended | done
        # The condition is a memory itself, so that the choice waits for nothing that the step computes.
        after = chosen(ended, memory["memory"], arranged(after, memory["memory"]))
        return output, {"memory": after, "done": done}

    return run


def counting(step: Step, done: int) -> Step:
    """A step that counts the steps of a sequence up to its end, masked steps included, in a memory "taken".

    done: the position of the memory "done" among all memories of the step.
    """

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> tuple[Any, Any]:
        goes_on = ~leaves(memory["memory"])[done]
        output, after = step(x, memory["memory"], params, **extras)
        return output, {"memory": after, "taken": memory["taken"] + goes_on.astype(np.int64)}

    return run


def in_every_row(builder: Builder, structure: Any) -> Any:
    """The values of a structure with one entry per row; constants and parameters are repeated."""
    return transform(lambda leaf: Traced(builder, row_value(builder, leaf, "a value")), structure)


def chosen(condition: Any, when_true: Any, when_false: Any, shown: Any = None) -> Any:
    """A structure of values chosen row by row: `when_true` where the condition holds, else `when_false`.

    shown: the `Spec`s of the values; needed where `when_false` has no row axis.
    """
    ranks = [
        len(spec.shape) if isinstance(spec, Spec) else spec.ndim - 1
        for spec in leaves(when_false if shown is None else shown)
    ]
    values: list[Any] = [
        np.where(condition[(slice(None), *[None] * rank)], a, b)
        for rank, a, b in zip(ranks, leaves(arranged(when_true, when_false)), leaves(when_false), strict=True)
    ]
    return rebuild(when_false, values)


def output_specs(traced: TracedStep) -> Any:
    """The `Spec`s of the output of a step; raises `InputError` for an output that is a sequence."""
    count = len(leaves(traced.output))
    types = [traced.body.type_of(number) for number in traced.body.results[:count]]
    if any(type_.extent != ROWS for type_ in types):
        raise InputError("a step under a mask gives one value per row; one of its outputs is a sequence")
    return rebuild(traced.output, [Spec(type_.shape, type_.dtype) for type_ in types])


# ---- the argument `mask` -----------------------------------------------------------------------------------


def mask_array(mask: Any, like: Any) -> Array:
    """The argument `mask` as one flat array of bools; raises `InputError` unless it fits the inputs.

    like: the form of the inputs: a Ragged, or (batch, time).
    """
    if isinstance(like, Ragged) != isinstance(mask, Ragged):
        wanted = "a Ragged, as the inputs are" if isinstance(like, Ragged) else "an array [batch, time]"
        raise InputError(f"mask is {kind(mask)}; it should be {wanted}")
    if isinstance(mask, Ragged):
        check_lengths(mask, like)
        steps, shape = mask.values, (like.total,)
    else:
        steps, shape = array_of(mask, "mask"), cast("tuple[int, int]", like)
    if steps.dtype != bool or steps.shape != shape:
        raise InputError(
            f"mask is {steps.dtype}{list(steps.shape)}; it should be bool{list(shape)}, True at the steps "
            "that count"
        )
    return np.ascontiguousarray(steps.reshape(-1))


def check_lengths(mask: Ragged, like: Ragged) -> None:
    """Raises `InputError` unless a mask has the lengths of the inputs, naming the first that differs."""
    if mask.levels != 1 or len(mask) != len(like):
        raise InputError(f"mask is {mask}, and the inputs are {like}")
    differ = np.flatnonzero(mask.lengths != like.lengths)
    if len(differ):
        first = int(differ[0])
        raise InputError(
            f"sequence {first} of mask has {mask.lengths[first]} steps, "
            f"and that of the inputs {like.lengths[first]}"
        )


# ---- early ends --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PieceResults:
    """The outputs of some steps of each sequence.

    rows: the indices of the sequences.
    taken: the number of steps of each sequence before these.
    lengths: the number of these steps of each sequence.
    outputs: the outputs of these steps, end to end.
    """

    rows: Array
    taken: Array
    lengths: Array
    outputs: list[Array]


def run_until(run: Bound, call: Call, net: Net, ended: int) -> tuple[Array, Results]:
    """Runs sequences up to their early ends; returns their lengths, and the results with outputs end to end.

    An engine that checks for ended sequences itself gets one call. Other engines get one call after another,
    each of some steps of the sequences that have not ended.

    run: the kernel of `net`.
    net: the net of a step that is wrapped by `ending` and `counting`.
    ended: the position of the memory "done"; "taken" is the last memory.
    """
    if run.ends_early:
        results = run(replace(call, until=EarlyEnds(ended, beyond=not reads_tables(net))))
        return results.final[-1], results
    recur = next(node.recur for node in net.nodes if node.operation == "recur")
    types, reverse = recur.operands_by_kind([net.type_of(number) for number in net.inputs]), recur.reverse
    rows, taken = np.arange(call.positions.rows), np.zeros(call.positions.rows, np.int64)
    most = call.positions.lengths
    memories, steps = call.initial, 0
    final: list[Array] = []
    pieces: list[PieceResults] = []
    while not pieces or len(rows):
        steps = next_piece(steps)
        lengths = np.minimum(most[rows] - taken[rows], steps)
        piece = some_steps(call, types, reverse, rows, taken[rows], lengths, memories)
        results = run(piece)
        final = final or [memory.copy() for memory in results.final]
        for whole, memory in zip(final, results.final, strict=True):
            whole[rows] = memory
        used = results.final[-1] - taken[rows]
        kept = positions_of(offsets_of(lengths)[:-1] + (lengths - used if reverse else 0), used)
        pieces.append(PieceResults(rows, taken[rows], used, [output[kept] for output in results.outputs]))
        taken[rows] += used
        left = ~results.final[ended] & (taken[rows] < most[rows])
        memories, rows = [memory[left] for memory in results.final], rows[left]
    return taken, Results(put_together(pieces, taken, call.last_only, reverse), final)


def reads_tables(net: Net) -> bool:
    """Whether a step indexes a parameter, by indices that may be out of bounds after a sequence's end."""
    return any(node.operation == "gather" for node in all_nodes(net))


def some_steps(
    call: Call,
    types: OperandsByKind,
    reverse: bool,
    rows: Array,
    taken: Array,
    lengths: Array,
    memories: Sequence[Array | None],
) -> Call:
    """The call that runs the next steps of some sequences.

    call: the call of all steps.
    types: the types of the net's inputs, by kind.
    rows: the indices of the sequences.
    taken: the number of steps that each of them has taken.
    lengths: the number of steps to run of each.
    memories: the memories before these steps.
    """
    where = call.positions
    ahead = where.lengths[rows] - taken - lengths if reverse else taken
    places, inner = within_steps(where.places(rows, ahead, lengths), where.inner)
    sequences = [
        np.ascontiguousarray(sequence[places[len(type_.extent) - len(STEPS)]])
        for sequence, type_ in zip(call.sequences, types.sequences, strict=True)
    ]
    statics, others = list(call.statics), types.others[: len(call.statics)]
    still, beside = of_rows(statics, others, LevelSizes(where.rows, beside=where.beside), rows)
    positions = Positions.end_to_end(offsets_of(lengths), inner, beside)
    before = taken if call.step_offset is None else taken + call.step_offset[rows]
    return Call(positions, sequences, memories, still, step_offset=before)


def put_together(pieces: list[PieceResults], lengths: Array, last_only: bool, reverse: bool) -> list[Array]:
    """The outputs of all pieces, sequence after sequence; with `last_only`, only the last output of each."""
    offsets = offsets_of(lengths)
    outputs = [np.zeros((int(offsets[-1]), *part.shape[1:]), part.dtype) for part in pieces[0].outputs]
    for piece in pieces:
        ahead = lengths[piece.rows] - piece.taken - piece.lengths if reverse else piece.taken
        places = positions_of(offsets[piece.rows] + ahead, piece.lengths)
        for output, part in zip(outputs, piece.outputs, strict=True):
            output[places] = part
    return [ends_of(output, offsets, reverse) for output in outputs] if last_only else outputs
