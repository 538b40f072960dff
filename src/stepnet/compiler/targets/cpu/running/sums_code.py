"""The machine code of segment sums; see `sums`."""

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.target import Processor
from stepnet.compiler.targets.cpu.running.sums import ABREAST, WORD
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code, load_vector, store_vector


def write_sums(target: Processor, dtype: str) -> ir.Module:
    """Generates the LLVM module of the function `sums`: the sum of the rows of each sequence, for a dtype."""
    module = ir.Module("sums")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "sums")
    SumsCode(Code(function.append_basic_block("entry"), target), dtype, function.args[0]).write()
    return module


class SumsCode:
    """Writer of the code that adds each row of a sequence to the sequence's sum, which begins with zeros."""

    def __init__(self, code: Code, dtype: str, words: ir.Value) -> None:
        """Writes loads of the function's arguments from memory. words: the pointer to them."""
        self.code, self.dtype, self.itemsize = code, dtype, np.dtype(dtype).itemsize
        self.width = code.target.vector_bytes // self.itemsize
        self.words = {name: code.read(I64, code.at(words, 8 * place), 8) for name, place in WORD.items()}

    def write(self) -> None:
        """Writes the body of the function: for each sequence, a loop that adds its rows, found through the
        table of places, to its sum.
        """
        code, words = self.code, self.words
        values, places, offsets, total = (
            code.inttoptr(words[name], POINTER) for name in ("values", "places", "offsets", "sums")
        )
        values, total = (code.at(side, words["begin"]) for side in (values, total))
        size = code.mul(words["columns"], code.number(self.itemsize))
        with code.loop(code.number(0), words["sequences"]) as sequence:
            first = code.read_number(offsets, sequence)
            last = code.read_number(offsets, code.add(sequence, code.number(1)))
            own = code.at(total, code.mul(sequence, words["stride"]))
            code.zero_bytes(own, size)
            with code.loop(first, last) as row:
                place = code.read_number(places, row)
                self.add(own, code.at(values, code.mul(place, words["stride"])))
        code.ret(code.number(0))

    def add(self, total: ir.Value, row: ir.Value) -> None:
        """Writes the addition of a row to a sum, column by column: an unrolled vector loop, and a scalar loop
        for the rest. total, row: the pointers to the sum and to the row.
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
                    store_vector(code, self.dtype, code.fadd(known, value), there, self.itemsize)
