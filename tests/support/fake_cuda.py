"""A CUDA driver in Python, which has memory of this process, keeps the calls in order, and fails when asked.

Kernels are not run: `launched` has their words. `capturing` has the streams whose work is captured.
"""

import ctypes
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from stepnet.compiler.targets.cuda import CudaDevice
from stepnet.compiler.targets.cuda.driver.library import FUNCTIONS, started

NAMES = {700: "CUDA_ERROR_ILLEGAL_ADDRESS", 2: "CUDA_ERROR_OUT_OF_MEMORY", 720: "TOO_LARGE"}
QUIET = ("cuGetErrorString", "cuGetErrorName", "cuCtxGetCurrent", "cuDeviceGetAttribute")


class FakeCuda:
    """The functions of a driver as attributes: of machine code, so that arguments are converted as for one.

    errors: the error that a function returns, by its name. attributes: of the device, by their numbers.
    """

    def __init__(self, **changes: Any) -> None:
        self.errors = dict[str, int]()
        self.calls = list[tuple[Any, ...]]()
        self.launched = list[tuple[Any, ...]]()
        self.memory = dict[int, Any]()
        self.current: int | None = None
        self.capturing = set[int]()
        self.events: Iterator[int] = repeat(55)
        self.streams: Iterator[int] = repeat(56)
        self.texts, self.kept = list[str](), list[Any]()
        self.version = changes.pop("version", 12080)
        self.count = changes.pop("count", 1)
        self.attributes = {16: 132, 75: 9, 76: 0, 82: 65536, 97: 232448, 115: 1, 120: 1}
        self.attributes |= changes.pop("attributes", {})
        assert not changes

    def __getattr__(self, name: str) -> Callable[..., int]:
        """The function of a name, which is kept so that its argument types can be set."""
        if name not in FUNCTIONS:
            raise AttributeError(name)
        does = getattr(type(self), f"do_{name}", None)

        def function(*given: Any) -> int:
            arguments = tuple(0 if one is None else one for one in given)  # so ctypes gives null pointers
            if name not in QUIET:
                self.calls.append((name, *arguments))
            if name in self.errors:
                return self.errors[name]
            return (does(self, *arguments) if does is not None else None) or 0

        called = ctypes.CFUNCTYPE(ctypes.c_int, *FUNCTIONS[name])(function)
        setattr(self, name, called)
        return called

    def names(self) -> list[str]:
        """The functions called since the last time, without those that only ask."""
        found, self.calls = [name for name, *_ in self.calls], []
        return found

    @staticmethod
    def put(address: int, value: Any, type_: Any = ctypes.c_void_p) -> None:
        type_.from_address(address).value = value

    def keep(self, text: bytes) -> int:
        """The address of a text that stays."""
        self.kept.append(ctypes.create_string_buffer(text))
        return ctypes.addressof(self.kept[-1])

    def new(self, count: int) -> int:
        buffer = ctypes.create_string_buffer(count + 1)
        self.memory[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def do_cuDriverGetVersion(self, version: Any) -> None:  # noqa: N802
        self.put(version, self.version, ctypes.c_int)

    def do_cuGetErrorString(self, error: int, text: Any) -> None:  # noqa: N802
        self.put(text, self.keep(b"words of the driver"))

    def do_cuGetErrorName(self, error: int, text: Any) -> None:  # noqa: N802
        self.put(text, self.keep(NAMES.get(error, "CUDA_ERROR").encode()))

    def do_cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802
        self.put(count, self.count, ctypes.c_int)

    def do_cuDeviceGetName(self, name: Any, size: int, device: int) -> None:  # noqa: N802
        ctypes.memmove(name, b"NVIDIA Fake", 12)

    def do_cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:  # noqa: N802
        self.put(value, self.attributes[attribute], ctypes.c_int)

    def do_cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:  # noqa: N802
        self.put(context, 77)

    def do_cuCtxGetCurrent(self, context: Any) -> None:  # noqa: N802
        self.put(context, self.current)

    def do_cuEventCreate(self, event: Any, flags: int) -> None:  # noqa: N802
        self.put(event, next(self.events))

    def do_cuStreamCreate(self, stream: Any, flags: int) -> None:  # noqa: N802
        self.put(stream, next(self.streams))

    def do_cuMemPoolCreate(self, pool: Any, properties: Any) -> None:  # noqa: N802
        self.put(pool, 66)

    def do_cuMemAllocFromPoolAsync(self, address: Any, count: int, pool: int, stream: int) -> None:  # noqa: N802
        self.put(address, self.new(count))

    def do_cuMemAlloc_v2(self, address: Any, count: int) -> None:  # noqa: N802
        self.put(address, self.new(count))

    def do_cuMemHostAlloc(self, address: Any, count: int, flags: int) -> None:  # noqa: N802
        self.put(address, self.new(count))

    def do_cuMemGetInfo_v2(self, free: Any, total: Any) -> None:  # noqa: N802
        self.put(free, 1000)
        self.put(total, 5000)

    def do_cuMemcpyHtoDAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:  # noqa: N802
        ctypes.memmove(target, source, count)

    def do_cuMemcpyDtoHAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:  # noqa: N802
        ctypes.memmove(target, source, count)

    def do_cuMemcpyDtoDAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:  # noqa: N802
        ctypes.memmove(target, source, count)

    def do_cuMemsetD8Async(self, target: int, value: int, count: int, stream: int) -> None:  # noqa: N802
        if target:
            ctypes.memset(target, value, count)

    def do_cuStreamIsCapturing(self, stream: int, status: Any) -> None:  # noqa: N802
        self.put(status, int(stream in self.capturing), ctypes.c_int)

    def do_cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:  # noqa: N802
        self.capturing.add(stream)

    def do_cuStreamEndCapture(self, stream: int, graph: Any) -> None:  # noqa: N802
        self.capturing.remove(stream)
        self.put(graph, 44)

    def do_cuGraphInstantiateWithFlags(self, made: Any, graph: int, flags: int) -> None:  # noqa: N802
        self.put(made, 45)

    def do_cuModuleLoadDataEx(self, module: Any, image: Any, *options: Any) -> None:  # noqa: N802
        self.texts.append(ctypes.string_at(image).decode())
        self.put(module, 88)

    def do_cuModuleGetFunction(self, function: Any, module: int, name: bytes) -> None:  # noqa: N802
        self.put(function, 99)

    def do_cuOccupancyMaxActiveBlocksPerMultiprocessor(self, blocks: Any, *sizes: int) -> None:  # noqa: N802
        self.put(blocks, 2, ctypes.c_int)

    def do_cuLaunchKernel(self, function: int, *arguments: Any) -> None:  # noqa: N802
        self.launched.append((*arguments[:8], *self.words(arguments[8])))

    def do_cuLaunchCooperativeKernel(self, function: int, *arguments: Any) -> None:  # noqa: N802
        self.launched.append((*arguments[:8], *self.words(arguments[8])))

    def words(self, pointers: int) -> list[int]:
        """The arguments of a kernel, of which there are two."""
        addresses = (ctypes.c_void_p * 2).from_address(pointers)
        return [ctypes.c_int64.from_address(address or 0).value for address in addresses]


def fake_device(**changes: Any) -> tuple[CudaDevice, FakeCuda]:
    """A GPU by such a driver. changes: those of `FakeCuda`."""
    fake = FakeCuda(**changes)
    return CudaDevice(0, started(fake)), fake
