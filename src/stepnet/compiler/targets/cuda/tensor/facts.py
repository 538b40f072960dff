"""The times of devices, by which loops on tensor cores are chosen.

Those of the H100 were fitted to the kernels of docs/design/gpu.md that were measured; those of plain units to
cycles that were counted in machine code, times 1.11, which is what measured loops took by such counts
(`python -m bench.gpu cycles`). Those of other devices are estimates.
"""

from collections.abc import Mapping
from dataclasses import astuple, replace

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.values.records import dataclass

UNFITTED = "shared", "direct", "product", "link"
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
    exchanges: Mapping[str, ExchangeCost]
    clusters: Mapping[int, int]
    crowd: float
    plain: PlainCost

    @property
    def slowness(self) -> float:
        """The time of instructions by that of an H100, by which times are multiplied that were measured there
        and have no row of their own.
        """
        return self.warp / H100.warp

    def slower(self, factor: float) -> "TensorFacts":
        """Returns the facts of a device that takes `factor` times as long for all, as an estimate."""
        times = "loop", "warp", "scheduler", "wait", "barrier", "read", *UNFITTED
        plain = PlainCost(*(factor * time for time in astuple(self.plain)))
        changed = {name: factor * getattr(self, name) for name in times}
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
    exchanges={
        "grid": ExchangeCost(1.007, 0, 0.22),
        "tagged": ExchangeCost(0.232, 0.028, 0.29),
        "cluster": ExchangeCost(0.439, 0, 0.64),
    },
    clusters={2: 66, 4: 30, 8: 15, 16: 7},
    crowd=0.3,
    plain=PlainCost(warp=0.95e-3, scheduler=0.30e-3),
)
H200 = replace(H100, is_measured=False)
A100 = H100.slower(1.98 / 1.41)
DEVICES = {"H100": H100, "H200": H200, "A100": A100}
"""The facts of devices, by a word of their names."""


def facts_of(device: DeviceFacts) -> TensorFacts:
    """Returns the facts of a device: by its name, or else an estimate by its compute capability."""
    named = [facts for word, facts in DEVICES.items() if word in device.name]
    return named[0] if named else replace(H100 if device.capability >= (9, 0) else A100, is_measured=False)
