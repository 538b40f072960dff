"""The steps of a call divided into pieces of k steps, each a separate call.

    [a a a a a]                [a a]   [a a]   [a]
    [b b b . .]   --k = 2-->   [b b] , [b .] ,       a sequence without steps in a piece is not in it
    [c . . . .]                [c .]

A piece is a window of the same k steps of all sequences. A recurrence from the first step takes the pieces in
order, one from the last step from the last piece on: there each sequence begins in the piece that has its
last step, so nothing depends on how sequences lie. Where the steps of a piece lie together in the arrays of
the call they are used there; else they are copied, end to end.
"""

from collections.abc import Iterator, Sequence
from math import ceil, sqrt
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from stepnet.compiler.net.interpreter import entries_of_steps
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, is_static_extent
from stepnet.compiler.targets import Call
from stepnet.compiler.values.arguments import checked_integer, choice, is_one_of
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of, positions_of
from stepnet.ragged.positions import Positions

Array = np.ndarray
Places: TypeAlias = "Array | slice | EllipsisType"
Checkpoint: TypeAlias = "int | str | None"
"""The argument `checkpoint`: the number of steps between two saved memories, or "sqrt" for the square root of
the largest length; None saves all values.
"""

SAVED = ("bfloat16",)
CHECKPOINT_IS = "checkpoint is None, 'sqrt' or how many steps there are from 1 on between two kept memories"


def checked_checkpoint(value: object) -> Checkpoint:
    """Returns the argument `checkpoint` unchanged; raises `InputError` for an invalid one.

    >>> checked_checkpoint("sqrt"), checked_checkpoint(10)
    ('sqrt', 10)
    """
    if value is None or is_one_of(value, ("sqrt",)):
        return value
    return checked_integer(value, CHECKPOINT_IS, 1)


def checked_saved(value: str | None) -> str | None:
    """Returns the argument `saved`, the dtype in which values for gradients alone are stored, unchanged.
    Raises `InputError` unless it is None, for their own, or one of `SAVED`.
    """
    return value if value is None else choice(value, f"saved is None or {', '.join(map(repr, SAVED))}", SAVED)


def piece_size(checkpoint: "int | str", longest: int) -> int:
    """Returns the number of steps of a piece, a range of steps that runs as a call of its own.

    checkpoint: this number, or "sqrt" for the root of the longest length, rounded up.
    longest: the longest length of a sequence.

    >>> piece_size("sqrt", 10), piece_size(3, 10), piece_size("sqrt", 0)
    (4, 3, 1)
    """
    return max(1, ceil(sqrt(longest))) if isinstance(checkpoint, str) else checkpoint


@dataclass(frozen=True)
class Piece:
    """A range of steps of a call, which runs as a call of its own.

    rows: the indices of the sequences that have at least one of these steps.
    places: the positions of their values in the arrays of the whole call, level by level.
    beside: the positions of the values of their static sequences, by axis.
    call: the call of the piece.
    """

    rows: Places
    places: tuple[Places, ...]
    beside: dict[str, Places]
    call: Call

    def where(self, type_: Type) -> Places:
        """Returns the positions, in an array of the whole call, of the values that belong to the piece (range
        of steps).

        type_: the type of the values: per step, per sequence, or one for all.
        """
        if type_.extent == CONST:
            return ...
        if is_static_extent(type_.extent):
            return self.beside[type_.extent[-1]]
        return self.rows if type_.extent == ROWS else self.places[len(type_.extent) - 2]

    def of(self, array: Array, type_: Type) -> Array:
        """Returns the piece's entries of an array of the whole call. type_: the type of the values in it."""
        return array if type_.extent == CONST else np.ascontiguousarray(array[self.where(type_)])

    def inputs(self, net: Net, arrays: Sequence[Array | None]) -> list[Array | None]:
        """Cuts the inputs of the piece (range of steps) out of the arrays of the whole call; None stays None.
        net: the net of the call. arrays: the arrays of its first inputs.
        """
        pairs = zip(net.inputs, arrays, strict=False)
        return [None if array is None else self.of(array, net.type_of(number)) for number, array in pairs]

    def put(self, net: Net, results: Sequence[Array], arrays: Sequence[Array]) -> None:
        """Writes results for the piece (range of steps) to their positions in arrays of the whole call. net:
        the net that computed them. results, arrays: the results, and for each the array to write to.
        """
        for number, part, array in zip(net.results, results, arrays, strict=True):
            array[self.where(net.type_of(number))] = part


def pieces(call: Call, size: int, reverse: bool, counts: bool, back: bool = False) -> Iterator[Piece]:
    """Divides a call into pieces (ranges of steps); yields them in the order in which its recurrence runs.

    size: the number of steps of a piece.
    reverse: whether the recurrence runs from the last step.
    counts: whether the recurrence reads the step index.
    back: whether to reverse the order, as for the gradient.
    """
    firsts = range(0, int(call.positions.lengths.max(initial=0)), size)
    for first in reversed(firsts) if reverse != back else firsts:
        yield piece(call, first, size, reverse, counts)


def piece(call: Call, first: int, size: int, reverse: bool, counts: bool) -> Piece:
    """Returns the part of a call with up to `size` steps of each sequence, as a call to run.

    first: the index of the first of these steps.
    reverse: whether the recurrence runs from the last step.
    counts: whether the recurrence reads the step index.
    """
    whole = call.positions.lengths
    alive = np.flatnonzero(whole > first)
    lengths = np.minimum(whole[alive] - first, size)
    step_offset = None
    if counts:
        before = whole[alive] - first - lengths if reverse else np.full(len(alive), first)
        step_offset = before if call.step_offset is None else before + call.step_offset[alive]
    return part_of(call, alive, np.full(len(alive), first), lengths, step_offset)


def part_of(
    call: Call,
    alive: Array,
    firsts: Array,
    lengths: Array,
    step_offset: Array | None = None,
    consecutive: bool = False,
) -> Piece:
    """Returns a call for some steps of some sequences of another call.

    If these steps fill a range of the call's arrays, they are read in place; else they must be copied end to
    end.

    alive: the indices of the sequences.
    firsts, lengths: for each of these sequences, its first step and its number of steps.
    step_offset: the number of steps that each ran before these; None if no step reads its index.
    consecutive: whether the steps of each sequence must be consecutive in the piece, by a copy if needed.
    """
    positions = call.positions
    at = positions.step_indices(alive, firsts, lengths)
    starts, steps, total = offsets_of(lengths)[:-1], None, len(at)
    places, inner = [at], ()
    if positions.inner:
        places, inner = entries_of_steps(at, positions.inner)
    elif total and int(at.max()) + 1 - int(at.min()) == total:
        lowest, first = int(at.min()), int(firsts[0])
        if positions.steps is None:
            places, starts = [np.arange(lowest, lowest + total)], positions.starts[alive] - lowest + firsts
        elif not consecutive and (firsts == first).all():
            places, steps = (
                [np.arange(lowest, lowest + total)],
                positions.steps[first : first + int(lengths.max())],
            )
            starts, steps = positions.starts[alive] - lowest + int(steps[0]), steps - steps[0]
    everyone = len(alive) == positions.rows
    beside = {axis: of_rows(offsets, alive) for axis, offsets in positions.beside.items()}
    inside = {axis: offsets_of(np.diff(offsets)[alive]) for axis, offsets in positions.beside.items()}
    part = Call(Positions(starts, lengths, total, steps, inner, inside), step_offset=step_offset)
    rows = slice(None) if everyone else alive
    return Piece(rows, tuple(map(as_slice, places)), beside, part)


def of_rows(offsets: Array, rows: Array) -> Places:
    """Returns the positions of the values of the sequences `rows`, where all lie end to end at `offsets`."""
    return as_slice(positions_of(offsets[rows], np.diff(offsets)[rows]))


def as_slice(places: Array) -> Places:
    """Replaces consecutive positions by a slice, so that indexing needs no copy; returns others unchanged."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def zeros(type_: Type, call: Call) -> Array:
    """Returns an array of zeros for all entries that values of a type have in a call.

    These are one for a parameter, else one per sequence, step, or step of a sequence inside a step, or of one
    that each sequence has once.

    type_: the type of the values.
    call: the call, with the positions of the sequences.
    """
    positions = call.positions
    beside = positions.beside[type_.extent[-1]] if is_static_extent(type_.extent) else None
    if beside is not None:
        count = (int(beside[-1]),)
    elif type_.extent in (CONST, ROWS, STEPS):
        count = {CONST: (), ROWS: (positions.rows,), STEPS: (positions.total,)}[type_.extent]
    else:
        count = (int(positions.inner[len(type_.extent) - 3][-1]),)
    return np.zeros((*count, *type_.shape), type_.dtype)
