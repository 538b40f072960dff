"""The kinds of products: the ways to multiply, tiles, and the forms that have a kernel each."""

import numpy as np

from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass

PART = 512
"""The k of a sum of its own."""
Term = tuple[int, int]
"""An instruction of the tensor cores: one of the numbers that each side is made of, the largest being number
0.
"""


@dataclass(frozen=True)
class TensorWay:
    """Way to multiply by tensor cores.

    depth: the k of an instruction: 8 of tf32, 16 of bfloat16. left, right: the numbers that one of float32
        is made
    of, on each side. small: the instructions for all but the largest numbers, in order.
    """

    depth: int
    left: int = 1
    right: int = 1
    small: tuple[Term, ...] = ()


TENSOR_WAYS = {
    "float32": TensorWay(8, 2, 2, ((1, 0), (0, 1))),
    "tf32": TensorWay(8),
    "bfloat16": TensorWay(16),
    "float32-bfloat16": TensorWay(16, 3, 1, ((2, 0), (1, 0))),
    "bfloat16-float32": TensorWay(16, 1, 3, ((0, 2), (0, 1))),
    "float32-float16": TensorWay(8, 2, 1, ((1, 0),)),
    "float16-float32": TensorWay(8, 1, 2, ((0, 1),)),
}
"""The ways to multiply float32 by tensor cores. In the last four one side is known to be in 16 bits."""
PADDING = 8
"""The numbers behind each k of a side in shared memory, so that the lanes of a warp read different banks."""
DEPTH = 16
"""The k of a sum of the tensor cores. Those of a tile that lie in shared memory at a time are a multiple."""


@dataclass(frozen=True)
class ProductTile:
    """Shape of the part of a product that a block computes.

    rows, columns: of the tile. down, across: the threads, or for tensor cores the warps, along both.
    depth: the k that lie in shared memory at a time. Few threads load many at once, as they wait for memory.
    """

    rows: int
    columns: int
    down: int
    across: int
    depth: int = DEPTH


@dataclass(frozen=True)
class ProductForm:
    """Kind of a product, for which there is a kernel.

    left, right, target: the dtypes. terms: the number of products that are added up.
    is_transposed: whether the left sides are [k, rows] instead of [rows, k].
    way: "plain" for the plain units, "rounded" for those with both sides rounded to bfloat16; for tensor
        cores one of `TENSOR_WAYS`.
    tile: the shape of a tile. is_split: whether each part is written on its own, [parts, rows, columns].
    """

    left: str
    right: str
    target: str
    terms: int
    is_transposed: bool
    way: str
    tile: ProductTile
    is_split: bool

    @property
    def dtype(self) -> str:
        """The dtype of sums."""
        return DTYPES[np.result_type(self.left, self.right).name].compute

    @property
    def is_plain(self) -> bool:
        """Tells whether the plain units multiply."""
        return self.way in ("plain", "rounded")

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.tile.down * self.tile.across * (1 if self.is_plain else LANES)
