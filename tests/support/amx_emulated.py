"""Intel's AMX in plain code, by what Intel's manual says of each instruction, for processors without it.

Tile registers are memory of the function that uses them. Sizes are read from the operand of `ldtilecfg` at
run time, and an instruction on tiles that were not configured stops the process, as the processor would.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.targets.cpu import I8, I16, I32, I64, POINTER, Code, MatrixTiles

TILES, ROWS, ROW_BYTES = 8, 16, 64
VOID = ir.VoidType()


class EmulatedTiles(MatrixTiles):
    """Writer of products by tiles whose instructions are calls of functions of plain code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.tiles = code.stack_memory(TILES * ROWS * ROW_BYTES, ROW_BYTES)
        self.set_sizes = code.stack_memory(64, ROW_BYTES)
        with code.goto_entry_block():
            code.zero_bytes(self.set_sizes, 64)

    def call(self, write: Callable[["Instruction"], None], *arguments: "ir.Value | int") -> None:
        """Calls the function of an instruction, which is written at its first call in a module."""
        name, module = f"emulated_{write.__name__}", self.code.module
        values = [self.code.number(each) if isinstance(each, int) else each for each in arguments]
        types = [POINTER, POINTER, *(value.type for value in values)]
        if name not in module.globals:
            function = ir.Function(module, ir.FunctionType(VOID, types), name)
            function.linkage = "internal"
            code = Code(function.append_basic_block("entry"), self.code.processor)
            write(Instruction(code, function.args))
            code.ret_void()
        self.code.function_call(name, VOID, [self.tiles, self.set_sizes, *values])

    def configure(self) -> None:
        self.code.copy_bytes(self.set_sizes, self.sizes, 64)
        self.code.zero_bytes(self.tiles, TILES * ROWS * ROW_BYTES)

    def release(self) -> None:
        self.code.zero_bytes(self.set_sizes, 64)

    def zero(self, tile: int) -> None:
        self.call(tilezero, tile)

    def load(self, tile: int, pointer: ir.Value, stride: int) -> None:
        self.call(tileloadd, tile, pointer, stride)

    def store(self, tile: int, pointer: ir.Value) -> None:
        self.call(tilestored, tile, pointer)

    def multiply(self, sums: int, left: int, right: int) -> None:
        self.call(tdpbusd, sums, left, right)


class Instruction:
    """Function of one instruction, which gets the pointers to tiles and to their sizes, and `operands`."""

    def __init__(self, code: Code, arguments: tuple[ir.Value, ...]) -> None:
        self.code, (self.tiles, self.sizes, *self.operands) = code, arguments

    def size_of(self, tile: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The rows, and the bytes of a row, to which a tile is configured."""
        code = self.code
        with code.when(code.icmp_unsigned("!=", code.read(I8, self.sizes, 1), ir.Constant(I8, 1))):
            code.function_call("llvm.trap", VOID, [])
        rows = code.read(I8, code.at(code.at(self.sizes, 48), tile), 1)
        bytes_ = code.read(I16, code.at(code.at(self.sizes, 16), code.mul(tile, code.number(2))), 1)
        return code.zext(rows, I64), code.zext(bytes_, I64)

    def element(self, tile: ir.Value, row: ir.Value, byte: ir.Value) -> ir.Value:
        """The pointer to a byte of a row of a tile."""
        code = self.code
        first = code.at(self.tiles, code.mul(tile, code.number(ROWS * ROW_BYTES)))
        return code.at(code.at(first, code.mul(row, code.number(ROW_BYTES))), byte)


def tilezero(of: Instruction) -> None:
    """TILEZERO: all bytes of a tile are zeros."""
    zero = of.code.number(0)
    of.code.zero_bytes(of.element(of.operands[0], zero, zero), ROWS * ROW_BYTES)


def tileloadd(of: Instruction) -> None:
    """TILELOADD: the configured rows are loaded, a stride apart; all other bytes are zeros."""
    code, (tile, pointer, stride) = of.code, of.operands
    tilezero(of)
    rows, bytes_ = of.size_of(tile)
    with code.loop(code.number(0), rows) as row, code.loop(code.number(0), bytes_) as byte:
        source = code.at(pointer, code.add(code.mul(row, stride), byte))
        code.write(code.read(I8, source, 1), of.element(tile, row, byte), 1)


def tilestored(of: Instruction) -> None:
    """TILESTORED: the configured rows are stored, here one after the other."""
    code, (tile, pointer) = of.code, of.operands
    rows, bytes_ = of.size_of(tile)
    with code.loop(code.number(0), rows) as row, code.loop(code.number(0), bytes_) as byte:
        target = code.at(pointer, code.add(code.mul(row, code.number(ROW_BYTES)), byte))
        code.write(code.read(I8, of.element(tile, row, byte), 1), target, 1)


def tdpbusd(of: Instruction) -> None:
    """TDPBUSD: for each row m and word k of the left tile, and column n, four products are added to a sum."""
    code, (sums, left, right) = of.code, of.operands
    four, zero = code.number(4), code.number(0)
    (rows, _), (words, bytes_) = of.size_of(sums), of.size_of(right)
    columns = code.sdiv(bytes_, four)
    with code.loop(zero, rows) as m, code.loop(zero, words) as k, code.loop(zero, columns) as n:
        place = of.element(sums, m, code.mul(n, four))
        total = code.read(I32, place, 4)
        for byte in range(4):
            x = code.read(I8, of.element(left, m, code.add(code.mul(k, four), code.number(byte))), 1)
            y = code.read(I8, of.element(right, k, code.add(code.mul(n, four), code.number(byte))), 1)
            total = code.add(total, code.mul(code.zext(x, I32), code.sext(y, I32)))
        code.write(total, place, 4)
