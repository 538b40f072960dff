"""The code that packs parameters for the microkernel; see `pack`."""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.arithmetic import F32, Arithmetic, arithmetic, pack_words
from stepnet.compiler.targets.cpu.products.pack import ARGUMENT_INDEX, ARGUMENTS
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER, Code, width_of

Move = Callable[[ir.Value, ir.Value, ir.Value], None]


def write_pack(processor: Processor, itemsize: int, width: int, weights: str | None) -> ir.Module:
    """Generates the LLVM module with the function `pack`, which packs parameters for the microkernel.

    itemsize, width: the bytes of an element, and the elements of a vector.
    weights: the encoding of the packed parameters, "bfloat16"; None for plain elements.
    """
    module = ir.Module("pack")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "pack")
    code = Code(function.append_basic_block("entry"), processor)
    kind = None if weights is None else arithmetic(weights, "float32", width, processor)
    PackCode(code, itemsize, width, kind, function.args[0]).write()
    return module


class PackCode:
    """Writer of the code that packs matrices [k, n], one after the other, in the order that products read."""

    def __init__(
        self, code: Code, itemsize: int, width: int, kind: Arithmetic | None, arguments: ir.Value
    ) -> None:
        """Prepares to write the function's code; `arguments` points to its arguments, which describe the
        matrices.

        itemsize, width: the bytes of an element, and the elements of a vector. kind: the arithmetic of
        encoded elements; None for plain ones.
        """
        self.code, self.itemsize, self.width, self.kind = code, itemsize, width, kind
        self.terms = 1 if kind is None else kind.terms
        self.element = ir.IntType(8 * itemsize) if kind is None else F32
        self.first = arguments

    def write(self) -> None:
        """Writes the code of the function that packs matrices (reorders them as products read them): a loop
        over the matrices; their number is among the arguments.
        """
        code = self.code
        count = code.read(I64, code.at(self.first, 8 * ARGUMENT_INDEX["count"]), 8)
        with code.loop(code.number(0), count) as matrix:
            arguments = code.at(self.first, code.mul(matrix, code.number(8 * len(ARGUMENTS))))
            self.arguments = {
                name: code.read(I64, code.at(arguments, 8 * n), 8) for name, n in ARGUMENT_INDEX.items()
            }
            self.arguments["source"] = code.add(self.arguments["source"], self.arguments["offset"])
            self.pack()
        code.ret(code.number(0))

    def pack(self) -> None:
        """Writes code that packs the matrix [k, n] that `arguments` describes, as [unit block][word][column].

        A unit block is as many columns as a vector has elements. A word has `terms` consecutive elements of a
        column, in the number format of the products (such as bfloat16), and is one element in plain float32.
        In full unit blocks, contiguous rows are copied by vectors, contiguous columns transposed by squares
        of a vector's width in k and columns, all others gathered. The columns of the last, partial block are
        packed one by one.
        """
        code = self.code
        full, rest = (
            divide(self.arguments["size"], code.number(self.width)) for divide in (code.sdiv, code.srem)
        )
        itemsize, zero, terms = code.number(self.itemsize), code.number(0), code.number(self.terms)
        inner = code.sdiv(code.add(self.arguments["inner"], code.number(self.terms - 1)), terms)
        has_contiguous_rows = code.icmp_signed("==", self.arguments["column_bytes"], itemsize)
        has_contiguous_columns = code.icmp_signed("==", self.arguments["row_bytes"], itemsize)
        whole = code.mul(code.sdiv(self.arguments["inner"], code.number(self.width)), code.number(self.width))
        squares = code.sdiv(whole, terms)
        with code.when(has_contiguous_rows):
            self.blocks(full, zero, inner, self.copy)
        with code.when(code.not_(has_contiguous_rows)):
            transposed = code.select(has_contiguous_columns, squares, zero)
            self.blocks(full, zero, transposed, self.transpose, self.width // self.terms)
            self.blocks(full, transposed, inner, self.gather)
        with code.loop(zero, inner) as word, code.loop(zero, rest) as lane:
            source, packed = self.line(full, word)
            element = code.at(source, code.mul(lane, self.arguments["column_bytes"]))
            number = self.encoded(self.element, element, word)
            code.write(number, code.at(packed, code.mul(lane, itemsize)), self.itemsize)

    def line(self, block: ir.Value, word: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Computes the pointers for packing word number `word` of a unit block (as many columns as fill a
        vector). A word has `self.terms` consecutive elements of each column.

        Returns the pointer to the element of the matrix that is packed in its first row and first column, and
        the pointer to the packed word.
        """
        code, arguments = self.code, self.arguments
        k = code.mul(word, code.number(self.terms))
        column = code.mul(code.mul(block, code.number(self.width)), arguments["column_bytes"])
        source = code.at(
            code.inttoptr(arguments["source"], POINTER), code.add(code.mul(k, arguments["row_bytes"]), column)
        )
        offset = code.add(code.mul(block, arguments["block_bytes"]), code.mul(word, arguments["step_bytes"]))
        return source, code.at(code.inttoptr(arguments["packed"], POINTER), offset)

    def blocks(self, full: ir.Value, first: ir.Value, last: ir.Value, move: Move, step: int = 1) -> None:
        """Writes loops that pack words `first` to `last` - 1 of unit blocks (vectors of columns) 0 to
        `full` - 1.

        move: writes the code that packs `step` words. It takes the pointer to their elements, the pointer to
            the packed words, and the number of the first. step: the number of words that it packs at once.
        """
        code = self.code
        with code.loop(code.number(0), full) as block, code.loop(first, last, step) as word:
            move(*self.line(block, word), word)

    def encoded(self, type_: ir.Type, source: ir.Value, word: ir.Value) -> ir.Value:
        """Writes loads of the elements of packed word number `word`, and their encoding; returns the word.

        type_: the type of an element, to pack one column; or of a vector, to pack as many columns.
        source: the pointer to the word's first row k of the matrix, at the first column. Rows beyond the last
            are zeros.
        """
        code = self.code
        values = [code.read(type_, source, 1)]
        for term in range(1, self.terms):
            k = code.add(code.mul(word, code.number(self.terms)), code.number(term))
            exists = code.icmp_signed("<", k, self.arguments["inner"])
            offset = code.mul(self.arguments["row_bytes"], code.number(term))
            row = code.at(source, code.select(exists, offset, code.number(0)))
            values.append(code.select(exists, code.read(type_, row, 1), code.splat(type_, 0)))
        return self.pack_words(values)

    def pack_words(self, values: list[ir.Value]) -> ir.Value:
        """Writes code that packs the elements of a word (what one multiplication takes); plain elements,
        which are not encoded, stay.

        values: for each row k of the matrix that the word combines, its element, or a vector of columns.
        """
        return values[0] if self.kind is None else pack_words(self.code, self.kind, values, is_left=False)

    def copy(self, source: ir.Value, packed: ir.Value, word: ir.Value) -> None:
        """Writes code that packs one word of each column of a unit block (a vector of columns), if the
        elements of a row are contiguous.

        source, packed: the pointers to its elements and to the packed word. word: the number of the word.
        """
        vector = ir.VectorType(self.element, self.width)
        self.code.write(self.encoded(vector, source, word), packed, self.itemsize)

    def transpose(self, source: ir.Value, packed: ir.Value, word: ir.Value) -> None:
        """Writes code that packs a square part of a matrix whose columns are contiguous, with as many rows k
        and columns as a vector has elements. It is read by columns and transposed in registers.

        source, packed: the pointers to its first element and to its first packed word. word: not used.
        """
        code, width = self.code, self.width
        vector = ir.VectorType(self.element, width)
        square: list[ir.Value] = []
        for _ in range(width):
            square.append(code.read(vector, source, 1))
            source = code.at(source, self.arguments["column_bytes"])
        half = width // 2
        # Interleaving the first half of the vectors with the second moves one bit of an element's index from
        # the vector's number to the position in the vector. After log2(width) turns all bits are exchanged.
        for _ in range(half.bit_length()):
            pairs = zip(square[:half], square[half:], strict=True)
            square = [interleave(code, *pair, first) for pair in pairs for first in (0, half)]
        for first in range(0, width, self.terms):
            code.write(self.pack_words(square[first : first + self.terms]), packed, self.itemsize)
            packed = code.at(packed, self.arguments["step_bytes"])

    def gather(self, source: ir.Value, packed: ir.Value, word: ir.Value) -> None:
        """Writes code that packs one word of each column of a unit block (a vector of columns), if the
        elements of a row are a stride apart: each is loaded separately.

        source, packed: the pointers to its elements and to the packed word. word: the number of the word.
        """
        code = self.code
        for element in range(self.width):
            number = self.encoded(self.element, source, word)
            code.write(number, code.at(packed, element * self.itemsize), self.itemsize)
            source = code.at(source, self.arguments["column_bytes"])


def interleave(code: Code, a: ir.Value, b: ir.Value, first: int) -> ir.Value:
    """Interleaves halves of two vectors, from element `first` of each on: a, b, a, b, ..."""
    width = width_of(a)
    order = [element for index in range(first, first + width // 2) for element in (index, width + index)]
    return code.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))
