"""Simulates how long many workers take for blocks of work, by discrete events.

    block 0, 1, 2, ...  ->  the next worker that is free  ->  its time, drawn from measured ones

Some workers are slower by a factor. A worker may be lost at some time of the run: then the block that it was
at is done again, by the next worker that is free from then on.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Workers:
    """Workers of a cluster.

    Attributes:
        count: How many there are.
        slow: The share of them that are slow.
        factor: How many times as long a slow one takes.
        lost: How many are lost in the course of the run, at times that are drawn.
    """

    count: int
    slow: float = 0.0
    factor: float = 2.0
    lost: int = 0

    def __post_init__(self) -> None:
        """Raises `ValueError` for impossible numbers, such as more workers lost than there are."""
        if not (self.count >= 1 and 0 <= self.slow <= 1 and self.factor >= 1 and 0 <= self.lost < self.count):
            raise ValueError(
                f"{self}: there is a worker at least that is not lost, slow is a share, and factor 1 or more"
            )

    @property
    def factors(self) -> list[float]:
        """The factor of each worker's time: `factor` for slow ones, else 1."""
        slow = round(self.slow * self.count)
        return [self.factor] * slow + [1.0] * (self.count - slow)


@dataclass(frozen=True)
class Run:
    """The result of a simulation: the seconds until all blocks are done, and the share of the workers' time
    that was needed.

    The share is of workers that are neither slow nor lost: 1 is a run of blocks without any loss.
    """

    seconds: float
    efficiency: float


def simulated(times: Sequence[float], blocks: int, workers: Workers, seed: int = 0) -> Run:
    """Simulates a run of `blocks` blocks by a cluster of workers.

    Args:
        times: Seconds of blocks, as they were measured; each block's are drawn from these.
        blocks: The number of blocks.
        workers: The cluster.
        seed: The seed of the draws.

    >>> simulated([2.0], 5, Workers(2)).seconds
    6.0
    """
    random = np.random.default_rng(seed)
    drawn = random.choice(np.asarray(times, np.float64), blocks)
    needed = float(drawn.sum()) / workers.count
    ends = [float("inf")] * workers.count
    for worker in random.permutation(workers.count)[: workers.lost]:
        ends[worker] = float(random.uniform(0, needed))
    seconds = end_of(drawn.tolist(), workers.factors, ends)
    return Run(seconds, needed / seconds)


def end_of(times: Sequence[float], factors: Sequence[float], ends: Sequence[float]) -> float:
    """Simulates workers that take the next block when they are free; returns when the last block is done.

    times: seconds of each block. factors: how many times as long each worker takes. ends: when each is lost.

    >>> end_of([1.0, 1.0], factors=[1, 1], ends=[0.5, float("inf")])
    2.0
    """
    waiting = [(0.0, block) for block in range(len(times))]  # (earliest start, block)
    free = [(0.0, worker) for worker in range(len(factors))]
    last = 0.0
    while waiting:
        if not free:
            raise ValueError(f"all workers are lost before {len(waiting)} of {len(times)} blocks are done")
        since, block = heapq.heappop(waiting)
        now, worker = heapq.heappop(free)
        begun = max(now, since)
        done = begun + times[block] * factors[worker]
        if ends[worker] >= done:
            heapq.heappush(free, (done, worker))
            last = max(last, done)
        else:
            heapq.heappush(waiting, (max(begun, ends[worker]) if ends[worker] > begun else since, block))
    return last
