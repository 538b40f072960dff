"""The arrays of a block, which all its runs share, and the tasks that copy rows between them.

given, results, constants     arrays of a run, by their index        copied to and from the block's own
key                           an array of the block                  steps of a loop share it
"""

from collections.abc import Hashable
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.memory import aligned, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.running.call_block import Turn
from stepnet.compiler.targets.cpu.running.moves import move_code, pieces_of
from stepnet.compiler.targets.schedule_kernel import BoundParts
from stepnet.compiler.values.records import dataclass

Place = Array | int
"""An array that all runs share, or the index of one among those of a run."""


@dataclass
class BlockArrays:
    """Arrays of a block, and its tasks.

    processor: the processor that the tasks are for.
    first_constant: the index of the first constant among the arrays of a run.
    turns: the tasks so far.
    steps: the number of rows whose steps have run, for each step of the outermost loops so far.
    constants: the constants that the tasks read besides the arrays of a call, each by its schedule and node.
    bytes: the memory of all arrays and tables.
    memory: the memory of arrays that steps share, by key.
    held: objects whose memory the tasks point to.
    """

    processor: Processor
    first_constant: int
    turns: list[Turn] = field(default_factory=list[Turn])
    steps: list[int] = field(default_factory=list[int])
    constants: list[tuple[BoundParts, int]] = field(default_factory=list[tuple[BoundParts, int]])
    bytes: int = 0
    memory: dict[Hashable, Array] = field(default_factory=dict[Hashable, Array])
    held: list[object] = field(default_factory=list[object])

    @property
    def wave(self) -> int:
        """The number of steps of outermost loops so far, by which a run reports its progress."""
        return len(self.steps)

    def array(self, key: Hashable, shape: tuple[int, ...], dtype: Any) -> Array:
        """Returns an array of intermediate values of a block of tasks, which all runs of the block share.
        Arrays of one key, which later steps need no more, are in the same memory.
        """
        size = prod(shape) * np.dtype(dtype).itemsize
        memory = self.memory.get(key)
        if memory is None or memory.nbytes < size:
            memory = self.memory[key] = aligned(size + LINE)
            self.held.append(memory)
            self.bytes += memory.nbytes
        return memory[:size].view(dtype).reshape(shape)

    def rows(self, key: Hashable, count: int, type_: Any) -> Array:
        """Returns an array of values of a type that all runs share, with one for each of `count` rows."""
        return self.array(key, (count, *type_.shape), type_.dtype)

    def move(self, source: Place, result: Place, pieces: Array) -> None:
        """Adds a task that copies pieces of one array to another to the block of tasks (which one call of
        machine code runs); nothing if there are no pieces. source, result: the arrays; a number stands for an
        array of the call at that position. pieces: the table of what to copy (`pieces_of`).
        """
        if not len(pieces):
            return
        words, copies = np.array([0, 0, len(pieces), pointer(pieces)]), list[tuple[int, int]]()
        for word, place in enumerate((source, result)):
            if isinstance(place, int):
                copies.append((place, pointer(words) + 8 * word))
            else:
                words[word] = pointer(place)
        self.held += [words, pieces, source, result]
        self.bytes += pieces.nbytes
        self.turns.append(Turn(move_code(self.processor), pointer(words), copies, self.wave))

    def copy(self, source: Place, result: Place, size: int) -> None:
        """Adds a task that copies the `size` bytes of an array."""
        self.move(source, result, pieces_of(np.zeros(1, np.int64), np.zeros(1, np.int64), size))

    def clear(self, result: Array, rows: Array | None = None) -> None:
        """Adds a task that fills an array with zeros, or its rows at some indices, to the block of tasks."""
        size = result.nbytes if rows is None else result.nbytes // max(1, len(result))
        rows = np.zeros(1, np.int64) if rows is None else rows
        self.move(np.zeros(size, np.uint8), result, pieces_of(np.zeros_like(rows), rows, size))

    def taken(self, key: Hashable, source: Array, indices: Array) -> Array:
        """Adds a task, to the block of tasks, that copies the rows of an array at some indices; returns the
        array of the copies. key: names this array; arrays of one key share memory.
        """
        result = self.array(key, (len(indices), *source.shape[1:]), source.dtype)
        size = source.itemsize * prod(source.shape[1:])
        self.move(source, result, pieces_of(indices, np.arange(len(indices)), size))
        return result

    def put(self, source: Array, result: Array, indices: Array) -> None:
        """Adds a task that copies rows to those of another array at some indices."""
        size = result.itemsize * prod(result.shape[1:])
        self.move(source, result, pieces_of(np.arange(len(indices)), indices, size))

    def constant(self, bound: BoundParts, number: int) -> Array:
        """Adds a task, to the block of tasks, that copies a constant of a schedule (a net divided into
        parts), which may have been replaced since the last run; returns the copy. bound: the schedule with
        its parameters. number: the node of its net.
        """
        type_, key = bound.net.type_of(number), ("constant", id(bound), number)
        is_new = key not in self.memory
        result = self.array(key, type_.shape, type_.dtype)
        if is_new:
            self.constants.append((bound, number))
            self.copy(self.first_constant + len(self.constants) - 1, result, result.nbytes)
        return result
