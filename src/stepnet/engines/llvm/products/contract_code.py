"""The code of the contract kernel; see `contract`."""

from llvmlite import ir

from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.arithmetic import plain
from stepnet.engines.llvm.products.contract import WORD, Sizes
from stepnet.engines.llvm.products.tile import UNROLLED, Left, accumulate
from stepnet.engines.llvm.products.tiles import Tile
from stepnet.engines.llvm.writing.code import I64, POINTER, Code, load_vector, store_vector
from stepnet.net.totals import BLOCK


def write_contract(target: Target, dtype: str) -> ir.Module:
    """The module of the function `contract`, for numbers of a dtype."""
    module = ir.Module("contract")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "contract")
    code = Code(function.append_basic_block("entry"), target)
    ContractCode(code, Sizes(target, dtype), function.args[0]).write()
    return module


class ContractCode:
    """The code of one thread's share."""

    def __init__(self, code: Code, sizes: Sizes, words: ir.Value) -> None:
        self.code, self.sizes, self.words = code, sizes, words

    def word(self, name: str) -> ir.Value:
        """A word as a number."""
        return self.code.read(I64, self.code.at(self.words, 8 * WORD[name]), 8)

    def pointer(self, name: str) -> ir.Value:
        """A word as a pointer."""
        return self.code.inttoptr(self.word(name), POINTER)

    def write(self) -> None:
        """All blocks of rows, one after the other."""
        code = self.code
        last = self.word("last_row")
        with code.loop(self.word("first_row"), last, BLOCK) as first:
            count = code.smaller(code.sub(last, first), code.number(BLOCK))
            whole = code.mul(
                code.sdiv(code.add(count, code.number(UNROLLED - 1)), code.number(UNROLLED)),
                code.number(UNROLLED),
            )
            self.pack("left", "group", self.sizes.group, self.sizes.group_bytes, first, count, whole)
            self.pack("right", "unit", self.sizes.width, self.sizes.unit_bytes, first, count, whole)
            self.multiply(whole)
        code.ret(code.number(0))

    # ---- packing

    def pack(
        self,
        side: str,
        part: str,
        part_columns: int,
        part_bytes: int,
        first: ir.Value,
        count: ir.Value,
        whole: ir.Value,
    ) -> None:
        """Packs `count` rows of one side, and zeros behind them up to `whole`."""
        code, itemsize = self.code, self.sizes.itemsize
        source, places, stride = self.pointer(side), self.pointer("places"), self.word(f"{side}_stride")
        target = self.pointer(f"packed_{side}")
        begin, end = self.word(f"first_{part}"), self.word(f"last_{part}")
        columns = code.sub(self.word(f"{side}_columns"), code.mul(begin, code.number(part_columns)))
        full = code.smaller(code.sdiv(columns, code.number(part_columns)), code.sub(end, begin))
        rest = code.smaller(columns, code.mul(code.sub(end, begin), code.number(part_columns)))
        row_bytes = part_columns * itemsize
        first_byte = code.mul(begin, code.number(row_bytes))

        def packed(place: ir.Value, row: ir.Value) -> ir.Value:
            inside = code.at(target, code.mul(place, code.number(part_bytes)))
            return code.at(inside, code.mul(row, code.number(row_bytes)))

        with code.loop(code.number(0), count) as row:
            place = code.read_number(places, code.add(first, row))
            line = code.at(code.at(source, code.mul(place, stride)), first_byte)
            with code.loop(code.number(0), full) as number:
                there = code.at(line, code.mul(number, code.number(row_bytes)))
                value = load_vector(code, self.sizes.dtype, part_columns, there, itemsize)
                store_vector(code, self.sizes.dtype, value, packed(number, row), itemsize)
            with code.loop(code.mul(full, code.number(part_columns)), rest) as column:
                value = load_vector(
                    code,
                    self.sizes.dtype,
                    1,
                    code.at(line, code.mul(column, code.number(itemsize))),
                    itemsize,
                )
                within = code.mul(code.srem(column, code.number(part_columns)), code.number(itemsize))
                store_vector(code, self.sizes.dtype, value, code.at(packed(full, row), within), itemsize)
        with code.loop(count, whole) as row, code.loop(code.number(0), code.sub(end, begin)) as number:
            code.zero_bytes(packed(number, row), row_bytes)

    # ---- multiplying

    def multiply(self, inner: ir.Value) -> None:
        """Adds the product of the packed sides to the total: by wide tiles, and one unit at a time."""
        code, tile = self.code, self.sizes.tile
        units = code.sub(self.word("last_unit"), self.word("first_unit"))
        wide = code.mul(code.sdiv(units, code.number(tile.units)), code.number(tile.units))
        groups = code.sub(self.word("last_group"), self.word("first_group"))
        for shape, begin, end in ((tile, code.number(0), wide), (Tile(tile.rows, 1), wide, units)):
            with code.loop(begin, end, shape.units) as unit, code.loop(code.number(0), groups) as group:
                self.add_tile(shape, unit, group, inner)

    def add_tile(self, shape: Tile, unit: ir.Value, group: ir.Value, inner: ir.Value) -> None:
        """Adds one tile's sums to the total."""
        code, sizes = self.code, self.sizes
        itemsize, vector_bytes = sizes.itemsize, sizes.width * sizes.itemsize
        numbers = code.at(self.pointer("packed_left"), code.mul(group, code.number(sizes.group_bytes)))
        sums = accumulate(
            code,
            shape,
            Left((numbers,), itemsize, sizes.group * itemsize),
            code.at(self.pointer("packed_right"), code.mul(unit, code.number(sizes.unit_bytes))),
            plain(sizes.dtype),
            inner=inner,
            gates=1,
            width=sizes.width,
            unit_bytes=sizes.unit_bytes,
        )
        row = code.mul(code.add(group, self.word("first_group")), code.number(sizes.group))
        column = code.mul(code.add(unit, self.word("first_unit")), code.number(vector_bytes))
        stride = self.word("total_stride")
        line = code.at(code.at(self.pointer("total"), code.mul(row, stride)), column)
        for units in sums:
            for place, (value,) in enumerate(units):
                there = code.at(line, place * vector_bytes)
                code.write(code.fadd(code.read(value.type, there, itemsize), value), there, itemsize)
            line = code.at(line, stride)
