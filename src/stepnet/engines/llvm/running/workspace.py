"""The memory that each set of lanes works in."""

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stepnet.engines.base import Array
from stepnet.engines.llvm.compile.compiled import Compiled
from stepnet.engines.llvm.machine.memory import POOL, pointer, view
from stepnet.engines.llvm.machine.records import LINE
from stepnet.engines.llvm.machine.system import clock, rest_address
from stepnet.engines.llvm.machine.words import LANE_TABLES, PROGRESS, ROW_TABLES, STEP_TABLES, WORDS

SLACK = 16
BLOCK_BYTES = 384 * 1024
BLOCK_ROWS = 256
# A block has the most rows where so many bytes of parameters are read for each block: they would leave those
# that are read at every step no room in the last cache.
FAR_BYTES = 8 * 2**20
# Whether sequences have ended is looked at between blocks: these are of so many steps.
ENDING_STEPS = 8
# A block, between whose ends it does not pause, reads no more than so many bytes of parameters.
PAUSE_BYTES = 600 * 2**20
# What is computed of words takes longer than parameters take to be read: functions, most of all.
WORDS_COST = 4
WORD = {name: place for place, name in enumerate(WORDS)}
PAUSE = PROGRESS.index("pause")
START = view(np.array([name == "threads" for name in PROGRESS], np.int64))


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
        rows = max(min(BLOCK_ROWS, BLOCK_BYTES // strides["block"]), 32)
        if compiled.load.others.weights >= FAR_BYTES:
            rows = BLOCK_ROWS
        self.lanes, self.together = lanes, together
        words, kept_words = (
            sum(bytes_ for record, bytes_ in strides.items() if record.startswith(f"{kind} "))
            for kind in ("words", "kept")
        )
        in_words = sum(each.field.bytes for each in compiled.inner) + words + kept_words
        at_words = WORDS_COST * lanes * in_words + sum(work.steps.weights for work in compiled.load.words)
        slowest = PAUSE_BYTES // max(1, compiled.load.loop.weights + room * at_words)
        block_steps = max(1, min(rows // lanes, slowest, ENDING_STEPS if ends else block or rows))
        rows, slots = block_steps * lanes + SLACK, lanes + SLACK
        parts = {
            "now": slots * strides["now"],
            "next": slots * strides["now"],
            "lane": slots * strides["lane"],
            "block": rows * strides["block"],
            "nowhere": strides["nowhere"],
            "words": together * room * words,
            "kept_words": lanes * room * kept_words,
        }
        for name in ("now", "next", "lane"):
            parts[f"inner_{name}"] = slots * strides.get(f"inner {name}", 0)
        parts |= dict.fromkeys(LANE_TABLES, 8 * slots)
        parts |= dict.fromkeys(ROW_TABLES, 8 * rows)
        parts |= dict.fromkeys(STEP_TABLES, 8 * block_steps)
        parts |= {"barrier": LINE, "status": LINE, "progress": LINE}
        sizes = [-(-size // LINE) * LINE for size in parts.values()]
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.memory = POOL.take(sum(sizes))
        self.status, self.progress = (
            self.memory[begin : begin + LINE].view(np.int64) for begin in begins[-2:]
        )
        self.words = np.zeros((together, compiled.word_count), np.int64)
        self.words[:, [WORD[name] for name in parts]] = begins + pointer(self.memory)
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
        lanes, begin = self.rows[0][WORD["lanes"]], int(self.progress[PROGRESS.index("begin")])
        lane_steps, first = self._table("lane_steps", lanes), self._table("first", lanes + 1)
        order = self._table("order", int(first[-1]))
        lengths = self._table("lengths", int(order.max(initial=-1)) + 1)[order]
        ends = np.cumsum(lengths)
        # Where each lane begins, taken off the ends of its sequences.
        ends -= np.repeat((ends - lengths)[first[:-1]], np.diff(first))
        sequences = int(np.count_nonzero(ends <= begin))
        return Done(int(np.minimum(lane_steps, begin).sum()), int(lane_steps.sum()), sequences, len(order))

    def _table(self, name: str, count: int) -> Array:
        """The numbers of one of the call's tables."""
        numbers = (ctypes.c_int64 * count).from_address(self.rows[0][WORD[name]])
        return np.ctypeslib.as_array(numbers)

    def write(self, pack: Callable[..., None], offset: int, numbers: Sequence[int]) -> None:
        """Writes words from an offset on, for every thread. pack: of a `Struct` for so many words."""
        for row in self.rows:
            pack(row, offset, *numbers)
