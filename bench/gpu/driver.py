"""The CUDA driver, called through ctypes: modules, memory, launches, events."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

LIBRARY = "libcuda.so.1"
MAX_SHARED, CLUSTERS_OF_16 = 8, 14
"""Attributes of a function that can be set: its bytes of shared memory, and clusters of more than 8 blocks.
"""
ATTRIBUTES = {
    "multiprocessors": 16,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "l2_bytes": 38,
    "shared_bytes": 97,
}
"""Attributes of a device, by the numbers that the driver gives them."""

Handle = ctypes.c_void_p


class CudaError(Exception):
    """An error that a function of the CUDA driver returned."""


class Driver:
    """The driver with a context on the first GPU, which is the one that PyTorch uses too."""

    def __init__(self) -> None:
        """Loads the library and makes a context. Raises `CudaError` if there is no driver, or no GPU."""
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(
                f"there is no CUDA driver here: {error}. Run it on a machine with a GPU"
            ) from error
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        context = Handle()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver; raises `CudaError` with the driver's words if it fails."""
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{name}: error {code}, {(text.value or b'unknown').decode()}")

    def facts(self) -> dict[str, Any]:
        """Returns the name of the GPU, the version of the driver and some attributes of the device."""
        name, version, value = ctypes.create_string_buffer(96), ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetName", name, 96, self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        found: dict[str, Any] = {"device": name.value.decode(), "cuda": version.value}
        for attribute, number in ATTRIBUTES.items():
            self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
            found[attribute] = value.value
        return found

    def module(self, image: bytes) -> "Module":
        """Loads PTX or machine code for the GPU."""
        handle = Handle()
        self.call("cuModuleLoadData", ctypes.byref(handle), ctypes.c_char_p(image))
        return Module(self, handle)

    def empty(self, count: int) -> "Memory":
        """Allocates some bytes of the GPU's memory."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(count, 16)))
        return Memory(self, address.value, count)

    def put(self, array: np.ndarray) -> "Memory":
        """Copies an array to new memory of the GPU."""
        memory = self.empty(array.nbytes)
        memory.write(array)
        return memory

    def wait(self) -> None:
        """Waits until the GPU has done all its work."""
        self.call("cuCtxSynchronize")

    def seconds(self, call: Any) -> float:
        """Returns the seconds that the GPU takes for the launches that `call` makes."""
        begin, end, elapsed = Handle(), Handle(), ctypes.c_float()
        for event in (begin, end):
            self.call("cuEventCreate", ctypes.byref(event), 0)
        self.call("cuEventRecord", begin, None)
        call()
        self.call("cuEventRecord", end, None)
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        for event in (begin, end):
            self.call("cuEventDestroy_v2", event)
        return elapsed.value / 1e3


@dataclass(frozen=True)
class Memory:
    """Memory of the GPU: its address and its bytes."""

    driver: Driver
    address: int
    count: int

    def write(self, array: np.ndarray, offset: int = 0) -> None:
        """Copies an array into this memory."""
        source = np.ascontiguousarray(array)
        target = ctypes.c_uint64(self.address + offset)
        self.driver.call(
            "cuMemcpyHtoD_v2", target, Handle(source.ctypes.data), ctypes.c_size_t(source.nbytes)
        )

    def repeat(self, count: int) -> None:
        """Fills this memory with copies of its first `count` bytes."""
        for offset in range(count, self.count, count):
            target, size = ctypes.c_uint64(self.address + offset), min(count, self.count - offset)
            self.driver.call("cuMemcpyDtoD_v2", target, ctypes.c_uint64(self.address), ctypes.c_size_t(size))

    def fill(self, word: int) -> None:
        """Writes one 32-bit word all over this memory."""
        self.driver.call(
            "cuMemsetD32_v2", ctypes.c_uint64(self.address), word, ctypes.c_size_t(self.count // 4)
        )

    def read(self, like: np.ndarray) -> np.ndarray:
        """Returns an array of the shape and dtype of `like`, copied from the beginning of this memory."""
        found = np.empty_like(like)
        size = ctypes.c_size_t(found.nbytes)
        self.driver.call("cuMemcpyDtoH_v2", Handle(found.ctypes.data), ctypes.c_uint64(self.address), size)
        return found

    def free(self) -> None:
        """Gives the memory back."""
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(self.address))


@dataclass(frozen=True)
class Module:
    """Code loaded on the GPU."""

    driver: Driver
    handle: Handle

    def function(self, name: str, shared: int = 0, big_clusters: bool = False) -> "Function":
        """Returns a kernel. shared: the bytes of shared memory of its blocks. big_clusters: whether its
        clusters have more than 8 blocks.
        """
        handle = Handle()
        self.driver.call("cuModuleGetFunction", ctypes.byref(handle), self.handle, name.encode())
        if shared:
            self.driver.call("cuFuncSetAttribute", handle, MAX_SHARED, shared)
        if big_clusters:
            self.driver.call("cuFuncSetAttribute", handle, CLUSTERS_OF_16, 1)
        return Function(self.driver, handle, shared)

    def unload(self) -> None:
        """Removes the code from the GPU."""
        self.driver.call("cuModuleUnload", self.handle)


@dataclass(frozen=True)
class Function:
    """A kernel that can be launched."""

    driver: Driver
    handle: Handle
    shared: int

    def __call__(
        self, blocks: int, threads: int, *arguments: "Memory | int", cooperative: bool = False
    ) -> None:
        """Launches the kernel. arguments: memory by its address, and 32-bit integers.

        cooperative: whether all blocks must run at once; then the driver refuses a grid that is too large.
        """
        values = [
            ctypes.c_uint64(each.address) if isinstance(each, Memory) else ctypes.c_int(each)
            for each in arguments
        ]
        pointers = (Handle * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        sizes = (blocks, 1, 1, threads, 1, 1, self.shared, None, pointers)
        if cooperative:
            self.driver.call("cuLaunchCooperativeKernel", self.handle, *sizes)
        else:
            self.driver.call("cuLaunchKernel", self.handle, *sizes, None)


@cache
def driver() -> Driver:
    """Returns the driver, loaded once."""
    return Driver()


def addresses(memories: Sequence[Memory]) -> np.ndarray:
    """Returns the addresses of memories, as a kernel reads them."""
    return np.array([memory.address for memory in memories], "u8")
