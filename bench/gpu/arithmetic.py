"""Counts the cycles of what a step needs within a block: products, shared memory, barriers, reads from the
cache.
"""

import numpy as np

from bench.gpu.exchanges import per_round as nanoseconds
from bench.gpu.microbenchmarks import Microbenchmarks, MicroFunction
from bench.gpu.place import Place, Rows
from stepnet.compiler.targets.cuda import DeviceArray, empty, get, put

ROUNDS = 4096
PRODUCTS = {"tf32_1": 1, "tf32_8": 8, "bf16_1": 1, "bf16_8": 8}
GROUP_PRODUCTS = {"warpgroup_tf32_1": 1, "warpgroup_tf32_4": 4, "warpgroup_bf16_1": 1, "warpgroup_bf16_4": 4}
WIDE_PRODUCTS = {"wide_tf32_1": 8, "wide_bf16_1": 8}
"""Of 64 columns: as many products of a warp as 8 columns are."""
FLOPS = {"tf32": 16 * 8 * 8 * 2, "bf16": 16 * 8 * 16 * 2}
"""Of one product of a warp; a warp of a warp group does as many."""
CHAIN = 4096


def arithmetic(place: Place) -> Rows:
    """Yields cycles of one multiprocessor, by what is repeated."""
    module, device = Microbenchmarks.of(place, "arithmetic"), place.device
    out, sink = empty(device, (132,), "int64"), empty(device, (4,), "float32")
    for name, chains in {**PRODUCTS, **GROUP_PRODUCTS, **WIDE_PRODUCTS}.items():
        function, kind = module.function(name), name.split("_")[-2]
        for warps in (1, 4, 8, 16) if name in PRODUCTS else (4, 8, 16):
            cycles = per_round(function, out, sink, 1, 32 * warps)
            rate = FLOPS[kind] * chains * warps / cycles
            yield f"{name}, {warps} warps", {"cycles": cycles / chains, "flops_per_cycle": rate}
    reads = module.function("shared_reads")
    for warps in (1, 2, 4, 8, 16):
        cycles = per_round(reads, out, sink, 1, 32 * warps)
        yield f"shared memory, {warps} warps", {"bytes_per_cycle": 8 * 16 * 32 * warps / cycles}
    barrier = module.function("block_barrier")
    for warps in (1, 4, 8, 16, 32):
        yield (
            f"barrier of a block, {warps} warps",
            {"cycles": per_round(barrier, out, sink, 1, 32 * warps)},
        )
    order = np.random.default_rng(0).permutation(CHAIN) * 32  # a line of the cache each
    chain = np.zeros(CHAIN * 32, "u4")
    chain[order] = np.roll(order, -1)
    latency, there = module.function("cache_latency"), put(device, chain)

    def chase(rounds: int) -> float:
        """Returns the seconds of a launch that follows the chain."""
        return latency.seconds(lambda: latency(1, 1, out, sink, rounds, there))

    yield "latency of the second cache", {"nanoseconds": nanoseconds(chase)}
    data, together = put(device, np.ones(1 << 18, "f4")), module.function("cache_reads")
    for blocks in (1, 16, 64, 132):
        for kilobytes in (4, 16, 64, 256):
            pieces = kilobytes * 64
            cycles = per_round(together, out, sink, blocks, 256, data, pieces, rounds=64)
            yield f"the same {kilobytes} KB read by {blocks} blocks", {"cycles": cycles}


def per_round(
    function: MicroFunction,
    out: DeviceArray,
    sink: DeviceArray,
    blocks: int,
    threads: int,
    *more: DeviceArray | int,
    rounds: int = ROUNDS,
) -> float:
    """Returns the cycles of a round in the first block, by the difference of launches of different length."""

    def cycles(count: int) -> float:
        """Returns the cycles of a launch."""
        function(blocks, threads, out, sink, count, *more)
        return float(get(out)[0])

    cycles(rounds)
    return min(cycles(2 * rounds) - cycles(rounds) for _ in range(3)) / rounds
