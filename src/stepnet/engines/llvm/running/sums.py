"""The sum of the values of each sequence, in machine code.

    values [rows, n], the rows of each sequence   ->   sums [sequences, n]

Rows are read where they lie, by their places. Each number is one chain of additions in the order of the
steps, so it depends on nothing but its own sequence. NumPy would copy the rows into that order first, and
adds them number by number.
"""

import ctypes
from functools import cache

import numpy as np

from stepnet.engines.llvm.machine.build import NativeFunction
from stepnet.engines.llvm.machine.memory import pointer
from stepnet.engines.llvm.machine.stored_code import machine_code
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.contract import ranges
from stepnet.engines.llvm.threads.workers import Work
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
    return machine_code("running.sums", target, dtype).function("sums", ctypes.c_int64)
