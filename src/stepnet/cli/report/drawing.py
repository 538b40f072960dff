"""Arrays of a layout as what is drawn of them: lines of numbers, each with its place and what it is.

    kernel [2, 9]      r | z | n beside one another      a table as the array is, gaps where sizes are large
    weight_space [63]  W_r, W_z, ... behind one another  nine on a line, as many as a row of all gates has

Of an axis of more than `ALL` units some at both ends are drawn, the same on both sides of a conversion, as
they are chosen among the units of a block and not among places of an array. A vector of which not all is
drawn has a line for each row of a block, in memory's order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from math import prod
from typing import Any

from stepnet.layout.notation import Pattern, Stack
from stepnet.layout.places import Array, Block, Region, entry_regions
from stepnet.layout.record import Record
from stepnet.layout.sizes import Shape, Sizes, shape_of

ALL = 8  # units of an axis that are all drawn
SOME = (0, 1, 2, -1)  # those drawn of a longer one
WIDEST = 16  # numbers at most on a line of a vector

Place = tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """A number: where it is in its array, and which number of which block it is."""

    array: str
    at: Place
    block: Block
    place: Place
    value: float

    @property
    def where(self) -> str:
        """Its place in the array: `kernel[0, 4]`."""
        return f"{self.array}{list(self.at)}"

    @property
    def what(self) -> str:
        """Which number of its block it is: `W_r[1, 0]`."""
        name = f"{self.block.parameter}_{self.block.gate}" if self.block.gate else self.block.parameter
        return f"{name}{list(self.place)}{str(self.block).removeprefix(name)}"


@dataclass(frozen=True)
class Line:
    """Numbers beside one another, None where some are left out; all None where lines are."""

    label: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Panel:
    """Lines under one another; the title says which part of the array they are, `[1, 0]`, and `columns` the
    places along the last axis, where all lines have the same.
    """

    title: str
    lines: tuple[Line, ...]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """An array: its name, shape and dtype, what its record says of it, and its numbers."""

    name: str
    shape: Shape
    dtype: str
    pattern: Pattern
    panels: tuple[Panel, ...]

    @property
    def cells(self) -> list[Cell]:
        """The numbers that are drawn."""
        lines = [line for panel in self.panels for line in panel.lines]
        return [cell for line in lines for cell in line.cells if cell is not None]


def drawings(
    arrays: Mapping[str, Array], record: Record, sizes: Sizes, some: Place = SOME, widest: int = WIDEST
) -> Iterator[Drawing]:
    """What is drawn of the arrays of a layout, one after the other.

    some: the units of an axis of more than `ALL` that are drawn, negative ones from its end. widest: how many
    numbers of a vector are on a line, at most.

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
            drawn = [cell for region in entry_regions(entry, sizes) for cell in spots(region, array, some)]
            if isinstance(entry.pattern, Stack):
                panels = tuple(table(entry.pattern, drawn, shape))
            else:
                panels = (vector(drawn, prod(shape), across),)
            yield Drawing(entry.name, shape, array.dtype.name, entry.pattern, panels)


def samples(size: int, some: Place = SOME) -> Place:
    """The units of an axis that are drawn.

    >>> samples(3), samples(100)
    ((0, 1, 2), (0, 1, 2, 99))
    """
    return tuple(range(size)) if size <= ALL else tuple(unit % size for unit in some)


@dataclass(frozen=True)
class Spot:
    """A number in memory: its place counted in C order, how far off the next one of its block's row is, and
    what tells that row from others.
    """

    number: int
    step: int
    row: tuple[Any, ...]
    cell: Cell


def spots(region: Region, array: Array, some: Place) -> Iterator[Spot]:
    """The numbers of a region that are drawn."""
    block = region.shape[::-1] if region.raw else region.shape
    view = region.view(array)
    steps = [step for _, step in region.steps]
    along = min(range(len(steps)), key=lambda axis: (steps[axis], -axis))
    for inner in product(*(samples(size, some) for size in region.shape)):
        place = unravelled(raveled(inner, region.shape), block) if region.raw else inner
        where = at(region, inner, array.shape)
        row = (region.block, *(unit for axis, unit in enumerate(inner) if axis != along))
        cell = Cell(region.array, where, region.block, place, float(view[inner]))
        yield Spot(raveled(where, array.shape), steps[along], row, cell)


def raveled(place: Place, shape: Shape) -> int:
    """The number of a place in C order."""
    found = 0
    for unit, size in zip(place, shape, strict=True):
        found = found * size + unit
    return found


def unravelled(number: int, shape: Shape) -> Place:
    """The place of a number in C order."""
    found: list[int] = []
    for size in reversed(shape):
        found.append(number % size)
        number //= size
    return tuple(reversed(found))


def at(region: Region, inner: Place, shape: Shape) -> Place:
    """Where a number of a region is in its array of that shape."""
    found = list(region.start)
    for unit, (axis, step) in zip(inner, region.steps, strict=True):
        found[axis] += unit * step
    return unravelled(found[0], shape) if region.flat else tuple(found)


def place_in(region: Region, place: Place, shape: Shape) -> Place:
    """Where a number of a block is in an array of that shape."""
    inner = unravelled(raveled(place, region.shape[::-1]), region.shape) if region.raw else place
    return at(region, inner, shape)


# ---- tables ------------------------------------------------------------------------------------------------


def table(pattern: Stack, spots: list[Spot], shape: Shape) -> Iterator[Panel]:
    """An array as a table, or one for each layer and direction."""
    outer = leading(pattern, len(shape))
    across = outer + 1 if len(shape) > outer + 1 else outer  # the axes from here on make the columns
    found: dict[Place, dict[tuple[int, int], Cell]] = {}
    for spot in spots:
        place = spot.cell.at
        row = place[outer] if across > outer else 0
        column = raveled(place[across:], shape[across:])
        found.setdefault(place[:outer], {})[row, column] = spot.cell
    for corner, drawn in sorted(found.items()):
        rows, columns = (spaced(sorted(set(axis))) for axis in zip(*drawn, strict=True))
        lines = [
            Line(
                "" if row is None or across == outer else str(row),
                tuple(
                    None if row is None or column is None else drawn.get((row, column)) for column in columns
                ),
            )
            for row in rows
        ]
        titles = ("" if column is None else str(column) for column in columns)
        yield Panel(f"{list(corner)}" if corner else "", tuple(lines), tuple(titles))


def leading(pattern: Stack, dimensions: int) -> int:
    """How many axes are of layers, directions or length 1, before those that make a table."""
    first = pattern.terms[0]
    stacked = range(dimensions)[pattern.axis] if len(pattern.terms) > 1 else dimensions
    count = 0
    for axis in first.axes[:-1]:
        if count == stacked or not all(atom.name in ("L", "D", "1") for atom in axis):
            break
        count += 1
    return count


def spaced(places: list[int]) -> list[int | None]:
    """Places with None where some are left out.

    >>> spaced([0, 1, 5])
    [0, 1, None, 5]
    """
    found: list[int | None] = []
    for before, place in pairwise([places[0] - 1, *places]):
        found += [None, place] if place > before + 1 else [place]
    return found


# ---- vectors -----------------------------------------------------------------------------------------------


def line_length(hidden: int, gates: int, widest: int = WIDEST) -> int:
    """How many numbers of a vector are on a line: all gates of all units, as in a row of a matrix beside it,
    or of as many gates as there is room for.

    >>> line_length(3, 3), line_length(3, 4), line_length(8, 4), line_length(8, 4, widest=7)
    (9, 12, 16, 7)
    """
    return min(hidden * max(min(gates, widest // hidden), 1), widest)


def vector(spots: list[Spot], size: int, across: int) -> Panel:
    """A vector of that size, whatever its shape, in memory's order: so many `across`, or by the rows of its
    blocks, where some of their numbers are left out between those that are drawn.
    """
    ordered = sorted(spots, key=lambda spot: spot.number)
    rows = [list(row) for _, row in groupby(ordered, key=lambda spot: spot.row)]
    whole = len(ordered) == size
    if whole or 2 * len(rows) > len(ordered):  # blocks lie between one another
        rows = [ordered[start : start + across] for start in range(0, len(ordered), across)]
    lines: list[Line] = []
    for row in rows:
        drawn: list[Cell | None] = [row[0].cell]
        for before, spot in pairwise(row):
            gap = not whole and spot.number > before.number + before.step
            drawn += [None, spot.cell] if gap else [spot.cell]
        lines.append(Line(str(row[0].number), tuple(drawn)))
    return Panel("", tuple(lines), tuple(map(str, range(min(across, size)))) if whole else ())


def numbers_left_out(drawing: Drawing) -> int:
    """How many numbers of an array are not drawn."""
    return prod(drawing.shape) - len(drawing.cells)
