"""The tables of calls that are prepared for a number of sequences of any lengths.

    first call     workspaces with lanes for the sequences, and tables for their places
    later calls    the offsets of the sequences; machine code fills the tables, and runs the kernels

All that depends on lengths are the numbers in the tables, and the number of steps of the longest lane.
"""

import ctypes
from collections.abc import Sequence
from struct import Struct

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.across import WORD as ACROSS
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.targets.cpu.running.call_block import Turn, turn_of
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, write_words
from stepnet.compiler.targets.cpu.running.sequence_layout import NUMBERS
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls

LANE_BYTES = 8 * (LANES + 8)
LAID = {"lanes": 0, "steps": 8, "order": 16, "first": 64, "lane_steps": 64 + LANE_BYTES}
"""Offsets in bytes in the table `laid`: the number of lanes, the steps of the first one, the pointer to the
order of sequences, the start of each lane in that order, and the steps of each lane.
"""
LAID_BYTES = 64 + 2 * LANE_BYTES
PER_SEQUENCE = 16 + 8 + 8
"""The bytes of memory for each sequence: its length and number, its lane, and its place in the order."""
WORDS = ("given", "count", "offsets", "lengths", "memory", "laid", "steps", "steps_count")
"""The argument words of the function that fills the tables.

given, count: the pointer to the offsets of the sequences of a call, and the number of sequences.
offsets, lengths, memory, laid: the pointers to the tables that it writes: a copy of the offsets, the length
    of each sequence, memory of `PER_SEQUENCE` bytes for each, and `LAID`.
steps, steps_count: the pointer to the addresses of words that receive the steps of the longest lane, and
    their number.
"""


class LengthTables:
    """Tables of the lengths and lanes of sequences, for calls whose lengths are arguments. Machine code fills
    them from the offsets that a call gives, and the words of workspaces point to them.
    """

    longest = len(NUMBERS)

    def __init__(self, count: int, processor: Processor) -> None:
        """Allocates the tables of the lengths and lanes of `count` sequences. processor: the processor."""
        self.count = count
        self.function = machine_code("running.lengths", processor).function("lengths", ctypes.c_int64)
        sizes = {
            "offsets": count + 1,
            "lengths": count,
            "memory": count * PER_SEQUENCE // 8,
            "laid": LAID_BYTES // 8,
        }
        self.numbers = np.zeros(sum(sizes.values()), np.int64)
        begins = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        self.at = {name: pointer(self.numbers) + 8 * begin for name, begin in begins.items()}
        self.total = self.at["offsets"] + 8 * count
        laid = self.at["laid"]
        self.pointers = {
            "starts": self.at["offsets"],
            "lengths": self.at["lengths"],
            "order": self.at["memory"] + (PER_SEQUENCE - 8) * count,
            "first": laid + LAID["first"],
            "lane_steps": laid + LAID["lane_steps"],
            "step_offsets": pointer(NUMBERS),
        }

    def fit(self, prepared: PreparedChain, follow: Sequence[bool]) -> bool:
        """Tells whether prepared calls may run with other lengths: if each runs in one thread, and those
        whose lengths change have as many lanes (slots that run sequences) as these tables.

        follow: for each kernel, whether the lengths of its sequences change.
        """
        lanes = [sets for sets, follows in zip(prepared.shape.lanes, follow, strict=True) if follows]
        return prepared.is_in_turn and all(sets == (min(self.count, LANES),) for sets in lanes)

    def turn(self, spaces: Sequence[Workspace], across: Sequence[AcrossTask], source: int) -> Turn:
        """Points the argument words of kernels, and of repeats and reductions over steps, to these tables;
        returns the task that fills the tables, which a call runs ahead of its kernels.

        spaces: the workspaces of the kernels. across: the repeats and reductions. source: the index of the
            offsets of the sequences among the arrays of a call.
        """
        for space in spaces:
            for name, address in self.pointers.items():
                write_words(space, Struct("q").pack_into, 8 * WORD[name], (address,))
        for task in across:
            self.point_across(task)
        self.steps = np.array([space.addresses[0] + 8 * WORD["steps"] for space in spaces])
        tables = (self.at[name] for name in ("offsets", "lengths", "memory", "laid"))
        words = 0, self.count, *tables, pointer(self.steps), len(spaces)
        self.work = ParallelCalls(self.function, np.array([words]))
        self.work.sources = [(WORDS.index("given"), source)]
        return turn_of(self.work, 0)

    def point_across(self, task: AcrossTask) -> None:
        """Points the argument words of a repeat or reduction over steps to these tables, so that it runs with
        the lengths of each call.
        """
        if task.across.source.extent != CONST:
            for name, table in (("starts", "starts"), ("lengths", "lengths"), ("steps", "step_offsets")):
                task.arguments[0, ACROSS[name]] = self.pointers[table]
        elif task.grows:
            task.arguments[0, ACROSS["lengths"]] = self.total
