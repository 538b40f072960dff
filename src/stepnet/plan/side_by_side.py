"""Whether recurrences that do not depend on each other run at the same time, or one after the other.

    one after the other, each on both threads          at the same time
        forward |====|                                     forward |=======|
                |====|                                     reverse |=======|
        reverse      |====|
                     |====|

Both directions of a layer are the case. A step takes a time for reading the parameters, however few sequences
there are, and a time for each sequence. One after the other, every thread reads the parameters of every
recurrence. At the same time, it reads those of its own alone, and the threads wait for one another once. So
that wins at small batches, and hardly differs at large ones. It loses where threads that share the steps of
one recurrence have its parameters in their caches, and a single thread would not; and where threads would
have nothing to do.

The estimate decides how a call runs, never what it gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stepnet.net.ir import Net
from stepnet.plan.plan import Plan

CACHE_BYTES = 1024 * 1024
"""What a thread has parameters in near by."""
NEAR, FAR = 130e9, 90e9
"""Bytes of parameters that a thread reads in a second, near by and from the cache of all threads."""
RATE = 300e9
"""Bytes of parameters times sequences that a thread computes with in a second."""
BARRIER, HANDOVER = 0.4e-6, 3e-6
"""Seconds for a step that threads share to wait for each other, and to hand work to threads."""

Size = tuple[int, int, int]
"""Of a call: how many sequences have steps, the steps of the longest one, and those of all."""


@dataclass(frozen=True)
class Load:
    """The bytes of parameters that a recurrence reads at each step of its loop, and at each step besides."""

    weights: int
    other_weights: int

    @classmethod
    def of(cls, plan: Plan) -> "Load":
        """That of a plan."""
        return cls(read_by(plan.body), read_by(plan.net))

    def seconds(self, size: Size, threads: int, shared: bool) -> float:
        """An estimate for a call on so many threads.

        shared: whether they share each step. Else each of them has sequences of its own.
        """
        filled, longest, steps = size
        count = threads if shared else max(1, min(threads, filled))
        near = self.weights // (count if shared else 1)
        reading = longest * near / (NEAR if near <= CACHE_BYTES else FAR)
        computing = steps * (self.weights + self.other_weights) / RATE / count
        return reading + computing + shared * longest * BARRIER + (count > 1) * HANDOVER


def read_by(net: Net) -> int:
    """Bytes of parameters that products read each time a net is run."""
    products = [node for node in net.nodes if node.kind == "matmul"]
    return sum(net.type_of(right).size * node.weight_bytes for node in products for right in node.sides[1])


def side_by_side(
    loads: Sequence[Load], sizes: Sequence[Size], shared: Sequence[bool], threads: int
) -> tuple[int, ...] | None:
    """The order in which threads take recurrences that run at the same time, the longest first.

    None where they take less time one after the other. shared: for each, whether threads would share its
    steps if it ran alone.

    >>> gru = Load(weights=3 * 128 * 128 * 4, other_weights=3 * 128 * 128 * 4)
    >>> side_by_side([gru, gru], [(1, 30, 30)] * 2, [False] * 2, threads=2)
    (0, 1)
    >>> side_by_side([gru] * 3, [(64, 30, 1920)] * 3, [False] * 3, threads=2)
    """
    parts = list(zip(loads, sizes, shared, strict=True))
    in_turn = sum(load.seconds(size, threads, together) for load, size, together in parts)
    own = [load.seconds(size, max(1, threads // len(parts)), False) for load, size, _ in parts]
    order = sorted(range(len(parts)), key=own.__getitem__, reverse=True)
    ends = [0.0] * min(threads, len(parts))
    for place in order:
        ends[ends.index(min(ends))] += own[place]
    return tuple(order) if max(ends) + HANDOVER < in_turn else None
