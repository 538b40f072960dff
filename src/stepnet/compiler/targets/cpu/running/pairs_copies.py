"""The machine code that copies values at the pairs of a tile to scratch memory or back; see `pairs`.

    array of all pairs       [query][key][head]
    scratch memory           [vector of columns][row][column]       of one head

Where rows are keys, the numbers of several rows lie beside each other in the array.
"""

from collections.abc import Iterator

from llvmlite import ir

from stepnet.compiler.targets.cpu.running.pairs_addresses import PairsAddresses, PairsTile
from stepnet.compiler.targets.cpu.writing.code import POINTER, load_vector, store_vector

Places = tuple[ir.Value, ir.Value, int]
"""The pointers to numbers in scratch memory and in the array, and how many lie beside each other in both."""


class PairsCopies:
    """Writer of the code that copies the value of a node, an input or the result, at the pairs of a tile."""

    def __init__(self, pairs: PairsAddresses, number: int, tile: PairsTile) -> None:
        """Prepares to write copies of a value at the pairs of a tile (its rows, such as queries, with their
        columns).

        pairs: writes the addresses of arrays and scratch memory. number: the node of the value, an input or
        the result. tile: the tile.
        """
        self.pairs, self.code, self.form, self.tile = pairs, pairs.code, pairs.form, tile
        self.number, self.type = number, pairs.body.type_of(number)
        self.array = pairs.made if number == self.form.result else pairs.inputs[number]
        self.starts = self.code.inttoptr(pairs.fixed["pair_starts"], POINTER)
        self.line, self.entry = self.form.width * self.type.itemsize, self.type.size * self.type.itemsize

    def gather(self) -> None:
        """Writes code that copies an input, with an entry for each pair of a query and a key, from its
        array to scratch memory: those pairs that are computed together.
        """
        for own, given, width in self.places():
            value = load_vector(self.code, self.type.dtype, width, given, 1)
            store_vector(self.code, self.type.dtype, value, own, 1)

    def scatter(self) -> None:
        """Writes code that copies the result, at the pairs of a tile, from scratch memory to its array."""
        for own, made, width in self.places():
            value = load_vector(self.code, self.type.dtype, width, own, 1)
            store_vector(self.code, self.type.dtype, value, made, 1)

    def places(self) -> Iterator[Places]:
        """Writes loops over the pairs; yields places, for which the caller writes the copy."""
        return self.by_column() if self.form.is_turned else self.by_row()

    def in_array(self, pair: ir.Value) -> ir.Value:
        """Writes the pointer to the number of the task's head at a pair."""
        return self.pairs.at_entry(self.array, pair, self.type.size, 1, self.type.itemsize)

    def by_row(self) -> Iterator[Places]:
        """Writes loops over the pairs of a tile whose rows are queries: over the keys of each query, whole
        vectors of them, then the others one by one. Yields, for which the caller writes the copy, the
        pointers to numbers in scratch memory and in the array, and how many lie side by side in both.
        """
        code, form, size = self.code, self.form, self.type.itemsize
        width, zero = code.number(form.width), code.number(0)
        with code.loop(zero, self.tile.rows) as row:
            given = self.in_array(code.read_number(self.starts, code.add(self.tile.row, row)))
            _, columns = self.pairs.range_of(self.tile, row)
            whole = code.sdiv(columns, width)
            line = code.mul(row, code.number(self.line))
            with code.loop(zero, whole) as block:
                own = code.at(self.pairs.pairs_block(self.number, block), line)
                first = code.at(given, code.mul(block, code.number(form.width * self.entry)))
                if self.type.size == 1:
                    yield own, first, form.width
                else:
                    for column in range(form.width):
                        yield code.at(own, column * size), code.at(first, column * self.entry), 1
            own = code.at(self.pairs.pairs_block(self.number, whole), line)
            with code.loop(code.mul(whole, width), columns) as column:
                place = code.mul(code.srem(column, width), code.number(size))
                yield code.at(own, place), code.at(given, code.mul(column, code.number(self.entry))), 1

    def by_column(self) -> Iterator[Places]:
        """Writes loops over the pairs of a tile whose rows are keys: over the keys that each query has, all
        at once if it has the whole tile, or one by one. Yields, for which the caller writes the copy, the
        pointers to numbers in scratch memory and in the array, and how many lie side by side in both.
        """
        code, form, tile = self.code, self.form, self.tile
        width, most = code.number(form.width), code.number(form.tile.rows)
        begin, _ = self.pairs.range_of(tile, code.number(0))
        with code.loop(begin, tile.columns) as column:
            start = code.read_number(self.starts, code.add(self.pairs.task["column"], column))
            given = self.in_array(code.add(start, tile.within))
            place = code.mul(code.srem(column, width), code.number(self.type.itemsize))
            own = code.at(self.pairs.pairs_block(self.number, code.sdiv(column, width)), place)
            rows = tile.rows
            if form.is_causal:
                rows = code.smaller(rows, code.add(code.sub(column, tile.within), code.number(1)))
            is_whole = code.icmp_signed("==", rows, most)
            with code.when(is_whole):
                for row in range(form.tile.rows):
                    yield code.at(own, row * self.line), code.at(given, row * self.entry), 1
            with code.when(code.not_(is_whole)), code.loop(code.number(0), rows) as row:
                yield (
                    code.at(own, code.mul(row, code.number(self.line))),
                    code.at(given, code.mul(row, code.number(self.entry))),
                    1,
                )
