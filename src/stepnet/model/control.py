"""Control of the loop by wrapping steps: a step with a mask, and a step that ends its sequence.

Each wrapper is itself a step, so every engine runs it. The values that a wrapper carries from step to step
are memories after those of the wrapped step; its further inputs follow in the same way. The recurrence
supplies and removes all of these, and the caller never sees them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np

from stepnet.compiler.net.interpreter import LevelSizes, entries_of_steps, of_rows
from stepnet.compiler.net.ir import Builder, Net, all_nodes
from stepnet.compiler.net.recur import OperandsByKind
from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.targets import Bound, Call, EarlyEnds, Results
from stepnet.compiler.trace.lines import defined_at, refuse
from stepnet.compiler.trace.spec import Spec, Step, TracedStep
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import array_of, kind, unknown_argument
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
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
    """Returns the steps per sequence of the next call, where calls go on until sequences end.

    They are twice the steps `before` of the last call, within the limits `PIECES`; `before` is 0 at first.
    """
    fewest, most = PIECES
    return min(max(2 * before, fewest), most)


MEANT: dict[str, str] = {
    **dict.fromkeys(
        ("h0", "h_0", "hx", "h", "state", "states", "initial_state", "initial_states", "hidden", "memory"),
        "the memory before the first step is initial=",
    ),
    **dict.fromkeys(
        ("c0", "c_0", "cx"),
        "the memory before the first step is initial=, with all its arrays, such as (h, c)",
    ),
    **dict.fromkeys(
        ("sequence_length", "sequence_lengths", "seq_len", "seq_lens", "seq_lengths", "input_lengths"),
        "the lengths of sequences are lengths=",
    ),
    **dict.fromkeys(
        ("params", "parameters", "weights"), "with_params(params) returns the model with other parameters"
    ),
    **dict.fromkeys(
        ("until", "reverse", "unroll"), "it is an argument of RNN(...), which makes the recurrence"
    ),
    **dict.fromkeys(
        ("return_sequences", "return_state", "output_all_steps"),
        "a call returns the outputs and the last memory; last_only=True returns only the last output",
    ),
    **dict.fromkeys(("attention_mask", "key_padding_mask", "padding_mask"), "steps are left out by mask="),
    "batch_first": "time_major=True is for arrays [time, batch, features...]",
}
"""Advice for arguments that calls of other libraries have, by their names."""


MEANT_OF_STREAMS: Mapping[str, str] = MEANT | dict.fromkeys(
    ("mask", "masks", "lengths"), "the rows that take a step are rows= of stream.step; the others wait"
)
"""Advice for arguments that streams and their steps lack, by their names."""


class Controls(TypedDict, total=False):
    """Keyword arguments of a call that control its steps; `Model.__call__` documents them."""

    mask: Any
    masked: str
    begun: Any
    time_major: bool


def check_controls(what: str, function: Callable[..., Any], control: Controls) -> None:
    """Raises `ArgumentError` for an argument that a call does not have, and says which one is meant.

    what, function: the name of the call in the message, and the function that is called.
    control: the arguments that the function takes by `**control`.
    """
    unknown = control.keys() - Controls.__annotations__.keys()
    if unknown:
        raise unknown_argument(what, function, unknown, MEANT, Controls.__annotations__)


class UncheckedCall(NamedTuple):
    """The arguments of a call, before they are checked.

    params: parameters in place of the model's own, for a call whose gradient is taken; else None.
    engine: the engines in order of preference, which are checked where a gradient is taken.
    """

    sequences: Any
    params: Any
    initial: Any
    statics: Any
    lengths: Any
    last_only: bool
    control: Controls
    engine: Any


@dataclass(frozen=True)
class Control:
    """The control of a step: a mask, an early end, or both. It is false without either.

    masked: the output at steps that the mask leaves out, "repeat" or "zero"; None without a mask.
    until: the condition that ends a sequence; None for no early end.
    """

    masked: str | None = None
    until: Until | None = None

    def __bool__(self) -> bool:
        """Returns whether there is a mask or an early end."""
        return self.masked is not None or self.until is not None

    def around(self, step: Step, traced: TracedStep) -> TracedStep:
        """Wraps a step so that it obeys the mask, which leaves steps out, and the early end, a condition
        (`until`) that ends a sequence; returns the trace of the wrapped step.

        step: the user's step function.
        traced: the trace of the step itself.
        """
        with IMPORTS:
            from stepnet.compiler.trace.step import trace_step
        inputs, memory, statics, params = traced.inputs, traced.memory, traced.statics, traced.params
        own = len(leaves(memory))  # the position of "done" among the memories, once it is added
        precision = traced.precision
        if self.until is not None:
            step, memory = ending(step, self.until), {"memory": memory, "done": Spec((), "bool")}
            traced = trace_step(step, inputs, memory, statics, params)
        if self.masked is not None:
            output, repeats = output_specs(traced), self.masked == "repeat"
            step = maskable(step, output, repeats)
            memory = {"memory": memory, "previous": output if repeats else None}
            inputs = {"x": inputs, "mask": Spec((), "bool")}
            traced = trace_step(step, inputs, memory, statics, params)
        if self.until is not None:
            step, memory = counting(step, own), {"memory": memory, "taken": Spec((), "int64")}
            traced = trace_step(step, inputs, memory, statics, params)
        return replace(traced, precision=precision)


# ---- wrapped steps -----------------------------------------------------------------------------------------


def maskable(step: Step, specs: Any, repeats: bool) -> Step:
    """Wraps a step to keep its memory where a mask is False. Its inputs become {"x": ..., "mask": ...}, and
    its memory {"memory": ..., "previous": ...}, with the output of the step before or None.

    specs: the `Spec`s (features and dtype) of the output.
    repeats: at masked steps, True for the output of the step before, False for zeros.
    """

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> tuple[Any, Any]:
        """Runs the user's step on rows (sequences of a batch), and replaces its output and next memory in the
        rows where the mask is False.
        """
        output, after = step(x["x"], memory["memory"], params, **extras)
        zeros = transform(lambda spec: np.zeros(spec.shape, spec.dtype), specs)
        output = chosen(x["mask"], output, memory["previous"] if repeats else zeros, specs)
        after = chosen(x["mask"], after, memory["memory"])
        return output, {"memory": after, "previous": output if repeats else None}

    return run


def ending(step: Step, until: Until) -> Step:
    """Wraps a step so that it keeps its memory after the first step at which the condition `until` holds.

    It gets a last memory "done": a bool per row (sequence of the batch), True once the sequence has ended.
    """

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> tuple[Any, Any]:
        """Runs the step and the condition `until`; keeps the memory, and the flag "done", of rows that had
        ended before the step. Raises `StepError` if the condition is not one bool per row.
        """
        ended = memory["done"]
        output, after = (
            in_every_row(ended.builder, part) for part in step(x, memory["memory"], params, **extras)
        )
        done = until(output, after)
        if not isinstance(done, Traced) or (done.type.extent, done.type.element) != (ROWS, "bool[]"):
            described = done.type if isinstance(done, Traced) else f"a {type(done).__name__}"
            raise refuse(f"until gives one bool per row, not {described}", defined_at(until))
        done = ended | done
        # Chosen by the memory "done", not by this step's condition, so the choice need not wait for it.
        after = chosen(ended, memory["memory"], arranged(after, memory["memory"]))
        return output, {"memory": after, "done": done}

    return run


def counting(step: Step, done: int) -> Step:
    """Wraps a step so that it counts the steps of each sequence up to its end, in a last memory "taken".

    Masked steps are counted too.

    done: the position of the memory "done" (True once the sequence has ended) among the memories of the step.
    """

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> tuple[Any, Any]:
        """Runs the user's step, and adds 1 to the memory "taken" in rows that had not ended before it."""
        goes_on = ~leaves(memory["memory"])[done]
        output, after = step(x, memory["memory"], params, **extras)
        return output, {"memory": after, "taken": memory["taken"] + goes_on.astype(np.int64)}

    return run


def in_every_row(builder: Builder, structure: Any) -> Any:
    """Returns a structure of values of the net `builder` with an entry per row; constants are repeated."""
    with IMPORTS:
        from stepnet.compiler.trace.step import row_value
    return transform(lambda leaf: Traced(builder, row_value(builder, leaf, "a value")), structure)


def chosen(condition: Any, when_true: Any, when_false: Any, specs: Any = None) -> Any:
    """Selects values row by row from two structures: `when_true` where the condition holds, or `when_false`.

    condition: a bool per row (sequence of the batch).
    specs: the `Spec`s (features and dtype) of the values; needed where `when_false` has no row axis.
    """
    ranks = [
        len(spec.shape) if isinstance(spec, Spec) else spec.ndim - 1
        for spec in leaves(when_false if specs is None else specs)
    ]
    values: list[Any] = [
        np.where(condition[(slice(None), *[None] * rank)], a, b)
        for rank, a, b in zip(ranks, leaves(arranged(when_true, when_false)), leaves(when_false), strict=True)
    ]
    return rebuild(when_false, values)


def output_specs(traced: TracedStep) -> Any:
    """Returns the `Spec`s (features, dtype) of the outputs of a traced step, in their structure.

    Raises `InputError` if one of them is a sequence.
    """
    count = len(leaves(traced.output))
    types = [traced.body.type_of(number) for number in traced.body.results[:count]]
    if any(type_.extent != ROWS for type_ in types):
        raise InputError("a step under a mask gives one value per row; one of its outputs is a sequence")
    return rebuild(traced.output, [Spec(type_.shape, type_.dtype) for type_ in types])


# ---- the argument `mask` -----------------------------------------------------------------------------------


def mask_array(mask: Any, like: Any) -> Array:
    """Checks the argument `mask` and returns it as one flat array of bools in the order of the inputs' steps.

    like: the inputs' Ragged, or their sizes (batch, time); raises `InputError` if the mask does not fit.
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
    """Raises `InputError` unless a mask has the lengths of the inputs `like`; names the first difference."""
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
    """The outputs of one call of `run_until`, which covers a few steps of the sequences that have not ended.

    rows: the indices of the sequences.
    taken: the number of steps that each of them ran in earlier calls.
    lengths: the number of its steps in this call, up to its end.
    outputs: the outputs of these steps, sequence after sequence.
    """

    rows: Array
    taken: Array
    lengths: Array
    outputs: list[Array]


def run_until(run: Bound, call: Call, net: Net, ended: int) -> tuple[Array, Results]:
    """Runs sequences up to the steps at which the condition `until` ends them; returns their lengths, and the
    results with outputs end to end.

    An engine that checks for ended sequences itself gets one call. Other engines get one call after another,
    each of some steps of the sequences that have not ended.

    run: the compiled `net`.
    net: the net of a step that is wrapped by `ending` and `counting`.
    ended: the position of the memory "done" of `ending`; the memory "taken" of `counting` is the last one.
    """
    if run.ends_early:
        early = EarlyEnds(
            ended,
            beyond=not any(node.operation == "gather" for node in all_nodes(net)),
            counted=len(call.initial) - 1,
        )
        results = run(replace(call, until=early))
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
        piece = call_of_next_steps(call, types, reverse, rows, taken[rows], lengths, memories)
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
    return taken, Results(joined_outputs(pieces, taken, call.last_only, reverse), final)


def call_of_next_steps(
    call: Call,
    types: OperandsByKind,
    reverse: bool,
    rows: Array,
    taken: Array,
    lengths: Array,
    memories: Sequence[Array | None],
) -> Call:
    """Returns the call that runs the next steps of some sequences of a larger call.

    call: the call of all sequences and steps.
    types: the types of the net's inputs: its sequences, memories and others.
    reverse: whether the recurrence runs from the last step to the first.
    rows: the indices of the sequences to run.
    taken: the number of steps that each of them ran before.
    lengths: the number of steps to run of each.
    memories: the memories before these steps.
    """
    where = call.positions
    ahead = where.lengths[rows] - taken - lengths if reverse else taken
    places, inner = entries_of_steps(where.step_indices(rows, ahead, lengths), where.inner)
    sequences = [
        np.ascontiguousarray(sequence[places[len(type_.extent) - len(STEPS)]])
        for sequence, type_ in zip(call.sequences, types.sequences, strict=True)
    ]
    statics: list[Any] = list(call.statics)
    others = types.others[: len(call.statics)]
    still: list[Any] = of_rows(statics, others, LevelSizes(where.rows, beside=where.beside), rows)
    beside = {axis: offsets_of(np.diff(level)[rows]) for axis, level in where.beside.items()}
    positions = Positions.end_to_end(offsets_of(lengths), inner, beside)
    before = taken if call.step_offset is None else taken + call.step_offset[rows]
    return Call(positions, sequences, memories, still, step_offset=before)


def joined_outputs(pieces: list[PieceResults], lengths: Array, last_only: bool, reverse: bool) -> list[Array]:
    """Joins the outputs of consecutive calls to arrays with sequence after sequence, all steps end to end.

    pieces: the outputs of each call.
    lengths: the total number of steps of each sequence.
    last_only: whether to return only the last output of each sequence.
    reverse: whether the recurrence runs from the last step to the first.
    """
    offsets = offsets_of(lengths)
    outputs = [np.zeros((int(offsets[-1]), *part.shape[1:]), part.dtype) for part in pieces[0].outputs]
    for piece in pieces:
        ahead = lengths[piece.rows] - piece.taken - piece.lengths if reverse else piece.taken
        places = positions_of(offsets[piece.rows] + ahead, piece.lengths)
        for output, part in zip(outputs, piece.outputs, strict=True):
            output[places] = part
    return [ends_of(output, offsets, reverse) for output in outputs] if last_only else outputs
