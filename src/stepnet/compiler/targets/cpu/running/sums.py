"""Segment sums in machine code: the sum, the mean or the maximum of the values of each sequence.

    values [rows, n], places and offsets of the sequences   ->   sums [sequences, n]

Rows are read in place, through a table. Each sum is one chain of additions in the order of the steps, so its
bits depend only on its own sequence. NumPy would first copy the rows into this order, and adds without
vectors. The sum of one column over all rows is NumPy's (`pairwise`), which is more accurate.
"""

import ctypes
from functools import cache

import numpy as np

from stepnet.compiler.net.reductions import REDUCTIONS
from stepnet.compiler.targets.cpu.lower.needs import has_code
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.products.contract import ranges
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
WORDS = ("values", "sums", "stride", "places", "offsets", "sequences", "begin", "columns")
"""The argument words of one thread, 64 bits each: first those that differ from call to call. stride: the
bytes from row to row. begin: the offset in bytes of the first column that the thread sums. columns: their
number.
"""
WORD = {name: place for place, name in enumerate(WORDS)}
SHARED = 2**18
"""The smallest number of values whose sums are divided among threads: some 50 microseconds of work."""
ABREAST = 4
"""The unroll factor: the vectors of a row per iteration of the loop over columns."""


def reduced(how: str, values: Array, places: Array, offsets: Array, processor: Processor) -> Array:
    """Computes a reduction of the values [rows, ...] of each sequence, by machine code if there is some;
    zeros for an empty sequence.

    how: the reduction, such as "mean" or "last".
    places: the indices of the rows in `values`, sequence by sequence.
    offsets: where each sequence begins in `places`, and where the last one ends.
    """
    if not has_code(how, values.dtype.name) or not values.size:
        return REDUCTIONS[how](values[places], offsets)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    result = np.empty((len(offsets) - 1, rows.shape[1]), values.dtype)
    work = Sums(rows.shape[1], values.dtype.name, places, offsets, processor, how)
    work.point(pointer(rows), pointer(result))
    work()
    return result.reshape(len(result), *values.shape[1:])


class Sums(ParallelCalls):
    """Sum of the rows (of `columns` numbers) of each sequence, prepared for fixed positions of the rows.

    Its arrays, which are C-contiguous, are the values [rows, columns] and the sums [sequences, columns].
    """

    def __init__(
        self, columns: int, dtype: str, places: Array, offsets: Array, processor: Processor, how: str = "sum"
    ) -> None:
        """Divides the columns (numbers of a row) among threads, and writes the arguments that all runs have
        in common.

        places: the rows to sum, sequence by sequence. offsets: where each sequence begins in `places`, and
            the end.
        how: "sum", "mean", "max" or "pairwise", which is NumPy's sum of a single column of rows in order.
        """
        self.held = [np.ascontiguousarray(array, np.int64) for array in (places, offsets)]
        itemsize = np.dtype(dtype).itemsize
        count = threads() if len(places) * columns >= SHARED else 1
        parts = ranges(columns, count, ABREAST * processor.vector_bytes // itemsize)
        same = 0, 0, columns * itemsize, *map(pointer, self.held), len(offsets) - 1
        words = [(*same, first * itemsize, last - first) for first, last in parts]
        super().__init__(kernel(processor, dtype, how), np.array(words, np.int64))


@cache
def kernel(processor: Processor, dtype: str, how: str) -> NativeFunction:
    """Returns the machine code that reduces the rows of each sequence, for a dtype and any shape. how: the
    reduction, "sum", "mean", "max" or "pairwise".
    """
    return machine_code("running.sums", processor, dtype, how).function("sums", ctypes.c_int64)
