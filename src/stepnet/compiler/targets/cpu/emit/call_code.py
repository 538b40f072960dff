"""The context for writing the functions of a plan that run its call: its records, arrays and loops."""

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.emit.stage import RowsInPlace, StageCode, StageRows
from stepnet.compiler.targets.cpu.emit.thread_code import AtEntry, ThreadCode
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.machine.records import Field, RowSource
from stepnet.compiler.targets.cpu.writing.code import Code


class CallCode(ThreadCode):
    """Function of a plan under construction, which runs a part of a call.

    program: the loops of the plan.
    arrays: the pointers to arrays of the call, by word.
    """

    def __init__(self, code: Code, program: CallLoops) -> None:
        """Takes a function's builder (its first arguments point to `WORDS`, `FRAME`) and the plan's loops."""
        arguments, frame, *_ = code.function.args
        super().__init__(code, arguments, frame)
        self.program = program
        self.arrays = AtEntry[int](code, self.pointer_at)

    # ---- records

    def rows(self, base: ir.Value, count: ir.Value, **others: ir.Value) -> StageRows:
        """Makes the addresses by which loops find the values of `count` rows of the block of steps, from row
        `base` on: in the buffer of the block, in arrays that are used in place, and in other buffers.

        others: the pointers to the other buffers, by name.
        """
        code, strides = self.code, self.program.strides
        block = code.at(self.pointer["block"], code.mul(base, code.number(strides["block"])))
        outside = {
            array.field.record: RowsInPlace(
                self.arrays[array.argument],
                array.field.bytes,
                code.at(self.pointer[array.table], code.mul(base, code.number(8))),
                self.pointer["nowhere"],
            )
            for array in self.program.arrays_in_place
        }
        return StageRows({"block": block, **others}, strides, count, outside)

    def stage(self, net: Net, rows: StageRows, *, shares_units: bool = False) -> StageCode:
        """Makes the context for writing the loops of a stage over these rows; they compute nodes of `net`.

        shares_units: whether threads divide elementwise work by units (features of a value), not by rows.
        """
        constants, status = self.pointer["constants"], self.pointer["status"]
        thread, width = self.argument["thread"], self.program.width
        return StageCode(
            self.code, net, rows, constants, status, thread, self.threads, width, shares_units=shares_units
        )

    def block_field(self, row: ir.Value, field: Field) -> ir.Value:
        """Computes the pointer to a value in a row of the buffer of the block of steps. field: the position
        of the value in the row.
        """
        code = self.code
        stride = code.number(self.program.strides["block"])
        return code.at(code.at(self.pointer["block"], code.mul(row, stride)), field.offset)

    def of_sequence(self, source: RowSource, sequence: ir.Value) -> ir.Value:
        """Computes the pointer to a value that each sequence has once, such as an initial memory, for one
        sequence. source: an array of the call, or a field among the values computed per sequence.
        """
        code = self.code
        if source.field is None:
            return code.at(self.arrays[source.argument], code.mul(sequence, code.number(source.bytes)))
        stride = code.number(self.program.strides["sequence"])
        return code.at(code.at(self.pointer["sequence"], code.mul(sequence, stride)), source.field.offset)
