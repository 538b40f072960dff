"""The context for writing the functions of a plan that run its call: its records, arrays and loops."""

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.emit.claims import Claims
from stepnet.compiler.targets.cpu.emit.stage import (
    AddressedRows,
    AddressRows,
    RowsInPlace,
    StageCode,
    StageRows,
)
from stepnet.compiler.targets.cpu.emit.thread_code import AtEntry, ThreadCode
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.machine.records import CallArray, Field, RowSource
from stepnet.compiler.targets.cpu.products.tiles import MOST_ROWS
from stepnet.compiler.targets.cpu.writing.code import Code


class CallCode(ThreadCode):
    """Function of a plan under construction, which runs a part of a call.

    program: the loops of the plan.
    arrays: the pointers to arrays of the call, by word.
    claims: writes loops whose work threads that share the steps claim from each other.
    """

    def __init__(self, code: Code, program: CallLoops) -> None:
        """Takes the builder of a function, whose first arguments point to the thread's argument words and to
        its state, and the loops that the function runs.
        """
        arguments, frame, *_ = code.function.args
        super().__init__(code, arguments, frame)
        self.program = program
        self.arrays = AtEntry[int](code, self.pointer_at)
        self.claims = Claims(self)

    # ---- threads

    def own_rows(self, rows: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Computes which of the first `rows` rows (sequences at one step each) of the block of steps (those
        computed together) this thread copies: the first one, the end, and the distance from each to the next.
        If all work is outside the loop over the steps (`rows_are_alone`), these are also the rows that it
        computes: a range of whole register tiles.
        """
        code, one = self.code, self.code.number(1)
        if not self.program.rows_are_alone:
            return self.argument["thread"], rows, self.threads
        size = code.number(MOST_ROWS)
        tiles = code.sdiv(code.add(rows, code.sub(size, one)), size)
        part, parts = self.argument["part"], code.add(self.argument["more_parts"], one)

        def edge(number: ir.Value) -> ir.Value:
            """Computes the first row of part `number` of the rows, the end of the part before."""
            return code.smaller(code.mul(code.sdiv(code.mul(tiles, number), parts), size), rows)

        return edge(part), edge(code.add(part, one)), one

    # ---- records

    def rows(self, base: ir.Value, count: ir.Value, **others: ir.Value) -> StageRows:
        """Makes the addresses by which loops find the values of `count` rows of the block of steps (those
        computed together), from row `base` on: in the buffer of the block, in arrays that are used in place,
        and in other buffers.

        others: the pointers to the other buffers, by name.
        """
        code, strides = self.code, self.program.strides
        block = code.at(self.pointer["block"], code.mul(base, code.number(strides["block"])))
        outside = {array.field.record: self.rows_of(array, base) for array in self.program.arrays_in_place}
        return StageRows({"block": block, **others}, strides, count, outside)

    def rows_of(self, array: CallArray, base: ir.Value) -> AddressedRows:
        """Makes the addresses of the rows of an array of the call that loops read or write in place. A table
        has, for each row (a sequence at one step) of the block of steps (those computed together), its index
        in the array; for a window (neighbouring steps, as of a convolution) read in place, the addresses of
        its steps are there. base: the first row of the block of steps.
        """
        pointer = self.arrays[array.argument]
        indices = self.code.at(self.pointer[array.table], self.code.mul(base, self.code.number(8)))
        if array.pieces:
            return AddressRows(pointer, array.row_bytes, indices)
        return RowsInPlace(pointer, array.row_bytes, indices, self.pointer["nowhere"])

    def stage(self, net: Net, rows: StageRows, *, shares_units: bool = False) -> StageCode:
        """Makes the context for writing the loops of a stage (the work before, in or after the loop over
        steps); they compute nodes of `net` for these rows.

        shares_units: whether threads divide elementwise work by units (features of a value), not by rows.
        """
        constants, status = self.pointer["constants"], self.pointer["status"]
        thread, width = self.argument["thread"], self.program.width
        return StageCode(
            self.code, net, rows, constants, status, thread, self.threads, width, shares_units=shares_units
        )

    def block_field(self, row: ir.Value, field: Field) -> ir.Value:
        """Computes the pointer to a value of a row in the block's buffer. field: its position in the row."""
        code = self.code
        stride = code.number(self.program.strides["block"])
        return code.at(code.at(self.pointer["block"], code.mul(row, stride)), field.offset)

    def of_sequence(self, source: RowSource, sequence: ir.Value) -> ir.Value:
        """Computes the pointer to a value that each sequence has once, such as an initial memory (recurrent
        state), for one sequence. source: an array of the call, or a field (place in memory) among the values
        computed per sequence.
        """
        code = self.code
        if source.field is None:
            return code.at(self.arrays[source.argument], code.mul(sequence, code.number(source.bytes)))
        stride = code.number(self.program.strides["sequence"])
        return code.at(code.at(self.pointer["sequence"], code.mul(sequence, stride)), source.field.offset)
