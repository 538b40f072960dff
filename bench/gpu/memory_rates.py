"""Rates of the target cuda's kernels for memory and matrix products: `python -m bench.gpu.memory_rates`.

Each line has the time of a call on a GPU, its rate, and for products the largest error of some rows as a
share of the one tolerance. PyTorch's products of the same matrices are beside them if it is installed and
finds the GPU. A time is that of many calls one after another, so that it is at least the time of a launch.
"""

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import typer

from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.net.windows import Window
from stepnet.compiler.targets.cuda.device import DeviceArray, empty, get
from stepnet.compiler.targets.cuda.driver import CudaDevice
from stepnet.compiler.targets.cuda.memory import CudaMemory
from stepnet.compiler.targets.cuda.products import compute_by, contracted, multiply, parts_of, tiles_for
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
ENTRIES = (16, 128, 1024, 16384)
SHAPES = ((64, 192), (256, 768), (512, 2048), (1024, 4096))
"""The inputs and the columns (gates times units) of the products of recurrences."""
WAYS = ("plain", "float32", "tf32", "bfloat16")
CHECKED = 32
"""The rows of a product that are compared with float64."""
SECONDS = 0.05
"""The time for which a call is repeated."""
RANDOM = np.random.default_rng(0)


def seconds_of(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Returns the seconds of a call: the least of three averages."""
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    count = max(3, min(200, int(SECONDS / (time.perf_counter() - start))))
    averages = list[float]()
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        averages.append((time.perf_counter() - start) / count)
    return min(averages)


def show(name: str, seconds: float, amount: float, unit: str, more: str = "") -> None:
    """Prints a line: the time, and the amount per second in units of 10^12."""
    typer.echo(f"{name:58} {seconds * 1e6:10.1f} us {amount / seconds / 1e12:8.3f} {unit} {more}")


# ---- memory ------------------------------------------------------------------------------------------------


def memory_lines(memory: CudaMemory) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yields the name of each move or reduction, its call, and the bytes that it reads and writes."""
    for features in (64, 256):
        sequences, steps = 4096, 128
        rows = sequences * steps // (features // 64)
        offsets = offsets_of(np.full(rows // steps, steps))
        x = memory.put(RANDOM.standard_normal((rows, features)).astype(np.float32))
        order = RANDOM.permutation(rows)
        indices, counts = memory.indices(order), np.full(rows // steps, steps)
        few = memory.take(x, np.arange(rows // steps))
        made, size = memory.copy(x), x.nbytes
        name = f"{rows} rows of {features} float32"
        yield (
            f"copy by the driver, {name}",
            lambda m=made, x=x: memory.device.copy(m.address, x.address, x.nbytes),
            2 * size,
        )
        yield (
            f"rows in order, {name}",
            lambda m=made, x=x: memory.move(m, x, x.shape[0], None, None),
            2 * size,
        )
        yield (
            f"rows by indices on the device, {name}",
            lambda m=made, x=x, i=indices: memory.move(m, x, x.shape[0], None, i),
            2 * size,
        )
        yield f"take, {name}", lambda x=x, o=order: memory.take(x, o), 2 * size
        yield f"repeat to {name}", lambda f=few, c=counts: memory.repeat(f, c), size
        for how in ("sum", "max"):
            yield f"{how} of sequences, {name}", lambda x=x, o=offsets, h=how: memory.reduce(h, x, o), size
        yield f"sum of all, {name}", lambda x=x: memory.reduce("sum", x, np.array([0, x.shape[0]])), size
        window = Window(3, 1, 1)
        windows = memory.windowed("windows", x, offsets, offsets, window)
        yield (
            f"windows of 3, {name}",
            lambda x=x, o=offsets, w=window: memory.windowed("windows", x, o, o, w),
            4 * size,
        )
        yield (
            f"overlap of 3, {name}",
            lambda x=windows, o=offsets, w=window: memory.windowed("overlap", x, o, o, w),
            4 * size,
        )


def memory_rates(memory: CudaMemory) -> None:
    """Prints the rates of moves and reductions."""
    one = memory.put(np.zeros((1, 1), np.float32))
    seconds = seconds_of(lambda: memory.move(one, one, 1, None, None), memory.device.wait)
    typer.echo(f"{'a launch, one after another':58} {seconds * 1e6:10.1f} us")
    for name, call, amount in memory_lines(memory):
        show(name, seconds_of(call, memory.device.wait), amount, "TB/s")


# ---- products ----------------------------------------------------------------------------------------------


def error_of(memory: CudaMemory, out: DeviceArray, left: Array, right: Array, depth: int) -> str:
    """Returns the largest error of some rows of a product, as a share of the tolerance of float32."""
    rows = RANDOM.permutation(out.shape[0])[:CHECKED]
    exact = left[rows].astype(np.float64) @ right
    away = np.abs(get(memory.take(out, rows)) - exact) / np.maximum(1, np.abs(exact))
    return f"error {away.max() / tolerance('float32', depth):.3g} of the tolerance"


def product_rates(memory: CudaMemory, all_tiles: bool, ways: tuple[str, ...]) -> None:
    """Prints the rates of products, and whether rows have the same bits among few rows and among many."""
    for depth, columns in SHAPES:
        right = RANDOM.standard_normal((depth, columns)).astype(np.float32)
        left = RANDOM.standard_normal((max(ENTRIES), depth)).astype(np.float32)
        a, b = memory.put(left), memory.put(right)
        firsts = dict[str, Array]()
        for entries in ENTRIES:
            few = a.reshaped((entries, depth)) if entries == a.shape[0] else part_of(a, entries)
            out = empty(memory.device, (entries, columns), "float32")
            flops = 2 * entries * depth * columns
            for way in ways:
                name = f"multiply {entries} x {depth} x {columns}, {way}"
                call = lambda o=out, f=few, b=b, w=way: multiply(memory.device, [f], [b], w, o)  # noqa: E731
                seconds = seconds_of(call, memory.device.wait)
                made = get(part_of(out, 16))
                same = np.array_equal(firsts.setdefault(way, made), made)
                more = error_of(memory, out, left[:entries], right, depth) + ("" if same else ", OTHER BITS")
                show(name, seconds, flops, "TFLOP/s", more)
                if all_tiles:
                    tile_rates(memory, out, few, b, way, flops)
            torch_rates(left[:entries], right, flops)


def part_of(array: DeviceArray, rows: int) -> DeviceArray:
    """Returns the first rows of an array, in the same memory."""
    return DeviceArray(array.device, array.address, (rows, *array.shape[1:]), array.dtype, array.owner)


def tile_rates(
    memory: CudaMemory, out: DeviceArray, left: DeviceArray, right: DeviceArray, way: str, flops: int
) -> None:
    """Prints the rate of a product by each shape of tile, with its parts split and not."""
    terms = [(left, right, left.shape[1])]
    for tile in tiles_for(way, "float32"):
        for is_split in (False, True) if sum(parts_of(terms)) > 1 else (False,):
            call = lambda t=tile, s=is_split: compute_by(out, terms, False, way, t, s)  # noqa: E731
            name = f"    tiles of {tile.rows} x {tile.columns}{', split' if is_split else ''}"
            show(name, seconds_of(call, memory.device.wait), flops, "TFLOP/s")


def contract_rates(memory: CudaMemory, ways: tuple[str, ...]) -> None:
    """Prints the rates of sums of outer products."""
    for m, n in SHAPES[1:]:
        for entries in ENTRIES[1:]:
            left, right = (RANDOM.standard_normal((entries, size)).astype(np.float32) for size in (m, n))
            a, b = memory.put(left), memory.put(right)
            out = empty(memory.device, (m, n), "float32")
            for way in ways:
                call = lambda o=out, a=a, b=b, w=way: contracted(memory.device, a, b, w, o)  # noqa: E731
                seconds = seconds_of(call, memory.device.wait)
                name = f"contracted {entries} entries to {m} x {n}, {way}"
                show(
                    name,
                    seconds,
                    2 * entries * m * n,
                    "TFLOP/s",
                    error_of(memory, out, left.T, right, entries),
                )


def torch_rates(left: Array, right: Array, flops: int) -> None:
    """Prints the rates of PyTorch's product, if it is installed."""
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    matrices: Any = [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in (left, right)]
    for name, precision, dtype in (
        ("float32", "highest", torch.float32),
        ("tf32", "high", torch.float32),
        ("bfloat16", "highest", torch.bfloat16),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = (x.to(dtype) for x in matrices)
        seconds = seconds_of(lambda a=a, b=b: torch.matmul(a, b), torch.cuda.synchronize)
        show(f"    torch.matmul, {name}", seconds, flops, "TFLOP/s")


def main(
    all_tiles: Annotated[bool, typer.Option(help="Time every shape of tile.")] = False,
    ways: Annotated[str, typer.Option(help="Ways to multiply, separated by commas.")] = ",".join(WAYS),
    gpu: Annotated[int, typer.Option(help="The number of the GPU.")] = 0,
) -> None:
    """Print the rates of moves, reductions and products on a GPU."""
    memory, chosen = CudaMemory(CudaDevice(gpu)), tuple(ways.split(","))
    typer.echo(f"{memory.device.facts}")
    memory_rates(memory)
    product_rates(memory, all_tiles, chosen)
    contract_rates(memory, chosen)


if __name__ == "__main__":
    typer.run(main)
