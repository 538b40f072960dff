"""The machine code that assigns sequences to lanes, end to end, as `targets/lanes` does in NumPy.

    lay(lengths, count, memory, room, laid, most)

In the order of their lengths, longest first, each sequence goes to the lane with the fewest steps so far. The
results of a sequence do not depend on its lane. Calls that are prepared for any lengths run it before their
kernels, and so do libraries for C.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.targets.base import LAYOUTS
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.lengths import ALL, END, LAID, SHARE, UNFIT, WORDS
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode, internal


def write_lengths(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `lengths`, which fills the tables of a call's sequences
    (their lengths, and the lanes, or slots, that run them) from a table that says where they lie. The
    function takes a pointer to its arguments, listed in `WORDS`, and returns 0, or `UNFIT` without having
    read or written outside of the tables.
    """
    module = ir.Module("lengths")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "lengths")
    code, (words,) = WordCode(function.append_basic_block("entry"), processor), function.args
    word = {name: code.word(words, 8 * place) for place, name in enumerate(WORDS)}
    places = PlacesCode(code, word)
    places.write()
    lengths, memory, laid, every = (
        code.inttoptr(word[name], POINTER) for name in ("lengths", "memory", "laid", "all")
    )
    zero, rows = code.number(0), word["rows"]
    filled, steps = places.checked()
    for name, number in zip(ALL, (zero, filled, steps), strict=True):
        code.set_word(every, 8 * ALL.index(name), number)
    code.call(write_lay(module, processor, "lay"), [lengths, rows, memory, word["most"], laid, word["lanes"]])
    lane_steps = code.at(laid, LAID["lane_steps"])
    first = code.at(laid, LAID["first"])
    with code.loop(code.word(laid, LAID["lanes"]), word["lanes"]) as lane:  # lanes without a sequence
        code.write_number(zero, lane_steps, lane)
        code.write_number(filled, first, code.add(lane, code.number(1)))
    with code.loop(zero, word["share_count"]) as number:
        write_share(code, entry(code, word["shares"], number, len(SHARE)), laid, word["lanes"])
    with code.loop(zero, word["end_count"]) as number:
        source, target, first, most = entry(code, word["ends"], number, len(END))
        count = code.larger(code.sub(code.word(code.inttoptr(source, POINTER)), first), zero)
        code.set_word(code.inttoptr(target, POINTER), 0, code.smaller(count, most))
    code.ret(zero)
    return module


class PlacesCode:
    """Generator of code that fills and checks the tables of starts, lengths and steps of sequences."""

    def __init__(self, code: WordCode, word: dict[str, ir.Value]) -> None:
        """Takes the argument words of the function, by name."""
        self.code, self.word = code, word
        self.given, self.starts, self.lengths, self.steps, self.filled = (
            code.inttoptr(word[name], POINTER) for name in ("given", "starts", "lengths", "steps", "filled")
        )
        self.sum_cell, self.bad_cell, self.cell = (code.alloca(I64) for _ in range(3))

    def write(self) -> None:
        """Writes the body: the function returns at once if there are more sequences than the tables have room
        for. Else it fills them, as the layout of the sequences says.
        """
        code, zero, rows = self.code, self.code.number(0), self.word["rows"]
        other = code.or_(code.less(rows, zero), code.less(self.word["most"], rows))
        code.return_when(other, code.number(UNFIT))
        code.store(zero, self.bad_cell)
        code.write_number(self.word["total"], self.starts, rows)
        for number, name in enumerate(LAYOUTS):
            with code.when(code.icmp_signed("==", self.word["layout"], code.number(number))):
                getattr(self, name)(code.sdiv(self.word["total"], code.larger(rows, code.number(1))))
        code.return_when(code.icmp_signed("!=", code.load(self.bad_cell), zero), code.number(UNFIT))

    def refuse(self, condition: ir.Value) -> None:
        """Writes code that notes that a call is not to run, if a condition is true."""
        code = self.code
        code.store(code.or_(code.load(self.bad_cell), code.zext(condition, I64)), self.bad_cell)

    def differ(self, a: ir.Value, b: ir.Value) -> None:
        """Writes code that notes that a call is not to run, if two numbers are not equal."""
        self.refuse(self.code.icmp_signed("!=", a, b))

    def checked(self) -> tuple[ir.Value, ir.Value]:
        """Writes code that returns `UNFIT` from the function if a sequence is too short or too long, and
        lists those that have steps; returns their number, and that of the steps of all.
        """
        code, zero = self.code, self.code.number(0)
        code.store(zero, self.sum_cell)
        code.store(zero, self.cell)
        with code.loop(zero, self.word["rows"]) as row:
            length, place = code.read_number(self.lengths, row), code.load(self.cell)
            has_steps = code.icmp_signed("!=", length, zero)
            self.refuse(code.and_(has_steps, code.less(length, self.word["shortest"])))
            self.refuse(code.less(self.word["longest"], length))
            code.store(code.add(code.load(self.sum_cell), length), self.sum_cell)
            code.write_number(row, self.filled, place)
            code.store(code.add(place, code.zext(has_steps, I64)), self.cell)
        code.return_when(code.icmp_signed("!=", code.load(self.bad_cell), zero), code.number(UNFIT))
        return code.load(self.cell), code.load(self.sum_cell)

    def ends(self, _: ir.Value) -> None:
        """Writes code for sequences end to end, whose offsets are given: they begin with 0, and end at the
        number of entries.
        """
        code, rows, one = self.code, self.word["rows"], self.code.number(1)
        self.differ(self.word["entries"], code.add(rows, one))
        with code.when(code.icmp_signed("==", code.load(self.bad_cell), code.number(0))):
            first = code.read_number(self.given, code.number(0))
            code.write_number(first, self.starts, code.number(0))
            write_differences(code, self.given, rows, self.lengths, self.starts)
            self.differ(first, code.number(0))
            self.differ(code.read_number(self.given, rows), self.word["total"])

    def batch(self, time: ir.Value) -> None:
        """Writes code for sequences in arrays [batch, time, ...], whose lengths are given. time: the number
        of steps that the arrays have room for.
        """
        self.padded(lambda row: self.code.mul(row, time), time)

    def time(self, time: ir.Value) -> None:
        """Writes code for sequences in arrays [time, batch, ...], whose lengths are given. time: the number
        of steps that the arrays have room for.
        """
        code = self.code
        self.padded(lambda row: row, time)
        with code.loop(code.number(0), code.smaller(time, self.word["longest"])) as step:
            code.write_number(code.mul(step, self.word["rows"]), self.steps, step)

    def padded(self, start: Callable[[ir.Value], ir.Value], time: ir.Value) -> None:
        """Writes code for sequences in padded arrays, whose lengths are given. start: writes the index of the
        first entry of a sequence. time: the number of steps that the arrays have room for.
        """
        code, rows = self.code, self.word["rows"]
        self.differ(self.word["entries"], rows)
        self.differ(self.word["total"], code.mul(time, rows))
        with (
            code.when(code.icmp_signed("==", code.load(self.bad_cell), code.number(0))),
            code.loop(code.number(0), rows) as row,
        ):
            length = code.read_number(self.given, row)
            self.refuse(code.less(time, length))
            code.write_number(start(row), self.starts, row)
            code.write_number(length, self.lengths, row)

    def packed(self, _: ir.Value) -> None:
        """Writes code for sequences that lie step by step, the longest first, with the number of sequences of
        each step given: it never rises.
        """
        code, rows, zero = self.code, self.word["rows"], self.code.number(0)
        self.refuse(code.less(self.word["longest"], self.word["entries"]))
        code.store(zero, self.sum_cell)
        code.store(rows, self.cell)
        with code.loop(zero, rows) as row:
            code.write_number(row, self.starts, row)
            code.write_number(zero, self.lengths, row)
        with (
            code.when(code.icmp_signed("==", code.load(self.bad_cell), zero)),
            code.loop(zero, self.word["entries"]) as step,
        ):
            size, before = code.read_number(self.given, step), code.load(self.cell)
            self.refuse(code.less(size, code.number(1)))
            self.refuse(code.less(before, size))
            size = code.smaller(size, before)
            code.write_number(code.load(self.sum_cell), self.steps, step)
            code.store(code.add(code.load(self.sum_cell), size), self.sum_cell)
            code.store(size, self.cell)
            with code.loop(code.larger(size, zero), before) as row:  # these end here
                code.write_number(step, self.lengths, row)
        with code.loop(zero, code.larger(code.load(self.cell), zero)) as row:
            code.write_number(self.word["entries"], self.lengths, row)
        self.differ(code.load(self.sum_cell), self.word["total"])


def entry(code: WordCode, table: ir.Value, number: ir.Value, size: int) -> list[ir.Value]:
    """Writes loads of the `size` words of an entry of the table at the address `table`."""
    words = code.at(code.inttoptr(table, POINTER), code.mul(number, code.number(8 * size)))
    return [code.word(words, 8 * place) for place in range(size)]


def write_share(code: WordCode, words: list[ir.Value], laid: ir.Value, lanes: ir.Value) -> None:
    """Writes code that gives a thread every n-th of the lanes (slots that run one sequence after another),
    with tables of their own.

    words: the words of the thread's share, as in `SHARE`: its number, the number of threads, the addresses
        of the tables.
    laid: the pointer to the table of all lanes. lanes: their number; the last may have no sequence.
    """
    thread, threads, *tables = words
    orders, firsts, steps = (code.inttoptr(table, POINTER) for table in tables)
    order, one = code.pointer_at(laid, LAID["order"]), code.number(1)
    first, lane_steps = (code.at(laid, LAID[name]) for name in ("first", "lane_steps"))
    with code.goto_entry_block():
        place_cell = code.alloca(I64)
    code.store(code.number(0), place_cell)
    with code.loop(thread, lanes, threads) as lane:
        own = code.sdiv(lane, threads)
        code.write_number(code.load(place_cell), firsts, own)
        code.write_number(code.read_number(lane_steps, lane), steps, own)
        begin, end = (code.read_number(first, each) for each in (lane, code.add(lane, one)))
        with code.loop(begin, end) as sequence:
            place = code.load(place_cell)
            code.write_number(code.read_number(order, sequence), orders, place)
            code.store(code.add(place, one), place_cell)
        code.write_number(code.load(place_cell), firsts, code.add(own, one))


def write_differences(
    code: WordCode, offsets: ir.Value, count: ir.Value, lengths: ir.Value, copy: ir.Value | None = None
) -> None:
    """Writes code that fills a table of the lengths of `count` sequences from their offsets, where they begin
    and end.

    copy: a table to which the offsets, but for the first, are copied too.
    """
    with code.loop(code.number(0), count) as row:
        behind = code.add(row, code.number(1))
        begin, end = (code.read_number(offsets, each) for each in (row, behind))
        if copy is not None:
            code.write_number(end, copy, behind)
        code.write_number(code.sub(end, begin), lengths, row)


def write_lay(module: ir.Module, processor: Processor, name: str) -> ir.Function:
    """Generates the function lay(lengths, count, memory, room, laid, most), which assigns sequences to lanes;
    returns it. A lane is a slot that runs some sequences in turn. `lay` reads the lengths of `count`
    sequences, and fills the table `laid` at the offsets `LAID`. memory: `PER_SEQUENCE` bytes for each of
    `room` sequences. most: the largest number of lanes, at most `LANES`.
    """
    compare = write_compare(module, processor, f"{name}_compare")
    types: list[ir.Type] = [POINTER, I64, POINTER, I64, POINTER, I64]
    function, code = internal(module, processor, name, ir.VoidType(), types)
    Lay(code, compare, *function.args).write()
    return function


def write_compare(module: ir.Module, processor: Processor, name: str) -> ir.Function:
    """Generates the comparison of (length, number) pairs for `qsort`: longest first, then by number, which is
    the index of the sequence. Returns the function.
    """
    function, code = internal(module, processor, name, I32, [POINTER, POINTER])
    (a, b), (i, j) = ([code.word(side, place) for side in function.args] for place in (0, 8))
    by_length = code.sub(code.zext(code.less(a, b), I32), code.zext(code.less(b, a), I32))
    by_number = code.sub(code.zext(code.less(j, i), I32), code.zext(code.less(i, j), I32))
    code.ret(code.select(code.icmp_signed("==", a, b), by_number, by_length))
    return function


class Lay:
    """Generates the body of `lay`, which assigns sequences to lanes (each runs some, one by one)."""

    def __init__(
        self,
        code: WordCode,
        compare: ir.Function,
        lengths: ir.Value,
        count: ir.Value,
        pairs: ir.Value,
        room: ir.Value,
        laid: ir.Value,
        most: ir.Value,
    ) -> None:
        """Prepares code that assigns sequences to lanes (slots that run one sequence after another): divides
        its memory, and allocates tables with an entry per lane. compare: the comparison for `qsort`. lengths:
        the array of the lengths of `count` sequences. pairs: memory of `PER_SEQUENCE` bytes for each of
        `room`, which begins with (length, number) pairs. laid: the table to fill. most: the largest number of
        lanes.
        """
        self.code, self.compare, self.lengths, self.count, self.most = code, compare, lengths, count, most
        self.pairs, self.laid = pairs, laid
        self.lane_of = code.at(pairs, code.mul(room, code.number(16)))
        self.order = code.at(self.lane_of, code.mul(room, code.number(8)))
        self.first, self.steps = (code.at(laid, LAID[name]) for name in ("first", "lane_steps"))
        tables = [code.alloca(I64, code.number(LANES + 1)) for _ in range(4)]
        self.load, self.sizes, self.rank, self.cursor = tables
        self.filled_cell, self.sorted_cell, self.best_cell = (code.alloca(I64) for _ in range(3))

    def write(self) -> None:
        """Writes the body of the function `lay`, which sorts sequences by length, assigns them to lanes
        (slots that run one sequence after another), and fills the table `laid`. The table has the sequences
        lane by lane, the lane with the most steps first.
        """
        code, zero = self.code, self.code.number(0)
        self.make_pairs()
        filled = code.load(self.filled_cell)
        with code.when(code.icmp_signed("==", code.load(self.sorted_cell), zero)):
            code.function_call("qsort", ir.VoidType(), [self.pairs, filled, code.number(16), self.compare])
        lanes = code.smaller(filled, self.most)
        self.assign_lanes(filled, lanes)
        self.sort_lanes(filled, lanes)
        code.write_number(zero, self.first, zero)
        with code.loop(zero, lanes) as lane:
            begin = code.read_number(self.first, lane)
            code.write_number(begin, self.cursor, lane)
            end = code.add(begin, code.read_number(self.first, code.add(lane, code.number(1))))
            code.write_number(end, self.first, code.add(lane, code.number(1)))
        with code.loop(zero, filled) as place:
            lane = code.read_number(self.rank, code.read_number(self.lane_of, place))
            at = code.read_number(self.cursor, lane)
            code.write_number(self.load_pair(place, 8), self.order, at)
            code.write_number(code.add(at, code.number(1)), self.cursor, lane)
        code.set_word(self.laid, LAID["lanes"], lanes)
        code.set_word(self.laid, LAID["order"], self.order)
        code.write_number(zero, self.steps, lanes)
        code.set_word(self.laid, LAID["steps"], code.read_number(self.steps, zero))
        code.ret_void()

    def load_pair(self, place: ir.Value, behind: int) -> ir.Value:
        """Writes a load from the (length, number) pair at index `place`. behind: the offset in the pair, 0
        for the sequence's length, 8 for its number.
        """
        code = self.code
        return code.word(code.at(self.pairs, code.mul(place, code.number(16))), behind)

    def make_pairs(self) -> None:
        """Writes code that makes a pair (length, index of the sequence) for each sequence that has steps.
        `filled_cell` gets their count, and `sorted_cell` 0 if they are not yet sorted by decreasing length.
        """
        code, zero = self.code, self.code.number(0)
        code.store(zero, self.filled_cell)
        code.store(code.number(1), self.sorted_cell)
        code.store(code.number(2**63 - 1), self.best_cell)
        with code.loop(zero, self.count) as sequence:
            length = code.read_number(self.lengths, sequence)
            with code.when(code.less(zero, length)):
                filled = code.load(self.filled_cell)
                pair = code.at(self.pairs, code.mul(filled, code.number(16)))
                code.set_word(pair, 0, length)
                code.set_word(pair, 8, sequence)
                code.store(code.add(filled, code.number(1)), self.filled_cell)
                with code.when(code.less(code.load(self.best_cell), length)):
                    code.store(zero, self.sorted_cell)
                code.store(length, self.best_cell)

    def assign_lanes(self, filled: ir.Value, lanes: ir.Value) -> None:
        """Writes code that assigns each of the `filled` sequences that have steps to the lane (a slot that
        runs one after another) with the fewest steps so far, and sums up the steps and sequences of each
        lane. Of equal lanes it takes the first. The first `lanes` sequences get a lane each.
        """
        code, zero = self.code, self.code.number(0)
        with code.loop(zero, lanes) as lane:
            for table in (self.load, self.sizes):
                code.write_number(zero, table, lane)
        with code.loop(zero, filled) as place:
            code.store(place, self.best_cell)
            with code.when(code.icmp_signed(">=", place, lanes)):
                code.store(zero, self.best_cell)
                with code.loop(code.number(1), lanes) as lane:
                    best = code.read_number(self.load, code.load(self.best_cell))
                    with code.when(code.less(code.read_number(self.load, lane), best)):
                        code.store(lane, self.best_cell)
            lane = code.load(self.best_cell)
            code.write_number(lane, self.lane_of, place)
            for table, more in ((self.load, self.load_pair(place, 0)), (self.sizes, code.number(1))):
                code.write_number(code.add(code.read_number(table, lane), more), table, lane)

    def sort_lanes(self, filled: ir.Value, lanes: ir.Value) -> None:
        """Writes code that ranks lanes (slots that run one sequence after another) by decreasing steps, and
        stores the steps and the number of sequences of each by rank; lanes with equal steps keep their order.
        filled: the number of sequences with steps.
        """
        code, zero = self.code, self.code.number(0)
        with code.loop(zero, lanes) as lane:
            own = code.read_number(self.load, lane)
            code.store(lane, self.best_cell)
            with code.when(code.less(lanes, filled)):  # else a lane is one sequence, and these are sorted
                code.store(zero, self.best_cell)
                with code.loop(zero, lanes) as other:
                    load = code.read_number(self.load, other)
                    same = code.and_(code.icmp_signed("==", load, own), code.less(other, lane))
                    before = code.or_(code.less(own, load), same)
                    code.store(code.add(code.load(self.best_cell), code.zext(before, I64)), self.best_cell)
            rank = code.load(self.best_cell)
            code.write_number(rank, self.rank, lane)
            code.write_number(own, self.steps, rank)
            code.write_number(code.read_number(self.sizes, lane), self.first, code.add(rank, code.number(1)))
