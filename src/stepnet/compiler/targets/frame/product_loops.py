"""Products of vectors with a matrix as loops of frame programs, of the whole matrix or of its blocks.

A block is 4, 8 or 16 columns of one row. Only those with a number other than 0 are stored, and multiplied:

    W   . . . . a b c d      weights  e f g h  a b c d
        e f g h . . . .      places   1  1     1  0       for each four columns: how many rows, and which
"""

from collections.abc import Iterator

from stepnet.compiler.targets.frame.arrays import StridedView, comment
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

BLOCK = 8
"""The number of outputs of a product that are computed together, and whose weights lie together."""
WIDTHS = (16, 8, 4)
"""The columns of a block of a sparse matrix."""


@dataclass(frozen=True)
class ProductLoop:
    """Products of vectors with one matrix: for each row m and output n,

        result[m, n] = (start[m, n] or 0) + left[m, 0] W[0, n] + left[m, 1] W[1, n] + ...

    added from left to right, each product and each sum rounded. Vectors of int8 or int16 are multiplied by
    weights of int8; the sums are int32, and exact, as the numbers of a sum are so few that it fits.

    rows, inputs, outputs: the numbers of vectors, of elements of each, and of columns of W.
    left: the vectors, a view over (rows, inputs). start: a view over (rows, outputs), or None for zeros. The
        last stride of all views is 1.
    weights: a constant with all elements of W, in the order of `packed_weights`: blocks of `BLOCK` columns,
        the last one with the rest of the columns, each block row by row.
    result: a view over (rows, outputs), which overlaps neither `left` nor `start`, but may be `start`.
    about: a text for reports: what the loop computes.
    """

    rows: int
    inputs: int
    outputs: int
    left: StridedView
    weights: str
    start: StridedView | None
    result: StridedView
    about: str = ""

    def __post_init__(self) -> None:
        """Raises `NetError` if the elements of a vector do not lie one after the other."""
        for view in (self.left, self.result, *([] if self.start is None else [self.start])):
            if view.strides[-1] != 1:
                raise NetError(f"a product reads and writes elements one after the other, not {view}")

    def __str__(self) -> str:
        """Writes the product as text, in one line."""
        return self.text("")

    def text(self, more: str) -> str:
        """Writes the product as text, in one line. more: the text behind the sizes."""
        start = f"{self.start} + " if self.start else ""
        size = f"{self.rows} x {self.inputs} x {self.outputs}{more}"
        return f"{self.result} = {start}{self.left} @ {self.weights} ({size}){comment(self.about)}"

    @property
    def multiplies(self) -> int:
        """The number of multiplications, each of which is followed by an addition."""
        return self.rows * self.inputs * self.outputs

    @property
    def views(self) -> Iterator[tuple[StridedView, tuple[int, ...], bool]]:
        """Yields each view with the shape over which it is used, and whether it is written."""
        yield self.left, (self.rows, self.inputs), False
        if self.start is not None:
            yield self.start, (self.rows, self.outputs), False
        yield StridedView(self.weights, 0, (1,)), (self.inputs * self.outputs,), False
        yield self.result, (self.rows, self.outputs), True


@dataclass(frozen=True)
class SparseProductLoop:
    """A product whose sums leave out blocks of zeros of the matrix.

    A sum of floats has the bits of the whole matrix's, with two exceptions: an infinity or a NaN of the
    vector times a block of zeros is left out, and a sum of 0 may have another sign.

    product: the product, whose weights are the blocks: those of the first columns, from the first row on, and
        so on.
    width, blocks: the columns of a block, and the number of those that are stored.
    places: a constant of int16: for each `width` columns the number of blocks, and then the row of each.
    """

    product: ProductLoop
    width: int
    blocks: int
    places: str

    def __post_init__(self) -> None:
        """Raises `NetError` for blocks that do not divide the columns."""
        if self.width not in WIDTHS or self.product.outputs % self.width:
            raise NetError(f"no blocks of {self.width} columns make {self.product.outputs}")

    def __str__(self) -> str:
        """Writes the product as text, in one line."""
        return self.product.text(f", {self.blocks} blocks of {self.width}")

    @property
    def about(self) -> str:
        """The text for reports that says what the loop computes."""
        return self.product.about

    @property
    def multiplies(self) -> int:
        """The number of multiplications, each of which is followed by an addition."""
        return self.product.rows * self.blocks * self.width

    @property
    def views(self) -> Iterator[tuple[StridedView, tuple[int, ...], bool]]:
        """Yields each view with the shape over which it is used, and whether it is written."""
        sizes = {
            self.product.weights: self.blocks * self.width,
            self.places: self.blocks + self.product.outputs // self.width,
        }
        yield from (each for each in self.product.views if each[0].buffer not in sizes)
        yield from ((StridedView(name, 0, (1,)), (size,), False) for name, size in sizes.items())
