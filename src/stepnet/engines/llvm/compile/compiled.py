"""Compiled plans, cached for equal plans: bounded by their bytes, and without references to the plans.

A plan holds the arrays that its step captured. The cache holds machine code and the places of its arrays, so
that it keeps nothing alive of a recurrence that is gone.
"""

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stepnet.engines.llvm.lower.needs import Needs
from stepnet.engines.llvm.machine.build import MachineCode, NativeFunction
from stepnet.engines.llvm.machine.image import ObjectCode
from stepnet.engines.llvm.machine.records import Axis, Field, Source, Words
from stepnet.engines.llvm.machine.words import WORDS
from stepnet.engines.llvm.products.constants import Constants
from stepnet.plan.load import Load

MOST_BYTES = 32 * 2**20
# What a compiled plan takes besides its instructions and its tables: LLVM's own objects, most of all.
OVERHEAD = 64 * 2**10


@dataclass(frozen=True)
class Layout:
    """What a call has to know of the machine code of a plan.

    needs: the arrays that the end needs.
    memories: for each the source of its first value, the word of its last values and its field. constants:
    the layout of values made from the parameters. strides: bytes from row to row of each record. words: the
    words of a call that are pointers to arrays, by kind. wanted: those that must be present. sequence_words:
    those that `sequences` reads. counts: whether steps are counted. load: what the steps compute and read.
    axes, inner: the inner sequences that steps read, and the arrays with their values.
    """

    needs: Needs
    memories: tuple[tuple[Source, int, Field], ...]
    constants: Constants
    strides: dict[str, int]
    words: dict[str, list[int]]
    wanted: frozenset[int]
    sequence_words: tuple[int, ...]
    counts: bool
    load: Load
    axes: tuple[Axis, ...]
    inner: tuple[Words, ...]


@dataclass(frozen=True)
class Generated:
    """What is generated for a plan: object code, and its layout; data that other processes can read."""

    code: ObjectCode
    layout: Layout


@dataclass(frozen=True)
class Compiled(Layout):
    """The machine code of a plan, loaded.

    `run` is for the lanes of a call, `sequences` for values computed once per sequence, `ended` for those
    computed for each sequence at the end (None where there are none).
    """

    run: NativeFunction
    sequences: NativeFunction | None
    ended: NativeFunction | None

    @classmethod
    def of(cls, generated: Generated) -> "Compiled":
        """What was generated, loaded."""
        code, names = MachineCode(generated.code), generated.code.names
        sequences, ended = (code.function(name) if name in names else None for name in ("sequences", "ended"))
        return cls(
            **vars(generated.layout),
            run=code.function("run", ctypes.c_int64),
            sequences=sequences,
            ended=ended,
        )

    @property
    def code(self) -> MachineCode:
        """The machine code of its functions."""
        return self.run.code

    @property
    def word_count(self) -> int:
        """The number of words that describe a call."""
        return len(WORDS) + sum(map(len, self.words.values()))

    @property
    def bytes(self) -> int:
        """An estimate of the memory that it takes."""
        return OVERHEAD + 2 * self.code.bytes + self.constants.held


Made = TypeVar("Made", Compiled, Compiled | None)


class Kept:
    """A cache of the last results, bounded by bytes: the entry that was not used for the longest time goes
    first.

    There is no lock: two threads may compile the same plan at the same time, and one result is kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: OrderedDict[str, Compiled] = OrderedDict()

    def get(self, key: str, make: Callable[[], Made]) -> Made:
        """The entry of a key; it is made where there is none, unless that gives None."""
        entry = self.entries.pop(key, None) or make()
        if entry is not None:
            self.put(key, entry)
        return entry

    def put(self, key: str, entry: Compiled) -> None:
        """Adds an entry, as the last one used."""
        self.entries[key] = entry
        while (
            sum(entry.bytes for entry in tuple(self.entries.values())) > self.most and len(self.entries) > 1
        ):
            self.entries.popitem(last=False)
