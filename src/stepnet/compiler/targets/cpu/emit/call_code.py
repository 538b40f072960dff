"""The context for writing the machine code of a whole call: its loops, its arguments and its threads."""

from collections.abc import Generator
from contextlib import contextmanager

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.emit.stage import RowsOutside, StageCode, StageRows
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.machine.call_words import PROGRESS, TABLES, WORDS
from stepnet.compiler.targets.cpu.machine.records import Field, RowSource
from stepnet.compiler.targets.cpu.threads.waiting import barrier, wait_while
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.system_code import write_ticks


class CallCode:
    """Function `run(words)` under construction, which runs a call, with the registers that its code reads."""

    def __init__(self, code: Code, program: CallLoops) -> None:
        """Writes the start of `run`: loads of its arguments (`words`), and of tables, arrays and flags; and
        stack slots (`..._cell`) for numbers that change in loops.
        """
        self.code = code
        self.program = program
        self.words = code.function.args[0]
        self.scratch = code.alloca(I64, code.number(2))
        self.await_others()
        self.word = {name: self.word_at(place) for place, name in enumerate(WORDS)}
        pointers = ("progress", "barrier", "status", "constants", "now", "next", "lane", "block", "sequence")
        pointers += ("nowhere", "words", "kept_words", "inner_now", "inner_next", "inner_lane", "until")
        self.pointer = {name: code.inttoptr(self.word[name], POINTER) for name in pointers}
        self.table = {name: code.inttoptr(self.word[name], POINTER) for name in TABLES}
        self.arrays: dict[int, ir.Value] = {}
        program_words = [word for word, _ in (*program.inputs, *program.outputs, *program.kept)]
        program_words += [source.word for source, *_ in (*program.statics, *program.expanded)]
        program_words += [array.word for array in (*program.outside, *program.words, *program.axes)]
        program_words += [word for begin, final, _ in program.memories for word in (begin.word, final)]
        for word in program_words:
            if word >= 0:
                self.arrays[word] = code.inttoptr(self.word_at(word), POINTER)
        self.is_first_thread = code.icmp_signed("==", self.word["thread"], code.number(0))
        self.is_reverse = code.icmp_signed("!=", self.word["reverse"], code.number(0))
        self.last_only = code.icmp_signed("!=", self.word["last_only"], code.number(0))
        self.ends_early = code.icmp_signed("!=", self.word["until"], code.number(0))
        self.sliced = code.icmp_signed("!=", self.word["slice"], code.number(0))
        self.threads = self.progress("threads")
        self.shared = code.icmp_signed(">", self.threads, code.number(1))
        # Stack slots are allocated here, once: an allocation in a loop would grow the stack at every
        # iteration.
        self.count_cell, self.row_cell, self.fresh_cell, self.place_cell = (
            code.alloca(I64) for _ in range(4)
        )
        self.threads_cell, self.waited_cell, self.time_cell, self.steps_cell = (
            code.alloca(I64) for _ in range(4)
        )
        self.first_cell, self.stop_cell = code.alloca(I64), code.alloca(I64)

    def word_at(self, place: int) -> ir.Value:
        """Writes a load of argument number `place` (64 bits) of `run`, the function under construction."""
        return self.code.read(I64, self.code.at(self.words, 8 * place), 8)

    def await_others(self) -> None:
        """Writes a wait until the number of threads is set: all other arguments are stored before it."""
        code = self.code
        progress, rest, clock = (self.word_at(WORDS.index(name)) for name in ("progress", "rest", "clock"))
        code.call(wait_while(code), [code.inttoptr(progress, POINTER), code.number(0), rest, clock])

    # ---- words and tables

    def read(self, table: str, index: ir.Value) -> ir.Value:
        """Writes a load of the entry at an index of a table of integers. table: its name, as "lengths"."""
        return self.code.read_number(self.table[table], index)

    def progress(self, name: str) -> ir.Value:
        """Writes a load of a value that the call's threads share. name: a name in `PROGRESS`, as "pause"."""
        return self.code.read(I64, self.code.at(self.pointer["progress"], 8 * PROGRESS.index(name)), 8)

    def set_progress(self, name: str, value: ir.Value) -> None:
        """Writes a store of a value that the call's threads share. name: a name in `PROGRESS`, as "pause"."""
        self.code.write(value, self.code.at(self.pointer["progress"], 8 * PROGRESS.index(name)), 8)

    def publish_progress(self, name: str, value: ir.Value) -> None:
        """Writes a store of a value named `name` that threads share; who reads it sees all earlier stores."""
        code = self.code
        place = code.at(self.pointer["progress"], 8 * PROGRESS.index(name))
        code.store_atomic(value, code.word_pointer(place), "release", 8)

    # ---- records

    def rows(self, base: ir.Value, count: ir.Value, **others: ir.Value) -> StageRows:
        """Addresses `count` rows of the block of steps, from row `base` on, for the loops of a stage.

        others: the pointers to other records (a record has all values of a row), by name.
        """
        code, strides = self.code, self.program.strides
        block = code.at(self.pointer["block"], code.mul(base, code.number(strides["block"])))
        outside = {
            array.field.record: RowsOutside(
                self.arrays[array.word],
                array.field.bytes,
                code.at(self.table[array.table], code.mul(base, code.number(8))),
                self.pointer["nowhere"],
            )
            for array in self.program.outside
        }
        return StageRows({"block": block, **others}, strides, count, outside)

    def stage(self, net: Net, rows: StageRows, *, shares_units: bool = False) -> StageCode:
        """Makes the context for writing the loops of a stage over these rows; they compute nodes of `net`.

        shares_units: whether threads divide elementwise work by units (features of a value), not by rows.
        """
        constants, status = self.pointer["constants"], self.pointer["status"]
        thread, width = self.word["thread"], self.program.width
        return StageCode(
            self.code, net, rows, constants, status, thread, self.threads, width, shares_units=shares_units
        )

    def block_field(self, row: ir.Value, field: Field) -> ir.Value:
        """Computes the pointer to a value in a row of the block of steps. field: its place in a row."""
        code = self.code
        stride = code.number(self.program.strides["block"])
        return code.at(code.at(self.pointer["block"], code.mul(row, stride)), field.offset)

    def of_sequence(self, source: RowSource, sequence: ir.Value) -> ir.Value:
        """Computes the pointer to a sequence's value of a source: an array, or the record "sequence"."""
        code = self.code
        if source.field is None:
            return code.at(self.arrays[source.word], code.mul(sequence, code.number(source.bytes)))
        stride = code.number(self.program.strides["sequence"])
        return code.at(code.at(self.pointer["sequence"], code.mul(sequence, stride)), source.field.offset)

    # ---- threads and time

    def ticks(self) -> ir.Value:
        """Writes a read of the clock, in ticks; 0 if the call neither pauses nor shares its steps."""
        code = self.code
        code.store(code.number(0), self.time_cell)
        with code.when(code.or_(self.sliced, self.shared)):
            now = write_ticks(code, self.word["clock"], self.scratch)
            code.store(now, self.time_cell)
        return code.load(self.time_cell)

    @contextmanager
    def by_first_thread(self) -> Generator[None]:
        """Context manager: only the first thread of the call runs the code that is written inside."""
        with self.code.when(self.is_first_thread):
            yield

    def wait(self) -> None:
        """Writes a barrier if several threads share the steps, and adds the ticks waited to `waited_cell`."""
        code = self.code
        with code.when(self.shared):
            arguments = [self.pointer["barrier"], self.threads, self.word["rest"], self.word["clock"]]
            waited = code.call(barrier(code), arguments)
            code.store(code.add(code.load(self.waited_cell), waited), self.waited_cell)
