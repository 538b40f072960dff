"""The share of a thread in a tile of a product, from the sides that its block has put into shared memory.

    plain     by multiply-adds of the plain units: `across` x `along` numbers of a thread, in groups of up to
              16 bytes that neighbouring threads read side by side
    tensor    by the tensor cores: products of 16 x 8 numbers of a warp, in tf32 or bfloat16; float32 as three
              products of two numbers of tf32 each, which hold 21 of its 24 bits; one side of float32 and one
              of 16 bits as two such products, or as three of bfloat16, which hold all bits

Both sides lie by k: left[k][row], right[k][column], with 8 more numbers behind each k, so that the lanes of a
warp read from different banks.
"""

from collections.abc import Sequence
from itertools import product
from typing import Protocol

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, load_vector
from stepnet.compiler.targets.cuda.arrays.numbers_code import KernelNumbers
from stepnet.compiler.targets.cuda.arrays.product_form import (
    DEPTH,
    PADDING,
    TENSOR_WAYS,
    ProductTile,
    TensorWay,
)
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.writer import KernelWriter
from stepnet.compiler.values.records import dataclass

Operand = list[list[ir.Value]]
"""The registers of a lane for an operand of the tensor cores: the large numbers, and perhaps small ones."""
F32 = ir.FloatType()
QUAD = ir.LiteralStructType([F32] * 4)


class ThreadShare(Protocol):
    """Share of a thread in a tile: the numbers that it computes."""

    @property
    def count(self) -> int:
        """The numbers of a thread."""
        ...

    def place(self, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Writes the row and the column, within the tile, of a number of the thread."""
        ...

    def added(self, left: ir.Value, right: ir.Value, totals: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the products of `DEPTH` k, added to the sums so far. left, right: where the sides lie."""
        ...


@dataclass(frozen=True)
class PlainShare:
    """Share of a thread that multiplies by the plain units, one k after another."""

    numbers: KernelNumbers
    tile: ProductTile

    @property
    def count(self) -> int:
        """The numbers of a thread."""
        return self.tile.rows * self.tile.columns // (self.tile.down * self.tile.across)

    def group(self, count: int) -> int:
        """Returns the number of neighbouring numbers of a thread, of `count` along an axis."""
        return min(count, 4, 16 // size_of(self.numbers))

    def starts(self, index: ir.Value, count: int, threads: int) -> list[ir.Value]:
        """Writes where groups of thread `index` begin, of `threads` along an axis. count: its numbers."""
        writer, group = self.numbers.writer, self.group(count)
        first = writer.mul(index, writer.number(group))
        return [writer.add(first, writer.number(n * group * threads)) for n in range(count // group)]

    def axes(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """Writes where the groups of the thread's rows and columns begin."""
        writer, tile = self.numbers.writer, self.tile
        down, across = split(writer, writer.thread, tile.across)
        return (
            self.starts(down, tile.rows // tile.down, tile.down),
            self.starts(across, tile.columns // tile.across, tile.across),
        )

    def place(self, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Writes the row and the column, within the tile, of a number of the thread."""
        writer, tile = self.numbers.writer, self.tile
        threads = split(writer, writer.thread, tile.across)
        numbers = split(writer, number, tile.columns // tile.across)
        counts = tile.rows // tile.down, tile.columns // tile.across
        made = list[ir.Value]()
        for thread, own, count, sharing in zip(
            threads, numbers, counts, (tile.down, tile.across), strict=True
        ):
            group, place = split(writer, own, self.group(count))
            first = writer.add(writer.mul(group, writer.number(sharing)), thread)
            made.append(writer.add(writer.mul(first, writer.number(self.group(count))), place))
        return made[0], made[1]

    def added(self, left: ir.Value, right: ir.Value, totals: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the products of `DEPTH` k, added to the sums so far. left, right: where the sides lie."""
        tile, made = self.tile, [*totals]
        rows, columns = self.axes()
        for k in range(DEPTH):
            a = self.line(left, k, tile.rows, rows, self.group(tile.rows // tile.down))
            b = self.line(right, k, tile.columns, columns, self.group(tile.columns // tile.across))
            pairs = [(x, y) for x in a for y in b]
            made = [self.numbers.multiply_add(x, y, total) for (x, y), total in zip(pairs, made, strict=True)]
        return made

    def line(self, side: ir.Value, k: int, width: int, starts: list[ir.Value], group: int) -> list[ir.Value]:
        """Writes loads of the thread's numbers of one k of a side, whose lines have `width` numbers."""
        writer, size = self.numbers.writer, size_of(self.numbers)
        found = list[ir.Value]()
        for start in starts:
            offset = writer.mul(writer.add(start, writer.number(k * (width + PADDING))), writer.number(size))
            value = load_vector(writer, self.numbers.dtype, group, writer.at(side, offset), size * group)
            found += elements(writer, value, group)
        return found


@dataclass(frozen=True)
class TensorShare:
    """Share of a warp that multiplies by tensor cores. kind: one of `TENSOR_WAYS`."""

    numbers: KernelNumbers
    tile: ProductTile
    kind: str

    @property
    def way(self) -> TensorWay:
        """The numbers that it takes of both sides."""
        return TENSOR_WAYS[self.kind]

    @property
    def count(self) -> int:
        """The numbers of a lane."""
        return self.tile.rows * self.tile.columns // (self.tile.down * self.tile.across * LANES)

    def corners(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """Writes the first rows and the first columns of the warp's products of 16 x 8 numbers."""
        writer, tile = self.numbers.writer, self.tile
        warp = writer.lshr(writer.thread, writer.number(5))
        down, across = split(writer, warp, tile.across)
        made = list[list[ir.Value]]()
        for index, count, size in (
            (down, tile.rows // tile.down, 16),
            (across, tile.columns // tile.across, 8),
        ):
            first = writer.mul(index, writer.number(count))
            made.append([writer.add(first, writer.number(n)) for n in range(0, count, size)])
        return made[0], made[1]

    @property
    def lanes(self) -> tuple[ir.Value, ir.Value]:
        """The number of the lane's group of four lanes, and its number among those."""
        writer = self.numbers.writer
        return split(writer, writer.and_(writer.thread, writer.number(LANES - 1)), 4)

    def place(self, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Writes the row and the column, within the tile, of a number of the thread."""
        writer, (group, lane) = self.numbers.writer, self.lanes
        rows, columns = self.corners()
        product, quarter = split(writer, number, 4)
        down, across = split(writer, product, len(columns))
        below, beside = split(writer, quarter, 2)
        row = writer.add(writer.mul(down, writer.number(16)), writer.mul(below, writer.number(8)))
        column = writer.add(writer.mul(across, writer.number(8)), writer.mul(lane, writer.number(2)))
        return (
            writer.add(writer.add(rows[0], group), row),
            writer.add(writer.add(columns[0], beside), column),
        )

    def added(self, left: ir.Value, right: ir.Value, totals: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the products of `DEPTH` k, added to the sums so far. left, right: where the sides lie."""
        way, (rows, columns) = self.way, self.corners()
        depths = range(0, DEPTH, way.depth)
        b = [
            [self.operand(right, k, self.tile.columns, column, 1, way.right) for k in depths]
            for column in columns
        ]
        made = list[ir.Value]()
        for row in rows:
            a = [self.operand(left, k, self.tile.rows, row, 2, way.left) for k in depths]
            made += self.products(a, b)
        return [self.numbers.sum(total, x) for total, x in zip(totals, made, strict=True)]

    def products(self, left: list[Operand], rights: list[list[Operand]]) -> list[ir.Value]:
        """Writes the products of an operand of 16 rows with some of 8 columns, each given for every k: sums
        of their own, which the tensor cores round in their own way. The small products come before the large
        ones, and those of all columns beside each other, as one waits for the one before with the same sums.
        """
        writer = self.numbers.writer
        name = f"mma{self.way.depth}"
        quads: list[list[ir.Value]] = [[self.numbers.zero] * 4 for _ in rights]
        for terms in (self.way.small, [(0, 0)]):
            for k, (x, y) in product(range(len(left)), terms):
                for index, right in enumerate(rights):
                    made = writer.function_call(name, QUAD, [*left[k][x], *right[k][y], *quads[index]])
                    quads[index] = [writer.extract_value(made, n) for n in range(4)]
        return [number for quad in quads for number in quad]

    def operand(
        self, side: ir.Value, k: int, width: int, corner: ir.Value, count: int, terms: int
    ) -> Operand:
        """Writes loads of a lane's registers of an operand, for each of the numbers that one is made of.

        count: 2 for the left side, of 16 rows; 1 for the right one. terms: the numbers that one is made of.
        """
        writer, (group, place) = self.numbers.writer, self.lanes
        packed = self.way.depth // 8
        line = writer.mul(writer.mul(place, writer.number(packed)), writer.number(width + PADDING))
        first = writer.add(line, writer.add(corner, group))

        def number(k_there: int, more: int) -> ir.Value:
            """Writes a load of the number of a k, `more` rows or columns on."""
            index = writer.add(first, writer.number((k + k_there) * (width + PADDING) + more))
            return self.numbers.read("float32", side, index)

        half = 4 * packed
        places = [(k_there, 8 * n) for k_there in (0, half) for n in range(count)]
        if packed == 1:
            return self.in_tf32([number(*place) for place in places], terms)
        return self.in_bfloat16(
            [[number(k_there, more), number(k_there + 1, more)] for k_there, more in places], terms
        )

    def in_tf32(self, numbers: list[ir.Value], terms: int) -> Operand:
        """Writes numbers as one or two of tf32: rounded, and what that leaves."""
        writer = self.numbers.writer
        near = [writer.function_call("tf32", F32, [x]) for x in numbers]
        if terms == 1:  # which takes some NaN for 0
            are_nan = [writer.fcmp_unordered("uno", x, x) for x in numbers]
            return [[writer.select(*each) for each in zip(are_nan, numbers, near, strict=True)]]
        return [near, [self.shortened(writer.fsub(x, y)) for x, y in zip(numbers, near, strict=True)]]

    def in_bfloat16(self, pairs: list[list[ir.Value]], terms: int) -> Operand:
        """Writes pairs of numbers as one of bfloat16, rounded, or as the three that they are the sum of."""
        writer = self.numbers.writer
        if terms == 1:
            return [[writer.function_call("pack", F32, pair) for pair in pairs]]
        found: Operand = []
        for _ in range(terms):
            found.append([writer.function_call("pack_cut", F32, pair) for pair in pairs])
            pairs = [[writer.fsub(x, writer.function_call("cut", F32, [x])) for x in pair] for pair in pairs]
        return found

    def shortened(self, value: ir.Value) -> ir.Value:
        """Writes the part of a number that tensor cores read: 10 bits of its mantissa. NaN stays NaN."""
        writer = self.numbers.writer
        return writer.bitcast(writer.and_(writer.bitcast(value, I32), ir.Constant(I32, -8192)), F32)


def has_small(way: str) -> bool:
    """Tells whether a way of multiplying splits each float32 number into a sum of several smaller ones."""
    return way in TENSOR_WAYS and bool(TENSOR_WAYS[way].small)


def size_of(numbers: KernelNumbers) -> int:
    """Returns the bytes of a number."""
    return np.dtype(numbers.dtype).itemsize


def split(writer: KernelWriter, number: ir.Value, size: int) -> tuple[ir.Value, ir.Value]:
    """Writes the quotient and the remainder of a number divided by a power of two."""
    shift = writer.number(size.bit_length() - 1)
    return writer.lshr(number, shift), writer.and_(number, writer.number(size - 1))


def elements(writer: KernelWriter, value: ir.Value, count: int) -> list[ir.Value]:
    """Writes the elements of a vector; of a scalar there is one."""
    if count == 1:
        return [value]
    return [writer.extract_element(value, ir.Constant(I32, n)) for n in range(count)]
