"""The machine code of operations across extents; see `across`."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.extensions import MODES
from stepnet.compiler.net.windows import SAME, WINDOWED
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import ADDRESS_BYTES
from stepnet.compiler.targets.cpu.running.across import ENDS, WORD, WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, MEMORY_TYPES, POINTER, Code, vector_of

ABREAST, BLOCK = 8, 128
"""NumPy's pairwise summation: the number of parallel sums, and the most numbers that they add directly."""


def write_across(processor: Processor, name: str, dtype: str) -> ir.Module:
    """Generates the LLVM module of the function `across`, which repeats values over the steps of sequences,
    reduces over the steps, copies or adds windows of them, or puts copies of them at the ends of sequences.

    name: such as "repeat", "last" or "sum". dtype: the dtype of the numbers; "" if values are only copied.
    """
    module = ir.Module("across")
    module.triple = ""
    across_function(module, processor, name, dtype, symbol="across").linkage = ""
    return module


def across_function(
    module: ir.Module, processor: Processor, name: str, dtype: str, from_zero: bool = False, symbol: str = ""
) -> ir.Function:
    """Generates, once per module, the function of an operation across extents (from sequences to their steps,
    or back); returns it. It takes a pointer to its arguments, listed in `WORDS`, which point to the operand,
    the result and the tables of the sequences. It returns 0, which says that the task is done.

    name: such as "repeat", "last" or "sum". dtype: the dtype of the numbers; "" if values are only copied.
    from_zero: whether a sum begins at zero and adds one value after the other, as the machine code of steps
        does. Otherwise it is the first value plus the pairwise sum of the others, as in NumPy.
    symbol: the name of the function, which only the module calls; by default made of the others.
    """
    full_name = symbol or "_".join(("across", name, dtype, *(["from_zero"] if from_zero else [])))
    known = module.globals.get(full_name)
    if isinstance(known, ir.Function):
        return known
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), full_name)
    function.linkage = "internal"
    code, (words,) = Code(function.append_basic_block("entry"), processor), function.args
    numbers = [code.read_number(words, code.number(place)) for place in range(len(WORDS))]
    pointers = ("source", "result", "starts", "lengths", "steps", "made_starts", "made_lengths", "zeros")
    arguments = [
        code.inttoptr(number, POINTER) if word in pointers else number
        for word, number in zip(WORDS, numbers, strict=True)
    ]
    if name in (*WINDOWED, "places"):
        WindowCode(code, arguments, dtype).write(name)
    elif name in MODES:
        ExtensionCode(code, arguments).write(name)
    elif dtype:
        ReductionCode(code, arguments, dtype, from_zero).write(name)
    else:
        CopyCode(code, arguments).write(name)
    code.ret(code.number(0))
    return function


class CopyCode:
    """Writer of code that copies values per sequence to its steps, or first or last steps to such values."""

    def __init__(self, code: Code, arguments: Sequence[ir.Value]) -> None:
        """Takes the builder of a function, and its argument words in the order of `WORDS`."""
        self.code = code
        self.source, self.result, self.rows, self.starts, self.lengths, self.steps, *others = arguments
        self.made_starts, self.made_lengths, self.size, *self.window = others

    def write(self, name: str) -> None:
        """Writes the body of the function that copies values between sequences and their steps.

        name: "first" or "last" to copy that step of each sequence to the sequence's value. "repeat" to copy
            the value of each sequence to all of its steps, "at_first" or "at_last" to copy it to one step,
            with zeros at the others.
        """
        for row, begin, length in self.each_row():
            if name in ENDS:
                self.pick(row, begin, length, name == "last")
            else:
                self.spread(row, begin, length, name)

    def each_row(self) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
        """Writes a loop over all sequences. Yields the values of one round, for which the caller writes the
        loop's body: the index of the sequence, the index of its first entry, and its number of steps.
        """
        code = self.code
        with code.loop(code.number(0), self.rows) as row:
            yield row, code.read_number(self.starts, row), code.read_number(self.lengths, row)

    def entry(self, pointer: ir.Value, number: ir.Value) -> ir.Value:
        """Returns the pointer to the value at index `number` in the array of values at `pointer`."""
        return self.code.at(pointer, self.code.mul(number, self.size))

    def pick(self, row: ir.Value, begin: ir.Value, length: ir.Value, last: bool) -> None:
        """Writes a copy of the first or last step of a sequence to its result; zeros if it has no steps.

        row: the index of the sequence. begin: the index of its first entry. length: the number of its steps.
        """
        code, own = self.code, self.entry(self.result, row)
        empty = code.icmp_signed("==", length, code.number(0))
        with code.when(empty):
            code.zero_bytes(own, self.size)
        with code.when(code.not_(empty)):
            step = code.sub(length, code.number(1)) if last else code.number(0)
            place = code.add(begin, code.read_number(self.steps, step))
            code.copy_bytes(own, self.entry(self.source, place), self.size)

    def spread(self, row: ir.Value, begin: ir.Value, length: ir.Value, name: str) -> None:
        """Writes copies of a sequence's value to its steps.

        row: the index of the sequence. begin: the index of its first entry. length: the number of its steps.
        name: "repeat" for all steps; "at_first" or "at_last" for one step, with zeros at the others.
        """
        code, own, one = self.code, self.entry(self.source, row), self.code.number(1)
        end = code.add(begin, length)
        if name != "repeat":
            code.zero_bytes(self.entry(self.result, begin), code.mul(length, self.size))
            any_ = code.zext(code.icmp_signed("<", begin, end), I64)
            begin, end = (begin, code.add(begin, any_)) if name == "at_first" else (code.sub(end, any_), end)
        with code.loop(begin, end, one) as place:
            code.copy_bytes(self.entry(self.result, place), own, self.size)


class ExtensionCode(CopyCode):
    """Writer of code that puts copies of steps ahead of each sequence and behind it."""

    def write(self, name: str) -> None:
        """Writes the body of the function that copies each sequence, and some of its steps to its ends. name:
        the mode, "reflect" or "replicate". An empty sequence stays empty.
        """
        code, zero, before = self.code, self.code.number(0), self.window[WORD["before"] - WORD["count"]]
        for row, begin, length in self.each_row():
            first, made = (code.read_number(table, row) for table in (self.made_starts, self.made_lengths))
            own = self.entry(self.result, code.add(first, before))
            steps, last = self.entry(self.source, begin), code.sub(length, code.number(1))
            with code.when(code.icmp_signed("<", zero, length)):
                code.copy_bytes(own, steps, code.mul(length, self.size))
                for start, end in ((code.sub(zero, before), zero), (length, code.sub(made, before))):
                    with code.loop(start, end) as place:
                        step = self.step_at(name, place, last)
                        code.copy_bytes(self.entry(own, place), self.entry(steps, step), self.size)

    def step_at(self, name: str, place: ir.Value, last: ir.Value) -> ir.Value:
        """Writes the number of the step that is copied to a place from the sequence's first step on, negative
        ahead of it; returns it. name: the mode. last: the number of the last step.
        """
        code, zero = self.code, self.code.number(0)
        is_ahead = code.icmp_signed("<", place, zero)
        if name == "replicate":
            return code.select(is_ahead, zero, last)
        return code.select(is_ahead, code.sub(zero, place), code.sub(code.add(last, last), place))


class ReductionCode(CopyCode):
    """Writer of sums, means and maxima over the steps of sequences, for some columns of the values at a time.

    An empty sequence gives zeros.
    """

    def __init__(self, code: Code, arguments: Sequence[ir.Value], dtype: str, from_zero: bool) -> None:
        """Takes the builder of a function, and the values of the function's argument words, in the order of
        `WORDS`. dtype: the dtype of the numbers. from_zero: whether sums begin with zero, not with the first
        value.
        """
        super().__init__(code, arguments)
        self.dtype, self.from_zero, self.floats = dtype, from_zero, dtype.startswith("float")
        self.itemsize = np.dtype(dtype).itemsize
        self.numbers, self.size = self.size, code.mul(self.size, code.number(self.itemsize))

    def write(self, name: str) -> None:
        """Writes the body of the function that reduces the steps of each sequence, vectors of columns at a
        time, and then single columns. name: the reduction, "sum", "mean" or "max". A mean of whole numbers is
        computed in float64.
        """
        code, made = self.code, mean_dtype(self.dtype) if name == "mean" else self.dtype
        itemsize, self.floats = np.dtype(made).itemsize, made.startswith("float")
        width, size = (
            max(1, code.processor.vector_bytes // itemsize),
            code.mul(self.numbers, code.number(itemsize)),
        )
        for row, begin, length in self.each_row():
            own = code.at(self.result, code.mul(row, size))
            empty = code.icmp_signed("==", length, code.number(0))
            with code.when(empty):
                code.zero_bytes(own, size)
            with code.when(code.not_(empty)):
                first = self.entry(self.source, begin)
                rest = code.srem(self.numbers, code.number(width))
                whole = code.sub(self.numbers, rest)
                for each, start, stop in ((width, code.number(0), whole), (1, whole, self.numbers)):
                    with code.loop(start, stop, each) as column:
                        place = code.mul(column, code.number(self.itemsize))
                        value = self.reduced(name, made, code.at(first, place), length, each)
                        code.write(value, code.at(own, code.mul(column, code.number(itemsize))), itemsize)

    def reduced(self, name: str, made: str, first: ir.Value, length: ir.Value, width: int) -> ir.Value:
        """Writes the reduction of some columns over the steps of a sequence; returns its values.

        name: "sum", "mean" or "max". made: the dtype of the result, in which numbers are added.
        first: the pointer to the columns of the first step. length: the number of steps.
        width: the number of columns that are reduced side by side, as one vector.
        """
        code, type_ = self.code, vector_of(MEMORY_TYPES[made], width)

        def at(step: ir.Value) -> ir.Value:
            """Writes a load of the columns at a step."""
            return read_as(code, self.dtype, made, width, self.entry(first, step))

        start_value = ir.Constant(type_, None) if self.from_zero and name != "max" else at(code.number(0))
        start = 0 if self.from_zero and name != "max" else 1
        if name == "max" or not self.floats or self.from_zero:
            combine = combination(code, name, made)
            (total,) = code.carry(start, length, [start_value], lambda step, now: [combine(now[0], at(step))])
        else:
            others = code.sub(length, code.number(1))
            function = pairwise_sum(code.module, code.processor, self.dtype, width, made)
            added = code.call(function, [self.entry(first, code.number(1)), others, self.size])
            alone = code.icmp_signed("==", others, code.number(0))
            total = code.select(alone, start_value, code.fadd(start_value, added))
        if name != "mean":
            return total
        count = code.sitofp(length, MEMORY_TYPES[made])
        return code.fdiv(total, code.spread(count, width))


def mean_dtype(dtype: str) -> str:
    """Returns the dtype of means of numbers of a dtype, as in NumPy: float64 for whole numbers."""
    return dtype if dtype.startswith("float") else "float64"


def read_as(code: Code, dtype: str, made: str, width: int, pointer: ir.Value) -> ir.Value:
    """Writes a load of some numbers of a dtype, converted to the dtype `made`; returns their value."""
    value = code.read(vector_of(MEMORY_TYPES[dtype], width), pointer, np.dtype(dtype).itemsize)
    return value if made == dtype else code.sitofp(value, vector_of(MEMORY_TYPES[made], width))


def combination(code: Code, how: str, dtype: str) -> Callable[[ir.Value, ir.Value], ir.Value]:
    """Returns a function that writes how a reduction combines what it has so far with a further value.

    how: "sum", "mean" or "max". A maximum is NaN if one of the values is NaN, and of zeros of either sign the
        later one.
    """
    floats = dtype.startswith("float")

    def larger(current: ir.Value, value: ir.Value) -> ir.Value:
        """Writes the maximum of two values, NaN if one is NaN. current: the maximum so far."""
        if not floats:
            return code.select(code.icmp_signed(">=", current, value), current, value)
        kept = code.or_(code.fcmp_ordered(">", current, value), code.fcmp_unordered("!=", current, current))
        return code.select(kept, current, value)

    return larger if how == "max" else code.fadd if floats else code.add


class WindowCode(CopyCode):
    """Writer of code that copies the windows of all sequences or finds the addresses of their entries, or
    that adds the entries of windows to their steps.

    The entries that lie within the sequence are consecutive, so that none is tested alone. With a stride, a
    step has every n-th entry of some windows: n is the stride over its `common` divisor with the dilation.
    """

    def __init__(self, code: Code, arguments: Sequence[ir.Value], dtype: str) -> None:
        """Takes the builder of a function, and the values of the function's argument words, in the order of
        `WORDS`. dtype: the dtype of the numbers that are added; "" for copies.
        """
        super().__init__(code, arguments)
        self.dtype = dtype
        self.count, self.dilation, self.before, self.stride, common, self.same, self.zeros = self.window
        self.every, self.back = (code.sdiv(number, common) for number in (self.stride, self.dilation))

    def write(self, name: str) -> None:
        """Writes the body of the function that copies or adds windows of steps. A window is the fixed number
        of steps, at a distance from each other, that one entry of the result has. name: "windows", which
        copies the steps of each window; "places", which stores their addresses instead; or "overlap", which
        adds entries of windows to their steps.
        """
        code = self.code
        for row, begin, length in self.each_row():
            made_begin, made_length = (
                code.read_number(table, row) for table in (self.made_starts, self.made_lengths)
            )
            before = self.steps_before(made_length if name == "overlap" else length)
            with code.loop(code.number(0), made_length) as step:
                made = code.add(made_begin, step)
                if name == "overlap":
                    self.add(made, begin, length, code.add(step, before))
                else:
                    write = self.place if name == "places" else self.copy
                    write(made, begin, length, code.sub(code.mul(step, self.stride), before))

    def steps_before(self, steps: ir.Value) -> ir.Value:
        """Writes the number of zeros ahead of a sequence, so that its first window begins there; returns it.
        The number is fixed, or, for windows with as many results as steps / stride ("same"), half of the
        zeros that these need in all. steps: the number of steps of the sequence.
        """
        code, one, stride = self.code, self.code.number(1), self.stride
        windows = code.sdiv(code.add(steps, code.sub(stride, one)), stride)
        reach = code.mul(code.sub(self.count, one), self.dilation)
        needed = code.add(code.mul(code.sub(windows, one), stride), code.add(reach, one))
        zeros = code.sub(needed, steps)
        zeros = code.select(code.icmp_signed("<", zeros, code.number(0)), code.number(0), zeros)
        lower = code.zext(code.icmp_signed("==", self.same, code.number(SAME.index("lower"))), I64)
        middle = code.sdiv(code.add(zeros, lower), code.number(2))
        return code.select(code.icmp_signed("==", self.same, code.number(0)), self.before, middle)

    def entry_from(self, distance: ir.Value) -> ir.Value:
        """Writes the number of the first entry of a window (whose entries are `dilation` steps apart) that
        lies at least `distance` steps behind its first entry.
        """
        code = self.code
        entry = code.sdiv(code.add(distance, code.sub(self.dilation, code.number(1))), self.dilation)
        entry = code.select(code.icmp_signed("<", distance, code.number(1)), code.number(0), entry)
        return code.smaller(entry, self.count)

    def copy(self, made: ir.Value, begin: ir.Value, length: ir.Value, start: ir.Value) -> None:
        """Writes the copy of a window, with zeros outside of the sequence.

        made: the index of the window. begin: the index of the sequence's first step. length: its number of
        steps. start: the step in it of the window's first entry; negative if that is ahead of it.
        """
        code, one = self.code, self.code.number(1)
        first = self.entry_from(code.sub(code.number(0), start))
        end = self.entry_from(code.sub(length, start))
        window = self.entry(self.result, code.mul(made, self.count))
        with code.when(code.icmp_signed("<", code.sub(end, first), self.count)):
            code.zero_bytes(window, code.mul(self.count, self.size))
        # Without gaps between them, the steps of a window are one copy.
        dense = code.icmp_signed("==", self.dilation, one)
        together = code.select(dense, self.count, one)
        together = code.smaller(together, code.sub(end, first))
        with code.loop(first, end, together) as entry:
            read = code.add(start, code.mul(entry, self.dilation))
            source = self.entry(self.source, code.add(begin, read))
            code.copy_bytes(self.entry(window, entry), source, code.mul(together, self.size))

    def place(self, made: ir.Value, begin: ir.Value, length: ir.Value, start: ir.Value) -> None:
        """Writes code that stores the addresses of the steps of one window, in place of a copy of them; for
        steps beyond the sequence the address of zeros.

        made: the index of the window. begin: the index of the sequence's first step. length: its number of
        steps. start: the step in it of the window's first entry; negative if that is ahead of it.
        """
        code = self.code
        window = code.at(self.result, code.mul(code.mul(made, self.count), code.number(ADDRESS_BYTES)))
        first = self.entry(self.source, begin)
        with code.loop(code.number(0), self.count) as entry:
            read = code.add(start, code.mul(entry, self.dilation))
            is_inside = code.icmp_unsigned("<", read, length)
            place = code.select(is_inside, self.entry(first, read), self.zeros)
            code.write_number(code.ptrtoint(place, I64), window, entry)

    def add(self, made: ir.Value, begin: ir.Value, length: ir.Value, behind: ir.Value) -> None:
        """Writes the sum, for one step, of its entries in all windows that reach it, as the gradient of
        copying windows needs.

        made: the index of the step. begin: the index of the sequence's first window. length: its number of
        windows. behind: the number of steps from the first entry of the first window to this step.
        """
        code, one, itemsize = self.code, self.code.number(1), np.dtype(self.dtype).itemsize
        last = code.mul(code.sub(length, one), self.stride)
        first, end = (self.entry_from(far) for far in (code.sub(behind, last), code.add(behind, one)))

        def read_or(entry: ir.Value, other: ir.Value) -> ir.Value:
            """Writes an entry's number if some window has it at the step, or that of another one if not."""
            between = code.srem(code.sub(behind, code.mul(entry, self.dilation)), self.stride)
            return code.select(code.icmp_signed("==", between, code.number(0)), entry, other)

        tried = code.smaller(self.every, code.sub(end, first))
        (own,) = code.carry(0, tried, [end], lambda number, now: [read_or(code.add(first, number), now[0])])
        window = code.add(begin, code.sdiv(code.sub(behind, code.mul(own, self.dilation)), self.stride))
        others = code.sub(code.sub(end, own), one)
        count = code.sdiv(code.add(others, self.every), self.every)
        width = max(1, code.processor.vector_bytes // itemsize)
        whole = code.sub(self.size, code.srem(self.size, code.number(width)))
        for each, start, stop in ((width, code.number(0), whole), (1, whole, self.size)):
            with code.loop(start, stop, each) as column:
                total = self.sum_of(window, own, count, column, each)
                index = code.add(code.mul(made, self.size), column)
                code.write(total, code.at(self.result, code.mul(index, code.number(itemsize))), itemsize)

    def sum_of(
        self, window: ir.Value, first: ir.Value, count: ir.Value, column: ir.Value, width: int
    ) -> ir.Value:
        """Writes the sum, from zero on, of `count` entries of windows (groups of steps, as of a convolution)
        that all lie at the same step; returns it. Each is `every` entries behind the one before it, in a
        window `back` windows earlier.

        window, first: the index of the window that has the first of the entries, and this entry's number.
        column, width: the first of the columns, and how many are added side by side.
        """
        code, itemsize = self.code, np.dtype(self.dtype).itemsize
        type_ = vector_of(MEMORY_TYPES[self.dtype], width)
        combine = combination(code, "sum", self.dtype)

        def at(number: ir.Value) -> ir.Value:
            """Writes a load of the numbers in some columns of entry `number` of those that are added, in the
            window (group of neighbouring steps) that it lies in.
            """
            entry = code.add(first, code.mul(number, self.every))
            own = code.sub(window, code.mul(number, self.back))
            index = code.add(code.mul(code.add(code.mul(own, self.count), entry), self.size), column)
            return code.read(type_, code.at(self.source, code.mul(index, code.number(itemsize))), itemsize)

        zero = ir.Constant(type_, None)
        (total,) = code.carry(0, count, [zero], lambda number, now: [combine(now[0], at(number))])
        return total


def pairwise_sum(
    module: ir.Module, processor: Processor, dtype: str, width: int, made: str | None = None
) -> ir.Function:
    """Generates, once per module, the function pairwise(numbers, count, stride), which adds numbers in
    NumPy's order, so that the sum has the same bits; returns it. stride: the bytes from one number to the
    next.

    dtype: the dtype of the numbers. width: the number of columns that are added side by side.
    made: the dtype in which they are added; None for their own.

    Fewer than 8 numbers are added one by one, up to 128 in 8 parallel sums, more in two halves as NumPy's
    `pairwise_sum` does.
    """
    made = made or dtype
    name = f"pairwise_{dtype}_{made}_{width}"
    known = module.globals.get(name)
    if isinstance(known, ir.Function):
        return known
    type_ = vector_of(MEMORY_TYPES[made], width)
    function = ir.Function(module, ir.FunctionType(type_, [POINTER, I64, I64]), name)
    function.linkage = "internal"
    code = Code(function.append_basic_block("entry"), processor)
    numbers, count, stride = function.args
    abreast = code.number(ABREAST)

    def at(place: ir.Value) -> ir.Value:
        """Writes a load of the number at an index, from the function's strided argument `numbers`."""
        return read_as(code, dtype, made, width, code.at(numbers, code.mul(place, stride)))

    def with_rest(total: ir.Value, first: ir.Value) -> ir.Value:
        """Writes the sum of `total` and the numbers from index `first` to the end, one by one."""
        rest = code.sub(count, first)
        (whole,) = code.carry(0, rest, [total], lambda n, now: [code.fadd(now[0], at(code.add(first, n)))])
        return whole

    few, many = code.append_basic_block("few"), code.append_basic_block("many")
    block, halves = code.append_basic_block("block"), code.append_basic_block("halves")
    code.cbranch(code.icmp_signed("<", count, abreast), few, many)
    code.position_at_end(few)
    code.ret(with_rest(code.splat(type_, -0.0), code.number(0)))
    code.position_at_end(many)
    code.cbranch(code.icmp_signed("<", code.number(BLOCK), count), halves, block)
    code.position_at_end(halves)
    half = code.sdiv(count, code.number(2))
    half = code.sub(half, code.srem(half, abreast))
    behind = code.at(numbers, code.mul(half, stride))
    first = code.call(function, [numbers, half, stride])
    code.ret(code.fadd(first, code.call(function, [behind, code.sub(count, half), stride])))
    code.position_at_end(block)
    whole = code.sub(count, code.srem(count, abreast))
    places = [code.number(place) for place in range(ABREAST)]
    parts = code.carry(
        ABREAST,
        whole,
        [at(place) for place in places],
        lambda step, now: [
            code.fadd(sum_, at(code.add(step, place))) for sum_, place in zip(now, places, strict=True)
        ],
        step=ABREAST,
    )
    while len(parts) > 1:
        parts = [code.fadd(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    code.ret(with_rest(parts[0], whole))
    return function
