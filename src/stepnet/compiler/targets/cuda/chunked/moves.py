"""Writes loads of the numbers of a chunk of steps from main memory into registers, and later their stores to
shared memory: all that a thread loads is under way at once, so it waits for main memory once.

A thread has four numbers side by side of a step, which are one load where arrays are aligned.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Generic, TypeVar

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, I64, integer
from stepnet.compiler.targets.cuda.chunked.shared_arrays import SharedArrays
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.functions import F32, FOUR
from stepnet.compiler.values.records import dataclass

Value = ir.Value
Row = TypeVar("Row")
TOGETHER = 4
"""The numbers side by side that a thread loads."""
MOST = 48
"""The most numbers of a thread that are under way."""


@dataclass(frozen=True)
class ChunkShare(Generic[Row]):
    """A thread's share of an array of steps: numbers from `first` on, of a step.

    holds: whether the thread has this share; None if all threads do.
    """

    step: Value
    first: Value
    row: Row
    holds: Value | None


class ChunkMoves(Generic[Row]):
    """Writer of loads of arrays [steps, width], and of their stores.

    threads: the number of threads that share them. row_at: writes the entry of a step. first: the number of
    the first thread.
    """

    def __init__(
        self,
        code: PlaceWriter,
        arrays: SharedArrays,
        threads: int,
        row_at: Callable[[Value], Row],
        first: int = 0,
    ) -> None:
        """Begins without any load."""
        self.code, self.arrays, self.threads, self.row_at = code, arrays, threads, row_at
        self.thread = code.sub(code.thread, integer(first)) if first else code.thread
        self.shares = dict[int, list[ChunkShare[Row]]]()
        self.loaded = list[tuple[ChunkShare[Row], Sequence[Value], str, int, int]]()

    def share(self, steps: int, width: int) -> list[ChunkShare[Row]]:
        """Writes the shares of a thread in an array, the same for all arrays of a width."""
        code, found, pieces = self.code, list[ChunkShare[Row]](), steps * width // TOGETHER
        if width not in self.shares:
            for n in range(ceil(pieces / self.threads)):
                index = code.summed(self.thread, integer(n * self.threads))
                holds = None
                if (n + 1) * self.threads > pieces:
                    holds = code.icmp_signed("<", index, integer(pieces))
                    index = code.smaller(index, integer(pieces - 1))
                step, piece = code.divided(index, width // TOGETHER)
                first = code.multiplied(code.limited(piece, width // TOGETHER), TOGETHER)
                found.append(ChunkShare(step, first, self.row_at(step), holds))
            self.shares[width] = found
        return self.shares[width]

    def read(
        self,
        steps: int,
        width: int,
        name: str,
        first_row: int,
        stride: int,
        element: Callable[[Value, Row], Value],
    ) -> None:
        """Writes loads of an array, whose rows lie in shared memory from `first_row` of the array `name` on.

        element: writes a number of a step's entry.
        """
        code = self.code
        for share in self.share(steps, width):
            if TOGETHER * (len(self.loaded) + 1) > MOST:
                self.write()
            places = [code.summed(share.first, integer(n)) for n in range(TOGETHER)]
            self.loaded.append((share, [element(at, share.row) for at in places], name, first_row, stride))

    def write(self) -> None:
        """Writes the stores of all that was loaded."""
        code = self.code
        for share, values, name, first_row, stride in self.loaded:
            row = code.summed(integer(first_row), share.step)

            def store(row: Value = row, share: ChunkShare[Row] = share, values: Sequence[Value] = values,
                      name: str = name, stride: int = stride) -> None:  # fmt: skip
                """Writes the stores of a share."""
                for n, value in enumerate(values):
                    self.arrays.write(value, name, (row, stride), (share.first, 1), (integer(n), 1))

            if share.holds is None:
                store()
            else:
                with code.when(share.holds):
                    store()
        self.loaded = []


def multiply_decays(
    code: PlaceWriter, arrays: SharedArrays, steps: int, row: int, thread: Value, threads: int
) -> None:
    """Writes the products of decays: a thread for the steps from each one on, which reads all ahead. row: the
    length of a row of the products until before a step. thread: its number among the threads that share them.
    """
    with code.loop(thread, integer(steps + 1), threads) as first:
        fours = [code.read(FOUR, arrays.at("decay", (integer(n), 1)), 16) for n in range(0, steps, 4)]
        product: Value = ir.Constant(F32, 1.0)
        begin = code.trunc(code.function_call("anew", I64, [first]), I32)  # compared in 32 bits
        for step in range(steps + 1):
            arrays.write(product, "decays", (integer(step), row), (first, 1))
            if step < steps:
                decay = code.extract_element(fours[step // 4], integer(step % 4))
                is_later = code.icmp_signed(">=", ir.Constant(I32, step), begin)
                product = code.select(is_later, code.fmul(product, decay), product)
