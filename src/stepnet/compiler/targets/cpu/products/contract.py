"""The contract kernel: the sum over all rows of the outer products of two vectors, as a product of matrices.

    left [rows, m], right [rows, n]   ->   left.T @ right, [m, n]; or such a matrix for each sequence of rows

    rows 0..127     pack left    [column group][row][8 columns]
                    pack right   [unit block][row][element]
                    tiles        8 columns by 3 unit blocks, a vector accumulator each   ->   added to the sum
    rows 128..255   the same

Several products of the same rows, such as the gradients of both matrices of an LSTM, are one contract: each
block of rows of an operand that they share is packed once.

The sum of all rows of an operand, as the gradient of a bias, is computed while they are packed: the rows of
eight packed words are added up, and this is added to the sum.

Rows are read in place, by their indices. Each element of the result is summed in order over each block of
rows, and the sums of blocks are added in order: it depends only on the rows and their order. Threads divide
the elements of the result, so each tile belongs to one thread.

With operands in bfloat16 a packed word holds the elements of two rows, so there are half as many words as
rows.
"""

import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest

import numpy as np

from stepnet.compiler.net.totals import BLOCK
from stepnet.compiler.net.totals import contract as contract_in_numpy
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import POOL, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.products.tiles import Tile, tiles
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Ranges = tuple[tuple[int, int], tuple[int, int]]
"""The groups of left columns and the units of right columns of a part of a product, each as (first, end)."""
ARGUMENTS = (
    "left",
    "right",
    "result",
    "sums",
    "first_piece",
    "last_piece",
    "pieces",
    "result_stride",
    "left_stride",
    "right_stride",
    "places",
    "left_columns",
    "right_columns",
    "first_group",
    "last_group",
    "first_unit",
    "last_unit",
    "padded",
    "total_stride",
    "packed_left",
    "packed_right",
    "packs_left",
    "packs_right",
    "sums_left",
    "sums_right",
    "ahead_left",
    "ahead_right",
    "products",
)
"""The 64-bit words that describe the work of one thread on one product. Those that change from call to call
come first. The words of the products of a thread follow each other.

pieces: the pointer to the positions at which pieces of rows begin and end in the list of row indices.
result_stride: the bytes from the result of a piece to that of the next one; 0 if all pieces are added up.
padded: the pointer to memory for the sum in whole groups and units, which is then copied to the result; 0 if
the result has no others.
total_stride: the bytes from row to row of the memory in which the sum is computed.
packs_left, packs_right: 0 if a product ahead has packed the same operand; else 1.
sums_left, sums_right: 1 if the thread adds the rows of this operand to `sums` while it packs them; else 0.
ahead_left, ahead_right: the bytes of a row of the next block that a tile fetches during each of its words.
products: the number of products.

The columns of the left side are divided into groups, the columns of the right side into units of one vector.
A thread computes a range of groups by a range of units.
"""
ARGUMENT_INDEX = {name: index for index, name in enumerate(ARGUMENTS)}
DTYPES = ("float32", "float64")
AT_ONCE = 2**31
"""The number of multiply-adds, some hundredths of a second, after which the code returns to Python, so that
signals are handled."""
SHARED = 2**22
"""Threads divide a contract only if it has at least this number of multiply-adds: some 20 microseconds of
work."""

HELD = 2**21
"""A thread fetches the next block of rows while it multiplies if that block, the packed operands and the
thread's part of the sums have at most this number of bytes together: the size of the L2 cache of the
processor on which this was measured. Otherwise they would displace each other."""


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of packed blocks of a contract (a sum of outer products of rows), for a processor and a dtype.

    Groups and units are padded by a cache line: otherwise the same row of each would map to the same cache
    set.
    """

    processor: Processor
    dtype: str
    weights: str | None = None

    @property
    def itemsize(self) -> int:
        """The bytes of one element of an operand of a contract. A packed element takes no more."""
        return np.dtype(self.dtype).itemsize

    @property
    def width(self) -> int:
        """The elements of a vector, which are the columns of a unit of a contract's right operand."""
        return self.processor.vector_bytes // self.itemsize

    @property
    def tile(self) -> Tile:
        """The register tile that computes most of a contract (a sum of outer products). Its rows are columns
        of the left operand that are packed together, a group.
        """
        return tiles(self.processor, 1, 3)[0]

    @property
    def group(self) -> int:
        """The columns of a group of a contract's left operand, packed together as the rows of a tile."""
        return self.tile.rows

    @property
    def group_bytes(self) -> int:
        """The bytes from one packed group of a contract's left columns, with `BLOCK` (128) rows, to the next.
        A contract is a sum over rows of outer products; a group, as many left columns as a register tile has
        rows. A cache line of padding is included.
        """
        return BLOCK * self.group * self.itemsize + LINE

    @property
    def unit_bytes(self) -> int:
        """The bytes from one packed unit of a contract (a sum over rows of outer products), with `BLOCK`
        (128) rows of a vector of right columns, to the next. A cache line of padding is included.
        """
        return BLOCK * self.width * self.itemsize + LINE


@cache
def kernel(processor: Processor, dtype: str, weights: str | None) -> NativeFunction:
    """Returns the machine code that sums outer products of any shape, for a dtype and an encoding."""
    return machine_code("products.contract", processor, dtype, weights).function("contract", ctypes.c_int64)


# ---- calling it --------------------------------------------------------------------------------------------


def contract(left: Array, right: Array, processor: Processor, *, weights: str | None = None) -> Array:
    """Computes the sum over rows of the outer products of two vectors: [..., m] and [..., n] give [m, n].

    It gives the gradients of weights. Operands of other dtypes than `DTYPES` are left to NumPy.

    weights: "bfloat16" to round operands of float32 to bfloat16; None for no rounding.
    """
    have_same_dtype = left.dtype == right.dtype and left.dtype.name in DTYPES
    if not have_same_dtype or not left.shape[-1] or not right.shape[-1]:
        return contract_in_numpy(left, right, weights=weights)
    left, right = (np.ascontiguousarray(array.reshape(-1, array.shape[-1])) for array in (left, right))
    columns, indices = [left.shape[1], right.shape[1]], np.arange(len(left))
    prepared = Contract([(0, 1)], columns, left.dtype.name, indices, processor, weights)
    result = np.empty(columns, left.dtype)
    prepared.point(*map(pointer, (left, right, result)))
    prepared()
    prepared.release()
    return result


class Contract(ParallelCalls):
    """Prepared sums of outer products of rows, for operands of fixed shapes and dtype, with their memory.

    The arrays of each product, which are C-contiguous, are both operands, [all rows, m] and [all rows, n],
    and the result, [m, n] or [sequences, m, n]; and, if any product has sums, those, [m] or [n].
    """

    def __init__(
        self,
        products: Sequence[tuple[int, ...]],
        columns: Mapping[int, int] | Sequence[int],
        dtype: str,
        indices: Array,
        processor: Processor,
        weights: str | None = None,
        offsets: Array | None = None,
        summed: Collection[tuple[int, str]] = (),
    ) -> None:
        """Allocates memory for the sums of outer products of rows, and divides the work among threads.

        products: for each product, the numbers of its left and its right operand.
        columns: the number of columns of each operand, by its number.
        dtype: the dtype of the operands and of the results.
        indices: the indices of the rows to be summed, in order.
        weights: "bfloat16" to round the operands to it; None for no rounding.
        offsets: where the rows of each sequence begin among `indices`, and the end, for a sum for each
            sequence; None for one sum of all rows.
        summed: products that also add up the rows of an operand, as the gradient of a bias: the position of
            each, and "left" or "right". None ahead may have the same operand there. Only for one sum of all
            rows.
        """
        self.summed = frozenset(summed)
        self.indices = np.ascontiguousarray(indices, np.int64)
        self.sizes = BlockSizes(processor, dtype, weights)
        shapes, rows = [(columns[left], columns[right]) for left, right in products], len(indices)
        size = sum(left * right for left, right in shapes)
        at_once = max(1, AT_ONCE // (size * BLOCK)) * BLOCK
        self.is_split = offsets is not None
        if offsets is None:
            offsets = np.append(np.arange(0, max(1, rows), at_once), rows)
        self.pieces = np.ascontiguousarray(offsets, np.int64)
        self.runs = runs_of(self.pieces, at_once)
        blocks = [(-(-left // self.sizes.group), -(-right // self.sizes.width)) for left, right in shapes]
        self.totals = [self.total(shape, padded) for shape, padded in zip(shapes, blocks, strict=True)]
        self.packed_memory: list[Array] = []
        self.arrayed = len(products)
        arguments = [
            words
            for ranges in thread_ranges(blocks, threads() if rows * size >= SHARED else 1)
            for words in self.thread_arguments(products, shapes, ranges)
        ]
        first_rows = range(0, len(arguments), self.arrayed)
        super().__init__(kernel(processor, dtype, weights), np.stack(arguments), first_rows)

    def total(self, shape: tuple[int, int], blocks: tuple[int, int]) -> Array | None:
        """Makes memory for a sum of outer products in whole groups of left columns and units of right
        columns; None if the result itself has whole ones.

        shape: the shape of the result, [left columns, right columns]. blocks: the numbers of groups and of
        units.
        """
        padded = blocks[0] * self.sizes.group, blocks[1] * self.sizes.width
        return None if padded == shape else np.zeros(padded, self.sizes.dtype)

    def thread_arguments(
        self, products: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, int]], ranges: Sequence[Ranges]
    ) -> Iterator[Array]:
        """Makes the arguments (`ARGUMENTS`) of a thread that computes a part of the sums of outer products,
        one row for each product, but for the arrays, and allocates its packed memory.

        products: for each product, the numbers of its operands. shapes: the shapes of the results.
        ranges: for each, the ranges of groups of left columns and of units of right columns that the thread
            computes.
        """
        itemsize, packed = self.sizes.itemsize, dict[tuple[str, int], int]()
        first_memory, every = len(self.packed_memory), list[dict[str, int]]()
        for number, (operands, shape, own) in enumerate(zip(products, shapes, ranges, strict=True)):
            (left, right), (groups, units), total = shape, own, self.totals[number]
            values: dict[str, int] = {
                "last_piece": self.runs[0][1],
                "pieces": pointer(self.pieces),
                "result_stride": left * right * itemsize * self.is_split,
                "left_stride": left * itemsize,
                "right_stride": right * itemsize,
                "places": pointer(self.indices),
                "left_columns": left,
                "right_columns": right,
                "first_group": groups[0],
                "last_group": groups[1],
                "first_unit": units[0],
                "last_unit": units[1],
                "padded": pointer(total),
                "total_stride": (right if total is None else total.shape[1]) * itemsize,
                "products": len(products),
            }
            block_bytes = self.sizes.group_bytes, self.sizes.unit_bytes
            for side, operand, blocks, bytes_ in zip(
                ("left", "right"), operands, own, block_bytes, strict=True
            ):
                values[f"packs_{side}"] = (side, operand) not in packed
                if (side, operand) not in packed:
                    memory = POOL.take((blocks[1] - blocks[0]) * bytes_, zeroed=False)
                    self.packed_memory.append(memory)
                    packed[side, operand] = pointer(memory)
                values[f"packed_{side}"] = packed[side, operand]
                # Threads that divide the other operand all pack this one: the first of them sums it.
                others = units if side == "left" else groups
                values[f"sums_{side}"] = (number, side) in self.summed and others[0] < min(1, others[1])
            every.append(values)
        held = 2 * sum(memory.nbytes for memory in self.packed_memory[first_memory:])
        for values in self.with_ahead(every, ranges, held):
            yield np.array([values.get(name, 0) for name in ARGUMENTS], np.int64)

    def with_ahead(
        self, every: Sequence[dict[str, int]], ranges: Sequence[Ranges], held: int
    ) -> Sequence[dict[str, int]]:
        """Adds to the arguments of a thread's products what their tiles fetch of the next block of rows: the
        columns that the thread packs, or nothing if the near cache does not hold them. Returns the arguments.

        every: the arguments of each product by name. ranges: its groups and units. held: the bytes that the
        cache has to hold beside the sums.
        """
        sizes = self.sizes
        tiles = sum((end - first) * (last - begin) for (first, end), (begin, last) in ranges)
        held += tiles * sizes.group * sizes.width * sizes.itemsize
        for values, blocks in zip(every, ranges, strict=True):
            columns = ("left", blocks[0], sizes.group), ("right", blocks[1], sizes.width)
            for side, (first, end), width in columns:
                fetched = (end - first) * width * sizes.itemsize if values[f"packs_{side}"] else 0
                values[f"ahead_{side}"] = fetched // BLOCK if held <= HELD else 0
        return every

    @property
    def is_one_run(self) -> bool:
        """Tells whether one run of the machine code computes a contract (a sum over rows of outer products),
        because there are so few rows that they take about `AT_ONCE` (2**31) multiply-adds at most.
        """
        return len(self.runs) == 1

    def __call__(self) -> None:
        """Computes the sums of the outer products of the rows, into the result that the arguments point to.
        After each `AT_ONCE` (2**31) multiply-adds or so, or a sequence that has more, Python handles signals.
        """
        first = ARGUMENT_INDEX["first_piece"]
        for run in self.runs:
            self.arguments[:, first : first + 2] = run
            super().__call__()

    def release(self) -> None:
        """Gives the memory for packed operands back to the pool. The contract may not be called again."""
        POOL.give_back(*self.packed_memory)
        self.packed_memory = []


def runs_of(pieces: Array, at_once: int) -> list[tuple[int, int]]:
    """Divides pieces of rows into runs of one piece or of several that have at most `at_once` rows together.
    Returns the numbers (first, end) of the pieces of each run; pieces are given by where they begin and end.

    >>> runs_of(np.array([0, 2, 4, 9, 10]), 4)
    [(0, 2), (2, 3), (3, 4)]
    """
    first, runs = 0, list[tuple[int, int]]()
    while first < len(pieces) - 1:
        end = int(np.searchsorted(pieces, int(pieces[first]) + at_once, "right")) - 1
        runs.append((first, max(first + 1, end)))
        first = runs[-1][1]
    return runs or [(0, 0)]


def thread_ranges(blocks: Sequence[tuple[int, int]], count: int) -> list[list[Ranges]]:
    """Divides the groups of left columns and the units of right columns of products among at most `count`
    threads.

    Threads divide all groups or all units, whichever are more; units in multiples of 3, the width of a
    register tile. Returns, for each thread, (first, end) of both for each product.

    blocks: the numbers of groups and of units of each product.

    >>> thread_ranges([(2, 7)], 2)
    [[((0, 2), (0, 6))], [((0, 2), (6, 7))]]
    >>> thread_ranges([(9, 7), (9, 1)], 2)
    [[((0, 5), (0, 7)), ((0, 5), (0, 1))], [((5, 9), (0, 7)), ((5, 9), (0, 1))]]
    """
    groups, units = zip(*blocks, strict=True)
    if sum(groups) > sum(units):
        parts = zip_longest(*(ranges(size, count, 1) for size in groups), fillvalue=(0, 0))
        return [[(own, (0, size)) for own, size in zip(part, units, strict=True)] for part in parts]
    parts = zip_longest(*(ranges(size, count, 3) for size in units), fillvalue=(0, 0))
    return [[((0, size), own) for size, own in zip(groups, part, strict=True)] for part in parts]


def ranges(size: int, count: int, multiple: int) -> list[tuple[int, int]]:
    """Cuts 0..size into at most `count` ranges (first, end), all but the last a multiple of `multiple`."""
    length = -(-size // (count * multiple)) * multiple
    return [(first, min(size, first + length)) for first in range(0, size, length)]
