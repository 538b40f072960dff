"""The microkernel: rows of a left side times packed parameters, summed on registers.

A tile is some rows by some unit blocks by all gates, one vector accumulator each. Every accumulator is one
chain of additions over k in order, whatever the tile, so every tile gives the same bits.

    per k:  gates x units vectors of parameters are read, `rows` numbers of the left side are spread over a
            vector each, and rows x units x gates fused multiply-adds follow: with 8 x 1 x 3 vectors of
            16 floats, 11 reads feed 24 multiply-adds, which is what the processor can keep up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from llvmlite import ir

from stepnet.engines.llvm.products.arithmetic import Arithmetic, bytes_of
from stepnet.engines.llvm.products.tiles import Tile
from stepnet.engines.llvm.writing.code import Code, vector_of

Sums = list[list[list[ir.Value]]]
UNROLLED, FEW = 4, 16
"""How many steps of k one turn of the loop takes, where k is a multiple of it, with fewer accumulators than
FEW. With more, half as many: a turn is long enough, and LLVM takes longer for long ones.
"""


@dataclass(frozen=True)
class Left:
    """The left side of a product at one tile: the pointer to its first row and the bytes from row to row, or
    a pointer to each row.

    step: the bytes from one k to the next; None where they lie side by side.
    """

    pointers: tuple[ir.Value, ...]
    stride: int = 0
    step: int | None = None

    def rows(self, code: Code, count: int, offset: ir.Value) -> list[tuple[ir.Value, int]]:
        """So many rows at an offset: for each a pointer, and how many bytes behind it the row is."""
        pointers = [code.at(pointer, offset) for pointer in self.pointers]
        if len(pointers) == 1:
            return [(pointers[0], row * self.stride) for row in range(count)]
        return [(pointer, 0) for pointer in pointers]


def accumulate(
    code: Code,
    tile: Tile,
    left: Left,
    packed: ir.Value,
    kind: Arithmetic,
    *,
    inner: int | ir.Value,
    gates: int,
    width: int,
    line_bytes: int | None = None,
    unit_bytes: int | None = None,
    begun: Sums | None = None,
) -> Sums:
    """The accumulators [row][unit][gate] of a tile; `packed` points to its first unit block.

    kind: how numbers are multiplied. inner: how many words of k there are; a number that the code finds out
    is a multiple of `UNROLLED`, and not 0. line_bytes, unit_bytes: from one word of k, and from one unit
    block, to the next; None where they follow one another. begun: accumulators to go on with; None for zeros.
    """
    line_bytes = line_bytes or gates * width * kind.word_bytes
    if unit_bytes is None:
        assert isinstance(inner, int)
        unit_bytes = inner * line_bytes
    zero = code.splat(vector_of(kind.sums, width), 0)
    begun = begun or [[[zero] * gates for _ in range(tile.units)] for _ in range(tile.rows)]
    step = UNROLLED
    if isinstance(inner, int):
        most = UNROLLED if tile.rows * tile.units * gates < FEW else UNROLLED // 2
        step = next(size for size in (most, 2, 1) if inner % size == 0)
    turn = Turn(code, tile, left, packed, kind, gates, width, line_bytes, unit_bytes)
    flat = code.carry(0, inner, turn.flat(begun), partial(turn.summed, step), step=step, runs=True)
    return turn.by_place(flat)


@dataclass(frozen=True)
class Turn:
    """A turn of the loop over k: the sums of a tile with the products of a few words of k added."""

    code: Code
    tile: Tile
    left: Left
    packed: ir.Value
    kind: Arithmetic
    gates: int
    width: int
    line_bytes: int
    unit_bytes: int

    def flat(self, sums: Sums) -> list[ir.Value]:
        """Sums one after the other, as a loop carries them."""
        return [value for units in sums for gates in units for value in gates]

    def by_place(self, flat: Sequence[ir.Value]) -> Sums:
        """Sums as [row][unit][gate]."""
        values = iter(flat)
        shape = range(self.tile.rows), range(self.tile.units), range(self.gates)
        return [[[next(values) for _ in shape[2]] for _ in shape[1]] for _ in shape[0]]

    def summed(self, count: int, place: ir.Value, flat: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums with the products of `count` words of k added, from the word at a place on."""
        code, kind, tile = self.code, self.kind, self.tile
        sums = self.by_place(flat)
        k_bytes = kind.left_bytes if self.left.step is None else self.left.step
        weights = code.at(self.packed, code.mul(place, code.number(self.line_bytes)))
        pointers = self.left.rows(code, tile.rows, code.mul(place, code.number(k_bytes)))

        def add(row: int, unit: int, gate: int, numbers: list[ir.Value], column: list[ir.Value]) -> None:
            for number, own in zip(numbers, column, strict=True):
                sums[row][unit][gate] = kind.multiply_add(code, number, own, sums[row][unit][gate])

        columns = list(product(range(tile.units), range(self.gates)))
        for k in range(count):

            def numbers(row: int, ahead: int = k * k_bytes) -> list[ir.Value]:
                pointer, behind = pointers[row]
                return self.spread(code.at(pointer, behind + ahead))

            # What there are fewer of stays on registers: all columns, or the numbers of all rows.
            if tile.rows < len(columns):
                rows = [numbers(row) for row in range(tile.rows)]
                for unit, gate in columns:
                    column = self.column(weights, k, unit, gate)
                    for row, own in enumerate(rows):
                        add(row, unit, gate, own, column)
                continue
            parameters = [self.column(weights, k, unit, gate) for unit, gate in columns]
            for row in range(tile.rows):
                own = numbers(row)
                for (unit, gate), column in zip(columns, parameters, strict=True):
                    add(row, unit, gate, own, column)
        return self.flat(sums)

    def column(self, weights: ir.Value, k: int, unit: int, gate: int) -> list[ir.Value]:
        """The parameters of a gate of a unit block for the k-th word of the turn, unpacked."""
        vector_bytes = self.width * self.kind.word_bytes
        place = self.code.at(weights, unit * self.unit_bytes + k * self.line_bytes + gate * vector_bytes)
        return self.kind.unpacked(
            self.code, self.code.read(vector_of(self.kind.word, self.width), place, vector_bytes)
        )

    def spread(self, pointer: ir.Value) -> list[ir.Value]:
        """The numbers of the left side for a word of k, each in all elements of a vector."""
        code, itemsize = self.code, bytes_of(self.kind.number)
        places = (code.at(pointer, part * itemsize) for part in range(self.kind.parts))
        return [code.spread(code.read(self.kind.number, place, itemsize), self.width) for place in places]
