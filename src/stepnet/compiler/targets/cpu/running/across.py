"""Operations across extents in machine code: values repeated for all steps, reductions over the steps, and
windows of neighbouring steps.

    words     source | result | rows | starts | lengths | steps | size | count | dilation | before
    task      for each row: its steps to one value, one value to its steps, or its steps to their windows

Their bits are those of NumPy's functions in `HostMemory`. A chain runs them between its kernels, and a
library for C calls the same functions.
"""

import ctypes
from functools import cache

import numpy as np

from stepnet.compiler.net.types import CONST, ROWS, STEPS, extent_text
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import RowAllocator, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.ragged.positions import Positions

WORDS = (
    *("source", "result", "rows", "starts", "lengths", "steps", "size"),
    *("count", "dilation", "before"),
)
"""The argument words of an operation.

source, result: the pointers to the values.
rows: the number of sequences.
starts, lengths: the pointers to the tables of the first entry and the number of steps of each.
steps: the pointer to the offsets of the steps of a sequence, which only the reductions to one step read.
size: the size of a value at one step, without the axis of windows: in numbers for sums and maxima, in bytes
    for others.
count, dilation, before: the steps of a window, as in `Window`; zeros for operations without windows.
"""
WORD = {name: place for place, name in enumerate(WORDS)}
SUMMED = ("float32", "float64", "int32", "int64")
"""The dtypes of sums and maxima that have code."""
ENDS = ("first", "last")


def refusal_of(across: Across) -> str | None:
    """Returns why a repeat or reduction over steps has no machine code, such as its dtype; None if it has."""
    for type_ in (across.source, across.result):
        if type_.extent not in (CONST, ROWS, STEPS):
            return f"it runs over values at {extent_text(type_.extent)}, which NumPy lays out"
    dtype, how, window = across.source.dtype, across.how, across.window
    if window is not None and not window.keeps_lengths:
        return "NumPy copies and adds windows of other numbers than steps"
    if across.operation == "windows":
        return None
    if across.operation == "expand":
        ends = across.source.extent == CONST and across.result.extent == STEPS and how in ENDS
        return "NumPy puts a value at one step of every sequence" if ends else None
    if across.operation == "overlap":
        return None if dtype in SUMMED else f"NumPy adds windows of {dtype}"
    if how not in ENDS and dtype not in SUMMED:
        return f"NumPy computes the {how} over steps of {dtype}"
    return None


def function_of(across: Across) -> tuple[str, str]:
    """Returns the name (such as "repeat", "last", "sum" or "windows") and the dtype of the machine code of an
    operation across extents. The dtype is "" if the code only copies values.
    """
    if across.operation == "expand":
        return across.how if across.how == "repeat" else f"at_{across.how}", ""
    return across.how, "" if across.how in (*ENDS, "windows") else across.source.dtype


def numbers_of(across: Across) -> tuple[int, int, int, int]:
    """Returns the last argument words of an operation: the size of the value of a step, in bytes if the code
    only copies values, else in numbers; and the size, the dilation and the steps before of a window.
    """
    window, value = across.window, across.result if across.operation == "overlap" else across.source
    size = value.size * (1 if function_of(across)[1] else value.itemsize)
    return (size, 0, 0, 0) if window is None else (size, window.size, window.dilation, window.before)


@cache
def across_code(processor: Processor, name: str, dtype: str) -> NativeFunction:
    """Returns the machine code of an operation across extents over the steps of sequences, compiled once.

    name: such as "repeat", "last", "sum" or "windows". dtype: that of the numbers; "" if values are only
        copied.
    """
    return machine_code("running.across", processor, name, dtype).function("across", ctypes.c_int64)


class AcrossTask(ParallelCalls):
    """A repeat of values over the steps of each sequence, a reduction over the steps, or windows of steps,
    with its argument words.

    across: the operation.
    positions: where the steps of the sequences lie.
    rows: allocates arrays for the result.
    count: the number of entries of the result.
    values: the arrays of the operand and the result, which the words point to in a call that is not prepared.
    """

    values: tuple[Array, ...] = ()

    def __init__(self, across: Across, positions: Positions, processor: Processor) -> None:
        """Writes the argument words, but for the pointers of the values. processor: that which runs it."""
        self.across, self.positions = across, positions
        self.rows = RowAllocator(across.result.shape, across.result.dtype)
        self.count = positions.rows if across.result.extent == ROWS else positions.total
        if across.source.extent == CONST:
            # A constant is repeated as the only row, which has all entries of the result.
            self.held: object = np.array([0, self.count])
            places = pointer(self.held), pointer(self.held) + 8, 0
            rows = 1
        else:
            self.held = laid = SequenceLayout.of(positions)
            places, rows = laid.places, positions.rows
        words = np.array([[0, 0, rows, *places, *numbers_of(across)]])
        super().__init__(across_code(processor, *function_of(across)), words)

    @property
    def grows(self) -> bool:
        """Tells whether this repeat or reduction has a result per step, whose size depends on lengths."""
        return self.across.result.extent == STEPS

    def result_of(self, source: Array) -> Array:
        """Allocates and returns the array of the operation's result, which a later call of the task fills.
        The argument words then point to the operand `source` and to the result.
        """
        result = self.rows.new(self.count)
        self.values = source, result
        self.point(pointer(source), pointer(result))
        return result
