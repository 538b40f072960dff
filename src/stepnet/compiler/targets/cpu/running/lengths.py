"""The tables of calls that are prepared for a number of sequences of any lengths.

    first call     workspaces with a lane for each sequence, and tables for their places
    later calls    the tables, new arrays for the results, their addresses; one run

All that depends on lengths are some numbers in the tables, and the number of steps of the longest sequence.
So few sequences, whose steps one thread runs, need no layout: their places are written with one call.
"""

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cpu.machine.memory import pointer, view
from stepnet.compiler.targets.cpu.running.across import WORD as ACROSS
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, write_words
from stepnet.compiler.targets.cpu.running.sequence_layout import NUMBERS
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace


class LengthTables:
    """Tables of the places of a number of sequences, which lie end to end, each in a lane of its own.

    The words of workspaces point to them; a call writes their contents.
    """

    longest = len(NUMBERS)

    def __init__(self, count: int) -> None:
        """Allocates the tables of `count` sequences."""
        self.count = count
        sizes = {"order": count, "lane_steps": count + 1, "starts": count, "lengths": count, "total": 1}
        self.numbers, self.first = np.zeros(sum(sizes.values()), np.int64), np.arange(count + 1)
        ends = np.cumsum(list(sizes.values())).tolist()
        begins = dict(zip(sizes, [0, *ends], strict=False))
        self.pointers = {name: pointer(self.numbers[begin:]) for name, begin in begins.items()}
        self.total = self.pointers.pop("total")
        self.pointers |= {"first": pointer(self.first), "step_offsets": pointer(NUMBERS)}
        self.pack, self.view = Struct(f"{len(self.numbers)}q").pack_into, view(self.numbers)

    def fit(self, prepared: PreparedChain, follow: Sequence[bool]) -> bool:
        """Tells whether prepared calls run one after the other in one thread, and those that follow the
        lengths have a lane for each sequence.
        """
        lanes = [own for own, follows in zip(prepared.shape.lanes, follow, strict=True) if follows]
        return prepared.is_in_turn and all(own == (self.count,) for own in lanes)

    def point(self, space: Workspace) -> None:
        """Points the argument words of a workspace to the tables."""
        for name, address in self.pointers.items():
            write_words(space, Struct("q").pack_into, 8 * WORD[name], (address,))

    def point_across(self, task: AcrossTask) -> None:
        """Points the argument words of an operation across extents to the tables."""
        if task.across.source.extent != CONST:
            task.words[ACROSS["starts"]], task.words[ACROSS["lengths"]], task.words[ACROSS["steps"]] = (
                self.pointers[name] for name in ("starts", "lengths", "step_offsets")
            )
        elif task.grows:
            task.words[ACROSS["lengths"]] = self.total

    def write(self, offsets: Sequence[int]) -> int:
        """Writes the places of sequences at these offsets; returns the length of the longest one.

        Lanes are in the order of their lengths, the longest first, as the machine code requires.
        """
        lengths = [end - begin for begin, end in pairwise(offsets)]
        order = sorted(range(self.count), key=lengths.__getitem__, reverse=True)
        steps = [lengths[place] for place in order]
        self.pack(self.view, 0, *order, *steps, 0, *offsets[:-1], *lengths, offsets[-1])
        return steps[0]
