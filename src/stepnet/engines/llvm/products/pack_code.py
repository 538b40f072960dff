"""The code that packs parameters for the microkernel; see `pack`."""

from collections.abc import Callable

from llvmlite import ir

from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.arithmetic import F32, Arithmetic, arithmetic, in_words
from stepnet.engines.llvm.products.pack import WORD, WORDS
from stepnet.engines.llvm.writing.code import I32, I64, POINTER, Code, width_of

Move = Callable[[ir.Value, ir.Value, ir.Value], None]


def write_pack(target: Target, itemsize: int, width: int, weights: str | None) -> ir.Module:
    """The module of the function `pack`, for numbers of a size and an encoding."""
    module = ir.Module("pack")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "pack")
    code = Code(function.append_basic_block("entry"), target)
    kind = None if weights is None else arithmetic(weights, "float32", width, target)
    PackCode(code, itemsize, width, kind, function.args[0]).write()
    return module


class PackCode:
    """The code that packs one matrix. kind: how its numbers are encoded; None where they stay as they are."""

    def __init__(
        self, code: Code, itemsize: int, width: int, kind: Arithmetic | None, words: ir.Value
    ) -> None:
        self.code, self.itemsize, self.width, self.kind = code, itemsize, width, kind
        self.terms = 1 if kind is None else kind.terms
        self.element = ir.IntType(8 * itemsize) if kind is None else F32
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
        itemsize, zero, terms = code.number(self.itemsize), code.number(0), code.number(self.terms)
        inner = code.sdiv(code.add(self.words["inner"], code.number(self.terms - 1)), terms)
        beside = code.icmp_signed("==", self.words["column_bytes"], itemsize)
        along = code.icmp_signed("==", self.words["row_bytes"], itemsize)
        whole = code.mul(code.sdiv(self.words["inner"], code.number(self.width)), code.number(self.width))
        squares = code.sdiv(whole, terms)
        with code.when(beside):
            self.blocks(full, zero, inner, self.copy)
        with code.when(code.not_(beside)):
            transposed = code.select(along, squares, zero)
            self.blocks(full, zero, transposed, self.transpose, self.width // self.terms)
            self.blocks(full, transposed, inner, self.gather)
        with code.loop(zero, inner) as word, code.loop(zero, rest) as place:
            source, packed = self.line(full, word)
            there = code.at(source, code.mul(place, self.words["column_bytes"]))
            number = self.encoded(self.element, there, word)
            code.write(number, code.at(packed, code.mul(place, itemsize)), self.itemsize)

    def line(self, block: ir.Value, word: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the numbers of the first k of a word of a unit block lie, and where the word is packed."""
        code, words = self.code, self.words
        k = code.mul(word, code.number(self.terms))
        column = code.mul(code.mul(block, code.number(self.width)), words["column_bytes"])
        source = code.at(
            code.inttoptr(words["source"], POINTER), code.add(code.mul(k, words["row_bytes"]), column)
        )
        place = code.add(code.mul(block, words["block_bytes"]), code.mul(word, words["step_bytes"]))
        return source, code.at(code.inttoptr(words["packed"], POINTER), place)

    def blocks(self, full: ir.Value, first: ir.Value, last: ir.Value, move: Move, step: int = 1) -> None:
        """All full unit blocks, each word of them, or `step` at a time, moved in one way."""
        code = self.code
        with code.loop(code.number(0), full) as block, code.loop(first, last, step) as word:
            move(*self.line(block, word), word)

    def encoded(self, type_: ir.Type, source: ir.Value, word: ir.Value) -> ir.Value:
        """The word of the numbers at a place, of one column or of a vector of them; 0 beyond the last k."""
        code = self.code
        values = [code.read(type_, source, 1)]
        for term in range(1, self.terms):
            k = code.add(code.mul(word, code.number(self.terms)), code.number(term))
            is_there = code.icmp_signed("<", k, self.words["inner"])
            behind = code.mul(self.words["row_bytes"], code.number(term))
            there = code.at(source, code.select(is_there, behind, code.number(0)))
            values.append(code.select(is_there, code.read(type_, there, 1), code.splat(type_, 0)))
        return self.in_words(values)

    def in_words(self, values: list[ir.Value]) -> ir.Value:
        """Numbers of as many k as a word holds, as words."""
        return values[0] if self.kind is None else in_words(self.code, self.kind, values, is_left=False)

    def copy(self, source: ir.Value, packed: ir.Value, word: ir.Value) -> None:
        """Numbers that lie side by side."""
        vector = ir.VectorType(self.element, self.width)
        self.code.write(self.encoded(vector, source, word), packed, self.itemsize)

    def transpose(self, source: ir.Value, packed: ir.Value, word: ir.Value) -> None:
        """A square: as many k as a vector has numbers, which lie side by side for each column. It is read by
        columns, and transposed on registers.
        """
        code, width = self.code, self.width
        vector = ir.VectorType(self.element, width)
        square: list[ir.Value] = []
        for _ in range(width):
            square.append(code.read(vector, source, 1))
            source = code.at(source, self.words["column_bytes"])
        half = width // 2
        # To interleave the first half of the vectors with the second moves one bit of a number's place from
        # the number of its vector to its place in it. After log2(width) turns all bits are exchanged.
        for _ in range(half.bit_length()):
            pairs = zip(square[:half], square[half:], strict=True)
            square = [shuffled(code, *pair, first) for pair in pairs for first in (0, half)]
        for first in range(0, width, self.terms):
            code.write(self.in_words(square[first : first + self.terms]), packed, self.itemsize)
            packed = code.at(packed, self.words["step_bytes"])

    def gather(self, source: ir.Value, packed: ir.Value, word: ir.Value) -> None:
        """Numbers that lie a stride apart."""
        code = self.code
        for place in range(self.width):
            number = self.encoded(self.element, source, word)
            code.write(number, code.at(packed, place * self.itemsize), self.itemsize)
            source = code.at(source, self.words["column_bytes"])


def shuffled(code: Code, a: ir.Value, b: ir.Value, first: int) -> ir.Value:
    """Numbers of two vectors by turns, from a place of each on."""
    width = width_of(a)
    order = [place for index in range(first, first + width // 2) for place in (index, width + index)]
    return code.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))
