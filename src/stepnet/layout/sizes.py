"""The sizes of recurrent layers, and the shapes that terms of the notation have at given sizes."""

from dataclasses import fields
from math import prod
from typing import Any

from stepnet.compiler.values.arguments import checked_integer, is_integer
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, LayoutError
from stepnet.layout.notation import Axis, Concatenation, Loop, Pattern, Term

Shape = tuple[int, ...]
MOST = {"layers": 1024, "directions": 2}  # the limits; of other sizes MOST_UNITS
MOST_UNITS = 1 << 24  # its square, times gates and layers, fits 64 bits
LETTERS = {"inputs": "x", "hidden": "h", "projected": "y", "layers": "L", "directions": "D"}


@dataclass(frozen=True)
class Sizes:
    """The sizes of recurrent layers.

    Args:
        inputs: The number of inputs of the first layer.
        hidden: The number of hidden units.
        projected: The number of outputs of the projection; None without one.
        layers: The number of layers.
        directions: 1 or 2.

    Raises:
        LayoutError: For sizes that are no whole numbers from 1 on, or too large.

    >>> Sizes(inputs=2, hidden=3, layers=2, directions=2).inputs_of(layer=1)
    6
    >>> Sizes(inputs=2, hidden=3, layers=10**9)
    Traceback (most recent call last):
    stepnet.errors.LayoutError: layers is 1024 at most, not 1000000000
    """

    inputs: int
    hidden: int
    projected: int | None = None
    layers: int = 1
    directions: int = 1

    def __post_init__(self) -> None:
        """Raises `LayoutError` unless each size is a whole number from 1 on and at most its limit."""
        for field in fields(self):
            if field.name == "projected" and self.projected is None:
                continue
            value: Any = getattr(self, field.name)
            most = MOST.get(field.name, MOST_UNITS)
            meaning = f"{field.name} is a whole number from 1 on"
            if is_integer(value) and value >= 1:
                meaning = f"{field.name} is {'1 or 2' if most == 2 else f'{most} at most'}"
            try:
                checked_integer(value, meaning, 1, most)
            except InputError as error:
                raise LayoutError(str(error)) from None

    def __str__(self) -> str:
        """The sizes in words, such as "2 inputs, 3 hidden", for messages."""
        text = f"{self.inputs} inputs, {self.hidden} hidden"
        text += f", {self.projected} projected" if self.projected else ""
        text += f", {self.layers} layers" if self.layers > 1 else ""
        return text + (", both directions" if self.directions > 1 else "")

    @property
    def output(self) -> int:
        """The number of outputs of one direction of a layer: `projected` if set, else `hidden`."""
        return self.projected or self.hidden

    def inputs_of(self, layer: int) -> int:
        """Returns the number of inputs of a layer; upper layers read the outputs of all directions."""
        return self.inputs if layer == 0 else self.directions * self.output

    def of(self, letter: str, layer: int = 0) -> int:
        """Returns the size of an axis by its letter in the notation of layouts (arrangements of weights): x
        inputs of the layer, h hidden, k or y outputs, L layers, D directions; a number as text is its own
        size.
        """
        match letter:
            case "x":
                return self.inputs_of(layer)
            case "h":
                return self.hidden
            case "k" | "y":
                return self.output
            case "L":
                return self.layers
            case "D":
                return self.directions
            case _:
                return int(letter)


# ---- shapes ------------------------------------------------------------------------------------------------


def axis_size(axis: Axis, sizes: Sizes, layer: int) -> int:
    """Returns the length of one axis of an array in a layer: the product of its elementary axes."""
    return prod(len(atom.labels) or sizes.of(atom.name, layer) for atom in axis)


def term_shape(term: Term, sizes: Sizes, layer: int) -> Shape:
    """Returns the shape of a term (a parameter with its axes) in one layer of these sizes."""
    return tuple(axis_size(axis, sizes, layer) for axis in term.axes)


def stack_shape(stack: Concatenation, sizes: Sizes, layer: int) -> Shape:
    """Returns the shape of an array of concatenated terms (parameters with their axes) in layer number
    `layer`, such as b and d one after the other: the lengths along the axis of concatenation are added.
    """
    shapes = [term_shape(term, sizes, layer) for term in stack.terms]
    axis = range(len(shapes[0]))[stack.axis] if len(shapes) > 1 else -1
    return tuple(
        sum(shape[index] for shape in shapes) if index == axis else length
        for index, length in enumerate(shapes[0])
    )


def flat_length(segments: tuple[Concatenation | Loop, ...], sizes: Sizes, layer: int) -> int:
    """Returns the length of a vector of weights, or of a part of it, from its parsed notation; parts in loops
    over layers or directions are counted as often as `sizes` has these. Parts that are in no loop over layers
    belong to `layer`.
    """
    total = 0
    for segment in segments:
        if isinstance(segment, Concatenation):
            total += prod(stack_shape(segment, sizes, layer))
            continue
        layers = range(sizes.layers) if "L" in segment.over else [layer]
        times = sizes.directions if "D" in segment.over else 1
        total += sum(times * flat_length(segment.segments, sizes, layer_number) for layer_number in layers)
    return total


def shape_of(pattern: Pattern, sizes: Sizes, layer: int = 0) -> Shape:
    """Returns the shape of an array of `layer` from its pattern (the parsed notation), to check it or to
    allocate it. Arrays end to end, without a declared shape, are one vector. sizes: the sizes of the layer.

    >>> from stepnet.layout.notation import parse
    >>> shape_of(parse("W[(g:rzn h) x]"), Sizes(inputs=2, hidden=3))
    (9, 2)
    """
    if isinstance(pattern, Concatenation):
        return stack_shape(pattern, sizes, layer)
    if pattern.shape:
        return tuple(axis_size(axis, sizes, layer) for axis in pattern.shape)
    return (flat_length(pattern.segments, sizes, layer),)
