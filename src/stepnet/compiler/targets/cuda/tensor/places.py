"""Writes a thread's place in a loop on tensor cores, and the addresses of what it reads and writes.

A thread holds a value as up to four elements: of 2 units x 2 sequences. Left operands of products are in
shared memory as [unit][sequence], or in bfloat16 as [pair of units][sequence][unit], each in two places,
which alternate from step to step, so that a step needs one barrier; or in one place, where warps that divide
a sum meet at a barrier of their own.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stepnet.compiler.targets.cpu.writing.code import I32
from stepnet.compiler.targets.cuda.codes import LOOP_WORDS
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.tensor.shape import COUNTER_BYTES, ROWS, UNITS, TensorShape
from stepnet.compiler.targets.cuda.writer import KernelWriter, Value

Elements = list[Value]
"""A value of the step as a thread holds it, or the 4 sums of a product."""


def elements(values: Iterable[Value]) -> Elements:
    """Lists elements. A list of one kind of values is, to a checker of types, no list of values."""
    return list(values)


@dataclass(frozen=True)
class TensorPlaces:
    """The 8 sequences of a group, as a thread sees them: one entry for each of its elements.

    rows: their numbers, of the last sequence where there is none.
    starts: their first entries; 0 for those without steps.
    lengths: their steps, 0 where there is no sequence. lasts: the last step, 0 where there is none.
    present: whether there is a sequence. done: its steps in earlier calls.
    longest: the steps of the longest of all 8, a single number.
    """

    rows: Elements
    starts: Elements
    lengths: Elements
    lasts: Elements
    present: Elements
    done: Elements
    longest: Value


class PlacesWriter(KernelWriter):
    """Writer of a thread's place among units and sequences, and of the addresses of its elements."""

    def __init__(self, shape: TensorShape) -> None:
        """Writes the code that finds a thread's units, and its places among the sequences of a group."""
        step = shape.step
        counted = {"x": step.sequences, "h": step.memories, "c": step.others}
        counted |= {"y": step.outputs, "last": step.memories}
        names = [f"{name}{place}" for name, numbers in counted.items() for place in range(len(numbers))]
        super().__init__(f"loop, {shape.schedule.name}", [*LOOP_WORDS, *names])
        self.shape, self.step, self.schedule = shape, step, shape.schedule
        number = self.number
        blocks, parts = self.schedule.blocks, self.schedule.parts
        self.group = self.sdiv(self.block_index, number(blocks))
        self.share = self.srem(self.block_index, number(blocks))
        self.groups = self.sdiv(self.blocks, number(blocks))
        self.lane, self.warp = self.and_(self.thread, number(LANES - 1)), self.lshr(self.thread, number(5))
        self.quad, self.in_quad = self.lshr(self.lane, number(2)), self.and_(self.lane, number(3))
        self.part, self.local_tile = self.srem(self.warp, number(parts)), self.sdiv(self.warp, number(parts))
        first = self.mul(self.share, number(shape.tiles))
        self.tile = self.mul(self.add(first, self.local_tile), number(UNITS))
        own = self.part if parts <= 4 else self.and_(self.part, number(3))
        self.places = [
            self.add(self.mul(own, number(shape.elements)), number(e)) for e in range(shape.elements)
        ]
        self.units = [
            self.add(self.tile, self.add(self.quad, self.mul(self.lshr(e, number(1)), number(8))))
            for e in self.places
        ]
        self.columns = [
            self.add(self.add(self.in_quad, self.in_quad), self.and_(e, number(1))) for e in self.places
        ]
        self.is_reverse = self.icmp_signed("!=", self.word("reverse"), number(0))
        self.values: dict[int, Elements] = {}

    @contextmanager
    def by_owners(self) -> Generator[None]:
        """Context in which code is written for one of the threads that compute the same elements."""
        if self.schedule.parts <= 4:
            yield
        else:
            with self.when(self.icmp_signed("<", self.part, self.number(4))):
                yield

    def is_given(self, name: str) -> Value:
        """Writes whether an argument is the address of an array, and not 0."""
        return self.icmp_signed("!=", self.word(name), self.number(0))

    # ---- units

    def feature(self, size: int, unit: Value) -> Value:
        """Writes the feature of a value that is read for a unit: for padded units the last one."""
        if size == 1:
            return self.number(0)
        return unit if size == self.shape.width else self.smaller(unit, self.number(size - 1))

    def is_unit(self, size: int, unit: Value) -> Value | None:
        """Writes whether a value has a unit; None if it has all."""
        return None if size == self.shape.width else self.icmp_signed("<", unit, self.number(size))

    def read_features(self, n: int, array: str, indices: Sequence[Value]) -> Elements:
        """Writes loads of a thread's elements of a value from an array of values [features]. indices: of the
        value in the array, for each element.
        """
        origin, first = self.step.origin(n)
        size, whole, dtype = self.step.size(n), self.step.size(origin), self.step.dtype(n)
        found = list[Value]()
        for unit, index in zip(self.units, indices, strict=True):
            feature = self.add(self.feature(size, unit), self.number(first))
            place = self.add(self.mul(index, self.number(whole)), feature)
            found.append(self.read_element(dtype, self.pointer(array), place))
        return found

    def either(self, condition: Value, write: Callable[[], Elements], otherwise: Sequence[Value]) -> Elements:
        """Writes values that are computed only if a condition is true, the same for all threads of a warp;
        else they are the values `otherwise`.
        """
        before, inside = self.block, self.append_basic_block("some")
        after = self.append_basic_block("after")
        self.cbranch(condition, inside, after)
        self.position_at_end(inside)
        written, last = write(), self.block
        self.branch(after)
        self.position_at_end(after)
        found = list[Value]()
        for value, other in zip(written, otherwise, strict=True):
            phi = self.phi(value.type)
            phi.add_incoming(value, last)
            phi.add_incoming(other, before)
            found.append(phi)
        return found

    # ---- sequences

    def sequences_of(self, batch: Value) -> TensorPlaces:
        """Writes loads of where the sequences of a batch of 8 lie. batch: its number."""
        number, count = self.number, self.word("rows")

        def of(column: Value) -> tuple[Value, Value, Value]:
            """Writes the number of a sequence, its length, and whether it is there."""
            slot = self.add(self.mul(batch, number(ROWS)), column)
            there = self.icmp_signed("<", slot, count)
            row = self.read_number(self.pointer("order"), self.smaller(slot, self.sub(count, number(1))))
            length = self.read_number(self.pointer("lengths"), row)
            return row, self.select(there, length, number(0)), there

        longest: Value = number(0)
        for column in range(ROWS):
            longest = self.larger(of(number(column))[1], longest)
        each = [of(column) for column in self.columns]
        rows, lengths, present = (elements(values) for values in zip(*each, strict=True))
        starts = list[Value]()
        for row, length in zip(rows, lengths, strict=True):
            start = self.read_number(self.pointer("starts"), row)
            starts.append(self.select(self.icmp_signed(">", length, number(0)), start, number(0)))
        lasts = elements(self.larger(self.sub(n, number(1)), number(0)) for n in lengths)
        return TensorPlaces(rows, starts, lengths, lasts, present, self.done(rows), longest)

    def done(self, rows: Elements) -> Elements:
        """Writes loads of the steps that sequences did in earlier calls, if the step reads its number."""
        zeros: Elements = [self.number(0)] * len(rows)
        if not self.step.indices:
            return zeros
        return self.either(
            self.is_given("first_steps"),
            lambda: [self.read_number(self.pointer("first_steps"), row) for row in rows],
            zeros,
        )

    def larger(self, a: Value, b: Value) -> Value:
        """Writes the maximum of two integers."""
        return self.select(self.icmp_signed(">", a, b), a, b)

    def entries(self, its: TensorPlaces, t: Value) -> Elements:
        """Writes the entries of step t of the sequences in the arrays; beyond the end, those of the last."""
        places = list[Value]()
        for last in its.lasts:
            there = self.smaller(t, last)
            places.append(self.select(self.is_reverse, self.sub(last, there), there))
        listed = self.either(
            self.is_given("steps"),
            lambda: [self.read_number(self.pointer("steps"), place) for place in places],
            places,
        )
        return [self.add(start, entry) for start, entry in zip(its.starts, listed, strict=True)]

    def frames(self, its: TensorPlaces, t: Value) -> Elements:
        """Writes loads of the step's values of all sequences; beyond the end of a sequence, its last ones."""
        at = self.entries(its, t)
        frames = list[Value]()
        for n in self.step.read_sequences:
            array = self.step.sequences.index(self.step.origin(n)[0])
            frames += self.read_features(n, f"x{array}", at)
        return frames

    # ---- left operands

    def state_offset(self, left: int, parity: Value, unit: Value, row: Value, places: int = 2) -> Value:
        """Writes the offset in bytes of an element of a left operand among all of them.

        places: how many each has: 2 in the memory of a group.
        """
        number, width, within = self.number, self.shape.width, None
        if self.shape.is_packed:
            within = self.mul(self.and_(unit, number(1)), number(2))
            unit, width = self.lshr(unit, number(1)), width // 2
        place = number(places * self.step.lefts.index(left))
        if places > 1:
            place = self.add(parity, place)
        unit = self.add(self.mul(place, number(width)), unit)
        word = self.mul(self.add(self.mul(unit, number(ROWS)), row), number(4))
        return word if within is None else self.add(word, within)

    def shared_offset(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the offset in bytes of an element of a left operand in shared memory."""
        return self.state_offset(left, parity, unit, row, self.schedule.places)

    def state(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the address of an element of a left operand in shared memory."""
        return self.shared(self.shared_offset(left, parity, unit, row))

    def exchanged(self, offset: Value) -> Value:
        """Writes the address of an offset among the states in the memory of a group."""
        base = self.add(self.mul(self.group, self.number(self.shape.scratch)), self.number(COUNTER_BYTES))
        if self.schedule.exchange == "tagged":
            offset = self.add(offset, offset)
        return self.at(self.pointer("scratch"), self.add(base, offset))

    def low(self, value: Value) -> Value:
        """Writes the lower half of a number of 64 bits."""
        return self.trunc(value, I32)
