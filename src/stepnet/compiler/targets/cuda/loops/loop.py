"""The loop of a plan as one kernel: a block runs all steps of a few sequences at a time, one in each of its
lanes, whose memories and values lie in its shared memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import I64, integer
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.codes import ENDING_WORDS, LOOP_WORDS, LoopCode
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import RowOfThread, RowShare, Source, zero
from stepnet.compiler.targets.cuda.entries.entry import EntryWriter, Store
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.entries.room import ValueRoom, room
from stepnet.compiler.targets.cuda.entries.statements import Statement, Statements
from stepnet.compiler.targets.cuda.loops.lane_code import LaneTurn, lane_at, turns_of
from stepnet.compiler.targets.cuda.stored import MemoryDtypes
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Value = ir.Value


@dataclass(frozen=True)
class LoopForm:
    """A plan's step, and how a block runs it.

    group_rows: the sequences that a block runs at a time: a power of two. threads: the number of threads of a
    block.
    shared: the most bytes of shared memory of a block.
    flag: the position of the bool memory that ends a sequence early; None if sequences run all their steps.
    """

    plan: Plan
    group_rows: int
    threads: int
    shared: int
    flag: int | None = field(default=None, kw_only=True)

    @property
    def body(self) -> Net:
        """The net of the step."""
        return self.plan.body

    @computed_once
    def dtypes(self) -> MemoryDtypes:
        """The dtypes of the arrays of memories."""
        return MemoryDtypes.of(self.plan)

    @computed_once
    def kinds(self) -> dict[str, list[int]]:
        """The nodes of the body's operands and results, by the letter with which their arguments begin."""
        recur = self.plan.recurrence.recur
        return {
            "x": recur.sequences,
            "m": recur.memories,
            "o": recur.others,
            "y": recur.outputs,
            "f": recur.following,
        }

    @property
    def arguments(self) -> list[str]:
        """The names of the kernel's arguments."""
        return [
            *LOOP_WORDS,
            *(f"{kind}{place}" for kind, numbers in self.kinds.items() for place in range(len(numbers))),
            *([] if self.flag is None else ENDING_WORDS),
        ]

    @computed_once
    def statements(self) -> Statements:
        """The statements of the step."""
        kinds = self.kinds
        constants = {n for n, node in enumerate(self.body.nodes) if node.operation == "constant"}
        return Statements(
            self.body,
            frozenset({*kinds["x"], *kinds["m"], *kinds["o"], *constants}),
            tuple(dict.fromkeys(kinds["y"])),
            dict(zip(kinds["m"], kinds["f"], strict=True)),
        )

    @computed_once
    def room(self) -> ValueRoom:
        """Where the memories and the stored values lie."""
        return room(self.statements, self.group_rows, self.shared)

    @property
    def scratch(self) -> int:
        """The bytes of main memory of a group of sequences."""
        return self.room.scratch


def loop_code(
    plan: Plan, group_rows: int = 4, threads: int = 256, shared: int = 96 * 1024, flag: int | None = None
) -> LoopCode:
    """Makes the kernel of a plan's loop.

    group_rows: the sequences that a block runs at a time: 1, 2, 4 or 8. threads: the number of threads of a
    block.
    shared: the most bytes of shared memory of a block; values that do not fit lie in main memory.
    flag: the position of the bool memory that ends a sequence early, if one does.
    """
    form = LoopForm(plan, group_rows, threads, shared, flag=flag)
    if form.statements.uses_warps:
        form = replace(form, threads=max(threads, group_rows * LANES))
    return LoopWriter(form).written()


class LoopWriter:
    """Writer of the kernel of a loop."""

    def __init__(self, form: LoopForm) -> None:
        """Begins the kernel."""
        count = len(form.kinds["m"])
        self.form, self.code = form, PlaceWriter(f"loop of {count} memories", form.arguments)
        self.in_group: Value = integer(0)

    def written(self) -> LoopCode:
        """Writes the kernel."""
        form, code = self.form, self.code
        self.in_group = code.block_index
        first, count = turns_of(code, self.in_group)
        with code.loop(first, code.add(first, count)) as turn:
            self.turn_after(integer(0), turn)
        made = code.finished(form.threads, form.room.shared)
        schedule = f"a block of {form.threads} threads for {form.group_rows} sequences"
        return LoopCode(made, schedule, form.group_rows, form.scratch)

    def turn_after(self, before: Value, turn: Value) -> Value:
        """Writes all steps of a turn, in which each lane of the group runs steps of one sequence; returns the
        steps until its end. before: the steps ahead of it. Where the places of memories alternate, they say
        in which place the memories of sequences that go on lie.
        """
        code = self.code
        begins = self.writer_at(before)
        lane = self.lane_at(turn, begins.share.place)
        self.begin_memories(begins, lane)
        self.meet()

        def write_step(step: Value, is_real: Value) -> None:
            """Writes a step of the turn. is_real: whether the thread's sequence takes it."""
            writer = self.writer_at(code.add(before, step))
            writer.run(self.row_at(writer, lane, step, is_real), self.store_of(writer))

        after = code.add(before, self.steps(before, lane, write_step))
        self.end_memories(self.writer_at(after), lane)
        self.meet()
        return after

    def meet(self) -> None:
        """Writes a meeting of all threads that run a group of sequences."""
        self.code.barrier()

    def scratch(self) -> Value:
        """Writes the address of the group's scratch memory."""
        code = self.code
        return code.at(code.pointer("scratch"), code.multiplied(self.in_group, self.form.scratch))

    def writer_at(self, step: Value) -> EntryWriter:
        """Writes the places of the values at a step; returns the writer of its statements."""
        code, form = self.code, self.form
        share = RowShare.of(code, form.group_rows, form.threads)
        slots = form.room.slots(code, self.scratch())
        return EntryWriter(code, form.statements, self.sources(), *slots, share)

    def lane_at(self, turn: Value, place: Value) -> LaneTurn:
        """Writes loads of a lane's entry for a turn: its sequence and its steps."""
        return lane_at(self.code, turn, place, self.form.group_rows)

    def steps(self, before: Value, lane: LaneTurn, write_step: Callable[[Value, Value], None]) -> Value:
        """Writes the loop over the steps of a turn; returns how many it ran. Where a flag ends sequences, it
        is left when all of the turn have ended. All blocks of a group know its flags, and leave together.

        before: the steps ahead of the turn. lane: of the thread.
        write_step: writes a step. Takes its number, and whether the thread's sequence takes it.
        """
        code, form = self.code, self.form
        if form.flag is None:
            with code.loop(integer(0), lane.steps) as step:
                write_step(step, code.icmp_signed("<", step, lane.count))
            return lane.steps
        flag, takes = form.kinds["m"][form.flag], list[Value]()

        def goes_on(carried: list[Value]) -> Value:
            """Writes whether any sequence takes the step; all threads read before new flags are written."""
            writer = self.writer_at(code.add(before, carried[0]))
            has_ended = writer.read_slot(writer.slots[flag], writer.share.place, integer(0))
            takes.append(code.and_(code.icmp_signed("<", carried[0], lane.count), code.not_(has_ended)))
            return code.any_of_block(takes[0])

        def turn(carried: list[Value]) -> list[Value]:
            """Writes a step, and counts it for a sequence that takes it."""
            write_step(carried[0], takes[0])
            return [code.add(carried[0], integer(1)), code.add(carried[1], code.zext(takes[0], I64))]

        steps, taken = code.carry_while([integer(0), integer(0)], goes_on, turn)
        is_first = code.icmp_signed("==", self.writer_at(integer(0)).share.first, integer(0))
        with code.when(code.and_(is_first, lane.ends)):
            code.write_element("int64", taken, code.pointer("taken"), lane.row)
        return steps

    def row_at(self, writer: EntryWriter, lane: LaneTurn, step: Value, is_real: Value) -> RowOfThread:
        """Writes the entry of a thread's sequence at a step of a turn; a lane without one reads any entry.

        is_real: whether the sequence takes the step.
        """
        code = self.code
        time = self.time_at(lane, code.select(is_real, step, integer(0)))
        entry = code.add(lane.start, self.code.read_or(time, "steps", time))
        entry = code.select(is_real, entry, integer(0))
        done = code.add(self.code.read_or(integer(0), "first_steps", lane.row), lane.before)
        output = None
        if self.form.flag is not None:
            output = code.add(code.read_number(code.pointer("places"), lane.row), time)
        return RowOfThread(writer.share.place, entry, lane.row, is_real, code.add(step, done), output)

    def time_at(self, lane: LaneTurn, step: Value) -> Value:
        """Writes the number in its sequence of a step of a turn."""
        code = self.code
        is_backward = code.icmp_signed("!=", code.word("reverse"), integer(0))
        return code.select(is_backward, code.sub(lane.time, step), code.add(lane.time, step))

    # ---- values

    def sources(self) -> Mapping[int, Source]:
        """Returns the arrays that a step reads, by node."""
        form, found = self.form, dict[int, Source]()
        for kind in "xo":
            for place, number in enumerate(form.kinds[kind]):
                type_ = form.body.type_of(number)
                by = "entry" if kind == "x" else "const" if type_.extent == CONST else "row"
                found[number] = Source(self.code.pointer(f"{kind}{place}"), type_.dtype, type_.size, by)
        return found

    def types_of_memories(self) -> list[tuple[int, Type]]:
        """Lists the memories, by node, with their types."""
        return [(number, self.form.body.type_of(number)) for number in self.form.kinds["m"]]

    def begin_memories(self, writer: EntryWriter, lane: LaneTurn) -> None:
        """Writes the initial memories of the threads' sequences that begin in this turn."""
        code = self.code
        for place, (number, type_) in enumerate(self.types_of_memories()):
            slot = writer.slots[number]
            is_given = code.icmp_signed("!=", code.word(f"m{place}"), integer(0))
            with code.when(lane.begins), writer.elements(type_.size) as flat:
                writer.write_slot(zero(type_.dtype), slot, writer.share.place, flat)
                with code.when(is_given):
                    index = code.add(code.multiplied(lane.row, type_.size), flat)
                    given = self.form.dtypes.initial[place]
                    value = code.read_element(given, code.pointer(f"m{place}"), index)
                    value = converted(code, value, given, type_.dtype)
                    writer.write_slot(value, slot, writer.share.place, flat)

    def end_memories(self, writer: EntryWriter, lane: LaneTurn) -> None:
        """Writes the final memories of the threads' sequences that end in this turn to their arrays."""
        code = self.code
        for place, (number, type_) in enumerate(self.types_of_memories()):
            wanted = code.icmp_signed("!=", code.word(f"f{place}"), integer(0))
            with code.when(code.and_(lane.ends, wanted)), writer.elements(type_.size) as flat:
                value = writer.read_slot(writer.slots[number], writer.share.place, flat)
                index = code.add(code.multiplied(lane.row, type_.size), flat)
                made = self.form.dtypes.final[place]
                value = converted(code, value, type_.dtype, made)
                code.write_element(made, value, code.pointer(f"f{place}"), index)

    def memories_of(self, statement: Statement) -> list[int]:
        """Lists the memories to which a statement writes."""
        if statement.memory is not None:
            return [statement.memory]
        kinds, late = self.form.kinds, self.form.statements.late
        pairs = zip(kinds["m"], kinds["f"], strict=True)
        return [m for m, f in pairs if f == statement.number != m and m not in late]

    def store_of(self, writer: EntryWriter) -> Store:
        """Makes the function that writes the stores of a step's element: to outputs and memories."""
        code = self.code

        def store(statement: Statement, row: RowOfThread, flat: Value, value: Value) -> None:
            """Writes the stores, for a sequence that takes the step."""
            targets = self.memories_of(statement)
            if not targets and not self.outputs_of(statement):
                return
            with code.when(row.is_real):
                for memory in targets:
                    writer.write_slot(value, writer.slots[memory], row.place, flat)
                self.write_outputs(statement, row, flat, value)

        return store

    def outputs_of(self, statement: Statement) -> list[int]:
        """Lists the places of the outputs to which a statement writes."""
        numbers = enumerate(self.form.kinds["y"])
        return [p for p, number in numbers if number == statement.number and statement.memory is None]

    def write_outputs(self, statement: Statement, row: RowOfThread, flat: Value, value: Value) -> None:
        """Writes the stores of an element to the outputs that something reads."""
        code, type_ = self.code, self.form.body.type_of(statement.number)
        for place in self.outputs_of(statement):
            wanted = code.icmp_signed("!=", code.word(f"y{place}"), integer(0))
            with code.when(wanted):
                entry = row.entry if row.output is None else row.output
                index = code.add(code.multiplied(entry, type_.size), flat)
                code.write_element(type_.dtype, value, code.pointer(f"y{place}"), index)
