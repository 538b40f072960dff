"""The times of devices, by which loops on tensor cores are chosen.

Those of the H100 were fitted to the kernels of docs/design/gpu.md that were measured; those of plain units to
cycles that were counted in machine code, times 1.11, which is what measured loops took by such counts
(`python -m bench.gpu cycles`). Those of other devices follow from these, by the clocks and the rates of main
memory in NVIDIA's data sheets. `python -m bench.gpu facts` has the row of a device that was measured.
"""

import re
from collections.abc import Mapping
from dataclasses import astuple, replace

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.values.records import dataclass

UNFITTED = "shared", "direct", "product", "link", "main"
"""The facts that are rates of a device by themselves, and are not fitted to times of loops."""


@dataclass(frozen=True)
class ExchangeCost:
    """Microseconds of an exchange: alone, for each doubling of the blocks, and for each thousand pieces.

    A piece is 16 bytes that a block reads through the second cache, or writes to another block.
    """

    alone: float
    doubling: float
    pieces: float


@dataclass(frozen=True)
class PlainCost:
    """Microseconds of a step by plain units.

    warp: of an instruction of a warp that waits for its own. scheduler: of one for its scheduler, which has
        others.
    """

    warp: float
    scheduler: float


@dataclass(frozen=True)
class TensorFacts:
    """The times of a device, in microseconds.

    is_measured: whether they were fitted to measurements on it.
    loop: of a step. warp: of an instruction of a warp that waits for its own.
    scheduler: of an instruction of a warp for its scheduler, which has others. wait: between two instructions
        of a chain.
    barrier: of a block. read: of a value in main memory. shared: of a byte in shared memory.
    direct: of a byte that a block reads of the second cache as it multiplies, where all blocks do.
    product: of a product of the tensor cores. link: of one that waits for the one before.
    main: of a byte that all blocks read or write in main memory.
    exchanges: by the kind of exchange. clusters: how many run at once, by their blocks.
    crowd: the further time of a step for each further block on a multiprocessor, as a fraction.
    plain: the times of loops whose products plain units compute.
    """

    is_measured: bool
    loop: float
    warp: float
    scheduler: float
    wait: float
    barrier: float
    read: float
    shared: float
    direct: float
    product: float
    link: float
    main: float
    exchanges: Mapping[str, ExchangeCost]
    clusters: Mapping[int, int]
    crowd: float
    plain: PlainCost

    def clusters_at_once(self, blocks: int, multiprocessors: int) -> int:
        """Returns how many clusters of so many blocks run at once on a device, or on a part of one."""
        found = self.clusters.get(blocks, multiprocessors // (2 * blocks))
        return max(1, min(found, multiprocessors // blocks))

    @property
    def slowness(self) -> float:
        """The time of instructions by that of an H100, by which times are multiplied that were measured there
        and have no row of their own.
        """
        return self.warp / H100.warp

    @property
    def slowness_of_memory(self) -> float:
        """The time of reads of main memory by that of an H100, for times that were measured there."""
        return self.main / H100.main

    def slower(self, factor: float, of_memory: float | None = None) -> "TensorFacts":
        """Returns the facts of a device that takes `factor` times as long for all, as an estimate; for bytes
        of main memory `of_memory` times, if it is given.
        """
        times = "loop", "warp", "scheduler", "wait", "barrier", "read", *UNFITTED
        plain = PlainCost(*(factor * time for time in astuple(self.plain)))
        changed = {name: factor * getattr(self, name) for name in times}
        changed["main"] = self.main * (factor if of_memory is None else of_memory)
        return replace(self, is_measured=False, plain=plain, **changed)


H100 = TensorFacts(
    is_measured=True,
    loop=0.042,
    warp=0.97e-3,
    scheduler=0.49e-3,
    wait=0.9e-3,
    barrier=0.156,
    read=0.377,
    shared=1 / (127 * 1.98e3),
    direct=132 / 5.5e6,
    product=7 / 1.98e3,
    link=25 / 1.98e3,
    main=1 / 2.6e6,
    exchanges={
        "grid": ExchangeCost(1.007, 0, 0.22),
        "tagged": ExchangeCost(0.232, 0.028, 0.29),
        "cluster": ExchangeCost(0.439, 0, 0.64),
    },
    clusters={2: 66, 4: 30, 8: 15, 16: 7},
    crowd=0.3,
    plain=PlainCost(warp=0.95e-3, scheduler=0.30e-3),
)
CLOCK, MEMORY = 1980, 3.35
"""The clock of the H100 that was measured, in MHz, and by its data sheet the rate of its memory, in TB/s."""


@dataclass(frozen=True)
class DataSheet:
    """The facts of a device in NVIDIA's data sheet.

    word: of the names of such devices. capability: their compute capability.
    clock: the highest, in MHz. memory: the rate of main memory, in TB/s.
    """

    word: str
    capability: tuple[int, int]
    clock: int
    memory: float


SHEETS = (
    DataSheet("A100", (8, 0), 1410, 1.555),
    DataSheet("A100 80GB", (8, 0), 1410, 1.935),
    DataSheet("A100-SXM4-80GB", (8, 0), 1410, 2.039),
    DataSheet("A30", (8, 0), 1440, 0.933),
    DataSheet("RTX 3090", (8, 6), 1695, 0.936),
    DataSheet("A10", (8, 6), 1695, 0.600),
    DataSheet("A40", (8, 6), 1740, 0.696),
    DataSheet("L40", (8, 9), 2490, 0.864),
    DataSheet("L4", (8, 9), 2040, 0.300),
    DataSheet("RTX 4090", (8, 9), 2520, 1.008),
    DataSheet("H100", (9, 0), CLOCK, MEMORY),
    DataSheet("H100 PCIe", (9, 0), 1755, 2.0),
    DataSheet("H100 NVL", (9, 0), 1785, 3.9),
    DataSheet("H200", (9, 0), 1980, 4.8),
    DataSheet("GH200", (9, 0), 1980, 4.0),
    DataSheet("B200", (10, 0), 1965, 8.0),
    DataSheet("RTX 5090", (12, 0), 2407, 1.792),
    DataSheet("RTX PRO 6000", (12, 0), 2617, 1.792),
)
"""The devices that have a row of their own. Others have the first row of their compute capability, or of the
next lower one.
"""
MEASURED = {"H100": H100}
"""The facts of devices that were measured, by a word of their names."""
DEVICES = {each.word: H100.slower(CLOCK / each.clock, MEMORY / each.memory) for each in SHEETS} | MEASURED
"""The facts of devices, by a word of their names."""


def facts_of(device: DeviceFacts) -> TensorFacts:
    """Returns the facts of a device: by the longest word of its name that is known, or else an estimate by
    its compute capability.
    """
    named = [word for word in DEVICES if re.search(rf"\b{word}(?!\d)", device.name)]
    if named:
        return DEVICES[max(named, key=len)]
    lower = [sheet for sheet in SHEETS if sheet.capability <= device.capability]
    nearest = max((sheet.capability for sheet in lower), default=SHEETS[0].capability)
    word = next(sheet.word for sheet in SHEETS if sheet.capability == nearest)
    return replace(DEVICES[word], is_measured=False)
