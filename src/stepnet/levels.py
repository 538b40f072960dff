"""A recurrence over sequences of several levels, or beside statics that are sequences, called from outside.

The step is traced with its inner sequences, and what is run is a schedule of several parts. See `nested` for
what may be said in the step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.batch import (
    Batch,
    begun_steps,
    check_no_lengths,
    check_same_lengths,
    checked_array,
    initial_arrays,
)
from stepnet.control import Control, Until, mask_array, run_until
from stepnet.engines import Call, Order, Results
from stepnet.errors import InputError
from stepnet.interpret import Segments, interpret, of_rows, within_steps
from stepnet.nested import NO_LAST
from stepnet.prepared import Prepared
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import ends_of, offsets_of
from stepnet.running import Running
from stepnet.step import Spec, TracedStep
from stepnet.structure import leaves, named_leaves, rebuild
from stepnet.types import AXES, CONST, STEPS

if TYPE_CHECKING:
    from stepnet.recurrence import RNN

Array = np.ndarray


def is_ragged(structure: Any) -> bool:
    """Whether there is a Ragged among values."""
    return any(isinstance(leaf, Ragged) for leaf in leaves(structure))


def is_deep(structure: Any) -> bool:
    """Whether sequences have inner ones."""
    return any(isinstance(leaf, Ragged) and leaf.levels > 1 for leaf in leaves(structure))


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
    engine: Order,
    masking: Masking,
) -> tuple[Any, Any]:
    """The outputs and the last memory of a recurrence over the outermost level of Raggeds.

    Statics may be Raggeds too: sequences that each row has besides, of lengths of their own. Arrays
    [batch, time, features...] are run as Raggeds, and their outputs laid out as they are.
    """
    batch = None if is_ragged(sequences) else Batch.of(sequences, lengths)
    if batch is None:
        check_no_lengths(lengths)
    else:
        sequences, masking = as_raggeds(batch, masking)
    called = levels_call(rnn, sequences, initial, statics, masking)
    traced, found, offsets = called.traced, called.found, called.segments.offsets
    recur = found.traced.recur()
    extents = [found.net.type_of(number).extent for number in recur.gives(found.net.results).outputs]
    if masking.until is None:
        results = run(found, called.arrays, called.segments, engine)
        outputs, final = recur.gives(results)
        outputs = [
            laid_out(array, extent, offsets, last_only, rnn.reverse)
            for array, extent in zip(outputs, extents, strict=True)
        ]
        if batch is not None and not last_only:
            outputs = [output.to_padded(length=batch.like[1])[0] for output in outputs]
    else:
        if any(extent != STEPS for extent in extents):
            raise InputError("a step with until= gives one value per row; one of its outputs is a sequence")
        taken, ended = run_until(*by_pieces(called, last_only, rnn.reverse, engine))
        outputs, final = ended.outputs, ended.final
        if not last_only:
            outputs = [Ragged(output, (offsets_of(taken),)) for output in outputs]
    return rebuild(traced.output, outputs), rebuild(traced.memory, final[: len(leaves(traced.memory))])


def by_pieces(
    called: "LevelsCall", last_only: bool, reverse: bool, engine: Order
) -> tuple[Callable[[Call], Results], Call]:
    """What runs some steps of some sequences, and the call of all of them, which says of each step where it
    is, and of each sequence which row.
    """
    found, whole = called.found, called.segments
    recur = found.traced.recur()
    given = recur.given(called.arrays)
    types = recur.given([found.net.type_of(number) for number in found.net.inputs[: len(called.arrays)]])
    offsets = whole.offsets[0]

    def run_piece(call: Call) -> Results:
        (steps,), (rows,) = call.sequences, call.statics
        places, inside = within_steps(steps, whole.offsets[1:])
        pairs = zip(given.sequences, types.sequences, strict=True)
        arrays = [array[places[len(type_.extent) - 2]] for array, type_ in pairs]
        still, beside = of_rows(given.others, types.others, whole, rows)
        segments = Segments(len(rows), (offsets_of(call.lengths), *inside), call.begun, beside)
        memory: list[Any] = list(call.initial)
        results = run(found, [*arrays, *memory, *still], segments, engine)
        return Results(*recur.gives(results))

    return run_piece, Call(
        [np.arange(int(offsets[-1]))],
        offsets[:-1],
        np.diff(offsets),
        int(offsets[-1]),
        given.memories,
        [np.arange(whole.rows)],
        last_only,
        reverse,
        whole.begun,
    )


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
    given = initial_arrays(initial, prepared.traced.memory, count)
    wanted = leaves(found.traced.memory)
    memories = [
        np.zeros((count, *spec.shape), spec.dtype) if array is None else array
        for array, spec in zip([*given, *[None] * (len(wanted) - len(given))], wanted, strict=True)
    ]
    begun = None if masking.begun is None else begun_steps(masking.begun, count)
    segments = Segments(count, offsets, begun, beside)
    return LevelsCall(prepared.traced, found, [*arrays, *memories, *still], segments)


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


def run(found: Prepared, given: list[Array], segments: Segments, engine: Order) -> list[Array]:
    """The results of a net of several levels: by the interpreter, or by its schedule on engines."""
    net, parameters = found.net, leaves(found.traced.params)
    if engine == "interpret":
        return interpret(net, [*given, *parameters], segments)
    values = dict(zip(net.inputs, [*given, *parameters], strict=True))
    fixed = {number: value for number, value in values.items() if net.type_of(number).extent == CONST}
    if engine not in found.running:
        found.running[engine] = Running(found.schedule, engine, renamed(found, fixed))
    return found.running[engine](
        renamed(found, {n: v for n, v in values.items() if n not in fixed}), segments
    )


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
    return ends_of(array, offsets[0], reverse)
