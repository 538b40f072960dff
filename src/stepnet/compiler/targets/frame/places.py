"""The places of a frame's arrays: which become buffers, and where scratch lies in the arena.

Scratch arrays that are not needed at the same time share memory. An array is needed from the first loop that
writes it to the last one that reads it. Each dtype has a part of the arena of its own, so that C can declare
the arena as arrays of numbers.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.targets.frame.drafts import (
    Draft,
    Drafts,
    FrameValue,
    GatherDraft,
    PointwiseDraft,
    ProductDraft,
    ReductionDraft,
    Root,
    values_of,
)
from stepnet.compiler.targets.frame.product_loops import SparseProductLoop
from stepnet.compiler.targets.frame.program import (
    FrameBuffer,
    FrameLoop,
    FrameProgram,
    GatherLoop,
    PointwiseLoop,
    ProductLoop,
    ReductionLoop,
    Routine,
    StridedView,
    packed_weights,
)
from stepnet.compiler.targets.frame.routines import DTYPES
from stepnet.compiler.targets.frame.sparse import sparse_matrix
from stepnet.compiler.values.c_names import c_name

Array = np.ndarray
ALIGNMENT = 8
"""The bytes to which memories and the parts of the arena are aligned."""
STORED = {"bool": np.uint8}
"""The dtypes of constants in memory, if they are others."""


def placed(
    drafts: Drafts, routines: Sequence[Routine], ends: Sequence[Root], begins: Mapping[Root, Array]
) -> FrameProgram:
    """Returns the program of drafts.

    ends: the arrays of inputs, memories and outputs. begins: the first values of memories that do not begin
    with zeros.
    """
    read = {value.root for loop in drafts.loops for value, wrote in values_of(loop) if not wrote}
    loops = [without_unread(loop, read) for loop in drafts.loops]
    tables = {name: numbers for routine in routines for name, numbers in routine.tables.items()}
    names = FrameNames(ends, tables)
    constants = {name: np.array(numbers, np.int32) for name, numbers in tables.items()}
    finished = [finished_loop(loop, names, constants) for loop in loops if not is_empty(loop)]
    begun = dict[str, str]()
    for root, array in begins.items():
        begun[names.of[root]] = c_name(f"{names.of[root]}_begin", names.taken)
        constants[begun[names.of[root]]] = np.ascontiguousarray(array).ravel()
    lives = lives_of([loop for loop in loops if not is_empty(loop)])
    offsets = arena_offsets([root for root in names.of if root.kind == "scratch"], lives)
    offsets |= state_offsets([root for root in ends if root.kind == "memory"])
    buffers = [
        FrameBuffer(name, root.dtype, root.size, root.kind, offsets.get(root, 0), root.title, root.scale)
        for root, name in names.of.items()
        if root.kind != "constant"
    ]
    held = [
        FrameBuffer(name, "bool" if array.dtype == np.uint8 else array.dtype.name, array.size, "constant")
        for name, array in constants.items()
    ]
    return FrameProgram((*held, *buffers), constants, begun, tuple(routines), tuple(finished))


RESERVED = re.compile(
    r"([irstu]\d+|k_.*|.*_[fi](32|64)(_.*)?|frame|frames|context|status|at|total|best|place|row|v|bits_.*|MODEL)$"
)
"""The names that writers use for their own."""


class FrameNames:
    """The names of arrays: their own, as identifiers of C, or numbers.

    >>> names = FrameNames([Root("input", "float32", 1, name) for name in ("t0", "left.h", "left_h")])
    >>> [*names.of.values()]
    ['a_t0', 'left_h', 'left_h_2']
    """

    def __init__(self, ends: Sequence[Root], reserved: Iterable[str] = ()) -> None:
        """Begins with the names of inputs, memories and outputs. reserved: names that others have."""
        self.of = dict[Root, str]()
        self.tables = dict[tuple[str, bytes, tuple[int, ...]], str]()
        self.taken = {*reserved}
        for root in ends:
            name = c_name(root.name, set())
            self.of[root] = c_name(f"a_{name}" if RESERVED.match(name) else name, self.taken)

    def name(self, root: Root) -> str:
        """Returns the name of an array that is no constant."""
        if root not in self.of:
            self.of[root] = c_name(f"t{sum(each.kind == 'scratch' for each in self.of)}", self.taken)
        return self.of[root]

    def constant(self, root: Root, array: Array) -> tuple[str, bool]:
        """Returns the name of an array of constants, and whether it is new; equal ones have one name."""
        key = array.dtype.str, array.tobytes(), array.shape if array.dtype == np.int8 else ()
        is_new = key not in self.tables
        if is_new:
            self.tables[key] = c_name(f"k_{c_name(root.name, set())}", self.taken)
        return self.tables[key], is_new


def without_unread(loop: Draft, read: set[Root]) -> Draft:
    """Returns a loop without the writes of scratch that nothing reads, and without the instructions that
    nothing needs then.
    """
    if not isinstance(loop, PointwiseDraft):
        return loop
    writes = [pair for pair in loop.writes if pair[0].root.kind != "scratch" or pair[0].root in read]
    needed = {register for _, register in writes}
    for number in reversed(range(len(loop.code.body))):
        if number in needed:
            needed.update(loop.code.body[number].operands)
    kept, renumbered = PointwiseDraft(loop.shape, about=loop.about), dict[int, int]()
    for place, value in enumerate(loop.reads):
        if -1 - place in needed:
            kept.reads.append(value)
            renumbered[-1 - place] = -len(kept.reads)
    for number, each in enumerate(loop.code.body):
        if number in needed:
            operands = tuple(renumbered[operand] for operand in each.operands)
            renumbered[number] = len(kept.code.body)
            kept.code.body.append(type(each)(each.operation, operands, each.dtype, each.value))
    kept.writes = [(value, renumbered[register]) for value, register in writes]
    return kept


def is_empty(loop: Draft) -> bool:
    """Tells whether a loop writes nothing."""
    return isinstance(loop, PointwiseDraft) and not loop.writes


def finished_loop(loop: Draft, names: FrameNames, constants: dict[str, Array]) -> FrameLoop:
    """Returns the loop of a draft; adds its constants."""

    def view(value: FrameValue) -> StridedView:
        """Returns the view of a value, whose constant is added."""
        name = constant(value.root, value.root.array.ravel()) if value.root.array is not None else None
        return StridedView(name or names.name(value.root), value.offset, value.strides)

    def constant(root: Root, array: Array) -> str:
        """Adds a constant; returns its name. An int8 array of two axes has an order of its own."""
        stored = np.ascontiguousarray(array).astype(STORED.get(root.dtype, array.dtype))
        name, _ = names.constant(root, stored)
        constants[name] = stored.ravel()
        return name

    match loop:
        case PointwiseDraft():
            return pointwise_loop(loop, view)
        case ProductDraft():
            array = loop.weights.array
            assert array is not None
            start = None if loop.start is None else view(loop.start)
            left, result = view(loop.left), view(loop.result)
            if (sparse := sparse_matrix(array)) is not None:
                weights = constant(loop.weights, sparse.weights)
                places = constant(replace(loop.weights, name=f"{loop.weights.name}_places"), sparse.places)
                about = f"{loop.about}, {sparse.about}"
                product = ProductLoop(*loop.sizes, left, weights, start, result, about)
                return SparseProductLoop(product, sparse.width, sparse.blocks, places)
            weights = constant(loop.weights, packed_weights(array).reshape(array.shape))
            return ProductLoop(*loop.sizes, left, weights, start, result, loop.about)
        case ReductionDraft():
            read, write = view(loop.read), view(loop.write)
            return ReductionLoop(loop.how, loop.shape, loop.inner, read, write, loop.about)
        case GatherDraft():
            array = loop.table.array
            assert array is not None
            table, width = constant(loop.table, array.ravel()), array.size // loop.rows
            index, write = view(loop.index), view(loop.write)
            return GatherLoop(loop.index.shape, loop.rows, width, table, index, write, loop.about)


def pointwise_loop(loop: PointwiseDraft, view: Callable[[FrameValue], StridedView]) -> PointwiseLoop:
    """Returns the elementwise loop of a draft, with as few axes as its views need.

    view: gives the view of a value.
    """
    values = [*loop.reads, *(value for value, _ in loop.writes)]
    shape, strides = merged_axes(loop.shape, [value.strides for value in values])
    views = [
        StridedView(each.buffer, each.offset, own)
        for each, own in zip((view(value) for value in values), strides, strict=True)
    ]
    count = len(loop.reads)
    writes = [
        (each, loop.final(register)) for each, (_, register) in zip(views[count:], loop.writes, strict=True)
    ]
    return PointwiseLoop(shape, tuple(views[:count]), loop.body(), tuple(writes), ", ".join(loop.about))


def merged_axes(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merges axes of a loop along which all views go on in the same stride; returns the shape that is left,
    and the strides of each view.

    >>> merged_axes((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
    ((2, 12), [(12, 1), (0, 1)])
    """
    kept = [axis for axis in range(len(shape)) if shape[axis] != 1]
    sizes, rows = list[int](), [list[int]() for _ in strides]
    for axis in kept:
        size = shape[axis]
        goes_on = bool(sizes) and all(
            row[-1] == own[axis] * size for row, own in zip(rows, strides, strict=True)
        )
        if goes_on:
            sizes[-1] *= size
        else:
            sizes.append(size)
        for row, own in zip(rows, strides, strict=True):
            if goes_on:
                row[-1] = own[axis]
            else:
                row.append(own[axis])
    return tuple(sizes), [tuple(row) for row in rows]


def lives_of(loops: Sequence[Draft]) -> dict[Root, tuple[int, int]]:
    """Returns the first and the last loop that uses each array, by index."""
    lives = dict[Root, tuple[int, int]]()
    for index, loop in enumerate(loops):
        for value, _ in values_of(loop):
            first, _ = lives.get(value.root, (index, index))
            lives[value.root] = first, index
    return lives


def arena_offsets(roots: Sequence[Root], lives: Mapping[Root, tuple[int, int]]) -> dict[Root, int]:
    """Returns the places in bytes of scratch arrays in the arena: the largest first, each at the lowest place
    that is free while it is needed. Those of one dtype lie in one part.
    """
    offsets, base = dict[Root, int](), 0
    for dtype in DTYPES:
        own = sorted((root for root in roots if root.dtype == dtype), key=lambda root: -root.size)
        itemsize, end = np.dtype(dtype).itemsize, base
        for root in own:
            first, last = lives[root]
            others = sorted(
                (offsets[other], offsets[other] + other.size * itemsize)
                for other in own
                if other in offsets and lives[other][0] <= last and first <= lives[other][1]
            )
            place = base
            for start, stop in others:
                if place + root.size * itemsize <= start:
                    break
                place = max(place, stop)
            offsets[root] = place
            end = max(end, place + root.size * itemsize)
        base = -(-end // ALIGNMENT) * ALIGNMENT
    return offsets


def state_offsets(memories: Sequence[Root]) -> dict[Root, int]:
    """Returns the places in bytes of memories in the state, one after the other."""
    offsets, end = dict[Root, int](), 0
    for root in memories:
        offsets[root] = end
        end += -(-root.size * np.dtype(root.dtype).itemsize // ALIGNMENT) * ALIGNMENT
    return offsets
