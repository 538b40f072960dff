"""Single steps of a subset of the rows, on arrays that stay in place.

    rows 5 2 7    order   5 2 7                  the rows that machine code runs, in this order
                  starts  . . 1 . . 0 . 2        the index of each row's input and output

A step of other rows only changes the numbers in these tables: no memory is laid out, nothing is compiled.
Memories, statics and values computed from statics stay in place. Workspaces are kept for numbers of rows
that are rounded up to powers of two.

A step that one thread runs is a call block (`call_block.py`): machine code takes the inputs and the rows from
a list of arrays, writes the tables, allocates the outputs, and runs the step, in one go.
"""

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.call_words import CALL_WORDS
from stepnet.compiler.native.spaces import SLACK
from stepnet.compiler.plan.partition import CallPartition
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.memory import POOL, pointer
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.call_block import block_of, turn_of
from stepnet.compiler.targets.cpu.running.chain_call import turn_of_wave
from stepnet.compiler.targets.cpu.running.form import CallForm
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.new_arrays import NewArray, NewTable
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, Shape, write_words
from stepnet.compiler.targets.cpu.running.prepared_tasks import DividedTasks, PreparedTasks
from stepnet.compiler.targets.cpu.running.sequence_layout import rounded
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.lanes import Lanes, lanes_for
from stepnet.compiler.targets.threads import threads

MOST_COUNTS = 64
"""The largest number of different row counts whose tables are kept."""
PLACES = CALL_WORDS[CALL_WORDS.index("steps") :]
AT_PLACES, AT_LANES = 8 * WORD[PLACES[0]], 8 * WORD["lanes"]
WORDS = ("rows", "count", "own", "order", "starts", "writes", "write_count")
"""The argument words of the machine code that writes the tables of a step.

rows, count: the pointer to the rows that take the step, and their number.
own: the pointer to the positions of these rows in the order in which they run.
order, starts: the pointers to the tables to write.
writes, write_count: the pointer to other words to write (`WRITE`), and their number.
"""
WRITE = ("word", "value")
"""The words of a write: the pointer to an argument word of the step, and its value."""
pack_places, pack_lanes = Struct(f"{len(PLACES)}q").pack_into, Struct("q").pack_into


class Share(NamedTuple):
    """Share of the rows of a step that one workspace (scratch memory and arguments) runs.

    space: the workspace.
    order: the table of the rows.
    own: the positions of these rows among the rows of the step; None for all of them, in order.
    lanes: the number of lanes.
    words: the arguments of the machine code, from the one called "steps" on.
    tables: the other tables that these point to, kept alive.
    """

    space: Workspace
    order: Array
    own: Array | None
    lanes: int
    words: tuple[int, ...]
    tables: Lanes


class Arranged(NamedTuple):
    """Division of the rows of a step among threads: prepared workspaces, and the share of rows of each.

    numbers: the positions of the rows among those of the step.
    """

    prepared: PreparedChain
    shares: tuple[Share, ...]
    numbers: Array


class RowSteps:
    """Runs single steps of some rows (sequences) of a call, as streams take them; implements `base.Steps`."""

    def __init__(self, native: Native, call: Call, results: Results) -> None:
        """Collects the arrays of a call of a kernel (compiled code with parameters) and of its results, on
        which single steps will run in place.
        """
        self.native, self.call = native, call
        self.arrays = CallForm(native.kind, call).arrays(call.sequences, call.initial, call.statics, results)
        rows = call.positions.rows
        # Steps in blocks have a table of their own: one that `of` prepared may follow without another `of`.
        self.starts, self.block_starts = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.lengths = np.ones(rows, np.int64)
        self.numbers = np.zeros(1, np.int64)
        self.prepared: dict[tuple[int, int, int, bool], PreparedChain] = {}
        self.arranged: dict[int, Arranged] = {}
        self.latest: dict[int, Arranged] = {}

    def of(self, rows: Array) -> Callable[[], None]:
        """Returns a function that runs one step of these rows (the indices of sequences of a stream) on the
        current contents of the arrays. It is valid until the next call of `of`.
        """
        count = len(rows)
        arranged = self.arranged.get(count)
        if arranged is None:
            if len(self.arranged) >= MOST_COUNTS:
                self.arranged.clear()
            arranged = self.arranged[count] = self.arrange(count)
        prepared, shares, numbers = arranged
        self.starts[rows] = numbers
        for share in shares:
            if share.own is None:
                share.order[...] = rows
            else:
                rows.take(share.own, out=share.order, mode="clip")  # needs no buffer
        if self.latest.get(id(prepared)) is not arranged:
            self.latest.pop(id(prepared), None)  # an interrupt may leave a mixture of both
            for share in shares:
                write_words(share.space, pack_places, AT_PLACES, share.words)
                write_words(share.space, pack_lanes, AT_LANES, (share.lanes,))
            self.latest[id(prepared)] = arranged
        return prepared.runs[0]

    def block(self, count: int) -> Callable[[list[Any]], bool] | None:
        """Returns a function that runs one step of `count` rows on a list of arrays: the inputs, which are
        contiguous, and the rows. It adds the outputs, in new arrays, and returns whether it has run; False if
        the outputs are large. None if several threads run such steps.
        """
        way = self.way(count)
        if way.sets * way.parts * way.threads_per_step > 1:
            return None
        prepared, shares, _ = arranged = self.arrange(count, in_block=True)
        (share,), native, inputs = shares, self.native, len(self.call.sequences)
        begin, own = share.space.addresses[0], share.tables.order.astype(np.int64)
        places = [(begin + AT_PLACES + 8 * place, word) for place, word in enumerate(share.words)]
        writes = np.array([*places, (begin + AT_LANES, share.lanes)], np.int64)
        words = 0, count, *map(pointer, (own, share.order, self.block_starts, writes)), len(writes)
        function = machine_code("running.steps", native.processor).function("place_rows", ctypes.c_int64)
        placing = ParallelCalls(function, np.array([words], np.int64))
        placing.sources = [(WORDS.index("rows"), inputs)]
        read, made = native.compiled.arguments["inputs"], native.compiled.arguments["outputs"]
        sources = [(word, place) for place, word in enumerate(read)]
        sources += [(word, inputs + 1 + place) for place, word in enumerate(made)]
        new = [NewArray(rows.spec(count)) for rows in native.kind.outputs]
        turns = turn_of(placing, 0), turn_of_wave(prepared, 0, [sources])
        block = block_of(turns, prepared.reach, native.processor, NewTable.of(new, {}, inputs + 1))
        block.tables += [own, writes, placing.arguments, arranged]
        return block.run

    def renew(self, rows: Array) -> None:
        """Recomputes, if there are any, the values that depend on the statics (constant over the steps) of
        these rows, after these have changed.
        """
        native, function = self.native, self.native.compiled.sequences
        if function is None or self.arrays.record is None or not len(rows):
            return
        # In a separate buffer: machine code may write beyond its last row, and so overwrite other rows.
        stride = native.compiled.strides["sequence"]
        record = POOL.take((len(rows) + SLACK) * stride)
        read = set(native.compiled.sequence_arguments)
        in_order = [
            array[rows] if array is not None and word in read else array
            for word, array in zip(native.array_words, self.arrays.in_order, strict=True)
        ]
        native.for_each_sequence(
            function, self.arrays._replace(in_order=in_order, record=record, batch=len(rows))
        )
        kept = self.arrays.record[: self.arrays.batch * stride].reshape(-1, stride)
        kept[rows] = record[: len(rows) * stride].reshape(-1, stride)
        POOL.give_back(record)

    def way(self, count: int) -> CallPartition:
        """Returns how threads divide a step of `count` rows, by estimated times."""
        return self.native.partition(rounded(count, 1, count), threads()).chosen

    def arrange(self, count: int, in_block: bool = False) -> Arranged:
        """Prepares steps of `count` rows: divides the rows among workspaces (scratch memory for some rows),
        and makes the tables of each, such as that of its rows. A later step of as many rows uses them again.
        in_block: whether the step runs in a block, which has workspaces of its own.
        """
        way = self.way(count)
        most = way.sets * way.parts
        lanes = lanes_for(np.ones(count, np.int64), LANES * most)
        sets = min(most, lanes.count)
        parts = [lanes.every_nth(place, sets) for place in range(sets)] if sets > 1 else [lanes]
        room = 1 << (max(part.count for part in parts) - 1).bit_length()
        prepared = self.prepared_for(sets, way.threads_per_step, room, in_block)
        shares, starts = list[Share](), self.block_starts if in_block else self.starts
        for space, part in zip(prepared.spaces[0], parts, strict=True):
            order = np.zeros(len(part.order), np.int64)
            tables = order, part.first, part.steps, starts, self.lengths, self.numbers
            words = int(part.steps[0]), *map(pointer, tables)
            own = None if np.array_equal(part.order, np.arange(count)) else part.order
            shares.append(Share(space, order, own, part.count, words, part))
        return Arranged(prepared, tuple(shares), np.arange(count))

    def prepared_for(self, sets: int, together: int, room: int, in_block: bool) -> PreparedChain:
        """Returns the workspaces (scratch memory) for `sets` threads of at most `room` rows each, made at
        first use. together: the number of threads that share each step; if several, only those awake take
        part. in_block: whether the step runs in a block.
        """
        key = sets, together, room, in_block
        prepared = self.prepared.get(key)
        if prepared is None:
            shape = Shape(((0,),), ((room,) * sets,), (together,), (0,), (0,), False, (1,))
            kind = DividedTasks if together > 1 else PreparedTasks
            prepared = PreparedChain([self.native], shape, kind, pauses=False)
            nowhere = (0,) * (CALL_WORDS.index(PLACES[0]) - CALL_WORDS.index("until") + len(PLACES))
            prepared.write([self.call], [self.arrays], [tuple((0, nowhere) for _ in range(sets))])
            self.prepared[key] = prepared  # only now, as an interrupt may stop the writing of words
        return prepared


def steps_of(native: Native, call: Call, results: Results) -> RowSteps | None:
    """Prepares single steps of a kernel (compiled part) of some rows; None if machine code cannot run them:
    if a step has inner sequences, if there is work after the loop, or if values computed once per sequence
    depend on the initial memory.

    call, results: the call whose memories a step reads, and the results that it writes.
    """
    compiled = native.compiled
    memories = set(compiled.arguments["initial"])
    once = compiled.sequences is None or memories.isdisjoint(compiled.sequence_arguments)
    runs = once and not compiled.axes and native.finish is None and compiled.ended is None
    return RowSteps(native, call, results) if runs else None
