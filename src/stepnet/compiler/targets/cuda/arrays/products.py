"""Matrix products on a device: values of all rows or steps with constants, and sums of outer products.

    multiply      [count, k] @ [k, n], added up over terms       projections of inputs, of outputs
    contracted    [count, m] and [count, n] give [m, n]          gradients of weights

Float32 is multiplied by tensor cores as three products of tf32, or by the plain units. The result of a row
has the same bits for any number of rows (see `product_code`).
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from stepnet.compiler.targets.cuda.arrays.memory import launch_over
from stepnet.compiler.targets.cuda.arrays.product_form import PART, TENSOR_WAYS, ProductForm, ProductTile
from stepnet.compiler.targets.cuda.device import Device, DeviceArray, empty
from stepnet.compiler.targets.cuda.written import kernel_code
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.ragged.offsets import offsets_of

ProductTerm = tuple[DeviceArray, DeviceArray, int]
"""A term of a product: the left side, the right side, and k."""
WAYS = ("plain", "rounded", *TENSOR_WAYS)
"""All ways: by the plain units too, as the numbers are or rounded to bfloat16."""
PLAIN = (ProductTile(128, 128, 16, 16), ProductTile(64, 64, 16, 16), ProductTile(16, 64, 8, 16, 64))
"""The tiles of the plain units, from the largest on: threads of 8 x 8, 4 x 4 and 2 x 4 numbers."""
WIDE = (PLAIN[1], ProductTile(16, 64, 8, 16, 32))
"""The tiles of the plain units for numbers of 8 bytes."""
TENSOR = (ProductTile(128, 128, 2, 4), ProductTile(64, 64, 2, 2), ProductTile(16, 64, 1, 4, 64))
"""The tiles of tensor cores: warps of 64 x 32, 32 x 32 and 16 x 16 numbers."""
FEWEST = 0.75
"""The share of the multiprocessors that the tiles of a product, or its parts, must keep busy."""


def multiply(
    device: Device,
    lefts: Sequence[DeviceArray],
    rights: Sequence[DeviceArray],
    way: str = "",
    out: DeviceArray | None = None,
) -> DeviceArray:
    """Computes the sum of lefts[i] @ rights[i], each [..., k] @ [k, n] with the same leading axes.

    way: one of `WAYS`; by default float32 for float32, and plain for others. out: an array [..., n] to fill;
    None for a new one.
    """
    terms = [(a, b, a.shape[-1]) for a, b in zip(lefts, rights, strict=True)]
    shape = (*lefts[0].shape[:-1], rights[0].shape[-1])
    return computed(device, terms, False, shape, way, out)


def contracted(
    device: Device, left: DeviceArray, right: DeviceArray, way: str = "", out: DeviceArray | None = None
) -> DeviceArray:
    """Computes the sum of outer products of vectors, [m, n]. way, out: as of `multiply`."""
    shape = (left.shape[-1], right.shape[-1])
    return computed(device, [(left, right, prod(left.shape[:-1]))], True, shape, way, out)


def computed(
    device: Device,
    terms: Sequence[ProductTerm],
    is_transposed: bool,
    shape: tuple[int, ...],
    way: str,
    out: DeviceArray | None,
) -> DeviceArray:
    """Computes a product of matrices, by the tiles that suit its shape.

    terms: the terms of the sum. shape: of the result. The others are those of `multiply` and of
    `ProductForm`.
    """
    natural = np.result_type(*(array.dtype for array in terms[0][:2])).name
    made = out or empty(device, shape, natural)
    used = [term for term in terms if term[2]]
    if not made.nbytes:
        return made
    if not used:
        device.clear(made.address, made.nbytes)
        return made
    way = way or ("float32" if natural == "float32" else "plain")
    parts, (rows, columns) = sum(parts_of(used)), matrix_of(made)
    tile, is_split = chosen(tiles_for(way, natural), rows, columns, parts, device.facts.multiprocessors)
    is_split = is_split or (parts > 1 and DTYPES[made.dtype].is_stored)
    compute_by(made, used, is_transposed, way, tile, is_split)
    return made


def compute_by(
    out: DeviceArray,
    terms: Sequence[ProductTerm],
    is_transposed: bool,
    way: str,
    tile: ProductTile,
    is_split: bool,
) -> None:
    """Fills an array with a product of matrices, by tiles of a shape. The parameters are those of `computed`
    and of `ProductForm`.
    """
    counts, (rows, columns), device = parts_of(terms), matrix_of(out), out.device
    parts, (left, right, _) = sum(counts), terms[0]
    form = ProductForm(left.dtype, right.dtype, out.dtype, len(terms), is_transposed, way, tile, is_split)
    made = empty(device, (parts, rows, columns), form.dtype) if is_split else out
    words = [made.address, rows, columns, parts]
    for (a, b, depth), first in zip(terms, offsets_of(counts).tolist(), strict=False):
        words += [a.address, b.address, depth, first]
    blocks = tiles_of(tile, rows, columns) * (parts if is_split else 1)
    device.launch(kernel_code("arrays.product_code.product", form), blocks, words)
    if is_split:
        words = [out.address, made.address, parts, out.size]
        launch_over(device, kernel_code("arrays.product_code.joined", form.dtype, out.dtype), out.size, words)


def matrix_of(out: DeviceArray) -> tuple[int, int]:
    """Returns the rows and the columns of a result, whose last axis are the columns."""
    return prod(out.shape[:-1]), out.shape[-1]


def parts_of(terms: Sequence[ProductTerm]) -> list[int]:
    """Returns the number of parts of each term."""
    return [-(-depth // PART) for *_, depth in terms]


def tiles_for(way: str, dtype: str) -> Sequence[ProductTile]:
    """Returns the tiles for a way to multiply and a dtype, from the largest on."""
    if way in TENSOR_WAYS:
        return TENSOR
    return WIDE if np.dtype(DTYPES[dtype].compute).itemsize == 8 else PLAIN


def tiles_of(tile: ProductTile, rows: int, columns: int) -> int:
    """Returns the number of tiles of a result."""
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def chosen(
    tiles: Sequence[ProductTile], rows: int, columns: int, parts: int, multiprocessors: int
) -> tuple[ProductTile, bool]:
    """Chooses the largest tile of which there are enough for all multiprocessors, and whether the parts of
    each are split; the smallest one if there are never enough. The bits of the result do not depend on it.
    """
    for tile in tiles:
        count = tiles_of(tile, rows, columns)
        if count >= FEWEST * multiprocessors:
            return tile, False
        if parts > 1 and count * parts >= FEWEST * multiprocessors and rows > tile.rows // 2:
            return tile, True
    return tiles[-1], parts > 1
