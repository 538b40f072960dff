"""Empty sequences: machine code copies their initial memories to their final ones, as no step writes these.

    words     rows | lengths | count | source, result of each memory | stride, bytes of each memory
    task      for each row without steps: each source to its result, zeros if there is none

It runs behind the steps of its kernel: by then an initial memory that an earlier part computes is known.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.form import CallArrays
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.ragged.positions import Positions

WORDS = ("rows", "lengths", "count")
"""The first argument words: the number of sequences, the pointer to the table of their lengths, and the
number of memories. The words of `PAIR` follow for each memory, and then those of `SIZES`.
"""
PAIR = ("source", "result")
"""The pointers to the initial memories, 0 for zeros, and to the final ones."""
SIZES = ("stride", "bytes")
"""The bytes from row to row of the initial memories, and those of a memory."""


class IdleMemories(ParallelCalls):
    """The memories of a kernel that sequences without steps keep, with its argument words."""

    first_array = len(WORDS)

    def __init__(self, native: Native, positions: Positions) -> None:
        """Writes the argument words, but for the pointers of the memories.

        native: the kernel (compiled part of a net). positions: where its sequences lie.
        """
        self.native, self.layout = native, SequenceLayout.of(positions)
        begins = self.begins = [begin for begin, word, _ in native.compiled.memories if word >= 0]
        record = native.compiled.strides["sequence"] if native.by_sequence else 0
        sizes = [(begin.bytes if begin.field is None else record, begin.bytes) for begin in begins]
        lengths = self.layout.places[1]
        pointers = [0] * (len(PAIR) * len(begins))
        row = positions.rows, lengths, len(begins), *pointers, *(size for pair in sizes for size in pair)
        function = machine_code("running.idle", native.processor).function("idle", ctypes.c_int64)
        super().__init__(function, np.array([row], np.int64))

    @classmethod
    def of(cls, native: Native, positions: Positions, arrays: CallArrays) -> "IdleMemories":
        """Makes the task for a call with these arrays. native: the kernel (compiled part of a net).
        positions: where the sequences of the call lie.
        """
        made = cls(native, positions)
        addresses = [*map(pointer, made.pairs(arrays.in_order, arrays.final))]
        for place, begin in enumerate(made.begins):
            if begin.field is not None:
                addresses[len(PAIR) * place] = pointer(arrays.record) + begin.field.offset
        made.point(*addresses)
        return made

    def point_lengths(self, lengths: int) -> None:
        """Writes the address of another table of the lengths of sequences, whose number a call writes."""
        self.arguments[0, WORDS.index("lengths")] = lengths

    def pairs(self, in_order: Sequence[Any], final: Sequence[Any]) -> list[Any]:
        """Returns what the argument words of the memories point to, in their order: for each memory its
        initial and its final array, or the keys of these. None for an initial memory of zeros.

        in_order: all arrays of the kernel, or their keys, in the order of its argument words. final: those of
        them that are final memories.
        """
        by_word = dict(zip(self.native.array_words, in_order, strict=True))
        sources = [by_word.get(begin.argument) for begin in self.begins]
        return [each for pair in zip(sources, final, strict=True) for each in pair]
