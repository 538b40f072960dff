"""Packing of the parameters of products by machine code, for sequential reads by the microkernel.

    W [k, n], of any strides   ->   [unit block][k][gate][element]

A matrix is read in place. Contiguous rows are read as vectors. Contiguous columns (of a transposed matrix)
are read as square blocks of vectors, which are transposed in registers. Other matrices are read element by
element. NumPy would need several passes over memory.

Weights in bfloat16 are rounded while they are packed, two k to a word:

    W [k, n]                   ->   [unit block][k / 2][gate][2 x bfloat16]

Vectors, such as biases, are copied and added by another function.
"""

import ctypes
from collections.abc import Iterable, Sequence
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
    "offset",
    "row_bytes",
    "column_bytes",
    "inner",
    "size",
    "packed",
    "step_bytes",
    "block_bytes",
)
"""The 64-bit words that describe one matrix.

count: the number of matrices to pack: this one, and those whose words follow.
source, offset: the pointer to the array that the matrix is a part of, and where it begins there, in bytes.
row_bytes, column_bytes: its strides.
inner, size: its numbers of rows (k) and of columns.
packed: the pointer to the packed matrix.
step_bytes, block_bytes: the packed bytes from one word of k, and from one unit block, to the next.
"""
SHARED = 2**17
"""Threads divide the packing of at least this number of elements: some 50 microseconds of work."""
ARGUMENT_INDEX = {name: index for index, name in enumerate(ARGUMENTS)}

VECTOR_WORDS = ("count", "into", "source", "offset", "bytes", "adds")
"""The 64-bit words of a row of sums of vectors. The first row of a sum copies a vector, and the others add
theirs to it, in the order of the net.

count: the number of rows from this one on. into: the pointer to the sum.
source, offset: the pointer to a parameter, and where the vector begins in it. bytes: those of the vector.
adds: 1 to add the vector to the sum, 0 to copy it there.
"""
VECTOR_WORD = {name: place for place, name in enumerate(VECTOR_WORDS)}
Term = tuple[int, int]
"""A vector of a sum: the position of its parameter, and its offset in bytes."""


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
            "offset": 0,
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


class ParameterTask(ParallelCalls):
    """Machine code that reads parameters, and can be a task of a prepared call."""

    def __init__(
        self,
        function: NativeFunction,
        arguments: Array,
        word: int,
        parameters: Sequence[int],
        first_rows: Iterable[int],
    ) -> None:
        """Takes a function and its rows of arguments, as `ParallelCalls` does.

        word: the word of each row with the pointer to a parameter. parameters: the positions of those.
        """
        super().__init__(function, arguments, first_rows)
        self.word, self.parameters = word, np.array(parameters, np.int64)

    def read(self, addresses: Sequence[int]) -> None:
        """Sets where the parameters begin."""
        self.arguments[:, self.word] = np.array(addresses, np.int64)[self.parameters]

    def read_from(self, first: int) -> None:
        """Lets a prepared call set where parameters begin. first: the number of the first one's address."""
        words = range(self.word, self.arguments.size, self.arguments.shape[1])
        self.sources = [*zip(words, (self.parameters + first).tolist(), strict=True)]


def packings_of(packings: Sequence[Packing], views: Sequence[tuple[int, int]]) -> ParameterTask:
    """Joins packings of matrices by the same machine code, and divides them among threads if they are large.

    packings: the packings of matrices with elements.
    views: for each packing the position of the parameter, and the offset in bytes of the view in it.
    """
    arguments = np.stack([packing.arguments for packing in packings])
    parameters, arguments[:, ARGUMENT_INDEX["offset"]] = np.array(views, np.int64).T
    elements = arguments[:, ARGUMENT_INDEX["inner"]] * arguments[:, ARGUMENT_INDEX["size"]]
    count = min(len(packings), threads()) if elements.sum() >= SHARED else 1
    edges = np.linspace(0, len(packings), count + 1).astype(int)
    arguments[edges[:-1], ARGUMENT_INDEX["count"]] = np.diff(edges)
    run = packings[0].run
    assert run is not None
    return ParameterTask(run, arguments, ARGUMENT_INDEX["source"], parameters.tolist(), edges[:-1])


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


def vector_sums(
    dtype: str, sums: Sequence[tuple[int, int, Sequence[Term]]], processor: Processor
) -> ParameterTask:
    """Prepares sums of vectors of parameters of a dtype, such as the biases of a gate: for each the address
    of the sum, its bytes, and its terms.
    """
    count = sum(len(terms) for *_, terms in sums)
    rows = [
        (count, into, 0, offset, size, int(number > 0))
        for into, size, terms in sums
        for number, (_, offset) in enumerate(terms)
    ]
    parameters = [parameter for *_, terms in sums for parameter, _ in terms]
    return ParameterTask(
        vectors_kernel(processor, dtype), np.array(rows, np.int64), VECTOR_WORD["source"], parameters, [0]
    )


@cache
def vectors_kernel(processor: Processor, dtype: str) -> NativeFunction:
    """Returns the machine code that copies and adds vectors of a dtype."""
    return machine_code("products.vectors", processor, dtype).function("vectors", ctypes.c_int64)
