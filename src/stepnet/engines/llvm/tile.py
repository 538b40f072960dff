"""The microkernel: rows of a left side times packed parameters, summed on registers.

A tile is some rows by some unit blocks by all gates, one vector accumulator each. Every accumulator is one
chain of additions over k in order, whatever the tile, so every tile gives the same bits.

    per k:  gates x units vectors of parameters are read, `rows` numbers of the left side are spread over a
            vector each, and rows x units x gates fused multiply-adds follow: with 8 x 1 x 3 vectors of
            16 floats, 11 reads feed 24 multiply-adds, which is what the processor can keep up.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.code import I64, Code, element_type, is_float, register_type
from stepnet.engines.llvm.tiles import Tile

Sums = list[list[list[ir.Value]]]
UNROLLED = 4
"""How many steps of k one turn of the loop takes, where k is a multiple of it."""


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
    *,
    inner: int | ir.Value,
    gates: int,
    dtype: str,
    width: int,
    unit_bytes: int | None = None,
    begun: Sums | None = None,
) -> Sums:
    """The accumulators [row][unit][gate] of a tile; `packed` points to its first unit block.

    inner: how many k there are; one that the code finds out is a multiple of `UNROLLED`, and not 0.
    unit_bytes: from one unit block to the next; None where they follow one another. begun: accumulators to
    go on with; None for zeros.
    """
    vector = register_type(dtype, width)
    element = element_type(vector)
    itemsize = np.dtype(dtype).itemsize
    zero = code.splat(vector, 0)
    k_bytes = itemsize if left.step is None else left.step
    if isinstance(inner, int) and inner == 0:
        return begun or [[[zero] * gates for _ in range(tile.units)] for _ in range(tile.rows)]
    step = UNROLLED
    if isinstance(inner, int):
        step = next(size for size in (UNROLLED, 2, 1) if inner % size == 0)
    before, body, after = code.block, code.append_basic_block("k"), code.append_basic_block("summed")
    code.branch(body)
    code.position_at_end(body)
    place = code.phi(I64)
    place.add_incoming(code.number(0), before)
    carried = [
        [[code.phi(vector) for _ in range(gates)] for _ in range(tile.units)] for _ in range(tile.rows)
    ]
    sums: Sums = [[[*gates] for gates in units] for units in carried]
    weights = code.at(packed, code.mul(place, code.number(gates * width * itemsize)))
    numbers = left.rows(code, tile.rows, code.mul(place, code.number(k_bytes)))
    vector_bytes = width * itemsize
    if unit_bytes is None:
        assert isinstance(inner, int)
        unit_bytes = inner * gates * vector_bytes

    def parameter(k: int, unit: int, gate: int) -> ir.Value:
        offset = unit * unit_bytes + (k * gates + gate) * vector_bytes
        return code.read(vector, code.at(weights, offset), vector_bytes)

    for k in range(step):
        columns = [[parameter(k, unit, gate) for gate in range(gates)] for unit in range(tile.units)]
        for row, (pointer, behind) in enumerate(numbers):
            number = code.read(element, code.at(pointer, behind + k * k_bytes), itemsize)
            spread = code.spread(number, width)
            for unit, gate in product(range(tile.units), range(gates)):
                before_k = sums[row][unit][gate]
                sums[row][unit][gate] = multiply_add(code, spread, columns[unit][gate], before_k)
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


def multiply_add(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c for floats or integers."""
    return code.fused(a, b, c) if is_float(a) else code.add(code.mul(a, b), c)
