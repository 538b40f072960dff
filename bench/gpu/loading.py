"""Times launches, and loading of kernels: machine code, and PTX that the driver compiles."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from bench.gpu.bundle import Bundle
from bench.gpu.driver import driver

LAUNCHES = 1000


def loading(bundle: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields microseconds of launches, and milliseconds of loading each kernel that the bundle has as PTX.

    The driver keeps what it has compiled on disk: run this twice, with one empty folder for its cache.
    """
    cuda = driver()
    yield "device", cuda.facts()
    empty = cuda.module(bundle.code("arithmetic")).function("empty")
    for name, cooperative in (("launch", False), ("cooperative launch", True)):

        def many(cooperative: bool = cooperative) -> None:
            """Launches many times, without waiting."""
            for _ in range(LAUNCHES):
                empty(1, 32, cooperative=cooperative)

        def one(cooperative: bool = cooperative) -> None:
            """Launches once, and waits."""
            empty(1, 32, cooperative=cooperative)
            cuda.wait()

        many()
        cuda.wait()
        yield f"{name} after another, on the GPU", cuda.seconds(many) / LAUNCHES * 1e6
        yield f"{name} and wait, on the host", median(elapsed(one) for _ in range(100)) * 1e6
    for path in sorted(bundle.folder.glob("*.ptx")):
        for kind in ("ptx", "cubin"):
            code = bundle.code(path.stem, kind)
            begun = time.perf_counter()
            module = cuda.module(code)
            yield f"{path.stem}.{kind}, ms", (time.perf_counter() - begun) * 1e3
            module.unload()


def elapsed(call: Callable[[], None]) -> float:
    """Returns the seconds of a call on the host."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
