"""Compiled plans, cached for equal plans: bounded by their bytes, and without references to the plans.

A plan holds the arrays that its step captured. The cache holds machine code and the places of its arrays, so
that it keeps nothing alive of a recurrence that is gone.
"""

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir

from stepnet.engines.llvm.build import MachineCode, NativeFunction
from stepnet.engines.llvm.call_code import CallCode, Source
from stepnet.engines.llvm.code import I64, POINTER, Code
from stepnet.engines.llvm.constants import Constants
from stepnet.engines.llvm.driver import write_call
from stepnet.engines.llvm.emit import emit
from stepnet.engines.llvm.needs import Needs
from stepnet.engines.llvm.program import Lowered, RowWork, lowered
from stepnet.engines.llvm.records import Field
from stepnet.engines.llvm.stage import Rows, StageCode
from stepnet.engines.llvm.target import Target
from stepnet.engines.llvm.words import WORDS
from stepnet.plan.plan import Plan

MOST_BYTES = 32 * 2**20
# What a compiled plan takes besides its instructions and its tables: LLVM's own objects, most of all.
OVERHEAD = 64 * 2**10


@dataclass(frozen=True)
class Compiled:
    """The machine code of a plan.

    code: `run` for the lanes of a call, `sequences` for values computed once per sequence, `ended` for those
    computed for each sequence at the end (None where there are none). needs: the arrays that the end needs.
    memories: for each the source of its first value, the word of its last values and its field. constants:
    the layout of values made from the parameters. strides: bytes from row to row of each record. words: the
    words of a call that are pointers to arrays, by kind. wanted: those that must be present. sequence_words:
    those that `sequences` reads. counts: whether steps are counted. weights and other_weights: bytes of
    parameters that are read at every step, and for each block of steps.
    """

    run: NativeFunction
    sequences: NativeFunction | None
    ended: NativeFunction | None
    needs: Needs
    memories: tuple[tuple[Source, int, Field], ...]
    constants: Constants
    strides: dict[str, int]
    words: dict[str, list[int]]
    wanted: frozenset[int]
    sequence_words: tuple[int, ...]
    counts: bool
    weights: int
    other_weights: int

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


def compiled(plan: Plan, target: Target) -> Compiled:
    """The machine code of a plan for a target."""
    program = lowered(plan, target)
    module = ir.Module("stepnet")
    module.triple = ""
    write_run(module, program, target)
    works = {"sequences": program.sequence, "ended": program.ended}
    for name, work in works.items():
        if work is not None:
            write_rows(module, name, work, program, target)
    code = MachineCode(module, target)
    sequences, ended = (None if work is None else code.function(name) for name, work in works.items())
    return Compiled(
        code.function("run", ctypes.c_int64),
        sequences,
        ended,
        Needs.of(plan),
        program.program.memories,
        replace(program.constants, known={}),
        program.program.strides,
        program.words,
        program.wanted,
        () if program.sequence is None else tuple(word for word, _ in program.sequence.inputs),
        program.program.index is not None,
        program.weights,
        program.other_weights,
    )


class Kept:
    """A cache of the last results, bounded by bytes: the entry that was not used for the longest time goes
    first.

    There is no lock: two threads may compile the same plan at the same time, and one result is kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: OrderedDict[str, Compiled] = OrderedDict()

    def get(self, key: str, make: Callable[[], Compiled]) -> Compiled:
        """The entry of a key; it is made where there is none."""
        entry = self.entries.pop(key, None) or make()
        self.entries[key] = entry
        while (
            sum(entry.bytes for entry in tuple(self.entries.values())) > self.most and len(self.entries) > 1
        ):
            self.entries.popitem(last=False)
        return entry


def write_run(module: ir.Module, program: Lowered, target: Target) -> None:
    """The function that runs the lanes of a call."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "run")
    write_call(CallCode(Code(function.append_basic_block("entry"), target), program.program))


def write_rows(module: ir.Module, name: str, work: RowWork, program: Lowered, target: Target) -> None:
    """The function that computes values once per sequence, for `lanes` sequences from `first` on."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), name)
    code = Code(function.append_basic_block("entry"), target)

    def word(place: int) -> ir.Value:
        return code.read(I64, code.at(function.args[0], 8 * place), 8)

    def pointer(name: str) -> ir.Value:
        return code.inttoptr(word(WORDS.index(name)), POINTER)

    strides = program.program.strides
    count, first = word(WORDS.index("lanes")), word(WORDS.index("first"))
    records = code.at(pointer("sequence"), code.mul(first, code.number(strides["sequence"])))
    rows = Rows({"sequence": records}, strides, count)

    def copy(places: tuple[tuple[int, Field], ...], out: bool) -> None:
        arrays = [
            (code.at(code.inttoptr(word(place), POINTER), code.mul(first, code.number(field.bytes))), field)
            for place, field in places
        ]
        with code.loop(code.number(0), count) as row:
            for array, field in arrays:
                outside = code.at(array, code.mul(row, code.number(field.bytes)))
                inside = code.at(rows.at(code, "sequence", row), field.offset)
                target, source = (outside, inside) if out else (inside, outside)
                code.copy_bytes(target, source, field.bytes)

    copy(work.inputs, out=False)
    one, zero = code.number(1), code.number(0)
    stage = StageCode(
        code,
        program.program.outer,
        rows,
        pointer("constants"),
        pointer("status"),
        zero,
        one,
        program.program.width,
    )
    for loops in work.loops:
        for loop in loops:
            emit(stage, loop)
    if work.outputs:
        copy(work.outputs, out=True)
    code.ret_void()
