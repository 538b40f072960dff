"""The machine code of segment sums; see `sums`."""

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.across_code import combination, pairwise_sum
from stepnet.compiler.targets.cpu.running.sums import ABREAST, WORD
from stepnet.compiler.targets.cpu.writing.code import (
    I64,
    MEMORY_TYPES,
    POINTER,
    Code,
    load_vector,
    store_vector,
)


def write_sums(processor: Processor, dtype: str, how: str) -> ir.Module:
    """Generates the LLVM module of the function `sums`, which reduces the rows of each sequence, for a dtype.

    how: "sum", "mean", "max" or "pairwise".
    """
    module = ir.Module("sums")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "sums")
    SumsCode(Code(function.append_basic_block("entry"), processor), dtype, how, function.args[0]).write()
    return module


class SumsCode:
    """Writer of the code that combines each row of a sequence with the sequence's result so far."""

    def __init__(self, code: Code, dtype: str, how: str, words: ir.Value) -> None:
        """Writes loads of the function's arguments from memory. words: the pointer to them. dtype: the dtype
        of the rows. how: the reduction, "sum", "mean", "max" or "pairwise".
        """
        self.code, self.dtype, self.how, self.itemsize = code, dtype, how, np.dtype(dtype).itemsize
        self.width = code.processor.vector_bytes // self.itemsize
        self.words = {name: code.read(I64, code.at(words, 8 * place), 8) for name, place in WORD.items()}
        self.combine = combination(code, how, dtype)

    def write(self) -> None:
        """Writes the body of the function that reduces the rows of each sequence, found through a table of
        their places: a loop that adds them to the sequence's sum, takes their maximum, or divides the sum for
        a mean. "pairwise" adds a column of consecutive numbers in NumPy's order.
        """
        code, words, one = self.code, self.words, self.code.number(1)
        values, places, offsets, total = (
            code.inttoptr(words[name], POINTER) for name in ("values", "places", "offsets", "sums")
        )
        values, total = (code.at(side, words["begin"]) for side in (values, total))
        size = code.mul(words["columns"], code.number(self.itemsize))

        def row_at(row: ir.Value) -> ir.Value:
            """Writes the pointer to a row, by its index in the table of places."""
            return code.at(values, code.mul(code.read_number(places, row), words["stride"]))

        with code.loop(code.number(0), words["sequences"]) as sequence:
            first = code.read_number(offsets, sequence)
            last = code.read_number(offsets, code.add(sequence, one))
            own = code.at(total, code.mul(sequence, words["stride"]))
            code.zero_bytes(own, size)
            filled, begin = code.icmp_signed("<", first, last), first
            if self.how == "max":
                with code.when(filled):
                    code.copy_bytes(own, row_at(first), size)
                begin = code.add(first, code.zext(filled, I64))
            if self.how == "pairwise":
                self.add_column(own, values, code.sub(last, first))
            else:
                with code.loop(begin, last) as row:
                    self.add(own, row_at(row))
            if self.how == "mean":
                self.divide(own, code.select(filled, code.sub(last, first), one))
        code.ret(code.number(0))

    def add(self, total: ir.Value, row: ir.Value) -> None:
        """Writes the addition of a row to the sum of its sequence (or their maximum), column by column: an
        unrolled vector loop, and a scalar loop for the rest. total, row: the pointers to the sum and to the
        row.
        """
        code, columns = self.code, self.words["columns"]
        step = self.width * ABREAST
        whole = code.mul(code.sdiv(columns, code.number(step)), code.number(step))
        for begin, end, width, count in (
            (code.number(0), whole, self.width, ABREAST),
            (whole, columns, 1, 1),
        ):
            with code.loop(begin, end, width * count) as column:
                start = code.mul(column, code.number(self.itemsize))
                for ahead in range(0, width * count * self.itemsize, width * self.itemsize):
                    there, here = (code.at(code.at(side, start), ahead) for side in (total, row))
                    known = load_vector(code, self.dtype, width, there, self.itemsize)
                    value = load_vector(code, self.dtype, width, here, self.itemsize)
                    store_vector(code, self.dtype, self.combine(known, value), there, self.itemsize)

    def divide(self, total: ir.Value, count: ir.Value) -> None:
        """Writes the division of a sequence's sum by its number of rows. total: the pointer to the sum."""
        code, type_ = self.code, MEMORY_TYPES[self.dtype]
        divisor = code.sitofp(count, type_)
        with code.loop(code.number(0), self.words["columns"]) as column:
            own = code.at(total, code.mul(column, code.number(self.itemsize)))
            code.write(code.fdiv(code.read(type_, own, self.itemsize), divisor), own, self.itemsize)

    def add_column(self, total: ir.Value, numbers: ir.Value, count: ir.Value) -> None:
        """Writes the sum of a column of consecutive numbers in NumPy's order (pairwise), beginning with zero.
        total, numbers: the pointers to the sum and to the first number.
        """
        code, itemsize = self.code, self.itemsize
        function = pairwise_sum(code.module, code.processor, self.dtype, 1)
        added = code.call(function, [numbers, count, code.number(itemsize)])
        zero = ir.Constant(MEMORY_TYPES[self.dtype], 0.0)
        code.write(code.fadd(zero, added), total, itemsize)
