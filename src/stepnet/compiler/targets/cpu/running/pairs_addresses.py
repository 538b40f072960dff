"""Addresses in the code of operations at pairs: of arrays, tables and scratch memory; see `pairs`."""

from typing import NamedTuple

from llvmlite import ir

from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.cpu.products.arithmetic import plain
from stepnet.compiler.targets.cpu.running.pairs import FIXED
from stepnet.compiler.targets.cpu.running.pairs_form import PairsForm
from stepnet.compiler.targets.cpu.writing.code import POINTER, Code, load_vector


class PairsTile(NamedTuple):
    """A tile of a task: the number of its first row, the index of this in its sequence, the number of rows,
    and the number of columns that some row has.
    """

    row: ir.Value
    within: ir.Value
    rows: ir.Value
    columns: ir.Value


class PairsAddresses:
    """Writer of the addresses of numbers of a function for operations at pairs of steps.

    inputs, made: the pointers to the inputs of the body by node, and to the result.
    fixed, scratch: the arguments of `FIXED`, and the pointers to scratch memory, by use and node.
    task: the words of the task that is computed.
    """

    def __init__(self, code: Code, form: PairsForm, words: ir.Value) -> None:
        """Takes the builder of a function for operations at pairs of steps, the layout of its scratch memory
        (`form`), and the pointer to its argument words; writes loads of these: the pointers of values and of
        scratch memory.
        """
        self.code, self.form, self.body = code, form, form.body
        self.kind = plain(form.dtype)
        values, fixed = len(self.body.inputs), len(self.body.inputs) + 1
        pointers = [code.read(POINTER, code.at(words, 8 * place), 8) for place in range(fixed)]
        self.inputs, self.made = dict(zip(self.body.inputs, pointers, strict=False)), pointers[values]
        self.fixed = {
            name: code.read_number(words, code.number(fixed + place)) for place, name in enumerate(FIXED)
        }
        scratch = (code.number(fixed + len(FIXED) + place) for place in range(len(form.buffers)))
        self.task = dict[str, ir.Value]()
        self.scratch = {
            (own.use, own.node): code.inttoptr(code.read_number(words, place), POINTER)
            for own, place in zip(form.buffers, scratch, strict=True)
        }

    def at_entry(self, pointer: ir.Value, entry: ir.Value, lead: int, size: int, itemsize: int) -> ir.Value:
        """Writes the pointer to the numbers that a value has at an entry, such as a query, for the head that
        the current task computes.

        pointer: the array of the value. lead: the number of heads of the value; 1 if all heads share it.
        size, itemsize: how many numbers a head has, and the bytes of each.
        """
        code = self.code
        place = entry if lead == 1 else code.add(code.mul(entry, code.number(lead)), self.task["head"])
        return code.at(pointer, code.mul(place, code.number(size * itemsize)))

    def columns_of(self, row: ir.Value) -> ir.Value:
        """Writes a load of the number of columns that a query has."""
        return self.code.read_number(self.code.inttoptr(self.fixed["pair_lengths"], POINTER), row)

    def row_in(self, tile: PairsTile, row: int) -> ir.Value:
        """Writes the number, in the arrays of the call, of row `row` of a tile (some queries, or keys, of a
        sequence); for rows beyond the tile's last one, the number of that.
        """
        code = self.code
        return code.add(tile.row, code.smaller(code.number(row), code.sub(tile.rows, code.number(1))))

    def blocks(self, columns: ir.Value) -> ir.Value:
        """Writes the number of vectors that hold a number of columns (the keys of a query); returns it."""
        code, width = self.code, self.form.width
        return code.sdiv(code.add(columns, code.number(width - 1)), code.number(width))

    def pairs_block(self, number: int, block: ir.Value) -> ir.Value:
        """Writes the pointer to scratch memory that has the value of a node at pairs (rows with columns, as
        queries with keys): to one vector of columns, for all rows of a tile. number: the node. block: the
        index of the vector.
        """
        own = next(own for own in self.form.buffers if own[:2] == ("pairs", number))
        return self.code.at(
            self.scratch["pairs", number], self.code.mul(block, self.code.number(own.bytes_per_block))
        )

    def range_of(self, tile: PairsTile, row: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Writes the first column (such as a key) that row `row` of a tile is paired with, and the end of its
        columns; returns both. In causal attention, a query has only keys up to its own step.
        """
        code, form = self.code, self.form
        if not form.is_turned:
            return code.number(0), self.columns_of(code.add(tile.row, row))
        first = code.number(0)
        if form.is_causal:
            first = code.smaller(code.add(tile.within, row), tile.columns)
        return first, tile.columns

    def input_number(self, number: int, row: ir.Value) -> ir.Value:
        """Writes a load of the number that an input has at a row (such as a query), for the head that the
        current task computes. number: the node of the input, which has one number per row and head, or is a
        constant.
        """
        type_ = self.body.type_of(number)
        entry = self.code.number(0) if type_.extent == CONST else row
        pointer = self.at_entry(self.inputs[number], entry, type_.size, 1, type_.itemsize)
        return load_vector(self.code, type_.dtype, 1, pointer, type_.itemsize)
