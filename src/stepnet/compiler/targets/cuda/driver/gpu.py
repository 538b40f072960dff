"""A GPU, by the CUDA driver: its primary context, which PyTorch uses too, and its memory and kernels.

Work is given to the current stream of a thread, by default the one that is called the legacy default stream.
Work of one device is done in the order in which it is given, also on several streams: a stream waits for the
one that was given work before it; only side streams (`streams.py`) do not. Only `read` and `wait` wait for
the GPU, and `write` if it is far behind.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn
from weakref import WeakSet

from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cuda.device import (
    CUDA,
    Array,
    DeviceCode,
    DeviceWork,
    NotResidentError,
    RepeatedWork,
)
from stepnet.compiler.targets.cuda.driver.facts import attribute_of, device_of, facts_of
from stepnet.compiler.targets.cuda.driver.library import (
    CLUSTER_TOO_LARGE,
    DEINITIALIZED,
    FORKED,
    GRID_TOO_LARGE,
    LOST,
    OUT_OF_MEMORY,
    TOO_MANY_RESOURCES,
    CudaLibrary,
    cuda_library,
)
from stepnet.compiler.targets.cuda.driver.loaded import LoadedKernels
from stepnet.compiler.targets.cuda.driver.replay import GpuWork
from stepnet.compiler.targets.cuda.driver.staging import WITHOUT_TIME, Staging
from stepnet.compiler.targets.cuda.recording.notes import noted, noted_order
from stepnet.compiler.targets.cuda.streams import Fork
from stepnet.compiler.values.once import computed_once
from stepnet.errors import DeviceError

POOL_PROPERTIES, PINNED, ON_DEVICE = 88, 1, 1
"""The bytes of the properties of a memory pool, and their values."""
WAITS_INSIDE, KEPT = 3, 4
"""The attributes of a memory pool: whether an allocation may make its stream wait for the one that freed the
memory, and how much the pool keeps."""
BESIDE = 1
"""A property of streams, which do not wait for the legacy default stream."""
REMEMBERED = 8
"""The number of kernels of which one that failed is among."""
ALL = ctypes.c_uint64(2**64 - 1)


class StateOfThread(threading.local):
    """Values that each thread has of its own.

    stream: the stream that it gives work to, by the driver's handle: 0 for the legacy default stream.
    fork: the side streams that it may give work to instead.
    context, answer: the memory for the answer of the driver which context it has, and its address.
    is_capturing: whether another library captures that stream's work in a CUDA graph.
    """

    stream, is_capturing = 0, False
    fork: Fork | None = None

    def __init__(self) -> None:
        """Makes the values of a thread, at their first use in it."""
        self.context = ctypes.c_void_p()
        self.answer = ctypes.byref(self.context)


class CudaDevice:
    """A GPU, by the driver's number of it. It may be used from any thread."""

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
        self.kernels = LoadedKernels(self)
        self.launched = deque[tuple[int, str]](maxlen=REMEMBERED)
        self.launches = self.finished = 0
        self.event = self.handle("cuEventCreate", WITHOUT_TIME)
        self.last: int | None = 0
        self.sides, self.events = list[int](), list[int]()
        self.marks, self.forks = list[int](), 0
        self.freed_later = list[int]()
        self.staging: Staging | None = None
        self.captured = set[GpuWork]()
        self.freed, self.graphs = deque[int](), deque[int]()
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
        if self.lost or os.getpid() != self.process:
            self.refuse()
        functions, own = self.functions, self.own
        self.current(own.answer)
        if own.context.value == self.context:
            return functions[name](*arguments)
        if error := functions["cuCtxPushCurrent_v2"](self.context):
            return error
        try:
            return functions[name](*arguments)
        finally:
            functions["cuCtxPopCurrent_v2"](own.answer)

    def refuse(self) -> NoReturn:
        """Raises `DeviceError` in a forked process, or as the context is lost."""
        if os.getpid() != self.process:
            raise DeviceError(FORKED)
        raise DeviceError(f"the GPU cannot be used any more in this process, as {self.lost}")

    @contextmanager
    def in_context(self) -> Generator[None]:
        """Context in which this GPU's context is that of the thread, for several calls of the driver. Raises
        `DeviceError` as `result` does.
        """
        if self.lost or os.getpid() != self.process:
            self.refuse()
        functions, own = self.functions, self.own
        self.current(own.answer)
        if own.context.value == self.context:
            yield
            return
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            functions["cuCtxPopCurrent_v2"](own.answer)

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
        """Names the kernels of which one has failed: all since the last time that none was running."""
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
        own = self.own
        before = own.stream, own.is_capturing
        own.stream, own.is_capturing = handle, bool(handle) and self.captures(handle)
        try:
            yield
        finally:
            was_capturing = own.is_capturing
            own.stream, own.is_capturing = before
            with self.lock:
                if self.last == handle != own.stream and not (was_capturing or self.lost):
                    self.call("cuEventRecord", self.event, handle)
                    self.last = None

    @property
    def is_capturing(self) -> bool:
        """Tells whether another library captures the work of this thread in a CUDA graph."""
        return self.own.is_capturing

    @computed_once
    def capture_stream(self) -> int:
        """The stream on which work becomes a graph, which waits for no other stream."""
        return self.handle("cuStreamCreate", BESIDE)

    def captures(self, stream: int) -> bool:
        """Tells whether the work of a stream is captured in a graph now."""
        status = ctypes.c_int()
        self.call("cuStreamIsCapturing", stream, ctypes.byref(status))
        return status.value != 0

    def refuse_capture(self, what: str) -> None:
        """Raises `DeviceError` while a CUDA graph is captured. what: the work that a graph cannot hold, for
        the message.
        """
        if self.own.is_capturing:
            raise DeviceError(
                f"{what} while a CUDA graph is captured: run this call once before the capture, with the "
                "same lengths"
            )

    def ordered(self) -> int:
        """Returns the current stream, which is made to wait for the work that was given to another one; a
        side stream only waits for that of its fork. During a capture, all other work is done already. The
        caller holds the lock.
        """
        if self.own.fork is not None and (side := self.own.fork.stream()) is not None:
            return side
        stream = self.own.stream
        if self.last != stream and not self.own.is_capturing:
            if self.last is not None:  # else the event has been recorded when the stream was left
                self.call("cuEventRecord", self.event, self.last)
            self.call("cuStreamWaitEvent", stream, self.event, 0)
            self.last = stream
        return stream

    @property
    def fork(self) -> Fork | None:
        """The fork that this thread is in; None if all its work goes to one stream."""
        return self.own.fork

    @contextmanager
    def forked(self) -> Generator[Fork]:
        """Context in which this thread may give work to side streams. At its end the streams are joined, and
        then the memory that several of them used is freed.
        """
        assert self.own.fork is None, "a fork has no forks"
        with self.lock:
            fork = Fork(noted_order(self), self.ordered())
            self.forks += 1
        self.own.fork = fork
        try:
            yield fork
        finally:
            self.own.fork = None
            with self.lock:
                self.forks -= 1
                if not self.lost:
                    self.ordered()
                    fork.join()
                if not self.forks:
                    # Events can be recorded anew once all waits for them were given.
                    self.events, self.marks = [*self.events, *self.marks], []
                    later, self.freed_later = self.freed_later, []
                    for address in later:
                        self.free(address)

    def side_stream(self, number: int) -> int:
        """Returns the handle of a side stream, by its number from 0 on; made at its first use."""
        while len(self.sides) <= number:
            self.sides.append(self.handle("cuStreamCreate", BESIDE))
        return self.sides[number]

    def mark_of(self, stream: int) -> int:
        """Returns an event behind the work that a stream was given so far."""
        with self.lock:
            event = self.events.pop() if self.events else self.handle("cuEventCreate", WITHOUT_TIME)
            self.marks.append(event)
            self.call("cuEventRecord", event, stream)
        return event

    def follow(self, stream: int, mark: int) -> None:
        """Makes a stream wait, before its next work, for an event."""
        with self.lock:
            self.call("cuStreamWaitEvent", stream, mark, 0)

    # ---- memory

    def made_pool(self) -> int:
        """Makes a pool of the GPU's memory, which keeps what is freed. What one side stream has freed is
        given to another only if that one is behind it: streams never wait for memory.
        """
        properties = (ctypes.c_int * (POOL_PROPERTIES // 4))(PINNED, 0, ON_DEVICE, self.device)
        pool = self.handle("cuMemPoolCreate", ctypes.byref(properties))
        self.call("cuMemPoolSetAttribute", pool, KEPT, ctypes.byref(ALL))
        self.call("cuMemPoolSetAttribute", pool, WAITS_INSIDE, ctypes.byref(ctypes.c_int(0)))
        return pool

    def allocate(self, count: int) -> int:
        """Allocates `count` bytes, aligned to 256; returns their address. Raises `MemoryError` with the
        numbers of bytes if there is no room.
        """
        self.refuse_capture("memory of the GPU cannot be allocated")
        address = ctypes.c_uint64()
        with self.lock:
            self.free_later()
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
            if self.own.fork is not None:
                self.own.fork.allocated(address.value)
        return address.value

    def free(self, address: int) -> None:
        """Frees memory, once the work given so far is done. Does nothing in a forked process, and if the
        context is lost or the driver has ended.
        """
        if self.lost or os.getpid() != self.process:
            return
        if self.own.is_capturing:
            self.freed.append(address)
            return
        with self.lock:
            is_own = self.own.fork is not None and self.own.fork.takes_back(address)
            if self.forks and not is_own:
                self.freed_later.append(address)
                return
            if self.pool:
                error = self.result("cuMemFreeAsync", address, self.ordered())
            else:
                error = self.result("cuMemFree_v2", address)
            if error not in (0, DEINITIALIZED):
                self.fail("cuMemFree", error)

    def free_later(self) -> None:
        """Frees memory given up during captures, in which nothing is freed, and graphs that are gone."""
        while self.graphs:
            self.call("cuGraphExecDestroy", self.graphs.popleft())
        while self.freed:
            self.free(self.freed.popleft())

    @noted
    def write(self, address: int, array: Array) -> None:
        """Copies a C-contiguous array of the host to an address. The array may change afterwards."""
        self.refuse_capture("numbers of the host cannot be copied to the GPU")
        with self.lock:
            self.staging = self.staging or Staging(self.call)
            self.staging.copy(address, pointer(array), array.nbytes, self.ordered())

    @noted
    def read(self, address: int, array: Array) -> None:
        """Fills a C-contiguous array of the host from an address, after all work given so far."""
        self.refuse_capture("the host cannot read numbers of the GPU")
        with self.lock:
            stream = self.ordered()
            self.call("cuMemcpyDtoHAsync_v2", pointer(array), address, array.nbytes, stream)
        self.synchronize(stream)

    @noted
    def copy(self, target: int, source: int, count: int) -> None:
        """Copies `count` bytes from one address to another."""
        if count:
            with self.lock:
                self.call("cuMemcpyDtoDAsync_v2", target, source, count, self.ordered())

    @noted
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
        self.refuse_capture("the GPU cannot be waited for")
        given = self.finished if self.forks else self.launches  # of side streams, nothing is known
        self.call("cuStreamSynchronize", stream)
        self.finished = max(self.finished, given)

    # ---- kernels

    @noted
    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Runs a kernel on some blocks. words: its arguments. Raises `DeviceError` if its blocks are to run
        at once and cannot, or if one needs more than a multiprocessor has.
        """
        if not blocks:
            return
        with self.lock:
            kernel = self.kernels.of(code)
            kernel.values[:] = words
            sizes = blocks, 1, 1, code.threads, 1, 1, code.shared, self.ordered(), kernel.pointers
            if code.exchange == "grid":
                error = self.result("cuLaunchCooperativeKernel", kernel.handle, *sizes)
            else:
                error = self.result("cuLaunchKernel", kernel.handle, *sizes, None)
            if error == GRID_TOO_LARGE:
                raise self.kernels.not_resident(code, kernel.handle, blocks)
            if error == CLUSTER_TOO_LARGE:  # the loop for a GPU with a multiprocessor less has no clusters
                fewer = self.facts.multiprocessors - 1
                raise NotResidentError(self.kernels.too_large(code, error), fewer)
            if error == TOO_MANY_RESOURCES:
                raise DeviceError(self.kernels.too_large(code, error))
            if error:
                self.fail("cuLaunchKernel", error)
            self.note_launches((code.name,))

    def note_launches(self, names: Sequence[str]) -> None:
        """Notes which kernels are given to the GPU, by name, for messages about one that failed."""
        self.launches += len(names)
        self.launched.extend((self.launches, name) for name in names[-REMEMBERED:])

    def repeated(self, calls: Sequence[DeviceWork], kept: object) -> RepeatedWork:
        """Prepares work to repeat on other memory each time. kept: objects to keep alive with it."""
        with self.lock:
            return GpuWork(self, calls, kept)


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
