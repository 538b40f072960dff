"""The tables of calls that are prepared for a number of sequences of any lengths.

    first call     workspaces with lanes for the sequences, and tables for their places
    later calls    the offsets of the sequences; machine code fills the tables, and runs the kernels

All that depends on lengths are the numbers in the tables, and the number of steps of the longest lane.
Threads that run sequences of their own have tables of their own, for every n-th lane, as in other calls.
"""

import ctypes
from collections.abc import Mapping, Sequence
from struct import Struct

import numpy as np

from stepnet.compiler.net.types import CONST
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
    *("given", "count", "offsets", "lengths", "memory", "laid"),
    *("shares", "share_count", "ends", "end_count"),
)
"""The argument words of the function that fills the tables.

given, count: the pointer to the offsets of the sequences of a call, and the number of sequences.
offsets, lengths, memory, laid: the pointers to the tables that it writes: a copy of the offsets, the length
    of each sequence, memory of `PER_SEQUENCE` bytes for each, and `LAID`.
shares, share_count: the pointer to the divisions of the lanes among threads (`SHARE`), and their number.
ends, end_count: the pointer to the copies of numbers of steps (`END`), and their number.
"""
SHARE = ("threads", "orders", "steps")
"""The words of a division of the lanes, each of which has one sequence: the number of threads, and the
pointers to the order of the sequences and to the steps of the lanes, with a row of `count` entries for each
thread.
"""
END = ("from", "to")
"""The words of a copy: the pointers to the steps of the longest lane, and to an argument word of a kernel."""


class LengthTables:
    """Tables of the lengths and lanes of sequences, for calls whose lengths are arguments. Machine code fills
    them from the offsets that a call gives, and the words of workspaces point to them.
    """

    def __init__(self, count: int, processor: Processor, longest: int = len(NUMBERS)) -> None:
        """Allocates the tables of the lengths and lanes of `count` sequences.

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
        """Tells whether prepared calls may run with other lengths: if those whose lengths change have as many
        lanes (slots that run sequences) as these tables.

        follow: for each kernel, the axis of its steps if the lengths of its sequences change, else "".
        """
        shape = prepared.shape
        kernels = zip(shape.lanes, shape.parts, follow, strict=True)
        followed = [(sets, parts) for sets, parts, follows in kernels if follows]
        return all(sets == self.lanes_of(len(sets) // parts) * parts for sets, parts in followed)

    def lanes_of(self, count: int) -> tuple[int, ...]:
        """Returns the numbers of lanes (slots that run sequences) of each of `count` threads; none if several
        threads would have lanes with several sequences.
        """
        if count > 1 and self.count > LANES:
            return ()
        lanes = range(min(self.count, LANES))
        return tuple(len(lanes[place::count]) for place in range(count))

    def filling(self, kernels: Sequence[Sequence[Workspace]], source: int) -> ParallelCalls:
        """Points the argument words of kernels to these tables; returns the task that fills the tables, which
        a call runs ahead of its kernels.

        kernels: the workspaces of each kernel. source: the index of the offsets of the sequences among the
            arrays of a call.
        """
        counts = [len(spaces) // spaces[0].parts for spaces in kernels]
        self.shares = {count: np.zeros((2, count, self.count), np.int64) for count in counts}
        ends = list[tuple[int, int]]()
        for spaces, threads in zip(kernels, counts, strict=True):
            for place, space in enumerate(spaces):
                pointers = self.pointers | self.own_pointers(threads, place)
                for name, address in pointers.items():
                    write_words(space, Struct("q").pack_into, 8 * WORD[name], (address,))
                ends += [(pointers["lane_steps"], word + 8 * WORD["steps"]) for word in space.addresses]
        shares = [(count, *map(pointer, share)) for count, share in self.shares.items() if count > 1]
        self.copied = np.array(shares, np.int64), np.array(ends, np.int64)
        tables = (self.at[name] for name in ("offsets", "lengths", "memory", "laid"))
        counted = (number for table in self.copied for number in (pointer(table), len(table)))
        work = ParallelCalls(self.function, np.array([(0, self.count, *tables, *counted)]))
        work.sources = [(WORDS.index("given"), source)]
        return work

    def own_pointers(self, count: int, place: int) -> dict[str, int]:
        """Returns the pointers to the tables of a thread's lanes, by argument word; none if one thread has
        all lanes. count: the number of threads that divide the lanes. place: the number of the thread.
        """
        if count == 1:
            return {}
        orders, steps = self.shares[count]
        tables = {"order": orders[place], "first": NUMBERS, "lane_steps": steps[place]}
        return {name: pointer(table) for name, table in tables.items()}


def point_across(task: AcrossTask, tables: Mapping[str, LengthTables]) -> None:
    """Points the argument words of an operation across extents to tables, so that it runs with the lengths of
    each call. tables: those of the sequences, by the axis of their steps.
    """
    read, made = (tables[extent[-1]].pointers for extent in task.across.extents)
    if task.across.source.extent != CONST:
        words = {"starts": read["starts"], "lengths": read["lengths"]}
        task.point_tables(words | {f"made_{name}": made[name] for name in words})
        task.arguments[:, ACROSS["steps"]] = read["step_offsets"]
    elif task.grows:
        task.arguments[:, ACROSS["lengths"]] = tables[task.across.result.extent[-1]].total
