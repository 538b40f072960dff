"""The position of each block: the regions of a record's arrays.

A block is one parameter of one gate, layer and direction: W_z of layer 0, forward, [hidden, inputs]. Its
region has a start index along each axis of the array and, for each axis of the block, an axis of the array
and a stride along it. So in any layout, a block is a strided view of an array.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.notation import PARAMETERS, Concatenation, Loop, Term
from stepnet.layout.record import Entry, Record
from stepnet.layout.sizes import Shape, Sizes, flat_length, shape_of, stack_shape, term_shape

GATE_ORDER = "rzifgon"
Array = np.ndarray[Any, np.dtype[Any]]
KEPT = 8  # cached results: the conversions of weights and of an optimiser's moments need the same two


@dataclass(frozen=True)
class ParameterBlock:
    """One parameter of one gate, layer and direction: the unit of conversions of weights.

    parameter: its letter in the notation of layouts, as W or b. gate: its letter; "" if it has no gates.
    """

    parameter: str
    gate: str = ""
    layer: int = 0
    direction: int = 0

    def __str__(self) -> str:
        """The block's name in messages, such as "W_z of layer 1, backward"."""
        name = f"{self.parameter}_{self.gate}" if self.gate else self.parameter
        where = f" of layer {self.layer}" if self.layer else ""
        return f"{name}{where}{', backward' if self.direction else ''}"

    def order(self) -> tuple[int, int, int, int]:
        """Returns a key to sort blocks (gates' parameters) by: parameter, layer, direction, gate."""
        parameter = list(PARAMETERS).index(self.parameter)
        return parameter, self.layer, self.direction, GATE_ORDER.find(self.gate)

    def shape(self, sizes: Sizes) -> Shape:
        """Returns the shape of the block in layers of these sizes, such as (hidden, inputs) for W."""
        return tuple(sizes.of(letter, self.layer) for letter in PARAMETERS[self.parameter])


@dataclass(frozen=True)
class Region:
    """Position of a block (one parameter of one gate) in an array of weights: a start and strides.

    array: the name of the array.
    shape: the shape of the block or, if `raw`, of the region.
    start: the index of the first element along each axis of the array.
    steps: for each axis of the block, the axis of the array and the stride along it, in elements.
    flat: whether start and steps refer to the array as a vector.
    raw: whether the region has the axes of the block in the order in which they lie in memory.
    """

    block: ParameterBlock
    array: str
    shape: Shape
    start: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    flat: bool = False
    raw: bool = False

    def view(self, array: Array) -> Array:
        """Returns a view of a block (one parameter of one gate) of weights in `array`, at this position;
        raises `LayoutError` if the array is too small. The view has the shape of the block, or of its buffer
        if the region is `raw` (axes in stored order).
        """
        if self.flat and array.ndim != 1:
            array = array.reshape(-1)
        ends = list(self.start)
        for size, (axis, step) in zip(self.shape, self.steps, strict=True):
            ends[axis] += (size - 1) * step
        if any(end >= length for end, length in zip(ends, array.shape, strict=True)):
            raise LayoutError(f"{self.block} does not lie in {self.array} of shape {array.shape}")
        corner = array[tuple(slice(start, None) for start in self.start)]
        strides = [step * array.strides[axis] for axis, step in self.steps]
        return np.lib.stride_tricks.as_strided(corner, self.shape, strides)


@lru_cache(KEPT)
def regions(record: Record, sizes: Sizes) -> tuple[Region, ...]:
    """Returns the position of every block (one parameter of one gate) in the arrays of a layout."""
    return tuple(region for entry in record.entries(sizes) for region in entry_regions(entry, sizes))


def entry_regions(entry: Entry, sizes: Sizes) -> Iterator[Region]:
    """Yields the position of every block (one parameter of one gate) in one array of a layout (a framework's
    arrangement of weights). If the array consists of smaller arrays (buffers) end to end, a position refers
    to it as a vector.
    """
    pattern = entry.pattern
    if isinstance(pattern, Concatenation):
        yield from stack_regions(entry.name, pattern, sizes, entry.layer, entry.direction)
        return
    shape = shape_of(pattern, sizes, entry.layer or 0)
    for stack, layer, direction, base in buffers(pattern.segments, sizes, entry.layer, entry.direction):
        inner = stack_shape(stack, sizes, layer or 0)
        strides = [prod(inner[axis + 1 :]) for axis in range(len(inner))]
        for region in stack_regions(entry.name, stack, sizes, layer, direction):
            start = base + sum(index * stride for index, stride in zip(region.start, strides, strict=True))
            steps = tuple((0, step * strides[axis]) for axis, step in region.steps)
            flat = len(shape) != 1
            yield Region(region.block, region.array, region.shape, (start,), steps, flat, region.raw)


def buffers(
    segments: tuple[Concatenation | Loop, ...],
    sizes: Sizes,
    layer: int | None,
    direction: int | None,
    base: int = 0,
) -> Iterator[tuple[Concatenation, int | None, int | None, int]]:
    """Yields (concatenated terms, layer, direction, start index) for every buffer of a vector of weights: an
    array of one layer and direction that is stored in a part of the vector.

    segments: the parsed notation of the vector. layer, direction: of buffers outside loops over them; None if
    the buffer itself has the axis. base: the index at which the first buffer starts.
    """
    for segment in segments:
        if isinstance(segment, Concatenation):
            yield segment, layer, direction, base
            base += prod(stack_shape(segment, sizes, layer or 0))
            continue
        layers = range(sizes.layers) if "L" in segment.over else [layer]
        directions = range(sizes.directions) if "D" in segment.over else [direction]
        for layer_number, direction_number in product(layers, directions):
            yield from buffers(segment.segments, sizes, layer_number, direction_number, base)
            base += flat_length(segment.segments, sizes, layer_number or 0)


def stack_regions(
    name: str, stack: Concatenation, sizes: Sizes, layer: int | None, direction: int | None
) -> Iterator[Region]:
    """Yields the position of every block (one parameter of one gate) in concatenated terms of an array.

    name: the array's name. layer, direction: of the array; None if the terms have axes for them.
    """
    offset = 0
    for term in stack.terms:
        shape = term_shape(term, sizes, layer or 0)
        axis = range(len(shape))[stack.axis] if len(stack.terms) > 1 else 0
        corner = tuple(offset if index == axis else 0 for index in range(len(shape)))
        yield from term_regions(name, term, sizes, layer, direction, corner)
        offset += shape[axis] if shape else 0


def term_regions(
    name: str, term: Term, sizes: Sizes, layer: int | None, direction: int | None, corner: tuple[int, ...]
) -> Iterator[Region]:
    """Yields the position of every block (one parameter of one gate) in a term (a parameter of some gates).

    name: the array's name. layer, direction: those of the array; None if the term has axes for them.
    corner: the index of the term's first number along each axis of the array. There is a region per gate,
    and per layer and direction if the term has these axes. A raw region has its axes in stored order.
    """
    positions: dict[str, tuple[int, int]] = {}
    for position, axis in enumerate(term.axes):
        step = 1
        for atom in reversed(axis):
            positions[atom.name] = (position, step)
            step *= len(atom.labels) or sizes.of(atom.name, layer or 0)
    gates = term.gates or ("",)
    layers = range(sizes.layers) if "L" in positions else [layer or 0]
    directions = range(sizes.directions) if "D" in positions else [direction or 0]
    letters = PARAMETERS[term.parameter]
    if term.raw:
        letters = "".join(sorted(letters, key=lambda letter: positions[letter]))
    for layer_number, direction_number, (index, gate) in product(layers, directions, enumerate(gates)):
        start = list(corner)
        for letter, number in (("L", layer_number), ("D", direction_number), ("g", index)):
            if letter in positions:
                axis, step = positions[letter]
                start[axis] += number * step
        shape = tuple(sizes.of(letter, layer_number) for letter in letters)
        block = ParameterBlock(term.parameter, gate, layer_number, direction_number)
        steps = tuple(positions[letter] for letter in letters)
        yield Region(block, name, shape, tuple(start), steps, raw=bool(term.raw))
