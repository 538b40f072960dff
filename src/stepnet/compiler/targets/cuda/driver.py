"""A GPU, by the CUDA driver: its primary context, which PyTorch uses too, and its memory and kernels.

Work is given to the current stream of a thread, by default the one that is called the legacy default stream.
Work of one device is done in the order in which it is given, also on several streams: a stream waits for the
one that was given work before it. Only `read` and `wait` wait for the GPU, and `write` if it is far behind.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn
from weakref import WeakSet, finalize

from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cuda.device import CUDA, Array, DeviceCode
from stepnet.compiler.targets.cuda.gpu_facts import CLUSTERS, attribute_of, device_of, facts_of
from stepnet.compiler.targets.cuda.library import (
    CLUSTER_TOO_LARGE,
    DEINITIALIZED,
    FORKED,
    GRID_TOO_LARGE,
    LOST,
    OUT_OF_MEMORY,
    TOO_MANY_RESOURCES,
    UNSUPPORTED_PTX,
    CudaLibrary,
    cuda_library,
)
from stepnet.compiler.targets.cuda.ptx import translated
from stepnet.compiler.targets.cuda.staging import WITHOUT_TIME, Staging
from stepnet.errors import DeviceError

MAX_SHARED, LARGE_CLUSTERS = 8, 14
"""Attributes of a kernel: its most bytes of dynamic shared memory, and clusters of more than 8 blocks."""
ERROR_LOG, ERROR_LOG_SIZE, LOG_BYTES = 5, 6, 8192
"""Options for the driver's translation of PTX: where it writes its errors, and how many bytes."""
POOL_PROPERTIES, PINNED, ON_DEVICE, KEPT = 88, 1, 1, 4
"""The bytes of the properties of a memory pool, their values, and the attribute for how much it keeps."""
REMEMBERED = 8
"""The number of kernels of which one that failed is among."""
ALL = ctypes.c_uint64(2**64 - 1)


class StateOfThread(threading.local):
    """Values that each thread has of its own.

    stream: the stream that it gives work to, by the driver's handle: 0 for the legacy default stream.
    context: the memory for the answer of the driver which context it has.
    """

    stream = 0

    def __init__(self) -> None:
        """Makes the values of a thread, at their first use in it."""
        self.context = ctypes.c_void_p()


class LoadedKernel:
    """A kernel on the GPU, with memory for its arguments, which each launch fills anew.

    module, handle: the driver's. values: the arguments. pointers: their addresses. codes: the number of codes
    that were launched as this kernel and still exist.
    """

    def __init__(self, module: int, handle: int, words: int) -> None:
        """Takes the driver's handles and the number of arguments."""
        self.module, self.handle, self.codes = module, handle, 0
        self.values = (ctypes.c_int64 * words)()
        first = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * max(1, words))(*range(first, first + 8 * words, 8))


class CudaDevice:
    """A GPU. It may be used from any thread.

    number: of the GPU, as the driver counts.
    """

    def __init__(self, number: int = 0, library: CudaLibrary | None = None) -> None:
        """Retains the primary context of a GPU. library: the driver, loaded by default.

        Raises `DeviceError` if there is no driver, no such GPU, or one of a capability below 8.0.
        """
        self.library = library or cuda_library()
        self.functions = self.library.functions
        self.current = self.functions["cuCtxGetCurrent"]
        self.number, self.process, self.lost = number, os.getpid(), ""
        self.device = device_of(self.library, number)
        self.facts = facts_of(self.library, self.device)
        self.context = self.library.handle("cuDevicePrimaryCtxRetain", self.device)
        self.lock, self.own = threading.RLock(), StateOfThread()
        self.kernels, self.by_code = dict[str, LoadedKernel](), dict[int, LoadedKernel]()
        self.gone = deque[int]()
        self.launched = deque[tuple[int, str]](maxlen=REMEMBERED)
        self.launches = self.finished = 0
        self.event = self.handle("cuEventCreate", WITHOUT_TIME)
        self.last: int | None = 0
        self.staging: Staging | None = None
        DEVICES.add(self)
        self.pool = self.made_pool() if attribute_of(self.library, self.device, "pools") else 0

    @property
    def place(self) -> tuple[int, int]:
        """The type of its memory and its number, as DLPack has them."""
        return CUDA, self.number

    # ---- calls

    def result(self, name: str, *arguments: Any) -> int:
        """Calls a function of the driver in the context of this GPU, and leaves the context of the thread as
        it was; returns the driver's error. Raises `DeviceError` in a forked process, and if the context is
        lost.
        """
        if os.getpid() != self.process:
            raise DeviceError(FORKED)
        if self.lost:
            raise DeviceError(f"the GPU cannot be used any more in this process, as {self.lost}")
        functions, context = self.functions, self.own.context
        self.current(ctypes.byref(context))
        if context.value == self.context:
            return functions[name](*arguments)
        if error := functions["cuCtxPushCurrent_v2"](self.context):
            return error
        try:
            return functions[name](*arguments)
        finally:
            functions["cuCtxPopCurrent_v2"](ctypes.byref(context))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver. Raises `DeviceError` if it fails."""
        if error := self.result(name, *arguments):
            self.fail(name, error)

    def handle(self, name: str, *arguments: Any) -> int:
        """Calls a function whose first argument is the address of a handle; returns the handle."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value or 0

    def fail(self, name: str, error: int) -> NoReturn:
        """Raises `DeviceError` for an error of a function of the driver. After an error of a kernel nothing
        else is possible in this process, which all later errors say.
        """
        words = self.library.words(error)
        if error in LOST:
            self.lost = f"{self.suspects()} {LOST[error]} ({words})"
            raise DeviceError(f"{self.lost}; the GPU cannot be used any more in this process")
        raise DeviceError(f"{self.facts.name}: the CUDA driver says: {words} ({name})")

    def suspects(self) -> str:
        """Names the kernels of which one has failed: those since the last time that all were known to be
        done.
        """
        names = list(dict.fromkeys(name for number, name in self.launched if number > self.finished))
        if not names:
            return "a kernel of another library"
        if len(names) == 1:
            return f"the kernel {names[0]!r}"
        return f"one of the kernels {', '.join(map(repr, names))}"

    # ---- streams

    @contextmanager
    def on_stream(self, handle: int) -> Generator[None]:
        """Context in which this thread gives work to a stream, by the driver's handle, such as the
        `cuda_stream` of PyTorch's. The stream need not exist any longer than the context.
        """
        before, self.own.stream = self.own.stream, handle
        try:
            yield
        finally:
            self.own.stream = before
            with self.lock:
                if self.last == handle != before and not self.lost:
                    self.call("cuEventRecord", self.event, handle)
                    self.last = None

    def ordered(self) -> int:
        """Returns the current stream, which is made to wait for the work that was given to another one. The
        caller holds the lock.
        """
        stream = self.own.stream
        if self.last != stream:
            if self.last is not None:  # else the event has been recorded when the stream was left
                self.call("cuEventRecord", self.event, self.last)
            self.call("cuStreamWaitEvent", stream, self.event, 0)
            self.last = stream
        return stream

    # ---- memory

    def made_pool(self) -> int:
        """Makes a pool of the GPU's memory, which keeps what is freed."""
        properties = (ctypes.c_int * (POOL_PROPERTIES // 4))(PINNED, 0, ON_DEVICE, self.device)
        pool = self.handle("cuMemPoolCreate", ctypes.byref(properties))
        self.call("cuMemPoolSetAttribute", pool, KEPT, ctypes.byref(ALL))
        return pool

    def allocate(self, count: int) -> int:
        """Allocates `count` bytes, aligned to 256; returns their address. Raises `MemoryError` with the
        numbers of bytes if there is no room.
        """
        address = ctypes.c_uint64()
        with self.lock:
            stream = self.ordered()
            for again in (False, True):
                if again:  # with what the pool has kept
                    self.call("cuStreamSynchronize", stream)
                    self.call("cuMemPoolTrimTo", self.pool, 0)
                if self.pool:
                    where = ctypes.byref(address), count, self.pool, stream
                    error = self.result("cuMemAllocFromPoolAsync", *where)
                else:
                    error = self.result("cuMemAlloc_v2", ctypes.byref(address), count)
                if error != OUT_OF_MEMORY or not self.pool:
                    break
            if error == OUT_OF_MEMORY:
                free, total = ctypes.c_size_t(), ctypes.c_size_t()
                self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
                raise MemoryError(
                    f"{self.facts.name} has no room for an array of {count} bytes: {free.value} of its "
                    f"{total.value} bytes are free"
                )
            if error:
                self.fail("cuMemAlloc", error)
        return address.value

    def free(self, address: int) -> None:
        """Frees memory, once the work given so far is done. Does nothing in a forked process, and if the
        context is lost or the driver has ended.
        """
        if self.lost or os.getpid() != self.process:
            return
        with self.lock:
            if self.pool:
                error = self.result("cuMemFreeAsync", address, self.ordered())
            else:
                error = self.result("cuMemFree_v2", address)
            if error not in (0, DEINITIALIZED):
                self.fail("cuMemFree", error)

    def write(self, address: int, array: Array) -> None:
        """Copies a C-contiguous array of the host to an address. The array may change afterwards."""
        with self.lock:
            self.staging = self.staging or Staging(self.call)
            self.staging.copy(address, pointer(array), array.nbytes, self.ordered())

    def read(self, address: int, array: Array) -> None:
        """Fills a C-contiguous array of the host from an address, after all work given so far."""
        with self.lock:
            stream = self.ordered()
            self.call("cuMemcpyDtoHAsync_v2", pointer(array), address, array.nbytes, stream)
        self.synchronize(stream)

    def copy(self, target: int, source: int, count: int) -> None:
        """Copies `count` bytes from one address to another."""
        if count:
            with self.lock:
                self.call("cuMemcpyDtoDAsync_v2", target, source, count, self.ordered())

    def clear(self, address: int, count: int) -> None:
        """Sets `count` bytes at an address to zero."""
        if count:
            with self.lock:
                self.call("cuMemsetD8Async", address, 0, count, self.ordered())

    def wait(self) -> None:
        """Waits until all work given so far is done. Raises `DeviceError` if a kernel failed."""
        with self.lock:
            stream = self.ordered()
        self.synchronize(stream)

    def synchronize(self, stream: int) -> None:
        """Waits for a stream that was given work after all others. Other threads may give work meanwhile."""
        given = self.launches
        self.call("cuStreamSynchronize", stream)
        self.finished = max(self.finished, given)

    # ---- kernels

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Runs a kernel on some blocks. words: its arguments. Raises `DeviceError` if its blocks are to run
        at once and cannot, or if one needs more than a multiprocessor has.
        """
        if not blocks:
            return
        with self.lock:
            if self.gone:
                self.forget_gone()  # first, as a new code may have the identity of one that is gone
            kernel = self.by_code.get(id(code)) or self.kernel_of(code)
            kernel.values[:] = words
            sizes = blocks, 1, 1, code.threads, 1, 1, code.shared, self.ordered(), kernel.pointers
            if code.exchange == "grid":
                error = self.result("cuLaunchCooperativeKernel", kernel.handle, *sizes)
            else:
                error = self.result("cuLaunchKernel", kernel.handle, *sizes, None)
            if error in (GRID_TOO_LARGE, CLUSTER_TOO_LARGE, TOO_MANY_RESOURCES):
                raise DeviceError(self.too_large(code, kernel.handle, blocks, error))
            if error:
                self.fail("cuLaunchKernel", error)
            self.launches += 1
            self.launched.append((self.launches, code.name))

    def kernel_of(self, code: DeviceCode) -> LoadedKernel:
        """Returns the kernel of a code that was not launched yet: that of an equal one, or loaded now."""
        kernel = self.kernels.get(code.key)
        if kernel is None:
            self.unload_unused()
            kernel = self.loaded(code)
        self.by_code[id(code)] = kernel
        kernel.codes += 1
        finalize(code, self.gone.append, id(code)).atexit = False
        return kernel

    def forget_gone(self) -> None:
        """Forgets the codes that do not exist any more. The garbage collector, which may run anywhere, only
        notes them.
        """
        while self.gone:
            self.by_code.pop(self.gone.popleft()).codes -= 1

    def unload_unused(self) -> None:
        """Unloads the kernels of codes that do not exist any more, once all work given so far is done."""
        unused = {key: kernel for key, kernel in self.kernels.items() if not kernel.codes}
        if unused:
            self.synchronize(self.ordered())
        for key, kernel in unused.items():
            del self.kernels[key]
            self.call("cuModuleUnload", kernel.module)

    def loaded(self, code: DeviceCode) -> LoadedKernel:
        """Translates a kernel and loads it on the GPU."""
        if code.shared > self.facts.shared:
            raise DeviceError(
                f"the kernel {code.name!r} needs {code.shared} bytes of shared memory for each block, and "
                f"{self.facts.name} has {self.facts.shared}"
            )
        log = ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        image = ctypes.c_char_p(translated(code, self.facts.capability).encode())
        module = ctypes.c_void_p()
        error = self.result("cuModuleLoadDataEx", ctypes.byref(module), image, 2, options, values)
        if error == UNSUPPORTED_PTX:
            raise DeviceError(
                f"the CUDA driver is too old for the kernel {code.name!r}: {self.library.words(error)}; "
                "install a newer driver"
            )
        if error and error not in LOST:
            said = log.value.decode(errors="replace").strip()
            raise DeviceError(
                f"the CUDA driver refuses the kernel {code.name!r}: {self.library.words(error)}: {said}"
            )
        if error:
            self.fail("cuModuleLoadDataEx", error)
        kernel = self.handle("cuModuleGetFunction", module, b"kernel")
        self.call("cuFuncSetAttribute", kernel, MAX_SHARED, code.shared)
        if code.exchange == "cluster" and code.group > CLUSTERS:
            self.call("cuFuncSetAttribute", kernel, LARGE_CLUSTERS, 1)
        self.kernels[code.key] = LoadedKernel(module.value or 0, kernel, code.words)
        return self.kernels[code.key]

    def too_large(self, code: DeviceCode, kernel: int, blocks: int, error: int) -> str:
        """Returns the message for a kernel whose blocks do not fit on the GPU, or not all at once."""
        each = self.library.words(error)
        needs = f"blocks of {code.threads} threads and {code.shared} bytes of shared memory"
        if error != GRID_TOO_LARGE:
            cluster = f"clusters of {code.group} " if code.exchange == "cluster" else ""
            return f"the kernel {code.name!r} cannot run on {self.facts.name} with {cluster}{needs}: {each}"
        room = ctypes.c_int()
        sizes = kernel, code.threads, code.shared
        self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(room), *sizes)
        most = room.value * self.facts.multiprocessors
        return (
            f"the kernel {code.name!r} needs {blocks} {needs} that run at once, and {self.facts.name} runs "
            f"{most}: give fewer sequences per call"
        )


DEVICES = WeakSet[CudaDevice]()
"""The GPUs that are used in this process."""


def renew_locks() -> None:
    """Makes new locks after a fork: another thread may have held one, which does not exist here."""
    for device in DEVICES:
        device.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_locks)


@cache
def cuda_device(number: int = 0) -> CudaDevice:
    """Returns a GPU by its number, made once. Raises `DeviceError` if it cannot be used."""
    return CudaDevice(number)
