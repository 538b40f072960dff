"""Calls whose sequences may end early: only the machine code finds out how many steps each takes.

    machine code    outputs, as computed    b0 a0 b1 a1 a2 c0
                    row_sequence            b  a  b  a  a  c        the sequence of each row
                    row_step                0  0  1  1  2  0        its step
    results         in order                a0 a1 a2  b0 b1  c0

A free lane takes the next sequence from a queue that all threads share (`emit/early.py`), so nothing is
computed for sequences that have ended. The buffer for output rows has a fixed size. When it is full, the
machine code pauses and gets another one. So memory depends on the steps that are taken, and not on the
lengths that sequences might have.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from stepnet.compiler.native.call_words import ENDING
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.running.chain import KernelChain, idle_memories, with_idle
from stepnet.compiler.targets.cpu.running.form import CallForm, is_appended, most_steps
from stepnet.compiler.targets.cpu.running.native import POINTERS, Native
from stepnet.compiler.targets.cpu.running.prepared_chain import write_words
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout, Sets
from stepnet.compiler.targets.cpu.running.workspace import ENDING_ROWS, Workspace
from stepnet.ragged.offsets import offsets_of

ROOM_BYTES = 4 * 2**20
"""The size of a set of lanes' output buffer: when it is full, the machine code pauses and gets another."""
PLACE = {name: place for place, name in enumerate(ENDING)}


class OutputRows(NamedTuple):
    """Output rows (outputs of single steps) in the order in which machine code has computed them.

    outputs: an array per output.
    sequences, steps: the sequence and the step of each row.
    """

    outputs: list[Array]
    sequences: Array
    steps: Array


class Room:
    """Output buffers of a set of lanes (slots that run sequences) whose sequences may end early, and the
    argument words `ENDING` of its machine code. full: the buffers filled so far.
    """

    def __init__(self, native: Native, in_order: Sequence[Array | None], first: int, rows: int) -> None:
        """Takes a kernel (compiled part of a net), the arrays of its call in order (`in_order`), the position
        of the first output among them, and the number of rows of an output buffer.
        """
        self.native, self.in_order, self.first, self.rows = native, list(in_order), first, rows
        self.words = np.zeros(len(ENDING), np.int64)
        self.full: list[OutputRows] = []

    def set(self, **words: int) -> None:
        """Sets 64-bit arguments, by their names in `ENDING`, for sequences that may end early."""
        for name, value in words.items():
            self.words[PLACE[name]] = value

    def get(self, space: Workspace) -> None:
        """Allocates new arrays for the next output rows, and writes their addresses to the arguments of the
        machine code. space: the workspace (scratch memory and arguments) whose lanes, slots for sequences,
        write the rows.
        """
        outputs = [rows.new(self.rows) for rows in self.native.kind.outputs]
        self.part = OutputRows(outputs, np.empty(self.rows, np.int64), np.empty(self.rows, np.int64))
        self.set(row_sequence=pointer(self.part.sequences), row_step=pointer(self.part.steps), written=0)
        self.in_order[self.first : self.first + len(outputs)] = outputs
        pointers = [pointer(self.in_order[place]) for place in self.native.in_words]
        write_words(space, self.native.pack_pointers, POINTERS, pointers)

    def keep(self) -> None:
        """Adds the output rows (outputs of single steps) that machine code has written to the current output
        buffer to `full`, the list of filled buffers. Afterwards a new buffer can replace it.
        """
        written = int(self.words[PLACE["written"]])
        outputs, sequences, steps = self.part
        self.full.append(
            OutputRows([rows[:written] for rows in outputs], sequences[:written], steps[:written])
        )


class Ending:
    """Call of a kernel whose sequences may end early. Only its machine code finds out at which steps."""

    def __init__(self, chain: KernelChain, call: Call) -> None:
        """Collects the arrays of a call of a chain (parts run by one call) with a single kernel (compiled
        part), whose sequences may end early, and puts its sequences in a queue, longest first.
        """
        (self.native,) = chain.natives
        self.chain, self.call, self.form = chain, call, CallForm(self.native.kind, call)
        results = self.form.results()
        self.arrays = self.form.arrays(call.sequences, call.initial, call.statics, results)
        positions = call.positions
        self.laid = SequenceLayout.of(positions)
        self.taken, self.waiting = np.zeros(positions.rows, np.int64), np.zeros(1, np.int64)
        order = np.argsort(-positions.lengths, kind="stable")
        self.order = order[: self.laid.filled].astype(np.int64)
        self.is_appended = is_appended(call)
        self.rooms: list[Room] = []
        self.spaces: Sequence[Workspace] = ()

    def sets(self, count: int, seconds: float, fewest: int) -> Sets:
        """Returns at most `count` sets of lanes (slots that run sequences), one for each thread: for each
        set, the number of lanes and the arguments that describe it. All lanes take their sequences from one
        queue, so the estimated time `seconds` and the `fewest` lanes that pay are not used.
        """
        lanes = min(LANES * count, len(self.order))
        count = min(count, lanes)
        self.rooms = [self.room(number) for number in range(count)]
        words = self.laid.waiting(self.order, [room.words for room in self.rooms])
        return tuple(((lanes + number) // count, own) for number, own in enumerate(words))

    def room(self, number: int) -> Room:
        """Makes the object that holds the output buffers of a thread's set of lanes (slots that run
        sequences), and writes its arguments for sequences that may end early. It has no output buffer yet.

        number: the number of the set.
        """
        call, native = self.call, self.native
        assert call.until is not None
        bytes_ = 2 * self.taken.itemsize + sum(rows.bytes for rows in native.kind.outputs)
        rows = max(LANES, ENDING_ROWS, min(self.laid.steps, ROOM_BYTES // bytes_))
        inputs, final = len(call.sequences), len(self.arrays.final)
        first = inputs + len(call.initial) + final + len(call.statics)
        room = Room(native, self.arrays.in_order, first, rows)
        _, _, flag = native.compiled.memories[call.until.flag]
        room.set(
            flag=flag.offset,
            waiting=pointer(self.waiting),
            sequences=len(self.order),
            room=rows if self.is_appended else 0,
            taken=pointer(self.taken),
            number=number,
        )
        return room

    def results(self) -> Results:
        """Runs a call whose sequences may end early, by a condition of the step, and returns its results:
        outputs only at the steps that were taken. While threads pause, full output buffers are replaced.
        Raises `InputError` if an index is outside its table.
        """
        self.native.begin(self.call, self.arrays)
        prepared = self.chain.prepared((self.call,), (self.arrays,), ending=self)
        (self.spaces,) = prepared.spaces
        most = most_steps(self.call)
        for room, space in zip(self.rooms, self.spaces, strict=True):
            room.set(most_steps=min(most, space.most_steps), most_rows=space.most_rows)
            if self.is_appended:
                room.get(space)
        (run,) = prepared.runs
        run.paused = self.make_room
        idle = idle_memories(self.native, self.call.positions, self.arrays)
        prepared.run(with_idle({}, prepared.shape.waves, [idle]))
        run.paused = None
        self.arrays.give_back()
        self.form.release()
        self.chain.give_back(prepared)
        final = list(self.arrays.final)
        if not self.is_appended:
            return Results(self.arrays.results.outputs, final)
        for room in self.rooms:
            room.keep()
        return Results(self.in_order([part for room in self.rooms for part in room.full]), final)

    def make_room(self) -> None:
        """Allocates new output buffers, while machine code pauses, for the threads whose buffer is full."""
        for room, space in zip(self.rooms, self.spaces, strict=True):
            if room.words[PLACE["is_full"]]:
                room.keep()
                room.get(space)

    def in_order(self, parts: Sequence[OutputRows]) -> list[Array]:
        """Sorts output rows from the order of computation: returns, for each output, an array of the steps
        that were taken, sequence by sequence; or of the last step of each sequence, if the call wants only
        these.

        parts: the output rows in the buffers of all threads.
        """
        call, taken, kinds = self.call, self.taken, self.native.kind.outputs
        offsets = offsets_of(taken)
        if call.last_only:
            outputs = [np.zeros((call.positions.rows, *rows.shape), rows.dtype) for rows in kinds]
        else:
            outputs = [rows.new(int(offsets[-1])) for rows in kinds]
        for part in parts:
            own = taken[part.sequences]
            if call.last_only:
                places, kept = part.sequences, part.steps == own - 1
            else:
                numbers = own - 1 - part.steps if self.native.plan.reverse else part.steps
                places, kept = offsets[part.sequences] + numbers, part.steps < own
            which = slice(None) if kept.all() else np.flatnonzero(kept)
            for whole, rows in zip(outputs, part.outputs, strict=True):
                put(whole, places[which], rows[which])
        return outputs


def put(whole: Array, places: Array, rows: Array) -> None:
    """Copies rows to the indices `places` of the array `whole`, each row as one element, for speed."""
    size = rows.itemsize * prod(rows.shape[1:])
    if size and len(rows):
        # `np.dtype((np.void, size))` calls Python within NumPy, which drops the exception of a signal's
        # handler that runs there.
        row = np.dtype(f"V{size}")
        target, source = (array.reshape(len(array), -1).view(row)[:, 0] for array in (whole, rows))
        target[places] = source
