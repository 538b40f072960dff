"""The loop of a plan as one kernel: a block runs all steps of a few sequences, whose memories and values lie
in its shared memory.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.codes import LOOP_WORDS, LoopCode
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.elements import RowOfThread, RowShare, Source, zero
from stepnet.compiler.targets.cuda.entry import EntryWriter, Store
from stepnet.compiler.targets.cuda.places import PlaceWriter
from stepnet.compiler.targets.cuda.room import ValueRoom, room
from stepnet.compiler.targets.cuda.statements import Statement, Statements
from stepnet.compiler.values.once import computed_once

Value = ir.Value


@dataclass(frozen=True)
class LoopForm:
    """A plan's step, and how a block runs it.

    group_rows: the sequences that a block runs at a time: a power of two. threads: of a block.
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
            *([] if self.flag is None else ["taken", "places"]),
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


def loop_code(
    plan: Plan,
    group_rows: int = 4,
    threads: int = 256,
    shared: int = 96 * 1024,
    flag: int | None = None,
) -> LoopCode:
    """Makes the kernel of a plan's loop.

    group_rows: the sequences that a block runs at a time: 1, 2, 4 or 8. threads: of a block.
    shared: the most bytes of shared memory of a block; values that do not fit lie in main memory.
    flag: the position of the bool memory that ends a sequence early, if one does. Then the last arguments
        are `taken`, int64 [rows]: the steps of each sequence, which the kernel fills; and `places`, int64
        [rows]: the entry of the first step of each in the outputs, where its steps lie one after the other.
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

    def written(self) -> LoopCode:
        """Writes the kernel."""
        form, code = self.form, self.code
        rows, groups = code.word("rows"), form.group_rows
        count = code.line(
            rows.type, f"sdiv i64 {code.add(rows, integer(groups - 1)).get_reference()}, {groups}"
        )
        with code.loop(code.block_index, count, code.blocks) as group:
            self.group(group)
        needed = form.room
        made = code.finished(form.threads, needed.shared)
        schedule = f"a block of {form.threads} threads for {groups} sequences"
        return LoopCode(made, schedule, groups, needed.scratch)

    def group(self, group: Value) -> None:
        """Writes all steps of a group of sequences."""
        code, form = self.code, self.form
        scratch = code.at(code.pointer("scratch"), code.multiplied(group, form.room.scratch))
        share = RowShare.of(code, form.group_rows, form.threads)
        writer = EntryWriter(code, form.statements, self.sources(), *form.room.slots(code, scratch), share)
        first = code.multiplied(group, form.group_rows)
        sequence, is_there = self.sequence_at(code.add(first, writer.share.place))
        start = code.read_number(code.pointer("starts"), sequence)
        length = code.read_number(code.pointer("lengths"), sequence)
        length = code.select(is_there, length, integer(0))
        self.begin_memories(writer, sequence)
        code.barrier()
        with self.steps(writer, first, sequence, is_there) as (step, end):
            row = self.row_at(writer, sequence, start, length, step, end)
            writer.run(row, self.store_of(writer))
        self.end_memories(writer, sequence, is_there)
        code.barrier()

    def sequence_at(self, place: Value) -> tuple[Value, Value]:
        """Writes the sequence at a place in the order, and whether there is one: any is read where not."""
        code = self.code
        is_there = code.icmp_signed("<", place, code.word("rows"))
        safe = code.select(is_there, place, integer(0))
        return code.read_number(code.pointer("order"), safe), is_there

    @contextmanager
    def steps(
        self, writer: EntryWriter, first: Value, sequence: Value, is_there: Value
    ) -> Generator[tuple[Value, Value | None]]:
        """Writes the loop over the steps of a group; yields the step, and whether the thread's sequence has
        ended before it by its flag, if there is one. The loop is left when all sequences have ended.
        """
        code = self.code
        if self.form.flag is None:
            with code.loop(integer(0), self.longest(first)) as step:
                yield step, None
            return
        before, flag = code.block, writer.slots[self.form.kinds["m"][self.form.flag]]
        lengths, numbers, ended = self.lengths(first), list[Any](), list[Value]()

        def runs() -> Value:
            """Writes whether any sequence takes the step. All threads have read the flags before one of them
            writes those of the next step.
            """
            for _ in ("step", "taken"):
                numbers.append(code.phi(ir.IntType(64)))
                numbers[-1].add_incoming(integer(0), before)
            some: Value = ir.Constant(ir.IntType(1), 0)
            for place, length in enumerate(lengths):
                has_ended = writer.read_slot(flag, integer(place), integer(0))
                left = code.and_(code.icmp_signed("<", numbers[0], length), code.not_(has_ended))
                some = code.or_(some, left)
            ended.append(writer.read_slot(flag, writer.share.place, integer(0)))
            code.barrier()
            return some

        own = code.select(is_there, code.read_number(code.pointer("lengths"), sequence), integer(0))
        with code.loop_while(runs):
            step, taken = numbers
            takes = code.and_(code.icmp_signed("<", step, own), code.not_(ended[0]))
            after = code.add(taken, code.zext(takes, taken.type))
            yield step, ended[0]
            step.add_incoming(code.add(step, integer(1)), code.block)
            taken.add_incoming(after, code.block)
        is_first = code.icmp_signed("==", writer.share.first, integer(0))
        with code.when(code.and_(is_there, is_first)):
            code.write_element("int64", numbers[1], code.pointer("taken"), sequence)

    def lengths(self, first: Value) -> list[Value]:
        """Writes the numbers of steps of the sequences of a group; 0 where there is none."""
        code, found = self.code, list[Value]()
        for place in range(self.form.group_rows):
            sequence, is_there = self.sequence_at(code.summed(first, integer(place)))
            length = code.read_number(code.pointer("lengths"), sequence)
            found.append(code.select(is_there, length, integer(0)))
        return found

    def longest(self, first: Value) -> Value:
        """Writes the number of steps of the longest sequence of a group."""
        code = self.code
        most: Value = integer(0)
        for length in self.lengths(first):
            most = code.select(code.icmp_signed(">", length, most), length, most)
        return most

    def row_at(
        self,
        writer: EntryWriter,
        sequence: Value,
        start: Value,
        length: Value,
        step: Value,
        end: Value | None = None,
    ) -> RowOfThread:
        """Writes the entry of a thread's sequence at a step; a sequence that has ended reads any entry.

        end: whether a flag has ended the sequence before this step; None if there is no flag.
        """
        code = self.code
        is_real = code.icmp_signed("<", step, length)
        if end is not None:
            is_real = code.and_(is_real, code.not_(end))
        backward = code.sub(code.sub(length, integer(1)), step)
        is_backward = code.icmp_signed("!=", code.word("reverse"), integer(0))
        time = code.select(is_real, code.select(is_backward, backward, step), integer(0))
        entry = code.add(start, self.read_or(time, "steps", time))
        entry = code.select(is_real, entry, integer(0))
        done = self.read_or(integer(0), "first_steps", sequence)
        output = None
        if end is not None:
            output = code.add(code.read_number(code.pointer("places"), sequence), time)
        return RowOfThread(writer.share.place, entry, sequence, is_real, code.add(step, done), output)

    def read_or(self, otherwise: Value, name: str, index: Value) -> Value:
        """Writes a load of a number of an array, or another number if there is no array."""
        code = self.code
        before, inside, after = code.block, code.append_basic_block("given"), code.append_basic_block("read")
        code.cbranch(code.icmp_signed("!=", code.word(name), integer(0)), inside, after)
        code.position_at_end(inside)
        number = code.read_number(code.pointer(name), index)
        code.branch(after)
        code.position_at_end(after)
        either = code.phi(number.type)
        either.add_incoming(number, inside)
        either.add_incoming(otherwise, before)
        return either

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

    def begin_memories(self, writer: EntryWriter, sequence: Value) -> None:
        """Writes the initial memories of the threads' sequences."""
        code = self.code
        for place, (number, type_) in enumerate(self.types_of_memories()):
            slot, given = writer.slots[number], code.word(f"m{place}")
            is_given = code.icmp_signed("!=", given, integer(0))
            source, size = code.pointer(f"m{place}"), np.dtype(type_.dtype).itemsize
            with writer.elements(type_.size) as flat:
                writer.write_slot(zero(type_.dtype), slot, writer.share.place, flat)
                with code.when(is_given):
                    index = code.add(code.multiplied(sequence, type_.size), flat)
                    value = code.read_element(type_.dtype, source, index)
                    writer.write_slot(value, slot, writer.share.place, flat)
            assert size

    def end_memories(self, writer: EntryWriter, sequence: Value, is_there: Value) -> None:
        """Writes the final memories of the threads' sequences to their arrays."""
        code = self.code
        for place, (number, type_) in enumerate(self.types_of_memories()):
            wanted = code.icmp_signed("!=", code.word(f"f{place}"), integer(0))
            with (
                code.when(code.and_(is_there, wanted)),
                writer.elements(type_.size) as flat,
            ):
                value = writer.read_slot(writer.slots[number], writer.share.place, flat)
                index = code.add(code.multiplied(sequence, type_.size), flat)
                code.write_element(type_.dtype, value, code.pointer(f"f{place}"), index)

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
