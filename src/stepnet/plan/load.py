"""How long a recurrence takes, from what its steps read and compute and from facts of the machine.

A step of `rows` sequences multiplies rows by parameters. That takes as long as the multiply-adds do, or as
long as it takes to read the parameters, whichever is longer:

    few rows, parameters far away     |== reading ==============|
                                      |== computing ==|
    many rows                         |== reading ==|
                                      |== computing ====================|

Work in front of the loop and behind it is done on the rows of many steps at once, so it is computing alone.
The estimates decide how a call runs, never what it gives.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple


@dataclass(frozen=True)
class Machine:
    """Facts of a machine, for one of its threads. Times are in seconds, and rates per second.

    own_cache, shared_cache: bytes of the cache that each core has for itself, and of the one for all cores.
    rate: bytes of parameters times rows that are multiplied, in tiles of many rows. own, shared, memory:
    bytes of parameters that are read from each core's cache, the one of all cores, and memory. flops:
    elementwise operations. step: of a step besides its work. barrier: until two threads have waited for each
    other. handover: to hand work to a thread that is awake, and to wait for it.

    The defaults were measured on a Zen 5 with vectors of 512 bits (`bench/partition.py`).
    """

    own_cache: int = 2**20
    shared_cache: int = 32 * 2**20
    rate: float = 430e9
    own: float = 160e9
    shared: float = 95e9
    memory: float = 25e9
    flops: float = 60e9
    step: float = 0.06e-6
    barrier: float = 0.3e-6
    handover: float = 2e-6

    def reading(self, size: int | float) -> float:
        """Seconds to read parameters of so many bytes, as each step does: what fits a cache, and the rest."""
        if size > self.shared_cache:
            return size / self.memory
        # Steps go through the parameters in the same order, so a cache that is too small by a little has
        # already lost much of them by the next step. Some of it is used for other things.
        room = 0.75 * self.own_cache
        missed = min(1.0, max(0.0, 2 * (size - room) / room))
        return size * ((1 - missed) / self.own + missed / self.shared)


@dataclass(frozen=True)
class Products:
    """Rows times parameters, in tiles.

    weights: bytes of the parameters. blocks: how many unit blocks there are. costs: what 0, 1, ... rows cost,
    in rows of a large tile. grains: in how many unit blocks each of these is divided between threads.
    """

    weights: int
    blocks: int
    costs: tuple[float, ...]
    grains: tuple[int, ...]

    def cost(self, rows: float) -> float:
        """What so many rows cost, in rows of a large tile."""
        count, last = ceil(rows), len(self.costs) - 1
        return self.costs[count] if count <= last else rows + self.costs[last] - last

    def largest(self, rows: float, threads: int) -> int:
        """How many unit blocks the thread with most of them has."""
        grain = self.grains[min(ceil(rows), len(self.grains) - 1)]
        return min(self.blocks, grain * ceil(ceil(self.blocks / grain) / threads))

    def share(self, rows: float, threads: int) -> float:
        """The part of the work of the thread with most of it."""
        return self.largest(rows, threads) / self.blocks


@dataclass(frozen=True)
class Stage:
    """What a stage does on each row.

    products: its products. flops: its elementwise operations. waits: how often threads that share it wait for
    one another.
    """

    products: tuple[Products, ...]
    flops: int
    waits: int

    @property
    def weights(self) -> int:
        """Bytes of all parameters."""
        return sum(product.weights for product in self.products)

    def seconds(self, rows: float, threads: int, machine: Machine) -> float:
        """For so many rows at once, shared by so many threads."""
        parts = [(each, each.share(rows, threads)) for each in self.products]
        computing = sum(each.weights * each.cost(rows) * part for each, part in parts) / machine.rate
        reading = machine.reading(sum(each.weights * part for each, part in parts))
        return max(computing, reading) + self.flops * rows / threads / machine.flops


class Size(NamedTuple):
    """The size of a call: how many sequences have steps, the steps of the longest one, and those of all."""

    filled: int
    longest: int
    steps: int


LANES = 64
"""How many sequences a thread runs at the same time, at most."""


@dataclass(frozen=True)
class Load:
    """What a recurrence does at each step of its loop, and for each step besides."""

    loop: Stage
    others: Stage

    def seconds(self, size: Size, sets: int, together: int, machine: Machine) -> float:
        """For a call on `sets` threads with sequences of their own, or `together` threads that share steps."""
        if not size.steps:
            return 0.0
        lanes = min(size.filled, LANES * sets)
        turns = max(size.longest, size.steps / lanes)
        rows = size.steps / turns / sets
        threads = max(sets, together)
        seconds = turns * (self.loop.seconds(rows, together, machine) + machine.step)
        seconds += self.others.seconds(rows * turns, together, machine)
        if together > 1:
            seconds += (turns * self.loop.waits + self.others.waits) * machine.barrier * (together - 1)
        return seconds + machine.handover * (threads > 1)
