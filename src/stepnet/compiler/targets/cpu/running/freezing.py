"""Freezes calls: a call of a chain of kernels with its machine code and all that this reads
(`native/frozen.py`).

    argument words    numbers, and addresses in known memory     ->   data, and places in it
    object code       of the driver and the plans, as stored     ->   code

Calls are frozen on one thread, over sequences that are one whole array, if machine code does all of the work.
A word that is no number and lies in no known memory means that the call is not frozen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.call_words import NUMBERS, PROGRESS
from stepnet.compiler.native.frozen import CODE, DATA, REST, FrozenCall, FrozenKernel, FrozenResult
from stepnet.compiler.native.pages import pointer
from stepnet.compiler.native.spaces import whole_lines
from stepnet.compiler.native.system import clock, rest_address
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.image import Image
from stepnet.compiler.targets.cpu.machine.memory import WORKSPACES
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.running.chain import KernelChain, Started
from stepnet.compiler.targets.cpu.running.form import CallArrays
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, Shape
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace
from stepnet.compiler.values.structure import leaves

PAGE = 4096
MOST_BYTES, MOST_SCRATCH = 2**22, 2**24
"""The most bytes of a frozen call, and of its scratch memory: larger ones are of calls that take long."""
MOST_SECONDS = 0.02
"""The longest estimated time of a frozen call, on one thread: what takes longer is run by several."""
FUNCTIONS = {"rest": REST, "clock": "system_clock"}
"""The argument words that are addresses of functions of the system, and the names of these."""


class NotFrozenError(Exception):
    """Reason why a call is not frozen; it never reaches a caller of stepnet."""


class KernelRun(NamedTuple):
    """A kernel of a call that ran: its scratch memory, its arrays, and the layout of its sequences."""

    native: Native
    space: Workspace
    arrays: CallArrays
    laid: SequenceLayout


def frozen_call(
    chain: KernelChain,
    add: Callable[[Started], None],
    fixed: Sequence[Array],
    given: Array,
    made: Callable[[], Any],
) -> FrozenCall | None:
    """Freezes a call, which it runs once; None if it cannot be frozen.

    chain: its kernels. add: adds the call of each to a run of the chain. fixed: the arrays that every such
    call has, such as zeros for omitted memories. given: the array that each call is given. made: returns the
    results in the structure and the shapes in which the caller of the model has them.
    """
    if not chain.defers or chain.between or not given.nbytes:
        return None
    started = chain.started()
    add(started)
    calls, forms, natives = started.calls, started.forms, chain.natives
    ends = any(call.until is not None or call.step_offset is not None for call in calls)
    full = all(call.positions.is_full for call in calls)
    if ends or started.copied or not full or not all(form.whole for form in forms):
        return None
    seconds = sum(
        native.partition(native.size(call), 1).chosen.seconds
        for native, call in zip(natives, calls, strict=True)
    )
    if seconds > MOST_SECONDS:
        return None
    layouts = [SequenceLayout.of(call.positions) for call in calls]
    sets = [
        laid.in_one_lane if native.rows_are_alone else laid.sets(1, seconds, native.fewest_lanes(1))
        for native, laid in zip(natives, layouts, strict=True)
    ]
    usual = chain.shape(calls)[0]
    ones, count = (1,) * len(calls), len(calls)
    lanes = tuple(tuple(number for number, _ in own) for own in sets)
    waves = tuple((place,) for place in range(count))
    prepared = PreparedChain(natives, Shape(waves, lanes, ones, (0,) * count, usual.rooms, False, ones))
    spaces = [space for (space,) in prepared.spaces]
    try:
        prepared.write(calls, started.arrays, sets)
        prepared.run({})
        runs = list(map(KernelRun, natives, spaces, started.arrays, layouts))
        own = [array for form in forms for array in (*form.filled.values(), *form.offsets)]
        return Freezing(runs, [*fixed, *own], pointer(given)).frozen(made(), usual.is_shared)
    except NotFrozenError:
        return None
    finally:
        WORKSPACES.give_back(*(space.memory for space in spaces))


class Data:
    """The data of a frozen call while it is put together, and its scratch memory.

    bytes, scratch: the data so far, and the number of bytes of scratch memory.
    known: pieces of memory of this process: the begin and the end of each, its offset in the data or in
        scratch memory, and whether it is scratch.
    """

    def __init__(self) -> None:
        """Makes data without bytes."""
        self.bytes, self.scratch = bytearray(), 0
        self.known = list[tuple[int, int, int, bool]]()

    def append(self, array: Array) -> int:
        """Adds the contents of an array, and a line of zeros behind it; returns their offset."""
        begin = len(self.bytes)
        self.bytes += array.tobytes() + bytes(whole_lines(array.nbytes + LINE) - array.nbytes)
        return begin

    def add(self, array: Array) -> None:
        """Adds the contents of an array, unless it is there, so that its addresses are known."""
        address = pointer(array)
        if not self.has(address):
            self.known.append((address, address + max(1, array.nbytes), self.append(array), False))

    def reserve(self, array: Array) -> None:
        """Reserves scratch memory for an array whose contents every call writes before it reads them."""
        address = pointer(array)
        self.known.append((address, address + array.nbytes, self.scratch, True))
        self.scratch += whole_lines(array.nbytes + LINE)

    @property
    def size(self) -> int:
        """The bytes of the data, in whole pages; scratch memory begins behind them."""
        return -(-len(self.bytes) // PAGE) * PAGE

    def has(self, address: int) -> bool:
        """Tells whether an address lies in known memory."""
        return any(begin <= address < end for begin, end, _, _ in self.known)

    def place(self, address: int) -> int:
        """Returns the offset of an address, once all is added; raises `NotFrozenError` for unknown memory."""
        for begin, end, offset, is_scratch in self.known:
            if begin <= address < end:
                return address - begin + offset + (self.size if is_scratch else 0)
        raise NotFrozenError("a word is no address in known memory")


class Freezing:
    """A call whose kernels ran, while it is frozen."""

    def __init__(self, runs: Sequence[KernelRun], fixed: Sequence[Array], given: int) -> None:
        """Takes the kernels that ran, in order, the arrays that every call has, and the address of the array
        that each is given.
        """
        self.runs, self.given, self.fixed = runs, given, {*map(pointer, fixed)}
        self.data = Data()
        self.names, self.addresses = list[str](), list[tuple[int, int, int, int]]()
        self.inputs, self.returned = list[int](), dict[int, list[int]]()

    def frozen(self, made: Any, shared: bool) -> FrozenCall:
        """Freezes the call; raises `NotFrozenError` if it cannot be.

        made: its results in the structure in which its caller has them. shared: whether several threads would
        share the call.
        """
        results: list[Array] = leaves(made)
        code, entries = self.code()
        for native, space, _, laid in self.runs:
            for array in (native.constants, *laid.tables):
                self.data.add(array)
            self.data.reserve(space.memory)
        whole = [(place, array) for place, array in enumerate(results) if array.flags.c_contiguous]
        places = {(pointer(array), array.nbytes): place for place, array in whole}
        begins = [self.data.append(numbers_of(run)) for run in self.runs]
        known = [self.words(*pair, places) for pair in zip(self.runs, begins, strict=True)]
        for begin, own in zip(begins, known, strict=True):
            for word, address in own.items():
                self.addresses.append((DATA, begin + 8 * word, DATA, self.data.place(address)))
        if len(code) + self.data.size > MOST_BYTES or self.data.scratch > MOST_SCRATCH:
            raise NotFrozenError("the call is too large")
        if sorted(self.returned) != [*range(len(results))]:
            raise NotFrozenError("a result is not as machine code computes it")
        place = self.data.place
        return FrozenCall(
            code=code,
            data=bytes(self.data.bytes) + bytes(self.data.size - len(self.data.bytes)),
            scratch=self.data.scratch,
            addresses=np.array(self.addresses, np.int64),
            names=tuple(self.names),
            kernels=tuple(
                FrozenKernel(
                    entry, begin, place(pointer(run.space.status)), place(pointer(run.space.progress))
                )
                for run, entry, begin in zip(self.runs, entries, begins, strict=True)
            ),
            begun=tuple(int(name == "threads") for name in PROGRESS),
            pause=PROGRESS.index("pause"),
            tiles=any(run.native.processor.has("amx-int8") for run in self.runs),
            shared=shared,
            inputs=tuple(self.inputs),
            results=tuple(
                FrozenResult(each.shape, each.dtype.str, tuple(self.returned[n]))
                for n, each in enumerate(results)
            ),
        )

    def words(self, run: KernelRun, begin: int, places: Mapping[tuple[int, int], int]) -> dict[int, int]:
        """Returns the addresses that the argument words of a kernel have in each call, by word, and adds what
        lies there to the data. Notes the words that differ: with the address of the array that is given, of
        results, and of functions of the system.

        run: the kernel that ran. begin: the offset of its words. places: the places of the results of the
        call, by their addresses and sizes.
        """
        own, addresses = run.space.words[0], dict[int, int]()
        results = [array for kind in run.arrays.results for array in kind]
        for word, array in zip(run.native.array_words, run.arrays.in_order, strict=True):
            address = pointer(array)
            if array is None:
                continue
            if address == self.given:
                self.inputs.append(begin // 8 + word)
            elif (place := places.get((address, array.nbytes))) is not None:
                self.returned.setdefault(place, []).append(begin // 8 + word)
            else:
                addresses[word] = address
                if any(array is each for each in results):
                    self.data.reserve(array)
                elif address in self.fixed:
                    self.data.add(array)
                elif not self.data.has(address):
                    raise NotFrozenError("an array may be another one in other calls")
        written = {word: own.item(word) for name, word in WORD.items() if name not in NUMBERS}
        for name, address in (("rest", rest_address()), ("clock", clock().address)):
            if written.pop(WORD[name]) != address:
                raise NotFrozenError(f"{name} is another function")
            self.addresses.append((DATA, begin + 8 * WORD[name], self.function(FUNCTIONS[name]), 0))
        return {word: address for word, address in (written | addresses).items() if address}

    def function(self, name: str) -> int:
        """Returns the base of addresses that is a function of the system, by its name."""
        if name not in self.names:
            self.names.append(name)
        return DATA + 1 + self.names.index(name)

    def code(self) -> tuple[bytes, list[int]]:
        """Joins the object code of the driver and of the plans; returns it, and the offset in it of the
        function `run` of each kernel.
        """
        code, functions, entries = bytearray(), dict[str, int](), dict[int, int]()
        plans = [run.native.compiled.code for run in self.runs]
        if plans[0].called is not None:
            functions = self.joined(code, plans[0].called.object, {})
        for plan in plans:
            if id(plan) not in entries:
                entries[id(plan)] = self.joined(code, plan.object, functions)["run"]
        return bytes(code), [entries[id(plan)] for plan in plans]

    def joined(self, code: bytearray, own: bytes, functions: Mapping[str, int]) -> dict[str, int]:
        """Appends object code to the code; returns the offsets of its functions. functions: the functions of
        other code that it calls.
        """
        image = Image.of(own)
        if image is None:
            raise NotFrozenError("only LLVM can load the code")
        code += bytes(-len(code) % PAGE)
        begin = len(code)
        code += bytes(image.size)
        for offset, section in image.sections:
            code[begin + offset : begin + offset + len(section)] = section
        for offset, _, symbol, added in image.relocations:
            if symbol.section in image.begins:
                base, added = CODE, added + begin + image.begins[symbol.section] + symbol.offset
            elif symbol.name in functions:
                base, added = CODE, added + functions[symbol.name]
            else:
                base = self.function(symbol.name)
            self.addresses.append((CODE, begin + offset, base, added))
        return {name: begin + offset for name, offset in image.functions.items()}


def numbers_of(run: KernelRun) -> Array:
    """Returns the argument words of a kernel, with zeros in place of addresses."""
    own, numbers = run.space.words[0], {WORD[name] for name in NUMBERS}
    return np.where([word in numbers for word in range(len(own))], own, 0)
