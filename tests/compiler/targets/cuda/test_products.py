"""Matrix products on a device, in emulation, beside NumPy's in float64."""

import numpy as np
import pytest
from tolerance import distance, tolerance

from stepnet.compiler.net.encodings import rounded
from stepnet.compiler.targets.cuda import (
    WAYS,
    CudaMemory,
    DeviceFacts,
    EmulatedDevice,
    ProductForm,
    assembled,
    contracted,
    empty,
    get,
    kernel_code,
    multiply,
    ptxas,
)
from stepnet.compiler.targets.cuda.arrays import product_code, products
from stepnet.compiler.targets.cuda.arrays.products import PLAIN, TENSOR, WIDE
from stepnet.compiler.values.dtypes import DTYPES

SMALL, LARGE = (
    CudaMemory(EmulatedDevice(seed, DeviceFacts("emulation", (9, 0), count, 232448)))
    for seed, count in ((1, 1), (2, 100))
)
"""With few multiprocessors tiles are large, and with many they are small and parts are split."""
PRECISION = {"float32": "float32", "tf32": "float16", "bfloat16": "bfloat16", "rounded": "bfloat16"}
"""A dtype with as many bits in its mantissa as the numbers that are multiplied."""
MIXED = [way for way in WAYS if "-" in way]
"""The ways for a side of 16 bits beside one of float32."""
SHAPES = [(1, 1, 1), (5, 7, 9), (70, 40, 66), (3, 33, 130), (17, 16, 3)]


def multiplied(memory, left, right, way="", is_transposed=False):
    """A product of two matrices, or of two lists of them; the left one may be given as [k, rows]."""
    lefts, rights = (
        [memory.put(each) for each in (x if isinstance(x, list) else [x])] for x in (left, right)
    )
    if is_transposed:
        return get(contracted(memory.device, lefts[0], rights[0], way))
    return get(multiply(memory.device, lefts, rights, way))


def normal(seed, shape, dtype="float32"):
    """An array of normal numbers of a dtype."""
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)


def stored(way, left, right):
    """Both sides of a product as a way takes them: those that it knows to be in 16 bits, such as the right
    one of "float32-bfloat16", have the digits of these.
    """
    dtypes = way.split("-") if "-" in way else ("float32", "float32")
    return [side.astype(dtype).astype("f4") for side, dtype in zip((left, right), dtypes, strict=True)]


def assert_product(actual, right, depth, dtype):
    """Asserts a product up to the rounding of sums of products of a dtype."""
    assert actual.shape == right.shape
    assert distance(actual.astype(np.float64), right) <= 3 * tolerance(dtype, depth)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long(each=True)
def test_products_of_float32(way, shape):
    count, depth, columns = shape
    left, right = stored(way, normal(0, (count, depth)), normal(1, (depth, columns)))
    exact = left.astype(np.float64) @ right
    for memory in (SMALL, LARGE):
        made = multiplied(memory, left, right, way)
        assert_product(made, exact, depth, PRECISION.get(way, "float32"))
        np.testing.assert_array_equal(multiplied(memory, left.T, right, way, is_transposed=True), made)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "int32", "int64"])
@pytest.mark.long(every=3)
def test_products_of_other_dtypes(dtype):
    for depth in (35, 520):
        left, right = normal(2, (20, depth), dtype), normal(3, (depth, 18), dtype)
        made = multiplied(SMALL, left, right)
        assert made.dtype == dtype
        np.testing.assert_array_equal(multiplied(LARGE, left, right), made)
        exact = left.astype(np.float64) @ right.astype(np.float64)
        if "int" in dtype:
            np.testing.assert_array_equal(made, exact)
        else:
            assert_product(made, exact, 1, dtype)


def test_a_sum_of_products_with_sides_of_different_sizes():
    lefts = [normal(4, (6, 2, depth)) for depth in (5, 600, 0, 17)]
    rights = [normal(5, (depth, 10)) for depth in (5, 600, 0, 17)]
    exact = sum(a.astype(np.float64) @ b for a, b in zip(lefts, rights, strict=True))
    for memory in (SMALL, LARGE):
        for way in ("plain", "float32"):
            assert_product(multiplied(memory, lefts, rights, way), exact, 622, "float32")


def test_nothing_to_multiply():
    left, right = np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32)
    np.testing.assert_array_equal(multiplied(SMALL, left, right), np.zeros((3, 4)))
    assert multiplied(SMALL, left[:0], right).shape == (0, 4)
    made = multiplied(SMALL, left.T, np.ones((0, 4), np.float32), is_transposed=True)
    np.testing.assert_array_equal(made, np.zeros((3, 4)))


@pytest.mark.parametrize("way", ["float32", "plain", "rounded", "tf32", "bfloat16"])
@pytest.mark.long(every=2)
def test_a_row_has_the_same_bits_in_any_tile_and_number_of_rows(constants, way):
    constants(product_code, PART=32)
    constants(products, PART=32)
    kernel_code.cache_clear()
    left, right = normal(6, (130, 70)), normal(7, (70, 20))
    every = [
        multiplied(memory, left[:count], right, way)
        for memory in (SMALL, LARGE)
        for count in (130, 60, 16, 1)
    ]
    kernel_code.cache_clear()
    for made in every:
        np.testing.assert_array_equal(made, every[0][: len(made)])


def test_tiles_are_chosen_by_the_number_of_rows():
    assert products.chosen(PLAIN, 4096, 4096, 2, 132) == (PLAIN[0], False)
    assert products.chosen(TENSOR, 16, 4096, 2, 132) == (TENSOR[-1], True)
    assert products.chosen(WIDE, 1, 64, 1, 132) == (WIDE[-1], False)


@pytest.mark.parametrize("way", ["plain", "float32", "tf32", "bfloat16", *MIXED])
def test_infinite_numbers_and_nan(way):
    left, right = stored(way, normal(8, (18, 9)), normal(9, (9, 12)))
    left[0, 3], left[2, 1], left[3, 3], left[4, :2] = np.inf, np.nan, -np.inf, (np.inf, -np.inf)
    left.view(np.int32)[2, 1] = 0x7FFFFFFF
    right[:, 0], right[3, 1] = 1, 0
    for memory in (SMALL, LARGE):
        made = multiplied(memory, left, right, way)
        with np.errstate(invalid="ignore"):
            exact = left.astype(np.float64) @ right
        assert_product(made, exact, 9, PRECISION.get(way, "float32"))


@pytest.mark.parametrize("way", ["float32", *MIXED])
def test_float32_is_multiplied_as_exactly_as_by_the_plain_units(way):
    left, right = (np.abs(normal(seed, shape)) for seed, shape in ((10, (16, 2000)), (11, (2000, 8))))
    left, right = stored(way, left, right)
    exact = left.astype(np.float64) @ right
    made = multiplied(LARGE, left, right, way)
    assert distance(made, exact) <= tolerance("float32", 2000)


def test_a_matrix_that_is_stored_in_bfloat16():
    left, right = normal(12, (9, 20)), normal(13, (20, 11), "bfloat16")
    made = multiplied(SMALL, left, right)
    assert made.dtype == np.float32
    assert_product(made, left.astype(np.float64) @ right.astype(np.float64), 20, "float32")


@pytest.mark.parametrize("way", ["bfloat16", "rounded"])
def test_both_sides_rounded_to_bfloat16(way):
    left, right = normal(14, (9, 20)), normal(15, (20, 11))
    exact = rounded(left).astype(np.float64) @ rounded(right)
    assert_product(multiplied(SMALL, left, right, way), exact, 20, "float32")


def test_an_array_that_is_given_is_filled():
    left, right, device = normal(16, (2, 3, 4)), normal(17, (4, 5)), SMALL.device
    out = empty(device, (6, 5), "float64")
    made = multiply(device, [SMALL.put(left)], [SMALL.put(right)], "plain", out)
    assert made is out
    assert_product(get(out), (left.astype(np.float64) @ right).reshape(6, 5), 4, "float32")


def forms():
    """Kinds of products: all ways and tiles for float32, and other dtypes."""
    made = [
        ProductForm("float32", "float32", "float32", 1, is_transposed, way, tile, False)
        for way in WAYS
        for tile in products.tiles_for(way, "float32")
        for is_transposed in (False, True)
    ]
    made += [
        ProductForm(dtype, dtype, dtype, 3, False, "plain", tile, True)
        for dtype in DTYPES
        for tile in products.tiles_for("plain", dtype)
    ]
    return {"-".join(map(str, vars(form).values())): form for form in made}


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.long(every=60)
@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
@pytest.mark.parametrize("name", forms())
def test_ptxas_takes_the_kernels_of_products(name, capability):
    assert assembled(product_code.product(forms()[name]), capability).spilled <= 64
