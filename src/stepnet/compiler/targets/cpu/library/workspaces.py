"""The layout of plans' workspaces in the memory of a context; see `targets/cpu/running/workspace`.

    context   arena, its size, weights, own weights | part 0: words, now, next, ... | part 1: ... | call block

It does not depend on a call: it is for the largest number of lanes, and blocks of steps that fit the cache.
"""

from stepnet.compiler.native.spaces import part_sizes, whole_lines
from stepnet.compiler.targets.cpu.compile.compiled import Layout
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.running.workspace import block_rows
from stepnet.compiler.values.records import dataclass

CONTEXT = {"arena": 0, "size": 8, "weights": 16, "own": 24}
"""Offsets of the first words of a context: memory for calls, its size, weights, weights to free."""


class Contexts:
    """The layout of a context (the memory of calls), to which memory is added. bytes: its size so far."""

    def __init__(self) -> None:
        self.bytes = whole_lines(8 * len(CONTEXT))

    def take(self, size: int) -> int:
        """Adds memory of a size to the layout; returns its offset in a context (the memory of calls)."""
        begin, self.bytes = self.bytes, self.bytes + whole_lines(size)
        return begin


@dataclass(frozen=True)
class WorkspaceOffsets:
    """Offsets in a context (the memory of calls) of the memory that a plan's machine code uses. words: the
    offset of its argument words, behind which a further one has the number of sequences. offsets: the offset
    of each of its arrays, by name. rows: the most rows (steps of all sequences that run) of a block.
    """

    words: int
    offsets: dict[str, int]
    rows: int

    @classmethod
    def of(cls, layout: Layout, contexts: Contexts) -> "WorkspaceOffsets":
        """Adds the memory that the machine code of a compiled part uses to a context (the memory that calls
        work in): its argument words, then its arrays, for the most lanes (sequences at a time) and for blocks
        of steps that fit the cache. layout: the sizes that the code needs.
        """
        rows = block_rows(layout)
        # A block has at least one step, for any number of lanes.
        sizes = part_sizes(layout.strides, LANES, max(rows, LANES), rows)
        words = contexts.take(8 * (layout.argument_count + 1))
        return cls(words, {name: contexts.take(size) for name, size in sizes.items()}, rows)
