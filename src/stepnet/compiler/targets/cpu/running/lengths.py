"""The tables of calls that are prepared for sequences of any lengths, and for any number up to a largest one.

    first call     workspaces with lanes for the sequences, and tables for their places
    later calls    the places of the sequences; machine code fills the tables, and runs the kernels

All that depends on lengths are the numbers in the tables, and the number of steps of the longest lane.
The number of lanes is that of the first call; lanes without a sequence have no steps. Threads that run
sequences of their own have tables of their own, for every n-th lane, as in other calls. Kernels whose steps
do not depend on one another have one lane, with all sequences in order.

The machine code also checks the places, whatever they are: it writes and reads only inside the tables and the
arrays of the call, or refuses to run.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import partial
from struct import Struct

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.base import LAYOUTS, Array, TableLayout
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.memory import pointer, view
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.across import WORD as ACROSS
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.targets.cpu.running.idle import IdleMemories
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
    *("rows", "total", "entries", "given"),
    *("layout", "most", "shortest", "longest"),
    *("starts", "lengths", "steps", "memory", "laid", "filled", "all", "lanes"),
    *("shares", "share_count", "ends", "end_count"),
)
"""The argument words of the function that fills the tables.

rows, total, entries, given: of a call, the number of sequences, that of the entries of its arrays, that of
    the entries of the table that says where its sequences lie (`Places`), and the pointer to this.
layout: the index in `LAYOUTS` of the way in which sequences lie.
most: the largest number of sequences. shortest, longest: the smallest and the largest length of one that is
    not empty.
starts, lengths, steps, memory, laid, filled, all: the pointers to the tables that it writes: the first entry
    of each sequence and, last, `total`; the length of each; the places of the steps behind the first one, if
    it depends on the call; memory of `PER_SEQUENCE` bytes for each sequence; `LAID`; the sequences that are
    not empty, in order; and `ALL`.
lanes: the largest number of lanes.
shares, share_count: the pointer to the shares of the lanes that threads have (`SHARE`), and their number.
ends, end_count: the pointer to the copies of numbers of steps (`END`), and their number.
"""
ALL = ("begin", "end", "steps")
"""The words of a lane that has all sequences with steps, in order: 0, their number, and their steps."""
UNFIT = -1
"""The result of the function if the places are none of a call that was prepared."""
SHARE = ("thread", "threads", "order", "first", "lane_steps")
"""The words of a thread's share of the lanes: its number and the number of threads, and the pointers to its
tables: the order of its sequences, the first one of each lane, and the steps of each.
"""
END = ("from", "to", "first", "most")
"""The words of a copy: the pointers to a number, and to the argument word that gets it, less `first`, but
neither less than 0 nor more than `most`. The number is that of the steps of the longest lane, or that of the
sequences, of which an operation across extents has a share that begins with the sequence `first`.
"""
LARGEST = 2**62
"""A bound that no number of steps reaches."""


class LengthTables:
    """Tables of the lengths and lanes of sequences, for calls whose lengths are arguments. Machine code fills
    them from the offsets that a call gives, and the words of workspaces point to them.
    """

    def __init__(self, most: int, processor: Processor, layout: TableLayout, limits: tuple[int, int]) -> None:
        """Allocates the tables of the lengths of up to `most` sequences, and of the lanes (slots that run one
        sequence after another) that they are in.

        processor: the processor. layout: how the sequences lie. limits: the smallest and the largest length
        that one may have if it is not empty.

        `write(rows, total, entries)` then writes the first three words of a call, ahead of its run.
        """
        self.most, self.layout, (shortest, longest) = most, layout, limits
        self.function = machine_code("running.lengths", processor).function("lengths", ctypes.c_int64)
        makes_steps = layout.name in ("time", "packed")
        sizes = {
            "words": len(WORDS),
            "starts": most + 1,
            "lengths": most,
            "steps": longest if makes_steps else 0,
            "memory": most * PER_SEQUENCE // 8,
            "laid": LAID_BYTES // 8,
            "filled": most,
            "all": len(ALL),
        }
        self.numbers = np.zeros(sum(sizes.values()), np.int64)
        begins = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        self.at = {name: pointer(self.numbers) + 8 * begin for name, begin in begins.items()}
        self.lanes, laid = 0, self.at["laid"]
        self.in_order = NUMBERS if longest <= len(NUMBERS) else np.arange(longest)
        self.pointers = {
            "starts": self.at["starts"],
            "lengths": self.at["lengths"],
            "order": self.at["memory"] + (PER_SEQUENCE - 8) * most,
            "first": laid + LAID["first"],
            "lane_steps": laid + LAID["lane_steps"],
            "step_offsets": self.at["steps"] if makes_steps else pointer(self.in_order),
        }
        self.words = self.numbers[None, : len(WORDS)]
        self.fixed = {"layout": [*LAYOUTS].index(layout.name), "most": most}
        self.fixed |= {"shortest": shortest, "longest": longest}
        self.write = partial(Struct("3q").pack_into, view(self.numbers), 0)  # rows, total and entries
        self.rows, self.total = (self.at["words"] + 8 * WORDS.index(name) for name in ("rows", "total"))

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

    def filling(
        self,
        kernels: Sequence[tuple[Sequence[Workspace], bool]],
        tasks: Sequence[AcrossTask],
        keeping: Sequence[IdleMemories],
        source: int,
    ) -> ParallelCalls:
        """Points the argument words of kernels (compiled parts) to these tables; returns the task that fills
        the tables, which a call runs ahead of its kernels.

        kernels: the workspaces (scratch memory and arguments) of each kernel, and whether one lane (slot that
            runs sequences) has all of them. tasks: the operations across extents, such as a sum over steps,
            that read sequences of these tables. keeping: the tasks that copy the memories of those of them
            that are empty. source: the index of the table that says where sequences lie among the arrays of a
            call.
        """
        ends, self.shares = list[tuple[int, ...]](), dict[tuple[int, int], Array]()
        for task in tasks:
            begin, size, word = pointer(task.arguments), 8 * task.arguments.shape[1], 8 * ACROSS["rows"]
            last = [*task.firsts[1:], LARGEST]
            ends += [
                (self.at["words"], begin + number * size + word, first, end - first)
                for number, (first, end) in enumerate(zip(task.firsts, last, strict=True))
            ]
        for task in keeping:
            task.point_lengths(self.at["lengths"])
            ends.append((self.at["words"], pointer(task.arguments), 0, LARGEST))
        for spaces, in_one in kernels:
            threads = len(spaces) // spaces[0].parts
            for place, space in enumerate(spaces):
                own = self.one_lane if in_one else self.own_pointers(threads, place % threads)
                pointers = self.pointers | own
                for name, address in pointers.items():
                    write_words(space, Struct("q").pack_into, 8 * WORD[name], (address,))
                steps = pointers["lane_steps"], 8 * WORD["steps"]
                ends += [(steps[0], word + steps[1], 0, LARGEST) for word in space.addresses]
        shares = [
            (thread, threads, *self.own_pointers(threads, thread).values()) for threads, thread in self.shares
        ]
        self.copied = np.array(shares, np.int64), np.array(ends, np.int64)
        tables = {
            name: self.at[name] for name in ("starts", "lengths", "steps", "memory", "laid", "filled", "all")
        }
        for name, table in zip(("share", "end"), self.copied, strict=True):
            tables |= {f"{name}s": pointer(table), f"{name}_count": len(table)}
        for name, number in (self.fixed | tables | {"lanes": self.lanes}).items():
            self.words[0, WORDS.index(name)] = number
        work = ParallelCalls(self.function, self.words)
        work.sources = [(WORDS.index("given"), source)]
        return work

    @property
    def one_lane(self) -> dict[str, int]:
        """The pointers to the tables of one lane (slot that runs sequences) that has all sequences with
        steps, in order, by the names of the argument words.
        """
        first = self.at["all"]
        return {"order": self.at["filled"], "first": first, "lane_steps": first + 8 * ALL.index("steps")}

    def own_pointers(self, threads: int, thread: int) -> dict[str, int]:
        """Returns the pointers to the tables of a thread's lanes (slots that run sequences), by the names of
        the argument words; none if one thread has all lanes. threads: the number of threads that divide the
        lanes. thread: the number of the thread.
        """
        if threads == 1:
            return {}
        sizes = {"order": self.most, "first": self.lanes + 1, "lane_steps": self.lanes}
        share = self.shares.setdefault((threads, thread), np.zeros(sum(sizes.values()), np.int64))
        begins = [0, *np.cumsum([*sizes.values()]).tolist()]
        return {name: pointer(share) + 8 * begin for name, begin in zip(sizes, begins, strict=False)}


def point_across(task: AcrossTask, tables: Mapping[str, LengthTables]) -> None:
    """Points the argument words of an operation across extents, such as a sum over steps, to tables, so that
    it runs with the lengths of each call. tables: the lengths and starts of the sequences, by the axis of
    their steps.
    """
    if task.across.source.extent == CONST:
        by_row = next(iter(tables.values())).rows
        total = tables[task.across.result.extent[-1]].total if task.grows else by_row
        task.arguments[:, ACROSS["lengths"]] = total
    else:
        read, made = (tables[extent[-1]].pointers for extent in task.across.extents)
        words = {"starts": read["starts"], "lengths": read["lengths"]}
        task.point_tables(words | {f"made_{name}": made[name] for name in words})
        task.arguments[:, ACROSS["steps"]] = read["step_offsets"]
