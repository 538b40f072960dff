"""The code of the contract kernel, which sums outer products of rows; see `contract`."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import reduce

from llvmlite import ir

from stepnet.compiler.net.totals import BLOCK
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.arithmetic import arithmetic, pack_words
from stepnet.compiler.targets.cpu.products.contract import ARGUMENT_INDEX, ARGUMENTS, BlockSizes
from stepnet.compiler.targets.cpu.products.tile import UNROLLED, Ahead, LeftOperand, accumulate
from stepnet.compiler.targets.cpu.products.tiles import Tile
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code, load_vector
from stepnet.compiler.values.records import dataclass

Rows = list[tuple[ir.Value, ir.Value]]
"""For each row that a packed word combines, its pointer and whether the row exists."""
TOGETHER = 8
"""The words of a block of columns that are packed one after the other: with only one, each write would go to
another page."""


def write_contract(processor: Processor, dtype: str, weights: str | None) -> ir.Module:
    """Generates the LLVM module with the function `contract`, which sums the outer products of the rows of
    two operands, as the gradient of a weight.

    dtype, weights: the dtype of both operands, and their encoding ("bfloat16") or None.
    """
    module = ir.Module("contract")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "contract")
    code = Code(function.append_basic_block("entry"), processor)
    ContractCode(code, BlockSizes(processor, dtype, weights), function.args[0]).write()
    return module


@dataclass(frozen=True)
class OperandPacking:
    """Packing of one operand of a contract, in blocks of some columns.

    name: "left" or "right".
    block_name: the name of a block: "group" or "unit".
    columns: the columns of a block.
    word_bytes: the bytes of one word of all columns of a block.
    block_bytes: the bytes from one block to the next.
    """

    name: str
    block_name: str
    columns: int
    word_bytes: int
    block_bytes: int


class ContractCode:
    """Writer of the code that computes one thread's part of sums of outer products of rows.

    row: the pointer to the thread's `ARGUMENTS` of one product.
    result, total: the pointers to the result of a piece of rows, and to the memory in which it accumulates.
    is_padded: whether these differ.
    following, last: the positions of the first row behind the present block of rows, and of the end of the
        piece, in the list of row indices.
    """

    result: ir.Value
    total: ir.Value
    is_padded: ir.Value
    following: ir.Value
    last: ir.Value

    def __init__(self, code: Code, sizes: BlockSizes, arguments: ir.Value) -> None:
        """Prepares to write sums of outer products. arguments: the pointer to rows of `ARGUMENTS`."""
        self.code, self.sizes, self.arguments, self.row = code, sizes, arguments, arguments
        self.kind = arithmetic(sizes.weights, sizes.dtype, sizes.width, sizes.processor)

    def argument(self, name: str) -> ir.Value:
        """Writes a load of an argument of the current product, by its name in `ARGUMENTS`, as an integer."""
        return self.code.read(I64, self.code.at(self.row, 8 * ARGUMENT_INDEX[name]), 8)

    def pointer(self, name: str) -> ir.Value:
        """Writes a load of an argument of the current product, by its name in `ARGUMENTS`, as a pointer."""
        return self.code.inttoptr(self.argument(name), POINTER)

    def write(self) -> None:
        """Writes the function's body: a loop over the pieces of rows, which have a result each or one
        together.
        """
        code, pieces, zero = self.code, self.pointer("pieces"), self.code.number(0)
        is_own = code.icmp_signed("!=", self.argument("result_stride"), zero)
        with code.loop(self.argument("first_piece"), self.argument("last_piece")) as piece:
            begins = code.or_(code.icmp_signed("==", piece, zero), is_own)
            first = code.read_number(pieces, piece)
            last = code.read_number(pieces, code.add(piece, code.number(1)))
            self.write_piece(piece, first, last, begins)
        code.ret(zero)

    @contextmanager
    def each_product(self, piece: ir.Value) -> Generator[None]:
        """Writes a loop over the products of the contract around the code inside the `with`, which finds
        the arguments and the result of each in `row`, `result`, `total` and `is_padded`. piece: the number of
        the piece of rows.
        """
        code = self.code
        with code.loop(code.number(0), self.argument("products")) as number:
            self.row = code.at(self.arguments, code.mul(number, code.number(8 * len(ARGUMENTS))))
            self.is_padded = code.icmp_signed("!=", self.argument("padded"), code.number(0))
            self.result = code.at(self.pointer("result"), code.mul(piece, self.argument("result_stride")))
            self.total = code.select(self.is_padded, self.pointer("padded"), self.result)
            yield
        self.row = self.arguments

    def write_piece(self, piece: ir.Value, begin: ir.Value, last: ir.Value, begins: ir.Value) -> None:
        """Writes the code for one piece of the rows: if a total begins with it, this is set to zeros; for
        each block of rows and each product, the operands are packed that no product ahead has packed, and the
        product is added; a padded total is copied to the result.

        Zeros pad the packed words of a block to a multiple of `UNROLLED` (4), as the microkernel (the inner
        loop of the product) requires.

        piece: the number of the piece. begin, last: where it begins and ends in the list of row indices.
        begins: whether a total begins.
        """
        code, sizes, kind, zero = self.code, self.sizes, self.kind, self.code.number(0)
        left = OperandPacking("left", "group", sizes.group, sizes.group * kind.left_bytes, sizes.group_bytes)
        right = OperandPacking("right", "unit", sizes.width, sizes.width * kind.word_bytes, sizes.unit_bytes)
        with code.when(begins), self.each_product(piece):
            for total, _, size in self.each_row():
                code.zero_bytes(total, size)
            for operand in (left, right):
                with code.when(self.is_summed(operand)):
                    _, columns = self.packed_columns(operand)
                    code.zero_bytes(self.sums_of(operand), code.mul(columns, code.number(sizes.itemsize)))
        with code.loop(begin, last, BLOCK) as first:
            count = code.smaller(code.sub(last, first), code.number(BLOCK))
            self.following, self.last = code.add(first, code.number(BLOCK)), last
            word_count = self.quotient(count, kind.terms)
            padded = code.mul(self.quotient(word_count, UNROLLED), code.number(UNROLLED))
            with self.each_product(piece):
                for operand in (left, right):
                    with code.when(code.icmp_signed("!=", self.argument(f"packs_{operand.name}"), zero)):
                        self.pack(operand, first, count, word_count, padded)
                self.multiply(padded)
        with self.each_product(piece), code.when(self.is_padded):
            for total, result, size in self.each_row():
                code.copy_bytes(result, total, size)

    def each_row(self) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
        """Writes a loop over the rows of the result that the thread computes. Yields, for the caller to write
        the body, two pointers to the thread's part of a row, in the memory where the sum accumulates and in
        the result; and the size of this part in bytes.
        """
        code, sizes = self.code, self.sizes
        group, unit = code.number(sizes.group), code.number(sizes.width * sizes.itemsize)
        end = code.smaller(code.mul(self.argument("last_group"), group), self.argument("left_columns"))
        begin, stride = code.mul(self.argument("first_unit"), unit), self.argument("right_stride")
        size = code.sub(code.smaller(code.mul(self.argument("last_unit"), unit), stride), begin)
        result = code.at(self.result, begin)
        with code.loop(code.mul(self.argument("first_group"), group), end) as row:
            yield self.total_at(row, begin), code.at(result, code.mul(row, stride)), size

    def total_at(self, row: ir.Value, offset: ir.Value) -> ir.Value:
        """Computes a pointer to a sum: `offset` bytes after the start of a row of the result."""
        code = self.code
        return code.at(code.at(self.total, code.mul(row, self.argument("total_stride"))), offset)

    def quotient(self, value: ir.Value, divisor: int) -> ir.Value:
        """Writes the division of an integer by a positive one, rounded up."""
        return self.code.sdiv(self.code.add(value, self.code.number(divisor - 1)), self.code.number(divisor))

    # ---- packing

    def pack(
        self,
        operand: "OperandPacking",
        first: ir.Value,
        count: ir.Value,
        word_count: ir.Value,
        padded: ir.Value,
    ) -> None:
        """Writes code that packs some rows of one operand as [block of columns][word][column], the order in
        which the product reads them. A word has one or more consecutive rows of a column, encoded. Columns
        that do not fill the last block are packed too.

        operand: the operand, and the sizes of its blocks of columns.
        first, count: the position of the first row in the list of row indices, and the number of rows.
        word_count: the number of packed words for these rows.
        padded: the number of words after padding; those from `word_count` on are set to zero.
        """
        code, itemsize = self.code, self.sizes.itemsize
        target, source = self.pointer(f"packed_{operand.name}"), self.pointer(operand.name)
        begin, end = self.argument(f"first_{operand.block_name}"), self.argument(f"last_{operand.block_name}")
        width = code.number(operand.columns)
        full, rest = self.packed_columns(operand)
        source = code.at(source, code.mul(begin, code.number(operand.columns * itemsize)))

        def packed(index: ir.Value, word: ir.Value) -> ir.Value:
            """Computes the pointer to packed word `word` of block `index` (a group or unit of columns)."""
            block = code.at(target, code.mul(index, code.number(operand.block_bytes)))
            return code.at(block, code.mul(word, code.number(operand.word_bytes)))

        def pack_words_from(word: ir.Value, together: int) -> None:
            """Writes code that packs consecutive words, `together` of them, block by block."""
            stride = self.argument(f"{operand.name}_stride")
            words = [
                self.rows(source, stride, first, count, code.add(word, code.number(ahead)))
                for ahead in range(together)
            ]
            with code.loop(code.number(0), full) as number:
                column = code.mul(number, width)
                self.pack_columns(operand, words, column, operand.columns, packed(number, word))
            with code.loop(code.mul(full, width), rest) as column:
                bytes_ = code.number(operand.word_bytes // operand.columns)
                within = code.mul(code.srem(column, width), bytes_)
                self.pack_columns(operand, words, column, 1, code.at(packed(full, word), within))

        whole = code.mul(code.sdiv(word_count, code.number(TOGETHER)), code.number(TOGETHER))
        with code.loop(code.number(0), whole, TOGETHER) as word:
            pack_words_from(word, TOGETHER)
        with code.loop(whole, word_count) as word:
            pack_words_from(word, 1)
        with code.loop(word_count, padded) as word, code.loop(code.number(0), code.sub(end, begin)) as number:
            code.zero_bytes(packed(number, word), operand.word_bytes)

    def packed_columns(self, operand: OperandPacking) -> tuple[ir.Value, ir.Value]:
        """Computes the numbers of whole blocks of columns, and of columns, of an operand that the thread
        packs.
        """
        code, width = self.code, self.code.number(operand.columns)
        begin, end = self.argument(f"first_{operand.block_name}"), self.argument(f"last_{operand.block_name}")
        columns = code.sub(self.argument(f"{operand.name}_columns"), code.mul(begin, width))
        full = code.smaller(code.sdiv(columns, width), code.sub(end, begin))
        return full, code.smaller(columns, code.mul(code.sub(end, begin), width))

    def rows(
        self, source: ir.Value, stride: ir.Value, first: ir.Value, count: ir.Value, word: ir.Value
    ) -> Rows:
        """Computes, for each row that packed word `word` combines, its pointer and whether the row exists.

        For a row that does not exist, the pointer is that of the last row of the block.

        source, stride: the pointer to the operand, and the bytes from row to row.
        first, count: the block of rows: the position of its first row in the list of row indices, and its
            number of rows.
        """
        code, places = self.code, self.pointer("places")
        begin = code.mul(word, code.number(self.kind.terms))
        rows: Rows = []
        for term in range(self.kind.terms):
            row = code.add(begin, code.number(term))
            place = code.smaller(row, code.sub(count, code.number(1)))
            offset = code.mul(code.read_number(places, code.add(first, place)), stride)
            rows.append((code.at(source, offset), code.icmp_signed("<", row, count)))
        return rows

    def pack_columns(
        self, operand: "OperandPacking", words: list[Rows], column: ir.Value, width: int, target: ir.Value
    ) -> None:
        """Loads `width` columns, from `column` on, of the rows of some packed words, and packs them. Adds
        them up, one after the other, and adds this to the sum of all rows, if there is to be one.

        words: for each word the rows that it combines: for each row, its pointer and whether it exists; if
            not, its elements are zeros. target: the pointer to the first word.
        """
        code, dtype, itemsize = self.code, self.sizes.dtype, self.sizes.itemsize
        offset, every = code.mul(column, code.number(itemsize)), list[ir.Value]()
        for number, rows in enumerate(words):
            values = [load_vector(code, dtype, width, code.at(line, offset), itemsize) for line, _ in rows]
            for index, (_, exists) in enumerate(rows[1:], 1):
                values[index] = code.select(exists, values[index], code.splat(values[index].type, 0))
            word = pack_words(code, self.kind, values, is_left=operand.name == "left")
            code.write(word, code.at(target, number * operand.word_bytes), itemsize)
            every += values
        with code.when(self.is_summed(operand)):
            place = code.at(self.sums_of(operand), offset)
            known, added = code.read(every[0].type, place, itemsize), reduce(code.fadd, every)
            code.write(code.fadd(known, added), place, itemsize)

    def is_summed(self, operand: OperandPacking) -> ir.Value:
        """Computes whether the thread adds up the rows of an operand while it packs them."""
        return self.code.icmp_signed("!=", self.argument(f"sums_{operand.name}"), self.code.number(0))

    def sums_of(self, operand: OperandPacking) -> ir.Value:
        """Computes the pointer to the sums of the columns of an operand that the thread packs."""
        begin = self.argument(f"first_{operand.block_name}")
        bytes_ = self.code.number(operand.columns * self.sizes.itemsize)
        return self.code.at(self.pointer("sums"), self.code.mul(begin, bytes_))

    # ---- multiplying

    def multiply(self, inner: ir.Value) -> None:
        """Writes code that multiplies the packed operands, in register tiles, and adds the product to the sum
        in memory. Units (vectors of right columns) that do not fill a tile are computed two by two.

        inner: the number of packed words of the summed axis k, which are those of the rows.
        """
        code, tile = self.code, self.sizes.tile
        units = code.sub(self.argument("last_unit"), self.argument("first_unit"))
        wide = code.mul(code.sdiv(units, code.number(tile.units)), code.number(tile.units))
        groups = code.sub(self.argument("last_group"), self.argument("first_group"))
        rest, count = code.sub(units, wide), code.number
        # A tile of 3 units and one more take longer than two tiles of 2.
        is_one = code.and_(code.icmp_signed("==", rest, count(1)), code.icmp_signed(">", wide, count(0)))
        wide = code.sub(wide, code.select(is_one, count(tile.units), count(0)))
        paired = code.add(wide, code.and_(code.sub(units, wide), count(-2)))
        parts = (
            (tile, count(0), wide),
            (Tile(tile.rows, 2), wide, paired),
            (Tile(tile.rows, 1), paired, units),
        )
        for shape, begin, end in parts:
            with code.loop(begin, end, shape.units) as unit, code.loop(code.number(0), groups) as group:
                self.add_tile(shape, unit, group, inner)

    def next_row(self, shape: Tile, unit: ir.Value, group: ir.Value) -> list[Ahead]:
        """Computes the part of the next block of rows that a tile fetches while it multiplies: the columns of
        one row that the thread packs. The tiles divide the rows of the block.

        shape, unit, group: the sizes and the place of the tile, as for `add_tile`.
        """
        code, sizes = self.code, self.sizes
        groups = code.sub(self.argument("last_group"), self.argument("first_group"))
        units = code.sub(self.argument("last_unit"), self.argument("first_unit"))
        tile = code.add(code.mul(unit, groups), code.mul(group, code.number(shape.units)))
        row = code.sdiv(code.mul(tile, code.number(BLOCK)), code.mul(units, groups))
        row = code.smaller(code.add(self.following, row), code.sub(self.last, code.number(1)))
        place, ahead = code.read_number(self.pointer("places"), row), list[Ahead]()
        for name, block, columns in (("left", "group", sizes.group), ("right", "unit", sizes.width)):
            begin = code.mul(self.argument(f"first_{block}"), code.number(columns * sizes.itemsize))
            begin = code.add(begin, code.mul(place, self.argument(f"{name}_stride")))
            ahead.append(Ahead(code.at(self.pointer(name), begin), self.argument(f"ahead_{name}")))
        return ahead

    def add_tile(self, shape: Tile, unit: ir.Value, group: ir.Value, inner: ir.Value) -> None:
        """Writes code that multiplies the packed operands for one register tile, and adds the products to the
        sum in memory.

        shape: the numbers of left columns (`rows`) and of units of right columns in the tile.
        unit, group: its first unit of right columns, and its group of left columns.
        inner: the number of packed words of k (the rows).
        """
        code, sizes = self.code, self.sizes
        itemsize, vector_bytes = sizes.itemsize, sizes.width * sizes.itemsize
        row = code.mul(code.add(group, self.argument("first_group")), code.number(sizes.group))
        column = code.mul(code.add(unit, self.argument("first_unit")), code.number(vector_bytes))
        stride, line = self.argument("total_stride"), self.total_at(row, column)
        lines = [code.at(line, code.mul(stride, code.number(index))) for index in range(shape.rows)]
        # The total of a large matrix is in a far cache: it is fetched while the products are computed.
        for pointer in lines:
            for index in range(shape.units):
                code.prefetch(code.at(pointer, index * vector_bytes), is_written=True)
        left = code.at(self.pointer("packed_left"), code.mul(group, code.number(sizes.group_bytes)))
        sums = accumulate(
            code,
            shape,
            LeftOperand((left,), self.kind.left_bytes, sizes.group * self.kind.left_bytes),
            code.at(self.pointer("packed_right"), code.mul(unit, code.number(sizes.unit_bytes))),
            self.kind,
            inner=inner,
            gates=1,
            width=sizes.width,
            unit_bytes=sizes.unit_bytes,
            ahead=self.next_row(shape, unit, group),
        )
        for units, pointer in zip(sums, lines, strict=True):
            for index, (value,) in enumerate(units):
                target = code.at(pointer, index * vector_bytes)
                code.write(code.fadd(code.read(value.type, target, itemsize), value), target, itemsize)
