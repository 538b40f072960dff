"""The pointwise work behind products, written once for all tiles.

    8 x 1 tile    products, epilogue of 4 cells, of 4        8 x 1 tile    products, call of 4 cells, of 4
    4 x 2 tile    products, epilogue of 4 cells, of 4   ->   4 x 2 tile    products, call of 4 cells, of 4
    1 x 4 tile    products, epilogue of 4 cells              1 x 4 tile    products, call of 4 cells
                                                             epilogue of 4 cells

Half of the machine code of a cell was its epilogues, and so was half of the time that LLVM took for it. A
call passes the sums in registers, and what does not fit these on the stack.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from llvmlite import ir

from stepnet.engines.llvm.emit.stage import Rows, RowsOutside, StageCode
from stepnet.engines.llvm.lower.loops import Load, Operand, Register, Table, Uniform, UnitLoop
from stepnet.engines.llvm.machine.records import Field
from stepnet.engines.llvm.writing.code import Code, places, store_vector, width_of
from stepnet.engines.llvm.writing.pointwise import pointwise

# Cells whose pointwise work is done at the same time, as one long vector that LLVM takes apart again. A
# cell's own chain of operations is long, and the processor looks ahead too little to find the next cell's by
# itself.
ABREAST = 4
SHORT = 8
"""An epilogue of fewer nodes is written where it is needed: a call would take longer."""


@dataclass(frozen=True)
class Cell:
    """One row and unit block of a tile, and what its products gave."""

    row: ir.Value
    block: ir.Value
    sums: dict[int, ir.Value]


def runs_of_cells(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    """Neighbouring cells in groups that are computed abreast: of four, two and one."""
    runs = list[Sequence[Cell]]()
    while cells:
        count = next(size for size in (ABREAST, 2, 1) if size <= len(cells))
        runs.append(cells[:count])
        cells = cells[count:]
    return runs


def write_epilogue(stage: StageCode, loop: UnitLoop, cells: Sequence[Cell]) -> None:
    """The pointwise nodes of some cells abreast, and the stores."""
    code = stage.code

    def abreast(operand: Operand) -> ir.Value:
        """An operand of all cells, side by side in one long vector."""
        if isinstance(operand, Register):
            return values[operand.number]
        return joined(code, [stage.operand(operand, cell.row, cell.block, {}) for cell in cells])

    values = {number: joined(code, [cell.sums[number] for cell in cells]) for number in cells[0].sums}
    for number, operands in loop.nodes:
        vectors = [abreast(operand) for operand in operands]
        dtypes = [operand.dtype for operand in operands]
        values[number] = pointwise(code, stage.net.nodes[number], vectors, dtypes)
    for operand, target in loop.stores:
        parts = parted(code, abreast(operand), len(cells))
        for cell, part in zip(cells, parts, strict=True):
            store(stage, part, target, cell)


def store(stage: StageCode, value: ir.Value, target: Field, cell: Cell) -> None:
    """Stores a register in its field."""
    code, width = stage.code, stage.width
    base = code.at(stage.rows.at(code, target.record, cell.row), target.offset)
    pointer = code.at(base, code.mul(cell.block, code.number(width * target.itemsize)))
    store_vector(code, target.dtype, value, pointer, min(width * target.itemsize, target.alignment))


def joined(code: Code, parts: list[ir.Value]) -> ir.Value:
    """Vectors one after the other as one long vector: a power of two of them."""
    while len(parts) > 1:
        width = 2 * width_of(parts[0])
        order = places(0, width)
        parts = [code.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def parted(code: Code, value: ir.Value, count: int) -> list[ir.Value]:
    """A long vector as `count` vectors."""
    if count == 1:
        return [value]
    width = width_of(value) // count
    return [code.part(value, first, width) for first in range(0, count * width, width)]


# ---- as functions ------------------------------------------------------------------------------------------


class Epilogues:
    """The epilogue of a loop as functions of the module: one for each number of cells abreast."""

    def __init__(self, stage: StageCode, loop: UnitLoop) -> None:
        self.stage, self.loop = stage, loop
        fields = [target for _, target in loop.stores]
        for operand in (
            *chain(*(operands for _, operands in loop.nodes)),
            *(each for each, _ in loop.stores),
        ):
            if isinstance(operand, Load | Uniform | Table):
                fields.append(operand.field)
        self.records = sorted({field.record for field in fields})
        self.functions = dict[int, ir.Function]()

    def write(self, cells: Sequence[Cell], down: bool) -> None:
        """The epilogue of some cells: of rows one below the other, or of unit blocks side by side."""
        if len(self.loop.nodes) < SHORT:
            write_epilogue(self.stage, self.loop, cells)
            return
        code, first = self.stage.code, cells[0]
        steps = [code.number(int(down)), code.number(int(not down))]
        sums = [cell.sums[number] for cell in cells for number in first.sums]
        arguments = [*self.context(), first.row, first.block, *steps, *sums]
        if len(cells) not in self.functions:
            self.functions[len(cells)] = self.function(arguments, list(first.sums), len(cells))
        code.call(self.functions[len(cells)], arguments)

    def context(self) -> list[ir.Value]:
        """What an epilogue reads of its stage: constants, the number of rows, and where its records lie."""
        rows = self.stage.rows
        values = [self.stage.constants, rows.count]
        for record in self.records:
            outside = rows.outside.get(record)
            values += (
                [rows.pointers[record]]
                if outside is None
                else [outside.pointer, outside.places, outside.nowhere]
            )
        return values

    def function(self, arguments: Sequence[ir.Value], ports: Sequence[int], count: int) -> ir.Function:
        """The function for `count` cells."""
        module = self.stage.code.module
        type_ = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
        function = ir.Function(module, type_, module.get_unique_name("epilogue"))
        function.linkage = "internal"
        here = Code(function.append_basic_block("entry"), self.stage.code.target)
        given = iter(function.args)
        constants, rows = next(given), next(given)
        pointers, outside = dict[str, ir.Value](), dict[str, RowsOutside]()
        for record in self.records:
            known = self.stage.rows.outside.get(record)
            if known is None:
                pointers[record] = next(given)
            else:
                outside[record] = RowsOutside(next(given), known.bytes, next(given), next(given))
        row, block, down, aside = (next(given) for _ in range(4))
        cells = [
            Cell(
                here.add(row, here.mul(down, here.number(place))),
                here.add(block, here.mul(aside, here.number(place))),
                {port: next(given) for port in ports},
            )
            for place in range(count)
        ]
        own = Rows(pointers, self.stage.rows.strides, rows, outside)
        write_epilogue(replace(self.stage, code=here, rows=own, constants=constants), self.loop, cells)
        here.ret_void()
        return function
