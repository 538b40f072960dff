"""The context in which the loops of a stage are written: its rows, its share of each thread, and its
operands.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.lower.loops import Broadcast, Immediate, Load, Operand, Register, Table, Uniform
from stepnet.engines.llvm.machine.records import LINE
from stepnet.engines.llvm.writing.code import I32, Code, load_vector, register_type, undefined
from stepnet.net.ir import Net


@dataclass(frozen=True)
class RowsOutside:
    """The rows of an array of the call: the pointer to it, the bytes of a row, and the table of the places of
    the stage's rows. A place below zero is nowhere, and so are rows beyond the stage's: for these there is
    memory that nobody reads.
    """

    pointer: ir.Value
    bytes: int
    places: ir.Value
    nowhere: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """The pointer to a row of a stage of so many."""
        place = code.read_number(self.places, row)
        somewhere = code.icmp_signed(">=", place, code.number(0))
        there = code.at(self.pointer, code.mul(place, code.number(self.bytes)))
        return code.select(code.and_(code.icmp_signed("<", row, count), somewhere), there, self.nowhere)


@dataclass(frozen=True)
class OneRow:
    """The row of an array of the call that all rows of a stage read."""

    pointer: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """The pointer to it."""
        return self.pointer


@dataclass(frozen=True)
class InOrder:
    """Rows of an array of the call that lie one after the other: the pointer to the first, the bytes of each,
    and memory that is read for rows beyond the stage's.
    """

    pointer: ir.Value
    bytes: int
    nowhere: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """The pointer to a row of a stage of so many."""
        there = code.at(self.pointer, code.mul(row, code.number(self.bytes)))
        return code.select(code.icmp_signed("<", row, count), there, self.nowhere)


class Outside(Protocol):
    """Rows that lie anywhere."""

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """The pointer to a row of a stage of so many."""
        ...


@dataclass(frozen=True)
class Rows:
    """The rows of a stage: for each record the pointer to its first row, and the stride; and the rows of
    arrays that are read and written in place.
    """

    pointers: dict[str, ir.Value]
    strides: dict[str, int]
    count: ir.Value
    outside: Mapping[str, Outside] = field(default_factory=dict[str, Outside])

    def at(self, code: Code, record: str, row: ir.Value) -> ir.Value:
        """The pointer to a row of a record."""
        if record in self.outside:
            return self.outside[record].at(code, row, self.count)
        return code.at(self.pointers[record], code.mul(row, code.number(self.strides[record])))

    def alone(self, code: Code, row: ir.Value) -> "Rows":
        """A row by itself."""
        outside = {record: OneRow(array.at(code, row, self.count)) for record, array in self.outside.items()}
        pointers = {record: self.at(code, record, row) for record in self.pointers}
        return Rows(pointers, self.strides, code.number(1), outside)


@dataclass
class StageCode:
    """The context in which the loops of a stage are written.

    reaches_beyond: whether pointwise work may reach beyond the rows too, as tiles of products do. The stage
    is one thread's then. shares_units: whether threads share all of its elementwise work by unit, and not by
    row.
    """

    code: Code
    net: Net
    rows: Rows
    constants: ir.Value
    status: ir.Value
    thread: ir.Value
    threads: ir.Value
    width: int
    reaches_beyond: bool = False
    shares_units: bool = False

    # ---- sharing work

    def own_rows(self, abreast: int = 1) -> AbstractContextManager[ir.Value]:
        """A loop over this thread's rows: every n-th row for n threads. One thread may take some abreast."""
        return self.code.loop(self.thread, self.rows.count, self.threads if abreast == 1 else abreast)

    def own_blocks(self, blocks: int, grain: int) -> tuple[ir.Value, ir.Value]:
        """The first and the last unit block of this thread, in whole grains."""
        code = self.code
        grains = -(-blocks // grain)

        def edge(thread: ir.Value) -> ir.Value:
            whole = code.sdiv(code.mul(code.number(grains), thread), self.threads)
            return code.smaller(code.mul(whole, code.number(grain)), code.number(blocks))

        return edge(self.thread), edge(code.add(self.thread, code.number(1)))

    @contextmanager
    def own_groups(self, groups: int) -> Generator[tuple[ir.Value, ir.Value]]:
        """A loop over this thread's groups of units, of all rows; gives the row and the group."""
        code, one = self.code, self.code.number(1)
        count = code.number(groups)
        whole = code.mul(self.rows.count, count)

        def edge(thread: ir.Value) -> ir.Value:
            return code.sdiv(code.mul(whole, thread), self.threads)

        with code.loop(edge(self.thread), edge(code.add(self.thread, one))) as place:
            row = code.sdiv(place, count) if groups > 1 else place
            yield row, code.sub(place, code.mul(row, count)) if groups > 1 else code.number(0)

    # ---- operands

    def operand(
        self, operand: Operand, row: ir.Value, block: ir.Value, values: dict[int, ir.Value]
    ) -> ir.Value:
        """An operand in registers, for a unit block of a row."""
        code, width = self.code, self.width
        itemsize = np.dtype(operand.dtype).itemsize
        if isinstance(operand, Register):
            return values[operand.number]
        if isinstance(operand, Immediate):
            return code.splat(register_type(operand.dtype, width), operand.value)
        run = code.mul(block, code.number(width * itemsize))
        if isinstance(operand, Broadcast):
            pointer = code.at(code.at(self.constants, operand.offset), run)
            return load_vector(code, operand.dtype, width, pointer, min(width * itemsize, LINE))
        base = code.at(self.rows.at(code, operand.field.record, row), operand.field.offset)
        if isinstance(operand, Load):
            align = width * itemsize if operand.start == 0 else itemsize
            pointer = code.at(code.at(base, operand.start * itemsize), run)
            return load_vector(code, operand.dtype, width, pointer, min(align, operand.field.alignment))
        if isinstance(operand, Uniform):
            number = load_vector(code, operand.dtype, 1, code.at(base, operand.start * itemsize), itemsize)
            return code.spread(number, width)
        return self.through_table(operand, base, block)

    def through_table(self, operand: Table, base: ir.Value, block: ir.Value) -> ir.Value:
        """An operand whose places are in a table."""
        code, width = self.code, self.width
        itemsize = np.dtype(operand.dtype).itemsize
        table = code.at(self.constants, operand.offset)

        def pointer(entry: ir.Value) -> ir.Value:
            return code.at(base, code.mul(code.read_number(table, entry), code.number(itemsize)))

        if operand.per == "block":
            return load_vector(code, operand.dtype, width, pointer(block), itemsize)
        if operand.per == "spread":
            return code.spread(load_vector(code, operand.dtype, 1, pointer(block), itemsize), width)
        return self.by_element(operand.dtype, base, table, code.mul(block, code.number(width)))

    def by_element(self, dtype: str, base: ir.Value, table: ir.Value, first: ir.Value) -> ir.Value:
        """Numbers of a record from a place each. The places are those of a table from an entry on."""
        code, width, itemsize = self.code, self.width, np.dtype(dtype).itemsize
        result: ir.Value = undefined(register_type(dtype, width))
        for index in range(width):
            place = code.read_number(table, code.add(first, code.number(index)))
            pointer = code.at(base, code.mul(place, code.number(itemsize)))
            number = load_vector(code, dtype, 1, pointer, itemsize)
            result = code.insert_element(result, number, ir.Constant(I32, index)) if width > 1 else number
        return result


@dataclass(frozen=True)
class Steps:
    """Steps that have the same rows, at least one. Each has the memories that the step before wrote.

    at: the stage of a step, counted from the first, with its memories and where it puts the next ones.
    memories: these two of the first step.
    """

    code: Code
    at: Callable[[ir.Value, list[ir.Value]], StageCode]
    count: ir.Value
    memories: list[ir.Value]

    @property
    def first(self) -> StageCode:
        """The stage of the first step."""
        return self.at(self.code.number(0), self.memories)

    def each(self, write: Callable[[StageCode], None]) -> None:
        """Writes the code of a step, which runs for each of them."""

        def step(ahead: ir.Value, memories: list[ir.Value]) -> list[ir.Value]:
            write(self.at(ahead, memories))
            return memories[::-1]

        self.code.carry(0, self.count, self.memories, step, runs=True)
