"""A quick test, axis by axis, whether shapes can fit a record, before equations are solved.

    torch.gru has weight_ih_l0 [3*h, x] and weight_hh_l0 [3*h, h]
    shapes (12, 5) and (12, 7)    12 is 3*4, and 7 is not 4: they do not fit

A file may have hundreds of thousands of candidate layers. To solve the equations of one takes a millisecond,
to test its axes some microseconds. 250,000 layers with Keras' names and shapes that do not fit took 5 minutes
on one core without this test, and take 30 s with it.
"""

from collections.abc import Iterable, Mapping
from math import gcd, prod

from stepnet.compiler.values.records import dataclass
from stepnet.layout.notation import ElementaryAxis, Flat, Pattern
from stepnet.layout.record import Record
from stepnet.layout.sizes import Shape
from stepnet.layout.solve import Unknowns, equations, flat_products, needed, unknowns


@dataclass(frozen=True)
class Array:
    """A condition on the shape of an array.

    name: the name of the array.
    axes: the number of its axes.
    lengths: conditions (axis, factor, letter): the length of the axis is a multiple of the factor, and the
        quotient is the size of the letter unless that is "".
    """

    name: str
    axes: int
    lengths: tuple[tuple[int, int, str], ...]


def conditions(record: Record, names: Iterable[str]) -> tuple[Array, ...]:
    """Returns the conditions for the quick test of `possible`, which a layout (a framework's arrangement of
    weights) imposes on the shape of each array: the number of axes, and for each axis a divisor of its length
    and the size that the quotient must be.

    record: the layout. names: the names of the arrays that are present; unknown names are left out.
    """
    parsed_names = {name: parsed for name in names if (parsed := record.parsed_name(name)) is not None}
    sizes = unknowns(record, parsed_names.values())
    arrays: list[Array] = []
    for name, (template, layer, _) in parsed_names.items():
        pattern = record.patterns[template]
        axes = axes_of(pattern)
        lengths = [  # in this shape, each axis has its own index as its length
            (equation.length, *condition(equation.products, sizes, equation.layer))
            for equation in equations(name, pattern, tuple(range(axes)), layer)
        ]
        if isinstance(pattern, Flat) and not lengths:
            lengths.append((0, *condition(tuple(flat_products(pattern.segments)), sizes, 0)))
        arrays.append(Array(name, axes, tuple(lengths)))
    return tuple(arrays)


def axes_of(pattern: Pattern) -> int:
    """Returns the number of axes that an array with this notation has, to compare it with a shape."""
    return len(pattern.shape if isinstance(pattern, Flat) else pattern.terms[0].axes) or 1


def condition(
    products: tuple[tuple[ElementaryAxis, ...], ...], sizes: Unknowns, layer: int
) -> tuple[int, str]:
    """Returns a condition on the length of an axis: (a factor that divides it, the letter of the quotient).

    products: the products of elementary axes whose sum is the length; of several, only the greatest common
    divisor of their numbers is used. The letter is "" unless the quotient is a single size.
    sizes: those known so far, by letter; None if unknown. layer: the layer of the array.
    """
    factors = [
        prod(len(atom.labels) or (int(atom.name) if atom.name.isdigit() else 1) for atom in atoms)
        for atoms in products
    ]
    first, *others = products
    if others:
        return gcd(*factors), ""
    letters = [letter for atom in first for letter in needed(atom.name, sizes, layer)]
    factor = factors[0] * prod(sizes[letter] or 1 for letter in letters)
    unknown_letters = [letter for letter in letters if sizes[letter] is None]
    return factor, unknown_letters[0] if len(unknown_letters) == 1 else ""


def possible(arrays: tuple[Array, ...], shapes: Mapping[str, Shape]) -> bool:
    """Tells if shapes of arrays, by name, meet the conditions on them: numbers of axes, divisors of lengths,
    and equal sizes of equal letters. Shapes that do may still not fit the layout (arrangement of weights).

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
        for axis, factor, letter in array.lengths:
            size, rest = divmod(shape[axis], factor)
            if rest or (letter and sizes.setdefault(letter, size) != size):
                return False
    return True
