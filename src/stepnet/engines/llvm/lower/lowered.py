"""What lowering gives: the driver's program, and the work once per sequence around it."""

from dataclasses import dataclass

from stepnet.engines.llvm.lower.driven import Program
from stepnet.engines.llvm.lower.loops import Loop
from stepnet.engines.llvm.machine.records import Field
from stepnet.engines.llvm.products.constants import Constants
from stepnet.plan.load import Load


@dataclass(frozen=True)
class RowWork:
    """Work that is done once per sequence: arrays to copy in (by word), loops, and fields to copy out."""

    inputs: tuple[tuple[int, Field], ...]
    loops: list[list[Loop]]
    outputs: tuple[tuple[int, Field], ...] = ()


@dataclass(frozen=True)
class Result:
    """A result of each step: its kind of array, the word of that and the number in the net.

    field: where it is written in place; None for one that is copied.
    """

    kind: str
    word: int
    number: int
    field: Field | None


@dataclass(frozen=True)
class Lowered:
    """A lowered plan: the driver's program, the constants, and the work once per sequence.

    That work is done before a sequence's steps and at its end (None for none). Then the arrays by word, the
    words of those that must be present, and what the steps compute and read.
    """

    program: Program
    constants: Constants
    sequence: RowWork | None
    ended: RowWork | None
    words: dict[str, list[int]]
    wanted: frozenset[int]
    load: Load
