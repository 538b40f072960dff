"""The tables of calls that are prepared for a number of sequences of any lengths.

    first call     workspaces with lanes for the sequences, and tables for their places
    later calls    the offsets of the sequences; machine code fills the tables, and runs the kernels

All that depends on lengths are the numbers in the tables, and the number of steps of the longest lane.
The number of lanes is that of the first call. Threads that run sequences of their own have tables of their
own, for every n-th lane, as in other calls. Kernels whose steps do not depend on one another have one lane,
with all sequences in order.
"""

import ctypes
from collections.abc import Mapping, Sequence
from struct import Struct

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.across import WORD as ACROSS
from stepnet.compiler.targets.cpu.running.across import AcrossTask
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
WORDS = (
    *("given", "count", "offsets", "lengths", "memory", "laid", "lanes"),
    *("shares", "share_count", "ends", "end_count"),
)
"""The argument words of the function that fills the tables.

given, count: the pointer to the offsets of the sequences of a call, and the number of sequences.
offsets, lengths, memory, laid: the pointers to the tables that it writes: a copy of the offsets, the length
    of each sequence, memory of `PER_SEQUENCE` bytes for each, and `LAID`.
lanes: the largest number of lanes.
shares, share_count: the pointer to the shares of the lanes that threads have (`SHARE`), and their number.
ends, end_count: the pointer to the copies of numbers of steps (`END`), and their number.
"""
SHARE = ("thread", "threads", "order", "first", "lane_steps")
"""The words of a thread's share of the lanes: its number and the number of threads, and the pointers to its
tables: the order of its sequences, the first one of each lane, and the steps of each.
"""
END = ("from", "to")
"""The words of a copy: the pointers to the steps of the longest lane, and to an argument word of a kernel."""


class LengthTables:
    """Tables of the lengths and lanes of sequences, for calls whose lengths are arguments. Machine code fills
    them from the offsets that a call gives, and the words of workspaces point to them.
    """

    def __init__(self, count: int, processor: Processor, longest: int = len(NUMBERS)) -> None:
        """Allocates the tables of the lengths of `count` sequences, and of the lanes (slots that run one
        sequence after another) that they are in.

        processor: the processor. longest: the largest length that a sequence may have.
        """
        self.count = count
        self.steps_of_sequence = NUMBERS if longest <= len(NUMBERS) else np.arange(longest)
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
        self.whole, self.lanes = np.array([0, count]), 0
        laid = self.at["laid"]
        self.pointers = {
            "starts": self.at["offsets"],
            "lengths": self.at["lengths"],
            "order": self.at["memory"] + (PER_SEQUENCE - 8) * count,
            "first": laid + LAID["first"],
            "lane_steps": laid + LAID["lane_steps"],
            "step_offsets": pointer(self.steps_of_sequence),
        }

    def fit(self, prepared: PreparedChain, follow: Sequence[str]) -> bool:
        """Tells whether prepared calls may run with other lengths: if all kernels (compiled parts) whose
        lengths change have the same number of lanes (slots that run sequences), which it notes. Of kernels
        whose steps do not depend on one another, one lane has all sequences.

        follow: for each kernel, the axis of its steps if the lengths of its sequences change, else "".
        """
        shape = prepared.shape
        kernels = zip(shape.lanes, shape.parts, prepared.in_one_lane, follow, strict=True)
        shares = [
            sets[: len(sets) // parts] for sets, parts, alone, follows in kernels if follows and not alone
        ]
        counts = {sum(sets) for sets in shares}
        self.lanes = max(counts, default=1)
        return len(counts) <= 1 and self.lanes <= LANES

    def filling(self, kernels: Sequence[tuple[Sequence[Workspace], bool]], source: int) -> ParallelCalls:
        """Points the argument words of kernels (compiled parts) to these tables; returns the task that fills
        the tables, which a call runs ahead of its kernels.

        kernels: the workspaces (scratch memory and arguments) of each kernel, and whether one lane (slot that
            runs sequences) has all of them. source: the index of the offsets (where sequences begin and end)
            among the arrays of a call.
        """
        ends, self.shares = list[tuple[int, int]](), dict[tuple[int, int], Array]()
        for spaces, in_one in kernels:
            threads = len(spaces) // spaces[0].parts
            for place, space in enumerate(spaces):
                own = self.one_lane if in_one else self.own_pointers(threads, place % threads)
                pointers = self.pointers | own
                for name, address in pointers.items():
                    write_words(space, Struct("q").pack_into, 8 * WORD[name], (address,))
                ends += [(pointers["lane_steps"], word + 8 * WORD["steps"]) for word in space.addresses]
        shares = [
            (thread, threads, *self.own_pointers(threads, thread).values()) for threads, thread in self.shares
        ]
        self.copied = np.array(shares, np.int64), np.array(ends, np.int64)
        tables = (self.at[name] for name in ("offsets", "lengths", "memory", "laid"))
        counted = (number for table in self.copied for number in (pointer(table), len(table)))
        words = np.array([(0, self.count, *tables, self.lanes, *counted)])
        work = ParallelCalls(self.function, words)
        work.sources = [(WORDS.index("given"), source)]
        return work

    @property
    def one_lane(self) -> dict[str, int]:
        """The pointers to the tables of one lane (slot that runs sequences) that has all sequences in order,
        by the names of the argument words.
        """
        tables = {"order": pointer(NUMBERS), "first": pointer(self.whole)}
        return {**tables, "lane_steps": self.total}

    def own_pointers(self, threads: int, thread: int) -> dict[str, int]:
        """Returns the pointers to the tables of a thread's lanes (slots that run sequences), by the names of
        the argument words; none if one thread has all lanes. threads: the number of threads that divide the
        lanes. thread: the number of the thread.
        """
        if threads == 1:
            return {}
        sizes = {"order": self.count, "first": self.lanes + 1, "lane_steps": self.lanes}
        share = self.shares.setdefault((threads, thread), np.zeros(sum(sizes.values()), np.int64))
        begins = [0, *np.cumsum([*sizes.values()]).tolist()]
        return {name: pointer(share) + 8 * begin for name, begin in zip(sizes, begins, strict=False)}


def point_across(task: AcrossTask, tables: Mapping[str, LengthTables]) -> None:
    """Points the argument words of an operation across extents, such as a sum over steps, to tables, so that
    it runs with the lengths of each call. tables: the lengths and starts of the sequences, by the axis of
    their steps.
    """
    read, made = (tables[extent[-1]].pointers for extent in task.across.extents)
    if task.across.source.extent != CONST:
        words = {"starts": read["starts"], "lengths": read["lengths"]}
        task.point_tables(words | {f"made_{name}": made[name] for name in words})
        task.arguments[:, ACROSS["steps"]] = read["step_offsets"]
    elif task.grows:
        task.arguments[:, ACROSS["lengths"]] = tables[task.across.result.extent[-1]].total
