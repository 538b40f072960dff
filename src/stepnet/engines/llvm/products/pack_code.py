"""The code that packs parameters for the microkernel; see `pack`."""

from collections.abc import Callable

from llvmlite import ir

from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.pack import WORD, WORDS
from stepnet.engines.llvm.writing.code import I32, I64, POINTER, Code, width_of

Move = Callable[[ir.Value, ir.Value], None]


def write_pack(target: Target, itemsize: int, width: int) -> ir.Module:
    """The module of the function `pack`, for numbers of a size."""
    module = ir.Module("pack")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "pack")
    PackCode(Code(function.append_basic_block("entry"), target), itemsize, width, function.args[0]).write()
    return module


class PackCode:
    """The code that packs one matrix."""

    def __init__(self, code: Code, itemsize: int, width: int, words: ir.Value) -> None:
        self.code, self.itemsize, self.width = code, itemsize, width
        self.element = ir.IntType(8 * itemsize)
        self.first = words

    def write(self) -> None:
        """All matrices."""
        code = self.code
        count = code.read(I64, code.at(self.first, 8 * WORD["count"]), 8)
        with code.loop(code.number(0), count) as matrix:
            words = code.at(self.first, code.mul(matrix, code.number(8 * len(WORDS))))
            self.words = {name: code.read(I64, code.at(words, 8 * n), 8) for name, n in WORD.items()}
            self.pack()
        code.ret(code.number(0))

    def pack(self) -> None:
        """All unit blocks of a matrix: those that are full, and the one that is not."""
        code = self.code
        full, rest = (
            divide(self.words["size"], code.number(self.width)) for divide in (code.sdiv, code.srem)
        )
        itemsize, inner, zero = code.number(self.itemsize), self.words["inner"], code.number(0)
        beside = code.icmp_signed("==", self.words["column_bytes"], itemsize)
        along = code.icmp_signed("==", self.words["row_bytes"], itemsize)
        squares = code.mul(code.sdiv(inner, code.number(self.width)), code.number(self.width))
        with code.when(beside):
            self.blocks(full, zero, inner, self.copy)
        with code.when(code.not_(beside)):
            turned = code.select(along, squares, zero)
            self.blocks(full, zero, turned, self.turn, self.width)
            self.blocks(full, turned, inner, self.gather)
        with code.loop(code.number(0), self.words["inner"]) as k, code.loop(code.number(0), rest) as place:
            source, packed = self.line(full, k)
            there = code.at(packed, code.mul(place, code.number(self.itemsize)))
            number = code.read(self.element, code.at(source, code.mul(place, self.words["column_bytes"])), 1)
            code.write(number, there, self.itemsize)

    def line(self, block: ir.Value, k: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the numbers of one k of a unit block lie, and where they are packed."""
        code, words = self.code, self.words
        column = code.mul(code.mul(block, code.number(self.width)), words["column_bytes"])
        source = code.at(
            code.inttoptr(words["source"], POINTER), code.add(code.mul(k, words["row_bytes"]), column)
        )
        place = code.add(code.mul(block, words["block_bytes"]), code.mul(k, words["step_bytes"]))
        return source, code.at(code.inttoptr(words["packed"], POINTER), place)

    def blocks(self, full: ir.Value, first: ir.Value, last: ir.Value, move: Move, step: int = 1) -> None:
        """All full unit blocks, each k of them, or `step` at a time, moved in one way."""
        code = self.code
        with code.loop(code.number(0), full) as block, code.loop(first, last, step) as k:
            move(*self.line(block, k))

    def copy(self, source: ir.Value, packed: ir.Value) -> None:
        """Numbers that lie side by side."""
        vector = ir.VectorType(self.element, self.width)
        self.code.write(self.code.read(vector, source, 1), packed, self.itemsize)

    def turn(self, source: ir.Value, packed: ir.Value) -> None:
        """As many k as a vector has numbers, which lie side by side for each column."""
        code, width = self.code, self.width
        vector = ir.VectorType(self.element, width)
        square: list[ir.Value] = []
        for _ in range(width):
            square.append(code.read(vector, source, 1))
            source = code.at(source, self.words["column_bytes"])
        half = width // 2
        for _ in range(half.bit_length()):  # each turn shuffles both halves into each other
            pairs = zip(square[:half], square[half:], strict=True)
            square = [shuffled(code, *pair, first) for pair in pairs for first in (0, half)]
        for line in square:
            code.write(line, packed, self.itemsize)
            packed = code.at(packed, self.words["step_bytes"])

    def gather(self, source: ir.Value, packed: ir.Value) -> None:
        """Numbers that lie a stride apart."""
        code = self.code
        for place in range(self.width):
            code.write(
                code.read(self.element, source, 1), code.at(packed, place * self.itemsize), self.itemsize
            )
            source = code.at(source, self.words["column_bytes"])


def shuffled(code: Code, a: ir.Value, b: ir.Value, first: int) -> ir.Value:
    """Numbers of two vectors by turns, from a place of each on."""
    width = width_of(a)
    order = [place for index in range(first, first + width // 2) for place in (index, width + index)]
    return code.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))
