"""The code of what runs between the machine code of plans: values repeated, and values of sequences."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir

from stepnet.build.library_code import LibraryCode
from stepnet.build.recipe import ENDS, Reduction, Spread
from stepnet.engines.llvm.writing.code import MEMORY_TYPES
from stepnet.net.types import CONST, ROWS


def write_spread(run: Any, spread: Spread) -> None:
    """A value repeated, or put at one step of each sequence, with zeros at the others."""
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
    """One value of each sequence; zeros for an empty one.

    Sums begin at zero, or at the first value (`from_zero`): as NumPy's do, and those of the machine code.
    """
    one, itemsize = code.number(1), np.dtype(reduction.dtype).itemsize
    row_bytes = code.number(reduction.size * itemsize)
    with code.loop(code.number(0), rows) as row:
        begin, end = code.read_number(offsets, row), code.read_number(offsets, code.add(row, one))
        target = code.at(values[reduction.result], code.mul(row, row_bytes))
        code.clear(target, row_bytes)

        def at(step: ir.Value) -> ir.Value:
            return code.at(values[reduction.source], code.mul(step, row_bytes))

        starts_at_first = reduction.how in (*ENDS, "max") or not reduction.from_zero
        with code.when(code.less(begin, end)):
            if starts_at_first:
                first = code.sub(end, one) if reduction.how == "last" else begin
                code.move(target, at(first), row_bytes)
            if reduction.how not in ENDS:
                with code.loop(code.add(begin, one) if starts_at_first else begin, end) as step:
                    combine(code, reduction, target, at(step))
                if reduction.how == "mean":
                    divide(code, reduction, target, code.sub(end, begin))


def combine(code: LibraryCode, reduction: Reduction, target: ir.Value, source: ir.Value) -> None:
    """The values of one step added to a sum, or compared with the largest so far."""
    type_, itemsize = MEMORY_TYPES[reduction.dtype], np.dtype(reduction.dtype).itemsize
    floats = reduction.dtype.startswith("float")
    with code.loop(code.number(0), code.number(reduction.size)) as column:
        place = code.mul(column, code.number(itemsize))
        known, value = (code.read(type_, code.at(side, place), itemsize) for side in (target, source))
        if reduction.how != "max":
            made = code.fadd(known, value) if floats else code.add(known, value)
        elif floats:  # a value that is no number stays
            kept = code.or_(code.fcmp_ordered(">=", known, value), code.fcmp_unordered("!=", known, known))
            made = code.select(kept, known, value)
        else:
            made = code.select(code.icmp_signed(">=", known, value), known, value)
        code.write(made, code.at(target, place), itemsize)


def divide(code: LibraryCode, reduction: Reduction, target: ir.Value, length: ir.Value) -> None:
    """A sum divided by the number of its values."""
    type_, itemsize = MEMORY_TYPES[reduction.dtype], np.dtype(reduction.dtype).itemsize
    count = code.sitofp(length, type_)
    with code.loop(code.number(0), code.number(reduction.size)) as column:
        place = code.at(target, code.mul(column, code.number(itemsize)))
        code.write(code.fdiv(code.read(type_, place, itemsize), count), place, itemsize)
