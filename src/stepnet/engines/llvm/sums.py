"""The sum of the values of each sequence, in machine code.

    values [rows, n], the rows of each sequence   ->   sums [sequences, n]

Rows are read where they lie, by their places. Each number is one chain of additions in the order of the
steps, so it depends on nothing but its own sequence. NumPy would copy the rows into that order first, and
adds them number by number.
"""

import ctypes
from functools import cache

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.build import MachineCode, NativeFunction
from stepnet.engines.llvm.code import I64, POINTER, Code, load_vector, store_vector
from stepnet.engines.llvm.contract import ranges
from stepnet.engines.llvm.memory import pointer
from stepnet.engines.llvm.target import Target
from stepnet.engines.llvm.workers import Work
from stepnet.engines.threads import threads
from stepnet.net.totals import segment_sum

Array = np.ndarray
ARRAYS = ("values", "sums", "stride")
WORDS = (*ARRAYS, "sums_stride", "places", "offsets", "sequences", "columns")
"""What describes the work of one thread, 64 bits each: first what differs from call to call. stride,
sums_stride: the bytes from row to row. columns: the numbers of each row that the thread adds up.
"""
WORD = {name: place for place, name in enumerate(WORDS)}
DTYPES = ("float32", "float64")
SHARED = 2**18
"""Threads share sums of so many numbers: some 50 microseconds of work."""
ABREAST = 4
"""How many vectors of a row are added one after the other before the code asks whether there are more."""


def sums(values: Array, places: Array, offsets: Array, target: Target) -> Array:
    """The sum over each sequence; zeros for an empty one.

    places: the rows of the values, sequence by sequence. offsets: where those of each sequence begin there,
    and where the last ones end.
    """
    if values.dtype.name not in DTYPES or not values.size:
        return segment_sum(values[places], offsets)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    made = np.empty((len(offsets) - 1, rows.shape[1]), values.dtype)
    Sums(rows.shape[1], values.dtype.name, places, offsets, target)(rows, made)
    return made.reshape(len(made), *values.shape[1:])


class Sums:
    """What runs sums of one form: of rows of so many columns, at these places."""

    def __init__(self, columns: int, dtype: str, places: Array, offsets: Array, target: Target) -> None:
        self.held = [np.ascontiguousarray(array, np.int64) for array in (places, offsets)]
        itemsize = np.dtype(dtype).itemsize
        count = threads() if len(places) * columns >= SHARED else 1
        parts = ranges(columns, count, ABREAST * target.vector_bytes // itemsize)
        self.begins = np.array([first for first, _ in parts]) * itemsize
        self.words = np.zeros((len(parts), len(WORDS)), np.int64)
        same = columns * itemsize, *map(pointer, self.held), len(offsets) - 1
        for words, (first, last) in zip(self.words, parts, strict=True):
            words[len(ARRAYS) :] = *same, last - first
        self.work = Work(kernel(target, dtype), self.words)

    def __call__(self, values: Array, out: Array) -> None:
        """Puts the sums of these values, [rows, columns], into an array: both C-contiguous."""
        out[...] = 0
        for name, array in (("values", values), ("sums", out)):
            self.words[:, WORD[name]] = pointer(array) + self.begins
        self.words[:, WORD["stride"]] = values.strides[0]
        self.work()


@cache
def kernel(target: Target, dtype: str) -> NativeFunction:
    """The machine code for a dtype: one for all shapes."""
    module = ir.Module("sums")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "sums")
    SumsCode(Code(function.append_basic_block("entry"), target), dtype, function.args[0]).write()
    return MachineCode(module, target).function("sums", ctypes.c_int64)


class SumsCode:
    """The code that adds each row of a sequence to its sum, which begins as zeros."""

    def __init__(self, code: Code, dtype: str, words: ir.Value) -> None:
        self.code, self.dtype, self.itemsize = code, dtype, np.dtype(dtype).itemsize
        self.width = code.target.vector_bytes // self.itemsize
        self.words = {name: code.read(I64, code.at(words, 8 * place), 8) for name, place in WORD.items()}

    def write(self) -> None:
        """All rows of all sequences."""
        code, words = self.code, self.words
        values, places, offsets, total = (
            code.inttoptr(words[name], POINTER) for name in ("values", "places", "offsets", "sums")
        )
        with code.loop(code.number(0), words["sequences"]) as sequence:
            first = code.read_number(offsets, sequence)
            last = code.read_number(offsets, code.add(sequence, code.number(1)))
            own = code.at(total, code.mul(sequence, words["sums_stride"]))
            with code.loop(first, last) as row:
                place = code.read_number(places, row)
                self.add(own, code.at(values, code.mul(place, words["stride"])))
        code.ret(code.number(0))

    def add(self, total: ir.Value, row: ir.Value) -> None:
        """Adds a row to a sum: several vectors at a time, and what is left number by number."""
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
