"""Times the kernels on a GPU: seconds of a step, for 1, 16 and 64 sequences of the same length."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.gpu.bundle import STEPS, Bundle, Compiled
from bench.gpu.device import COUNTERS, EXCHANGE, Loaded
from bench.gpu.driver import CudaError, Driver, Memory, addresses, driver
from bench.gpu.inputs import COUNTER_BYTES, ROWS, Array, Signature, drawn

BATCHES = (1, 16, 64)
LARGE_BATCHES = (64, 128, 256, 512, 1024)
LARGE = (
    "gru-64-block1-bfloat16-p4-c1-a2",
    "gru-128-block1-bfloat16-p1-c1-a1",
    "gru-128-cluster8-float32-p4-c3-a2",
    "gru-128-cluster8-bfloat16-p4-c1-a2",
    "gru-256-cluster16-float32-p4-c3-a2",
    "gru-256-cluster16-bfloat16-p4-c1-a2",
    "gru-256-cluster8-bfloat16-p4-c1-a2",
)
"""Kernels that are timed for large batches too."""
WARM, ROUNDS = 2, 5
NAN = 0x7FC00000


@dataclass(frozen=True)
class Buffers:
    """The arrays of a step on the GPU, for the largest batch. All of its kernels share them.

    constants, sequences, memories: operands; the sequences of each group are the same.
    outputs, last: results.
    """

    cuda: Driver
    signature: Signature
    sequences: list[Memory]
    memories: list[Memory]
    constants: list[Memory]
    outputs: list[Memory]
    last: list[Memory]

    @classmethod
    def of(cls, cuda: Driver, signature: Signature, batch: int) -> "Buffers":
        """Puts random operands for batches of up to `batch` sequences on the GPU."""
        inputs = drawn(signature, [STEPS])
        states = -(-batch // ROWS) * ROWS * signature.width * 4
        return cls(
            cuda,
            signature,
            [of_groups(cuda, each, STEPS * states) for each in inputs.sequences],
            [of_groups(cuda, each, states) for each in inputs.memories],
            [cuda.put(each) for each in inputs.constants],
            [cuda.empty(STEPS * states) for _ in range(signature.outputs)],
            [cuda.empty(states) for _ in range(signature.memories)],
        )

    def free(self) -> None:
        """Gives all memory back."""
        for each in (*self.sequences, *self.memories, *self.constants, *self.outputs, *self.last):
            each.free()

    def results(self, batch: int) -> list[Array]:
        """Returns the last output and the last memories of each sequence: [batch, width] each."""
        width = self.signature.width
        outputs = [memory.read(np.empty((batch, STEPS, width), "f4"))[:, -1] for memory in self.outputs]
        return outputs + [memory.read(np.empty((batch, width), "f4")) for memory in self.last]


def of_groups(cuda: Driver, one: Array, count: int) -> Memory:
    """Returns memory with the values of 8 different sequences, made of one, repeated for all groups."""
    rows = np.concatenate([one * np.float32(1 - row / 16) for row in range(ROWS)])
    memory = cuda.empty(count)
    memory.write(rows)
    memory.repeat(rows.nbytes)
    return memory


def steps(bundle: Bundle, exchange: str) -> Iterator[tuple[str, Any]]:
    """Yields the times of each kernel that has this exchange, by its name."""
    yield "device", driver().facts()
    for path in sorted(bundle.folder.glob("truth-*.npz")):
        step = path.stem.removeprefix("truth-").replace("backward-", "backward ")
        kernels = [each for each in bundle.of_step(step) if each.exchange == exchange]
        if not kernels:
            continue
        buffers = Buffers.of(driver(), kernels[0].signature, BATCHES[-1])
        for kernel in kernels:
            yield kernel.name, timed(bundle, kernel, buffers, read_truth(path), BATCHES)
        buffers.free()


def large_batches(bundle: Bundle) -> Iterator[tuple[str, Any]]:
    """Yields the times of few kernels for large batches, by their names."""
    yield "device", driver().facts()
    for name in LARGE:
        kernel = bundle.kernels[name]
        buffers = Buffers.of(driver(), kernel.signature, LARGE_BATCHES[-1])
        truth = read_truth(bundle.folder / f"truth-{kernel.step}.npz")
        yield name, timed(bundle, kernel, buffers, truth, LARGE_BATCHES)
        buffers.free()


def read_truth(path: Path) -> list[Array]:
    """Returns the last outputs and memories that a timed sequence must give."""
    with np.load(path) as found:
        return [found[name] for name in found]


def timed(
    bundle: Bundle, kernel: Compiled, buffers: Buffers, truth: list[Array], batches: tuple[int, ...]
) -> dict[str, Any]:
    """Returns the microseconds of a step for each batch, and how far the results are from the truth."""
    loaded = Loaded.of(buffers.cuda, bundle, kernel)
    facts: dict[str, Any] = {
        "step": kernel.step,
        "schedule": kernel.name.removeprefix(kernel.step.replace(" ", "-") + "-"),
        "threads": kernel.threads,
        "shared": kernel.shared,
        "resident": f"{kernel.resident} of {kernel.operands}",
        "microseconds": {},
    }
    results = dict[int, list[Array]]()
    for batch in batches:
        try:
            facts["microseconds"][batch] = timed_batch(loaded, buffers, batch)
        except CudaError as error:
            facts["microseconds"][batch] = f"refused: {error}"
            continue
        results[batch] = buffers.results(batch)
    loaded.module.unload()
    if not kernel.without and results:
        first = min(results)
        facts["difference"] = float(
            max(np.abs(a[0] - b).max() for a, b in zip(results[first], truth, strict=True))
        )
        facts["groups_alike"] = all(
            np.array_equal(array[row], array[row % ROWS])
            for each in results.values()
            for array in each
            for row in range(len(array))
        )
        facts["batches_alike"] = all(
            np.array_equal(a[0], b[0])
            for each in results.values()
            for a, b in zip(each, results[first], strict=True)
        )
    return facts


def timed_batch(loaded: Loaded, buffers: Buffers, batch: int) -> float:
    """Returns the median microseconds of a step for a batch, of launches on poisoned results."""
    cuda, groups = buffers.cuda, -(-batch // ROWS)
    places = np.arange(groups * ROWS)
    lengths = np.where(places < batch, STEPS, 0).astype("i8")
    own = [
        cuda.put(np.where(places < batch, places * STEPS, 0).astype("i8")),
        cuda.put(lengths),
        cuda.put(np.full(groups, STEPS, "i8")),
        cuda.empty(4 * groups * loaded.kernel.signature.exchange_floats),
        cuda.empty(groups * COUNTER_BYTES),
    ]
    values = (buffers.sequences, buffers.memories, buffers.constants, buffers.outputs, buffers.last)
    table = cuda.put(addresses([*own, *chain.from_iterable(values)]))
    seconds = list[float]()
    try:
        for _ in range(WARM + ROUNDS):
            for memory in (own[EXCHANGE], *buffers.outputs, *buffers.last):
                memory.fill(NAN)
            own[COUNTERS].fill(0)
            cuda.wait()
            seconds.append(cuda.seconds(lambda: loaded.launch(table, groups)))
    finally:
        for memory in (*own, table):
            memory.free()
    return median(seconds[WARM:]) / STEPS * 1e6
