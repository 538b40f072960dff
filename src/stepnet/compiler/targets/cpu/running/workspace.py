"""Workspaces: the scratch memory and the argument words of a set of lanes."""

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stepnet.compiler.native.call_words import ENDING, PROGRESS, WORDS
from stepnet.compiler.native.spaces import CLAIM_BYTES, LINE, SLACK, part_sizes, whole_lines
from stepnet.compiler.native.system import clock, rest_address
from stepnet.compiler.plan.load import most_block_steps
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.compile.compiled import CompiledPlan, Layout
from stepnet.compiler.targets.cpu.machine.memory import WORKSPACES, pointer, view

BLOCK_BYTES = 384 * 1024
LEAST_ROWS, BLOCK_ROWS = 64, 256
FAR_BYTES = 8 * 2**20
FAR_ROWS = 4
"""Parameters of at least FAR_BYTES are in the last-level cache at best. They are read once for FAR_ROWS rows
per byte of a vector: fewer rows of narrower vectors multiply as long meanwhile, and fit a near cache.
"""
# If sequences may end early, lanes take new ones between blocks. Then a block has at most ENDING_STEPS steps,
# and several steps only if it has at most ENDING_ROWS rows.
ENDING_STEPS, ENDING_ROWS = 8, 16
# The cost of a byte of words relative to a byte of parameters: the work on words, mostly elementary
# functions, takes longer than reading.
WORDS_COST = 4
WORD = {name: place for place, name in enumerate(WORDS)}
PAUSE = PROGRESS.index("pause")
START = view(np.array([name == "threads" for name in PROGRESS], np.int64))


def block_rows(layout: Layout) -> int:
    """Returns the largest number of rows (sequences x steps) that work outside the loop processes at a time,
    so that their values fit into a cache. layout: has the bytes of a row and the work outside the loop.
    """
    # Large parameters of the work outside the loop are read once per block. If blocks were small, they would
    # evict the parameters of the steps from the last cache.
    if layout.load.others.weights >= FAR_BYTES:
        rows = FAR_ROWS * layout.vector_bytes
    else:
        rows = BLOCK_BYTES // layout.strides["block"]
    return max(min(BLOCK_ROWS, rows), LEAST_ROWS)


def numbers_at(address: int, count: int) -> Array:
    """Returns the `count` 64-bit integers at an address as an array on the same memory."""
    return np.frombuffer(memoryview((ctypes.c_int64 * count).from_address(address)), np.int64)


class Done(NamedTuple):
    """Numbers of finished steps and sequences of a set of lanes (slots for sequences), and of all it has."""

    steps: int
    all_steps: int
    sequences: int
    all_sequences: int


class Workspace:
    """Scratch memory of a set of lanes (slots that run sequences), and arguments for each of its threads."""

    def __init__(
        self,
        compiled: CompiledPlan,
        constants: Array,
        lanes: int,
        together: int,
        reverse: bool,
        room: int,
        ends: bool,
        block: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Allocates scratch memory in one piece, and writes the arguments that all calls have in common. A
        block has as many steps as keep its rows in a cache and pauses short.

        compiled, constants: the machine code, and the memory with its constants.
        lanes: the number of lanes (slots that run sequences).
        together: the number of threads that share the steps.
        reverse: whether sequences run from their last step.
        room: the number of words (steps of inner sequences) that scratch memory holds.
        ends: whether sequences may end early.
        block: the largest number of steps of a block; 0 for as many as fit.
        part: the number of the part of the rows that is computed, and the number of parts.
        """
        strides = compiled.strides
        self.lanes, self.together, self.parts = lanes, together, part[1]
        words, kept_words = (
            sum(bytes_ for record, bytes_ in strides.items() if record.startswith(f"{kind} "))
            for kind in ("words", "kept")
        )
        in_words = sum(each.field.bytes for each in compiled.inner) + words + kept_words
        at_words = WORDS_COST * lanes * in_words + sum(
            work.steps.weights for work in compiled.load.inner_steps
        )
        slowest = most_block_steps(compiled.load.loop.weights + room * at_words, lanes)
        rows = block_rows(compiled)
        if ends:
            self.most_rows = min(rows, ENDING_ROWS)
            block_steps = max(1, min(slowest, ENDING_STEPS))
            rows = max(lanes, self.most_rows)
        else:
            block_steps = max(1, min(rows // lanes, slowest, block or rows))
            rows = self.most_rows = block_steps * lanes
        self.most_steps = block_steps
        sizes = part_sizes(strides, lanes, rows, block_steps)
        slots = lanes + SLACK
        sizes |= {
            "words": whole_lines(together * room * words),
            "kept_words": whole_lines(lanes * room * kept_words),
            "claims": (together + 1) * CLAIM_BYTES,
        }
        for name in ("now", "next", "lane"):
            sizes[f"inner_{name}"] = whole_lines(slots * strides.get(f"inner {name}", 0))
        begins = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1], strict=True))
        self.memory = WORKSPACES.take(sum(sizes.values()))
        self.status, self.progress = (
            self.memory[begins[name] : begins[name] + LINE].view(np.int64) for name in ("status", "progress")
        )
        self.words = np.zeros((together, compiled.argument_count), np.int64)
        for name, begin in begins.items():
            self.words[:, WORD[name]] = begin + pointer(self.memory)
        self.words[:, WORD["thread"]] = range(together)
        fixed = {"rest": rest_address(), "clock": clock().address, "constants": pointer(constants)}
        fixed |= {"part": part[0], "more_parts": part[1] - 1}
        fixed |= {"lanes": lanes, "block_steps": block_steps, "reverse": reverse, "room": room}
        for name, value in fixed.items():
            self.words[:, WORD[name]] = value
        self.addresses = [pointer(row) for row in self.words]
        self.rows = [view(row) for row in self.words]
        self._begun = view(self.progress)[: len(PROGRESS)]

    def follow(self, ahead: "Workspace") -> None:
        """Makes the kernel (compiled part) that uses this workspace (scratch memory and arguments) wait,
        before each block of steps, for the outputs of another one, which it reads while both run, as the next
        layer of a stack. ahead: the workspace of the other one.
        """
        self.words[:, WORD["ahead"]] = pointer(ahead.progress)

    def go_on(self) -> None:
        """Clears the word that pauses the machine code, which must not be running, so that it goes on."""
        self._begun[PAUSE] = 0

    def begin(self) -> None:
        """Resets the call's progress to its first step, and the number of threads to 1 until others join."""
        self._begun[:] = START

    def done(self) -> Done:
        """Counts the finished steps and sequences of the lanes (slots that run sequences) of this workspace,
        for progress reports, while a call pauses.
        """
        if until := self.rows[0][WORD["until"]]:
            return self._done_of_waiting(
                dict(zip(ENDING, numbers_at(until, len(ENDING)).tolist(), strict=True))
            )
        lanes, begin = self.rows[0][WORD["lanes"]], int(self.progress[PROGRESS.index("begin")])
        lane_steps, first = self._table("lane_steps", lanes), self._table("first", lanes + 1)
        order = self._table("order", int(first[-1]))
        lengths = self._table("lengths", int(order.max(initial=-1)) + 1)[order]
        ends = np.cumsum(lengths)
        # The offset of each lane's first step is subtracted from the ends of its sequences.
        filled = np.flatnonzero(np.diff(first))
        ends -= np.repeat((ends - lengths)[first[filled]], np.diff(first)[filled])
        sequences = int(np.count_nonzero(ends <= begin))
        return Done(int(np.minimum(lane_steps, begin).sum()), int(lane_steps.sum()), sequences, len(order))

    def _done_of_waiting(self, ending: Mapping[str, int]) -> Done:
        """Counts the finished steps and sequences of a call whose sequences may end early. Steps after an
        early end count as finished.

        The first set of lanes (slots that run sequences) counts all sequences that were taken from the queue.
        Each set subtracts what its own lanes still have to do, so the sum over all sets is right.

        ending: the arguments `ENDING` of this set, by name.
        """
        lanes = ending["at_work"]
        # A sequence counts as running until its lane is free, so it has at least one step left.
        left = int(np.maximum(self._table("left", lanes), 1).sum())
        if ending["number"]:
            return Done(-left, 0, -lanes, 0)
        order = self._table("order", ending["sequences"])
        lengths = self._table("lengths", int(order.max(initial=-1)) + 1)[order]
        taken = min(int(numbers_at(ending["waiting"], 1)[0]), len(order))
        all_steps = int(lengths.sum())
        return Done(int(lengths[:taken].sum()) - left, all_steps, taken - lanes, len(order))

    def _table(self, name: str, count: int) -> Array:
        """Returns the first `count` integers of a table. name: of the argument that points to the table."""
        return numbers_at(self.rows[0][WORD[name]], count)
