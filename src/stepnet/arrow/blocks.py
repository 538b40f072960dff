"""Record batches cut into pieces of a limited number of bytes, and small pieces joined to one call.

    batch of 4 GB   -> piece, piece, piece, ...      each a slice without a copy, run by itself
    batches of 5 KB -> piece | piece | piece | ...   one call: only the sequences are copied end to end

A piece belongs to exactly one batch, so the columns that are passed on are slices of that batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepnet.arrow.columns import Column
from stepnet.compiler.values.records import dataclass
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
ROW_BYTES = 64
"""The bytes that a row is assumed to take until its sequence is measured."""


@dataclass(frozen=True)
class NumberedBatch:
    """A record batch (`records`) with its name, and the number of its first row (`first`), for messages."""

    name: str
    first: int
    records: Any


@dataclass(frozen=True)
class BatchPiece:
    """Consecutive rows of one record batch, with their sequences: at most as many as one call of a model
    takes.

    name: the name of the batch. first: the number of the first row, for messages. columns: the columns that
    are passed on. null: bool per row, True for null rows; None if there are none. size: the bytes that a call
    takes for these sequences.
    """

    name: str
    first: int
    columns: tuple[Any, ...]
    sequences: Ragged
    null: Array | None
    size: int

    @property
    def rows(self) -> int:
        """The number of rows of this piece of a record batch."""
        return len(self.sequences)


def pieces(
    batch: NumberedBatch,
    array: Any,
    columns: Sequence[Any],
    column: Column,
    level_bytes: Sequence[int],
    pair_bytes: int,
    most: int,
) -> Iterator[BatchPiece]:
    """Cuts the rows of a record batch into pieces that one call of a model can take: at most `most` bytes
    each, or a single row.

    array: the list column, already checked. columns: the columns that are passed on with the results. column:
    the reader that converts the list column to sequences. level_bytes: the bytes that a sequence, a step, and
    an entry of each further level of nested lists take. pair_bytes: the bytes that a pair of steps takes. A
    batch without rows gives one piece without rows.
    """
    window = max(1, most // ROW_BYTES)
    for begin in range(0, max(1, len(array)), window):
        rows = array[begin : begin + window]
        sizes = row_sizes(rows, level_bytes, pair_bytes)
        for start, stop in cuts(sizes, most):
            part = rows[start:stop]
            null = part.is_null().to_numpy(zero_copy_only=False) if part.null_count else None
            passed = tuple(each.slice(begin + start, stop - start) for each in columns)
            first, size = batch.first + begin + start, int(sizes[stop] - sizes[start])
            yield BatchPiece(batch.name, first, passed, column.read(part, first), null, size)


def row_sizes(array: Any, level_bytes: Sequence[int], pair_bytes: int) -> Array:
    """Computes the cumulative bytes of rows, to cut them into calls of bounded memory: entry i counts the
    rows before row i.

    array: a list column. level_bytes: the bytes of a row, a step, and an entry of each further level of
    nested lists.
    pair_bytes: the bytes of a pair of steps of a row.
    """
    bounds = np.arange(len(array) + 1, dtype=np.int64)
    sizes = bounds * level_bytes[0]
    if len(array) and pair_bytes:
        sizes[1:] += np.cumsum(np.diff(np.from_dlpack(array.offsets)).astype(np.int64) ** 2) * pair_bytes
    if len(array):
        for entry_bytes in level_bytes[1:]:
            offsets: NDArray[Any] = np.from_dlpack(array.offsets)
            bounds = offsets[bounds].astype(np.int64)
            sizes += (bounds - bounds[0]) * entry_bytes
            array = array.values
    return sizes


def cuts(sizes: Array, most: int) -> Iterator[tuple[int, int]]:
    """Divides the rows of a batch into pieces to run in one call each: yields (first row, row after the last)
    of as many rows as fit `most` bytes, but at least one; (0, 0) if there are no rows.

    sizes: the cumulative bytes of the rows, as `row_sizes` computes them, from 0 on.

    >>> list(cuts(np.array([0, 3, 5, 20, 21, 22]), most=6))
    [(0, 2), (2, 3), (3, 5)]
    """
    start, rows = 0, len(sizes) - 1
    while start < rows or start == 0:
        stop = int(np.searchsorted(sizes, int(sizes[start]) + most, side="right")) - 1
        stop = min(rows, max(stop, start + 1))
        yield start, stop
        start = max(stop, 1)


def concatenate(parts: Sequence[Ragged]) -> Ragged:
    """Joins the sequences of several `Ragged`s, of equal levels of nesting and equal features, for one call
    of a model; a single one is returned without a copy.
    """
    if len(parts) == 1:
        return parts[0]
    levels = range(parts[0].levels)
    offsets = (
        offsets_of(np.concatenate([np.diff(part.offsets[level]) for part in parts])) for level in levels
    )
    return Ragged(np.concatenate([part.values for part in parts]), tuple(offsets))


def rows_of(block: Sequence[BatchPiece]) -> str:
    """Names the rows of one call for messages, such as "batch 2, rows 0 to 9"; names the first and the last
    batch if there are several. block: the pieces (ranges of rows of batches) of the call, in order.
    """
    first, last = block[0], block[-1]
    if first is last and first.rows == 1:
        return f"{first.name}, row {first.first}"
    if first.name == last.name:
        return f"{first.name}, rows {first.first} to {last.first + last.rows - 1}"
    return f"{first.name} to {last.name}"


def null_of(block: Sequence[BatchPiece]) -> Array | None:
    """Joins the null flags (bool per row) of one call's pieces; None if no row is null."""
    if all(piece.null is None for piece in block):
        return None
    nulls = [np.zeros(piece.rows, bool) if piece.null is None else piece.null for piece in block]
    return np.concatenate(nulls)
