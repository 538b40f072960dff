"""The loop of a step whose units are alone: a thread runs all steps of one unit of one sequence.

Its memories are in registers, and no thread waits for another. What takes time is main memory: so a thread
reads the inputs of several steps ahead. The steps of one turn of the loop are written one after another, each
with registers of its own for its inputs, so that no value moves from register to register.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.elements import ElementWriter, RowOfThread, Source, zero
from stepnet.compiler.targets.cuda.lane_code import LaneTurn, turns_of
from stepnet.compiler.targets.cuda.loop import LoopForm, LoopWriter
from stepnet.compiler.targets.cuda.places import Place, PlaceWriter
from stepnet.compiler.values.records import dataclass

Value = ir.Value
THREADS = 64
REGISTERS = 96
"""The most registers for the inputs of steps ahead."""
MOST_AHEAD = 16


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


def units_code(plan: Plan) -> LoopCode | None:
    """Makes the kernel of a plan's loop with a thread for each unit of each sequence; None if the units of
    the step depend on each other.
    """
    form = LoopForm(plan, 1, THREADS, 0)
    if not are_alone(form):
        return None
    size = form.body.type_of(form.kinds["m"][0]).size
    return UnitLoopWriter(replace(form, group_rows=max(1, THREADS // size))).written()


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

    def __init__(self, code: PlaceWriter, form: LoopForm, sources: Mapping[int, Source]) -> None:
        """Takes the arrays that a step reads."""
        super().__init__(code, form.body, sources, {})
        self.inputs, self.others = list[InputRead](), list[Value]()
        self.memories = dict[int, Value]()
        self.given: Iterator[Value] | None = None
        self.known: Iterator[Value] | None = None

    def written(self, number: int, place: Place, row: RowOfThread, own: bool) -> Value:
        """Writes an element of a node that is not known yet."""
        if number in self.memories:
            return self.memories[number]
        source = self.sources.get(number)
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

    def step(
        self, numbers: list[int], flat: Value, row: RowOfThread, inputs: list[Value] | None
    ) -> dict[int, Value]:
        """Writes a step of a unit; returns the elements of some nodes.

        inputs: the elements of the inputs; None to find which there are, with any numbers in their place.
        """
        self.begin()
        self.given = None if inputs is None else iter(inputs)
        self.known = None if inputs is None else iter(self.others)
        return {n: self.element(n, Place(self.code, self.net.type_of(n).shape, flat), row) for n in numbers}


class UnitLoopWriter(LoopWriter):
    """Writer of the kernel of a loop whose units are alone."""

    def written(self) -> LoopCode:
        """Writes the kernel."""
        code, rows = self.code, self.form.group_rows
        size = self.form.body.type_of(self.form.kinds["m"][0]).size
        blocks = -(-size // THREADS)
        group, part = code.divided(code.block_index, blocks)
        place, flat = code.divided(code.thread, size) if blocks == 1 else (integer(0), code.thread)
        flat = code.summed(flat, code.multiplied(part, THREADS))
        is_unit = code.and_(
            code.icmp_signed("<", place, integer(rows)), code.icmp_signed("<", flat, integer(size))
        )
        with code.when(is_unit):
            ahead = self.unit(group, place, flat, size)
        made = code.finished(THREADS, 0, blocks)
        schedule = f"a thread for each of {size} units, inputs read {ahead} steps ahead"
        return LoopCode(made, schedule, rows)

    def unit(self, group: Value, place: Value, flat: Value, size: int) -> int:
        """Writes all turns of a unit of a lane; returns how many steps ahead it reads."""
        code = self.code
        first, count = turns_of(code, group)
        zeros: list[Value] = [zero(type_.dtype) for _, type_ in self.types_of_memories()]
        ahead = list[int]()

        def turn(at: Value, before: list[Value]) -> list[Value]:
            """Writes all steps of a turn; returns the memories at its end."""
            lane = self.lane_at(code.add(first, at), place)
            begun = [self.initial(n, lane.row, flat, size) for n in range(len(before))]
            memories = [code.select(lane.begins, *each) for each in zip(begun, before, strict=True)]
            memories, read = self.steps_of_turn(lane, memories, flat, size)
            ahead.append(read)
            with code.when(lane.ends):
                self.write_memories(memories, lane.row, flat, size)
            return memories

        code.carry(0, count, zeros, turn)
        return ahead[0]

    def steps_of_turn(
        self, lane: LaneTurn, memories: list[Value], flat: Value, size: int
    ) -> tuple[list[Value], int]:
        """Writes all steps of a unit in a turn. memories: its elements ahead of it; returns those at its end,
        and how many steps ahead it reads.
        """
        code, kinds = self.code, self.form.kinds
        done = code.add(code.read_or(integer(0), "first_steps", lane.row), lane.before)
        writer = UnitWriter(code, self.form, self.sources())
        numbers = list(dict.fromkeys([*kinds["y"], *kinds["f"]]))
        true = ir.Constant(ir.IntType(1), 1)
        writer.memories = dict(zip(kinds["m"], memories, strict=True))
        writer.step(numbers, flat, RowOfThread(integer(0), integer(0), lane.row, true, done), None)
        ahead = max(1, min(MOST_AHEAD, REGISTERS // max(len(writer.inputs), 1)))

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
                writer.memories = dict(zip(kinds["m"], present, strict=True))
                values = writer.step(numbers, flat, row, slots[place])
                slots[place] = inputs(code.summed(step, integer(ahead)))
                self.write_step(values, at, flat, is_real, size)
                pairs = zip(kinds["f"], present, strict=True)
                present = [code.select(is_real, values[number], before) for number, before in pairs]
            return [*present, *(value for slot in slots for value in slot)]

        def run() -> list[Value]:
            """Writes all steps; returns the memories after them."""
            first = [value for place in range(ahead) for value in inputs(integer(place))]
            return code.carry(0, lane.count, [*memories, *first], turn, step=ahead)[: len(memories)]

        return code.either(code.icmp_signed(">", lane.count, integer(0)), run, memories), ahead

    def initial(self, place: int, sequence: Value, flat: Value, size: int) -> Value:
        """Writes the element of an initial memory: a load, or zero where there is no array."""
        code, dtype = self.code, self.form.body.type_of(self.form.kinds["m"][place]).dtype
        index, given = code.add(code.multiplied(sequence, size), flat), self.form.dtypes.initial[place]

        def read() -> list[Value]:
            """Writes the load."""
            return [converted(code, code.read_element(given, code.pointer(f"m{place}"), index), given, dtype)]

        return code.either(code.icmp_signed("!=", code.word(f"m{place}"), integer(0)), read, [zero(dtype)])[0]

    def write_step(
        self, values: dict[int, Value], entry: Value, flat: Value, is_real: Value, size: int
    ) -> None:
        """Writes the stores of a step's outputs."""
        code = self.code
        for place, number in enumerate(self.form.kinds["y"]):
            wanted = code.icmp_signed("!=", code.word(f"y{place}"), integer(0))
            with code.when(code.and_(is_real, wanted)):
                index = code.add(code.multiplied(entry, size), flat)
                dtype = self.form.body.type_of(number).dtype
                code.write_element(dtype, values[number], code.pointer(f"y{place}"), index)

    def write_memories(self, values: list[Value], sequence: Value, flat: Value, size: int) -> None:
        """Writes the stores of the final memories."""
        code = self.code
        index = code.add(code.multiplied(sequence, size), flat)
        for place, (value, number) in enumerate(zip(values, self.form.kinds["m"], strict=True)):
            wanted = code.icmp_signed("!=", code.word(f"f{place}"), integer(0))
            with code.when(wanted):
                made = self.form.dtypes.final[place]
                value = converted(code, value, self.form.body.type_of(number).dtype, made)
                code.write_element(made, value, code.pointer(f"f{place}"), index)
