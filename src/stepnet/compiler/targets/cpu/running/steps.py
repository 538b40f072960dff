"""Single steps of a subset of the rows, on arrays that stay in place.

    rows 5 2 7    order   5 2 7                  the rows that machine code runs, in this order
                  starts  . . 1 . . 0 . 2        the index of each row's input and output

A step of other rows only changes the numbers in these tables: no memory is laid out, nothing is compiled.
Memories, statics and values computed from statics stay in place. Workspaces are kept for numbers of rows
that are rounded up to powers of two.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

import numpy as np

from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.call_words import CALL_WORDS
from stepnet.compiler.targets.cpu.machine.memory import POOL, pointer
from stepnet.compiler.targets.cpu.running.form import CallForm
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, Shape, write_words
from stepnet.compiler.targets.cpu.running.prepared_tasks import DividedTasks, PreparedTasks
from stepnet.compiler.targets.cpu.running.sequence_layout import rounded
from stepnet.compiler.targets.cpu.running.workspace import SLACK, WORD, Workspace
from stepnet.compiler.targets.lanes import Lanes, lanes_for
from stepnet.compiler.targets.threads import threads

MOST_COUNTS = 64
"""The largest number of different row counts whose tables are kept."""
PLACES = CALL_WORDS[CALL_WORDS.index("steps") :]
AT_PLACES, AT_LANES = 8 * WORD[PLACES[0]], 8 * WORD["lanes"]
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
        self.starts, self.lengths = np.zeros(rows, np.int64), np.ones(rows, np.int64)
        self.numbers = np.zeros(1, np.int64)
        self.prepared: dict[tuple[int, int, int], PreparedChain] = {}
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

    def arrange(self, count: int) -> Arranged:
        """Prepares steps of `count` rows: divides the rows among workspaces (scratch memory for some rows),
        and makes the tables of each, such as that of its rows. A later step of as many rows uses them again.
        """
        way = self.native.partition(rounded(count, 1, count), threads()).chosen
        most = way.sets * way.parts
        lanes = lanes_for(np.ones(count, np.int64), LANES * most)
        sets = min(most, lanes.count)
        parts = [lanes.every_nth(place, sets) for place in range(sets)] if sets > 1 else [lanes]
        room = 1 << (max(part.count for part in parts) - 1).bit_length()
        prepared = self.prepared_for(sets, way.threads_per_step, room)
        shares: list[Share] = []
        for space, part in zip(prepared.spaces[0], parts, strict=True):
            order = np.zeros(len(part.order), np.int64)
            tables = order, part.first, part.steps, self.starts, self.lengths, self.numbers
            words = int(part.steps[0]), *map(pointer, tables)
            own = None if np.array_equal(part.order, np.arange(count)) else part.order
            shares.append(Share(space, order, own, part.count, words, part))
        return Arranged(prepared, tuple(shares), np.arange(count))

    def prepared_for(self, sets: int, together: int, room: int) -> PreparedChain:
        """Returns the workspaces (scratch memory) for `sets` threads of at most `room` rows each, made at
        first use. together: the number of threads that share each step; if several, only those awake take
        part.
        """
        key = sets, together, room
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
