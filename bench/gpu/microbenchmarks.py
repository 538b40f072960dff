"""Microbenchmarks in CUDA C++, compiled by nvcc and launched by the target's driver."""

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.place import Place
from stepnet.compiler.targets.cuda import CudaDevice, DeviceArray
from stepnet.compiler.targets.cuda.driver.loaded import LARGE_CLUSTERS, MAX_SHARED
from stepnet.errors import DeviceError

NAMES = "barriers", "arithmetic"
FOLDER = Path(__file__).parents[2] / "build" / "gpu"
"""Where compiled code is kept, and looked for: nvcc is often not where the GPU is."""
HOPPER = (9, 0)
"""The compute capability that is compiled for where there is no GPU: that of an H100 or H200."""


def compiled(name: str, capability: tuple[int, int], folder: Path) -> bytes:
    """Returns the machine code of a file of microbenchmarks, which is compiled unless it is in the folder.

    Raises `DeviceError` if nvcc is needed and is not here.
    """
    version = f"{capability[0]}{capability[1]}{'a' if capability >= (9, 0) else ''}"
    code = folder / f"{name}-{version}.cubin"
    source = Path(__file__).with_name(f"{name}.cu")
    if not code.exists() or code.stat().st_mtime < source.stat().st_mtime:
        if shutil.which("nvcc") is None:
            raise DeviceError(
                f"nvcc is not here, which compiles {source.name}: run `python -m bench.gpu prepare` where it "
                f"is, and bring {code}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made = Path(own, code.name)
            processor = f"arch=compute_{version},code=sm_{version}"
            subprocess.run(
                ["nvcc", "-cubin", "-gencode", processor, "-o", str(made), str(source)], check=True
            )
            made.rename(code)
    return code.read_bytes()


@dataclass(frozen=True)
class Microbenchmarks:
    """A file of microbenchmarks, loaded on a GPU.

    module: the driver's handle.
    """

    device: CudaDevice
    module: int

    @classmethod
    def of(cls, place: Place, name: str) -> "Microbenchmarks":
        """Loads a file by its name. Raises `DeviceError` in emulation, which has no CUDA C++."""
        device: Any = place.device
        if place.is_emulated:
            raise DeviceError(
                f"the microbenchmarks of {name}.cu are CUDA C++, which is not emulated: they need a GPU"
            )
        image = compiled(name, device.facts.capability, FOLDER)
        module = device.handle("cuModuleLoadDataEx", ctypes.c_char_p(image), 0, None, None)
        return cls(device, module)

    def function(self, name: str, shared: int = 0, big_clusters: bool = False) -> "MicroFunction":
        """Returns a kernel. shared: the bytes of shared memory of its blocks. big_clusters: whether its
        clusters have more than 8 blocks.
        """
        handle = self.device.handle("cuModuleGetFunction", self.module, name.encode())
        if shared:
            self.device.call("cuFuncSetAttribute", handle, MAX_SHARED, shared)
        if big_clusters:
            self.device.call("cuFuncSetAttribute", handle, LARGE_CLUSTERS, 1)
        return MicroFunction(self.device, handle, shared)


@dataclass(frozen=True)
class MicroFunction:
    """A microbenchmark that can be launched."""

    device: CudaDevice
    handle: int
    shared: int

    def __call__(
        self, blocks: int, threads: int, *arguments: DeviceArray | int, cooperative: bool = False
    ) -> None:
        """Launches the kernel. arguments: arrays by their addresses, and 32-bit integers.

        cooperative: whether all blocks must run at once; then the driver refuses a grid that is too large.
        """
        words = [one if isinstance(one, int) else one.address for one in arguments]
        values = (ctypes.c_int64 * max(1, len(words)))(*words)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(values))(*(first + 8 * n for n in range(len(values))))
        sizes = blocks, 1, 1, threads, 1, 1, self.shared, 0, pointers
        if cooperative:
            self.device.call("cuLaunchCooperativeKernel", self.handle, *sizes)
        else:
            self.device.call("cuLaunchKernel", self.handle, *sizes, None)

    def seconds(self, launch: Callable[[], None]) -> float:
        """Returns the seconds of a launch, waited for."""
        self.device.wait()
        begun = time.perf_counter()
        launch()
        self.device.wait()
        return time.perf_counter() - begun
