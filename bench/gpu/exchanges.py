"""Times what a step needs between blocks: barriers of a grid, exchange through the second cache, clusters.

A kernel repeats one thing; the time of one is the difference of two launches of different length.
"""

import ctypes
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from bench.gpu.bundle import Bundle
from bench.gpu.driver import CudaError, Driver, Function, Handle, Memory, driver

ROUNDS, LAUNCHES = 1000, 5
BLOCKS = (2, 4, 8, 16, 32, 64, 128)
BARRIERS = "cooperative_groups", "flip", "counter", "flags"
WORDS = (16, 128)
CLUSTERS = (2, 4, 8, 16)
CLUSTER_KERNELS = ("barrier", "store", "arrive", "copy", "push")
PARTNERS = range(1, 132, 5)
SHARED = 128 * 128 * 4
CLUSTER_SHARED = 2 * 16 * 256 * 16
MEMORY_BYTES = 4 << 20


def exchanges(bundle: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields nanoseconds by what is repeated, and by the number of blocks."""
    cuda = driver()
    module = cuda.module(bundle.code("barriers"))
    memory = cuda.empty(MEMORY_BYTES)
    yield "device", cuda.facts()
    for threads in (32, 128, 256):
        for name in BARRIERS:
            barrier = module.function(f"barrier_{name}")
            found = {blocks: of_one(cuda, barrier, memory, blocks, threads) for blocks in (*BLOCKS, 132)}
            yield f"barrier {name}, {threads} threads", found
    for words in WORDS:
        for name in ("counter", "tagged"):
            exchange = module.function(f"exchange_{name}", SHARED)
            found = {blocks: of_one(cuda, exchange, memory, blocks, 256, words) for blocks in BLOCKS}
            yield f"exchange {name}, {words} words", found
    yield "handoff", handoffs(cuda, module.function("handoff"), memory)
    for size in CLUSTERS:
        for name in CLUSTER_KERNELS:
            cluster = module.function(f"cluster_{name}_{size}", CLUSTER_SHARED, big_clusters=size > 8)
            yield f"cluster {name}, {size} blocks", of_cluster(cuda, cluster, size)
        yield f"clusters of {size} at once", at_once(cuda, cluster, size)


def of_one(cuda: Driver, function: Function, memory: Memory, blocks: int, threads: int, *more: int) -> float:
    """Returns the nanoseconds of one barrier or exchange of a grid."""

    def launch(rounds: int) -> float:
        """Returns the seconds of a launch."""
        memory.fill(0)
        cuda.wait()
        return cuda.seconds(lambda: function(blocks, threads, memory, rounds, *more, cooperative=True))

    return per_round(launch)


def per_round(launch: Callable[[int], float]) -> float:
    """Returns the nanoseconds of a round, by the difference of launches of different length."""
    launch(ROUNDS)
    differences = [launch(3 * ROUNDS) - launch(ROUNDS) for _ in range(LAUNCHES)]
    return median(differences) / (2 * ROUNDS) * 1e9


def handoffs(cuda: Driver, function: Function, memory: Memory) -> dict[str, float]:
    """Returns the nanoseconds of handing a word from one block to another, for several pairs of blocks."""
    out = cuda.empty(8)

    def launch_with(partner: int) -> Callable[[int], float]:
        """Returns the launch for a pair."""

        def launch(rounds: int) -> float:
            """Returns the seconds of a launch."""
            memory.fill(0)
            cuda.wait()
            return cuda.seconds(lambda: function(132, 32, memory, rounds, partner, out, cooperative=True))

        return launch

    found = sorted(per_round(launch_with(partner)) / 2 for partner in PARTNERS)
    return {"least": found[0], "median": median(found), "most": found[-1]}


def of_cluster(cuda: Driver, function: Function, size: int) -> dict[str, float]:
    """Returns the nanoseconds of a round in one cluster, and in as many as fill the GPU, by threads of a
    block.
    """
    found = dict[str, float]()
    for threads in (32, 128, 256):
        for clusters in (1, 112 // size):
            launch = launch_of_cluster(cuda, function, size * clusters, threads)
            found[f"{clusters} x {size} blocks of {threads} threads"] = per_round(launch)
    return found


def launch_of_cluster(cuda: Driver, function: Function, blocks: int, threads: int) -> Callable[[int], float]:
    """Returns the launch of clusters, which takes a number of rounds and returns seconds."""

    def launch(rounds: int) -> float:
        """Returns the seconds of a launch."""
        return cuda.seconds(lambda: function(blocks, threads, rounds))

    return launch


class LaunchConfig(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", Handle),
        ("attributes", Handle),
        ("count", ctypes.c_uint),
    )


def at_once(cuda: Driver, function: Function, size: int) -> "int | str":
    """Returns how many clusters of one block per multiprocessor run at once."""
    config = LaunchConfig(size, 1, 1, 256, 1, 1, function.shared, None, None, 0)
    count = ctypes.c_int()
    try:
        cuda.call("cuOccupancyMaxActiveClusters", ctypes.byref(count), function.handle, ctypes.byref(config))
    except CudaError as error:
        return str(error)
    return count.value
