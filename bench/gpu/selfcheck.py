"""Checks of the driver, and of the device functions and elementwise operations of kernels, on a GPU.

What can be is checked in emulation too, to check the checks.
"""

import multiprocessing
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.gpu.place import Place, Rows
from bench.gpu.pointwise import differing, groups, on_device, operands
from bench.gpu.together import F32, TOGETHER, launched
from stepnet.compiler.targets.cuda import (
    CudaDevice,
    Device,
    DeviceCode,
    EmulatedDevice,
    KernelWriter,
    cuda_device,
    empty,
    get,
    put,
)
from stepnet.errors import DeviceError

Array = np.ndarray
ENOUGH = 200
"""The launches that are timed."""
SHOWN = 6
"""The most operations whose results differ that a line names."""
APPROXIMATE = {
    "exp2": (np.exp2, 4.0),
    "reciprocal": (np.reciprocal, 2.0),
    "root": (np.sqrt, 2.0),
    "quotient": (np.divide, 2.0),
}
"""The approximate functions, with what is right, and the largest error in ulp by NVIDIA's documentation."""


def writing(name: str, dtype: str = "int64") -> DeviceCode:
    """Returns a kernel that writes its word `value` to the first element of an array."""
    writer = KernelWriter(name, ["y", "value"])
    writer.write_element(dtype, writer.word("value"), writer.pointer("y"), writer.thread)
    return writer.finished(32)


def ulps(ours: Array, theirs: Array) -> int:
    """Returns how many floats lie between two results at most, where both are numbers."""
    width = ours.itemsize
    numbers = np.isfinite(ours.astype("f8")) & np.isfinite(theirs.astype("f8"))
    if np.any(np.isnan(ours.astype("f8")) != np.isnan(theirs.astype("f8"))):
        return -1
    bits = [one.view(f"i{width}").astype("O") for one in (ours[numbers], theirs[numbers])]
    lined = [np.where(one < 0, -(2 ** (8 * width - 1)) - one, one) for one in bits]
    return int(max(np.abs(lined[0] - lined[1]), default=0))


def pointwise(dtypes: tuple[str, ...], device: Device) -> str:
    """Compares the bits of all operations on operands of some dtypes with those of the emulation."""
    group, arrays = groups()[dtypes], operands(dtypes)
    ours, theirs = (on_device(one, group, arrays) for one in (device, EmulatedDevice()))
    wrong = list[str]()
    for case, mine, right in zip(group, ours, theirs, strict=True):
        places = differing(mine, right)
        if places.size:
            first = places[0]
            far = f", at most {ulps(mine, right)} ulp" if mine.dtype.kind == "f" else ""
            at = ", ".join(str(array[first]) for array in arrays)
            wrong.append(f"{case}: {places.size}{far}; of {at}: {mine[first]} and {right[first]}")
    assert not wrong, "; ".join([*wrong[:SHOWN], f"{len(wrong)} operations"])
    return f"{len(group)} operations on {arrays[0].size} numbers"


def approximate(device: Device) -> str:
    """Measures the errors of approximate functions."""
    said = list[str]()
    for name, (right, most) in APPROXIMATE.items():
        writer = KernelWriter(name, ["x", "by", "y", "count"])
        with writer.over_all(writer.word("count")) as i:
            read = [writer.read_element("float32", writer.pointer(array), i) for array in ("x", "by")]
            found = writer.function_call(name, F32, read[: right.nin])
            writer.write_element("float32", found, writer.pointer("y"), i)
        x = np.linspace(0 if right is np.sqrt else -20, 20, 100_000).astype("f4")
        by = np.geomspace(1e-3, 1e3, x.size).astype("f4")
        given, made = [put(device, each) for each in (x, by)], empty(device, x.shape, "float32")
        launched(device, writer.finished(128), 8, *given, made, x.size)
        expected = right(*[each.astype("f8") for each in (x, by)][: right.nin])
        error = np.abs(get(made) - expected) / np.spacing(np.abs(expected).astype("f4"))
        said.append(f"{name} {error.max():.2f} ulp")
        assert error.max() <= most, said
    return ", ".join(said)


def changed_after_write(device: Device) -> None:
    """Arrays change as soon as they are written, small and large ones."""
    for count in (1, 1000, 10_000_000):
        array = np.arange(count)
        kept = [put(device, array) for _ in range(3)]
        array[...] = -1
        assert all(np.array_equal(get(one), np.arange(count)) for one in kept)


def memory(device: Device) -> str:
    """Too much memory is refused with numbers, and nothing else is lost."""
    try:
        device.allocate(2**50)
    except MemoryError as error:
        changed_after_write(device)
        return str(error)
    raise AssertionError("2^50 bytes were allocated")


def freed_memory(device: Device) -> None:
    """Arrays that are freed while kernels use them: each has its number at the end."""
    code = writing("freed")
    for number in range(300):
        first = empty(device, (32,), "int64")
        launched(device, code, 1, first, -1)
        del first
        second = empty(device, (32,), "int64")
        launched(device, code, 1, second, number)
        assert number % 50 or get(second)[0] == number


def streams(device: Device) -> None:
    """Work on several streams is done in the order in which it is given."""
    assert isinstance(device, CudaDevice)
    handles = [device.handle("cuStreamCreate", 1) for _ in range(3)]
    made, code = empty(device, (32,), "int64"), writing("in order")
    for number in range(300):
        with device.on_stream(handles[number % 3]):
            launched(device, code, 1, made, number)
    assert get(made).tolist() == [299] * 32


def large_grid(device: Device) -> str:
    """A grid that cannot run at once is refused."""
    writer = KernelWriter("large grid", ["y"])
    code = writer.finished(1024, shared=100_000, exchange="grid", group=2000)
    try:
        launched(device, code, 2000, 0)
    except DeviceError as error:
        device.wait()
        return str(error)
    raise AssertionError("a grid of 2000 blocks was taken")


def large_block(device: Device) -> str:
    """A block with more shared memory than there is is refused."""
    try:
        launched(device, KernelWriter("large block", ["y"]).finished(32, shared=300_000), 1, 0)
    except DeviceError as error:
        device.wait()
        return str(error)
    raise AssertionError("300,000 bytes of shared memory were given")


def times(device: Device) -> str:
    """Measures launches, the way to the GPU and back, and small copies."""
    made, code = empty(device, (32,), "int64"), writing("timed")
    array = np.zeros(16)
    found = list[str]()

    def each(name: str, call: Callable[[], Any]) -> None:
        """Measures a call many times, without and with the wait at the end."""
        call()
        device.wait()
        start = time.perf_counter()
        for _ in range(ENOUGH):
            call()
        given = time.perf_counter()
        device.wait()
        ended = time.perf_counter()
        microseconds = [f"{(end - start) / ENOUGH * 1e6:.1f}" for end in (given, ended)]
        found.append(f"{name} {' / '.join(microseconds)} us")

    each("launch", lambda: launched(device, code, 1, made, 1))
    each("write of 128 bytes", lambda: device.write(made.address, array))
    each("read of 128 bytes", lambda: device.read(made.address, array))
    each("allocate and free", lambda: device.free(device.allocate(4096)))
    large, source = empty(device, (1 << 24,), "float32"), np.zeros(1 << 24, np.float32)
    for name, call in (("write", device.write), ("read", device.read)):
        call(large.address, source)
        device.wait()
        start = time.perf_counter()
        call(large.address, source)
        device.wait()
        found.append(f"{name} {source.nbytes / (time.perf_counter() - start) / 1e9:.1f} GB/s")
    return ", ".join(found)


def other_process(name: str, expected: str, device: Device) -> str:
    """Runs a part of this module in another process. expected: a part of what it prints."""
    command = [sys.executable, "-m", "bench.gpu.selfcheck", name]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert expected in said.stdout, said.stdout + said.stderr[-2000:]
    return said.stdout.strip()


def wrong_address() -> None:
    """Lets a kernel write where nothing is; prints what each later call says."""
    device = cuda_device()
    kept = empty(device, (32,), "int64")
    launched(device, writing("wrong address"), 1, 2**44, 1)
    for call in (device.wait, lambda: launched(device, writing("next"), 1, kept, 1), lambda: get(kept)):
        try:
            call()
        except DeviceError as error:
            print(error)


def child(results: Any) -> None:
    """Uses the GPU of the process that this one was forked from."""
    try:
        put(cuda_device(), np.zeros(3))
    except DeviceError as error:
        results.put(str(error))
    else:
        results.put("it can be used")


def forked() -> None:
    """Uses a GPU, and in a forked process once more; prints what that says."""
    kept = put(cuda_device(), np.arange(3))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    print(results.get(timeout=60))
    process.join(60)
    assert process.exitcode == 0
    print("and here", get(kept).tolist())


PARTS: dict[str, Callable[[], None]] = {"wrong address": wrong_address, "fork": forked}
"""The parts that run in processes of their own."""
ANYWHERE: dict[str, Callable[[Device], str | None]] = {
    **TOGETHER,
    **{f"pointwise of {', '.join(dtypes)}": partial(pointwise, dtypes) for dtypes in groups()},
    "approximate functions": approximate,
    "changed after a write": changed_after_write,
}
FEW = {name: ANYWHERE[name] for name in (*TOGETHER, "pointwise of bool, float32")}
"""The checks that are tried in emulation; tests run all others there."""
ON_A_GPU: dict[str, Callable[[Device], str | None]] = {
    "freed memory": freed_memory,
    "streams": streams,
    "no memory": memory,
    "large grid": large_grid,
    "large block": large_block,
    "times": times,
    "wrong address": partial(other_process, "wrong address", "'wrong address' read or wrote an address"),
    "fork": partial(other_process, "fork", "was forked from one that uses the GPU"),
}


def selfcheck(place: Place) -> Rows:
    """Yields the verdict of each check, by its name."""
    checks = place.sized({**ANYWHERE, **ON_A_GPU}, FEW)
    for name, check in checks.items():
        yield name, verdict(check, place.device)


def verdict(check: Callable[[Device], str | None], device: Device) -> dict[str, Any]:
    """Runs a check; returns whether it is right, its seconds, and what it said."""
    start = time.perf_counter()
    try:
        said, right = check(device) or "", True
    except (
        AssertionError,
        DeviceError,
        MemoryError,
        RuntimeError,
        ValueError,
        subprocess.TimeoutExpired,
    ) as error:
        said, right = f"{type(error).__name__}: {error}" if str(error) else traceback.format_exc(), False
    return {"right": right, "seconds": round(time.perf_counter() - start, 2), "said": said}


if __name__ == "__main__":
    PARTS[sys.argv[1]]()
