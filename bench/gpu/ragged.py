"""Predicted times of ragged batches on an H100, as a table: `python -m bench.gpu.ragged`.

in turn     groups of blocks take sorted sequences in turn, as many at a time as a group has lanes
sorted      the same, but a group that would end early takes more of them
chosen      what the target does: sorted, or lanes that are refilled
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from bench.gpu.cells import recurrence
from stepnet.compiler.targets.cuda import CudaKernel, CudaMemory, EmulatedDevice, LaidLoop

Array = np.ndarray
CELLS = ("gru", 256), ("lstm", 512), ("gru", 1024)
BATCHES = 64, 256
DRAWN: dict[str, Callable[[Any, int], Array]] = {
    "100 to 1344": lambda chance, count: chance.integers(100, 1345, count),
    "log-normal": lambda chance, count: np.maximum(1, chance.lognormal(np.log(300), 1, count).astype(int)),
}
"""The lengths of sequences, all alike from 100 to 1344, or with a median of 300."""


@cache
def kernel_of(cell: str, units: int) -> CudaKernel:
    """Returns the kernel of a cell, for the device that is assumed where there is none."""
    return CudaKernel(recurrence(cell, units).plan, CudaMemory(EmulatedDevice()))


def in_turn(by_length: LaidLoop) -> float:
    """Estimates the microseconds if groups take sorted sequences in turn."""
    pace, rows = by_length.chosen.pace, by_length.loop.group_rows
    assert pace is not None
    longest = np.sort(by_length.lengths)[::-1][::rows]
    at_once = min(pace.at_once, len(longest))
    return max(
        float(longest[group::at_once].sum() * pace.step + len(longest[group::at_once]) * pace.turn)
        for group in range(at_once)
    )


def rows() -> Iterator[list[str]]:
    """Yields the rows of the table."""
    for cell, units in CELLS:
        kernel = kernel_of(cell, units)
        for count in BATCHES:
            for name, draw in DRAWN.items():
                lengths = draw(np.random.default_rng(0), count)
                found = kernel.laid(lengths)
                alone = kernel.loop(count)
                by_length = LaidLoop(alone, lengths, alone.groups)
                times = in_turn(by_length), by_length.microseconds, found.microseconds
                yield [
                    f"{cell.upper()} {units}",
                    f"{count}, {name}",
                    *(f"{time / 1000:.1f}" for time in times),
                    found.text,
                ]


if __name__ == "__main__":
    print("| units | sequences | in turn | sorted | chosen | chosen lanes |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for row in rows():
        print("|", " | ".join(row), "|", flush=True)
