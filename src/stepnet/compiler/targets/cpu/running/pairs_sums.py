"""The machine code of weighted sums over the columns of a tile of rows; see `pairs`.

    columns        0 . . . 16 . . . 32 . .          whole vectors of columns, others one by one
    causal rows    x x x x x x x x x x              the last columns, which some rows have, row by row
                   x x x x x x x x x x x

A row's sum is one chain over its own columns in order, and reads no other column: not-a-number at a later
step reaches no earlier one.
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.products.tile import LeftOperand, Sums, TileIteration
from stepnet.compiler.targets.cpu.products.tiles import Tile
from stepnet.compiler.targets.cpu.running.pairs_addresses import PairsAddresses, PairsTile


class MixCode:
    """Writer of the code that sums weighted values over the columns of a tile, for vectors of features."""

    def __init__(
        self, pairs: PairsAddresses, number: int, tile: PairsTile, units: int, offset: ir.Value
    ) -> None:
        """Prepares to write the weighted sums, over the columns of a tile (such as the keys of its queries),
        of some vectors of features.

        pairs: writes the addresses of values and scratch memory. number: the node of the sums. tile: a few
        rows with all their columns.
        units: the number of vectors of features. offset: the bytes of the vectors ahead of them.
        """
        self.pairs, self.code, self.form, self.tile = pairs, pairs.code, pairs.form, tile
        self.weights = pairs.body.nodes[number].inputs[0]
        self.values = pairs.code.at(pairs.scratch["values", number], offset)
        self.shape = Tile(self.form.tile.rows, units)

    def iteration(self, block: ir.Value) -> TileIteration:
        """Writes the pointers to the weights and values of a vector of columns (such as keys); returns the
        writer of the products of a register tile with these. block: the index of the vector.
        """
        code, form = self.code, self.form
        line = form.width * form.itemsize
        values = code.at(self.values, code.mul(block, code.number(form.width * form.units * line)))
        left = LeftOperand((self.pairs.pairs_block(self.weights, block),), line)
        return TileIteration(
            code, self.shape, left, values, self.pairs.kind, 1, form.width, form.units * line, line
        )

    def sums(self) -> Sums:
        """Writes the weighted sums over all columns of the rows of a tile: over the columns that all rows
        have, and in causal attention over those that only some rows have, ahead of or behind these. Returns
        the sums, [row][vector of features][1].
        """
        code, form, tile = self.code, self.form, self.tile
        zero = code.splat(ir.VectorType(self.pairs.kind.sums, form.width), 0)
        flat: list[ir.Value] = [zero] * (self.shape.rows * self.shape.units)
        last = code.sub(tile.rows, code.number(1))
        begin, _ = self.pairs.range_of(tile, last)
        _, end = self.pairs.range_of(tile, code.number(0))
        if form.is_causal and form.is_turned:
            flat = self.some(self.pairs.range_of(tile, code.number(0))[0], begin, flat)
        flat = self.all(begin, end, flat)
        if form.is_causal and not form.is_turned:
            flat = self.some(end, tile.columns, flat)
        return self.iteration(code.number(0)).nested(flat)

    def all(self, begin: ir.Value, end: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
        """Writes the weighted sums over the columns from `begin` to `end`, which all rows of a tile have: in
        whole vectors of columns, and one by one ahead of and behind these. Returns the new sums, in one list.
        flat: the sums so far.
        """
        code, width = self.code, self.code.number(self.form.width)
        first, last = self.pairs.blocks(begin), code.sdiv(end, width)
        if self.form.is_turned and self.form.is_causal:
            flat = self.single(begin, code.smaller(code.mul(first, width), end), flat)

        def block(number: ir.Value, own: list[ir.Value]) -> list[ir.Value]:
            """Writes the sums `own` with vector `number` of columns added; returns them."""
            iteration = self.iteration(code.add(first, number))
            return code.carry(
                0, self.form.width, own, lambda k, sums: iteration.summed(2, k, sums), step=2, runs=True
            )

        flat = code.carry(0, code.sub(last, first), flat, block)
        rest = code.mul(last, width)
        if self.form.is_turned and self.form.is_causal:
            rest = code.select(code.icmp_signed("<", last, first), end, rest)
        return self.single(rest, end, flat)

    def single(self, begin: ir.Value, end: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
        """Writes the weighted sums over the columns from `begin` to `end`, which all rows of a tile have, one
        column at a time; returns the new sums, in one list. flat: the sums so far.
        """
        code, width = self.code, self.code.number(self.form.width)

        def column(number: ir.Value, own: list[ir.Value]) -> list[ir.Value]:
            """Writes the sums with another column added; returns them. number: the position of the column,
            counted from `begin`. own: the sums before it.
            """
            place = code.add(begin, number)
            return self.iteration(code.sdiv(place, width)).summed(1, code.srem(place, width), own)

        return code.carry(0, code.sub(end, begin), flat, column)

    def some(self, begin: ir.Value, end: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
        """Writes the weighted sums over the columns from `begin` to `end`, which only some rows of a tile
        have, as in causal attention; the sums of other rows stay as they are. Returns the new sums, in one
        list. flat: the sums so far.
        """
        code, width = self.code, self.code.number(self.form.width)
        rows = [self.pairs.row_in(self.tile, row) for row in range(self.shape.rows)]
        ranges = [self.pairs.range_of(self.tile, code.sub(row, self.tile.row)) for row in rows]

        def column(number: ir.Value, own: list[ir.Value]) -> list[ir.Value]:
            """Writes the sums with another column added, for the rows that have it; returns all sums. number:
            the position of the column, counted from `begin`. own: the sums before it.
            """
            place = code.add(begin, number)
            made = self.iteration(code.sdiv(place, width)).summed(1, code.srem(place, width), own)
            chosen = list[ir.Value]()
            for row, (first, last) in enumerate(ranges):
                has = code.and_(code.icmp_signed("<=", first, place), code.icmp_signed("<", place, last))
                chosen += [
                    code.select(has, made[n], own[n])
                    for n in range(row * self.shape.units, (row + 1) * self.shape.units)
                ]
            return chosen

        return code.carry(0, code.sub(end, begin), flat, column)
