"""The microkernel: rows of a left side times packed parameters, accumulated in registers.

A register tile is a number of rows by a number of unit blocks by all gates, with one vector accumulator for
each combination. Every accumulator adds over k in order, whatever the tile, so all tiles give the same bits.

    per k:  load gates x units vectors of parameters, broadcast `rows` elements of the left side, and do
            rows x units x gates fused multiply-adds. With 8 x 1 x 3 vectors of 16 floats, 11 loads feed
            24 multiply-adds, a ratio that the processor sustains. Fetch a line of the parameters of the
            tiles that follow, if they are not in the L2 cache.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.records import ADDRESS_BYTES, LINE
from stepnet.compiler.targets.cpu.products.arithmetic import Arithmetic, bytes_of
from stepnet.compiler.targets.cpu.products.tiles import Tile
from stepnet.compiler.targets.cpu.writing.code import POINTER, Code, vector_of
from stepnet.compiler.values.records import dataclass

Sums = list[list[list[ir.Value]]]
UNROLLED, FEW = 4, 16
"""The loop over k is unrolled by UNROLLED if a tile has fewer than FEW accumulators and k is a multiple. With
more accumulators it is unrolled by half of that: an iteration is long enough, and LLVM compiles it sooner.
"""


@dataclass(frozen=True)
class LeftOperand:
    """Addresses of the left operand of a tile.

    pointers: the pointer to the first row, or a pointer for each row.
    stride: the bytes from row to row, if there is a single pointer.
    step: the bytes from one k to the next; None if contiguous.
    pieces: the number of pieces of equal size in which each row lies; the pointers are then those to the
        addresses of the pieces of each row. 0 if rows lie in one piece.
    """

    pointers: tuple[ir.Value, ...]
    stride: int = 0
    step: int | None = None
    pieces: int = 0

    def rows(self, code: Code, count: int, offset: ir.Value) -> list[tuple[ir.Value, int]]:
        """Writes code for the addresses of the first `count` rows of the left operand, `offset` bytes from
        the start of each. Returns for each row a pointer, and a number of bytes to add to it.
        """
        pointers = [code.at(pointer, offset) for pointer in self.pointers]
        if len(pointers) == 1:
            return [(pointers[0], row * self.stride) for row in range(count)]
        return [(pointer, 0) for pointer in pointers]

    def piece(self, code: Code, number: ir.Value) -> "LeftOperand":
        """Writes loads of the addresses of a piece of all rows; returns the operand that consists of it."""
        places = code.mul(number, code.number(ADDRESS_BYTES))
        return LeftOperand(tuple(code.read(POINTER, code.at(row, places), 8) for row in self.pointers))


@dataclass(frozen=True)
class Ahead:
    """Packed parameters that a tile fetches into the L2 cache, for the tiles that follow.

    pointer: the first byte that this tile fetches.
    bytes: the bytes that it fetches for each packed word of k. At most two cache lines are fetched: with one
        tile the processor fetches the lines in between.
    """

    pointer: ir.Value
    bytes: ir.Value

    def fetch(self, code: Code, first: ir.Value, count: int) -> None:
        """Writes the prefetches of `count` packed words of k, from word `first` on, but the first one."""
        if count == 1:
            return
        with code.when(code.icmp_signed(">", self.bytes, code.number(LINE // count))):
            pointer = code.at(self.pointer, code.mul(first, self.bytes))
            for _ in range(1, count):
                pointer = code.at(pointer, self.bytes)
                code.prefetch(pointer, level=2)
        with code.when(code.icmp_signed(">", self.bytes, code.number(LINE))):
            pointer = code.at(self.pointer, code.mul(first, self.bytes))
            for _ in range(count):
                code.prefetch(code.at(pointer, LINE), level=2)
                pointer = code.at(pointer, self.bytes)

    def fetch_first(self, code: Code, first: ir.Value) -> None:
        """Writes the prefetch that belongs to the packed word `first` of k."""
        code.prefetch(code.at(self.pointer, code.mul(first, self.bytes)), level=2)


@dataclass(frozen=True)
class FetchList:
    """Memory that the elementwise work on a tile reads and writes, fetched while its products are computed.

    All at once, the prefetches would fill the processor's buffers for lines on their way, and stop it.

    pointer: the pointer to the list of addresses.
    entries: their number.
    words: the packed words of k during which they are fetched.
    begin: the number of these words before those of the product that fetches.
    """

    pointer: ir.Value
    entries: int
    words: int
    begin: ir.Value

    def fetch(self, code: Code, first: ir.Value, count: int) -> None:
        """Writes the prefetches that belong to `count` packed words of k, from word `first` on; none are run
        once the list is at its end.
        """
        each = min(self.entries, -(-self.entries * count // self.words))
        turns, word = -(-self.entries // each), code.add(self.begin, first)
        with code.when(code.icmp_signed("<", word, code.number(turns * count))):
            begin = code.mul(code.sdiv(word, code.number(count)), code.number(each))
            if self.entries % each:
                begin = code.smaller(begin, code.number(self.entries - each))
            places = code.at(self.pointer, code.mul(begin, code.number(ADDRESS_BYTES)))
            for index in range(each):
                code.prefetch(code.read(POINTER, code.at(places, index * ADDRESS_BYTES), ADDRESS_BYTES))


def accumulate(
    code: Code,
    tile: Tile,
    left: LeftOperand,
    packed: ir.Value,
    kind: Arithmetic,
    *,
    inner: int | ir.Value,
    gates: int,
    width: int,
    line_bytes: int | None = None,
    unit_bytes: int | None = None,
    initial: Sums | None = None,
    ahead: Sequence[Ahead | FetchList] = (),
) -> Sums:
    """Writes the inner loop of a matrix product, for one register tile: some rows of the left operand times
    some unit blocks (vectors of columns) of packed parameters. All its sums stay in registers.

    packed: the pointer to the tile's first unit block of packed parameters.
    kind: the encoding of the operands, and the instructions that multiply them.
    inner: the length of the summed axis k, in packed words (of one or more elements); if it is known only at
        run time, it must be a positive multiple of `UNROLLED`.
    gates, width: the number of products per unit, and the elements of a vector.
    line_bytes, unit_bytes: the bytes from one packed word of a column to the next, and from one unit block to
        the next; None if contiguous.
    initial: the initial values of the sums; None for zeros.
    ahead: the memory to fetch meanwhile.

    Returns the sums [row][unit block][gate], each a vector.
    """
    line_bytes = line_bytes or gates * width * kind.word_bytes
    if unit_bytes is None:
        assert isinstance(inner, int)
        unit_bytes = inner * line_bytes
    zero = code.splat(vector_of(kind.sums, width), 0)
    initial = initial or [[[zero] * gates for _ in range(tile.units)] for _ in range(tile.rows)]
    step = UNROLLED
    if isinstance(inner, int):
        most = UNROLLED if tile.rows * tile.units * gates < FEW else UNROLLED // 2
        inner //= left.pieces or 1
        step = next(size for size in (most, 2, 1) if inner % size == 0)
    iteration = TileIteration(code, tile, left, packed, kind, gates, width, line_bytes, unit_bytes, ahead)

    def summed(own: TileIteration, flat: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the loop over k, in one piece; returns the new sums. flat: the sums before."""
        return code.carry(0, inner, flat, partial(own.summed, step), step=step, runs=True)

    def piece(number: ir.Value, flat: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the products of one range of the left operand's elements that lie together (such as a step
        of a window); returns the new sums. flat: the sums before.
        """
        assert isinstance(inner, int)
        done = code.mul(number, code.number(inner))
        weights = code.at(packed, code.mul(done, code.number(line_bytes)))
        own = replace(iteration, left=left.piece(code, number), packed=weights, done=done)
        return summed(own, flat)

    flat = iteration.flat(initial)
    sums = code.carry(0, left.pieces, flat, piece) if left.pieces else summed(iteration, flat)
    return iteration.nested(sums)


@dataclass(frozen=True)
class TileIteration:
    """Iteration of the loop over k, which adds the products of a few words of k to a tile's accumulators.

    The fields are the parameters of `accumulate`.
    """

    code: Code
    tile: Tile
    left: LeftOperand
    packed: ir.Value
    kind: Arithmetic
    gates: int
    width: int
    line_bytes: int
    unit_bytes: int
    ahead: Sequence[Ahead | FetchList] = ()
    done: ir.Value | None = None

    def flat(self, sums: Sums) -> list[ir.Value]:
        """Flattens accumulators [row][unit block][gate] to a list, as the loop carries them."""
        return [value for units in sums for gates in units for value in gates]

    def nested(self, flat: Sequence[ir.Value]) -> Sums:
        """Arranges the sums of a tile (registers) from a flat list as [row][unit block][gate]: unit blocks
        are vectors of columns, gates the products computed together, as for a GRU.
        """
        values = iter(flat)
        shape = range(self.tile.rows), range(self.tile.units), range(self.gates)
        return [[[next(values) for _ in shape[2]] for _ in shape[1]] for _ in shape[0]]

    def summed(self, count: int, first: ir.Value, flat: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the products of `count` packed words of the summed axis k, from word `first` on, added to
        the sums of the tile; returns the new sums.

        flat: the sums so far, as a flat list of registers, as `flat` makes it.
        """
        code, kind, tile = self.code, self.kind, self.tile
        word = first if self.done is None else code.add(self.done, first)
        # First, because LLVM would sink multiply-adds past a condition, and sums would not fit.
        for ahead in self.ahead:
            ahead.fetch(code, word, count)
        sums = self.nested(flat)
        k_bytes = kind.left_bytes if self.left.step is None else self.left.step
        weights = code.at(self.packed, code.mul(first, code.number(self.line_bytes)))
        pointers = self.left.rows(code, tile.rows, code.mul(first, code.number(k_bytes)))

        def add(row: int, unit: int, gate: int, numbers: list[ir.Value], column: list[ir.Value]) -> None:
            """Adds the products of one packed word of a row and one of a vector of columns to their sum, that
            of row `row`, unit block (vector of columns) `unit` and gate (one of the products computed
            together, as for a GRU) `gate`.

            numbers, column: the elements of the left word, each broadcast to a vector, and the vectors of
                parameters that they are multiplied by.
            """
            for number, vector in zip(numbers, column, strict=True):
                sums[row][unit][gate] = kind.multiply_add(code, number, vector, sums[row][unit][gate])

        columns = list(product(range(tile.units), range(self.gates)))
        for k in range(count):

            def numbers(row: int, k_offset: int = k * k_bytes) -> list[ir.Value]:
                """Loads the elements of row `row` for the packed word at `k_offset`, each broadcast."""
                pointer, row_offset = pointers[row]
                return self.spread(code.at(pointer, row_offset + k_offset))

            # The smaller set stays in registers: the columns of parameters, or the elements of all rows.
            if tile.rows < len(columns):
                rows = [numbers(row) for row in range(tile.rows)]
                for unit, gate in columns:
                    column = self.column(weights, k, unit, gate)
                    for row, elements in enumerate(rows):
                        add(row, unit, gate, elements, column)
                continue
            parameters = [self.column(weights, k, unit, gate) for unit, gate in columns]
            for row in range(tile.rows):
                elements = numbers(row)
                for (unit, gate), column in zip(columns, parameters, strict=True):
                    add(row, unit, gate, elements, column)
        # Last, because LLVM does not move loads across a prefetch, and sums would not fit the registers.
        for ahead in self.ahead:
            if isinstance(ahead, Ahead):
                ahead.fetch_first(code, word)
        return self.flat(sums)

    def column(self, weights: ir.Value, k: int, unit: int, gate: int) -> list[ir.Value]:
        """Loads and unpacks the parameters by which the k-th packed word of the left operand, counted from
        that of the pointer `weights`, is multiplied, for one gate (one of the products computed together, as
        for a GRU) and one unit block (vector of columns).
        """
        vector_bytes = self.width * self.kind.word_bytes
        pointer = self.code.at(weights, unit * self.unit_bytes + k * self.line_bytes + gate * vector_bytes)
        return self.kind.unpacked(
            self.code, self.code.read(vector_of(self.kind.word, self.width), pointer, vector_bytes)
        )

    def spread(self, pointer: ir.Value) -> list[ir.Value]:
        """Loads the elements of the left operand for a packed word (one or more elements of the summed axis
        k) from a pointer on, each broadcast to a vector.
        """
        code, itemsize = self.code, bytes_of(self.kind.number)
        pointers = (code.at(pointer, vector * itemsize) for vector in range(self.kind.vectors_per_word))
        return [
            code.spread(code.read(self.kind.number, element_pointer, itemsize), self.width)
            for element_pointer in pointers
        ]
