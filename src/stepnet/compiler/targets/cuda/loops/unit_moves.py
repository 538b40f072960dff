"""Writes the steps of a unit that is alone, one after another, with the inputs of several steps read ahead.

What an address needs is computed once for a turn, but for the entry of the step. Entries are counted from the
first of the sequence, in 32 bits.
"""

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, I64, integer, load_vector, store_vector
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.loops.lane_code import LaneTurn
from stepnet.compiler.targets.cuda.loops.unit_code import FiberIndex, InputRead
from stepnet.compiler.values.records import dataclass

Value = ir.Value
StepWriter = Callable[[Value, list[Value], Value, list[Value]], list[Value]]
"""Writes a step: takes its number, the memories, its entry and its inputs; returns the memories after it."""
PIECE = 16
"""The most bytes of a read, and what arrays must be aligned to for it."""


@dataclass(frozen=True)
class UnitPlace:
    """An element of each entry of an array.

    base: the address in the sequence's first entry, without `offset`, which is in elements. stride: the bytes
    of an entry. is_even: whether the base is a multiple of `PIECE` bytes if the array is.
    """

    dtype: str
    base: Value
    offset: int
    stride: int
    is_even: bool


class UnitMoves:
    """Writer of the reads and writes of all steps of a turn."""

    def __init__(self, code: PlaceWriter, lane: LaneTurn, inputs: Sequence[InputRead]) -> None:
        """Writes the code that does not depend on the step. inputs: those that a step reads."""
        self.code = code
        self.start, self.time = lane.start, code.trunc(lane.time, I32)
        self.last = code.trunc(code.sub(lane.count, integer(1)), I32)
        is_backward = code.icmp_signed("!=", code.word("reverse"), integer(0))
        self.forth = code.select(is_backward, ir.Constant(I32, -1), ir.Constant(I32, 1))
        sources = ((read.source, read.at) for read in inputs)
        self.places = [self.place(s.dtype, s.pointer, s.size, at) for s, at in sources]

    def place(self, dtype: str, pointer: Value, size: int, at: FiberIndex) -> UnitPlace:
        """Writes the place of an element of each entry of an array. size: of an entry."""
        code, item = self.code, np.dtype(dtype).itemsize
        first = code.add(code.multiplied(self.start, size), at.first)
        base, even = code.at(pointer, code.multiplied(first, item)), PIECE // item
        is_even = size % even == 0 and at.multiple % even == 0
        return UnitPlace(dtype, base, at.offset, size * item, is_even)

    def address(self, place: UnitPlace, entry: Value) -> Value:
        """Writes the address of an element of an entry."""
        code = self.code
        at = code.at(place.base, self.wide(entry, place.stride))
        return code.at(at, place.offset * np.dtype(place.dtype).itemsize)

    def wide(self, number: Value, factor: int) -> Value:
        """Writes the product of two numbers of 32 bits, of 64 bits."""
        return self.code.function_call("wide_product", I64, [number, ir.Constant(I32, factor)])

    def write(self, value: Value, place: UnitPlace, entry: Value) -> None:
        """Writes a store of an element of an entry."""
        store_vector(
            self.code, place.dtype, value, self.address(place, entry), np.dtype(place.dtype).itemsize
        )

    def entry(self, step: Value) -> Value:
        """Writes the entry of a step, counted from the first; that of the last one for steps beyond."""
        code = self.code
        within = code.smaller(step, self.last)
        time = code.add(self.time, code.mul(within, self.forth))
        is_given = code.icmp_signed("!=", code.word("steps"), integer(0))

        def read() -> list[Value]:
            """Writes the load of where the step lies."""
            return [code.trunc(code.read(I64, code.at(code.pointer("steps"), self.wide(time, 8)), 8), I32)]

        return code.either(is_given, read, [time])[0]

    def read(self, step: Value) -> list[Value]:
        """Writes the entry of a step, and the loads of its inputs."""
        code, entry, found = self.code, self.entry(step), dict[int, Value]()
        for number, place in enumerate(self.places):
            if number not in found:
                piece, item = self.piece_of(place), np.dtype(place.dtype).itemsize
                at = self.address(self.places[piece[0]], entry)
                loaded = load_vector(code, place.dtype, len(piece), at, len(piece) * item)
                elements = [loaded]
                if len(piece) > 1:
                    elements = [code.extract_element(loaded, ir.Constant(I32, n)) for n in range(len(piece))]
                found |= dict(zip(piece, elements, strict=True))
        return [entry, *(found[number] for number in range(len(self.places)))]

    def piece_of(self, place: UnitPlace) -> list[int]:
        """Returns the inputs that are read at once with one, in the order in which they lie."""
        most = PIECE // np.dtype(place.dtype).itemsize
        first = place.offset - place.offset % most
        own = {p.offset - first: n for n, p in enumerate(self.places) if p.base is place.base}
        if place.is_even and all(n in own for n in range(most)):
            return [own[n] for n in range(most)]
        return [self.places.index(place)]

    def all_steps(self, memories: list[Value], ahead: int, step: StepWriter) -> list[Value]:
        """Writes all steps of a turn, at least one; returns the memories after them.

        ahead: the steps whose inputs are read ahead, which are written one after another.
        """
        code = self.code
        given = [memories, *(self.read(ir.Constant(I32, n)) for n in range(ahead))]
        before, head, after = code.block, code.append_basic_block("steps"), code.append_basic_block("end")
        code.branch(head)
        code.position_at_end(head)
        first = code.phi(I32)
        begun = [[code.phi(value.type) for value in values] for values in given]
        present, slots, ends = (
            [*begun[0]],
            [[*slot] for slot in begun[1:]],
            list[tuple[list[Value], ir.Block]](),
        )
        for place, (entry, *inputs) in enumerate(begun[1:]):
            number = code.add(first, ir.Constant(I32, place))
            present = step(number, present, entry, inputs)
            slots[place] = self.read(code.add(number, ir.Constant(I32, ahead)))
            ends.append((present, code.block))
            further = code.append_basic_block("step")
            code.cbranch(code.icmp_signed(">=", number, self.last), after, further)
            code.position_at_end(further)
        first.add_incoming(ir.Constant(I32, 0), before)
        first.add_incoming(code.add(first, ir.Constant(I32, ahead)), code.block)
        for phis, begins, follow in zip(begun, given, [present, *slots], strict=True):
            for phi, begin, then in zip(phis, begins, follow, strict=True):
                phi.add_incoming(begin, before)
                phi.add_incoming(then, code.block)
        code.branch(head)
        code.position_at_end(after)
        found = [code.phi(value.type) for value in memories]
        for values, block in ends:
            for phi, value in zip(found, values, strict=True):
                phi.add_incoming(value, block)
        return [*found]
