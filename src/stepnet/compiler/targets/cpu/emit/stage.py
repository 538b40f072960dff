"""The context in which the loops of a stage are written: its rows, the part of each thread, and operands."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import Protocol

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.emit.claims import Claims
from stepnet.compiler.targets.cpu.lower import loops
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.writing.code import I32, Code, load_vector, register_type, undefined
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class RowsInPlace:
    """Rows of an array of the call, read and written in place through a table.

    pointer: the array.
    bytes: the size of a row.
    indices: the table of the array's row for each row of the stage; negative for none.
    nowhere: a buffer for rows without a place and rows beyond the last; its contents are never used.
    """

    pointer: ir.Value
    bytes: int
    indices: ir.Value
    nowhere: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Computes the pointer to the part of an array of the call that belongs to a row, found by a table of
        indices. It points to a dummy if the row has no index in the array, or is not among the first `count`
        rows.
        """
        index = code.read_number(self.indices, row)
        has_place = code.icmp_signed(">=", index, code.number(0))
        pointer = code.at(self.pointer, code.mul(index, code.number(self.bytes)))
        return code.select(code.and_(code.icmp_signed("<", row, count), has_place), pointer, self.nowhere)


@dataclass(frozen=True)
class AddressRows:
    """Rows of addresses in an array of the call. As code follows them, rows beyond the last one are the last.

    pointer: the array.
    bytes: the size of a row.
    indices: the table of the array's row for each row of the stage.
    """

    pointer: ir.Value
    bytes: int
    indices: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Computes the pointer to a row of addresses; to the last one from row `count` of the stage on."""
        index = code.read_number(self.indices, code.smaller(row, code.sub(count, code.number(1))))
        return code.at(self.pointer, code.mul(index, code.number(self.bytes)))


@dataclass(frozen=True)
class OneRow:
    """Row of an array that all rows of a stage read."""

    pointer: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Returns the pointer to the only row, for any row of the stage: all rows read the same values."""
        return self.pointer


@dataclass(frozen=True)
class InOrder:
    """Contiguous rows of an array of the call.

    pointer: the first row.
    bytes: the size of a row.
    nowhere: a buffer for rows beyond the last.
    """

    pointer: ir.Value
    bytes: int
    nowhere: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Computes the pointer to a row of an array; to a dummy row from row `count` of the stage on."""
        there = code.at(self.pointer, code.mul(row, code.number(self.bytes)))
        return code.select(code.icmp_signed("<", row, count), there, self.nowhere)


class AddressedRows(Protocol):
    """Rows whose addresses are not given by a base and a stride, such as rows of a user's array."""

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Writes code that computes the pointer to the part of an array that belongs to a row. code: to which
        it is added. row: the number of the row among those that the loops of a stage (the work before, in or
        after the loop over steps) run over. count: the number of these rows.
        """
        ...


@dataclass(frozen=True)
class StageRows:
    """Addresses of the rows over which the loops of a stage (all work at one time) run.

    pointers: for each record (the values of a row), the pointer to its first row.
    strides: for each record, the bytes from row to row.
    count: the number of rows.
    rows_in_place: the rows of arrays that are read and written in place, by record.
    """

    pointers: dict[str, ir.Value]
    strides: dict[str, int]
    count: ir.Value
    rows_in_place: Mapping[str, AddressedRows] = field(default_factory=dict[str, AddressedRows])

    def at(self, code: Code, record: str, row: ir.Value) -> ir.Value:
        """Computes the pointer to a row of a kind of record (the memory with all values of a row), or of an
        array of the call that is used in place. record: the name of the kind.
        """
        if record in self.rows_in_place:
            return self.rows_in_place[record].at(code, row, self.count)
        return code.at(self.pointers[record], code.mul(row, code.number(self.strides[record])))

    def single(self, code: Code, row: ir.Value) -> "StageRows":
        """Returns addresses of the values of row number `row` (a sequence at one step) alone, so that loops
        over rows run over this one.
        """
        outside = {
            record: OneRow(array.at(code, row, self.count)) for record, array in self.rows_in_place.items()
        }
        pointers = {record: self.at(code, record, row) for record in self.pointers}
        return StageRows(pointers, self.strides, code.number(1), outside)


@dataclass
class StageCode:
    """Context in which the loops of a stage are written: all work at one time, such as before or in the loop
    over steps.

    rows: the rows of the stage.
    constants: the pointer to packed parameters, constants and tables.
    status: the pointer to the word that is set if an integer is out of bounds.
    thread, threads: the index of this thread, and the number of threads.
    width: the elements of a vector.
    reaches_beyond: whether elementwise work may reach beyond the last row, as tiles of products do. Such a
        stage is run by one thread.
    shares_units: whether threads divide elementwise work by units instead of rows.
    claims: writes loops whose work threads claim from each other; None if each has only its own.
    """

    code: Code
    net: Net
    rows: StageRows
    constants: ir.Value
    status: ir.Value
    thread: ir.Value
    threads: ir.Value
    width: int
    reaches_beyond: bool = False
    shares_units: bool = False
    claims: Claims | None = None

    # ---- sharing work

    def own_rows(self, abreast: int = 1) -> AbstractContextManager[ir.Value]:
        """Context manager: writes a loop over the rows of this thread, and gives the index of the row. The
        caller writes the body inside. If n threads share the rows, a thread has every n-th row.

        abreast: the number of rows that an iteration takes; more than 1 only if there is a single thread.
        """
        return self.code.loop(self.thread, self.rows.count, self.threads if abreast == 1 else abreast)

    def blocks_of(self, thread: ir.Value, blocks: int, grain: int) -> tuple[ir.Value, ir.Value]:
        """Computes a thread's share of the unit blocks (vectors of features). Returns the index of its first
        block, and that of the first block after it.

        thread: the number of the thread.
        blocks: the number of unit blocks.
        grain: the number of blocks in a group; only whole groups are given to a thread.
        """
        code = self.code
        grains = -(-blocks // grain)

        def edge(thread: ir.Value) -> ir.Value:
            """Computes the first block of the thread with this index, which is the end of the one before."""
            grains_before = code.sdiv(code.mul(code.number(grains), thread), self.threads)
            return code.smaller(code.mul(grains_before, code.number(grain)), code.number(blocks))

        return edge(thread), edge(code.add(thread, code.number(1)))

    @contextmanager
    def own_groups(self, groups: int) -> Generator[tuple[ir.Value, ir.Value]]:
        """Context manager: writes a loop over this thread's share of all pairs of a row and a group of units
        (vectors of features); gives the indices of both. The caller writes the body inside. groups: the
        number of groups of units in a row.
        """
        code, one = self.code, self.code.number(1)
        count = code.number(groups)
        pair_count = code.mul(self.rows.count, count)

        def edge(thread: ir.Value) -> ir.Value:
            """Computes the first pair of the thread with this index, which is the end of the one before."""
            return code.sdiv(code.mul(pair_count, thread), self.threads)

        with code.loop(edge(self.thread), edge(code.add(self.thread, one))) as index:
            row = code.sdiv(index, count) if groups > 1 else index
            yield row, code.sub(index, code.mul(row, count)) if groups > 1 else code.number(0)

    # ---- operands

    def operand(
        self, operand: loops.Operand, row: ir.Value, block: ir.Value, values: dict[int, ir.Value]
    ) -> ir.Value:
        """Returns an operand of elementwise work on a unit block (a vector of features) of a row, as a
        vector.

        Its load or broadcast is written, unless it is in a register already. values: the registers computed
        so far, by node number.
        """
        code, width = self.code, self.width
        itemsize = np.dtype(operand.dtype).itemsize
        if isinstance(operand, loops.Register):
            return values[operand.number]
        if isinstance(operand, loops.Immediate):
            return code.splat(register_type(operand.dtype, width), operand.value)
        run = code.mul(block, code.number(width * itemsize))
        if isinstance(operand, loops.Broadcast):
            pointer = code.at(code.at(self.constants, operand.offset), run)
            return load_vector(code, operand.dtype, width, pointer, min(width * itemsize, LINE))
        base = code.at(self.rows.at(code, operand.field.record, row), operand.field.offset)
        if isinstance(operand, loops.VectorLoad):
            align = width * itemsize if operand.start == 0 else itemsize
            pointer = code.at(code.at(base, operand.start * itemsize), run)
            return load_vector(code, operand.dtype, width, pointer, min(align, operand.field.alignment))
        if isinstance(operand, loops.UniformLoad):
            number = load_vector(code, operand.dtype, 1, code.at(base, operand.start * itemsize), itemsize)
            return code.spread(number, width)
        return self.through_table(operand, base, block)

    def through_table(self, operand: loops.IndexedLoad, base: ir.Value, block: ir.Value) -> ir.Value:
        """Loads an operand for a unit block (a vector of features) through a table of element indices.

        base: the pointer to the value's first element in the row. operand.per says for how many elements the
            table has an entry.
        """
        code, width = self.code, self.width
        itemsize = np.dtype(operand.dtype).itemsize
        table = code.at(self.constants, operand.offset)

        def pointer(entry: ir.Value) -> ir.Value:
            """Computes the pointer to the element whose index in the value is this entry of the table."""
            return code.at(base, code.mul(code.read_number(table, entry), code.number(itemsize)))

        if operand.per == "block":
            return load_vector(code, operand.dtype, width, pointer(block), itemsize)
        if operand.per == "spread":
            return code.spread(load_vector(code, operand.dtype, 1, pointer(block), itemsize), width)
        return self.by_element(operand.dtype, base, table, code.mul(block, code.number(width)))

    def by_element(self, dtype: str, base: ir.Value, table: ir.Value, first: ir.Value) -> ir.Value:
        """Loads a vector element by element, through a table of indices: the elements' positions after `base`
        are the entries of `table` from `first` on.
        """
        code, width, itemsize = self.code, self.width, np.dtype(dtype).itemsize
        result: ir.Value = undefined(register_type(dtype, width))
        for index in range(width):
            element = code.read_number(table, code.add(first, code.number(index)))
            pointer = code.at(base, code.mul(element, code.number(itemsize)))
            number = load_vector(code, dtype, 1, pointer, itemsize)
            result = code.insert_element(result, number, ir.Constant(I32, index)) if width > 1 else number
        return result


@dataclass(frozen=True)
class ConsecutiveSteps:
    """Consecutive steps of the same rows, at least one. Each reads the memories that the step before wrote.

    at: a function from the index of a step and its two memory buffers to the context for writing its loops.
    count: the number of steps.
    memories: the buffers that the first step reads and writes; they are exchanged after each step.
    """

    code: Code
    at: Callable[[ir.Value, list[ir.Value]], StageCode]
    count: ir.Value
    memories: list[ir.Value]

    @property
    def first(self) -> StageCode:
        """The context for writing the loops of the first of these consecutive steps."""
        return self.at(self.code.number(0), self.memories)

    def for_each_step(self, write: Callable[[StageCode], None]) -> None:
        """Writes a loop over these steps, which exchanges the two buffers of memories (recurrent states)
        after each. write: writes the code of one step, from the `StageCode` with its rows.
        """

        def step(ahead: ir.Value, memories: list[ir.Value]) -> list[ir.Value]:
            """Writes the step with index `ahead`; returns the two memory buffers, exchanged."""
            write(self.at(ahead, memories))
            return memories[::-1]

        self.code.carry(0, self.count, self.memories, step, runs=True)
