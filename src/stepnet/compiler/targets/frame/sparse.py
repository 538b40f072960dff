"""Matrices of which many blocks are zeros, as pruning leaves them: which blocks are stored, and whether."""

import numpy as np

from stepnet.compiler.targets.frame.product_loops import WIDTHS
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
MOST_INPUTS = 2**15 - 1
"""The rows that places of int16 number."""
EXTRA = 3
"""The multiply-adds in whose time a place is read, and with it an element of the vector."""
SHARES = {"int8": 0.25}
"""The share of the whole matrix's bytes and work below which blocks pay, by dtype of the weights: for whole
matrices of integers processors have instructions."""
SHARE = 0.75
"""The same for the other dtypes."""


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix without its blocks of zeros. width: the columns of a block. weights, places: as those of a
    `SparseProductLoop`. about: the text that a report has about it.
    """

    width: int
    weights: Array
    places: Array
    about: str

    @property
    def blocks(self) -> int:
        """The number of blocks that are stored."""
        return self.weights.size // self.width


def sparse_matrix(matrix: Array) -> SparseMatrix | None:
    """Returns a matrix [inputs, outputs] in the blocks that take the least memory and work, or None if the
    whole one takes about as little.

    >>> matrix = np.zeros((8, 8), "f4")
    >>> matrix[1, :4], matrix[0, 4:] = 1, 2
    >>> found = sparse_matrix(matrix)
    >>> found.weights.tolist(), found.places.tolist(), found.about
    ([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0], [1, 1, 1, 0], 'sparse 4x1, 12% of blocks')
    >>> sparse_matrix(np.ones((8, 8), "f4"))
    """
    inputs, outputs = matrix.shape
    share = SHARES.get(matrix.dtype.name, SHARE)
    found, least = 0, 2 * share
    if inputs > MOST_INPUTS:
        return None
    for width in (width for width in WIDTHS if outputs % width == 0):
        count = np.count_nonzero(matrix.reshape(inputs, -1, width).any(-1))
        places = count + outputs // width
        bytes_ = (count * width * matrix.itemsize + 2 * places) / matrix.nbytes
        work = (count * width + EXTRA * places) / matrix.size
        if count and max(bytes_, work) < share and bytes_ + work < least:
            found, least = width, bytes_ + work
    if not found:
        return None
    groups = [matrix[:, first : first + found] for first in range(0, outputs, found)]
    rows = [np.flatnonzero(group.any(-1)) for group in groups]
    weights = np.concatenate([group[own].ravel() for group, own in zip(groups, rows, strict=True)])
    places = np.concatenate([np.array([len(own), *own.tolist()], np.int16) for own in rows])
    blocks = weights.size // found / (inputs * len(groups))
    return SparseMatrix(found, weights, places, f"sparse {found}x1, {blocks:.0%} of blocks")
