"""Random moves, sums and products on a device, in emulation with random orders of threads, beside those of
the host in float64.
"""

import numpy as np
import pytest
from tolerance import distance, tolerance

from stepnet.compiler.net.memory import HOST
from stepnet.compiler.net.pairs import OVER, PairPlaces
from stepnet.compiler.net.windows import Window
from stepnet.compiler.targets.cuda import WAYS, CudaMemory, DeviceFacts, EmulatedDevice, contracted, multiply
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.ragged import offsets_of


class Drawn:
    """Random arguments, and the memory in which a case runs. seed: of both."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        facts = DeviceFacts("emulation", (9, 0), int(self.random.choice([1, 3, 132])), 232448)
        self.memory = CudaMemory(EmulatedDevice(seed + 1, facts))
        self.dtype = str(self.random.choice([*DTYPES]))
        self.features = tuple(self.random.integers(1, 6, self.random.integers(0, 3)))

    def lengths(self):
        """Lengths of sequences, some of them 0."""
        return self.random.integers(0, 12, self.random.integers(1, 6))

    def array(self, rows, *features, dtype=""):
        """An array of a dtype, of integers whose sums the host rounds nowhere."""
        drawn = self.random.integers(-8, 9, (int(rows), *features))
        return drawn.astype(np.float64).astype(dtype or self.dtype)

    def assert_same(self, made, right, length=1):
        """Asserts that an array of the device is one of the host, up to rounding."""
        array = self.memory.get(made)
        assert array.shape == right.shape
        is_float = DTYPES[array.dtype.name].kind == "float"
        actual = array.astype(np.float64) if is_float else array
        assert distance(actual, right) <= (tolerance(array.dtype, length) if is_float else 0)


def wide(array):
    """An array with floats in float64."""
    return array.astype(np.float64) if DTYPES[array.dtype.name].kind == "float" else array


def moves(drawn):
    x = drawn.array(drawn.random.integers(1, 30), *drawn.features)
    buffer = drawn.memory.put(x)
    indices = drawn.random.integers(-len(x), len(x), drawn.random.integers(0, 40))
    drawn.assert_same(drawn.memory.take(buffer, indices), wide(x)[indices])
    counts = drawn.random.integers(0, 4, len(x))
    drawn.assert_same(drawn.memory.repeat(buffer, counts), HOST.repeat(wide(x), counts))
    places = drawn.random.permutation(len(x))[: drawn.random.integers(0, len(x) + 1)]
    rows = drawn.array(drawn.random.choice([1, len(places)]), *drawn.features)
    right = x.copy()
    right[places] = rows
    drawn.memory.write(buffer, places, drawn.memory.put(rows))
    drawn.assert_same(buffer, wide(right))


def reductions(drawn):
    lengths = drawn.lengths() * drawn.random.choice([1, 100])
    offsets, how = offsets_of(lengths), str(drawn.random.choice(["sum", "mean", "max", "first", "last"]))
    x = drawn.array(offsets[-1], *drawn.features)
    made = drawn.memory.reduce(how, drawn.memory.put(x), offsets)
    drawn.assert_same(made, HOST.reduce(how, wide(x), offsets), lengths.max())


def windows(drawn):
    size, dilation, stride = (int(n) for n in drawn.random.integers(1, 4, 3))
    reach = (size - 1) * dilation
    before = int(drawn.random.integers(0, reach + 1))
    window = Window(size, dilation, before, stride, int(drawn.random.integers(0, reach - before + 1)))
    lengths = drawn.lengths()
    steps, made = offsets_of(lengths), offsets_of(window.lengths.of(lengths))
    x, y = drawn.array(steps[-1], *drawn.features), drawn.array(made[-1], size, *drawn.features)
    copied = drawn.memory.windowed("windows", drawn.memory.put(x), made, steps, window)
    drawn.assert_same(copied, HOST.windowed("windows", wide(x), made, steps, window))
    added = drawn.memory.windowed("overlap", drawn.memory.put(y), steps, made, window)
    drawn.assert_same(added, HOST.windowed("overlap", wide(y), steps, made, window), size)


def pairs(drawn):
    lengths = drawn.lengths()
    queries, keys = offsets_of(lengths), offsets_of(drawn.random.permutation(lengths))
    places = PairPlaces.of(queries, keys, bool(drawn.random.integers(2)))
    q, k = (drawn.array(each[-1], *drawn.features, 3) for each in (queries, keys))
    weights = drawn.array(places.offsets[-1], *drawn.features)
    over = str(drawn.random.choice(OVER))
    for case in (("scores", q, k, ""), ("mix", weights, k if over == "keys" else q, over)):
        operation, first, second, over = case
        made = drawn.memory.paired(operation, drawn.memory.put(first), drawn.memory.put(second), places, over)
        drawn.assert_same(made, HOST.paired(operation, wide(first), wide(second), places, over), 12)


def products(drawn):
    rows, depth, columns = (int(n) for n in drawn.random.integers(1, 90, 3))
    depth *= int(drawn.random.choice([1, 10]))
    left, right = (drawn.array(a, b, dtype="float32") for a, b in ((rows, depth), (depth, columns)))
    way = str(drawn.random.choice(WAYS))  # small integers are numbers of bfloat16
    device, put = drawn.memory.device, drawn.memory.put
    drawn.assert_same(multiply(device, [put(left)], [put(right)], way), wide(left) @ right, depth)
    drawn.assert_same(contracted(device, put(left.T), put(right), way), wide(left) @ right, depth)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("case", [moves, reductions, windows, pairs, products])
@pytest.mark.long(every=23)
def test_random_cases(case, seed):
    case(Drawn(seed))
