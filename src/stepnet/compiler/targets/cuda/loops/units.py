"""The loop of a step whose units are alone: a thread runs all steps of one unit of one sequence.

A unit has one element of each memory, or a few, over which the step sums (`plan/apart.py`). They are in
registers, and no thread waits for another but those of a warp that share a unit (`unit_form.py`). What takes
time is main memory: so a thread reads the inputs of several steps ahead. The steps of one turn of the loop
are written one after another, each with registers of its own for its inputs, so that no value moves from
register to register; behind each of them the last step leaves the loop.
"""

from dataclasses import replace
from math import prod

from llvmlite import ir

from stepnet.compiler.plan.apart import UnitFibers, unit_fibers
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import I64, integer
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.entries.elements import RowOfThread, zero
from stepnet.compiler.targets.cuda.entries.places import Place
from stepnet.compiler.targets.cuda.loops.lane_code import LaneTurn, turns_of
from stepnet.compiler.targets.cuda.loops.loop import LoopForm, LoopWriter
from stepnet.compiler.targets.cuda.loops.unit_code import FiberIndex, UnitWriter, UnknownElementError
from stepnet.compiler.targets.cuda.loops.unit_form import THREADS, UnitForm
from stepnet.compiler.targets.cuda.loops.unit_moves import PIECE, UnitMoves, UnitPlace

Value = ir.Value
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
    """Returns a step's independent units and their elements of memories; None for dependent units."""
    if are_alone(form):
        memories = tuple(form.kinds["m"])
        return UnitFibers(form.body, form.body.type_of(memories[0]).size, (None,) * len(memories), memories)
    return unit_fibers(form.plan.recurrence.recur, MOST_FIBER)


def units_code(plan: Plan, units: UnitForm | None = None) -> LoopCode | None:
    """Makes the kernel of a plan's loop with threads for each unit of each sequence; None if the units of the
    step depend on each other, or if lanes that share one cannot run it.

    units: with their threads; None for a thread for each.
    """
    form = LoopForm(plan, 1, THREADS, 0)
    fibers = fibers_of(form) if units is None else units.fibers
    if fibers is None:
        return None
    units = units or UnitForm(fibers)
    try:
        return UnitLoopWriter(replace(form, group_rows=units.rows), units).written()
    except UnknownElementError:
        return None


class UnitLoopWriter(LoopWriter):
    """Writer of the kernel of a loop whose units are alone."""

    def __init__(self, form: LoopForm, units: UnitForm) -> None:
        """Begins the kernel."""
        super().__init__(form)
        self.units, self.fibers = units, units.fibers
        self.thread, self.lane_of_unit = self.code.divided(self.code.thread, units.lanes)
        self.writer = UnitWriter(self.code, units, self.sources(), self.lane_of_unit)

    def written(self) -> LoopCode:
        """Writes the kernel."""
        code, units, size = self.code, self.units, self.fibers.count
        group, part = code.divided(code.block_index, units.blocks)
        place, unit = code.divided(self.thread, size) if units.blocks == 1 else (integer(0), self.thread)
        unit = code.summed(unit, code.multiplied(part, THREADS // units.lanes))
        is_unit = code.and_(
            code.icmp_signed("<", place, integer(units.rows)), code.icmp_signed("<", unit, integer(size))
        )
        with code.when(is_unit):
            ahead = self.unit(group, place, unit)
        made = code.finished(THREADS, 0, units.blocks, resident=units.resident)
        elements = f" of {max(self.fibers.lengths)} elements" if self.fibers.are_long else ""
        threads = "a thread" if units.lanes == 1 else f"{units.lanes} lanes"
        schedule = f"{threads} for each of {size} units{elements}, inputs read {ahead} steps ahead"
        return LoopCode(made, schedule, units.rows, aligned=PIECE)

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
        """Returns the thread's elements of all memories as lists of those of each."""
        found, rest = list[list[Value]](), values
        for length, axis in zip(self.fibers.lengths, self.fibers.axes, strict=True):
            own = 1 if axis is None else length // self.units.lanes
            found, rest = [*found, rest[:own]], rest[own:]
        return found

    def steps_of_turn(self, lane: LaneTurn, memories: list[Value], unit: Value) -> tuple[list[Value], int]:
        """Writes all steps of a unit in a turn. memories: the thread's elements ahead of it; returns those at
        its end, and how many steps ahead it reads.
        """
        code, kinds, writer = self.code, self.form.kinds, self.writer
        done = code.add(code.read_or(integer(0), "first_steps", lane.row), lane.before)
        numbers = list(dict.fromkeys([*kinds["y"], *kinds["f"]]))
        entry = RowOfThread(integer(0), integer(0), lane.row, ir.Constant(ir.IntType(1), 1), done)
        writer.memories = dict(zip(kinds["m"], self.by_memory(memories), strict=True))
        writer.step(numbers, unit, entry, None)
        ahead = self.units.steps_ahead(len(writer.inputs))
        moves = UnitMoves(code, lane, writer.inputs)
        results = self.results(moves, unit)

        def step(number: Value, present: list[Value], place: Value, inputs: list[Value]) -> list[Value]:
            """Writes a step; returns the memories after it."""
            row = replace(entry, step=code.add(code.sext(number, I64), done))
            writer.memories = dict(zip(kinds["m"], self.by_memory(present), strict=True))
            values = writer.step(numbers, unit, row, inputs)
            for wanted, node, targets in results:
                with code.when(wanted):
                    for target, value in zip(targets, values[node], strict=True):
                        moves.write(value, target, place)
            return [value for node in kinds["f"] for value in values[node]]

        def run() -> list[Value]:
            """Writes all steps; returns the memories after them."""
            return moves.all_steps(memories, ahead, step)

        return code.either(code.icmp_signed(">", lane.count, integer(0)), run, memories), ahead

    def has_first(self, number: int, condition: Value) -> Value:
        """Writes whether a condition holds; for a value of one element of a unit, in its first lane alone."""
        code = self.code
        if self.units.lanes == 1 or self.fibers.axis_of(number) is not None:
            return condition
        return code.and_(condition, code.icmp_signed("==", self.lane_of_unit, integer(0)))

    def results(self, moves: UnitMoves, unit: Value) -> list[tuple[Value, int, list[UnitPlace]]]:
        """Writes the places of a unit's outputs; returns for each whether it is wanted, its node, and where
        its elements are.
        """
        found = list[tuple[Value, int, list[UnitPlace]]]()
        for place, number in enumerate(self.form.kinds["y"]):
            type_, pointer = self.form.body.type_of(number), self.code.pointer(f"y{place}")
            wanted = self.code.icmp_signed("!=", self.code.word(f"y{place}"), integer(0))
            axis, own = self.fibers.axis_of(number), self.writer.places(number, unit)
            apart = 0 if axis is None else prod(type_.shape[axis + 1 :])
            places = (FiberIndex(own[0].flat, n * apart) for n in range(len(own)))
            targets = [moves.place(type_.dtype, pointer, type_.size, at) for at in places]
            found.append((self.has_first(number, wanted), number, targets))
        return found

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

    def write_memory(self, place: int, sequence: Value, places: list[Place], values: list[Value]) -> None:
        """Writes the stores of a final memory."""
        code, number = self.code, self.form.kinds["m"][place]
        type_, made = self.form.body.type_of(number), self.form.dtypes.final[place]
        wanted = code.icmp_signed("!=", code.word(f"f{place}"), integer(0))
        with code.when(self.has_first(number, wanted)):
            for at, value in zip(places, values, strict=True):
                index = code.add(code.multiplied(sequence, type_.size), at.flat)
                code.write_element(
                    made, converted(code, value, type_.dtype, made), code.pointer(f"f{place}"), index
                )
