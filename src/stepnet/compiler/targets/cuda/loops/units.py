"""The loop of a step whose units are alone: a thread runs all steps of one unit of one sequence.

A unit has one element of each memory, or a few, over which the step sums (`plan/apart.py`). They are in
registers, and no thread waits for another. What takes time is main memory: so a thread reads the inputs of
several steps ahead. The steps of one turn of the loop are written one after another, each with registers of
its own for its inputs, so that no value moves from register to register.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.plan.apart import UnitFibers, unit_fibers
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.entries.elements import ElementWriter, RowOfThread, Source, zero
from stepnet.compiler.targets.cuda.entries.places import Place, PlaceWriter, known_number
from stepnet.compiler.targets.cuda.loops.lane_code import LaneTurn, turns_of
from stepnet.compiler.targets.cuda.loops.loop import LoopForm, LoopWriter
from stepnet.compiler.targets.cuda.tensor.approximate import exponential
from stepnet.compiler.values.records import dataclass

Value = ir.Value
THREADS = 64
REGISTERS, FIBER_REGISTERS = 96, 144
"""The most registers for the inputs of steps ahead: of units of one element, and of fibers."""
MOST_AHEAD = 16
MOST_FIBER = 32
"""The most elements of a memory that a unit has."""


def are_alone(form: LoopForm) -> bool:
    """Tells whether each unit of a step depends only on the memories of the same unit: the step is one loop
    over elements, without tables, and each memory is read at its own place.
    """
    statements = form.statements
    listed = statements.with_levels()
    sizes = {statement.size for statement in listed}
    sizes |= {form.body.type_of(memory).size for memory in statements.memories}
    if statements.stored or statements.late or len(sizes) != 1 or not statements.memories or 0 in sizes:
        return False
    read = {one for statement in listed for one in statements.read_by(statement)}
    tables = any(form.body.nodes[number].kind == "gather" for number, _ in read)
    return not tables and all(not signature for number, signature in read if number in statements.memories)


def fibers_of(form: LoopForm) -> UnitFibers | None:
    """Returns the units of a step that are alone, and their elements of the memories; None if units depend on
    each other.
    """
    if are_alone(form):
        memories = tuple(form.kinds["m"])
        return UnitFibers(form.body, form.body.type_of(memories[0]).size, (None,) * len(memories), memories)
    return unit_fibers(form.plan.recurrence.recur, MOST_FIBER)


def units_code(plan: Plan) -> LoopCode | None:
    """Makes the kernel of a plan's loop with a thread for each unit of each sequence; None if the units of
    the step depend on each other.
    """
    form = LoopForm(plan, 1, THREADS, 0)
    fibers = fibers_of(form)
    if fibers is None:
        return None
    try:
        rows = max(1, THREADS // fibers.count)
        return UnitLoopWriter(replace(form, group_rows=rows), fibers).written()
    except UnknownElementError:
        return None


class UnknownElementError(Exception):
    """A step reads an element of a fiber that is not known when the code is written."""


@dataclass(frozen=True)
class InputRead:
    """A read of a step's input: the array, and the element of the step's entry."""

    source: Source
    flat: Value


class UnitWriter(ElementWriter):
    """Writer of elements whose memories and inputs are in registers.

    inputs: the reads of inputs in the order in which the elements of a step read them. others: the elements
    of all other arrays, in their order, which are the same at all steps. Both are found by writing a step.
    """

    def __init__(self, code: PlaceWriter, fibers: UnitFibers, sources: Mapping[int, Source]) -> None:
        """Takes the units, and the arrays that a step reads."""
        super().__init__(code, fibers.body, sources, {})
        self.fibers = fibers
        self.inputs, self.others = list[InputRead](), list[Value]()
        self.memories = dict[int, list[Value]]()
        self.given: Iterator[Value] | None = None
        self.known: Iterator[Value] | None = None

    def written(self, number: int, place: Place, row: RowOfThread, own: bool) -> Value:
        """Writes an element of a node that is not known yet."""
        if number in self.memories:
            return self.memories[number][self.in_fiber(number, place)]
        source, node = self.sources.get(number), self.net.nodes[number]
        if self.fibers.are_long and node.operation == "exp" and node.type.dtype == "float32":
            return exponential(self.code, self.element(node.inputs[0], place, row))
        if source is None:
            return super().written(number, place, row, own)
        if source.by == "entry":
            if self.given is not None:
                return next(self.given)
            self.inputs.append(InputRead(source, place.flat))
            return zero(source.dtype)
        if self.known is not None:
            return next(self.known)
        self.others.append(self.read(source, place, row))
        return self.others[-1]

    def in_fiber(self, number: int, place: Place) -> int:
        """Returns which element of the unit's fiber of a memory lies at a place."""
        axis = self.fibers.axis_of(number)
        if axis is None:
            return 0
        known = known_number(place.coordinates[axis])
        if known is None:
            raise UnknownElementError
        return known

    def places(self, number: int, unit: Value) -> list[Place]:
        """Writes the places of a unit's elements of a memory or a result."""
        code, shape, axis = self.code, self.net.type_of(number).shape, self.fibers.axis_of(number)
        if axis is None:
            return [Place(code, shape, unit)]
        others = Place(code, shape[:axis] + shape[axis + 1 :], unit).coordinates
        made = [[*others[:axis], integer(n), *others[axis:]] for n in range(shape[axis])]
        return [Place(code, shape, None, each) for each in made]

    def step(
        self, numbers: list[int], unit: Value, row: RowOfThread, inputs: list[Value] | None
    ) -> dict[int, list[Value]]:
        """Writes a step of a unit; returns its elements of some nodes.

        inputs: the elements of the inputs; None to find which there are, with any numbers in their place.
        """
        self.begin()
        self.given = None if inputs is None else iter(inputs)
        self.known = None if inputs is None else iter(self.others)
        return {n: [self.element(n, place, row) for place in self.places(n, unit)] for n in numbers}


class UnitLoopWriter(LoopWriter):
    """Writer of the kernel of a loop whose units are alone."""

    def __init__(self, form: LoopForm, fibers: UnitFibers) -> None:
        """Begins the kernel."""
        super().__init__(form)
        self.fibers = fibers
        self.writer = UnitWriter(self.code, fibers, self.sources())

    def written(self) -> LoopCode:
        """Writes the kernel."""
        code, rows, size = self.code, self.form.group_rows, self.fibers.count
        blocks = -(-size // THREADS)
        group, part = code.divided(code.block_index, blocks)
        place, unit = code.divided(code.thread, size) if blocks == 1 else (integer(0), code.thread)
        unit = code.summed(unit, code.multiplied(part, THREADS))
        is_unit = code.and_(
            code.icmp_signed("<", place, integer(rows)), code.icmp_signed("<", unit, integer(size))
        )
        with code.when(is_unit):
            ahead = self.unit(group, place, unit)
        made = code.finished(THREADS, 0, blocks)
        elements = f" of {max(self.fibers.lengths)} elements" if self.fibers.are_long else ""
        schedule = f"a thread for each of {size} units{elements}, inputs read {ahead} steps ahead"
        return LoopCode(made, schedule, rows)

    def unit(self, group: Value, place: Value, unit: Value) -> int:
        """Writes all turns of a unit of a lane; returns how many steps ahead it reads."""
        code, memories = self.code, self.form.kinds["m"]
        first, count = turns_of(code, group)
        places = [self.writer.places(number, unit) for number in memories]
        zeros = [zero(type_.dtype) for own, (_, type_) in zip(places, self.types_of_memories(), strict=True)
                 for _ in own]  # fmt: skip
        ahead = list[int]()

        def turn(at: Value, before: list[Value]) -> list[Value]:
            """Writes all steps of a turn; returns the memories at its end."""
            lane = self.lane_at(code.add(first, at), place)
            begun = [self.initial(n, lane.row, each) for n, own in enumerate(places) for each in own]
            present = [code.select(lane.begins, *each) for each in zip(begun, before, strict=True)]
            present, read = self.steps_of_turn(lane, present, unit)
            ahead.append(read)
            with code.when(lane.ends):
                for n, (own, values) in enumerate(zip(places, self.by_memory(present), strict=True)):
                    self.write_memory(n, lane.row, own, values)
            return present

        code.carry(0, count, zeros, turn)
        return ahead[0]

    def by_memory(self, values: list[Value]) -> list[list[Value]]:
        """Returns the elements of all memories of a unit as lists of those of each."""
        found, rest = list[list[Value]](), values
        for length in self.fibers.lengths:
            found, rest = [*found, rest[:length]], rest[length:]
        return found

    def steps_of_turn(self, lane: LaneTurn, memories: list[Value], unit: Value) -> tuple[list[Value], int]:
        """Writes all steps of a unit in a turn. memories: its elements ahead of it; returns those at its end,
        and how many steps ahead it reads.
        """
        code, kinds, writer = self.code, self.form.kinds, self.writer
        done = code.add(code.read_or(integer(0), "first_steps", lane.row), lane.before)
        numbers = list(dict.fromkeys([*kinds["y"], *kinds["f"]]))
        true = ir.Constant(ir.IntType(1), 1)
        writer.memories = dict(zip(kinds["m"], self.by_memory(memories), strict=True))
        writer.step(numbers, unit, RowOfThread(integer(0), integer(0), lane.row, true, done), None)
        registers = FIBER_REGISTERS if self.fibers.are_long else REGISTERS
        ahead = max(1, min(MOST_AHEAD, registers // max(len(writer.inputs), 1)))

        def entry(step: Value) -> Value:
            """Writes the entry of a step; that of the last one for those beyond."""
            within = code.smaller(step, code.sub(lane.count, integer(1)))
            time = self.time_at(lane, within)
            return code.add(lane.start, code.read_or(time, "steps", time))

        def inputs(step: Value) -> list[Value]:
            """Writes the loads of the inputs of a step."""
            at = entry(step)
            return [
                code.read_element(
                    read.source.dtype,
                    read.source.pointer,
                    code.summed(code.multiplied(at, read.source.size), read.flat),
                )
                for read in writer.inputs
            ]

        def turn(first: Value, carried: list[Value]) -> list[Value]:
            """Writes the steps of one turn."""
            present, count = carried[: len(memories)], len(writer.inputs)
            read = carried[len(memories) :]
            slots = [read[place * count : (place + 1) * count] for place in range(ahead)]
            for place in range(ahead):
                step = code.summed(first, integer(place))
                is_real = code.icmp_signed("<", step, lane.count)
                at = entry(step)
                row = RowOfThread(integer(0), at, lane.row, is_real, code.add(step, done))
                writer.memories = dict(zip(kinds["m"], self.by_memory(present), strict=True))
                values = writer.step(numbers, unit, row, slots[place])
                slots[place] = inputs(code.summed(step, integer(ahead)))
                self.write_step(values, at, unit, is_real)
                following = [value for number in kinds["f"] for value in values[number]]
                pairs = zip(following, present, strict=True)
                present = [code.select(is_real, *each) for each in pairs]
            return [*present, *(value for slot in slots for value in slot)]

        def run() -> list[Value]:
            """Writes all steps; returns the memories after them."""
            first = [value for place in range(ahead) for value in inputs(integer(place))]
            return code.carry(0, lane.count, [*memories, *first], turn, step=ahead)[: len(memories)]

        return code.either(code.icmp_signed(">", lane.count, integer(0)), run, memories), ahead

    def initial(self, place: int, sequence: Value, at: Place) -> Value:
        """Writes an element of an initial memory: a load, or zero where there is no array."""
        code, type_ = self.code, self.form.body.type_of(self.form.kinds["m"][place])
        index, given = (
            code.add(code.multiplied(sequence, type_.size), at.flat),
            self.form.dtypes.initial[place],
        )

        def read() -> list[Value]:
            """Writes the load."""
            value = code.read_element(given, code.pointer(f"m{place}"), index)
            return [converted(code, value, given, type_.dtype)]

        is_given = code.icmp_signed("!=", code.word(f"m{place}"), integer(0))
        return code.either(is_given, read, [zero(type_.dtype)])[0]

    def write_step(self, values: dict[int, list[Value]], entry: Value, unit: Value, is_real: Value) -> None:
        """Writes the stores of a step's outputs."""
        code = self.code
        for place, number in enumerate(self.form.kinds["y"]):
            wanted, type_ = (
                code.icmp_signed("!=", code.word(f"y{place}"), integer(0)),
                self.form.body.type_of(number),
            )
            with code.when(code.and_(is_real, wanted)):
                for at, value in zip(self.writer.places(number, unit), values[number], strict=True):
                    index = code.add(code.multiplied(entry, type_.size), at.flat)
                    code.write_element(type_.dtype, value, code.pointer(f"y{place}"), index)

    def write_memory(self, place: int, sequence: Value, places: list[Place], values: list[Value]) -> None:
        """Writes the stores of a final memory."""
        code, type_ = self.code, self.form.body.type_of(self.form.kinds["m"][place])
        made, wanted = (
            self.form.dtypes.final[place],
            code.icmp_signed("!=", code.word(f"f{place}"), integer(0)),
        )
        with code.when(wanted):
            for at, value in zip(places, values, strict=True):
                index = code.add(code.multiplied(sequence, type_.size), at.flat)
                code.write_element(
                    made, converted(code, value, type_.dtype, made), code.pointer(f"f{place}"), index
                )
