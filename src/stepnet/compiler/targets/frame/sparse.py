"""Products of vectors with matrices of which many blocks are zeros, as pruning leaves them.

A block is 4, 8 or 16 columns of one row. Only those with a number other than 0 are stored, and multiplied:

    W   . . . . a b c d      weights  e f g h  a b c d
        e f g h . . . .      places   1  1     1  0       for each four columns: how many rows, and which
"""

from collections.abc import Iterator

import numpy as np

from stepnet.compiler.targets.frame.arrays import StridedView, comment
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

Array = np.ndarray
WIDTHS = (16, 8, 4)
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
class SparseProductLoop:
    """Products of vectors with one matrix, as of a `ProductLoop`, whose sums leave out blocks of zeros.

    A sum of floats has the bits of the whole matrix's, with two exceptions: an infinity or a NaN of the
    vector times a block of zeros is left out, and a sum of 0 may have another sign.

    width, blocks: the columns of a block, and the number of those that are stored.
    rows, inputs, outputs, left, start, result, about: as of a `ProductLoop`; sums of integers are int32.
    weights: a constant with the blocks: those of the first columns, from the first row on, and so on.
    places: a constant of int16: for each `width` columns the number of blocks, and then the row of each.
    """

    width: int
    blocks: int
    rows: int
    inputs: int
    outputs: int
    left: StridedView
    weights: str
    places: str
    start: StridedView | None
    result: StridedView
    about: str = ""

    def __post_init__(self) -> None:
        """Raises `NetError` for blocks that do not divide the columns, and for elements that lie apart."""
        if self.width not in WIDTHS or self.outputs % self.width:
            raise NetError(f"no blocks of {self.width} columns make {self.outputs}")
        for view in (self.left, self.result, *([] if self.start is None else [self.start])):
            if view.strides[-1] != 1:
                raise NetError(f"a product reads and writes elements one after the other, not {view}")

    def __str__(self) -> str:
        """Writes the product as text, in one line."""
        start = f"{self.start} + " if self.start else ""
        size = f"{self.rows} x {self.inputs} x {self.outputs}, {self.blocks} blocks of {self.width}"
        return f"{self.result} = {start}{self.left} @ {self.weights} ({size}){comment(self.about)}"

    @property
    def multiplies(self) -> int:
        """The number of multiplications, each of which is followed by an addition."""
        return self.rows * self.blocks * self.width

    @property
    def views(self) -> Iterator[tuple[StridedView, tuple[int, ...], bool]]:
        """Yields each view with the shape over which it is used, and whether it is written."""
        yield self.left, (self.rows, self.inputs), False
        if self.start is not None:
            yield self.start, (self.rows, self.outputs), False
        yield StridedView(self.weights, 0, (1,)), (self.blocks * self.width,), False
        yield StridedView(self.places, 0, (1,)), (self.blocks + self.outputs // self.width,), False
        yield self.result, (self.rows, self.outputs), True


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix without its blocks of zeros. width: the columns of a block. weights, places: as those of a
    `SparseProductLoop`. about: what a report says of it.
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
