"""The memory of a device, in emulation: what rows become is what they become on the host, in float64."""

import numpy as np
import pytest
from tolerance import distance, tolerance

from stepnet.compiler.net.memory import HOST
from stepnet.compiler.net.pairs import OVER, PairPlaces
from stepnet.compiler.net.windows import Window
from stepnet.compiler.targets.cuda import CudaMemory, DeviceFacts, EmulatedDevice, assembled, ptxas
from stepnet.compiler.targets.cuda.arrays import moves, sums
from stepnet.compiler.targets.cuda.arrays.memory import sum_dtype
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.ragged import offsets_of

FACTS = DeviceFacts("emulation", (9, 0), 1, 232448)
"""Few multiprocessors: loops of kernels run more than once, and a launch has few threads."""
MEMORIES = {seed: CudaMemory(EmulatedDevice(seed, FACTS)) for seed in (0, 1, 2)}
MEMORY = MEMORIES[1]
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def drawn(seed, shape, dtype):
    """An array of small numbers of a dtype, some of them equal."""
    return np.random.default_rng(seed).integers(-6, 7, shape).astype(np.float64).astype(dtype) * 1


def wide(array):
    """An array with floats in float64."""
    return array.astype(np.float64) if DTYPES[array.dtype.name].kind == "float" else array


def assert_alike(actual, right, length=1):
    """Asserts the dtype, the shape, and the values of an array up to the rounding of sums of `length` terms,
    which aren't rounded here if they are small integers.
    """
    assert actual.shape == right.shape
    assert distance(wide(actual), right) <= (
        tolerance(actual.dtype, length) if DTYPES[actual.dtype.name].kind == "float" else 0
    )


@dtypes
@pytest.mark.parametrize("shape", [(7, 5), (7,), (6, 2, 3), (5, 8), (4, 0), (3, 300)])
@pytest.mark.long(each=True)
def test_rows_move_as_on_the_host(dtype, shape):
    x = drawn(0, shape, dtype)
    buffer, count = MEMORY.put(x), shape[0]
    indices = np.array([1, 0, -1, 2, 1])
    np.testing.assert_array_equal(MEMORY.get(MEMORY.take(buffer, indices)), x[indices])
    counts = np.arange(count) % 3
    np.testing.assert_array_equal(MEMORY.get(MEMORY.repeat(buffer, counts)), HOST.repeat(x, counts))
    np.testing.assert_array_equal(MEMORY.get(MEMORY.rows(buffer, 3)), HOST.rows(x, 3))
    np.testing.assert_array_equal(MEMORY.get(MEMORY.zeros(shape, dtype)), HOST.zeros(shape, dtype))
    places = np.array([2, 0])
    for rows in (x[:2], x[:1], x[0]):
        changed, right = MEMORY.copy(buffer), x.copy()
        MEMORY.write(changed, places, MEMORY.put(rows))
        right[places] = rows
        np.testing.assert_array_equal(MEMORY.get(changed), right)
    np.testing.assert_array_equal(MEMORY.get(buffer), x)


def test_no_rows():
    x = MEMORY.put(np.zeros((0, 3), np.float32))
    none = np.zeros(0, np.int64)
    assert MEMORY.get(MEMORY.take(x, none)).shape == (0, 3)
    assert MEMORY.get(MEMORY.repeat(x, none)).shape == (0, 3)
    assert MEMORY.get(MEMORY.rows(x, 2)).shape == (2, 0, 3)
    assert MEMORY.get(MEMORY.reduce("sum", x, np.zeros(1, np.int64))).shape == (0, 3)
    assert not MEMORY.get(MEMORY.reduce("max", x, np.zeros(3, np.int64))).any()
    MEMORY.write(x, none, x)


def test_an_index_outside_of_the_rows_is_refused():
    x = MEMORY.put(np.zeros((2, 3), np.float32))
    with pytest.raises(IndexError, match="index 2 is outside of 2 rows"):
        MEMORY.take(x, np.array([0, 2]))
    with pytest.raises(IndexError, match="index -3 is outside of 2 rows"):
        MEMORY.write(x, np.array([-3]), x)


def test_rows_of_another_shape_or_dtype_are_not_written():
    x = MEMORY.put(np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match="2 rows of"):
        MEMORY.write(x, np.array([0, 1]), MEMORY.put(np.zeros((3, 3), np.float32)))
    with pytest.raises(ValueError, match="rows of float64 cannot replace rows of float32"):
        MEMORY.write(x, np.array([0]), MEMORY.put(np.zeros((1, 3))))


def test_an_array_of_the_device_is_put_as_it_is():
    x = MEMORY.put(np.arange(3))
    assert MEMORY.put(x) is x
    other = MEMORIES[2].put(x)
    assert other.device is MEMORIES[2].device
    np.testing.assert_array_equal(MEMORY.get(other), np.arange(3))


def test_rows_at_an_odd_address():
    x = np.arange(40, dtype=np.float32).reshape(8, 5)
    buffer = MEMORY.put(x)
    inner = type(buffer)(buffer.device, buffer.address + 20, (7, 5), "float32", buffer.owner)
    np.testing.assert_array_equal(MEMORY.get(MEMORY.take(inner, np.array([6, 0]))), x[[7, 1]])


@dtypes
@pytest.mark.parametrize("how", ["sum", "mean", "max", "first", "last"])
@pytest.mark.long(each=True)
def test_reductions_of_sequences(how, dtype):
    offsets = offsets_of([3, 0, 1, 40, 0, 7])
    for features in ((5,), (), (2, 35)):
        x = drawn(1, (51, *features), dtype)
        made = MEMORY.get(MEMORY.reduce(how, MEMORY.put(x), offsets))
        right = HOST.reduce(how, wide(x), offsets)
        assert made.dtype == HOST.reduce(how, x, offsets).dtype
        assert_alike(made, right, 40)


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_long_sequences_are_reduced_in_parts(constants, how):
    constants("stepnet.compiler.targets.cuda.arrays.memory", PART=4)
    offsets = offsets_of([9, 0, 4, 1, 40])
    x = np.random.default_rng(2).standard_normal((54, 3)).astype(np.float32)
    made = MEMORY.get(MEMORY.reduce(how, MEMORY.put(x), offsets))
    assert_alike(made, HOST.reduce(how, wide(x), offsets), 40)
    alone = MEMORY.get(MEMORY.reduce(how, MEMORY.put(x[14:]), offsets_of([40])))
    np.testing.assert_array_equal(made[4:], alone)
    short = MEMORY.get(MEMORY.reduce(how, MEMORY.put(x[9:14]), offsets_of([4, 1])))
    np.testing.assert_array_equal(made[2:4], short)


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_the_mean_of_a_long_sequence_of_integers(constants, dtype):
    constants("stepnet.compiler.targets.cuda.arrays.memory", PART=4)
    x = (np.arange(9) % 2 * 2**31 - np.arange(9) % 2).astype(dtype)
    made = MEMORY.get(MEMORY.reduce("mean", MEMORY.put(x), offsets_of([9])))
    assert_alike(made, HOST.reduce("mean", x, offsets_of([9])))


def test_a_sum_has_the_same_bits_alone_and_in_any_order_of_threads():
    x = np.random.default_rng(3).standard_normal((100, 6)).astype(np.float32)
    offsets = offsets_of([13, 50, 0, 37])
    each = [memory.get(memory.reduce("sum", memory.put(x), offsets)) for memory in MEMORIES.values()]
    for other in each[1:]:
        np.testing.assert_array_equal(each[0], other)
    alone = MEMORY.get(MEMORY.reduce("sum", MEMORY.put(x[13:63]), offsets_of([50])))
    np.testing.assert_array_equal(each[0][1:2], alone)


def test_the_reductions_of_special_numbers():
    x = np.array([[-0.0, np.nan, -np.inf, np.inf]] * 2, np.float32)
    offsets = offsets_of([2])
    total = MEMORY.get(MEMORY.reduce("sum", MEMORY.put(x), offsets))
    np.testing.assert_array_equal(total, [[0, np.nan, -np.inf, np.inf]])
    assert np.signbit(total[0, 0])
    np.testing.assert_array_equal(MEMORY.get(MEMORY.reduce("max", MEMORY.put(x), offsets)), x[:1])


WINDOWS = {
    "around": Window(3, 1, 2),
    "far": Window(2, 3, 0),
    "strides": Window(3, 1, 1, stride=2, lost=0),
    "fewer": Window(3, 1, 0, stride=1, lost=2),
    "middle": Window(4, 1, 0, stride=2, same="upper"),
}


@dtypes
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.long(each=True)
def test_windows_and_their_overlap(dtype, window):
    own, lengths = WINDOWS[window], np.array([5, 0, 1, 9])
    steps, made = offsets_of(lengths), offsets_of(own.lengths.of(lengths))
    for features in ((3,), ()):
        x = drawn(4, (15, *features), dtype)
        result = MEMORY.get(MEMORY.windowed("windows", MEMORY.put(x), made, steps, own))
        np.testing.assert_array_equal(result, HOST.windowed("windows", x, made, steps, own))
        y = drawn(5, (int(made[-1]), own.size, *features), dtype)
        result = MEMORY.get(MEMORY.windowed("overlap", MEMORY.put(y), steps, made, own))
        assert_alike(result, HOST.windowed("overlap", wide(y), steps, made, own), own.size)


@dtypes
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.long(each=True)
def test_scores_and_mixes_of_pairs(dtype, causal):
    queries, keys = offsets_of([2, 0, 3, 4]), offsets_of([3, 2, 0, 2])
    pairs = PairPlaces.of(queries, keys, causal)
    for heads in ((), (2,)):
        q, k = drawn(6, (9, *heads, 5), dtype), drawn(7, (7, *heads, 5), dtype)
        w = drawn(8, (int(pairs.offsets[-1]), *heads), dtype)
        for case in (("scores", q, k, ""), ("mix", w, k, "keys"), ("mix", w, q, "queries")):
            operation, first, second, over = case
            made = MEMORY.paired(operation, MEMORY.put(first), MEMORY.put(second), pairs, over)
            right = HOST.paired(operation, wide(first), wide(second), pairs, over)
            assert_alike(MEMORY.get(made), right, 5)


def test_indices_are_kept_by_their_contents():
    memory = CudaMemory(EmulatedDevice(0, FACTS))
    indices = np.array([2, 0])
    first = memory.indices(indices)
    assert memory.indices(indices.copy()) is first
    indices[0] = 1
    np.testing.assert_array_equal(memory.get(memory.indices(indices)), [1, 0])


def kernels():
    """The kernels of moves, reductions, windows and pairs, by a text."""
    made = [moves.owners()]
    for word in moves.WORDS:
        made += [moves.moved(word, True, True), moves.windows(word)]
    for dtype in DTYPES:
        made += [
            *(sums.reduced(how, dtype, DTYPES[dtype].compute, dtype, True) for how in ("sum", "max")),
            sums.reduced("mean", dtype, sum_dtype("mean", dtype), sum_dtype("mean", dtype)),
            sums.contracted_rows(dtype, dtype, dtype, "bfloat16" if dtype.startswith("float") else ""),
            *(sums.mix(dtype, over) for over in OVER),
            *(sums.overlap(dtype), sums.scores(dtype)),
        ]
    return {code.name: code for code in made}


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.long(every=16)
@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
@pytest.mark.parametrize("name", kernels())
def test_ptxas_takes_the_kernels_of_the_memory(name, capability):
    assert assembled(kernels()[name], capability).spilled == 0
