"""Recurrences inside recurrences: a step that calls another `RNN` over an inner level of its input.

    def step(utterances, h, params):                   # of one speaker: at each step an utterance
        _, said = frames(utterances, initial="zeros")  # a recurrence over its frames
        h = np.tanh(said @ params["W"] + h @ params["R"])
        return h, h

    outputs, final = sn.RNN(step, params, memory=16)(speakers)   # a Ragged of two levels

How the inner memory begins is said at every call: `initial="zeros"` begins each inner sequence anew, any
value of the step, as the outer memory, continues from there.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.batch import (
    ZEROS,
    Batch,
    begun_steps,
    check_no_lengths,
    check_same_lengths,
    checked_array,
    initial_arrays,
)
from stepnet.control import Control, Until, mask_array
from stepnet.errors import InputError
from stepnet.interpret import Segments, interpret
from stepnet.lines import refuse
from stepnet.ops import REDUCTIONS
from stepnet.prepared import Asked, Prepared
from stepnet.ragged import Ragged
from stepnet.running import Running
from stepnet.step import Spec, TracedStep, way
from stepnet.structure import leaves, named_leaves, rebuild, skeleton, transform
from stepnet.trace import Traced, apply, builder_of, lifted
from stepnet.types import AXES, CONST, DTYPES, ROWS
from stepnet.watch import as_watched

if TYPE_CHECKING:
    from stepnet.recurrence import RNN

Array = np.ndarray
NO_LAST = "last_only is for outputs that there is one of per step; this one is a sequence at each"


def is_traced(structure: Any) -> bool:
    """Whether sequences are values of a step that is being traced."""
    return any(isinstance(leaf, Traced) for leaf in leaves(structure))


def is_ragged(structure: Any) -> bool:
    """Whether there is a Ragged among values."""
    return any(isinstance(leaf, Ragged) for leaf in leaves(structure))


def is_deep(structure: Any) -> bool:
    """Whether sequences have inner ones."""
    return any(isinstance(leaf, Ragged) and leaf.levels > 1 for leaf in leaves(structure))


# ---- inside a step -----------------------------------------------------------------------------------------


def in_step(rnn: "RNN", sequences: Any, initial: Any, statics: Any, last_only: bool) -> tuple[Any, Any]:
    """The outputs and the last memory of a recurrence over the inner sequences of a step's input.

    Raises `StepError`, with the user's line, for values that are no inner sequences, and where it is not said
    how the memory begins.
    """
    rnn, output_of = as_watched(rnn)
    builder = builder_of([*leaves(sequences), *leaves(initial), *leaves(statics)])

    def here(leaf: Any) -> Any:
        return Traced(builder, lifted(builder, leaf, ())) if isinstance(leaf, Traced) else leaf

    sequences, initial, statics = (transform(here, part) for part in (sequences, initial, statics))
    named = list(named_leaves(sequences))
    for name, leaf in named:
        if not isinstance(leaf, Traced) or len(leaf.type.extent) < 2:
            what = f"input `{name}`" if name else "the input"
            raise refuse(
                f"{what} of a recurrence inside a step is no sequence there: an inner recurrence runs over "
                "an input of two levels or more"
            )
    inputs = [Spec(leaf.type.shape, leaf.type.dtype, len(leaf.type.extent) - 2) for _, leaf in named]
    given = transform(lambda leaf: Spec(row_value(leaf).type.shape, leaf.type.dtype), statics)
    traced = rnn.traced_for(rebuild(sequences, inputs), given)
    operands = [leaf.number for _, leaf in named]
    operands += [value.number for value in memory_values(builder, initial, traced)]
    operands += [leaf.number for leaf in leaves(statics)]
    operands += [builder.constant(parameter) for parameter in leaves(rnn.params)]
    sequences_, memories, _, _ = traced.counts
    recur = builder.add(
        "recur",
        *operands,
        body=traced.body,
        sequences=sequences_,
        memories=memories,
        **way(rnn.reverse, rnn.unroll),
    )
    count = len(builder.nodes[recur].types)
    found = [Traced(builder, builder.add("result", recur, of=place)) for place in range(count)]
    outputs = output_of(rebuild(traced.output, found[: count - memories]))
    if last_only:
        if any(len(traced.body.type_of(number).extent) > 1 for number in traced.body.results):
            raise refuse(NO_LAST)
        outputs = transform(lambda output: reduce(output, "first" if rnn.reverse else "last"), outputs)
    return outputs, rebuild(traced.memory, found[count - memories :])


def row_value(leaf: Any) -> Traced:
    """A value that there is one of per row; raises `StepError` for anything else."""
    if not isinstance(leaf, Traced) or leaf.type.extent != ROWS:
        raise refuse("a static of a recurrence inside a step is a value of the step, one per row")
    return leaf


def memory_values(builder: Any, initial: Any, traced: TracedStep) -> list[Traced]:
    """The initial memories of an inner recurrence."""
    expected = list(named_leaves(traced.memory))
    if initial is None:
        raise refuse(
            "a recurrence inside a step says how its memory begins: initial='zeros' anew for each inner "
            "sequence, or a value of the step to continue from"
        )
    if isinstance(initial, str):
        if initial != ZEROS:
            raise refuse(f"initial is 'zeros' or values of the step, not {initial!r}")
        zeros = [builder.constant(np.zeros(spec.shape, spec.dtype)) for _, spec in expected]
        return [Traced(builder, builder.add("expand", number, extent=ROWS)) for number in zeros]
    if skeleton(initial) != skeleton(traced.memory):
        raise refuse(f"initial is {skeleton(initial)}, the memory is {skeleton(traced.memory)}")
    found: list[Traced] = []
    for (name, spec), leaf in zip(expected, leaves(initial), strict=True):
        what = f"the initial memory {name}".strip()
        if not isinstance(leaf, Traced) or leaf.type.extent not in (ROWS, CONST):
            raise refuse(f"{what} of a recurrence inside a step is a value of the step, one per row")
        if (leaf.type.shape, leaf.type.dtype) != (spec.shape, spec.dtype):
            raise refuse(
                f"{what} is {leaf.type.element}; it should be {DTYPES[spec.dtype]}{list(spec.shape)}"
            )
        found.append(apply("expand", leaf, extent=ROWS) if leaf.type.extent == CONST else leaf)
    return found


def reduce(sequence: Any, how: str) -> Traced:
    """One value out of each inner sequence of a step: its "sum", "mean", "max", "first" or "last".

    Zeros where a sequence has no steps.
    """
    if not isinstance(sequence, Traced) or len(sequence.type.extent) < 2:
        raise refuse("reduce takes inner sequences: values of a step that are sequences there")
    if how not in REDUCTIONS:
        raise refuse(f"how is one of {', '.join(REDUCTIONS)}, not {how!r}")
    return apply("reduce", sequence, how=how)


def softmax_over_steps(scores: Any) -> Traced:
    """The softmax of scores over each inner sequence, or static that is a sequence: weights that sum to one.

    There are no weights where a sequence has no steps, so what is summed by them is zero there.

    >>> import stepnet as sn
    >>> def step(query, h, params, statics):
    ...     weights = sn.softmax_over_steps(np.sum(statics * sn.expand(query, statics), axis=-1))
    ...     h = h + sn.reduce(statics * weights[:, None], "sum")
    ...     return h, h
    >>> keys = sn.Ragged.from_list([np.eye(2), np.zeros((0, 2))])
    >>> outputs, _ = sn.RNN(step, memory=2)(np.array([[[np.log(3), 0]], [[0, 0]]]), statics=keys)
    >>> outputs.round(2).tolist()
    [[[0.75, 0.25]], [[0.0, 0.0]]]
    """
    if not isinstance(scores, Traced) or len(scores.type.extent) < 2:
        raise refuse(
            "softmax_over_steps takes scores of sequences: values of a step that are sequences there"
        )
    grown = np.exp(scores - expand(reduce(scores, "max"), scores))
    return grown / expand(reduce(grown, "sum"), scores)


def expand(value: Any, like: Any) -> Traced:
    """A value of a step at every step of the inner sequences `like`."""
    if not isinstance(value, Traced) or not isinstance(like, Traced):
        raise refuse("expand takes a value of a step, and inner sequences that say how often it is repeated")
    builder = builder_of((value, like))
    value, like = (Traced(builder, lifted(builder, one, ())) for one in (value, like))
    if value.type.extent == like.type.extent:
        return value
    return apply("expand", value, extent=like.type.extent)


# ---- from outside ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masking:
    """Which steps of the outermost level count, what the others give, and how many steps were before."""

    mask: Any = None
    masked: str = "repeat"
    begun: Any = None
    until: Until | None = None

    @property
    def control(self) -> Control:
        """What stands around the step."""
        return Control(None if self.mask is None else self.masked, self.until)


def over_levels(
    rnn: "RNN",
    sequences: Any,
    initial: Any,
    statics: Any,
    lengths: Any,
    last_only: bool,
    engine: Asked,
    masking: Masking,
) -> tuple[Any, Any]:
    """The outputs and the last memory of a recurrence over the outermost level of Raggeds.

    Statics may be Raggeds too: sequences that each row has besides, of lengths of their own.
    """
    if not is_ragged(sequences):
        return over_arrays(rnn, sequences, initial, statics, lengths, last_only, engine, masking)
    check_no_lengths(lengths)
    called = levels_call(rnn, sequences, initial, statics, masking)
    traced, found, segments = called.traced, called.found, called.segments
    results = run(found, called.arrays, leaves(rnn.params), segments, engine)
    memories = len(leaves(found.traced.memory))
    split = len(results) - memories
    outputs = [
        laid_out(array, found.net.type_of(number).extent, segments.offsets, last_only, rnn.reverse)
        for array, number in zip(results[:split], found.net.results[:split], strict=True)
    ]
    final = results[split : split + len(leaves(traced.memory))]
    return rebuild(traced.output, outputs), rebuild(traced.memory, final)


@dataclass(frozen=True)
class LevelsCall:
    """A call over Raggeds: the step's trace, itself under control, and what its net is given."""

    traced: TracedStep
    found: Prepared
    arrays: list[Array]
    segments: Segments


def levels_call(rnn: "RNN", sequences: Any, initial: Any, statics: Any, masking: Masking) -> LevelsCall:
    """What a net of several levels is given: arrays of its inputs, memories and statics, and its offsets."""
    named = list(named_leaves(sequences))
    offsets = common_offsets(named)
    count = len(offsets[0]) - 1
    arrays = [checked_array(ragged.values, f"input {name}".strip()) for name, ragged in named]
    inputs = [
        Spec(array.shape[1:], array.dtype, ragged.levels - 1)
        for array, (_, ragged) in zip(arrays, named, strict=True)
    ]
    specs, still, beside = static_sequences(statics, count)
    prepared = rnn.prepared_for(rebuild(sequences, inputs), specs)
    if masking.mask is not None:
        arrays.append(mask_array(masking.mask, Ragged(np.empty(int(offsets[0][-1])), offsets[:1])))
    found = rnn.under(masking.control, prepared)
    given = initial_arrays(initial, prepared.traced, count)
    wanted = leaves(found.traced.memory)
    memories = [
        np.zeros((count, *spec.shape), spec.dtype) if array is None else array
        for array, spec in zip([*given, *[None] * (len(wanted) - len(given))], wanted, strict=True)
    ]
    begun = None if masking.begun is None else begun_steps(masking.begun, count)
    segments = Segments(count, offsets, begun, beside)
    return LevelsCall(prepared.traced, found, [*arrays, *memories, *still], segments)


def over_arrays(
    rnn: "RNN",
    sequences: Any,
    initial: Any,
    statics: Any,
    lengths: Any,
    last_only: bool,
    engine: Asked,
    masking: Masking,
) -> tuple[Any, Any]:
    """The same for arrays [batch, time, features...]: as Raggeds, and back."""
    batch = Batch.of(sequences, lengths)
    given, masking = as_raggeds(batch, masking)
    outputs, final = over_levels(rnn, given, initial, statics, None, last_only, engine, masking)
    if last_only:
        return outputs, final
    time = batch.like[1]
    return transform(lambda ragged: ragged.to_padded(length=time)[0], outputs), final


def as_raggeds(batch: Batch, masking: Masking) -> tuple[Any, Masking]:
    """Sequences that are arrays, and the mask of their steps, as Raggeds."""

    def ragged(array: Array) -> Ragged:
        return Ragged.from_padded(array.reshape(*batch.like, *array.shape[1:]), batch.lengths)

    if masking.mask is not None:
        masking = replace(masking, mask=ragged(mask_array(masking.mask, batch.like)))
    return rebuild(batch.structure, [ragged(array) for array in batch.arrays]), masking


def static_sequences(statics: Any, count: int) -> tuple[Any, list[Array], dict[str, Array]]:
    """What the step is told of its statics, their arrays, and the offsets of those that are sequences.

    Those of the same lengths share an axis, so that keys and values meet.
    """
    specs: list[Spec] = []
    arrays: list[Array] = []
    beside: dict[str, Array] = {}
    for name, leaf in named_leaves(statics):
        what = f"static {name}".strip()
        if not isinstance(leaf, Ragged):
            array, axis = checked_array(leaf, what), ""
            rows = array.shape[0] if array.ndim else 0
        else:
            if leaf.levels != 1:
                raise InputError(f"{what} has {leaf.levels} levels; a static is one sequence for each row")
            array, rows = checked_array(leaf.values, what), len(leaf)
            same = [axis for axis, known in beside.items() if np.array_equal(known, leaf.offsets[0])]
            axis = same[0] if same else (name or "static") + ("_" if name in AXES else "")
            beside[axis] = leaf.offsets[0]
        if rows != count:
            raise InputError(f"{what} is of {rows} rows; there are {count} sequences")
        specs.append(Spec(array.shape[1:], array.dtype, axis=axis))
        arrays.append(array)
    return rebuild(statics, specs), arrays, beside


def common_offsets(named: list[tuple[str, Any]]) -> tuple[Array, ...]:
    """The offsets of the deepest Ragged, which all others have as far as they go."""
    raggeds = [name for name, leaf in named if isinstance(leaf, Ragged)]
    for name, leaf in named:
        if not isinstance(leaf, Ragged):
            raise InputError(
                f"input {name} is an array among Raggeds of several levels, unlike input {raggeds[0]}; "
                "give it as a Ragged"
            )
    first, deepest = max(named, key=lambda pair: pair[1].levels)
    for name, ragged in named:
        check_same_lengths(first, deepest, name, ragged)
    return deepest.offsets


def run(
    found: Prepared, given: list[Array], parameters: list[Array], segments: Segments, engine: Asked
) -> list[Array]:
    """The results of a net of several levels: by the interpreter, or by its schedule on engines."""
    net = found.net
    if engine == "interpret":
        return interpret(net, [*given, *parameters], segments)
    asked = engine if isinstance(engine, str) else tuple(engine)
    values = dict(zip(net.inputs, [*given, *parameters], strict=True))
    fixed = {number: value for number, value in values.items() if net.type_of(number).extent == CONST}
    if asked not in found.running:
        found.running[asked] = Running(found.schedule, asked, renamed(found, fixed))
    return found.running[asked](renamed(found, {n: v for n, v in values.items() if n not in fixed}), segments)


def renamed(found: Prepared, values: dict[int, Array]) -> dict[int, Array]:
    """Values of inputs by their numbers in the schedule's net, whose inputs are in the same order."""
    place = dict(zip(found.net.inputs, found.schedule.net.inputs, strict=True))
    return {place[number]: value for number, value in values.items()}


def laid_out(
    array: Array, extent: tuple[str, ...], offsets: tuple[Array, ...], last_only: bool, reverse: bool
) -> Any:
    """An output as a Ragged of as many levels as it has, or each sequence's last."""
    levels = len(extent) - 1
    if not last_only:
        return Ragged(array, offsets[:levels])
    if levels > 1:
        raise InputError(NO_LAST)
    outer = offsets[0]
    last = np.zeros((len(outer) - 1, *array.shape[1:]), array.dtype)
    filled = np.diff(outer) > 0
    last[filled] = array[(outer[:-1] if reverse else outer[1:] - 1)[filled]]
    return last
