"""Times what a step needs between blocks: barriers of a grid, exchange through the second cache, clusters.

A kernel repeats one thing; the time of one is the difference of two launches of different length.
"""

import ctypes
from collections.abc import Callable
from statistics import median

from bench.gpu.microbenchmarks import Microbenchmarks, MicroFunction
from bench.gpu.place import Place, Rows
from stepnet.compiler.targets.cuda import Device, DeviceArray, empty
from stepnet.compiler.targets.cuda.driver.library import loaded
from stepnet.errors import DeviceError

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


def exchanges(place: Place) -> Rows:
    """Yields nanoseconds by what is repeated, and by the number of blocks."""
    module = Microbenchmarks.of(place, "barriers")
    memory = empty(place.device, (MEMORY_BYTES,), "uint8")
    for size in CLUSTERS:
        functions = {
            name: module.function(f"cluster_{name}_{size}", CLUSTER_SHARED, big_clusters=size > 8)
            for name in CLUSTER_KERNELS
        }
        yield f"clusters of {size} at once", at_once(functions["barrier"], size)
        for name, function in functions.items():
            yield f"cluster {name}, {size} blocks", of_cluster(function, size)
    for words in WORDS:
        for name in ("counter", "tagged"):
            exchange = module.function(f"exchange_{name}", SHARED)
            found = {blocks: of_one(exchange, memory, blocks, 256, words) for blocks in BLOCKS}
            yield f"exchange {name}, {words} words", found
    for threads in (128, 32, 256):
        for name in BARRIERS:
            barrier = module.function(f"barrier_{name}")
            found = {blocks: of_one(barrier, memory, blocks, threads) for blocks in (*BLOCKS, 132)}
            yield f"barrier {name}, {threads} threads", found
    yield "handoff", handoffs(place.device, module.function("handoff"), memory)


def of_one(function: MicroFunction, memory: DeviceArray, blocks: int, threads: int, *more: int) -> float:
    """Returns the nanoseconds of one barrier or exchange of a grid."""

    def launch(rounds: int) -> float:
        """Returns the seconds of a launch."""
        memory.device.clear(memory.address, memory.nbytes)
        return function.seconds(lambda: function(blocks, threads, memory, rounds, *more, cooperative=True))

    return per_round(launch)


def per_round(launch: Callable[[int], float]) -> float:
    """Returns the nanoseconds of a round, by the difference of launches of different length."""
    launch(ROUNDS)
    differences = [launch(3 * ROUNDS) - launch(ROUNDS) for _ in range(LAUNCHES)]
    return median(differences) / (2 * ROUNDS) * 1e9


def handoffs(device: Device, function: MicroFunction, memory: DeviceArray) -> dict[str, float]:
    """Returns the nanoseconds of handing a word from one block to another, for several pairs of blocks."""
    out = empty(device, (1,), "int64")

    def launch_with(partner: int) -> Callable[[int], float]:
        """Returns the launch for a pair."""

        def launch(rounds: int) -> float:
            """Returns the seconds of a launch."""
            device.clear(memory.address, memory.nbytes)
            arguments = memory, rounds, partner, out
            return function.seconds(lambda: function(132, 32, *arguments, cooperative=True))

        return launch

    found = sorted(per_round(launch_with(partner)) / 2 for partner in PARTNERS)
    return {"least": found[0], "median": median(found), "most": found[-1]}


def of_cluster(function: MicroFunction, size: int) -> dict[str, float]:
    """Returns the nanoseconds of a round in one cluster, and in as many as fill the GPU, by threads of a
    block.
    """
    found = dict[str, float]()
    for threads in (32, 128, 256):
        for clusters in (1, 112 // size):
            launch = launch_of_cluster(function, size * clusters, threads)
            found[f"{clusters} x {size} blocks of {threads} threads"] = per_round(launch)
    return found


def launch_of_cluster(function: MicroFunction, blocks: int, threads: int) -> Callable[[int], float]:
    """Returns the launch of clusters, which takes a number of rounds and returns seconds."""

    def launch(rounds: int) -> float:
        """Returns the seconds of a launch."""
        return function.seconds(lambda: function(blocks, threads, rounds))

    return launch


class LaunchConfig(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def at_once(function: MicroFunction, size: int) -> int | str:
    """Returns how many clusters of one block per multiprocessor run at once, or the driver's reason."""
    config, count = LaunchConfig(size, 1, 1, 256, 1, 1, function.shared, None, None, 0), ctypes.c_int()
    name, functions = "cuOccupancyMaxActiveClusters", function.device.library.functions
    if name not in functions:  # the target itself does not ask for it
        functions[name] = getattr(loaded(), name)
        functions[name].argtypes = [ctypes.c_void_p] * 3
    try:
        function.device.call(name, ctypes.byref(count), function.handle, ctypes.byref(config))
    except DeviceError as error:
        return str(error)
    return count.value
