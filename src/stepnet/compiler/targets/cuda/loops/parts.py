"""The loop of a step whose heads do not depend on each other, with a block for each of them, or for some.

It is the loop of a block (`loop.py`), whose memories and values are divided into equal parts, one after the
other, as [heads, keys, values] is into heads. A block computes and stores one part of each; values that are
not divided each block computes for itself. So a number has the same bits however many blocks there are.
"""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.apart import in_parts, parted
from stepnet.compiler.plan.labels import viewed
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.entries.elements import (
    ElementShare,
    RowOfThread,
    RowShare,
    Source,
    ValueSlot,
)
from stepnet.compiler.targets.cuda.entries.entry import EntryWriter, Store
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.entries.room import ALIGNMENT, ValueRoom, room
from stepnet.compiler.targets.cuda.entries.statements import Statement, Statements
from stepnet.compiler.targets.cuda.loops.lane_code import turns_of
from stepnet.compiler.targets.cuda.loops.loop import LoopForm, LoopWriter
from stepnet.compiler.values.records import dataclass

Value = ir.Value


KINDS = {"elementwise", "reduce", "concatenate"}
"""The kinds of statements that can be divided."""


@dataclass(frozen=True)
class LoopParts:
    """Division of a step among blocks. count: the number of parts. divided: how often, by node."""

    count: int
    divided: Mapping[int, int]

    def share(self, code: PlaceWriter, size: int, times: int, part: Value) -> ElementShare:
        """Writes the elements of a part of a value that is divided so often."""
        own = size // (times * self.count)
        return ElementShare(own, size // times, times, code.multiplied(part, own))


def parts_of(form: LoopForm, count: int) -> LoopParts | None:
    """Returns the division of the step of a loop into a number of parts; None if it cannot be."""
    body, statements = form.body, form.statements
    kinds = {statement.kind for statement in statements.all_statements()}
    if count < 2 or form.flag is not None or kinds - KINDS or not has_expressions(body):
        return None
    if any(body.type_of(number).size % count for number in statements.memories):
        return None
    found = parted(body, {*statements.stored, *statements.roots}, statements.memories, count)
    if found is None or not all(is_joined(body, number, found, count) for number in found):
        return None
    return LoopParts(count, found)


def has_expressions(body: Net) -> bool:
    """Tells whether the elements of a step's values are expressions of others, or joined."""
    kinds = "pointwise", "reduce", "source", "view"
    return all(node.kind in kinds or node.operation == "expand" for node in body.nodes)


def is_joined(body: Net, number: int, divided: Mapping[int, int], count: int) -> bool:
    """Tells whether the operands of a concatenation can be divided as it is; True for other values."""
    node = body.nodes[number]
    if node.operation != "concatenate":
        return True
    times = [times_of(body, number, n, divided[number]) for n in node.inputs]
    pairs = [*zip(node.inputs, times, strict=True)]
    if not all(each and body.type_of(n).size % (each * count) == 0 for n, each in pairs):
        return False
    joined = viewed(node, *(in_parts(body.type_of(n).shape, count, each) for n, each in pairs))
    return bool((joined == in_parts(node.type.shape, count, divided[number])).all())


def times_of(body: Net, number: int, operand: int, times: int) -> int:
    """Returns the number of parts of a concatenation's operand. times: that of the concatenation."""
    return times * body.type_of(operand).size // max(1, body.type_of(number).size)


def most_parts(form: LoopForm) -> int:
    """Returns the most parts that a step may have: the size of the first axis of all its memories."""
    sizes = {form.body.type_of(number).shape[:1] for number in form.kinds["m"]}
    return sizes.pop()[0] if len(sizes) == 1 and () not in sizes else 1


def part_code(form: LoopForm, parts: LoopParts) -> LoopCode:
    """Writes the kernel of a loop with a block for each part."""
    return PartLoopWriter(form, parts).written()


class PartEntryWriter(EntryWriter):
    """Writer of the statements of a part of a step. part: its number."""

    def __init__(
        self,
        code: PlaceWriter,
        statements: Statements,
        sources: Mapping[int, Source],
        slots: Mapping[int, ValueSlot],
        share: RowShare,
        parts: LoopParts,
        part: Value,
    ) -> None:
        """Takes the statements, where the values lie, and the part."""
        super().__init__(code, statements, sources, slots, {}, share)
        self.parts, self.part, self.times = parts, part, 1

    def shared_by(self, statement: Statement) -> int:
        """Returns the key of statements that are computed in one loop if their sizes are equal."""
        if statement.kind == "elementwise":
            return self.parts.divided.get(statement.number, 0)
        return super().shared_by(statement)

    def share_of(self, number: int) -> ElementShare:
        """Returns the elements of a value that the block computes."""
        if number not in self.parts.divided:
            return super().share_of(number)
        size, times = self.net.type_of(number).size, self.parts.divided[number]
        return self.parts.share(self.code, size, times, self.part)

    def elementwise(self, together: list[Statement], row: RowOfThread, store: Store) -> None:
        """Writes a loop over the part's elements that computes all statements, and stores their results."""
        self.times = self.parts.divided.get(together[0].number, 0)
        super().elementwise(together, row, store)
        self.times = 1

    def joined_elements(self, number: int, operand: int) -> AbstractContextManager[Value]:
        """Writes a loop over the elements of an operand of a concatenation that are the thread's."""
        times = self.parts.divided.get(number, 0)
        self.times = times and times_of(self.net, number, operand, times)
        return self.elements(self.net.type_of(operand).size)

    @contextmanager
    def elements(self, size: int) -> Generator[Value]:
        """Writes a loop over the elements of a value of the thread's row that are the thread's."""
        if not self.times:
            with super().elements(size) as index:
                yield index
            return
        share = self.parts.share(self.code, size, self.times, self.part)
        with super().elements(share.count) as index:
            yield share.element(self.code, index)


class PartLoopWriter(LoopWriter):
    """Writer of the kernel of a loop with a block for each part."""

    def __init__(self, form: LoopForm, parts: LoopParts) -> None:
        """Begins the kernel."""
        super().__init__(form)
        self.parts, self.part = parts, integer(0)
        whole = room(form.statements, form.group_rows, form.shared)
        self.room = in_part(whole, parts, form)

    def written(self) -> LoopCode:
        """Writes the kernel."""
        form, code, count = self.form, self.code, self.parts.count
        self.in_group, self.part = code.divided(code.block_index, count)
        first, turns = turns_of(code, self.in_group)
        with code.loop(first, code.add(first, turns)) as turn:
            self.turn_after(integer(0), turn)
        made = code.finished(form.threads, self.room.shared, count)
        schedule = (
            f"{count} blocks of {form.threads} threads for {form.group_rows} sequences, for some heads each"
        )
        return LoopCode(made, schedule, form.group_rows, count * self.room.scratch)

    def writer_at(self, step: Value) -> EntryWriter:
        """Writes the places of the values at a step; returns the writer of its statements."""
        code, form, parts = self.code, self.form, self.parts
        share = RowShare.of(code, form.group_rows, form.threads)
        block = code.add(code.multiplied(self.in_group, parts.count), self.part)
        scratch = code.at(code.pointer("scratch"), code.multiplied(block, self.room.scratch))
        slots, _ = self.room.slots(code, scratch)
        own = {
            number: replace(slot, share=self.share_of(number)) if number in parts.divided else slot
            for number, slot in slots.items()
        }
        return PartEntryWriter(code, form.statements, self.sources(), own, share, parts, self.part)

    def share_of(self, number: int) -> ElementShare:
        """Writes the elements of a value that the block stores."""
        size, times = self.form.body.type_of(number).size, self.parts.divided[number]
        return self.parts.share(self.code, size, times, self.part)


def in_part(whole: ValueRoom, parts: LoopParts, form: LoopForm) -> ValueRoom:
    """Returns the places of the stored values of a block with one part: in shared memory, the smallest first,
    as long as there is room.
    """
    placed, used, scratch = list(whole.values), 0, 0
    for at, value in sorted(enumerate(whole.values), key=lambda pair: pair[1].size):
        size = value.size // parts.count if value.number in parts.divided else value.size
        count = -(-form.group_rows * size * np.dtype(value.dtype).itemsize // ALIGNMENT) * ALIGNMENT
        fits = used + count <= form.shared
        placed[at] = replace(value, size=size, offset=used if fits else scratch, is_shared=fits)
        used, scratch = (used + count, scratch) if fits else (used, scratch + count)
    return ValueRoom(tuple(placed), used, scratch)
