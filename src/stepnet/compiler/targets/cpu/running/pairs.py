"""Operations at pairs of steps in machine code: one alone, or a group of them (`compiler/plan/pairs.py`).

    words     values of the inputs | result | tasks | ... | pointers to scratch memory
    task      queries of a sequence, and a head: their pairs in tiles of a few queries with all keys

    tile      scores    queries x keys, in vectors of keys              [vector of keys][query][key]
              rows      elementwise operations and reductions, query by query
              mix       queries x features, in vectors of features

Each number is one chain of sums in the order of its features, keys or queries, and each reduction one tree
over the keys, so that the bits of a sequence are those of the sequence alone, whichever threads compute it.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import is_pairs
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import aligned, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code_of_many
from stepnet.compiler.targets.cpu.running.across import SHARED_BYTES, BetweenTask, shares
from stepnet.compiler.targets.cpu.running.pairs_form import PairsForm
from stepnet.compiler.targets.threads import threads
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions

TASK = ("row", "rows", "index", "column", "columns", "head")
"""The words of a task: its first row (query, or key for sums over queries), the number of rows, and the index
of the first one in its sequence; the first column of the sequence and their number; and the head.
"""
FIXED = ("tasks", "first_task", "last_task", "pair_starts", "pair_lengths")
"""The argument words behind those of values.

tasks: the pointer to the table of tasks. first_task, last_task: those of a thread.
pair_starts, pair_lengths: the pointers to the tables of the first pair of each query, and of its keys.
"""
MOST_BODIES = 64
"""The number of bodies whose machine code is kept for the next call; prepared calls keep their own."""
EACH = 4
"""The number of tasks of each thread, if sequences have queries enough: as many sequences are not divided."""


@lru_cache(MOST_BODIES)
def pairs_code(processor: Processor, body: Net) -> tuple[NativeFunction, PairsForm]:
    """Returns the machine code of operations at pairs of steps (a query with a key, as in attention), and the
    `PairsForm` with the layout of its memory. body: the net of these operations.
    """
    code = machine_code_of_many("running.pairs", processor, body)
    return code.function("pairs", ctypes.c_int64), PairsForm(body, processor)


def computed(
    across: Across, operands: Sequence[Array], positions: Sequence[Positions], processor: Processor
) -> Array:
    """Computes operations at pairs of steps, such as attention, and returns the result in a new array.

    operands: the arrays that the operations read. positions: where the queries and the keys of the sequences
    lie, and the pairs of each query. processor: the processor that runs the code.
    """
    task = PairsTask(across, positions, processor)
    made = task.result_of(*operands)
    task()
    return made


class PairsTask(BetweenTask):
    """Operations at pairs of steps, with the argument words."""

    def __init__(self, across: Across, positions: Sequence[Positions], processor: Processor) -> None:
        """Writes the argument words of the machine code of operations at pairs of steps (a query with a key),
        but for the pointers of the values, and allocates its scratch memory.

        positions: where the queries and the keys of the sequences lie, and the pairs of each query.
        processor: the processor that runs it.
        """
        assert across.body is not None
        queries, keys, pairs = positions
        function, form = pairs_code(processor, across.body)
        rows, columns = (keys, queries) if form.is_turned else (queries, keys)
        super().__init__(across, (pairs if is_pairs(across.result.extent) else rows).total)
        work = pairs.total * form.heads * (form.features + 1) * form.itemsize
        count = threads() if work >= SHARED_BYTES else 1
        table, offsets = tasks_of(rows, columns, form, count)
        parts = [*pairwise((*shares(offsets, count), len(table)))]
        blocks = -(-int(columns.lengths.max(initial=0)) // form.width)
        sizes = [-(-(own.bytes + own.bytes_per_block * blocks) // LINE) * LINE for own in form.buffers]
        places = np.cumsum([0, *sizes])
        scratch = aligned(len(parts) * int(places[-1]))
        tables = [np.ascontiguousarray(own, np.int64) for own in (table, pairs.starts, pairs.lengths)]
        self.held = *tables, scratch
        places_of = [pointer(scratch) + part * int(places[-1]) + places[:-1] for part in range(len(parts))]
        values = [0] * (len(across.body.inputs) + 1)
        address, *others = map(pointer, tables)
        words = [[*values, address, *part, *others, *own] for part, own in zip(parts, places_of, strict=True)]
        self.begin(function, np.array(words, np.int64))


def tasks_of(rows: Positions, columns: Positions, form: PairsForm, count: int) -> tuple[Array, Array]:
    """Makes the table of the tasks of operations at pairs of steps (a query with a key). A task has one head
    and some queries of a sequence: all of them, or a multiple of a tile's rows where few long sequences are
    for many threads. Returns the table, with the fields of `TASK`, and the number of pairs ahead of each task
    and of all.

    rows, columns: where the queries and the keys lie, or the keys and the queries for sums over queries.
    form: the layout of the memory. count: the number of threads.
    """
    longest, tile = int(rows.lengths.max(initial=0)), form.tile.rows
    wanted = -(-EACH * count // max(1, rows.rows * form.heads)) if count > 1 else 1
    size = max(tile, -(-longest // (wanted * tile)) * tile)
    pieces = -(-rows.lengths // size)
    sequence = np.repeat(np.arange(rows.rows), pieces * form.heads)
    begin = np.cumsum(pieces * form.heads) - pieces * form.heads
    within = np.arange(len(sequence)) - begin[sequence]
    first, head = within // form.heads * size, within % form.heads
    counts = np.minimum(size, rows.lengths[sequence] - first)
    across = columns.lengths[sequence]
    fields = rows.starts[sequence] + first, counts, first, columns.starts[sequence], across, head
    return np.stack(fields, 1).astype(np.int64), offsets_of(counts * np.maximum(across, 1))
