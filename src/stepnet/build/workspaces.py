"""The layout of plans' workspaces in the memory of a context; see `targets/cpu/running/workspace`.

    context   arena, its size, weights, own weights | part 0: words, now, next, ... | part 1: ...

It does not depend on a call: it is for the largest number of lanes, and blocks of steps that fit the cache.
"""

from dataclasses import dataclass

from stepnet.build.recipe import PlanKernel, Recipe
from stepnet.compiler.targets.cpu.compile.compiled import Layout
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.call_words import WORDS
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.running.workspace import block_rows, part_sizes, whole_lines

CONTEXT = {"arena": 0, "size": 8, "weights": 16, "own": 24}
"""Offsets of the first words of a context: memory for calls, its size, weights, weights to free."""


@dataclass(frozen=True)
class WorkspaceOffsets:
    """Offsets in a context (the memory of calls) of the memory that a plan's machine code uses. words: the
    offset of its argument words. offsets: the offset of each of its arrays, by name. rows: the most rows
    (steps of all sequences that run) of a block. end: the offset after the last array.
    """

    words: int
    offsets: dict[str, int]
    rows: int
    end: int

    @classmethod
    def of(cls, layout: Layout, start: int) -> "WorkspaceOffsets":
        """Assigns offsets in a context (the memory that calls work in), from `start` on, to the memory that a
        plan's machine code uses: its argument words, then its arrays, for the most lanes (sequences at a
        time) and for blocks of steps that fit the cache. layout: the sizes that the code needs.
        """
        rows = block_rows(layout)
        # A block has at least one step, for any number of lanes.
        sizes = part_sizes(layout.strides, LANES, max(rows, LANES), rows)
        words = 8 * (len(WORDS) + sum(map(len, layout.arguments.values())))
        offset, offsets = start + whole_lines(words), dict[str, int]()
        for name, size in sizes.items():
            offsets[name] = offset
            offset += size
        return cls(start, offsets, rows, offset)


@dataclass(frozen=True)
class Contexts:
    """The layout of a context (the memory of calls). workspaces: the memory of each compiled part, by index
    among the recipe's operations. bytes: the size of a context.
    """

    workspaces: dict[int, WorkspaceOffsets]
    bytes: int

    @classmethod
    def of(cls, recipe: Recipe) -> "Contexts":
        """Lays out a context (the memory of calls): the workspaces of all compiled parts, end to end."""
        workspaces, end = dict[int, WorkspaceOffsets](), LINE
        for number, step in enumerate(recipe.steps):
            if isinstance(step, PlanKernel):
                workspaces[number] = WorkspaceOffsets.of(step.layout, end)
                end = workspaces[number].end
        return cls(workspaces, end)
