"""Freezes calls: a call of one kernel with its machine code and all that this reads (`native/frozen.py`).

    argument words    numbers, and addresses in known memory     ->   data, and places in it
    object code       of the driver and the plan, as stored      ->   code

Calls of one kernel on one thread are frozen, over sequences that are one whole array, if machine code does
all of the work. A word that is no number and lies in no known memory means that the call is not frozen.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.native.frozen import CODE, DATA, REST, FrozenCall, FrozenResult
from stepnet.compiler.native.pages import pointer
from stepnet.compiler.native.system import clock, rest_address
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.machine.call_words import NUMBERS, PROGRESS
from stepnet.compiler.targets.cpu.machine.image import Image
from stepnet.compiler.targets.cpu.machine.memory import WORKSPACES
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.running.chain import KernelChain
from stepnet.compiler.targets.cpu.running.form import CallArrays
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, Shape
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.running.workspace import WORD, Workspace, whole_lines
from stepnet.compiler.targets.threads import threads
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


def frozen_call(
    chain: KernelChain, call: Call, given: Array, structured: Callable[[Results], Any]
) -> FrozenCall | None:
    """Freezes a call, which it runs once; None if it cannot be frozen.

    chain: the chain of one kernel. call: a call of it, whose only sequences are the array `given`.
    structured: returns the results of the call in the structure and the shapes in which its caller has them.
    """
    (native,) = chain.natives
    has_more = bool(call.statics) or any(array is not None for array in call.initial)
    if not native.defers or call.until is not None or call.step_offset is not None:
        return None
    if has_more or not is_whole(call, given):
        return None
    started = chain.started()
    results = started.add(call)
    alone, size = native.partition(native.size(call), 1).chosen, native.size(call)
    if started.copied or not started.forms[0].whole or alone.seconds > MOST_SECONDS:
        return None
    laid = SequenceLayout.of(call.positions)
    sets = laid.in_one_lane if native.rows_are_alone else laid.sets(1, alone.seconds, native.fewest_lanes(1))
    lanes = tuple(count for count, _ in sets)
    prepared = PreparedChain(
        chain.natives, Shape(((0,),), (lanes,), (1,), (0,), (native.room(call),), False, (1,))
    )
    ((space,),) = prepared.spaces
    try:
        prepared.write(started.calls, started.arrays, [sets])
        prepared.run({})
        shared = native.partition(size, threads()).chosen.threads > 1
        return Freezing(native, space, laid, pointer(given)).frozen(
            started.arrays[0], structured(results), shared
        )
    except NotFrozenError:
        return None
    finally:
        WORKSPACES.give_back(space.memory)


def is_whole(call: Call, given: Array) -> bool:
    """Tells whether the sequences of a call are one array, which its caller has given."""
    (own, *others) = call.sequences or (np.empty(0),)
    return not others and own.nbytes == given.nbytes > 0 and pointer(own) == pointer(given)


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

    def add(self, array: Array) -> int:
        """Adds the contents of an array, and a line of zeros behind it; returns their offset."""
        begin, address = len(self.bytes), pointer(array)
        self.bytes += array.tobytes() + bytes(whole_lines(array.nbytes + LINE) - array.nbytes)
        self.known.append((address, address + array.nbytes, begin, False))
        return begin

    def reserve(self, array: Array) -> None:
        """Reserves scratch memory in the place of an array, of which no call reads what it did not write."""
        address = pointer(array)
        self.known.append((address, address + array.nbytes, self.scratch, True))
        self.scratch += whole_lines(array.nbytes + LINE)

    @property
    def size(self) -> int:
        """The bytes of the data, in whole pages; scratch memory begins behind them."""
        return -(-len(self.bytes) // PAGE) * PAGE

    def place(self, address: int) -> int:
        """Returns the offset of an address, once all is added; raises `NotFrozenError` for unknown memory."""
        for begin, end, offset, is_scratch in self.known:
            if begin <= address < end:
                return address - begin + offset + (self.size if is_scratch else 0)
        raise NotFrozenError("a word is no address in known memory")


class Freezing:
    """A call of a kernel that ran on a workspace, while it is frozen."""

    def __init__(self, native: Native, space: Workspace, laid: SequenceLayout, given: int) -> None:
        """Takes a kernel, the workspace of its call, the layout of the sequences, and their address."""
        self.native, self.space, self.laid, self.given = native, space, laid, given
        self.data = Data()
        self.names, self.addresses = list[str](), list[tuple[int, int, int, int]]()

    def frozen(self, arrays: CallArrays, made: Any, shared: bool) -> FrozenCall:
        """Freezes the call; raises `NotFrozenError` if it cannot be.

        arrays: all arrays of the call. made: its results in the structure in which its caller has them.
        shared: whether several threads would share the call.
        """
        code, entry = self.code()
        self.data.add(self.native.constants)
        self.data.reserve(self.space.memory)
        for table in self.laid.tables:
            self.data.add(table)
        inputs, returned, others = self.arrays(arrays, leaves(made))
        words = self.words(others)
        if len(code) + self.data.size > MOST_BYTES or self.data.scratch > MOST_SCRATCH:
            raise NotFrozenError("the call is too large")
        return FrozenCall(
            code=code,
            data=bytes(self.data.bytes) + bytes(self.data.size - len(self.data.bytes)),
            scratch=self.data.scratch,
            addresses=np.array(self.addresses, np.int64),
            names=tuple(self.names),
            entry=entry,
            words=words,
            status=self.data.place(pointer(self.space.status)),
            progress=self.data.place(pointer(self.space.progress)),
            begun=tuple(int(name == "threads") for name in PROGRESS),
            pause=PROGRESS.index("pause"),
            tiles=self.native.processor.has("amx-int8"),
            shared=shared,
            inputs=inputs,
            results=returned,
        )

    def arrays(
        self, arrays: CallArrays, made: Sequence[Array]
    ) -> tuple[tuple[int, ...], tuple[FrozenResult, ...], dict[int, int]]:
        """Sorts the argument words that point to arrays of the call. Returns those of the array that is
        given, the results with theirs in the order in which the caller has them, and all others with their
        addresses, for which the data get their arrays.

        arrays: all arrays of the call. made: its results as the caller has them.
        """
        inputs, words, others = list[int](), dict[int, int](), dict[int, int]()
        whole = [(place, array) for place, array in enumerate(made) if array.flags.c_contiguous]
        places = {(pointer(array), array.nbytes): place for place, array in whole}
        results = [array for kind in arrays.results for array in kind]
        for word, array in zip(self.native.array_words, arrays.in_order, strict=True):
            address = pointer(array)
            if array is None:
                continue
            if address == self.given:
                inputs.append(word)
            elif (place := places.get((address, array.nbytes))) is not None and place not in words:
                words[place] = word
            else:
                others[word] = address
                is_result = any(array is each for each in results)
                (self.data.reserve if is_result else self.data.add)(array)
        if sorted(words) != [*range(len(made))]:
            raise NotFrozenError("a result is not as machine code computes it")
        returned = [FrozenResult(each.shape, each.dtype.str, words[n]) for n, each in enumerate(made)]
        return tuple(inputs), tuple(returned), others

    def words(self, others: dict[int, int]) -> int:
        """Adds the argument words to the data; returns their offset. others: the addresses of arrays that
        each call has, by their words.
        """
        own = self.space.words[0]
        numbers = {WORD[name] for name in NUMBERS}
        written = {word: own.item(word) for word in WORD.values() if word not in numbers}
        begin = self.data.add(np.where([*map(numbers.__contains__, range(len(own)))], own, 0))
        for name, address in (("rest", rest_address()), ("clock", clock().address)):
            if written.pop(WORD[name]) != address:
                raise NotFrozenError(f"{name} is another function")
            self.addresses.append((DATA, begin + 8 * WORD[name], self.function(FUNCTIONS[name]), 0))
        for word, address in (written | others).items():
            if address:
                self.addresses.append((DATA, begin + 8 * word, DATA, self.data.place(address)))
        return begin

    def function(self, name: str) -> int:
        """Returns the base of addresses that is a function of the system, by its name."""
        if name not in self.names:
            self.names.append(name)
        return DATA + 1 + self.names.index(name)

    def code(self) -> tuple[bytes, int]:
        """Joins the object code of the driver and of the plan; returns it, and the offset of `run` in it."""
        plan = self.native.compiled.code
        objects = [] if plan.called is None else [plan.called.object]
        joined, functions = bytearray(), dict[str, int]()
        for image in map(Image.of, (*objects, plan.object)):
            if image is None:
                raise NotFrozenError("only LLVM can load the code")
            joined += bytes(-len(joined) % PAGE)
            begin = len(joined)
            joined += bytes(image.size)
            for offset, section in image.sections:
                joined[begin + offset : begin + offset + len(section)] = section
            for offset, _, symbol, added in image.relocations:
                if symbol.section in image.begins:
                    base, added = CODE, added + begin + image.begins[symbol.section] + symbol.offset
                elif symbol.name in functions:
                    base, added = CODE, added + functions[symbol.name]
                else:
                    base = self.function(symbol.name)
                self.addresses.append((CODE, begin + offset, base, added))
            functions |= {name: begin + offset for name, offset in image.functions.items()}
        return bytes(joined), functions["run"]
