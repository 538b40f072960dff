"""The contract kernel: the sum over all rows of the outer products of two vectors, as a product of matrices.

    left [rows, m], right [rows, n]   ->   left.T @ right, [m, n]

    rows 0..255     pack left    [column group][row][8 columns]
                    pack right   [unit block][row][element]
                    tiles        8 columns by 3 unit blocks, a vector accumulator each   ->   added to the sum
    rows 256..511   the same

Rows are read where they lie, by their places. Each number of the result is the sum of one chain for each
block of rows, added block by block: it depends on the rows in their order, and on nothing else. Threads share
out the result, so that each tile is one thread's.
"""

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.arithmetic import plain
from stepnet.engines.llvm.build import MachineCode, NativeFunction
from stepnet.engines.llvm.code import I64, POINTER, Code, load_vector, store_vector
from stepnet.engines.llvm.memory import POOL, pointer
from stepnet.engines.llvm.records import LINE
from stepnet.engines.llvm.target import Target
from stepnet.engines.llvm.tile import UNROLLED, Left, Tile, accumulate, tiles
from stepnet.engines.llvm.workers import Work
from stepnet.engines.threads import threads
from stepnet.net.totals import BLOCK
from stepnet.net.totals import contract as contract_in_numpy

Array = np.ndarray
ARRAYS = ("left", "left_stride", "right", "right_stride", "total")
WORDS = (
    *ARRAYS,
    "first_row",
    "last_row",
    "places",
    "left_columns",
    "right_columns",
    "first_group",
    "last_group",
    "first_unit",
    "last_unit",
    "total_stride",
    "packed_left",
    "packed_right",
)
"""What describes the work of one thread, 64 bits each: first what differs from call to call. Columns of the
left side come in groups, those of the right side in units of a vector; a thread has some groups of some of
the units.
"""
WORD = {name: place for place, name in enumerate(WORDS)}
DTYPES = ("float32", "float64")
AT_ONCE = 2**31
"""After so many multiply-adds, hundredths of a second, the code comes back, so that an interrupt arrives."""
SHARED = 2**22
"""Threads share a contract only if it has so many multiply-adds: some 20 microseconds of work."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of packed blocks for a target and a dtype.

    A group, and a unit, ends with a line more than it needs: the same row of each would lie at the same place
    of the cache.
    """

    target: Target
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.dtype).itemsize

    @property
    def width(self) -> int:
        """Numbers of a vector: columns of a unit."""
        return self.target.vector_bytes // self.itemsize

    @property
    def tile(self) -> Tile:
        """The tile for most of the work: its rows are the columns of a group."""
        return tiles(self.target, 1, 3)[0]

    @property
    def group(self) -> int:
        """Columns of the left side that are packed together."""
        return self.tile.rows

    @property
    def group_bytes(self) -> int:
        """From one packed group to the next."""
        return BLOCK * self.group * self.itemsize + LINE

    @property
    def unit_bytes(self) -> int:
        """From one packed unit to the next."""
        return BLOCK * self.width * self.itemsize + LINE


@cache
def kernel(target: Target, dtype: str) -> NativeFunction:
    """The machine code for a dtype: one for all shapes."""
    module = ir.Module("contract")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "contract")
    ContractCode(
        Code(function.append_basic_block("entry"), target), Sizes(target, dtype), function.args[0]
    ).write()
    return MachineCode(module, target).function("contract", ctypes.c_int64)


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


# ---- calling it --------------------------------------------------------------------------------------------


def contract(left: Array, right: Array, places: Array | None, target: Target) -> Array:
    """The sum over rows of the outer products of vectors: [..., m] and [..., n] give [m, n].

    places: the rows that count, in the order in which they are added; None for all.
    """
    same = left.dtype == right.dtype and left.dtype.name in DTYPES
    sizes = left.shape[-1], right.shape[-1]
    if places is not None and (left.ndim > 2 or not same):
        left, right, places = left[places], right[places], None
    if not same or not all(sizes):
        return contract_in_numpy(left, right)
    left, right = (np.ascontiguousarray(array.reshape(-1, array.shape[-1])) for array in (left, right))
    if places is None:
        places = np.arange(len(left))
    prepared = Contract(left.shape[1], right.shape[1], left.dtype.name, places, target)
    total = prepared(left, right)
    prepared.release()
    return total


def can_be_kept(left: Array, right: Array) -> bool:
    """Whether contracts of such sides have a form that can be kept: flat ones of one dtype."""
    same = left.dtype == right.dtype and left.dtype.name in DTYPES
    flat = left.ndim == right.ndim == 2 and left.shape[1] > 0 and right.shape[1] > 0
    return same and flat and left.flags.c_contiguous and right.flags.c_contiguous


class Contract:
    """What runs contracts of one form: memory, and the words of each thread.

    left, right: columns of the sides. places: the rows that count, in their order.
    """

    def __init__(self, left: int, right: int, dtype: str, places: Array, target: Target) -> None:
        self.columns, self.dtype = (left, right), dtype
        self.places = np.ascontiguousarray(places, np.int64)
        self.sizes = Sizes(target, dtype)
        groups, units = -(-left // self.sizes.group), -(-right // self.sizes.width)
        whole = groups * self.sizes.group, units * self.sizes.width
        self.total_columns = whole[1]
        self.padded = None if whole == self.columns else np.zeros(whole, dtype)
        count = threads() if len(places) * left * right >= SHARED else 1
        self.rows_at_once = max(1, AT_ONCE // (left * right * BLOCK)) * BLOCK
        self.held: list[Array] = []
        self.words = np.stack([self.share(*part) for part in parts(groups, units, count)])
        self.work = Work(kernel(target, dtype), self.words)

    def share(self, groups: tuple[int, int], units: tuple[int, int]) -> Array:
        """The words of a thread that has these groups and units."""
        sizes = self.sizes
        packed = [
            POOL.take((groups[1] - groups[0]) * sizes.group_bytes, zeroed=False),
            POOL.take((units[1] - units[0]) * sizes.unit_bytes, zeroed=False),
        ]
        self.held += packed
        words = np.zeros(len(WORDS), np.int64)
        described = {
            "places": pointer(self.places),
            "left_columns": self.columns[0],
            "right_columns": self.columns[1],
            "first_group": groups[0],
            "last_group": groups[1],
            "first_unit": units[0],
            "last_unit": units[1],
            "total_stride": self.total_columns * self.sizes.itemsize,
            "packed_left": pointer(packed[0]),
            "packed_right": pointer(packed[1]),
        }
        for name, value in described.items():
            words[WORD[name]] = value
        return words

    def __call__(self, left: Array, right: Array, out: Array | None = None) -> Array:
        """The sum for these sides, [rows, columns]; put into `out`, a C-contiguous array, if there is one."""
        made = np.empty(self.columns, self.dtype) if out is None else out
        total = made if self.padded is None else self.padded
        total[...] = 0
        arrays = pointer(left), left.strides[0], pointer(right), right.strides[0], pointer(total)
        self.words[:, : len(ARRAYS)] = arrays
        for first in range(0, len(self.places), self.rows_at_once):
            last = min(len(self.places), first + self.rows_at_once)
            self.words[:, len(ARRAYS) : len(ARRAYS) + 2] = first, last
            self.work()
        if total is not made:
            made[...] = total[: self.columns[0], : self.columns[1]]
        return made

    def release(self) -> None:
        """Gives back its memory: it is not called any more."""
        POOL.give_back(*self.held)
        self.held = []


def parts(groups: int, units: int, count: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The groups and units of each of at most `count` threads: the side with more of them is shared out.

    >>> parts(2, 7, 2)
    [((0, 2), (0, 6)), ((0, 2), (6, 7))]
    """
    if groups > units:
        return [((first, last), (0, units)) for first, last in ranges(groups, count, 1)]
    return [((0, groups), unit_range) for unit_range in ranges(units, count, 3)]


def ranges(size: int, count: int, multiple: int) -> list[tuple[int, int]]:
    """0..size in at most `count` ranges, all but the last of them multiples of `multiple`."""
    length = -(-size // (count * multiple)) * multiple
    return [(first, min(size, first + length)) for first in range(0, size, length)]
