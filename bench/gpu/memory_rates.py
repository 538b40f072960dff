"""Rates of the target's kernels for memory and matrix products.

Each row has the time of a call, its rate, and for products the largest error of some rows as a share of the
one tolerance. PyTorch's products of the same matrices are beside them if it is installed and finds the GPU. A
time is that of many calls one after another, so that it is at least the time of a launch.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from bench.gpu.place import Place, Rows
from bench.gpu.placed import error_of
from stepnet.compiler.net.windows import Window
from stepnet.compiler.targets.cuda import CudaMemory, DeviceArray, contracted, empty, get, multiply
from stepnet.compiler.targets.cuda.arrays.products import compute_by, parts_of, tiles_for
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
ENTRIES, FEW_ENTRIES = (16, 128, 1024, 16384), (16, 40)
SHAPES, FEW_SHAPES = ((256, 768), (1024, 4096), (512, 2048), (64, 192)), ((20, 24),)
"""The inputs and the columns (gates times units) of the products of recurrences."""
WAYS = ("float32", "plain", "bfloat16", "tf32")
DIGITS = {"tf32": "float16", "bfloat16": "bfloat16"}
"""Dtypes with as many digits as the numbers that are multiplied, where these are not float32."""
CHECKED = 32
"""The rows of a product that are compared with float64."""
RANDOM = np.random.default_rng(0)


def rated(seconds: float, amount: float, unit: str, **more: Any) -> dict[str, Any]:
    """Returns a row: the microseconds of a call, and its amount per second in units of 10^12."""
    return {"microseconds": seconds * 1e6, unit: amount / seconds / 1e12, **more}


# ---- memory ------------------------------------------------------------------------------------------------


def memory_calls(
    memory: CudaMemory, features: int, sequences: int, steps: int
) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yields the name of each move or reduction, its call, and the bytes that it reads and writes."""
    rows = sequences * steps
    offsets, counts = offsets_of(np.full(sequences, steps)), np.full(sequences, steps)
    x = memory.put(RANDOM.standard_normal((rows, features)).astype(np.float32))
    order = RANDOM.permutation(rows)
    indices, made, size = memory.indices(order), memory.copy(x), x.nbytes
    few = memory.take(x, np.arange(sequences))
    window = Window(3, 1, 1)
    windows = memory.windowed("windows", x, offsets, offsets, window)
    yield "copy by the driver", lambda: memory.device.copy(made.address, x.address, x.nbytes), 2 * size
    yield "rows in order", lambda: memory.move(made, x, rows, None, None), 2 * size
    yield "rows by indices on the device", lambda: memory.move(made, x, rows, None, indices), 2 * size
    yield "take", lambda: memory.take(x, order), 2 * size
    yield "repeat", lambda: memory.repeat(few, counts), size
    for how in ("sum", "max"):
        yield f"{how} of sequences", lambda how=how: memory.reduce(how, x, offsets), size
    yield "sum of all", lambda: memory.reduce("sum", x, np.array([0, rows])), size
    yield "windows of 3", lambda: memory.windowed("windows", x, offsets, offsets, window), 4 * size
    yield "overlap of 3", lambda: memory.windowed("overlap", windows, offsets, offsets, window), 4 * size


def memory_rates(place: Place) -> Rows:
    """Yields the rates of moves and reductions."""
    memory = place.memory
    one = memory.put(np.zeros((1, 1), np.float32))
    seconds = place.average(lambda: memory.move(one, one, 1, None, None))
    yield "a launch, one after another", {"microseconds": seconds * 1e6}
    for sizes in place.sized(((64, 4096, 128), (256, 1024, 128)), ((4, 3, 5),)):
        features, sequences, steps = sizes
        for name, call, amount in memory_calls(memory, *sizes):
            full = f"{name}, {sequences * steps} rows of {features} float32"
            yield full, rated(place.average(call), amount, "TB/s")


# ---- products ----------------------------------------------------------------------------------------------


def product_rates(place: Place) -> Rows:
    """Yields the rates of products, and whether rows have the same bits among few rows and among many."""
    memory, entries_of = place.memory, place.sized(ENTRIES, FEW_ENTRIES)
    for depth, columns in place.sized(SHAPES, FEW_SHAPES):
        right = RANDOM.standard_normal((depth, columns)).astype(np.float32)
        left = RANDOM.standard_normal((max(entries_of), depth)).astype(np.float32)
        a, b, firsts = memory.put(left), memory.put(right), dict[str, Array]()
        for entries in entries_of:
            few, flops = part_of(a, entries), 2 * entries * depth * columns
            out = empty(memory.device, (entries, columns), "float32")
            for way in WAYS:
                call = partial(multiply, memory.device, [few], [b], way, out)
                seconds = place.average(call)
                made = get(part_of(out, 16))
                same = bool(np.array_equal(firsts.setdefault(way, made), made))
                error = checked(memory, out, left[:entries], right, depth, way)
                more = {"error": error, "same_bits": same, "right": error <= 1 and same}
                yield (
                    f"multiply {entries} x {depth} x {columns}, {way}",
                    rated(seconds, flops, "TFLOP/s", **more),
                )
            yield from torch_rates(place, left[:entries], right, flops)


def tile_rates(place: Place) -> Rows:
    """Yields the rate of products by each shape of tile, with their parts split and not."""
    memory = place.memory
    for entries, depth, columns in place.sized(((16, 1024, 4096), (1024, 256, 768)), ((20, 16, 24),)):
        left, right = (
            memory.put(RANDOM.standard_normal(shape).astype(np.float32))
            for shape in ((entries, depth), (depth, columns))
        )
        out, terms = empty(memory.device, (entries, columns), "float32"), [(left, right, depth)]
        for way in WAYS:
            for tile in tiles_for(way, "float32"):
                for is_split in (False, True) if sum(parts_of(terms)) > 1 else (False,):
                    call = partial(compute_by, out, terms, False, way, tile, is_split)
                    size, by = f"{entries} x {depth} x {columns}", f"{tile.rows} x {tile.columns}"
                    name = f"multiply {size}, {way}, {by}{', split' if is_split else ''}"
                    yield name, rated(place.average(call), 2 * entries * depth * columns, "TFLOP/s")


def contract_rates(place: Place) -> Rows:
    """Yields the rates of sums of outer products."""
    memory = place.memory
    for m, n in place.sized(SHAPES[:3], FEW_SHAPES):
        for entries in place.sized(ENTRIES[2:], FEW_ENTRIES[1:]):
            left, right = (RANDOM.standard_normal((entries, size)).astype(np.float32) for size in (m, n))
            a, b, out = memory.put(left), memory.put(right), empty(memory.device, (m, n), "float32")
            for way in WAYS:
                call = partial(contracted, memory.device, a, b, way, out)
                seconds = place.average(call)
                error = checked(memory, out, left.T, right, entries, way)
                row = rated(seconds, 2 * entries * m * n, "TFLOP/s", error=error, right=error <= 1)
                yield f"contracted {entries} entries to {m} x {n}, {way}", row


def checked(memory: CudaMemory, out: DeviceArray, left: Array, right: Array, depth: int, way: str) -> float:
    """Returns the largest error of some rows of a product, as a share of the tolerance."""
    rows = RANDOM.permutation(out.shape[0])[:CHECKED]
    exact = left[rows].astype(np.float64) @ right
    return error_of([get(memory.take(out, rows))], [exact], 1, depth, DIGITS.get(way, "float32"))


def part_of(array: DeviceArray, rows: int) -> DeviceArray:
    """Returns the first rows of an array, in the same memory."""
    return DeviceArray(array.device, array.address, (rows, *array.shape[1:]), array.dtype, array.owner)


def torch_rates(place: Place, left: Array, right: Array, flops: int) -> Rows:
    """Yields the rates of PyTorch's product, if it is installed."""
    if find_spec("torch") is None:
        return
    import torch

    if not place.is_emulated and not torch.cuda.is_available():
        return
    matrices: Any = [torch.from_numpy(np.ascontiguousarray(x)).to(place.torch_device) for x in (left, right)]
    name = f"torch.matmul {left.shape[0]} x {left.shape[1]} x {right.shape[1]}"
    for numbers, precision, dtype in (
        ("float32", "highest", torch.float32),
        ("tf32", "high", torch.float32),
        ("bfloat16", "highest", torch.bfloat16),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = (x.to(dtype) for x in matrices)
        seconds = place.average(lambda a=a, b=b: torch.matmul(a, b))
        yield f"{name}, {numbers}", rated(seconds, flops, "TFLOP/s")
    torch.set_float32_matmul_precision("highest")
