"""A device: memory, and kernels that are launched on it; and the code of a kernel.

    driver        a GPU, by the CUDA driver
    emulator      an emulation on the CPU: threads are fibers, the memory is that of the process

All else in this folder is written against these interfaces, so that all of it runs without a GPU.
"""

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any, Literal, Protocol

import numpy as np

from stepnet.compiler.targets.base import OwnedMemory
from stepnet.compiler.targets.cuda.dlpack import capsule_of
from stepnet.compiler.values.once import computed_once

Array = np.ndarray
Exchange = Literal["none", "grid", "cluster"]
CPU, CUDA = 1, 2
"""The types of memory as DLPack numbers them."""
LEGACY_STREAM = 1
"""The stream on which arrays are ready for other libraries, by the CUDA array interface."""
LANES = 32
"""The threads of a warp."""


@dataclass(frozen=True)
class DeviceCode:
    """A kernel as code that does not depend on whether it will run on a GPU or in the emulation.

    name: a description for people, such as "loop of 3 values", for messages of the device.
    text: an LLVM module with one function `kernel`, of `words` arguments of 64 bits: addresses and integers.
        It calls the functions of `functions.py`.
    threads: of a block; a multiple of 32.
    shared: the bytes of shared memory of a block.
    group: the blocks that work together.
    exchange: how the blocks of a group see each other's values: not at all; through main memory, for which
        all blocks must run at once ("grid"); or in each other's shared memory ("cluster").
    """

    name: str
    text: str
    words: int
    threads: int
    shared: int = 0
    group: int = 1
    exchange: Exchange = "none"

    def __post_init__(self) -> None:
        """Raises `ValueError` for a number of threads that a block cannot have."""
        if self.threads % LANES or not 0 < self.threads <= 1024:
            raise ValueError(f"{self.name}: a block has 32, 64, ... or 1024 threads, not {self.threads}")

    @computed_once
    def key(self) -> str:
        """A digest of the code, by which translated kernels are cached."""
        facts = self.text, self.words, self.threads, self.shared, self.group, self.exchange
        return sha256(repr(facts).encode()).hexdigest()


@dataclass(frozen=True)
class DeviceFacts:
    """Properties of a device that kernels are chosen by.

    name: as the driver gives it. capability: the compute capability, such as (9, 0).
    multiprocessors: their number. shared: the most bytes of shared memory that a block can have.
    registers: the 32-bit registers of a multiprocessor. cluster: the most blocks of a cluster, 1 for none.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared: int
    registers: int = 65536
    cluster: int = 1


class Device(Protocol):
    """A device with memory of its own. Work is done in the order in which it is given; `read` and `wait` wait
    for it.
    """

    @property
    def facts(self) -> DeviceFacts:
        """The properties of the device."""
        ...

    @property
    def place(self) -> tuple[int, int]:
        """The type of its memory and its number, as DLPack has them."""
        ...

    def allocate(self, count: int) -> int:
        """Allocates `count` bytes, aligned to 256; returns their address. Raises `MemoryError` with the
        number of bytes if there is no room.
        """
        ...

    def free(self, address: int) -> None:
        """Frees memory, once the work given so far is done."""
        ...

    def write(self, address: int, array: Array) -> None:
        """Copies a C-contiguous array of the host to an address. The array may change afterwards."""
        ...

    def read(self, address: int, array: Array) -> None:
        """Fills a C-contiguous array of the host from an address, after all work given so far."""
        ...

    def copy(self, target: int, source: int, count: int) -> None:
        """Copies `count` bytes from one address to another."""
        ...

    def clear(self, address: int, count: int) -> None:
        """Sets `count` bytes at an address to zero."""
        ...

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Runs a kernel on some blocks. words: its arguments. No block: nothing is done."""
        ...

    def wait(self) -> None:
        """Waits until all work given so far is done. Raises `DeviceError` if a kernel failed."""
        ...

    def on_stream(self, handle: int) -> AbstractContextManager[None]:
        """Context in which this thread gives work to a stream, by the driver's handle."""
        ...


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A C-contiguous array in the memory of a device.

    address: of its first byte. owner: the object that keeps the memory allocated.
    """

    device: Device
    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: object

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def reshaped(self, shape: tuple[int, ...]) -> "DeviceArray":
        """Returns the same memory with another shape of as many elements."""
        return DeviceArray(self.device, self.address, shape, self.dtype, self.owner)

    def numpy(self) -> Array:
        """Returns a copy on the host, as an array of NumPy."""
        return get(self)

    # ---- other libraries

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as libraries for GPUs read it. An array of an emulated device has none."""
        if self.device.place[0] != CUDA:
            raise AttributeError("an emulated device has no GPU's arrays")
        typestr = np.dtype(self.dtype).str
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the type of the device and its number, as DLPack has them."""
        return self.device.place

    def __dlpack__(self, **options: Any) -> Any:
        """Returns the array as a DLPack capsule, where it lies. options: those of the protocol, such as the
        stream of the consumer, for which all work is done first.
        """
        if options.get("stream", -1) != -1:
            self.device.wait()
        return capsule_of(self.address, self.shape, self.dtype, self.device.place, self)


class Allocation:
    """Memory of a device, which is freed when nothing refers to this object any more."""

    def __init__(self, device: Device, count: int) -> None:
        """Allocates `count` bytes of a device."""
        self.address = device.allocate(max(count, 1))
        weakref.finalize(self, device.free, self.address)


ALLOCATE = ContextVar[Callable[[Device, int], OwnedMemory]]("ALLOCATE", default=Allocation)
"""Allocates the memory of values that are computed: of the device, or of the library that calls."""


@contextmanager
def allocated_by(allocate: Callable[[int], OwnedMemory]) -> Generator[None]:
    """Context in which the values that kernels compute lie in memory that a function allocates."""
    token = ALLOCATE.set(lambda device, count: allocate(max(count, 1)))
    try:
        yield
    finally:
        ALLOCATE.reset(token)


def empty(device: Device, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Allocates an array on a device, whose contents are undefined."""
    owner = ALLOCATE.get()(device, prod(shape) * np.dtype(dtype).itemsize)
    return DeviceArray(device, owner.address, shape, dtype, owner)


def put(device: Device, array: Array) -> DeviceArray:
    """Copies an array of the host to a device, into memory of its own: it may be kept for later calls."""
    source = np.ascontiguousarray(array)
    owner = Allocation(device, source.nbytes)
    made = DeviceArray(device, owner.address, array.shape, array.dtype.name, owner)
    if source.nbytes:
        device.write(made.address, source)
    return made


def get(array: DeviceArray) -> Array:
    """Copies an array of a device to the host, after all work that was given to the device."""
    made = np.empty(array.shape, np.dtype(array.dtype))
    if made.nbytes:
        array.device.read(array.address, made)
    return made
