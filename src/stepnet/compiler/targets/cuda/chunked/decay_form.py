"""The gradients of a matrix that decays, in chunks of steps (`net/decays.py`): its places in shared memory.

A block has one head of one sequence. With S ahead of a chunk of C steps, and dS behind it, the gradient of
the decay of step t is a sum over what was written before it and what is read behind it:

    da_t = sum of L(t, u) L(s, t) N(u, s)    s before t: steps, and -1 for S; u behind t: steps, and C for dS

    N(u, s)    (x_u p_s) (dr_u w_s)          N(C, s)    p_s dS w_s
    N(u, -1)   x_u S dr_u                    N(C, -1)   <S, dS>

and those of the vectors are

    dx_u = L(-1, u) S dr_u + sum over s before u of L(s, u) (dr_u w_s) p_s
    dp_s = L(s, C) dS w_s  + sum over u behind s of L(s, u) (dr_u w_s) x_u

L(s, t) is the product of the decays between two steps. No decay is divided by, and none is taken twice. Where
each key decays by itself, it is a sum over pairs of steps for each key: N without the sum over keys that x_u
p_s are, and L of the key. Then chunks have few steps.

A first pass, from the last chunk on, keeps dS behind each chunk in main memory; a second one, from the first
chunk on, has S in shared memory, and computes N by products on tensor cores.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from stepnet.compiler.net.decays import DecayOperands
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

STEPS = 64, 32, 16
"""The steps that a chunk may have; the last one where each key decays by itself."""
ALIGNED = 16
"""The bytes to which the vectors, and decays of keys, are aligned."""


def begins_of(sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the first byte of each array, a multiple of 16, and under "end" that behind them all.

    sizes: the numbers of float32 of each array, by name.

    >>> begins_of({"matrix": 80, "decay": 5})
    {'matrix': 0, 'decay': 320, 'end': 352}
    """
    found, used = dict[str, int](), 0
    for name, size in sizes.items():
        found[name] = used
        used += 16 * ceil(size / 4)
    return {**found, "end": used}


@dataclass(frozen=True)
class DecayForm:
    """The kernel of the gradients.

    reads, writes: the vectors that are read and written at a step. keys, values: their numbers in a head.
    steps: the number of steps of a chunk. way: how float32 is multiplied, a key of `TENSOR_WAYS`.
    by_key: whether each key decays by itself. has_after: whether dS behind a chunk is in shared memory, too;
    else it is read as it is multiplied.
    """

    reads: int
    writes: int
    keys: int
    values: int
    steps: int
    way: str
    by_key: bool = False
    has_after: bool = False

    @property
    def decay_keys(self) -> int:
        """The decays of a step."""
        return self.keys if self.by_key else 1

    @property
    def key_row(self) -> int:
        """The length of a row of keys; a few numbers longer, so that lanes read from different banks."""
        return self.keys + 4

    @property
    def value_row(self) -> int:
        """The length of a row of values."""
        return self.values + 4

    @property
    def pair_row(self) -> int:
        """The length of a row of N, of each s from -1 on."""
        return self.steps + 2

    @property
    def inner_row(self) -> int:
        """The length of a row of inner products, of each u."""
        return self.steps + 8

    @property
    def made_over_r(self) -> bool:
        """Tells whether gradients are written over the cotangents of the reads, which nothing reads then."""
        return self.by_key and self.reads > self.writes and self.values >= self.keys

    @property
    def gradients(self) -> int:
        """The numbers of a step of a head in the result."""
        return (self.reads + self.writes) * self.keys + self.decay_keys

    @computed_once
    def places(self) -> dict[str, int]:
        """The first bytes of all arrays in shared memory, and under "end" that behind them.

        matrix: S ahead of the chunk, and in the first pass dS behind it, [keys, values]. after: dS behind it.
        x, r: of the reads, [steps, keys] and [steps, values]. p, w: of the writes.
        pairs: N, [steps + 1, steps + 1].
        inner: (x_u p_s), and then (dr_u w_s) L(s, u), of each read and write, [steps s, steps u].
        ahead, behind: terms of N(u, -1), with N(C, -1) last, and of N(C, s), for each key.
        decay: of each step. decays: their products from step s (column) on, until each step (row).
        beyond: of chunks in turn, not 0 if a vector of keys is NaN, infinite or close to it.

        Where each key decays by itself, pairs are (dr_u w_s) of each read and write, and decays the products
        of all steps; ahead and behind are those of each read and each write, without the vectors of keys, and
        then ahead dx. made: da, and dp of each write, over r where it is as long.
        """
        steps, reads, writes = self.steps, self.reads, self.writes
        sizes = {
            "matrix": self.keys * self.value_row,
            "x": reads * steps * self.key_row,
            "r": reads * steps * self.value_row,
            "p": writes * steps * self.key_row,
            "w": writes * steps * self.value_row,
            "decay": steps * self.decay_keys,
            "after": self.has_after * self.keys * self.value_row,
        }
        if self.by_key:
            sizes |= {
                "pairs": reads * writes * steps * self.pair_row,
                "ahead": (reads * steps + 1) * self.key_row,
                "behind": writes * steps * self.key_row,
                "made": 0 if self.made_over_r else (writes + 1) * steps * self.key_row,
                "decays": self.keys,
            }
        else:
            sizes |= {
                "pairs": (steps + 1) * self.pair_row,
                "inner": reads * writes * steps * self.inner_row,
                "ahead": (steps + 1) * self.key_row,
                "behind": steps * self.key_row,
                "decays": (steps + 1) * (steps + 1),
                "beyond": 2,
            }
        begins = begins_of(sizes)
        return {**begins, "made": begins["r"]} if self.made_over_r else begins

    @property
    def shared(self) -> int:
        """The bytes of shared memory of a block."""
        return self.places["end"]


def form_of(operands: DecayOperands[Any], way: str, shared: int) -> tuple[int, DecayForm | None]:
    """Returns the number of heads, and the kernel for operands; None if none fits.

    operands: arrays or types, whose shapes end with the features. way, shared: as of `decay_form`.
    """
    (heads, keys), values = operands.reads[0].shape[-2:], operands.d_reads[0].shape[-1]
    by_key = len(operands.decay.shape) == len(operands.reads[0].shape)
    return heads, decay_form(len(operands.reads), len(operands.keys), keys, values, way, shared, by_key)


def decay_form(
    reads: int, writes: int, keys: int, values: int, way: str, shared: int, by_key: bool = False
) -> DecayForm | None:
    """Returns the kernel with the most steps of a chunk that fits; None if none does.

    shared: the bytes of shared memory that a block may have.
    """
    options = STEPS[-1:] if by_key else STEPS
    forms = (
        DecayForm(reads, writes, keys, values, steps, way, by_key, has_after)
        for steps in options
        for has_after in (True, False)
    )
    return next((form for form in forms if form.shared <= shared), None)
