"""Operations across extents in machine code: values repeated for all steps, reductions over the steps,
windows of neighbouring steps, and copies of steps at the ends of sequences.

    words     source | result | rows | starts | lengths | steps | made_starts | ... | size | count | ...
    task      for each row: its steps to one value, one value to its steps, or its steps to others

Their bits are those of NumPy's functions in `HostMemory`. A chain runs them between its kernels, and a
library for C calls the same functions.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from math import gcd

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS, STEPS, extent_text, is_derived, is_pairs
from stepnet.compiler.net.windows import SAME, check_room
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import RowAllocator, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.threads import threads
from stepnet.ragged.positions import Positions

WORDS = (
    *("source", "result", "rows", "starts", "lengths", "steps", "made_starts", "made_lengths", "size"),
    *("count", "dilation", "before", "stride", "common", "same", "zeros"),
)
"""The argument words of an operation.

source, result: the pointers to the values.
rows: the number of sequences.
starts, lengths: the pointers to the tables of the first entry and the number of steps of each.
steps: the pointer to the offsets of the steps of a sequence, which only the reductions to one step read.
made_starts, made_lengths: the pointers to such tables of the result, which only windows and extensions read:
    they may have another number of results than steps.
size: the size of a value at one step, without the axis of windows: in numbers for sums and maxima, in bytes
    for others.
count, dilation, before, stride: the steps of a window, as in `Window`; `before` also those ahead of a
    sequence that is extended.
common: the greatest common divisor of dilation and stride.
same: the index in `SAME` of the side of windows in the middle of a sequence; 0 for others.
zeros: the pointer to the step of zeros outside of a sequence, which only windows read in place have.
"""
NO_WINDOW = (0, 1, 0, 1, 1, 0)
"""The words from `count` to `same` of operations without windows and copies ahead."""
WORD = {name: place for place, name in enumerate(WORDS)}
BY_SEQUENCE = ("starts", "lengths", "made_starts", "made_lengths")
"""The words that point to tables with an entry for each sequence."""
SHARED_BYTES = 2**17
"""The size of windows from which several threads share them."""
SUMMED = ("float32", "float64", "int32", "int64")
"""The dtypes of sums and maxima that have code."""
ENDS = ("first", "last")


def refusal_of(across: Across, is_laid: bool = False) -> str | None:
    """Returns why an operation across extents (a repeat, a reduction over steps, windows of steps or pairs of
    steps) has no machine code, so that NumPy computes it, such as its dtype; None if it has. is_laid: whether
    the positions of inner and static sequences (within a step, or read whole by each) are known when the task
    is made.
    """
    extents = across.source.extent, across.result.extent
    if is_laid and (across.body is not None or any(map(is_pairs, extents))):
        return "values at pairs of steps run in chains"
    if across.body is not None:
        return None
    if across.operation == "arrange":
        return None if is_laid else "NumPy arranges the steps of sequences"
    for extent in () if is_laid else extents:
        if extent not in (CONST, ROWS, STEPS) and not is_derived(extent) and not is_pairs(extent):
            return f"it runs over values at {extent_text(extent)}, which NumPy lays out"
    dtype, how = across.source.dtype, across.how
    if not across.is_between_steps and extents[0] and abs(len(extents[0]) - len(extents[1])) > 1:
        return f"NumPy repeats values at {extent_text(extents[0])} at {extent_text(extents[1])}"
    if across.operation in ("windows", "extend"):
        return None
    if across.operation == "expand":
        ends = across.source.extent == CONST and across.result.extent != ROWS and how in ENDS
        return "NumPy puts a value at one step of every sequence" if ends else None
    if across.operation == "overlap":
        return None if dtype in SUMMED else f"NumPy adds windows of {dtype}"
    if how not in ENDS and dtype not in SUMMED:
        return f"NumPy computes the {how} over steps of {dtype}"
    return None


def function_of(across: Across) -> tuple[str, str]:
    """Returns the name (such as "repeat", "last", "sum" or "windows") and the dtype of the machine code of an
    operation across extents. The dtype is "" if the code only copies values, or stores their addresses
    ("places", for windows, groups of neighbouring steps, that products read in place). An extension, copies
    of steps at the ends of sequences, has the name of its mode, such as "reflect".
    """
    if across.in_place:
        return "places", ""
    if across.operation == "expand":
        return across.how if across.how == "repeat" else f"at_{across.how}", ""
    copies = across.how in (*ENDS, "windows") or across.extension is not None
    return across.how, "" if copies else across.source.dtype


def numbers_of(across: Across) -> tuple[int, ...]:
    """Returns argument words of an operation: the size of the value of a step, in bytes if the code only
    copies values, else in numbers; and the numbers of a window: its size, dilation, steps ahead, stride, the
    greatest common divisor of stride and dilation, and the code of its kind of padding. An operation without
    windows has `NO_WINDOW` for these, but for the number of steps ahead of extended sequences.
    """
    window, value = across.window, across.result if across.operation == "overlap" else across.source
    size = value.size * (1 if function_of(across)[1] else value.itemsize)
    if across.extension is not None:
        return size, *NO_WINDOW[:2], across.extension.before, *NO_WINDOW[3:]
    if window is None:
        return size, *NO_WINDOW
    common = gcd(window.dilation, window.stride)
    own = window.size, window.dilation, window.before, window.stride, common, SAME.index(window.same)
    return size, *own


@cache
def across_code(processor: Processor, name: str, dtype: str) -> NativeFunction:
    """Returns the machine code of an operation across extents (from sequences to their steps, or back),
    compiled once.

    name: such as "repeat", "last", "sum" or "windows". dtype: the dtype of the numbers; "" if values are only
        copied.
    """
    return machine_code("running.across", processor, name, dtype).function("across", ctypes.c_int64)


def shares(offsets: Array, count: int) -> list[int]:
    """Divides sequences among at most `count` threads, so that each has about as many steps; returns the
    first sequence of each thread.

    offsets: where the sequences begin and end.

    >>> shares(np.array([0, 4, 5, 9, 10]), 2)
    [0, 2]
    """
    goals = np.arange(count) * (int(offsets[-1]) / count)
    return sorted({int(first) for first in np.searchsorted(offsets[:-1], goals)} - {len(offsets) - 1}) or [0]


def task_of(across: Across, positions: Sequence[Positions], processor: Processor) -> "BetweenTask":
    """Makes the task of an operation across extents, such as a sum over the steps of each sequence: its
    machine code with argument words, to be run in a call.

    positions: where the sequences lie, for each extent that the operation reads or makes. processor: the
    processor that runs the code.
    """
    if across.body is not None:
        return late_import("running.pairs").PairsTask(across, positions, processor)
    read, made = positions
    return AcrossTask(across, read, made, processor)


class BetweenTask(ParallelCalls):
    """An operation across extents with its argument words: first those of its operands and of its result.

    across: the operation.
    rows: allocates arrays for the result.
    count: the number of entries of the result.
    values: the arrays of the operands and the result, which the words point to in a call that is not
        prepared.
    held: objects whose memory the words point to.
    """

    values: tuple[Array, ...] = ()
    held: tuple[object, ...] = ()

    def __init__(self, across: Across, count: int) -> None:
        """Takes the operation and the number of entries of its result; `begin` follows."""
        self.across, self.count = across, count
        self.rows = RowAllocator(across.result.shape, across.result.dtype)

    def begin(self, function: NativeFunction, words: Array) -> None:
        """Takes the machine code, and the argument words of each thread."""
        super().__init__(function, words)

    @property
    def grows(self) -> bool:
        """Tells whether this operation has a result per step, whose size depends on lengths."""
        return len(self.across.result.extent) > 1

    def result_of(self, *operands: Array) -> Array:
        """Allocates and returns the array of the operation's result, which a later call of the task fills.
        The argument words then point to the operands and to the result. For windows read in place it has the
        addresses of steps, [windows, size].
        """
        result = self.rows.new(self.count)
        self.values = *operands, result
        self.point(*map(pointer, self.values))
        return result


class AcrossTask(BetweenTask):
    """A repeat of values over the steps of each sequence, a reduction over the steps, windows of steps, or
    copies of steps at the ends of sequences, with its argument words.
    """

    def __init__(self, across: Across, positions: Positions, made: Positions, processor: Processor) -> None:
        """Writes the argument words of the machine code, but for the pointers of the values, and divides
        windows or copies of many steps among threads.

        positions, made: where the steps of the sequences lie that are read, and those of the result.
        processor: the processor that runs it.

        Raises `InputError` for more results than windows of these steps can have, and for sequences with
        fewer steps than reflection reads.
        """
        deep = across.result.extent == across.extents[-1]
        super().__init__(across, made.total if deep else positions.rows)
        self.zeros: Array | None = None
        if across.in_place:
            self.rows = RowAllocator(across.result.shape[:1], np.int64)
            self.zeros = np.zeros(across.source.shape, across.source.dtype)
        self.firsts = [0]
        if across.source.extent == CONST:
            # A constant is repeated as the only row, which has all entries of the result.
            single = np.array([0, self.count])
            self.held = (single,)
            places, rows = (pointer(single), pointer(single) + 8, 0, 0, 0), 1
        else:
            laid, results = SequenceLayout.of(positions), SequenceLayout.of(made)
            self.held = laid, results
            places, rows = (*laid.places, *results.places[:2]), positions.rows
        if across.extension is not None:
            across.extension.check(positions.lengths)
        elif across.window is not None and not across.window.keeps_lengths:
            check_room(across.operation, made.offsets, positions.offsets, across.window)
        if across.is_between_steps:
            work = max(
                self.count * self.rows.bytes, positions.total * across.source.size * across.source.itemsize
            )
            self.firsts = shares(made.offsets, threads() if work >= SHARED_BYTES else 1)
        numbers = *numbers_of(across), pointer(self.zeros)
        words = np.array([[0, 0, rows, *places, *numbers]] * len(self.firsts))
        words[:, WORD["rows"]] = np.diff([*self.firsts, rows])
        self.begin(across_code(processor, *function_of(across)), words)
        self.point_tables({name: words[0, WORD[name]] for name in BY_SEQUENCE})

    def point_tables(self, tables: Mapping[str, int]) -> None:
        """Writes the addresses of tables with an entry per sequence; each thread has its own sequences'."""
        for name, address in tables.items():
            self.arguments[:, WORD[name]] = [address + 8 * first for first in self.firsts]
