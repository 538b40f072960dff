"""Generates the operations between plans: broadcasts to a deeper extent, and reductions over sequences."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir

from stepnet.build.library_code import LibraryCode, function
from stepnet.build.recipe import ENDS, Reduction, Spread
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.targets.cpu.machine.target import Processor
from stepnet.compiler.targets.cpu.writing.code import I64, MEMORY_TYPES, POINTER

SUMMED_UP = ("sum", "mean")
ABREAST, BLOCK = 8, 128
"""NumPy's pairwise summation: the number of parallel sums, and the most numbers that they add directly."""


def write_spread(run: Any, spread: Spread) -> None:
    """Writes code that repeats a value for all sequences or steps, or puts it only at the first or last step
    of each sequence; other steps are zero then. run: the `RunCode`, whose pointers it reads. spread: the
    operation.
    """
    code: LibraryCode = run.code
    net, size = run.model.net, code.number(spread.bytes)
    source, target = run.values[spread.source], run.values[spread.result]
    into = net.type_of(spread.result).extent
    zero, one = code.number(0), code.number(1)
    if net.type_of(spread.source).extent == CONST:
        with code.loop(zero, run.count_of(into)) as place:
            code.move(code.at(target, code.mul(place, size)), source, size)
        return
    assert into != ROWS
    if spread.how:
        code.clear(target, code.mul(run.steps, size))
    with code.loop(zero, run.rows) as row:
        begin, end = code.read_number(run.offsets, row), code.read_number(run.offsets, code.add(row, one))
        if spread.how == "first":
            end = code.smaller(end, code.add(begin, one))
        elif spread.how == "last":
            begin = code.larger(begin, code.sub(end, one))
        own = code.at(source, code.mul(row, size))
        with code.loop(begin, end) as place:
            code.move(code.at(target, code.mul(place, size)), own, size)


def write_reduction(
    code: LibraryCode, reduction: Reduction, values: Mapping[int, ir.Value], rows: ir.Value, offsets: ir.Value
) -> None:
    """Writes the code of a reduction over the steps of each sequence; an empty sequence gives zeros. values:
    the pointers to the values, by node number. rows: the number of sequences. offsets: the array of their
    starts.

    With `reduction.from_zero`, a sum begins at zero and adds one value after the other, as the machine code
    does. Otherwise it is the first value plus the pairwise sum of the others, as in NumPy.
    """
    one, itemsize = code.number(1), np.dtype(reduction.dtype).itemsize
    row_bytes = code.number(reduction.size * itemsize)
    with code.loop(code.number(0), rows) as row:
        begin, end = code.read_number(offsets, row), code.read_number(offsets, code.add(row, one))
        target = code.at(values[reduction.result], code.mul(row, row_bytes))
        code.clear(target, row_bytes)

        def at(step: ir.Value) -> ir.Value:
            """Returns the pointer to the values of a step, by its index among all steps."""
            return code.at(values[reduction.source], code.mul(step, row_bytes))

        starts_at_first = reduction.how in (*ENDS, "max") or not reduction.from_zero
        with code.when(code.less(begin, end)):
            if starts_at_first:
                first = code.sub(end, one) if reduction.how == "last" else begin
                code.move(target, at(first), row_bytes)
            in_pairs = reduction.how in SUMMED_UP and starts_at_first and reduction.dtype.startswith("float")
            if in_pairs:
                more = code.sub(code.sub(end, begin), one)
                with code.when(code.less(code.number(0), more)):
                    add_pairwise(code, reduction, target, at(code.add(begin, one)), more)
            elif reduction.how not in ENDS:
                with code.loop(code.add(begin, one) if starts_at_first else begin, end) as step:
                    combine(code, reduction, target, at(step))
            if reduction.how == "mean":
                divide(code, reduction, target, code.sub(end, begin))


def combine(code: LibraryCode, reduction: Reduction, target: ir.Value, source: ir.Value) -> None:
    """Writes code that adds the values of a step at `source` to `target`, or takes their maximum, in which a
    NaN wins. It is done for each element.
    """
    type_, itemsize = MEMORY_TYPES[reduction.dtype], np.dtype(reduction.dtype).itemsize
    floats = reduction.dtype.startswith("float")
    with code.loop(code.number(0), code.number(reduction.size)) as column:
        place = code.mul(column, code.number(itemsize))
        current, value = (code.read(type_, code.at(side, place), itemsize) for side in (target, source))
        if reduction.how != "max":
            combined = code.fadd(current, value) if floats else code.add(current, value)
        elif floats:  # a NaN is kept
            keeps_current = code.or_(
                code.fcmp_ordered(">=", current, value), code.fcmp_unordered("!=", current, current)
            )
            combined = code.select(keeps_current, current, value)
        else:
            combined = code.select(code.icmp_signed(">=", current, value), current, value)
        code.write(combined, code.at(target, place), itemsize)


def add_pairwise(
    code: LibraryCode, reduction: Reduction, target: ir.Value, source: ir.Value, count: ir.Value
) -> None:
    """Writes code that adds the pairwise sum over `count` steps to each element of the sum at `target`.
    source: the values of the first of these steps. Only for floats. Pairwise sums have the bits of NumPy's.
    """
    type_, itemsize = MEMORY_TYPES[reduction.dtype], np.dtype(reduction.dtype).itemsize
    pairwise = pairwise_sum(code.module, code.target, reduction.dtype)
    with code.loop(code.number(0), code.number(reduction.size)) as column:
        place = code.mul(column, code.number(itemsize))
        there = code.at(target, place)
        stride = code.number(reduction.size * itemsize)
        added = code.call(pairwise, [code.at(source, place), count, stride])
        code.write(code.fadd(code.read(type_, there, itemsize), added), there, itemsize)


def pairwise_sum(module: ir.Module, target: Processor, dtype: str) -> ir.Function:
    """Generates, once per module, the function pairwise(numbers, count, stride), which adds in NumPy's order;
    returns it. stride: the bytes from one number to the next. Fewer than 8 numbers are added one by one, up
    to 128 in 8 parallel sums, more in two halves (see NumPy's `pairwise_sum`).
    """
    name = f"pairwise_{dtype}"
    known = module.globals.get(name)
    if isinstance(known, ir.Function):
        return known
    type_, itemsize = MEMORY_TYPES[dtype], np.dtype(dtype).itemsize
    made, code = function(module, target, name, type_, [POINTER, I64, I64], public=False)
    numbers, count, stride = made.args
    zero, abreast, total = code.number(0), code.number(ABREAST), code.alloca(type_)

    def at(place: ir.Value) -> ir.Value:
        """Writes a load of the number at an index, from the function's strided argument `numbers`."""
        return code.read(type_, code.at(numbers, code.mul(place, stride)), itemsize)

    def add_rest(first: ir.Value) -> None:
        """Writes code that adds the numbers from index `first` to the end to `total`, one by one."""
        with code.loop(first, count) as place:
            code.store(code.fadd(code.load(total), at(place)), total)

    with code.when(code.less(count, abreast)):
        code.store(ir.Constant(type_, -0.0), total)
        add_rest(zero)
    code.return_when(code.less(count, abreast), code.load(total))
    block, halves = code.append_basic_block("block"), code.append_basic_block("halves")
    code.cbranch(code.less(code.number(BLOCK), count), halves, block)
    code.position_at_end(halves)
    half = code.sdiv(count, code.number(2))
    half = code.sub(half, code.srem(half, abreast))
    rest = code.at(numbers, code.mul(half, stride))
    first = code.call(made, [numbers, half, stride])
    code.ret(code.fadd(first, code.call(made, [rest, code.sub(count, half), stride])))
    code.position_at_end(block)
    sums = code.alloca(type_, abreast)
    whole = code.sub(count, code.srem(count, abreast))
    with code.loop(zero, abreast) as place:
        code.write(at(place), code.at(sums, code.mul(place, code.number(itemsize))), itemsize)
    with code.loop(abreast, whole) as place:
        own = code.at(sums, code.mul(code.srem(place, abreast), code.number(itemsize)))
        code.write(code.fadd(code.read(type_, own, itemsize), at(place)), own, itemsize)
    parts = [code.read(type_, code.at(sums, itemsize * place), itemsize) for place in range(ABREAST)]
    while len(parts) > 1:
        parts = [code.fadd(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    code.store(parts[0], total)
    add_rest(whole)
    code.ret(code.load(total))
    return made


def divide(code: LibraryCode, reduction: Reduction, target: ir.Value, length: ir.Value) -> None:
    """Writes code that divides the sum at `target` by the sequence's length, which makes it a mean.
    reduction: a mean of floats.
    """
    type_, itemsize = MEMORY_TYPES[reduction.dtype], np.dtype(reduction.dtype).itemsize
    count = code.sitofp(length, type_)
    with code.loop(code.number(0), code.number(reduction.size)) as column:
        place = code.at(target, code.mul(column, code.number(itemsize)))
        code.write(code.fdiv(code.read(type_, place, itemsize), count), place, itemsize)
