"""Drawings of the arrays of a layout: lines of numbers, each with its index in the array and in its block.

    kernel [2, 9]      r | z | n beside one another      a table of the array's shape, with gaps if it is
    large weight_space [63]  W_r, W_z, ... after one another   nine on a line: a row of all gates

Of an axis with more than `ALL` units only some at both ends are drawn. They are selected among the units of a
block, not of an array, so that both sides of a conversion show the same numbers. A vector that is not drawn
completely has a line for each row of a block, in the order of memory.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise, product
from math import prod
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.layout.notation import Concatenation, Pattern
from stepnet.layout.places import Array, ParameterBlock, Region, entry_regions
from stepnet.layout.record import Record
from stepnet.layout.sizes import Shape, Sizes, shape_of

ALL = 8  # the longest axis that is drawn completely
SOME = (0, 1, 2, -1)  # the units that are drawn of a longer axis
WIDEST = 16  # the most numbers on a line of a vector

MultiIndex = tuple[int, ...]


@dataclass(frozen=True)
class DrawnNumber:
    """Number of an array in a drawing.

    array: the name of the array. at: its index in the array. block: the parameter of one gate that it belongs
    to. index: its index in the block.
    """

    array: str
    at: MultiIndex
    block: ParameterBlock
    index: MultiIndex
    value: float

    @property
    def where(self) -> str:
        """Name of the array that has the drawn number, and index in it, as text, such as `kernel[0, 4]`."""
        return f"{self.array}{list(self.at)}"

    @property
    def what(self) -> str:
        """Name of the drawn number's block (parameter of one gate) and index in it, such as `W_r[1, 0]`."""
        name = f"{self.block.parameter}_{self.block.gate}" if self.block.gate else self.block.parameter
        return f"{name}{list(self.index)}{str(self.block).removeprefix(name)}"


@dataclass(frozen=True)
class NumberLine:
    """Line of numbers in a drawing, with None for a gap; all are None for a gap between lines. label: the
    index of the line in a table, or of its first number in memory.
    """

    label: str
    cells: tuple[DrawnNumber | None, ...]


@dataclass(frozen=True)
class Panel:
    """Part of a drawing: lines of an array, one below the other.

    title: the index of this part of the array, `[1, 0]`.
    columns: the indices along the last axis, if they are equal in all lines.
    """

    title: str
    lines: tuple[NumberLine, ...]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """Drawing of an array: its name, shape, dtype and notation, and its numbers in panels."""

    name: str
    shape: Shape
    dtype: str
    pattern: Pattern
    panels: tuple[Panel, ...]

    @property
    def cells(self) -> list[DrawnNumber]:
        """Numbers of an array that its drawing shows, in all panels, without the None of gaps."""
        lines = [line for panel in self.panels for line in panel.lines]
        return [cell for line in lines for cell in line.cells if cell is not None]


def drawings(
    arrays: Mapping[str, Array], record: Record, sizes: Sizes, some: MultiIndex = SOME, widest: int = WIDEST
) -> Iterator[Drawing]:
    """Yields a drawing of each array of a layout (the positions of weights in a framework's arrays), in which
    each cell names a weight.

    some: the indices that are drawn of an axis longer than `ALL`, negative ones from its end; the others are
        left out.
    widest: the most numbers on a line of a vector.

    >>> import numpy as np
    >>> from stepnet.layout.registry import record
    >>> arrays = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9))}
    >>> kernel = next(drawings(arrays, record("keras.gru"), Sizes(2, 3)))
    >>> [cell.what for cell in kernel.panels[0].lines[0].cells[:4]]
    ['W_z[0, 0]', 'W_z[1, 0]', 'W_z[2, 0]', 'W_r[0, 0]']
    """
    across = line_length(sizes.hidden, len(record.gates), widest)
    for entry in record.entries(sizes):
        if entry.name in arrays:
            array = arrays[entry.name]
            shape = shape_of(entry.pattern, sizes, entry.layer or 0)
            drawn = [
                cell for region in entry_regions(entry, sizes) for cell in drawn_numbers(region, array, some)
            ]
            if isinstance(entry.pattern, Concatenation):
                panels = tuple(table(entry.pattern, drawn, shape))
            else:
                panels = (vector(drawn, prod(shape), across),)
            yield Drawing(entry.name, shape, array.dtype.name, entry.pattern, panels)


def samples(size: int, some: MultiIndex = SOME) -> MultiIndex:
    """Returns the indices that are drawn along an axis of `size`. some: those of an axis longer than `ALL`,
    negative from its end.

    >>> samples(3), samples(100)
    ((0, 1, 2), (0, 1, 2, 99))
    """
    return tuple(range(size)) if size <= ALL else tuple(unit % size for unit in some)


@dataclass(frozen=True)
class NumberInMemory:
    """Drawn number of an array, with its place in memory, by which vectors are arranged.

    number: its index in C order. step: the distance in memory to the next number in its row of the block.
    row: the key of that row. cell: the number.
    """

    number: int
    step: int
    row: tuple[Any, ...]
    cell: DrawnNumber


def drawn_numbers(region: Region, array: Array, some: MultiIndex) -> Iterator[NumberInMemory]:
    """Yields the numbers of one block (the parameter of one gate) of an array that are drawn, with their
    places in memory. A row of a block is the numbers along the axis on which neighbours are nearest in
    memory.

    region: the part of the array that holds the block. If it is raw, its memory is the memory of the block,
    whose shape is the reverse of the region's. some: the indices that are drawn along an axis longer than
    `ALL`.
    """
    block = region.shape[::-1] if region.raw else region.shape
    view = region.view(array)
    steps = [step for _, step in region.steps]
    along = min(range(len(steps)), key=lambda axis: (steps[axis], -axis))
    for inner in product(*(samples(size, some) for size in region.shape)):
        index = unravelled(raveled(inner, region.shape), block) if region.raw else inner
        where = at(region, inner, array.shape)
        row = (region.block, *(unit for axis, unit in enumerate(inner) if axis != along))
        cell = DrawnNumber(region.array, where, region.block, index, float(view[inner]))
        yield NumberInMemory(raveled(where, array.shape), steps[along], row, cell)


def raveled(index: MultiIndex, shape: Shape) -> int:
    """Converts an index with one number per axis to the index in C order, for an array of this shape."""
    number = 0
    for unit, size in zip(index, shape, strict=True):
        number = number * size + unit
    return number


def unravelled(number: int, shape: Shape) -> MultiIndex:
    """Converts an index in C order to an index with one number per axis, for an array of this shape."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(number % size)
        number //= size
    return tuple(reversed(index))


def at(region: Region, inner: MultiIndex, shape: Shape) -> MultiIndex:
    """Converts an index in a region (the part of an array with the parameter of one gate) to one in the
    array. inner: the index in the region. shape: the shape of the array.
    """
    index = list(region.start)
    for unit, (axis, step) in zip(inner, region.steps, strict=True):
        index[axis] += unit * step
    return unravelled(index[0], shape) if region.flat else tuple(index)


def place_in(region: Region, index: MultiIndex, shape: Shape) -> MultiIndex:
    """Converts an index in a block (the parameter of one gate) to one in the array that holds it. region: the
    part of the array that holds the block. index: the index in the block. shape: the shape of the array.
    """
    inner = unravelled(raveled(index, region.shape[::-1]), region.shape) if region.raw else index
    return at(region, inner, shape)


# ---- tables ------------------------------------------------------------------------------------------------


def table(pattern: Concatenation, spots: list[NumberInMemory], shape: Shape) -> Iterator[Panel]:
    """Arranges the numbers of an array that a picture shows (not all of a large one) as tables: one, or one
    for each layer and direction. In a table, the next axis makes the lines and all further ones the columns;
    an array with one axis is one line.

    pattern: the notation of the array, its labelled axes. spots: the numbers that are shown. shape: the shape
    of the array.
    """
    outer = leading(pattern, len(shape))
    across = outer + 1 if len(shape) > outer + 1 else outer  # this axis and those after it make the columns
    panels: dict[MultiIndex, dict[tuple[int, int], DrawnNumber]] = {}
    for spot in spots:
        index = spot.cell.at
        row = index[outer] if across > outer else 0
        column = raveled(index[across:], shape[across:])
        panels.setdefault(index[:outer], {})[row, column] = spot.cell
    for corner, drawn in sorted(panels.items()):
        rows, columns = (spaced(sorted(set(axis))) for axis in zip(*drawn, strict=True))
        lines = [
            NumberLine(
                "" if row is None or across == outer else str(row),
                tuple(
                    None if row is None or column is None else drawn.get((row, column)) for column in columns
                ),
            )
            for row in rows
        ]
        titles = ("" if column is None else str(column) for column in columns)
        yield Panel(f"{list(corner)}" if corner else "", tuple(lines), tuple(titles))


def leading(pattern: Concatenation, dimensions: int) -> int:
    """Counts the leading axes of layers, directions or length 1, for each index of which a separate table is
    drawn. The last axis, and one along which blocks are concatenated, are never counted.

    pattern: the notation of the array, its labelled axes. dimensions: the number of its axes.
    """
    first = pattern.terms[0]
    stacked = range(dimensions)[pattern.axis] if len(pattern.terms) > 1 else dimensions
    count = 0
    for axis in first.axes[:-1]:
        if count == stacked or not all(atom.name in ("L", "D", "1") for atom in axis):
            break
        count += 1
    return count


def spaced(indices: list[int]) -> list[int | None]:
    """Inserts None wherever increasing indices leave some out, so that a table shows where numbers are left
    out.

    >>> spaced([0, 1, 5])
    [0, 1, None, 5]
    """
    with_gaps: list[int | None] = []
    for before, index in pairwise([indices[0] - 1, *indices]):
        with_gaps += [None, index] if index > before + 1 else [index]
    return with_gaps


# ---- vectors -----------------------------------------------------------------------------------------------


def line_length(hidden: int, gates: int, widest: int = WIDEST) -> int:
    """Returns the number of numbers to draw on a line of a vector: all gates of all units like a row of a
    matrix, or as many whole gates as fit. widest: the most numbers.

    >>> line_length(3, 3), line_length(3, 4), line_length(8, 4), line_length(8, 4, widest=7)
    (9, 12, 16, 7)
    """
    return min(hidden * max(min(gates, widest // hidden), 1), widest)


def vector(spots: list[NumberInMemory], size: int, across: int) -> Panel:
    """Arranges the drawn numbers of an array, `spots`, as lines in the order of memory. size: the count of
    all numbers of the array.

    A line has `across` numbers. If some numbers are left out and blocks are not interleaved, a line is one
    row of a block (the parameter of one gate) instead, with None for each gap in memory.
    """
    ordered = sorted(spots, key=lambda spot: spot.number)
    rows = [list(row) for _, row in groupby(ordered, key=lambda spot: spot.row)]
    complete = len(ordered) == size
    if complete or 2 * len(rows) > len(ordered):  # blocks are interleaved
        rows = [ordered[start : start + across] for start in range(0, len(ordered), across)]
    lines: list[NumberLine] = []
    for row in rows:
        drawn: list[DrawnNumber | None] = [row[0].cell]
        for before, spot in pairwise(row):
            gap = not complete and spot.number > before.number + before.step
            drawn += [None, spot.cell] if gap else [spot.cell]
        lines.append(NumberLine(str(row[0].number), tuple(drawn)))
    return Panel("", tuple(lines), tuple(map(str, range(min(across, size)))) if complete else ())


def numbers_left_out(drawing: Drawing) -> int:
    """Counts the numbers of an array that its drawing leaves out, to say so on the page."""
    return prod(drawing.shape) - len(drawing.cells)
