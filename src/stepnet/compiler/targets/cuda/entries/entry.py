"""Entries: the code by which a block computes the values of several entries, statement by statement.

Each thread has an entry of its own, whose elements it shares with others; only in products does it compute a
column for several entries. All threads of the block meet between levels.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.columns import ColumnWriter
from stepnet.compiler.targets.cuda.entries.elements import (
    ElementWriter,
    RowOfThread,
    RowShare,
    Source,
    ValueSlot,
)
from stepnet.compiler.targets.cuda.entries.places import Place, PlaceWriter
from stepnet.compiler.targets.cuda.entries.reductions import ReductionWriter
from stepnet.compiler.targets.cuda.entries.statements import Statement, Statements, reduced_axes

Value = ir.Value
Store = Callable[[Statement, RowOfThread, Value, Value], None]
"""Writes the stores of an element of a value to arrays and memories: takes the statement, the row, the flat
index, and the element."""


class EntryWriter(ElementWriter):
    """Writer of the statements of entries.

    share: how the threads share the rows of the block. scales: for each left side of int8 products the
    factors and the scales of its vectors.
    """

    def __init__(
        self,
        code: PlaceWriter,
        statements: Statements,
        sources: Mapping[int, Source],
        slots: Mapping[int, ValueSlot],
        scales: Mapping[int, list[ValueSlot]],
        share: RowShare,
    ) -> None:
        """Takes the statements, and where the values lie."""
        super().__init__(code, statements.net, sources, slots)
        self.statements, self.scales, self.share = statements, scales, share
        assert share.per_row % LANES == 0 or not statements.uses_warps

    def run(self, row: RowOfThread, store: Store) -> None:
        """Writes all statements, level by level."""
        listed = self.statements.with_levels()
        for level in sorted({statement.level for statement in listed}):
            loops = dict[tuple[str, int, int], list[Statement]]()
            for statement in listed:
                if statement.level == level:
                    key = statement.kind, self.shared_by(statement), statement.size
                    loops.setdefault(key, []).append(statement)
            for together in loops.values():
                self.loop_of(together, row, store)
            self.code.barrier()

    def shared_by(self, statement: Statement) -> int:
        """Returns the key of statements that are computed in one loop if their sizes are equal."""
        node = self.net.nodes[statement.number]
        if statement.kind == "elementwise":
            return 0
        if node.operation in ("max", "argmax"):
            return node.inputs[0]
        return node.inputs[0] if node.operation == "result" else statement.number

    def loop_of(self, together: list[Statement], row: RowOfThread, store: Store) -> None:
        """Writes one loop: over elementwise statements of one size, over products, over the largest numbers
        of a value and their places, or over one other statement.
        """
        statement, node = together[0], self.net.nodes[together[0].number]
        columns = ColumnWriter(self, self.share, self.scales, row)
        reductions = self.reductions(row)
        self.begin()
        match statement.kind:
            case "elementwise":
                self.elementwise(together, row, store)
            case "product":
                columns.write(together)
            case "scales":
                columns.write_scales(statement.number)
            case "reduce":
                for axes in dict.fromkeys(self.axes_of(each) for each in together):
                    self.begin()
                    reductions.write_results([each for each in together if self.axes_of(each) == axes])
            case "scan":
                reductions.write_scan(node, statement)
            case "concatenate":
                self.concatenate(node, statement, row)
        self.begin()

    def reductions(self, row: RowOfThread) -> ReductionWriter:
        """Returns the writer of reductions and scans."""
        return ReductionWriter(self, self.share, row)

    def axes_of(self, statement: Statement) -> tuple[int, ...]:
        """Returns the axes over which a statement reduces a value."""
        return reduced_axes(self.net, self.net.nodes[statement.number])[1]

    # ---- elementwise

    def joined_elements(self, number: int, operand: int) -> AbstractContextManager[Value]:
        """Writes a loop over the elements of an operand of a concatenation that are the thread's."""
        return self.elements(self.net.type_of(operand).size)

    @contextmanager
    def elements(self, size: int) -> Generator[Value]:
        """Writes a loop over the elements of a value of the thread's row that are the thread's."""
        with self.code.loop(self.share.first, integer(size), self.share.per_row) as flat:
            yield flat

    def elementwise(self, together: list[Statement], row: RowOfThread, store: Store) -> None:
        """Writes a loop over elements that computes all statements, and then stores their results."""
        with self.elements(together[0].size) as flat:
            values = list[Value]()
            for statement in together:
                place = Place(self.code, self.net.type_of(statement.number).shape, flat)
                values.append(self.element(statement.number, place, row, self.computes(statement)))
            for statement, value in zip(together, values, strict=True):
                if statement.number in self.slots and self.computes(statement):
                    self.write_slot(value, self.slots[statement.number], row.place, flat)
                store(statement, row, flat, value)

    def computes(self, statement: Statement) -> bool:
        """Tells whether an elementwise statement computes its value, which others only copy."""
        is_copy = statement.memory is not None or statement.number in self.statements.memories
        return not is_copy and not self.statements.is_produced(statement.number)

    def concatenate(self, node: Node, statement: Statement, row: RowOfThread) -> None:
        """Writes the parts of a concatenation, one after the other."""
        code, shape = self.code, node.type.shape
        axis, start = int(node.attributes["axis"]) % len(shape), 0
        for operand in node.inputs:
            part = self.net.type_of(operand).shape
            self.begin()
            with self.joined_elements(statement.number, operand) as flat:
                place = Place(code, part, flat)
                moved = list(place.coordinates)
                moved[axis] = code.summed(moved[axis], integer(start))
                value = self.element(operand, place, row)
                there = place.at(shape, moved).flat
                self.write_slot(value, self.slots[statement.number], row.place, there)
            start += part[axis]
