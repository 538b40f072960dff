"""Values over all rows on a device, in emulation, beside those of NumPy in float64."""

import numpy as np
import pytest
from tolerance import distance, tolerance

from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Type
from stepnet.compiler.net.interpreter import LevelSizes, contract
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.targets.cuda import CudaMemory, DeviceFacts, EmulatedDevice
from stepnet.compiler.targets.cuda.arrays.totals import reduced_to_rows, total
from stepnet.errors import IndexOutsideError
from stepnet.ragged import offsets_of

MEMORIES = [CudaMemory(EmulatedDevice(seed, DeviceFacts("emulation", (9, 0), 2, 232448))) for seed in (1, 2)]
MEMORY = MEMORIES[0]


def node_of(operation, arrays, extent=STEPS, to=None, **attributes):
    """A net whose last node is an operation on arrays at an extent. to: the attribute `extent`, if any."""
    attributes |= {} if to is None else {"extent": to}
    builder = Builder()
    types = [Type(extent, array.shape[1:], array.dtype.name) for array in arrays]
    inputs = [builder.input(type_, f"x{n}") for n, type_ in enumerate(types)]
    return builder.net([builder.add(operation, *inputs, **attributes)])


def wide(array):
    """An array with floats in float64."""
    return array.astype(np.float64) if array.dtype.kind not in "ib" else array


def normal(seed, *shape):
    """An array of normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_total(operation, arrays, extent=STEPS, length=1, **attributes):
    """Asserts that a total is the same as NumPy's, and has the same bits in each order of threads."""
    node = node_of(operation, arrays, extent, **attributes).nodes[-1]
    right = total_of(node, [wide(array) for array in arrays])
    made = [memory.get(total(memory, node, [memory.put(x) for x in arrays])) for memory in MEMORIES]
    assert made[0].dtype == node.type.dtype
    assert made[0].shape == right.shape
    most = tolerance(node.type.dtype, length) if node.type.is_float else 0
    assert distance(made[0].astype(np.float64), right) <= most
    np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("count", [0, 1, 30, 1100])
def test_sums_of_outer_products(count):
    assert_total("contract", [normal(0, count, 5), normal(1, count, 20)], length=count)


@pytest.mark.parametrize("weights", [None, "bfloat16"])
def test_outer_products_of_values_with_more_axes(weights):
    more = {} if weights is None else {"weights": weights}
    assert_total("contract", [normal(2, 9, 2, 3), normal(3, 9, 2, 4)], extent=ROWS, length=18, **more)
    arrays = [normal(2, 9, 2, 3).astype(np.float64), normal(3, 9, 2, 4).astype(np.float64)]
    assert_total("contract", arrays, extent=ROWS, length=18, **more)


@pytest.mark.parametrize("how", ["sum", "mean", "max", "first", "last"])
def test_reductions_over_all_rows(how):
    for count in (0, 1, 37):
        assert_total("reduce", [normal(4, count, 3, 2)], extent=ROWS, length=count, how=how)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_at_indices(constants, dtype):
    constants("stepnet.compiler.targets.cuda.arrays.memory", PART=8)
    random = np.random.default_rng(5)
    index = random.integers(-3, 6, (50, 2))
    values = random.integers(-9, 9, (50, 2, 3)).astype(dtype)
    assert_total("scatter", [index, values], length=100, rows=6)
    assert_total("scatter", [index[:0], values[:0]], rows=6)
    assert_total("scatter", [index[:, 0].astype(np.int32), normal(6, 50)], length=50, rows=7)


def test_an_index_outside_of_the_table_is_refused():
    index, values = np.array([0, 3]), normal(7, 2, 2)
    node = node_of("scatter", [index, values], rows=3).nodes[-1]
    with pytest.raises(IndexOutsideError, match="outside the rows of the parameter"):
        total(MEMORY, node, [MEMORY.put(index), MEMORY.put(values)])


@pytest.mark.parametrize("weights", [None, "bfloat16"])
def test_a_matrix_for_each_row(weights):
    more = {} if weights is None else {"weights": weights}
    arrays, offsets = [normal(8, 9, 2, 3), normal(9, 9, 2, 4)], offsets_of([4, 0, 5])
    net = node_of("contract", arrays, **more, to=ROWS)
    segments = LevelSizes(3, (offsets,))
    right = contract(net, net.nodes[-1], [wide(x) for x in arrays], segments)
    made = MEMORY.get(reduced_to_rows(MEMORY, net.nodes[-1], [MEMORY.put(x) for x in arrays], offsets))
    assert made.dtype == np.float32
    assert distance(made, right) <= tolerance("float32", 10)


def test_a_reduction_to_rows():
    x, offsets = normal(10, 9, 2), offsets_of([4, 0, 5])
    node = node_of("reduce", [x], how="max").nodes[-1]
    made = MEMORY.get(reduced_to_rows(MEMORY, node, [MEMORY.put(x)], offsets))
    np.testing.assert_array_equal(made, [x[:4].max(0), [0, 0], x[4:].max(0)])
    assert node.type.extent == ROWS != CONST
