"""The machine code of a whole call: sequences laid end to end in lanes, block of steps by block of steps.

    for each block of steps:
        schedule   which sequence's step each lane is at: its row among the inputs, where it begins and ends
        gather     the inputs' rows, and statics that are seen at every step
        before     what needs no memory, on all rows of the block
        loop       step by step: new sequences get their initial memory, the phases run, ended ones leave it
        after      what feeds no memory, on all rows of the block
        scatter    the outputs' rows

A lane starts its next sequence in the step after one ends, so nearly every step is full and nothing is
padded. Lanes are sorted by how many steps they have, so those still at work are always the first ones. Memory
does not grow with length: a block is as long as fits the cache, whatever the sequences' lengths are.

Several threads either run lanes of their own each (a call of `run` each, of one thread), or share every step:
then each does a part of the unit blocks, and a barrier stands between phases. A thread whose processor
another process takes makes the others wait. So between blocks those that were late are left out.

`run` returns between two blocks once it has run for a while, and goes on there when it is called again: that
is how an interrupt arrives in the middle of a long call.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from stepnet.engines.llvm.code import I64, POINTER, Code
from stepnet.engines.llvm.loops import Loop
from stepnet.engines.llvm.records import Field
from stepnet.engines.llvm.stage import Rows, StageCode
from stepnet.engines.llvm.system import clock, write_ticks
from stepnet.engines.llvm.waiting import barrier, wait_while
from stepnet.engines.llvm.words import PROGRESS, WORDS
from stepnet.ir import Net

# A thread is late if the first one waits for it for more than a quarter of a block's time, and for longer
# than memory can keep it: another process that has its processor keeps it for some milliseconds.
LATE, LATE_SECONDS = 4, 1e-3


@dataclass(frozen=True)
class Source:
    """Bytes of a sequence: from a user's array (its word), or from a field of the sequence record; zeros
    where there is neither.
    """

    word: int
    field: Field | None
    bytes: int

    @property
    def is_zeros(self) -> bool:
        """Whether nothing is to be read."""
        return self.word < 0 and self.field is None


@dataclass(frozen=True)
class Program:
    """Everything the driver's code is made from: each stage's loops, and which array goes where.

    memories: where one begins, the word of the array of its last values (-1 for none), and its field. outputs
    are every step's or each sequence's last, as the call says; kept ones are every step's.
    """

    body: Net
    outer: Net
    before: list[list[Loop]]
    loop: list[list[Loop]]
    after: list[list[Loop]]
    strides: dict[str, int]
    lanes: int
    reverse: bool
    unroll: int
    inputs: tuple[tuple[int, Field], ...]
    expanded: tuple[tuple[Source, Field], ...]
    statics: tuple[tuple[Source, Field], ...]
    memories: tuple[tuple[Source, int, Field], ...]
    outputs: tuple[tuple[int, Field], ...]
    kept: tuple[tuple[int, Field], ...]
    index: Field | None


class Driver:
    """Writes the function `run(words)`; it gives whether there is more to do."""

    def __init__(self, code: Code, program: Program) -> None:
        self.code = code
        self.program = program
        self.words = code.function.args[0]
        self.scratch = code.alloca(I64, code.number(2))
        self.await_others()
        self.word = {name: self._word(place) for place, name in enumerate(WORDS)}
        pointers = ("progress", "barrier", "status", "constants", "now", "next", "lane", "block", "sequence")
        self.pointer = {name: code.inttoptr(self.word[name], POINTER) for name in pointers}
        tables = WORDS[WORDS.index("order") : WORDS.index("last_only")]
        self.table = {name: code.inttoptr(self.word[name], POINTER) for name in tables}
        self.arrays: dict[int, ir.Value] = {}
        program_words = [word for word, _ in (*program.inputs, *program.outputs, *program.kept)]
        program_words += [source.word for source, _ in (*program.statics, *program.expanded)]
        program_words += [word for begin, final, _ in program.memories for word in (begin.word, final)]
        for word in program_words:
            if word >= 0:
                self.arrays[word] = code.inttoptr(self._word(word), POINTER)
        self.alone = code.icmp_signed("==", self.word["thread"], code.number(0))
        self.sliced = code.icmp_signed("!=", self.word["slice"], code.number(0))
        self.threads = self.progress("threads")
        self.shared = code.icmp_signed(">", self.threads, code.number(1))
        # Cells are made here, once: one made in a loop would take stack at every turn.
        self.count_cell, self.row_cell, self.fresh_cell = (code.alloca(I64) for _ in range(3))
        self.threads_cell, self.waited_cell, self.time_cell = (code.alloca(I64) for _ in range(3))

    def _word(self, place: int) -> ir.Value:
        return self.code.read(I64, self.code.at(self.words, 8 * place), 8)

    def await_others(self) -> None:
        """Waits until it is known how many threads there are; the other words are written by then."""
        code = self.code
        progress, rest, clock = (self._word(WORDS.index(name)) for name in ("progress", "rest", "clock"))
        code.call(wait_while(code), [code.inttoptr(progress, POINTER), code.number(0), rest, clock])

    def progress(self, name: str) -> ir.Value:
        """A word of how far the call is."""
        return self.code.read(I64, self.code.at(self.pointer["progress"], 8 * PROGRESS.index(name)), 8)

    def set_progress(self, name: str, value: ir.Value) -> None:
        """Sets a word of how far the call is."""
        self.code.write(value, self.code.at(self.pointer["progress"], 8 * PROGRESS.index(name)), 8)

    def ticks(self) -> ir.Value:
        """The time by the system's clock, for a call that may pause or share its steps; 0 for others."""
        code = self.code
        code.store(code.number(0), self.time_cell)
        with code.when(code.or_(self.sliced, self.shared)):
            now = write_ticks(code, self.word["clock"], code.bitcast(self.scratch, POINTER))
            code.store(now, self.time_cell)
        return code.load(self.time_cell)

    # ---- the whole

    def write(self) -> None:
        """The body of `run`."""
        code, zero = self.code, self.code.number(0)
        now_cell, next_cell = code.alloca(POINTER), code.alloca(POINTER)
        begin = self.progress("begin")
        swapped = code.icmp_signed("!=", self.progress("swapped"), zero)
        now, following = self.pointer["now"], self.pointer["next"]
        code.store(code.select(swapped, following, now), now_cell)
        code.store(code.select(swapped, now, following), next_cell)
        code.store(self.threads, self.threads_cell)
        deadline = code.add(self.ticks(), self.word["slice"])
        first = code.icmp_signed("==", begin, zero)
        with code.when(first), self.by_first_thread(), code.loop(zero, self.word["lanes"]) as lane:
            code.write_number(code.read_number(self.table["first"], lane), self.table["cursor"], lane)
            code.write_number(zero, self.table["left"], lane)
        with code.loop(begin, self.word["steps"], self.word["block_steps"]) as start:
            self.threads = code.load(self.threads_cell)
            self.shared = code.icmp_signed(">", self.threads, code.number(1))
            stop = code.smaller(code.add(start, self.word["block_steps"]), self.word["steps"])
            began = self.ticks()
            code.store(zero, self.waited_cell)
            self.block(start, stop, now_cell, next_cell)
            with self.by_first_thread():
                self.judge(began, stop, deadline)
            with code.when(code.icmp_signed("<", stop, self.word["steps"])):
                self.wait()
                self.between(stop, now_cell)
        with self.by_first_thread(), code.when(self.sliced):
            self.set_progress("begin", self.word["steps"])
        code.ret(zero)

    def block(self, start: ir.Value, stop: ir.Value, now_cell: ir.Value, next_cell: ir.Value) -> None:
        """The steps from `start` to `stop`."""
        code = self.code
        steps = code.sub(stop, start)
        with self.by_first_thread():
            self.schedule(start, steps)
            self.begin_all(code.number(0), code.load(now_cell))
        self.wait()
        last = code.sub(steps, code.number(1))
        rows = code.add(self.read("step_base", last), self.read("step_rows", last))
        self.gather(rows)
        self.wait()
        block = Rows({"block": self.pointer["block"]}, self.program.strides, rows)
        self.phases(self.program.outer, self.program.before, block)
        self.steps(steps, now_cell, next_cell)
        self.phases(self.program.outer, self.program.after, block)
        self.scatter(rows)

    def judge(self, began: ir.Value, stop: ir.Value, deadline: ir.Value) -> None:
        """Says whether all pause here, and how many threads go on: half of them, if one was late."""
        code, now = self.code, self.ticks()
        over = code.and_(self.sliced, code.icmp_signed(">", now, deadline))
        self.set_progress("pause", code.zext(over, I64))
        waited = code.load(self.waited_cell)
        much = code.icmp_signed(">", waited, code.sdiv(code.sub(now, began), code.number(LATE)))
        long = code.icmp_signed(">", waited, code.number(int(LATE_SECONDS * clock().per_second)))
        with code.when(code.and_(much, long)):
            half = code.sdiv(code.add(self.threads, code.number(1)), code.number(2))
            self.set_progress("threads", half)

    def between(self, stop: ir.Value, now_cell: ir.Value) -> None:
        """Between two blocks: threads that are left out end here, and all do where there is a pause."""
        code = self.code
        threads, pause = (
            self.progress("threads"),
            code.icmp_signed("!=", self.progress("pause"), code.number(0)),
        )
        code.return_when(code.icmp_signed(">=", self.word["thread"], threads), code.number(0))
        with self.by_first_thread(), code.when(pause):
            swapped = code.icmp_unsigned("!=", code.load(now_cell), self.pointer["now"])
            self.set_progress("begin", stop)
            self.set_progress("swapped", code.zext(swapped, I64))
        code.return_when(pause, code.number(1))
        code.store(threads, self.threads_cell)

    def read(self, table: str, index: ir.Value) -> ir.Value:
        """An entry of one of the tables."""
        return self.code.read_number(self.table[table], index)

    def phases(self, net: Net, phases: list[list[Loop]], rows: Rows) -> None:
        """The phases of a stage, a barrier after each."""
        stage = StageCode(
            self.code,
            net,
            rows,
            self.pointer["constants"],
            self.pointer["status"],
            self.word["thread"],
            self.threads,
            self.program.lanes,
        )
        for loops in phases:
            for loop in loops:
                stage.emit(loop)
            self.wait()

    # ---- schedule

    def schedule(self, start: ir.Value, steps: ir.Value) -> None:
        """Fills the tables of a block: for every row of it, which step of which sequence it is."""
        code = self.code
        count_cell, row_cell, fresh_cell = self.count_cell, self.row_cell, self.fresh_cell
        code.store(self.word["lanes"], count_cell)
        code.store(code.number(0), row_cell)
        with code.loop(code.number(0), steps) as step:
            self.drop_ended(count_cell, code.add(start, step))
            code.store(code.number(0), fresh_cell)
            lanes, base = code.load(count_cell), code.load(row_cell)
            code.write_number(base, self.table["step_base"], step)
            code.write_number(lanes, self.table["step_rows"], step)
            with code.loop(code.number(0), lanes) as lane:
                self.advance(lane, code.add(base, lane), fresh_cell)
            code.store(code.add(base, lanes), row_cell)
            code.write_number(code.load(fresh_cell), self.table["step_fresh"], step)

    def drop_ended(self, count_cell: ir.Value, step: ir.Value) -> None:
        """Lowers the number of lanes at work to those that have more than `step` steps."""
        code = self.code

        def some_ended() -> ir.Value:
            count = code.load(count_cell)
            some = code.icmp_signed(">", count, code.number(0))
            last = code.select(some, code.sub(count, code.number(1)), code.number(0))
            return code.and_(some, code.icmp_signed("<=", self.read("lane_steps", last), step))

        with code.loop_while(some_ended):
            code.store(code.sub(code.load(count_cell), code.number(1)), count_cell)

    def advance(self, lane: ir.Value, row: ir.Value, fresh_cell: ir.Value) -> None:
        """One lane's next step: of its sequence, or the first of its next sequence."""
        code, table = self.code, self.table
        minus = code.number(-1)
        code.write_number(minus, table["fresh"], row)
        with code.when(code.icmp_signed("==", self.read("left", lane), code.number(0))):
            cursor = self.read("cursor", lane)
            sequence = self.read("order", cursor)
            length, begin = self.read("lengths", sequence), self.read("starts", sequence)
            if self.program.reverse:
                begin = code.add(begin, code.sub(length, code.number(1)))
            code.write_number(code.add(cursor, code.number(1)), table["cursor"], lane)
            code.write_number(length, table["left"], lane)
            code.write_number(begin, table["position"], lane)
            code.write_number(sequence, table["current"], lane)
            if self.program.index is not None:
                code.write_number(self.read("begun", sequence), table["count"], lane)
            code.write_number(sequence, table["fresh"], row)
            code.store(code.number(1), fresh_cell)
        sequence, position = self.read("current", lane), self.read("position", lane)
        left = code.sub(self.read("left", lane), code.number(1))
        code.write_number(position, table["where"], row)
        code.write_number(sequence, table["owner"], row)
        ended = code.select(code.icmp_signed("==", left, code.number(0)), sequence, minus)
        code.write_number(ended, table["done"], row)
        if self.program.index is not None:
            count = self.read("count", lane)
            code.write(count, self.block_field(row, self.program.index), 8)
            code.write_number(code.add(count, code.number(1)), table["count"], lane)
        code.write_number(left, table["left"], lane)
        direction = -1 if self.program.reverse else 1
        code.write_number(code.add(position, code.number(direction)), table["position"], lane)

    # ---- the user's arrays

    def gather(self, rows: ir.Value) -> None:
        """The inputs' rows, and statics seen at every step, put into the block."""
        code = self.code
        with code.loop(self.word["thread"], rows, self.threads) as row:
            where, owner = self.read("where", row), self.read("owner", row)
            for word, field in self.program.inputs:
                source = code.at(self.arrays[word], code.mul(where, code.number(field.bytes)))
                code.copy_bytes(self.block_field(row, field), source, field.bytes)
            for source, field in self.program.expanded:
                code.copy_bytes(self.block_field(row, field), self.of_sequence(source, owner), source.bytes)

    def scatter(self, rows: ir.Value) -> None:
        """The outputs' rows put into the user's arrays: every step's, or each sequence's last."""
        code = self.code
        if not self.program.outputs and not self.program.kept:
            return
        last_only = code.icmp_signed("!=", self.word["last_only"], code.number(0))
        with code.loop(self.word["thread"], rows, self.threads) as row:
            if self.program.outputs:
                place = code.select(last_only, self.read("done", row), self.read("where", row))
                with code.when(code.icmp_signed(">=", place, code.number(0))):
                    self.put(self.program.outputs, place, row)
            if self.program.kept:
                self.put(self.program.kept, self.read("where", row), row)

    def put(self, outputs: tuple[tuple[int, Field], ...], place: ir.Value, row: ir.Value) -> None:
        """A row of the block put into arrays."""
        code = self.code
        for word, field in outputs:
            target = code.at(self.arrays[word], code.mul(place, code.number(field.bytes)))
            code.copy_bytes(target, self.block_field(row, field), field.bytes)

    def block_field(self, row: ir.Value, field: Field) -> ir.Value:
        """The pointer to a field of the block's record."""
        code = self.code
        stride = code.number(self.program.strides["block"])
        return code.at(code.at(self.pointer["block"], code.mul(row, stride)), field.offset)

    def of_sequence(self, source: Source, sequence: ir.Value) -> ir.Value:
        """The pointer to what a sequence has of a source."""
        code = self.code
        if source.field is None:
            return code.at(self.arrays[source.word], code.mul(sequence, code.number(source.bytes)))
        stride = code.number(self.program.strides["sequence"])
        return code.at(code.at(self.pointer["sequence"], code.mul(sequence, stride)), source.field.offset)

    # ---- one step

    def steps(self, steps: ir.Value, now_cell: ir.Value, next_cell: ir.Value) -> None:
        """The steps of a block: as many as are unrolled one after the other, the rest one by one."""
        code, unroll = self.code, self.program.unroll
        whole = code.number(0)
        if unroll > 1:
            whole = code.mul(code.sdiv(steps, code.number(unroll)), code.number(unroll))
            with code.loop(code.number(0), whole, unroll) as first:
                for ahead in range(unroll):
                    self.step(code.add(first, code.number(ahead)), now_cell, next_cell)
        with code.loop(whole, steps) as step:
            self.step(step, now_cell, next_cell)

    def step(self, step: ir.Value, now_cell: ir.Value, next_cell: ir.Value) -> None:
        """One step of all lanes: begin, run the phases, end, exchange the memories."""
        code, strides = self.code, self.program.strides
        now, following = code.load(now_cell), code.load(next_cell)
        base, rows = self.read("step_base", step), self.read("step_rows", step)
        # The first step of a block is begun where the block is.
        fresh = code.icmp_signed("!=", self.read("step_fresh", step), code.number(0))
        with code.when(code.and_(fresh, code.icmp_signed(">", step, code.number(0)))):
            with self.by_first_thread():
                self.begin_all(step, now)
            self.wait()
        block = code.at(self.pointer["block"], code.mul(base, code.number(strides["block"])))
        pointers = {"now": now, "next": following, "lane": self.pointer["lane"], "block": block}
        self.phases(self.program.body, self.program.loop, Rows(pointers, strides, rows))
        if any(final >= 0 for _, final, _ in self.program.memories):
            with self.by_first_thread(), code.loop(code.number(0), rows) as lane:
                self.end(lane, self.read("done", code.add(base, lane)), following)
        code.store(following, now_cell)
        code.store(now, next_cell)

    def begin_all(self, step: ir.Value, now: ir.Value) -> None:
        """Initial memories and statics of the lanes that begin a sequence in this step."""
        base = self.read("step_base", step)
        with self.code.loop(self.code.number(0), self.read("step_rows", step)) as lane:
            self.begin(lane, self.read("fresh", self.code.add(base, lane)), now)

    def begin(self, lane: ir.Value, sequence: ir.Value, now: ir.Value) -> None:
        """Initial memories and statics of a lane that begins a sequence."""
        code, strides = self.code, self.program.strides
        with code.when(code.icmp_signed(">=", sequence, code.number(0))):
            memory = code.at(now, code.mul(lane, code.number(strides["now"])))
            for source, _, field in self.program.memories:
                self.begin_memory(source, sequence, code.at(memory, field.offset))
            own = code.at(self.pointer["lane"], code.mul(lane, code.number(strides["lane"])))
            for source, field in self.program.statics:
                code.copy_bytes(code.at(own, field.offset), self.of_sequence(source, sequence), source.bytes)

    def begin_memory(self, source: Source, sequence: ir.Value, target: ir.Value) -> None:
        """The initial memory of a sequence: zeros where none is given."""
        code = self.code
        if source.field is not None:
            code.copy_bytes(target, self.of_sequence(source, sequence), source.bytes)
            return
        if source.is_zeros:
            code.zero_bytes(target, source.bytes)
            return
        given = code.icmp_signed("!=", self._word(source.word), code.number(0))
        with code.when(given):
            code.copy_bytes(target, self.of_sequence(source, sequence), source.bytes)
        with code.when(code.not_(given)):
            code.zero_bytes(target, source.bytes)

    def end(self, lane: ir.Value, sequence: ir.Value, following: ir.Value) -> None:
        """The last memories of a lane whose sequence ends."""
        code, strides = self.code, self.program.strides
        with code.when(code.icmp_signed(">=", sequence, code.number(0))):
            memory = code.at(following, code.mul(lane, code.number(strides["now"])))
            for _, final, field in self.program.memories:
                if final >= 0:
                    target = code.at(self.arrays[final], code.mul(sequence, code.number(field.bytes)))
                    code.copy_bytes(target, code.at(memory, field.offset), field.bytes)

    # ---- threads

    @contextmanager
    def by_first_thread(self) -> Generator[None]:
        """Code inside is run by one thread alone."""
        with self.code.when(self.alone):
            yield

    def wait(self) -> None:
        """A barrier, where there is more than one thread."""
        code = self.code
        with code.when(self.shared):
            arguments = [self.pointer["barrier"], self.threads, self.word["rest"], self.word["clock"]]
            waited = code.call(barrier(code), arguments)
            code.store(code.add(code.load(self.waited_cell), waited), self.waited_cell)
