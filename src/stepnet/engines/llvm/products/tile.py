"""The microkernel: rows of a left side times packed parameters, summed on registers.

A tile is some rows by some unit blocks by all gates, one vector accumulator each. Every accumulator is one
chain of additions over k in order, whatever the tile, so every tile gives the same bits.

    per k:  gates x units vectors of parameters are read, `rows` numbers of the left side are spread over a
            vector each, and rows x units x gates fused multiply-adds follow: with 8 x 1 x 3 vectors of
            16 floats, 11 reads feed 24 multiply-adds, which is what the processor can keep up.
"""

from dataclasses import dataclass
from itertools import product

from llvmlite import ir

from stepnet.engines.llvm.products.arithmetic import Arithmetic, bytes_of
from stepnet.engines.llvm.products.tiles import Tile
from stepnet.engines.llvm.writing.code import I64, Code, vector_of

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
    unit_bytes: int | None = None,
    begun: Sums | None = None,
) -> Sums:
    """The accumulators [row][unit][gate] of a tile; `packed` points to its first unit block.

    kind: how numbers are multiplied. inner: how many words of k there are; a number that the code finds out
    is a multiple of `UNROLLED`, and not 0. unit_bytes: from one unit block to the next; None where they
    follow one another. begun: accumulators to go on with; None for zeros.
    """
    vector, sum_type = vector_of(kind.word, width), vector_of(kind.sums, width)
    zero = code.splat(sum_type, 0)
    k_bytes = kind.left_bytes if left.step is None else left.step
    vector_bytes = width * kind.word_bytes
    if isinstance(inner, int) and inner == 0:
        return begun or [[[zero] * gates for _ in range(tile.units)] for _ in range(tile.rows)]
    step = UNROLLED
    if isinstance(inner, int):
        most = UNROLLED if tile.rows * tile.units * gates < FEW else UNROLLED // 2
        step = next(size for size in (most, 2, 1) if inner % size == 0)
    before, body, after = code.block, code.append_basic_block("k"), code.append_basic_block("summed")
    code.branch(body)
    code.position_at_end(body)
    place = code.phi(I64)
    place.add_incoming(code.number(0), before)
    carried = [
        [[code.phi(sum_type) for _ in range(gates)] for _ in range(tile.units)] for _ in range(tile.rows)
    ]
    sums: Sums = [[[*gates] for gates in units] for units in carried]
    weights = code.at(packed, code.mul(place, code.number(gates * vector_bytes)))
    numbers = left.rows(code, tile.rows, code.mul(place, code.number(k_bytes)))
    if unit_bytes is None:
        assert isinstance(inner, int)
        unit_bytes = inner * gates * vector_bytes

    def parameter(k: int, unit: int, gate: int) -> list[ir.Value]:
        offset = unit * unit_bytes + (k * gates + gate) * vector_bytes
        return kind.unpacked(code, code.read(vector, code.at(weights, offset), vector_bytes))

    def spread(pointer: ir.Value) -> list[ir.Value]:
        itemsize = bytes_of(kind.number)
        places = (code.at(pointer, part * itemsize) for part in range(kind.parts))
        return [code.spread(code.read(kind.number, place, itemsize), width) for place in places]

    def number(k: int, row: int) -> list[ir.Value]:
        pointer, behind = numbers[row]
        return spread(code.at(pointer, behind + k * k_bytes))

    def add(row: int, unit: int, gate: int, parts: list[ir.Value], column: list[ir.Value]) -> None:
        for part, own in zip(parts, column, strict=True):
            sums[row][unit][gate] = kind.multiply_add(code, part, own, sums[row][unit][gate])

    columns = list(product(range(tile.units), range(gates)))
    for k in range(step):
        # What there are fewer of stays on registers: all columns, or the numbers of all rows.
        if tile.rows < len(columns):
            rows = [number(k, row) for row in range(tile.rows)]
            for unit, gate in columns:
                column = parameter(k, unit, gate)
                for row, parts in enumerate(rows):
                    add(row, unit, gate, parts, column)
            continue
        parameters = [parameter(k, unit, gate) for unit, gate in columns]
        for row in range(tile.rows):
            parts = number(k, row)
            for (unit, gate), column in zip(columns, parameters, strict=True):
                add(row, unit, gate, parts, column)
    following = code.add(place, code.number(step))
    place.add_incoming(following, code.block)
    for row, unit, gate in product(range(tile.rows), range(tile.units), range(gates)):
        first = zero if begun is None else begun[row][unit][gate]
        carried[row][unit][gate].add_incoming(first, before)
        carried[row][unit][gate].add_incoming(sums[row][unit][gate], code.block)
    end = code.number(inner) if isinstance(inner, int) else inner
    code.cbranch(code.icmp_signed("<", following, end), body, after)
    code.position_at_end(after)
    return sums
