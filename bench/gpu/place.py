"""The place where kernels are measured: a GPU, or its emulation on the CPU to try the measurements."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import CudaEngine, CudaMemory, Device
from stepnet.errors import DeviceError, InputError

Rows = Iterator[tuple[str, Any]]
"""The results of a part: names with numbers, or with plain data."""
Sizes = TypeVar("Sizes")
GPU, EMULATED = "cuda", "cuda-emulated"


@dataclass(frozen=True)
class Place:
    """An engine whose kernels are measured.

    name: of the engine, "cuda" or "cuda-emulated".
    """

    name: str = GPU

    def __post_init__(self) -> None:
        """Raises `DeviceError` if there is no GPU, with the reason, and `InputError` for another engine."""
        engine = engine_named(self.name)
        if not isinstance(engine, CudaEngine):
            raise InputError(f"{self.name!r} is no engine for GPUs: give {GPU!r} or {EMULATED!r}")
        if engine.missing:
            raise DeviceError(engine.missing)

    @property
    def engine(self) -> CudaEngine:
        """The engine."""
        engine = engine_named(self.name)
        assert isinstance(engine, CudaEngine)
        return engine

    @property
    def device(self) -> Device:
        """The device that kernels run on."""
        return self.engine.device

    @property
    def memory(self) -> CudaMemory:
        """The memory of the device."""
        return self.engine.memory

    @property
    def is_emulated(self) -> bool:
        """Tells whether kernels are emulated, so that sizes are small and times mean nothing."""
        return self.name == EMULATED

    @property
    def torch_device(self) -> str:
        """The device of PyTorch's tensors beside it."""
        return "cpu" if self.is_emulated else "cuda"

    def sized(self, whole: Sizes, trial: Sizes) -> Sizes:
        """Returns the sizes of a measurement: `whole` on a GPU, `trial` in emulation."""
        return trial if self.is_emulated else whole

    def seconds(self, run: Callable[[], object], rounds: int = 5) -> float:
        """Returns the median seconds of a call, each waited for, after one that loads its kernels; in
        emulation of a single one.
        """
        if not self.is_emulated:
            run()
            self.device.wait()
        found = list[float]()
        for _ in range(self.sized(rounds, 1)):
            begun = time.perf_counter()
            run()
            self.device.wait()
            found.append(time.perf_counter() - begun)
        return median(found)

    def average(self, call: Callable[[], object], seconds: float = 0.05, most: int = 200) -> float:
        """Returns the seconds of a short call: the least of three averages over many, without waiting."""
        first = self.seconds(call, 1)
        count = self.sized(max(3, min(most, int(seconds / self.seconds(call, 1)))), 0)
        averages = list[float]()
        for _ in range(3 if count else 0):
            begun = time.perf_counter()
            for _ in range(count):
                call()
            self.device.wait()
            averages.append((time.perf_counter() - begun) / count)
        return min(averages, default=first)
