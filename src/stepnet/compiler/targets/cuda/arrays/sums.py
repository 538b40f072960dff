"""Kernels that add up rows: over each sequence, over the entries of windows, over pairs of steps.

Every sum has a fixed order, which depends only on the number of its own terms:

    reduced     32 chains, chain c the rows c, c + 32, ..., then the chains in pairs
    overlap     entry after entry
    scores, mix term after term

So a sequence's results have the same bits in any batch. Longer ones are reduced in parts (`memory.py`).
"""

from llvmlite import ir

from stepnet.compiler.targets.cuda.arrays.memory import CHAINS, THREADS
from stepnet.compiler.targets.cuda.arrays.moves import WINDOW_WORDS, over_rows
from stepnet.compiler.targets.cuda.arrays.numbers_code import KernelNumbers
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.writer import KernelWriter
from stepnet.compiler.values.dtypes import DTYPES

OWN = 4
"""The chains of each of these threads."""


# ---- over sequences ----------------------------------------------------------------------------------------


def reduced(how: str, source: str, dtype: str, target: str, is_ordered: bool = False) -> DeviceCode:
    """Writes the kernel that reduces each sequence of rows to one row, and an empty one to zeros.

    Its arguments: `target` [sequences, features], `source` [rows, features], int64 `offsets` and `lengths`
    [sequences + 1], `sequences`, `features`, `tiles` (of 1 << shift features), `shift`, and int64 `order`
    [rows] of the rows of sequences. A mean is the sum divided by the difference of two `lengths`, which are
    offsets too.

    how: "sum", "mean" or "max". source, dtype, target: the dtypes of the rows, of sums and of the result.
    is_ordered: whether row i of all sequences is row order[i] of the source, and not row i.
    """
    arguments = ["target", "source", "offsets", "lengths", "sequences", "features", "tiles", "shift", "order"]
    writer = KernelWriter(f"{how} of {source} over sequences", arguments)
    numbers = KernelNumbers(writer, dtype)
    one, features, shift = writer.number(1), writer.word("features"), writer.word("shift")
    sharing = writer.add(shift, writer.number(CHAINS.bit_length() - 1))
    lane = writer.and_(writer.thread, writer.sub(writer.shl(one, shift), one))
    chain = writer.and_(writer.lshr(writer.thread, shift), writer.number(CHAINS - 1))
    together = writer.lshr(writer.threads, sharing)
    units = writer.mul(writer.word("sequences"), writer.word("tiles"))
    first = writer.mul(writer.block_index, together)
    with writer.loop(first, units, writer.mul(writer.blocks, together)) as base:
        unit = writer.add(base, writer.lshr(writer.thread, sharing))
        sequence = writer.sdiv(unit, writer.word("tiles"))
        tile = writer.sub(unit, writer.mul(sequence, writer.word("tiles")))
        feature = writer.add(writer.shl(tile, shift), lane)
        inside = writer.icmp_signed("<", unit, units)
        inside = writer.and_(inside, writer.icmp_signed("<", feature, features))
        with writer.when(inside):
            total = chains_total(numbers, how, source, is_ordered, sequence, chain, feature)
            numbers.write(numbers.dtype, total, writer.shared(0), writer.thread)
        join_chains(numbers, how, chain)
        with writer.when(writer.and_(inside, writer.icmp_signed("==", chain, writer.number(0)))):
            total = numbers.read(numbers.dtype, writer.shared(0), writer.thread)
            begin, end = bounds(writer, "lengths", sequence)
            is_empty = writer.icmp_signed("==", begin, end)
            if how == "mean":
                total = numbers.divided(total, writer.select(is_empty, one, writer.sub(end, begin)))
            total = writer.select(is_empty, numbers.zero, total)
            place = writer.add(writer.mul(sequence, features), feature)
            numbers.write(target, total, writer.pointer("target"), place)
        writer.barrier()
    return writer.finished(THREADS, shared=THREADS * 8)


def bounds(writer: KernelWriter, offsets: str, sequence: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Writes loads of where a sequence begins and ends. offsets: the argument with the offsets."""
    pointer = writer.pointer(offsets)
    following = writer.add(sequence, writer.number(1))
    return writer.read_number(pointer, sequence), writer.read_number(pointer, following)


def chains_total(
    numbers: KernelNumbers,
    how: str,
    source: str,
    is_ordered: bool,
    sequence: ir.Value,
    chain: ir.Value,
    feature: ir.Value,
) -> ir.Value:
    """Writes the reduction of the `OWN` chains of a thread for one feature of a sequence.

    how, source, is_ordered: see `reduced`. chain: the number of the thread among those that share the sum.
    """
    writer = numbers.writer
    begin, end = bounds(writer, "offsets", sequence)
    rows = [writer.add(begin, writer.add(chain, writer.number(CHAINS * j))) for j in range(OWN)]

    def turn(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Writes a row of each chain; rows behind the end are left out."""
        made = list[ir.Value]()
        for row, total in zip(rows, totals, strict=True):
            there = writer.add(row, index)
            inside = writer.icmp_signed("<", there, end)
            there = writer.select(inside, there, begin)
            if is_ordered:
                there = writer.read_number(writer.pointer("order"), there)
            element = writer.mul(there, writer.word("features"))
            value = numbers.read(source, writer.pointer("source"), writer.add(element, feature))
            made.append(writer.select(inside, numbers.combined(how, total, value), total))
        return made

    initial = [numbers.lowest if how == "max" else numbers.nothing] * OWN
    a, b, c, d = writer.carry(0, writer.sub(end, begin), initial, turn, step=CHAINS * OWN)
    return numbers.combined(how, numbers.combined(how, a, b), numbers.combined(how, c, d))


def join_chains(numbers: KernelNumbers, how: str, chain: ir.Value) -> None:
    """Writes the reduction of the totals of the threads that share a sum, in shared memory, to the first."""
    writer, distance = numbers.writer, CHAINS // 2
    while distance:
        writer.barrier()
        with writer.when(writer.icmp_signed("<", chain, writer.number(distance))):
            away = writer.shl(writer.number(distance), writer.word("shift"))
            a = numbers.read(numbers.dtype, writer.shared(0), writer.thread)
            b = numbers.read(numbers.dtype, writer.shared(0), writer.add(writer.thread, away))
            total = numbers.combined(how, a, b)
            numbers.write(numbers.dtype, total, writer.shared(0), writer.thread)
        distance //= 2


def contracted_rows(left: str, right: str, target: str, way: str) -> DeviceCode:
    """Writes the kernel that adds up, for each sequence, the outer products of its vectors, in their order.

    Its arguments: `target` [sequences, m, n], `left` [vectors, m], `right` [vectors, n], int64 `offsets`,
    `count` (of sequences), `m`, `n`, `shift`. left, right, target: the dtypes. way: "" for the numbers as
    they are, else they are rounded to bfloat16.
    """
    writer = KernelWriter(
        f"outer products of {target}", ["target", "left", "right", "offsets", "count", "m", "n", "shift"]
    )
    numbers = KernelNumbers(writer, DTYPES[target].compute)
    m, n = writer.word("m"), writer.word("n")
    with over_rows(writer, writer.word("count")) as (sequence, place, sharing):
        begin, end = bounds(writer, "offsets", sequence)
        with writer.loop(place, writer.mul(m, n), sharing) as element:
            row = writer.sdiv(element, n)
            column = writer.sub(element, writer.mul(row, n))

            def turn(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                """Writes the sum with the product at one vector."""
                vector = writer.add(begin, index)
                a = numbers.read(left, writer.pointer("left"), writer.add(writer.mul(vector, m), row))
                b = numbers.read(right, writer.pointer("right"), writer.add(writer.mul(vector, n), column))
                a, b = (numbers.rounded(x) if way else x for x in (a, b))
                return [numbers.multiply_add(a, b, totals[0])]

            (total,) = writer.carry(0, writer.sub(end, begin), [numbers.zero], turn)
            index = writer.add(writer.mul(sequence, writer.mul(m, n)), element)
            numbers.write(target, total, writer.pointer("target"), index)
    return writer.finished(THREADS)


# ---- over windows ------------------------------------------------------------------------------------------


def overlap(dtype: str) -> DeviceCode:
    """Writes the kernel that adds each entry of a window to the step that it was read from, as a sum for each
    step over the entries in which it is.

    Its arguments: `WINDOW_WORDS`, `stride`, `features`, `shift`.
    """
    writer = KernelWriter(f"overlap of {dtype}", [*WINDOW_WORDS, "stride", "features", "shift"])
    numbers = KernelNumbers(writer, DTYPES[dtype].compute)
    features, size, stride = writer.word("features"), writer.word("size"), writer.word("stride")
    zero = writer.number(0)
    with over_rows(writer, writer.word("count")) as (step, place, sharing):
        sequence = writer.read_number(writer.pointer("owner"), step)
        first_window, end_window = bounds(writer, "windows", sequence)
        begin, _ = bounds(writer, "steps", sequence)
        ahead = writer.read_number(writer.pointer("befores"), sequence)
        last = writer.add(writer.sub(step, begin), ahead)
        with writer.loop(place, features, sharing) as feature:

            def turn(entry: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                """Writes the sum with an entry, if a window reads the step there."""
                distance = writer.sub(last, writer.mul(entry, writer.word("dilation")))
                number = writer.sdiv(distance, stride)
                window = writer.add(first_window, number)
                reads = writer.and_(
                    writer.icmp_signed(">=", distance, zero),
                    writer.icmp_signed("==", writer.mul(number, stride), distance),
                )
                reads = writer.and_(reads, writer.icmp_signed("<", window, end_window))
                before = writer.block
                with writer.when(reads):
                    row = writer.add(writer.mul(window, size), entry)
                    index = writer.add(writer.mul(row, features), feature)
                    value = numbers.read(dtype, writer.pointer("source"), index)
                    total, there = numbers.sum(totals[0], value), writer.block
                following = writer.phi(numbers.type)
                following.add_incoming(totals[0], before)
                following.add_incoming(total, there)
                return [following]

            (total,) = writer.carry(0, size, [numbers.zero], turn)
            index = writer.add(writer.mul(step, features), feature)
            numbers.write(dtype, total, writer.pointer("target"), index)
    return writer.finished(THREADS)


# ---- over pairs --------------------------------------------------------------------------------------------

PAIR_WORDS = ("target", "first", "second", "owner", "queries", "keys", "pairs", "count", "heads", "size")
"""The arguments of kernels of pairs, and then `shift`.

target, first, second: the result and the operands.
owner: int64, the query of each pair for "scores", the sequence of each query or key for "mix".
queries, keys: int64, the offsets of both, by sequence. pairs: int64, those of the pairs, by query.
count: the rows of the target. heads: the features ahead of the last axis. size: the last axis.
"""


def scores(dtype: str) -> DeviceCode:
    """Writes the kernel that multiplies queries and keys at their pairs, and adds up the last axis.

    Its arguments: `PAIR_WORDS`, `shift`, `sequence_of`: int64, the sequence of each query.
    """
    writer = KernelWriter(f"scores of {dtype}", [*PAIR_WORDS, "shift", "sequence_of"])
    numbers = KernelNumbers(writer, DTYPES[dtype].compute)
    heads, size = writer.word("heads"), writer.word("size")
    with over_rows(writer, writer.word("count")) as (pair, place, sharing):
        query = writer.read_number(writer.pointer("owner"), pair)
        sequence = writer.read_number(writer.pointer("sequence_of"), query)
        first_pair, _ = bounds(writer, "pairs", query)
        key = writer.add(bounds(writer, "keys", sequence)[0], writer.sub(pair, first_pair))
        with writer.loop(place, heads, sharing) as head:
            own, other = (writer.mul(writer.add(writer.mul(row, heads), head), size) for row in (query, key))

            def turn(feature: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                """Writes the sum with the product of one feature."""
                a = numbers.read(dtype, writer.pointer("first"), writer.add(own, feature))
                b = numbers.read(dtype, writer.pointer("second"), writer.add(other, feature))
                return [numbers.multiply_add(a, b, totals[0])]

            (total,) = writer.carry(0, size, [numbers.zero], turn)
            index = writer.add(writer.mul(pair, heads), head)
            numbers.write(dtype, total, writer.pointer("target"), index)
    return writer.finished(THREADS)


def mix(dtype: str, over: str) -> DeviceCode:
    """Writes the kernel that adds up values times their weights at pairs. over: "keys" for the values at the
    keys of each query, "queries" for the values at the queries of each key.

    Its arguments: `PAIR_WORDS`, `shift`.
    """
    writer = KernelWriter(f"mix of {dtype} over {over}", [*PAIR_WORDS, "shift"])
    numbers = KernelNumbers(writer, DTYPES[dtype].compute)
    heads, size = writer.word("heads"), writer.word("size")
    features = writer.mul(heads, size)
    with over_rows(writer, writer.word("count")) as (row, place, sharing):
        sequence = writer.read_number(writer.pointer("owner"), row)
        first_key, _ = bounds(writer, "keys", sequence)
        first_query, end_query = bounds(writer, "queries", sequence)
        begin, end = (first_query, end_query) if over == "queries" else bounds(writer, "pairs", row)
        key = writer.sub(row, first_key)
        with writer.loop(place, features, sharing) as feature:
            head = writer.sdiv(feature, size)

            def turn(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                """Writes the sum with the value at a key or a query, if it is paired."""
                if over == "keys":
                    pair, value_row = writer.add(begin, index), writer.add(first_key, index)
                    return [weighted(pair, value_row, totals[0])]
                query = writer.add(begin, index)
                first_pair, end_pair = bounds(writer, "pairs", query)
                pair, before = writer.add(first_pair, key), writer.block
                with writer.when(writer.icmp_signed("<", pair, end_pair)):
                    total, there = weighted(pair, query, totals[0]), writer.block
                following = writer.phi(numbers.type)
                following.add_incoming(totals[0], before)
                following.add_incoming(total, there)
                return [following]

            def weighted(pair: ir.Value, value_row: ir.Value, total: ir.Value) -> ir.Value:
                """Writes the sum with the weight of a pair times a value."""
                weight = numbers.read(
                    dtype, writer.pointer("first"), writer.add(writer.mul(pair, heads), head)
                )
                index = writer.add(writer.mul(value_row, features), feature)
                return numbers.multiply_add(
                    weight, numbers.read(dtype, writer.pointer("second"), index), total
                )

            (total,) = writer.carry(0, writer.sub(end, begin), [numbers.zero], turn)
            index = writer.add(writer.mul(row, features), feature)
            numbers.write(dtype, total, writer.pointer("target"), index)
    return writer.finished(THREADS)
