"""Gradients of a matrix that is a memory and decays: the operation `matrix_gradients`.

    S_t = a_t S_t-1 + p_t w_t        dS_t-1 = a_t dS_t + x_t dr_t
    dx_t = S_t-1 dr_t                dp_t = dS_t w_t                     da_t = <dS_t, S_t-1>

for each head of a matrix [heads, keys, values], with outer products of keys and values; or da for each key,
where each decays by itself: a sum over the values of its row. It reads both
matrices at each step, which run in opposite directions; an engine may compute it without storing either
(`grad/matrix_adjoint.py`).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class DecayOperands(Generic[Kind]):
    """Operands of the operation.

    reads, d_reads: x and dr, of each read. keys, written: p and w, of each write. All are at steps, [heads,
        keys] or [heads, values].
    decay: at steps, [heads], or [heads, keys]. initial, last: of each sequence, S before its first step and
        dS behind its last one, [heads, keys, values]; None for zeros.
    """

    reads: Sequence[Kind]
    d_reads: Sequence[Kind]
    keys: Sequence[Kind]
    written: Sequence[Kind]
    decay: Kind
    initial: Kind | None
    last: Kind | None


def decay_operands(operands: Sequence[Kind], reads: int, ends: Sequence[str]) -> DecayOperands[Kind]:
    """Returns the operands of a node by role.

    reads: how many reads there are. ends: those of "initial" and "last" that are among the operands.
    """
    count = len(operands) - len(ends) - 1
    known = dict(zip(ends, operands[count + 1 :], strict=True))
    cuts = (0, reads, 2 * reads, reads + count // 2, count)
    kinds = [operands[first:stop] for first, stop in pairwise(cuts)]
    vectors = kinds[0], kinds[1], kinds[2], kinds[3]
    return DecayOperands(*vectors, operands[count], known.get("initial"), known.get("last"))


def gradient_sizes(operands: DecayOperands[Any]) -> list[int]:
    """Returns the numbers of each gradient at a step: dx of each read, dp of each write, and da. They lie one
    behind the other in the result. operands: arrays or types, whose shapes end with the features.
    """
    (heads, keys), decays = operands.reads[0].shape[-2:], operands.decay.shape
    by_key = len(decays) == len(operands.reads[0].shape)
    vectors = len(operands.reads) + len(operands.keys)
    return [heads * keys] * vectors + [heads * keys if by_key else heads]


def matrix_gradients(operands: DecayOperands[Array], offsets: Array, reverse: bool) -> Array:
    """Computes the gradients of the vectors and of the decays, [steps, sum of `gradient_sizes`].

    offsets: where each sequence begins and ends. reverse: whether sequences run from their last step.
    """
    made = np.zeros_like(operands.decay)
    d_reads, d_keys = ([np.zeros_like(each) for each in some] for some in (operands.reads, operands.keys))
    summed = (-2, -1) if made.ndim == 2 else -1
    shape = *operands.reads[0].shape[1:], operands.d_reads[0].shape[-1]
    zeros = np.zeros((len(offsets) - 1, *shape), made.dtype)
    initial, last = (zeros if each is None else each for each in (operands.initial, operands.last))

    def outer(keys: Sequence[Array], values: Sequence[Array], step: int) -> Array:
        """Returns the sum of outer products at a step."""
        pairs = zip(keys, values, strict=True)
        return np.sum([key[step][:, :, None] * value[step][:, None] for key, value in pairs], axis=0)

    def decayed(matrix: Array, step: int) -> Array:
        """Returns a matrix decayed by a step."""
        return operands.decay[step].reshape(len(matrix), -1, 1) * matrix

    for row, (first, stop) in enumerate(pairwise(offsets)):
        steps = range(first, stop)[:: -1 if reverse else 1]
        matrix, before = initial[row], list[Array]()
        for step in steps:
            before.append(matrix)
            matrix = decayed(matrix, step) + outer(operands.keys, operands.written, step)
        after = last[row]
        for step in reversed(steps):
            matrix = before.pop()
            made[step] = (matrix * after).sum(summed)
            for found, value in zip(d_reads, operands.d_reads, strict=True):
                found[step] = (matrix @ value[step][:, :, None])[..., 0]
            for found, value in zip(d_keys, operands.written, strict=True):
                found[step] = (after @ value[step][:, :, None])[..., 0]
            after = decayed(after, step) + outer(operands.reads, operands.d_reads, step)
    return np.concatenate([each.reshape(len(each), -1) for each in (*d_reads, *d_keys, made)], axis=1)
