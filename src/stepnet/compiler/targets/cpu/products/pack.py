"""Packing of the parameters of products by machine code, for sequential reads by the microkernel.

    W [k, n], of any strides   ->   [unit block][k][gate][element]

A matrix is read in place. Contiguous rows are read as vectors. Contiguous columns (of a transposed matrix)
are read as square blocks of vectors, which are transposed in registers. Other matrices are read element by
element. NumPy would need several passes over memory.

Weights in bfloat16 are rounded while they are packed, two k to a word:

    W [k, n]                   ->   [unit block][k / 2][gate][2 x bfloat16]
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np

from stepnet.compiler.net.encodings import ENCODINGS
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
ARGUMENTS = (
    "count",
    "source",
    "row_bytes",
    "column_bytes",
    "inner",
    "size",
    "packed",
    "step_bytes",
    "block_bytes",
)
"""The 64-bit words that describe one matrix.

count: the number of matrices to pack, of which this is the first; the words of the others follow.
source, row_bytes, column_bytes: the pointer to the matrix, and its strides.
inner, size: its numbers of rows (k) and of columns.
packed: the pointer to the packed matrix.
step_bytes, block_bytes: the packed bytes from one word of k, and from one unit block, to the next.
"""
SHARED = 2**17
"""Threads divide the packing of at least this number of elements: some 50 microseconds of work."""
ARGUMENT_INDEX = {name: index for index, name in enumerate(ARGUMENTS)}


class Packing:
    """Packing of a matrix [k, n], as one of several gates, in the order in which products read it. It is
    prepared for one shape and strides.
    """

    def __init__(
        self,
        like: Array,
        gate: int,
        gates: int,
        width: int,
        packed: Array,
        processor: Processor,
        weights: str | None = None,
    ) -> None:
        """Prepares the arguments of the machine code that packs a matrix [k, n], for the microkernel.

        like: a matrix of the shape, dtype and strides of those to pack.
        gate, gates: the position of the matrix among the gates (the products computed together, as for a
            GRU), and their number.
        width: the elements of a unit block (a vector of columns).
        packed: the bytes of the packed gates. Padding beyond n in the last unit block is not written.
        weights: "bfloat16" to round elements of float32, two k to a word; None for no rounding.
        """
        inner, size = like.shape
        step_bytes = gates * width * like.itemsize
        values = {
            "count": 1,
            "source": 0,
            "row_bytes": like.strides[0],
            "column_bytes": like.strides[1],
            "inner": inner,
            "size": size,
            "packed": pointer(packed) + gate * width * like.itemsize,
            "step_bytes": step_bytes,
            "block_bytes": word_count(inner, weights) * step_bytes,
        }
        self.arguments = np.array([values[name] for name in ARGUMENTS], np.int64)
        self.address = pointer(self.arguments)
        self.run = kernel(processor, like.itemsize, width, weights) if like.size else None

    def __call__(self, source: int) -> None:
        """Packs the matrix that begins at an address, if it has elements, so that products can read it."""
        if self.run is not None:
            self.arguments[ARGUMENT_INDEX["source"]] = source
            self.run.call(self.address)


class Packings:
    """Packings of matrices of parameters into the order in which products read them, all in one call.

    They are divided among threads if they are large.
    """

    def __init__(self, packings: Sequence[Packing], views: Sequence[tuple[int, int]]) -> None:
        """Joins packings of matrices by the same machine code, and divides them among threads.

        packings: those of matrices with elements.
        views: for each packing the position of the parameter, and the offset in bytes of the view in it.
        """
        self.arguments = np.stack([packing.arguments for packing in packings])
        self.parameters, self.offsets = np.array(views, np.int64).T
        run, elements = (
            packings[0].run,
            self.arguments[:, ARGUMENT_INDEX["inner"]] * self.arguments[:, ARGUMENT_INDEX["size"]],
        )
        assert run is not None
        count = min(len(packings), threads()) if elements.sum() >= SHARED else 1
        edges = np.linspace(0, len(packings), count + 1).astype(int)
        self.arguments[edges[:-1], ARGUMENT_INDEX["count"]] = np.diff(edges)
        self.work = ParallelCalls(run, self.arguments, edges[:-1])

    def point(self, addresses: Sequence[int]) -> None:
        """Sets where the parameters begin, of which the matrices that `work` packs are views."""
        self.arguments[:, ARGUMENT_INDEX["source"]] = (
            np.array(addresses, np.int64)[self.parameters] + self.offsets
        )


def word_count(inner: int, weights: str | None) -> int:
    """Returns the number of packed words for `inner` elements of k, the axis that a product sums over: one
    for each element or, of encoded ones, one for as many as 32 bits hold.

    >>> word_count(5, "bfloat16"), word_count(5, None)
    (3, 5)
    """
    return inner if weights is None else -(-inner * ENCODINGS[weights].bytes // 4)


@cache
def kernel(processor: Processor, itemsize: int, width: int, weights: str | None) -> NativeFunction:
    """Returns the machine code that packs matrices of any shape, for an element size and an encoding."""
    return machine_code("products.pack", processor, itemsize, width, weights).function("pack", ctypes.c_int64)
