"""Frame programs: the smallest thing that runs one frame (one step of one sequence) of a model.

A program has buffers of fixed sizes and a list of loops over them, which run in order, once per frame:

    PointwiseLoop   any number of elementwise operations in one loop, and copies
    ProductLoop     the product of vectors with a matrix of weights, of floats or of integers
    SparseProductLoop   the same of a matrix with blocks of zeros (both in `product_loops.py`)
    ReductionLoop   sums, maxima and indices of maxima, and prefix sums
    GatherLoop      rows of a table, by integer indices: the only loop that can fail

There is no heap, no recursion and no other control flow. Elements are numbers in C order. What an elementwise
operation does is a few `PRIMITIVES`: exp and its like are `Routine`s of these, so that a writer needs a row
for each primitive and a form for each loop. Products and sums round each multiplication and each addition
on its own, in the order of the loop, so that all writers give the same bits.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, Literal, cast

import numpy as np

from stepnet.compiler.targets.frame.arrays import FrameBuffer, StridedView, comment
from stepnet.compiler.targets.frame.product_loops import BLOCK, ProductLoop, SparseProductLoop
from stepnet.compiler.targets.frame.routines import Instruction, Routine, body_lines, check_instructions
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

Array = np.ndarray


@dataclass(frozen=True)
class PointwiseLoop:
    """Elementwise operations on all elements of a shape, in their order; all reads of an element come before
    its writes. A buffer that is written is read only at the same element. A loop without instructions copies.

    shape: the sizes of the axes, outermost first; () for one element.
    reads: the views of which the first registers are read.
    body: the instructions that write the other registers.
    writes: the views that are written, each with the register that it is written of. No two overlap.
    about: a text for reports: what the loop computes.
    """

    shape: tuple[int, ...]
    reads: tuple[StridedView, ...]
    body: tuple[Instruction, ...]
    writes: tuple[tuple[StridedView, int], ...]
    about: str = ""
    multiplies: ClassVar[int] = 0

    def __str__(self) -> str:
        """Writes the loop as text, with a line for each view and instruction."""
        lines = [f"for {' x '.join(map(str, self.shape)) or '1'}:{comment(self.about)}"]
        lines += [f"  %{place} = {view}" for place, view in enumerate(self.reads)]
        lines += body_lines(self.body, len(self.reads))
        return "\n".join([*lines, *(f"  {view} = %{register}" for view, register in self.writes)])

    @property
    def views(self) -> Iterator[tuple[StridedView, tuple[int, ...], bool]]:
        """Yields each view with the shape over which it is used, and whether it is written."""
        yield from ((view, self.shape, False) for view in self.reads)
        yield from ((view, self.shape, True) for view, _ in self.writes)


@dataclass(frozen=True)
class ReductionLoop:
    """A reduction of the inner axes of a view, in the order of elements.

    how: "sum" (from 0), "max" and "min" (NaN if one element is), "argmax" (the first maximum, the first NaN
        if there is one), or "cumsum" and "cumprod", which write the result so far of each element.
    shape, inner: the axes that stay, and those that are reduced.
    read: a view over both. write: a view over `shape`, of prefix sums and products over both.
    """

    how: str
    shape: tuple[int, ...]
    inner: tuple[int, ...]
    read: StridedView
    write: StridedView
    about: str = ""
    HOW: ClassVar[tuple[str, ...]] = ("sum", "max", "min", "argmax", "cumsum", "cumprod")
    multiplies: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Raises `NetError` for another reduction, and for one of nothing."""
        if self.how not in self.HOW or prod(self.inner) < 1:
            raise NetError(f"no reduction is {self.how} over {self.inner}")

    def __str__(self) -> str:
        """Writes the reduction as text, in one line."""
        size = f"{' x '.join(map(str, self.shape)) or '1'}, over {' x '.join(map(str, self.inner)) or '1'}"
        return f"{self.write} = {self.how} {self.read} ({size}){comment(self.about)}"

    @property
    def is_prefix(self) -> bool:
        """True if there is a result for each element of the inner axes."""
        return self.how.startswith("cum")

    @property
    def views(self) -> Iterator[tuple[StridedView, tuple[int, ...], bool]]:
        """Yields each view with the shape over which it is used, and whether it is written."""
        yield self.read, (*self.shape, *self.inner), False
        yield self.write, (*self.shape, *(self.inner if self.is_prefix else ())), True


@dataclass(frozen=True)
class GatherLoop:
    """Rows of a table by indices: write[i, j] = table[index[i], j]. A negative index counts from the end. An
    index outside of the table ends the frame: nothing more is written, and the memories are as before.

    table: a constant with `rows` rows of `width` elements. index: a view over `shape`, of integers.
    write: a view over (*shape, width).
    """

    shape: tuple[int, ...]
    rows: int
    width: int
    table: str
    index: StridedView
    write: StridedView
    about: str = ""
    multiplies: ClassVar[int] = 0

    def __str__(self) -> str:
        """Writes the loop as text, in one line."""
        return f"{self.write} = {self.table}[{self.index}] ({self.rows} x {self.width}){comment(self.about)}"

    @property
    def views(self) -> Iterator[tuple[StridedView, tuple[int, ...], bool]]:
        """Yields each view with the shape over which it is used, and whether it is written."""
        yield self.index, self.shape, False
        yield StridedView(self.table, 0, (1,)), (self.rows * self.width,), False
        yield self.write, (*self.shape, self.width), True


FrameLoop = PointwiseLoop | ProductLoop | SparseProductLoop | ReductionLoop | GatherLoop


@dataclass(frozen=True)
class FrameProgram:
    """One frame of a model: its buffers, its constants, and the loops that run in order.

    buffers: with offsets; a memory's in the state, a scratch buffer's in the arena.
    constants: the numbers of the buffers of this kind, by name; bool as uint8.
    begins: the constants that memories begin with, by the name of the memory; the others begin with zeros.
    routines: the functions that instructions call.
    loops: the loops that compute a frame. The last ones write the memories: nothing fails after the first of
        them.
    """

    buffers: tuple[FrameBuffer, ...]
    constants: Mapping[str, Array]
    begins: Mapping[str, str]
    routines: tuple[Routine, ...]
    loops: tuple[FrameLoop, ...]

    def __post_init__(self) -> None:
        """Raises `NetError` unless names are unique and known, and all views lie in their buffers."""
        check_program(self)

    def __str__(self) -> str:
        """Writes the program as text: buffers, routines and loops."""
        parts: list[object] = [*self.buffers, *self.routines, *self.loops]
        return "\n".join(map(str, parts))

    @cached_property
    def by_name(self) -> Mapping[str, FrameBuffer]:
        """The buffers by their names."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def routine(self) -> Mapping[str, Routine]:
        """The routines by their names."""
        return {routine.name: routine for routine in self.routines}

    def of(self, kind: Literal["constant", "memory", "input", "output", "scratch"]) -> list[FrameBuffer]:
        """Lists the buffers of a kind, in their order."""
        return [buffer for buffer in self.buffers if buffer.kind == kind]

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena, in which scratch buffers lie."""
        return max((buffer.offset + buffer.bytes for buffer in self.of("scratch")), default=0)

    @property
    def state_bytes(self) -> int:
        """The bytes of all memories."""
        return max((buffer.offset + buffer.bytes for buffer in self.of("memory")), default=0)

    @property
    def constant_bytes(self) -> int:
        """The bytes of all constants."""
        return sum(buffer.bytes for buffer in self.of("constant"))

    @property
    def multiplies(self) -> int:
        """The multiply-adds of the products of one frame."""
        return sum(loop.multiplies for loop in self.loops)

    @property
    def bodies(self) -> list[tuple[Instruction, ...]]:
        """The instructions of each routine and of each elementwise loop."""
        loops = [loop.body for loop in self.loops if isinstance(loop, PointwiseLoop)]
        return [*(routine.body for routine in self.routines), *loops]

    @property
    def has_floats(self) -> bool:
        """True if an array or a register has floats."""
        dtypes = [each.dtype for each in (*self.buffers, *(each for body in self.bodies for each in body))]
        return any(dtype.startswith("float") for dtype in dtypes)


def products_of(program: FrameProgram) -> list[ProductLoop]:
    """Lists the products of a program, those with blocks among them."""
    loops = (loop.product if isinstance(loop, SparseProductLoop) else loop for loop in program.loops)
    return [loop for loop in loops if isinstance(loop, ProductLoop)]


def check_program(program: FrameProgram) -> None:
    """Raises `NetError` unless a program's names are unique and known, all views lie in their buffers, only
    buffers of other kinds than constants and inputs are written, and no memory is written before a gather.
    """
    names = [each.name for each in (*program.buffers, *program.routines)]
    if len(set(names)) < len(names):
        raise NetError("two buffers or routines of a program have the same name")
    for buffer in program.of("constant"):
        values = program.constants.get(buffer.name)
        if values is None or values.size != buffer.size:
            raise NetError(f"the program lacks the {buffer.size} numbers of its constant {buffer.name}")
    tables = [name for routine in program.routines for name in routine.tables]
    if (table := next((name for name in tables if name not in program.constants), None)) is not None:
        raise NetError(f"the program lacks the table {table} of a routine")
    for kind in ("memory", "scratch"):
        if any(buffer.offset % buffer.itemsize for buffer in program.of(kind)):
            raise NetError(f"a {kind} buffer is not aligned")
    memories = sorted(program.of("memory"), key=lambda buffer: buffer.offset)
    if any(before.offset + before.bytes > after.offset for before, after in pairwise(memories)):
        raise NetError("two memories overlap")
    written = False
    for loop in program.loops:
        check_loop(program, loop)
        if isinstance(loop, GatherLoop) and written:
            raise NetError("a memory is written before an index is read, which may be outside of its table")
        written |= any(
            wrote and program.by_name[view.buffer].kind == "memory" for view, _, wrote in loop.views
        )


def check_loop(program: FrameProgram, loop: FrameLoop) -> None:
    """Raises `NetError` unless the views of a loop lie in their buffers, and its instructions are known."""
    for view, shape, is_written in loop.views:
        buffer = program.by_name.get(view.buffer)
        if buffer is None or len(view.strides) != len(shape):
            raise NetError(f"{view} is no view of a buffer over {shape}")
        first, last = view.bounds(shape)
        if first < 0 or last >= buffer.size:
            raise NetError(f"{view} over {shape} is outside of {buffer}")
        if is_written and buffer.kind in ("constant", "input"):
            raise NetError(f"a loop writes {buffer}")
    if isinstance(loop, PointwiseLoop):
        dtypes = [program.by_name[view.buffer].dtype for view in loop.reads]
        results = [register for _, register in loop.writes]
        check_instructions(loop.about, dtypes, loop.body, results, program.routine)


def packed_weights(matrix: Array) -> Array:
    """Returns the elements of a matrix [inputs, outputs] in the order in which a `ProductLoop` reads them.

    >>> packed_weights(np.arange(20).reshape(2, 10)).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 8, 9, 18, 19]
    """
    blocks = [matrix[:, first : first + BLOCK].ravel() for first in range(0, matrix.shape[1], BLOCK)]
    return np.concatenate(blocks) if blocks else cast("Any", matrix).ravel()
