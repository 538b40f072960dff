"""A device: memory, and kernels that are launched on it; and the code of a kernel.

    driver        a GPU, by the CUDA driver
    emulator      an emulation on the CPU: threads are fibers, the memory is that of the process

All else in this folder is written against these interfaces, so that all of it runs without a GPU.
"""

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from itertools import accumulate
from math import prod
from typing import Any, Literal, Protocol
from zlib import compress, decompress

import numpy as np

from stepnet.compiler.targets.base import OwnedMemory
from stepnet.compiler.targets.cuda.arrays.dlpack import capsule_of
from stepnet.compiler.targets.cuda.streams import Fork
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import DeviceError

Array = np.ndarray
Exchange = Literal["none", "grid", "cluster"]
CPU, CUDA = 1, 2
"""The types of memory as DLPack numbers them."""
LEGACY_STREAM = 1
"""The stream on which arrays are ready for other libraries, by the CUDA array interface."""
LANES = 32
"""The threads of a warp."""
ALIGNMENT = 256
"""The bytes to which all memory of a device is aligned."""


@dataclass(frozen=True)
class DeviceCode:
    """A kernel as code that does not depend on whether it will run on a GPU or in the emulation.

    name: a description for people, such as "loop of 3 values", for messages of the device.
    packed: an LLVM module, its text compressed, with one function `kernel`, of `words` arguments of 64 bits:
        addresses and integers. It calls the functions of `functions.py`.
    threads: the number of threads of a block; a multiple of 32.
    shared: the bytes of shared memory of a block.
    group: the blocks that work together.
    exchange: how the blocks of a group see each other's values: not at all; through main memory, for which
        all blocks must run at once ("grid"); or in each other's shared memory ("cluster").
    resident: the blocks for whose registers a multiprocessor must have room at once.
    """

    name: str
    packed: bytes
    words: int
    threads: int
    shared: int = 0
    group: int = 1
    exchange: Exchange = "none"
    resident: int = 1

    @classmethod
    def of(cls, name: str, text: str, *facts: Any) -> "DeviceCode":
        """Returns the code of a kernel from the text of its module. facts: the fields after it."""
        return cls(name, compress(text.encode(), 1), *facts)

    @computed_once
    def text(self) -> str:
        """The text of the LLVM module, which only what translates it reads."""
        return decompress(self.packed).decode()

    def __post_init__(self) -> None:
        """Raises `ValueError` for a number of threads that a block cannot have."""
        if self.threads % LANES or not 0 < self.threads <= 1024:
            raise ValueError(f"{self.name}: a block has 32, 64, ... or 1024 threads, not {self.threads}")

    @computed_once
    def key(self) -> str:
        """A digest of the code, by which translated kernels are cached."""
        facts = self.packed, self.words, self.threads, self.shared, self.group, self.exchange, self.resident
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


@dataclass(frozen=True)
class DeviceWork:
    """Work of a device whose addresses are those of the memory of each run.

    kind: "launch" for a kernel on `count` blocks, whose arguments are the words; "clear" and "copy" for
        `count` bytes at the address, or to the first address from the second; "mark" for mark number `count`
        behind the work of its stream so far, and "follow" to wait for that mark.
    bases, offsets: for each word the number of the memory that its address lies in, and how many bytes behind
        its beginning; -1 for a word that is the same in each run, and the word.
    stream: the stream that it is given to: 0 for the main one, from 1 on for side streams.
    """

    kind: Literal["launch", "clear", "copy", "mark", "follow"]
    bases: tuple[int, ...]
    offsets: tuple[int, ...]
    count: int
    code: DeviceCode | None = None
    stream: int = 0

    def words(self, memory: Sequence[int]) -> list[int]:
        """Returns the words of a run. memory: the address of each memory."""
        pairs = zip(self.bases, self.offsets, strict=True)
        return [offset if base < 0 else memory[base] + offset for base, offset in pairs]


RepeatedWork = Callable[[Sequence[int]], None]
"""Gives prepared work to a device. Its argument are the addresses of the memory of this run."""


class Device(Protocol):
    """A device with memory of its own. Work is done in the order given; `read` and `wait` wait for it."""

    @property
    def facts(self) -> DeviceFacts:
        """The properties of the device."""
        ...

    @property
    def place(self) -> tuple[int, int]:
        """The type of its memory and its number, as DLPack has them."""
        ...

    @property
    def is_capturing(self) -> bool:
        """Tells whether another library captures this thread's work in a graph: nothing may be allocated,
        waited for, or copied from the host.
        """
        ...

    def allocate(self, count: int) -> int:
        """Allocates `count` bytes, aligned to 256; returns their address, or raises `MemoryError`."""
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

    def repeated(self, calls: "Sequence[DeviceWork]", kept: object) -> "RepeatedWork":
        """Prepares work to repeat on other memory each time. kept: objects to keep alive with it."""
        ...

    def wait(self) -> None:
        """Waits until all work given so far is done. Raises `DeviceError` if a kernel failed."""
        ...

    def on_stream(self, handle: int) -> AbstractContextManager[None]:
        """Context in which this thread gives work to a stream, by the driver's handle."""
        ...

    @property
    def fork(self) -> Fork | None:
        """The fork that this thread is in; None if all its work goes to one stream."""
        ...

    def forked(self) -> AbstractContextManager[Fork]:
        """Context in which this thread may give work to side streams; at its end they are joined."""
        ...


class Address(int):
    """An address in the memory of a device. It is an integer that knows the object that keeps the memory
    allocated, so that whoever notes the work of a call can tell addresses from numbers.
    """

    owner: object

    @classmethod
    def of(cls, address: int, owner: object) -> "Address":
        """Makes an address in the memory of an owner."""
        made = cls(address)
        made.owner = owner
        return made

    def __add__(self, count: int) -> "Address":
        """Returns the address `count` bytes behind this one."""
        return Address.of(int.__add__(self, count), self.owner)

    __radd__ = __add__


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A C-contiguous array in the memory of a device.

    address: of its first byte, an `Address`. owner: the object that keeps the memory allocated.
    """

    device: Device
    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: object

    def __post_init__(self) -> None:
        """Makes the address one that knows the owner."""
        object.__setattr__(self, "address", Address.of(self.address, self.owner))

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def reshape(self, shape: tuple[int, ...]) -> "DeviceArray":
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
            "data": (int(self.address), False),
            "version": 3,
            "strides": None,
            "stream": LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the type of the device and its number, as DLPack has them."""
        return self.device.place

    def __dlpack__(self, **options: Any) -> Any:
        """Returns the array as a DLPack capsule, where it lies. options: the options of the protocol, such as
        the stream of the consumer, for which all work is done first.
        """
        if options.get("stream", -1) != -1:
            self.device.wait()
        return capsule_of(self.address, self.shape, self.dtype, self.device.place, self)


class NotResidentError(DeviceError):
    """The blocks of a kernel do not all run at once, as they must. at_once: how many do."""

    def __init__(self, message: str, at_once: int) -> None:
        """Takes the message, and how many blocks run at once."""
        super().__init__(message)
        self.at_once = at_once

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how to make the error again in another process."""
        return NotResidentError, (str(self), self.at_once)


class Allocation:
    """Memory of a device, which is freed when nothing refers to this object any more.

    count: the bytes. is_of_model: whether it holds parameters of a model, or what follows from them.
    """

    is_of_model = False

    def __init__(self, device: Device, count: int) -> None:
        """Allocates `count` bytes of a device."""
        self.count, self.address = count, device.allocate(max(count, 1))
        weakref.finalize(self, device.free, self.address)


ALLOCATE = ContextVar[Callable[[Device, int], OwnedMemory]]("ALLOCATE", default=Allocation)
"""Allocates the memory of values that are computed: of the device, or of the library that calls."""


KNOWN = ContextVar[Callable[[OwnedMemory, int], OwnedMemory] | None]("KNOWN", default=None)
"""Makes the memory of a value, of so many bytes, known to the notes of a call; None if there are none."""


AllocateMemory = Callable[[Device, int], OwnedMemory]
"""Allocates some bytes for a device."""


def allocated(device: Device, count: int) -> OwnedMemory:
    """Allocates the memory of a value that is computed, `count` bytes."""
    owner, known = ALLOCATE.get()(device, count), KNOWN.get()
    return owner if known is None else known(owner, count)


@contextmanager
def allocating(allocate: AllocateMemory) -> Generator[None]:
    """Context in which the memory for the values that kernels compute comes from a function, such as
    `Allocation`, so that it is the device's own.
    """
    token = ALLOCATE.set(allocate)
    try:
        yield
    finally:
        ALLOCATE.reset(token)


def allocated_by(allocate: Callable[[int], OwnedMemory]) -> AbstractContextManager[None]:
    """Context in which the values that kernels compute lie in memory that a function allocates."""
    return allocating(lambda device, count: allocate(max(count, 1)))


def keeping(owners: list[OwnedMemory]) -> AbstractContextManager[None]:
    """Context in which memory that another library allocates stays allocated, in a list: the library does not
    know that side streams use it.
    """
    allocate = ALLOCATE.get()

    def kept(device: Device, count: int) -> OwnedMemory:
        """Allocates memory, and keeps it if it is not the device's own."""
        owner = allocate(device, count)
        if not isinstance(owner, Allocation):
            owners.append(owner)
        return owner

    return allocating(kept)


def empty(device: Device, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Allocates an array on a device, whose contents are undefined."""
    owner = allocated(device, prod(shape) * np.dtype(dtype).itemsize)
    return DeviceArray(device, owner.address, shape, dtype, owner)


def put(device: Device, array: Array) -> DeviceArray:
    """Copies an array of the host into new memory of a device, which later calls may read in any stream."""
    source = np.ascontiguousarray(array)
    with for_all_streams(device):
        owner = Allocation(device, source.nbytes)
        if source.nbytes:
            device.write(owner.address, source)
    return DeviceArray(device, owner.address, array.shape, name_of(array.dtype), owner)


def for_all_streams(device: Device) -> AbstractContextManager[None]:
    """Context in which a thread computes what it keeps for later: all side streams are behind it."""
    return nullcontext() if device.fork is None else device.fork.on_main()


def put_together(device: Device, arrays: Sequence[Array]) -> list[DeviceArray]:
    """Copies arrays of the host to a device, one behind the other into one memory."""
    sources = [np.ascontiguousarray(array) for array in arrays]
    ends = list(accumulate((aligned(source.nbytes) for source in sources), initial=0))
    owner = Allocation(device, ends[-1])
    made = [
        DeviceArray(device, owner.address + begin, source.shape, name_of(source.dtype), owner)
        for source, begin in zip(sources, ends, strict=False)
    ]
    for target, source in zip(made, sources, strict=True):
        if source.nbytes:
            device.write(target.address, source)
    return made


@cache
def name_of(dtype: "np.dtype[Any]") -> str:
    """Returns the name of a dtype, which takes NumPy some microseconds."""
    return dtype.name


def aligned(count: int) -> int:
    """Returns a number of bytes rounded up, so that what lies behind them is aligned."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def get(array: DeviceArray) -> Array:
    """Copies an array of a device to the host, after all work that was given to the device."""
    made = np.empty(array.shape, np.dtype(array.dtype))
    if made.nbytes:
        array.device.read(array.address, made)
    return made
