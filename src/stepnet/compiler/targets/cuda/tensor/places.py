"""Writes a thread's place in a loop on tensor cores, and the addresses that it reads and writes.

A thread holds a value as up to four elements, of 2 units x 2 sequences, for each 8 sequences of its group.
Left operands of products are in shared memory as [unit][sequence] for each 8 sequences, or in bfloat16 as
[pair of units][sequence][unit], each in two places, which alternate from step to step, so that a step needs
one barrier; or in one place, where warps that divide a sum meet at a barrier of their own. Where plain units
multiply they are there as [sequence][unit]. Those that warps read from the second cache as they multiply
them lie there as [operand of values][read of 16 bytes][lane].
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, I64
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.codes import ENDING_WORDS, LOOP_WORDS
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.loops.lane_code import lane_at
from stepnet.compiler.targets.cuda.tensor.shape import COUNTER_BYTES, ROWS, UNITS, TensorShape
from stepnet.compiler.targets.cuda.writer import KernelWriter, Value
from stepnet.compiler.values.records import dataclass

Elements = list[Value]
"""A value of the step as a thread holds it, or the 4 sums of a product."""


def elements(values: Iterable[Value]) -> Elements:
    """Lists elements. A list of one kind of values is, to a checker of types, no list of values."""
    return list(values)


@dataclass(frozen=True)
class TensorPlaces:
    """A turn of a group's lanes, as a thread sees it: one entry for each of its elements.

    rows: the sequences, any one in a lane that is idle. starts: the entries from which their steps are found.
    times: the first steps of the turn.
    counts: their steps in the turn. lasts: the last of these, 0 where there is none.
    begins, ends: whether they begin with the turn, and whether they end in it.
    done: their steps in earlier turns and calls.
    placed: their first entries in the outputs, if a flag ends sequences; else none.
    longest: the most steps of all lanes, a single number.
    """

    rows: Elements
    starts: Elements
    times: Elements
    counts: Elements
    lasts: Elements
    begins: Elements
    ends: Elements
    done: Elements
    placed: Elements
    longest: Value


class PlacesWriter(KernelWriter):
    """Writer of a thread's place among units and sequences, and of the addresses of its elements."""

    def __init__(self, shape: TensorShape) -> None:
        """Writes the code that finds a thread's units, and its places among the sequences of a group."""
        step = shape.step
        counted = {"x": step.sequences, "h": step.memories, "c": step.others}
        counted |= {"y": step.outputs, "last": step.memories}
        names = [f"{name}{place}" for name, numbers in counted.items() for place in range(len(numbers))]
        names += [] if step.flag is None else ENDING_WORDS
        super().__init__(f"loop, {shape.schedule.name}", [*LOOP_WORDS, *names])
        self.shape, self.step, self.schedule = shape, step, shape.schedule
        number = self.number
        blocks, parts = self.schedule.blocks, self.schedule.parts
        self.group = self.sdiv(self.block_index, number(blocks))
        self.share = self.srem(self.block_index, number(blocks))
        self.lane, self.warp = self.and_(self.thread, number(LANES - 1)), self.lshr(self.thread, number(5))
        self.quad, self.in_quad = self.lshr(self.lane, number(2)), self.and_(self.lane, number(3))
        self.part, self.local_tile = self.srem(self.warp, number(parts)), self.sdiv(self.warp, number(parts))
        first = self.mul(self.share, number(shape.tiles))
        self.tile = self.mul(self.add(first, self.local_tile), number(UNITS))
        owners = 4 * shape.abreast
        own = self.part if parts <= owners else self.and_(self.part, number(owners - 1))
        self.places = [
            self.add(self.mul(own, number(shape.elements)), number(e)) for e in range(shape.elements)
        ]
        halves = [self.lshr(e, number(1)) for e in self.places]
        if shape.abreast > 1:
            halves = [self.and_(half, number(1)) for half in halves]
        self.units = [self.add(self.tile, self.add(self.quad, self.mul(half, number(8)))) for half in halves]
        self.columns = [
            self.add(self.add(self.in_quad, self.in_quad), self.and_(e, number(1))) for e in self.places
        ]
        if shape.abreast > 1:
            eighths = [self.mul(self.lshr(e, number(2)), number(ROWS)) for e in self.places]
            self.columns = [self.add(*each) for each in zip(eighths, self.columns, strict=True)]
        if shape.is_plain:
            self.place_on_plain_units()
        self.is_reverse = self.icmp_signed("!=", self.word("reverse"), number(0))
        self.values: dict[int, Elements] = {}

    def place_on_plain_units(self) -> None:
        """Writes a thread's unit and sequence for plain units: neighbouring lanes have the same unit."""
        number, parts = self.number, self.schedule.parts
        self.part = self.and_(self.lane, number(parts - 1))
        self.units = [
            self.add(self.mul(self.warp, number(LANES // parts)), self.sdiv(self.lane, number(parts)))
        ]
        self.columns = [self.and_(self.part, number(self.schedule.rows - 1))]

    @contextmanager
    def by_owners(self) -> Generator[None]:
        """Context in which code is written for one of the threads that compute the same elements."""
        owners = min(4, self.schedule.rows) if self.shape.is_plain else 4 * self.shape.abreast
        if self.schedule.parts <= owners:
            yield
        else:
            with self.when(self.icmp_signed("<", self.part, self.number(owners))):
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

    def read_features(
        self, n: int, array: str, indices: Sequence[Value], given: str | None = None
    ) -> Elements:
        """Writes loads of a thread's elements of a value from an array of values [features].

        indices: of the value in the array, for each element. given: the dtype of the array; None for that of
        the value.
        """
        origin, first = self.step.origin(n)
        size, whole, dtype = self.step.size(n), self.step.size(origin), self.step.dtype(n)
        found = list[Value]()
        for unit, index in zip(self.units, indices, strict=True):
            feature = self.add(self.feature(size, unit), self.number(first))
            place = self.add(self.mul(index, self.number(whole)), feature)
            element = self.read_element(given or dtype, self.pointer(array), place)
            found.append(converted(self, element, given or dtype, dtype))
        return found

    # ---- sequences

    def places_of(self, turn: Value) -> TensorPlaces:
        """Writes loads of the entries of the thread's lanes for a turn: their sequences and steps."""
        lanes = [lane_at(self, turn, column, self.schedule.rows) for column in self.columns]
        rows, counts = [lane.row for lane in lanes], [self.low(lane.count) for lane in lanes]
        lasts = elements(self.larger(self.sub(n, ir.Constant(I32, 1)), ir.Constant(I32, 0)) for n in counts)
        placed = [] if self.step.flag is None else [self.read_number(self.pointer("places"), n) for n in rows]
        return TensorPlaces(
            rows,
            [lane.start for lane in lanes],
            [self.low(lane.time) for lane in lanes],
            counts,
            lasts,
            [lane.begins for lane in lanes],
            [lane.ends for lane in lanes],
            self.done(rows, [lane.before for lane in lanes]),
            placed,
            lanes[0].steps,
        )

    def done(self, rows: Elements, before: Elements) -> Elements:
        """Writes the number of steps that sequences did in earlier turns and calls, if the step reads its
        index. before: the steps of earlier turns.
        """
        zeros: Elements = [self.number(0)] * len(rows)
        if not self.step.indices:
            return zeros
        earlier = self.either(
            self.is_given("first_steps"),
            lambda: [self.read_number(self.pointer("first_steps"), row) for row in rows],
            zeros,
        )
        return elements(self.add(*each) for each in zip(earlier, before, strict=True))

    def larger(self, a: Value, b: Value) -> Value:
        """Writes the maximum of two integers."""
        return self.select(self.icmp_signed(">", a, b), a, b)

    def entries(self, its: TensorPlaces, t: Value) -> Elements:
        """Writes the entries of step t of a turn in the arrays; beyond the end, those of the last."""
        places = self.times(its, t)
        listed = self.either(
            self.is_given("steps"),
            lambda: [self.read_number(self.pointer("steps"), place) for place in places],
            places,
        )
        return [self.add(start, entry) for start, entry in zip(its.starts, listed, strict=True)]

    def times(self, its: TensorPlaces, t: Value) -> Elements:
        """Writes the number of step t of a turn in each sequence; beyond the end, of the last one."""
        found, step = list[Value](), self.low(t)
        for time, last in zip(its.times, its.lasts, strict=True):
            there = self.smaller(step, last)
            place = self.select(self.is_reverse, self.sub(time, there), self.add(time, there))
            found.append(self.sext(place, I64))
        return found

    def frames(self, its: TensorPlaces, t: Value) -> Elements:
        """Writes loads of the step's values of all sequences; beyond the end of a sequence, its last values.
        Without tensor cores they keep the entries ahead of them.
        """
        at = self.entries(its, t)
        frames = [*at] if self.shape.is_plain else list[Value]()
        for n in self.step.read_sequences:
            array = self.step.sequences.index(self.step.origin(n)[0])
            frames += self.read_features(n, f"x{array}", at)
        return frames

    # ---- left operands

    def state_offset(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the offset in bytes of an element of a left operand in the memory of a group."""
        if left in self.shape.direct:
            return self.fragment_offset(left, parity, unit, row)
        return self.offset_among(self.step.lefts, 2, left, parity, unit, row)

    def shared_offset(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the offset in bytes of an element of a left operand in shared memory."""
        return self.offset_among(self.shape.staged, self.shape.shared_places, left, parity, unit, row)

    def first_of(self, lefts: list[int], places: int, left: int, parity: Value, together: int = 1) -> Value:
        """Writes the units of left operands before a place of one. together: the units of a word."""
        number, its = self.number, self.shape.published(left) // together
        before = places * sum(map(self.shape.published, lefts[: lefts.index(left)])) // together
        return number(before) if places == 1 else self.add(self.mul(parity, number(its)), number(before))

    def offset_among(
        self, lefts: list[int], places: int, left: int, parity: Value, unit: Value, row: Value
    ) -> Value:
        """Writes the offset in bytes of an element among left operands, in as many places each."""
        number, within, rows = self.number, None, self.schedule.rows
        if self.shape.is_plain:
            place = self.add(parity, number(places * lefts.index(left)))
            row = self.add(self.mul(place, number(rows)), row)
            return self.mul(self.add(self.mul(row, number(self.shape.width)), unit), number(4))
        together = 2 if self.shape.is_packed else 1
        first = self.first_of(lefts, places, left, parity, together)
        if self.shape.is_packed:
            within = self.mul(self.and_(unit, number(1)), number(2))
            unit = self.lshr(unit, number(1))
        if self.shape.abreast > 1:
            there = number(self.shape.published(left) // together)
            first = self.mul(first, number(self.shape.abreast))
            unit = self.add(self.mul(self.lshr(row, number(3)), there), unit)
            row = self.and_(row, number(ROWS - 1))
        word = self.mul(self.add(self.mul(self.add(first, unit), number(ROWS)), row), number(4))
        return word if within is None else self.add(word, within)

    def fragment_offset(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the offset in bytes of an element of a left operand that is read directly. The elements that
        a lane reads at once lie together.
        """
        number, depth = self.number, self.shape.fragment(left)
        eighth, of_lane = self.lshr(row, number(3)), depth // 4
        within = self.and_(unit, number(depth - 1))
        half, rest = self.sdiv(within, number(depth // 2)), self.and_(within, number(depth // 2 - 1))
        in_quad, odd = self.sdiv(rest, number(depth // 8)), self.and_(rest, number(depth // 8 - 1))
        place = self.add(self.mul(half, number(depth // 8)), odd)
        place = self.add(self.mul(eighth, number(of_lane)), place)
        lane = self.add(self.mul(self.and_(row, number(ROWS - 1)), number(4)), in_quad)
        return self.read_offset(left, parity, self.sdiv(unit, number(depth)), place, lane)

    def read_offset(self, left: int, parity: Value, operand: Value, place: Value, lane: Value) -> Value:
        """Writes the offset in bytes of a number of a lane, in an operand of values that is read directly.
        place: the index of the number among the lane's numbers, four of which are one read of 16 bytes.
        """
        number = self.number
        reads = self.shape.abreast * self.shape.fragment(left) // 16
        read = self.add(self.mul(operand, number(reads)), self.lshr(place, number(2)))
        word = self.add(self.mul(read, number(LANES)), lane)
        word = self.add(self.mul(word, number(4)), self.and_(place, number(3)))
        first = self.mul(self.first_of(self.step.lefts, 2, left, parity), number(self.schedule.rows))
        return self.mul(self.add(first, word), number(4))

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
