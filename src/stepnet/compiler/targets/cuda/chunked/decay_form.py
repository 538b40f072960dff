"""The gradient of the decays of a matrix in chunks of steps (`net/decays.py`): its places in shared memory.

A block has one head of one sequence. With S ahead of a chunk of C steps, and dS behind it, the gradient of
the decay of step t is a sum over what was written before it and what is read behind it:

    da_t = sum of L(t, u) L(s, t) N(u, s)    s before t: steps, and -1 for S; u behind t: steps, and C for dS

    N(u, s)    (x_u p_s) (dr_u w_s)          N(C, s)    p_s dS w_s
    N(u, -1)   x_u S dr_u                    N(C, -1)   <S, dS>

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
    """The kernel of the gradient of decays.

    reads, writes: the vectors that are read and written at a step. keys, values: of a head.
    steps: of a chunk. way: how float32 is multiplied, a key of `TENSOR_WAYS`.
    by_key: whether each key decays by itself.
    """

    reads: int
    writes: int
    keys: int
    values: int
    steps: int
    way: str
    by_key: bool = False

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

    @computed_once
    def places(self) -> dict[str, int]:
        """The first bytes of all arrays in shared memory, and under "end" that behind them.

        matrix: S ahead of the chunk, and in the first pass dS behind it, [keys, values].
        x, r: of the reads, [steps, keys] and [steps, values]. p, w: of the writes.
        pairs: N, [steps + 1, steps + 1]. products: (x_u p_s), [steps, steps].
        ahead, behind: terms of N(u, -1), with N(C, -1) last, and of N(C, s), for each key.
        decay: of each step. decays: their products from step s (column) on, until each step (row).

        Where each key decays by itself, pairs are (dr_u w_s) of each read and write, and decays the products
        of all steps.
        """
        steps = self.steps
        pairs = self.reads * self.writes * steps if self.by_key else steps + 1
        sizes = {
            "matrix": self.keys * self.value_row,
            "x": self.reads * steps * self.key_row,
            "r": self.reads * steps * self.value_row,
            "p": self.writes * steps * self.key_row,
            "w": self.writes * steps * self.value_row,
            "pairs": pairs * self.pair_row,
            "products": 0 if self.by_key else steps * self.pair_row,
            "ahead": (steps + 1) * self.key_row,
            "behind": steps * self.key_row,
            "decay": steps * self.decay_keys,
            "decays": self.keys if self.by_key else (steps + 1) * (steps + 1),
        }
        return begins_of(sizes)

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
    forms = (DecayForm(reads, writes, keys, values, steps, way, by_key) for steps in options)
    return next((form for form in forms if form.shared <= shared), None)
