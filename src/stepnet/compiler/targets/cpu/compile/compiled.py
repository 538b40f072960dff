"""Compiled plans, and their cache: bounded by bytes, and without references to the plans.

A plan holds the arrays that its step captured. The cache holds only machine code and the layout of its
arguments, so it keeps no arrays of a deleted recurrence alive.
"""

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from stepnet.compiler.native.call_words import WORDS
from stepnet.compiler.plan.load import Load
from stepnet.compiler.targets.cpu.lower.needs import Needs
from stepnet.compiler.targets.cpu.machine.image import ObjectCode
from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode, NativeFunction
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import Axis, Field, InnerArray, RowSource
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.products.constants import Constants
from stepnet.compiler.values.once import computed_once, drop_oldest
from stepnet.compiler.values.records import dataclass

MOST_BYTES = 32 * 2**20
# The estimated memory of a compiled plan apart from its instructions and tables, mostly LLVM's own objects.
OVERHEAD = 64 * 2**10
DRIVER = "emit.driver"
"""The code that the code of every plan calls, by its name among the kernels that no plan determines."""


@dataclass(frozen=True)
class Layout:
    """Interface of a plan's machine code: all that a caller needs to lay out arguments and memory.

    needs: the arrays that the work after the loop reads.
    memories: for each memory, the source of its initial value, the word of its final values (below 0 for
        none), and its field.
    constants: the layout of constants and packed parameters.
    strides: for each record, the bytes from row to row.
    vector_bytes: the bytes of a vector.
    arguments: the argument words that point to arrays, by kind.
    required_arguments: the words whose arrays must not be omitted.
    sequence_arguments: the words whose arrays `sequences` reads.
    counts: whether the step reads the index of the step.
    load: the work and the memory traffic of the steps.
    axes: the axes of the inner sequences that steps read.
    inner: the arrays of values along these axes.
    """

    needs: Needs
    memories: tuple[tuple[RowSource, int, Field], ...]
    constants: Constants
    strides: dict[str, int]
    vector_bytes: int
    arguments: dict[str, list[int]]
    required_arguments: frozenset[int]
    sequence_arguments: tuple[int, ...]
    counts: bool
    load: Load
    axes: tuple[Axis, ...]
    inner: tuple[InnerArray, ...]

    @property
    def argument_count(self) -> int:
        """The number of 64-bit arguments of a call: those that all plans have, and one for each array."""
        return len(WORDS) + sum(map(len, self.arguments.values()))


@dataclass(frozen=True)
class Generated:
    """Object code of a plan, and its layout, as data that can be stored and read by other processes."""

    code: ObjectCode
    layout: Layout


@dataclass(frozen=True)
class CompiledPlan(Layout):
    """Machine code of a plan, loaded into memory.

    run: runs the sequences of a set of lanes (slots for sequences) of a call.
    sequences: computes the values that are computed once per sequence, ahead of the loop; None if there are
        none.
    ended: computes values of each sequence after the loop; None if there are none.
    totals: computes functions of totals; None if there are none.
    """

    run: NativeFunction
    sequences: NativeFunction | None
    ended: NativeFunction | None
    totals: NativeFunction | None

    @classmethod
    def of(cls, generated: Generated, processor: Processor) -> "CompiledPlan":
        """Loads the machine code of a plan (the operations of a part in their order), generated for a
        processor, into memory, so that it can be called.
        """
        driver, names = machine_code(DRIVER, processor), generated.code.names
        code = MachineCode(generated.code, driver)
        run, sequences, ended, totals = (
            code.function(name, ctypes.c_int64) if name in names else None
            for name in ("run", "sequences", "ended", "totals")
        )
        assert run is not None
        layout = vars(generated.layout)
        return cls(**layout, run=run, sequences=sequences, ended=ended, totals=totals)

    @property
    def code(self) -> MachineCode:
        """The loaded machine code of this compiled plan, with all its functions."""
        return self.run.code

    @computed_once  # the cache adds up all plans whenever it gets another
    def bytes(self) -> int:
        """The estimated memory in bytes of the compiled plan (machine code of a part of a net), for the bound
        of the cache: twice its instructions, its tables of constants, and a fixed amount.
        """
        return OVERHEAD + 2 * self.code.bytes + self.constants.held


Made = TypeVar("Made", CompiledPlan, CompiledPlan | None)


class CompiledPlans:
    """Least-recently-used cache of compiled plans, bounded by bytes.

    There is no lock: two threads may compile the same plan at the same time, and one of the results is kept.
    """

    def __init__(self, most: int) -> None:
        """Makes an empty cache. most: its limit in bytes."""
        self.max_bytes = most
        self.entries: OrderedDict[str, CompiledPlan] = OrderedDict()

    def get(self, key: str, make: Callable[[], Made]) -> Made:
        """Returns the compiled plan (machine code of a part of a net) with a key from the cache. If it is
        missing, returns what `make` returns, and adds that to the cache unless it is None.
        """
        entry = self.entries.pop(key, None) or make()
        if entry is not None:
            self.put(key, entry)
        return entry

    def put(self, key: str, entry: CompiledPlan) -> None:
        """Adds a compiled plan (machine code of a part of a net) with a key to the cache. If the cache is
        then too large, removes the plans whose last use is longest ago.
        """
        self.entries[key] = entry
        # To copy is atomic; to list entries is not, as the collector may run in the middle.
        while (
            sum(entry.bytes for entry in self.entries.copy().values()) > self.max_bytes
            and len(self.entries) > 1
        ):
            drop_oldest(self.entries)
