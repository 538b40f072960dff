"""Which shapes cannot be those of a record: what each axis says by itself, before equations are solved.

    torch.gru has weight_ih_l0 [3*h, x] and weight_hh_l0 [3*h, h]
    shapes (12, 5) and (12, 7)    12 is 3*4, and 7 is not 4: it is none

A file may have hundreds of thousands of layers by their names. To solve the equations of one takes a
millisecond, and to look at its axes some microseconds: only those that may fit are solved. 250,000 layers of
Keras' names and of different shapes that do not fit took 5 minutes of one core, and take 30 s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd, prod

from stepnet.layout.notation import Atom, Flat, Pattern
from stepnet.layout.record import Record
from stepnet.layout.sizes import Shape
from stepnet.layout.solve import Unknowns, equations, flat_products, needed, unknowns


@dataclass(frozen=True)
class Array:
    """What the shape of an array has to be: so many axes, and of some of these the place, a number by which
    the length divides, and the letter of the size that it is then, "" where it is none.
    """

    name: str
    axes: int
    lengths: tuple[tuple[int, int, str], ...]


def conditions(record: Record, names: Iterable[str]) -> tuple[Array, ...]:
    """What shapes of a record's arrays of these names have to be, as far as one axis tells."""
    places = {name: place for name in names if (place := record.place(name)) is not None}
    known = unknowns(record, places.values())
    found: list[Array] = []
    for name, (template, layer, _) in places.items():
        pattern = record.patterns[template]
        axes = axes_of(pattern)
        lengths = [  # the lengths of this shape are the places of the axes
            (one.length, *condition(one.products, known, one.layer))
            for one in equations(name, pattern, tuple(range(axes)), layer)
        ]
        if isinstance(pattern, Flat) and not lengths:
            lengths.append((0, *condition(tuple(flat_products(pattern.parts)), known, 0)))
        found.append(Array(name, axes, tuple(lengths)))
    return tuple(found)


def axes_of(pattern: Pattern) -> int:
    """How many axes an array has."""
    return len(pattern.shape if isinstance(pattern, Flat) else pattern.terms[0].axes) or 1


def condition(products: tuple[tuple[Atom, ...], ...], known: Unknowns, layer: int) -> tuple[int, str]:
    """The number by which a sum of products divides, and the letter of what is left, where it is one size."""
    factors = [
        prod(len(atom.labels) or (int(atom.name) if atom.name.isdigit() else 1) for atom in atoms)
        for atoms in products
    ]
    first, *others = products
    if others:
        return gcd(*factors), ""
    letters = [letter for atom in first for letter in needed(atom.name, known, layer)]
    factor = factors[0] * prod(known[letter] or 1 for letter in letters)
    left = [letter for letter in letters if known[letter] is None]
    return factor, left[0] if len(left) == 1 else ""


def possible(arrays: tuple[Array, ...], shapes: Mapping[str, Shape]) -> bool:
    """Whether shapes are as `conditions` say; those that are may still be none of the record.

    >>> from stepnet.layout import record
    >>> gru = conditions(record("torch.gru"), ["weight_ih_l0", "weight_hh_l0"])
    >>> possible(gru, {"weight_ih_l0": (12, 5), "weight_hh_l0": (12, 7)})
    False
    >>> possible(gru, {"weight_ih_l0": (12, 5), "weight_hh_l0": (12, 4)})
    True
    """
    sizes: dict[str, int] = {}
    for array in arrays:
        shape = shapes[array.name]
        if len(shape) != array.axes:
            return False
        for place, factor, letter in array.lengths:
            size, rest = divmod(shape[place], factor)
            if rest or (letter and sizes.setdefault(letter, size) != size):
                return False
    return True
