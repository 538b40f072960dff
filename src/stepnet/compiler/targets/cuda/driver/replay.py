"""Work that is given to a GPU again and again: calls of the driver with arguments that are prepared once.

    words       one block of memory: the arguments of all kernels, addresses and numbers of bytes
    each run    addresses written into the block at once, then one call of the driver for each piece of work

Where a run has the addresses of the one before, as with memory that PyTorch keeps, the work becomes a CUDA
graph, which the driver takes in one call.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any
from weakref import finalize

import numpy as np

from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cuda.device import DeviceWork
from stepnet.compiler.targets.cuda.driver.library import GRID_TOO_LARGE
from stepnet.compiler.targets.cuda.driver.staging import WITHOUT_TIME

DriverCall = tuple[str, Callable[..., int], tuple[Any, ...], int, tuple[Any, ...]]
"""A function of the driver, by name and as such, its arguments before the stream, the number of the stream, 0
for the main one, and its arguments after the stream."""
WORTH_GRAPH = 3
"""The pieces of work from which on one call of a graph takes less time."""
SAME_RUNS = 3
"""The runs on the same memory, one after the other, of which the last one makes a graph."""
NOT_CAPTURED = range(900, 908)
"""The driver's errors for work that it does not capture."""
THREAD_LOCAL = 1
"""The mode of a capture that leaves other threads alone."""


class GpuWork:
    """Work of a GPU that was noted, as the driver's functions and their arguments. kept: objects that must
    exist as long as the work may run.
    """

    def __init__(self, device: Any, work: Sequence[DeviceWork], kept: object) -> None:
        """Loads the kernels, and prepares the arguments, for a `CudaDevice` whose lock the caller holds."""
        self.device, self.work, self.kept = device, work, kept
        words = [pair for piece in work for pair in zip(piece.bases, piece.offsets, strict=True)]
        table = np.array(words, np.int64).reshape(-1, 2)
        self.words = table[:, 1].copy()
        self.places = np.flatnonzero(table[:, 0] >= 0)
        self.memory, self.offsets = table[self.places, 0], self.words[self.places]
        self.pointers = np.arange(len(words), dtype=np.int64) * 8 + pointer(self.words)
        self.sides = [device.side_stream(n) for n in range(max((each.stream for each in work), default=0))]
        marks = sum(piece.kind == "mark" for piece in work)
        self.events = [device.handle("cuEventCreate", WITHOUT_TIME) for _ in range(marks)]
        finalize(self, device.events.extend, self.events).atexit = False
        self.calls = self.driver_calls()
        self.names = [piece.code.name for piece in work if piece.code is not None]
        self.is_worth_graph = len(self.calls) >= WORTH_GRAPH
        self.latest, self.runs, self.graph = list[int](), 0, list[int]()
        finalize(self, device.graphs.extend, self.graph).atexit = False

    def driver_calls(self) -> tuple[DriverCall, ...]:
        """Returns the calls of the driver that give the work."""
        made, at = list[DriverCall](), 0
        for piece in self.work:
            if piece.code is not None:
                name, before, after = self.launch(piece, at)
            elif piece.kind == "mark":
                name, before, after = "cuEventRecord", (self.events[piece.count],), ()
            elif piece.kind == "follow":
                name, before, after = "cuStreamWaitEvent", (), (self.events[piece.count], 0)
            else:
                name, before, after = self.move(piece, at)
            made.append((name, self.device.functions[name], before, piece.stream, after))
            at += len(piece.bases)
        return tuple(made)

    def launch(self, piece: DeviceWork, at: int) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
        """Returns the function that launches a kernel, with its arguments before and after the stream. at:
        the place of the kernel's arguments among the words.
        """
        code = piece.code
        assert code is not None
        sizes = self.device.kernels.of(code).handle, piece.count, 1, 1, code.threads, 1, 1, code.shared
        pointers = pointer(self.pointers) + 8 * at
        if code.exchange == "grid":
            return "cuLaunchCooperativeKernel", sizes, (pointers,)
        return "cuLaunchKernel", sizes, (pointers, None)

    def move(self, piece: DeviceWork, at: int) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
        """Returns the function that clears or copies bytes, with its arguments, as `launch` does. Addresses
        are views of the words.
        """
        first = pointer(self.words) + 8 * at
        addresses = [ctypes.c_uint64.from_address(first + 8 * place) for place in range(len(piece.bases))]
        if piece.kind == "clear":
            return "cuMemsetD8Async", (*addresses, 0, piece.count), ()
        return "cuMemcpyDtoDAsync_v2", (*addresses, piece.count), ()

    def __call__(self, memory: Sequence[int]) -> None:
        """Gives the work to the current stream. memory: the address of each memory."""
        device = self.device
        with device.lock, device.in_context():
            stream = device.ordered()
            if memory != self.latest:
                self.words[self.places] = np.array(memory, np.int64)[self.memory] + self.offsets
                self.latest, self.runs = [*map(int, memory)], 0  # integers that keep nothing allocated
                self.drop_graph()
            self.runs += 1
            device.note_launches(self.names)
            if device.is_capturing:
                device.captured.add(self)
            elif self.runs >= SAME_RUNS and self.is_worth_graph and (self.graph or self.capture()):
                device.call("cuGraphLaunch", self.graph[0], stream)
                return
            self.check(*self.give(stream))

    def give(self, stream: int) -> tuple[int, int]:
        """Calls the driver's functions one after the other, for a stream and its side streams; returns the
        place of the last one, and its error, 0 for none.
        """
        place, streams = 0, (stream, *self.sides)
        for place, (_, function, before, number, after) in enumerate(self.calls):
            if error := function(*before, streams[number], *after):
                return place, error
        return place, 0

    def check(self, place: int, error: int) -> None:
        """Raises `DeviceError` for the error of a call of the driver; `NotResidentError` for a kernel whose
        blocks do not all run at once any more.
        """
        if not error:
            return
        piece = self.work[place]
        if error == GRID_TOO_LARGE and piece.code is not None:
            handle = self.device.kernels.of(piece.code).handle
            raise self.device.kernels.not_resident(piece.code, handle, piece.count)
        self.device.fail(self.calls[place][0], error)

    def capture(self) -> bool:
        """Makes the work a graph, captured on a stream of its own. Returns False if the driver does not
        capture some piece of it: then all work is given piece by piece from now on.
        """
        device, graph, stream = self.device, ctypes.c_void_p(), self.device.capture_stream
        device.call("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)
        (place, error), name = self.give(stream), "cuStreamEndCapture"
        ended = device.result(name, stream, ctypes.byref(graph))
        if error in NOT_CAPTURED or (not error and ended in NOT_CAPTURED):
            self.is_worth_graph = False
            return False
        self.check(place, error)
        if ended:
            device.fail(name, ended)
        self.graph.append(device.handle("cuGraphInstantiateWithFlags", graph, 0))
        device.call("cuGraphDestroy", graph)
        return True

    def drop_graph(self) -> None:
        """Gives up the graph, if there is one, as its memory is not that of the next run."""
        self.device.graphs.extend(self.graph)
        self.graph.clear()
