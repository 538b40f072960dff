"""Products of 16 rows by 16 columns by instructions that multiply matrices, Intel's AMX.

    tile registers 0 to 3    sums [16 rows][16 columns], int32
                   4         left side [16 rows][16 words], as `vpdpbusd` reads it
                   5 to 7    packed weights [16 words][16 columns], as `vpdpbusd` reads them

A word has four numbers. So `tdpbusd` adds, for 16 rows, what 256 of `vpdpbusd` add, from the same memory:
left sides are encoded and weights are packed once for both. The sums are exact, so both give the same bits,
and the rows that fill no tile of 16, and single rows, are left to `vpdpbusd`.

If the words of k fill no tile, the left side has zeros after the last word, and the weights that they meet
are those that lie behind: whatever these are, their products are 0.

For bfloat16 the instructions of AMX are not used. `tdpbf16ps` adds the products of the first numbers of 16
words in one sum and those of the second ones in another, then both, then that to the sum so far. `vdpbf16ps`
and multiply-adds add word by word: the bits of a row would depend on the number of rows beside it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.products.constants import WORDS
from stepnet.compiler.targets.cpu.products.tile import LeftOperand, Sums
from stepnet.compiler.targets.cpu.products.tiles import MATRIX_ROWS, MATRIX_SUMS
from stepnet.compiler.targets.cpu.writing.code import I8, I32, I64, POINTER, Code

ROW_BYTES, TILE_BYTES = 64, 1024
LEFT, RIGHTS = MATRIX_SUMS, tuple(range(MATRIX_SUMS + 1, 8))
"""The tile registers of the left side and, in turn, of the weights; those before them have sums."""
CONFIGURATION = bytes([1, *[0] * 15, *[ROW_BYTES, 0] * 8, *[0] * 16, *[MATRIX_ROWS] * 8, *[0] * 8])
"""The operand of `ldtilecfg`: palette 1; the bytes of a row, for each of 8 tiles, from byte 16 on, and the
number of rows from byte 48 on."""
VOID = ir.VoidType()


class MatrixTiles:
    """Writer of products of whole groups of 16 rows by AMX, in one function of machine code.

    The methods for single instructions are all that depends on the instruction set.
    """

    def __init__(self, code: Code) -> None:
        """Takes the builder of the function; reserves stack memory for sums and a table of tile sizes."""
        self.code = code
        type_ = ir.ArrayType(I8, len(CONFIGURATION))
        table = ir.GlobalVariable(code.module, type_, code.module.get_unique_name("tile_sizes"))
        table.linkage, table.global_constant, table.align = "internal", True, LINE
        table.initializer = ir.Constant(type_, bytearray(CONFIGURATION))
        self.sizes = code.inttoptr(code.ptrtoint(table, I64), POINTER)
        self.memory = code.stack_memory(MATRIX_SUMS * TILE_BYTES, LINE)

    # ---- instructions

    def configure(self) -> None:
        """Writes the instruction that sets the sizes of all tile registers, which take no part before."""
        self.code.function_call("llvm.x86.ldtilecfg", VOID, [self.sizes])

    def release(self) -> None:
        """Writes the instruction after which the system need not save tile registers."""
        self.code.function_call("llvm.x86.tilerelease", VOID, [])

    def zero(self, tile: int) -> None:
        """Writes the instruction that sets a tile register to zeros."""
        self.code.function_call("llvm.x86.tilezero", VOID, [ir.Constant(I8, tile)])

    def load(self, tile: int, pointer: ir.Value, stride: int) -> None:
        """Writes a load of the rows of a tile register, which are `stride` bytes apart."""
        self.code.function_call(
            "llvm.x86.tileloadd64", VOID, [ir.Constant(I8, tile), pointer, self.code.number(stride)]
        )

    def store(self, tile: int, pointer: ir.Value) -> None:
        """Writes a store of the rows of a tile register, one after the other."""
        self.code.function_call(
            "llvm.x86.tilestored64", VOID, [ir.Constant(I8, tile), pointer, self.code.number(ROW_BYTES)]
        )

    def multiply(self, sums: int, left: int, right: int) -> None:
        """Writes the instruction that adds the product of two tile registers, uint8 by int8, to a third."""
        tiles = [ir.Constant(I8, tile) for tile in (sums, left, right)]
        self.code.function_call("llvm.x86.tdpbusd", VOID, tiles)

    # ---- products

    @contextmanager
    def configured(self, rows: ir.Value) -> Generator[None]:
        """Context manager: the code that is written inside may use tile registers. rows: the number of rows;
        with fewer than fill a tile, no instruction for tiles is executed.
        """
        code = self.code
        has_tiles = code.icmp_signed(">=", rows, code.number(MATRIX_ROWS))
        with code.when(has_tiles):
            self.configure()
        yield
        with code.when(has_tiles):
            self.release()

    def products(
        self,
        left: LeftOperand,
        packed: ir.Value,
        *,
        inner: int,
        units: int,
        gates: int,
        width: int,
        line_bytes: int,
        unit_bytes: int,
    ) -> Sums:
        """Writes the products of 16 rows of an encoded left operand with some unit blocks (vectors of 16
        columns) of packed parameters; returns their sums [row][unit block][gate], each a vector of int32.

        packed: the pointer to the first words of the first unit block.
        inner: the number of packed words of k, the summed axis.
        units, gates, width: the numbers of unit blocks, of products per unit, and of elements of a vector.
        line_bytes, unit_bytes: the bytes from one packed word of a column to the next, and from one unit
            block to the next.
        """
        code, (rows,) = self.code, left.pointers
        vector = ir.VectorType(I32, width)
        sums: Sums = [[[] for _ in range(units)] for _ in range(MATRIX_ROWS)]
        every = list(product(range(units), range(gates)))
        for first in range(0, len(every), MATRIX_SUMS):
            cells = every[first : first + MATRIX_SUMS]
            for tile in range(len(cells)):
                self.zero(tile)
            with code.loop(code.number(0), code.number(inner), WORDS) as word:
                self.load(LEFT, code.at(rows, code.mul(word, code.number(4))), left.stride)
                line = code.at(packed, code.mul(word, code.number(line_bytes)))
                for tile, (unit, gate) in enumerate(cells):
                    right = RIGHTS[tile % len(RIGHTS)]
                    self.load(right, code.at(line, unit * unit_bytes + gate * ROW_BYTES), line_bytes)
                    self.multiply(tile, LEFT, right)
            for tile, (unit, _) in enumerate(cells):
                memory = code.at(self.memory, tile * TILE_BYTES)
                self.store(tile, memory)
                for row in range(MATRIX_ROWS):
                    sums[row][unit].append(code.read(vector, code.at(memory, row * ROW_BYTES), ROW_BYTES))
        return sums


TILE_WRITERS: dict[str, type[MatrixTiles]] = {"amx-int8": MatrixTiles}
"""The writers of products by instructions for matrices, by the feature of the processor that has them."""
