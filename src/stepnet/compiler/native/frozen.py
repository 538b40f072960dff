"""Frozen calls: a call with its machine code and all that this reads, as bytes that any process can run.

    code    instructions and tables                          executable
    data    packed parameters, argument words, tables        written by calls
    scratch zeros behind the data: workspaces, values that the call does not return

Both parts contain addresses, of each other and of functions of the system: places, which are filled in where
the call is to run. What it runs are then the same instructions on the same words as in the process that froze
it, so results have the same bits.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.amx import has_permission
from stepnet.compiler.native.pages import HUGE, aligned, library_address, mapped, pointer, protect
from stepnet.compiler.native.system import rest_address, symbols
from stepnet.compiler.native.watching import watching
from stepnet.compiler.values.records import dataclass

ADDRESS = struct.Struct("<Q")
CODE, DATA = 0, 1
"""The parts of a frozen call, and the first bases of addresses; the functions of `names` follow."""
REST = "rest"
"""The name of the system's short sleep among the functions, which has another one on each system."""

BREAK_EVEN = 0.03
"""The seconds of runs after which the model is made, if several threads share its calls: as long as that
takes. So a process that calls a model once does not wait for it, and one that goes on loses little.
"""


@dataclass(frozen=True)
class FrozenResult:
    """A result of a frozen call, in a new array at each call.

    shape, dtype: those of the array. words: the 64-bit words of the data that have its address.
    """

    shape: tuple[int, ...]
    dtype: str
    words: tuple[int, ...]


@dataclass(frozen=True)
class FrozenKernel:
    """A kernel that a frozen call runs.

    entry: the offset of its function in the code.
    words, status, progress: the offsets in the data of its argument words, of the word that is set if an
        index is outside its table, and of its progress.
    """

    entry: int
    words: int
    status: int
    progress: int


@dataclass(frozen=True)
class FrozenCall:
    """A call of some shapes with its machine code and all that this reads.

    code, data: the bytes of the two parts, with zeros where addresses belong. scratch: the bytes behind data.
    addresses: a row for each address: the part and the offset where it belongs, its base (a part, or a
        function), and what is added to it.
    names: the functions of the system, by name.
    kernels: the kernels that it runs, in order.
    begun: the words of progress ahead of a kernel. pause: the index of the one that is cleared to go on.
    tiles: whether code may use the tile registers of the processor, which the system is asked for.
    shared: whether several threads would share the call, which runs on one here.
    inputs: the 64-bit words of the data that have the address of the array that a call is given.
    results: the arrays that a call returns.
    """

    code: bytes
    data: bytes
    scratch: int
    addresses: np.ndarray
    names: tuple[str, ...]
    kernels: tuple[FrozenKernel, ...]
    begun: tuple[int, ...]
    pause: int
    tiles: bool
    shared: bool
    inputs: tuple[int, ...]
    results: tuple[FrozenResult, ...]


class ReadyCall:
    """A frozen call in memory, ready to run. One thread at a time may run it.

    seconds: the time of its runs so far, if several threads would share the call.
    """

    def __init__(self, frozen: FrozenCall) -> None:
        """Loads a frozen call: fills in its addresses, and makes its code executable."""
        self.inputs, self.pause, self.shared, self.seconds = frozen.inputs, frozen.pause, frozen.shared, 0.0
        self.results = [(each.shape, np.dtype(each.dtype), each.words) for each in frozen.results]
        self.code, self.data = mapped(len(frozen.code)), aligned(len(frozen.data) + frozen.scratch, HUGE)
        self.code[: len(frozen.code)] = frozen.code
        self.data[: len(frozen.data)] = np.frombuffer(frozen.data, np.uint8)
        begin, data = ctypes.addressof(ctypes.c_char.from_buffer(self.code)), pointer(self.data)
        fill_in(frozen, (self.code, self.data), (begin, data))
        protect(begin, len(frozen.code))
        numbers: Any = self.data.view(np.int64)
        self.words, self.begun = memoryview(numbers), np.array(frozen.begun)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        self.kernels = [
            (
                function(begin + each.entry),
                data + each.words,
                numbers[each.progress // 8 :][: len(frozen.begun)],
                each.status // 8,
            )
            for each in frozen.kernels
        ]

    def run(self, given: np.ndarray) -> list[np.ndarray] | None:
        """Runs the call on an array of the shape and dtype for which it was frozen, in C's order; returns its
        results. None if an index is outside of its table.
        """
        arrays, address, words = list[np.ndarray](), pointer(given), self.words
        for word in self.inputs:
            words[word] = address
        for shape, dtype, places in self.results:
            arrays.append(np.empty(shape, dtype))
            address = pointer(arrays[-1])
            for word in places:
                words[word] = address
        begun = perf_counter() if self.shared else 0.0
        for call, argument, progress, status in self.kernels:
            progress[:] = self.begun
            words[status] = 0
            while call(argument):  # it returns from time to time, so that interrupts are handled
                progress[self.pause] = 0
            if words[status]:
                return None
        if self.shared:
            self.seconds += perf_counter() - begun
        return arrays


def fill_in(frozen: FrozenCall, parts: Sequence[Any], begins: tuple[int, int]) -> None:
    """Writes the addresses of a frozen call into its parts, which begin at the addresses `begins`."""
    known = {**symbols(), REST: rest_address()} if frozen.names else {}
    bases = [*begins, *(known.get(name) or library_address(name) for name in frozen.names)]
    for part, offset, base, added in frozen.addresses.tolist():
        ADDRESS.pack_into(parts[part], offset, (bases[base] + added) % 2**64)


def ready_call(frozen: FrozenCall) -> ReadyCall | None:
    """Loads a frozen call; None if the system does not permit registers that its code may use."""
    return ReadyCall(frozen) if has_permission() or not frozen.tiles else None


class SingleArrayCall(NamedTuple):
    """A stored call of a model, and what it is for.

    idle: the call, unless a thread is running it. shape, dtype: those of the array that it is given.
    made: returns its results in their structure.
    """

    idle: list[ReadyCall]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    made: Callable[[list[np.ndarray]], Any]

    def described(self) -> str | None:
        """Returns None: what runs is the code of the model itself."""
        return None

    def run(self, given: Any) -> tuple[Any] | None:
        """Runs the call on an array; returns its results, or None, having done nothing, for what it is not
        for: another argument, a call that is watched, an index outside of its table, two threads at once.
        """
        is_own = type(given) is np.ndarray and given.shape == self.shape and given.dtype == self.dtype
        if not is_own or watching() is not None:
            return None
        flags = given.flags
        if not flags.c_contiguous or not flags.aligned:
            return None
        try:
            call = self.idle.pop()
        except IndexError:  # another thread runs it
            return None
        try:
            results = call.run(given) if call.seconds < BREAK_EVEN else None
        finally:
            self.idle.append(call)
        return None if results is None else (self.made(results),)
