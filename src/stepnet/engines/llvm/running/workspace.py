"""The memory that each set of lanes works in."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepnet.engines.base import Array
from stepnet.engines.llvm.compile.compiled import Compiled, Layout
from stepnet.engines.llvm.machine.memory import POOL, pointer, view
from stepnet.engines.llvm.machine.records import LINE
from stepnet.engines.llvm.machine.system import clock, rest_address
from stepnet.engines.llvm.machine.words import ENDING, LANE_TABLES, PROGRESS, ROW_TABLES, STEP_TABLES, WORDS
from stepnet.engines.llvm.products.tiles import FAR_BYTES

SLACK = 16
BLOCK_BYTES = 384 * 1024
BLOCK_ROWS = 256
# Where sequences may end early, lanes take others between blocks. These have so many steps at most, and
# several steps only where they have no more rows than this.
ENDING_STEPS, ENDING_ROWS = 8, 16
# A block, between whose ends it does not pause, reads no more than so many bytes of parameters.
PAUSE_BYTES = 600 * 2**20
# What is computed of words takes longer than parameters take to be read: functions, most of all.
WORDS_COST = 4
WORD = {name: place for place, name in enumerate(WORDS)}
PAUSE = PROGRESS.index("pause")
START = view(np.array([name == "threads" for name in PROGRESS], np.int64))


def block_rows(layout: Layout) -> int:
    """The rows of a block of steps, one for each lane and step, if it has several steps."""
    # If so many were read for each few rows, they would leave those of the steps no room in the last cache.
    if layout.load.others.weights >= FAR_BYTES:
        return BLOCK_ROWS
    return max(min(BLOCK_ROWS, BLOCK_BYTES // layout.strides["block"]), 32)


def part_sizes(strides: Mapping[str, int], lanes: int, rows: int, steps: int) -> dict[str, int]:
    """The bytes of the parts of a workspace, in whole lines, by the word that points to each.

    strides: of the records. lanes: the most there are. rows, steps: the most that a block has.
    """
    slots, rows = lanes + SLACK, rows + SLACK
    sizes = {
        "now": slots * strides["now"],
        "next": slots * strides["now"],
        "lane": slots * strides["lane"],
        "block": rows * strides["block"],
        "nowhere": strides["nowhere"],
    }
    sizes |= dict.fromkeys(LANE_TABLES, 8 * slots)
    sizes |= dict.fromkeys(ROW_TABLES, 8 * rows)
    sizes |= dict.fromkeys(STEP_TABLES, 8 * (steps + 1))  # the step behind the last is looked at
    sizes |= dict.fromkeys(("barrier", "status", "progress"), LINE)
    return {name: whole_lines(size) for name, size in sizes.items()}


def whole_lines(size: int) -> int:
    """Bytes, rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


def numbers_at(address: int, count: int) -> Array:
    """So many 64-bit integers."""
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


class Done(NamedTuple):
    """How many steps and sequences of a set of lanes are done, of how many."""

    steps: int
    all_steps: int
    sequences: int
    all_sequences: int


class Workspace:
    """The memory that one set of lanes works in, and a row of words for each thread that works there.

    block: how many steps a block has at most; 0 for as many as fit.
    """

    def __init__(
        self,
        compiled: Compiled,
        constants: Array,
        lanes: int,
        together: int,
        reverse: bool,
        room: int,
        ends: bool,
        block: int = 0,
    ) -> None:
        strides = compiled.strides
        self.lanes, self.together = lanes, together
        words, kept_words = (
            sum(bytes_ for record, bytes_ in strides.items() if record.startswith(f"{kind} "))
            for kind in ("words", "kept")
        )
        in_words = sum(each.field.bytes for each in compiled.inner) + words + kept_words
        at_words = WORDS_COST * lanes * in_words + sum(work.steps.weights for work in compiled.load.words)
        slowest = PAUSE_BYTES // max(1, compiled.load.loop.weights + room * at_words)
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
        }
        for name in ("now", "next", "lane"):
            sizes[f"inner_{name}"] = whole_lines(slots * strides.get(f"inner {name}", 0))
        begins = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1], strict=True))
        self.memory = POOL.take(sum(sizes.values()))
        self.status, self.progress = (
            self.memory[begins[name] : begins[name] + LINE].view(np.int64) for name in ("status", "progress")
        )
        self.words = np.zeros((together, compiled.word_count), np.int64)
        for name, begin in begins.items():
            self.words[:, WORD[name]] = begin + pointer(self.memory)
        self.words[:, WORD["thread"]] = range(together)
        fixed = {"rest": rest_address(), "clock": clock().address, "constants": pointer(constants)}
        fixed |= {"lanes": lanes, "block_steps": block_steps, "reverse": reverse, "room": room}
        for name, value in fixed.items():
            self.words[:, WORD[name]] = value
        self.addresses = [pointer(row) for row in self.words]
        self.rows = [view(row) for row in self.words]
        self._begun = view(self.progress)[: len(PROGRESS)]

    def follow(self, ahead: "Workspace") -> None:
        """Makes its blocks wait for those of another one, whose outputs are its inputs."""
        self.words[:, WORD["ahead"]] = pointer(ahead.progress)

    def go_on(self) -> None:
        """Takes back that the call pauses, while nothing runs."""
        self._begun[PAUSE] = 0

    def begin(self) -> None:
        """Resets the progress of the call; it is for one thread until more are there."""
        self._begun[:] = START

    def done(self) -> Done:
        """How far the call is that this was written for, while it pauses."""
        if until := self.rows[0][WORD["until"]]:
            return self._done_of_waiting(
                dict(zip(ENDING, numbers_at(until, len(ENDING)).tolist(), strict=True))
            )
        lanes, begin = self.rows[0][WORD["lanes"]], int(self.progress[PROGRESS.index("begin")])
        lane_steps, first = self._table("lane_steps", lanes), self._table("first", lanes + 1)
        order = self._table("order", int(first[-1]))
        lengths = self._table("lengths", int(order.max(initial=-1)) + 1)[order]
        ends = np.cumsum(lengths)
        # Where each lane begins, taken off the ends of its sequences.
        ends -= np.repeat((ends - lengths)[first[:-1]], np.diff(first))
        sequences = int(np.count_nonzero(ends <= begin))
        return Done(int(np.minimum(lane_steps, begin).sum()), int(lane_steps.sum()), sequences, len(order))

    def _done_of_waiting(self, ending: Mapping[str, int]) -> Done:
        """How far the call is, where sequences may end early: then they have no more steps to do. The first
        set of lanes counts all sequences as its own, and each takes off what its lanes still have to do.
        """
        lanes = ending["at_work"]
        # A sequence is over when it has been taken off its lane.
        left = int(np.maximum(self._table("left", lanes), 1).sum())
        if ending["number"]:
            return Done(-left, 0, -lanes, 0)
        order = self._table("order", ending["sequences"])
        lengths = self._table("lengths", int(order.max(initial=-1)) + 1)[order]
        begun = min(int(numbers_at(ending["waiting"], 1)[0]), len(order))
        all_steps = int(lengths.sum())
        return Done(int(lengths[:begun].sum()) - left, all_steps, begun - lanes, len(order))

    def _table(self, name: str, count: int) -> Array:
        """The numbers of one of the call's tables."""
        return numbers_at(self.rows[0][WORD[name]], count)

    def write(self, pack: Callable[..., None], offset: int, numbers: Sequence[int]) -> None:
        """Writes words from an offset on, for every thread. pack: of a `Struct` for so many words."""
        for row in self.rows:
            pack(row, offset, *numbers)
