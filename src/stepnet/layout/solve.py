"""The sizes of a layer, solved from the shapes of its arrays.

Each axis of each array is an equation: its length is the sum, over the terms concatenated along it, of
products of sizes. Equations with one unknown are solved until none is left. A vector of all weights is one
equation with several unknowns: all sizes that fit it are enumerated, and unless there is exactly one
solution, the user must state the sizes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, product
from math import isqrt, prod
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.notation import Axis, Concatenation, ElementaryAxis, Flat, Loop, Pattern
from stepnet.layout.options import option
from stepnet.layout.record import Record, letters_of
from stepnet.layout.sizes import LETTERS, Shape, Sizes, shape_of

Unknowns = dict[str, int | None]  # sizes by letter; None if not solved yet

MOST_SHOWN = 5  # solutions in a message
MOST_LAYERS = 16  # the most layers that are tried if only the length of a vector is known


def sizes_of(
    record: Record, shapes: Mapping[str, Shape], stated: Mapping[str, int | None] | None = None
) -> Sizes:
    """Solves the sizes of a layer from the shapes of its arrays by name. Raises `LayoutError` for arrays that
    are missing, unknown or do not fit, and `OpenSizesError` for sizes that stay open.

    stated: sizes that the shapes may leave open, as the caller states them.
    """
    sizes = solved(record, shapes, stated)
    check(record, shapes, sizes)
    return sizes


def solved(
    record: Record, shapes: Mapping[str, Shape], stated: Mapping[str, int | None] | None = None
) -> Sizes:
    """Solves the sizes of a layer from the shapes of arrays by name; some may be missing or not fit. Raises
    `LayoutError` for unknown names and for sizes that stay open.

    stated: sizes by name, as the caller states them.
    """
    parsed_names = {name: record.parsed_name(name) for name in shapes}
    unknown_names = [name for name, parsed in parsed_names.items() if parsed is None]
    if unknown_names:
        raise LayoutError(
            f"{record.name} has no array {unknown_names[0]!r}; it has {', '.join(record.names())}"
        )
    known = unknowns(record, [parsed for parsed in parsed_names.values() if parsed], stated)
    system: list[Equation] = []
    for name, parsed in parsed_names.items():
        if parsed is not None:
            system += equations(name, record.patterns[parsed[0]], shapes[name], parsed[1])
    return completed_sizes(record, solve(system, known), shapes, parsed_names)


def unknowns(
    record: Record,
    parsed_names: Collection[tuple[Any, int | None, int | None]],
    stated: Mapping[str, int | None] | None = None,
) -> Unknowns:
    """Returns the sizes by letter that are known without shapes; the others are None. These are the stated
    ones, and the numbers of layers and directions in the names of arrays, which are 1 if neither names nor
    axes of the layout (arrangement of weights) distinguish them.

    parsed_names: for each array, its template in the record, its layer and its direction.
    """
    letter_sizes = stated_sizes(stated or {}, record.projection)
    for letter, index in (("L", 1), ("D", 2)):
        indices = [number for number in (parsed[index] for parsed in parsed_names) if isinstance(number, int)]
        if indices:
            letter_sizes = with_count(record.name, letter_sizes, letter, 1 + max(indices))
        elif not any(letter in letters_of(pattern) for pattern in record.patterns.values()):
            letter_sizes[letter] = 1
    return letter_sizes


def completed_sizes(
    record: Record, letter_sizes: Unknowns, shapes: Mapping[str, Shape], parsed_names: Mapping[str, Any]
) -> Sizes:
    """Completes the sizes of a layer: searches the last unknown ones from the length of a vector of all
    weights. Raises `OpenSizesError` if several fit the vector or there are too many to search, and
    `LayoutError` if none fits or there is no vector. letter_sizes: the sizes solved so far. shapes: the
    shapes of the arrays, by name.

    parsed_names: by the name of each array, its template in the record, its layer and its direction.
    """
    if None not in letter_sizes.values():
        return sizes_from(letter_sizes)
    for name, parsed in parsed_names.items():
        pattern = record.patterns[parsed[0]]
        if isinstance(pattern, Flat) and not pattern.shape:
            if letter_sizes["h"] is None and letter_sizes.get("y", 0) is None:
                raise size_error(name, shapes[name][0], [], record.name, searched=False)
            fits = list(islice(fitting(pattern, shapes[name][0], letter_sizes), MOST_SHOWN))
            if len(fits) != 1:
                raise size_error(name, shapes[name][0], fits, record.name)
            return fits[0]
    missing = [name for name in record.names() if name not in shapes and not name.endswith("?")]
    raise LayoutError(
        f"{record.name} needs {', '.join(missing) or 'more arrays'}; "
        f"the arrays are {', '.join(shapes) or 'none'}"
    )


def check(record: Record, shapes: Mapping[str, Shape], sizes: Sizes) -> None:
    """Raises `LayoutError` unless arrays of these shapes, by name, are exactly the arrays of a layer of these
    sizes. Optional arrays of one kind, such as biases, must all be there, or none.
    """
    misfit = record.misfit(sizes)
    if misfit:
        raise LayoutError(misfit)
    entries = {entry.name: entry for entry in record.entries(sizes)}
    whose = f"{record.name} of {sizes} has"
    for name, entry in entries.items():
        expected = shape_of(entry.pattern, sizes, entry.layer or 0)
        if name not in shapes and not entry.optional:
            raise LayoutError(f"{name} is missing: {whose} {', '.join(entries)}")
        if name in shapes and shapes[name] != expected:
            raise LayoutError(f"{name} has shape {shapes[name]}; {whose} {expected} there")
    unknown_names = [name for name in shapes if name not in entries]
    if unknown_names:
        raise LayoutError(f"{whose} no array {unknown_names[0]!r}; it has {', '.join(entries)}")
    present: dict[str, str] = {}  # by kind: the first optional array that is present
    for name, entry in entries.items():
        if entry.optional and name in shapes:
            present = dict.fromkeys(entry.kinds, name) | present
    for name, entry in entries.items():
        missed = entry.kinds & present.keys() if entry.optional and name not in shapes else set[str]()
        if missed:
            first = next(
                entry_name for entry_name in entries if entry_name in {present[kind] for kind in missed}
            )
            raise LayoutError(f"{name} is missing, and {first} is there")


def with_count(name: str, letter_sizes: Unknowns, letter: str, count: int) -> Unknowns:
    """Returns the sizes with the `count` of layers or directions that names of arrays show. Raises
    `LayoutError`, with the layout's name, if the caller states another. letter: "L" or "D".
    """
    stated = letter_sizes[letter]
    if stated not in (None, count):
        what = {"L": "layers", "D": "directions"}[letter]
        raise LayoutError(
            f"{name}: the names of the arrays have {count} {what}, and {what}={stated} is stated"
        )
    return letter_sizes | {letter: count}


# ---- the equations -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equation:
    """One axis of an array of some layer, as an equation: its length is a sum of products of sizes.

    array: the array's name, for messages.
    length: the length of the axis.
    products: the summands; each is a product of the sizes of elementary axes.
    layer: the number of the array's layer, on which the number of its inputs depends.
    """

    array: str
    length: int
    products: tuple[tuple[ElementaryAxis, ...], ...]
    layer: int

    def unsolved(self, letter_sizes: Unknowns) -> set[str]:
        """Returns the letters of the sizes in this equation of an axis' length that are not solved yet."""
        return {
            letter
            for atoms in self.products
            for atom in atoms
            for letter in unknown(atom, letter_sizes, self.layer)
        }

    def total(self, letter_sizes: Unknowns) -> int:
        """Returns an axis' length from sizes by letter, all known: the sum of the equation's products."""
        return sum(value(atoms, letter_sizes, self.layer) for atoms in self.products)

    def solved(self, letter: str, letter_sizes: Unknowns) -> int:
        """Returns the size `letter`, the only unknown of the equation, by bisection, because the length grows
        with it. Raises `LayoutError` if no whole number fits.
        """
        low, high = 1, max(1, self.length)
        while low < high:
            middle = (low + high) // 2
            if self.total(letter_sizes | {letter: middle}) < self.length:
                low = middle + 1
            else:
                high = middle
        if self.total(letter_sizes | {letter: low}) != self.length:
            raise LayoutError(f"{self.array} has an axis of {self.length}, which is not {self}")
        return low

    def __str__(self) -> str:
        """The sum of products in words, such as "3 hidden + inputs", for messages."""
        return " + ".join(" ".join(map(atom_text, atoms)) for atoms in self.products)


def atom_text(atom: ElementaryAxis) -> str:
    """Returns the text of an elementary axis in messages: "hidden" for h, the number of gates for g."""
    names = {"x": "inputs", "h": "hidden", "k": "output", "y": "projected"}
    return f"{len(atom.labels)}" if atom.labels else names.get(atom.name, atom.name)


def unknown(atom: ElementaryAxis, letter_sizes: Unknowns, layer: int) -> list[str]:
    """Returns the letters of a layer's sizes, not solved yet, on which the length of an axis depends."""
    return [letter for letter in needed(atom.name, letter_sizes, layer) if letter_sizes[letter] is None]


def needed(name: str, letter_sizes: Unknowns, layer: int) -> list[str]:
    """Returns the letters of the sizes that an elementary axis' length depends on: inputs x of upper layers
    depend on the directions D and the output of the layer below; the output, also k, is y (projected) if the
    layout (arrangement of weights) has a projection, else h. A number and the gate axis g depend on none.

    letter_sizes: sizes by letter; it has "y" only if the layout has a projection.
    """
    output = "y" if "y" in letter_sizes else "h"
    if name == "x" and layer > 0:
        return ["D", output]
    return [] if name.isdigit() or name == "g" else [output if name == "k" else name]


def value(atoms: tuple[ElementaryAxis, ...], letter_sizes: Unknowns, layer: int) -> int:
    """Returns the product of the lengths of elementary axes (`atoms`) whose sizes are all known, in an array
    of `layer`: a summand of the equation of an axis. letter_sizes: the sizes by letter.
    """
    result = 1
    for atom in atoms:
        result *= len(atom.labels) or (int(atom.name) if atom.name.isdigit() else 1)
        for letter in needed(atom.name, letter_sizes, layer):
            result *= letter_sizes[letter] or 0
    return result


def equations(array: str, pattern: Pattern, shape: Shape, layer: int | None) -> Iterator[Equation]:
    """Yields equations for the sizes of a layer, which an array's shape states: the length of each axis is a
    sum of products of sizes.

    array: the name, for messages. pattern: the parsed notation. layer: the number of the layer; None if the
    array holds all layers, and then a vector has no equation here. An axis along which terms (parameters with
    their axes) are concatenated has one equation, with their sum; any other axis has one for each term that
    differs. Raises `LayoutError` for another number of axes.
    """
    axes = pattern.shape if isinstance(pattern, Flat) else pattern.terms[0].axes
    if len(shape) != (len(axes) or 1):
        raise LayoutError(f"{array} has shape {shape}; the axes expected there are {len(axes) or 1}")
    if isinstance(pattern, Flat):
        for axis, length in zip(axes, shape, strict=False):
            yield Equation(array, length, (axis,), layer or 0)
        if not axes and layer is not None:
            yield Equation(array, shape[0], tuple(flat_products(pattern.segments)), layer)
        return
    concatenated = range(len(axes))[pattern.axis] if len(pattern.terms) > 1 else -1
    for axis_index, length in enumerate(shape):
        term_axes: list[Axis] = [term.axes[axis_index] for term in pattern.terms]
        for products in (
            [tuple(term_axes)]
            if axis_index == concatenated
            else [(axis,) for axis in dict.fromkeys(term_axes)]
        ):
            yield Equation(array, length, products, layer or 0)


def flat_products(segments: tuple[Concatenation | Loop, ...]) -> Iterator[tuple[ElementaryAxis, ...]]:
    """Yields the products of elementary axes, one per term (a parameter with its axes), whose sum is the
    length of one layer and direction in a vector of weights. segments: its parsed notation, whose loops over
    layers and directions are not repeated.
    """
    for segment in segments:
        if isinstance(segment, Loop):
            yield from flat_products(segment.segments)
        else:
            for term in segment.terms:
                yield tuple(atom for axis in term.axes for atom in axis)


def solve(system: list[Equation], letter_sizes: Unknowns) -> Unknowns:
    """Solves a system of equations of axis lengths for a layer's sizes: repeatedly the first with a single
    unknown. Returns the sizes by letter, None for those that no such equation determines. letter_sizes: the
    sizes known before, None for the others.
    """
    while True:
        ready = [(equation, equation.unsolved(letter_sizes)) for equation in system]
        solvable = [(equation, unsolved.pop()) for equation, unsolved in ready if len(unsolved) == 1]
        if not solvable:
            return letter_sizes
        equation, letter = solvable[0]
        letter_sizes = letter_sizes | {letter: equation.solved(letter, letter_sizes)}


# ---- one vector of everything ------------------------------------------------------------------------------


def fitting(pattern: Flat, length: int, letter_sizes: Unknowns) -> Iterator[Sizes]:
    """Yields all sizes of layers whose weights make a vector of this length, by exhaustive search.

    pattern: the vector's parsed notation. letter_sizes: the sizes by letter (x inputs, h hidden, y projected,
    L layers, D directions), None for those to search. Up to `MOST_LAYERS` layers are tried; the inputs follow
    from the rest, because the length is linear in them.
    """
    layers = [letter_sizes["L"]] if letter_sizes["L"] else range(1, MOST_LAYERS + 1)
    directions = [letter_sizes["D"]] if letter_sizes["D"] else (1, 2)
    most = length // (letter_sizes.get("y") or 1) if letter_sizes.get("y") else isqrt(length)
    hidden = np.array([letter_sizes["h"]] if letter_sizes["h"] else range(1, most + 1))
    for count, direction_count in product(layers, directions):
        sums = monomials(pattern.segments, Sizes(1, 1, None, count, direction_count), "y" in letter_sizes)
        for projected in projections(letter_sizes, length):
            rest, slope = np.full_like(hidden, length), np.zeros_like(hidden)
            for letters, times in sums.items():
                number = times * hidden ** letters.count("h") * (projected or 1) ** letters.count("y")
                slope, rest = (slope + number, rest) if "x" in letters else (slope, rest - number)
            inputs = rest // slope
            fits = (inputs >= 1) & (inputs * slope == rest)
            for units, width in zip(hidden[fits].tolist(), inputs[fits].tolist(), strict=True):
                if letter_sizes["x"] in (None, width):
                    yield Sizes(width, units, projected, count, direction_count)


def projections(letter_sizes: Unknowns, length: int) -> Iterable[int | None]:
    """Returns the sizes of the projected output (letter "y") to try for a layer: the known one, or all that
    may fit; only None if the layout (arrangement of weights) has no projection, and so no letter "y" in
    `letter_sizes`.

    length: that of the vector of all its weights. It has the projection matrix [y, h], so y <= length / h.
    """
    if letter_sizes.get("y") or "y" not in letter_sizes:
        return [letter_sizes.get("y")]
    hidden = letter_sizes["h"] or 1  # a projection is never wider than the hidden units
    return range(1, min(hidden, length // hidden) + 1)


def monomials(
    segments: tuple[Concatenation | Loop, ...], sizes: Sizes, projection: bool, layer: int = 0
) -> Counter[str]:
    """Returns the length of a vector of weights as a polynomial in its sizes, to find sizes that fit: by
    monomial, such as "hhx", its coefficient.

    segments: the parsed notation of the vector. sizes: only layers and directions count, as known numbers.
    projection: True if the output's letter is y, not h. layer: the number of the layer for parts of the
    vector that are in no loop over layers.
    """
    counts: Counter[str] = Counter()
    for segment in segments:
        if isinstance(segment, Loop):
            layers = range(sizes.layers) if "L" in segment.over else [layer]
            times = sizes.directions if "D" in segment.over else 1
            for layer_number in layers:
                inner = monomials(segment.segments, sizes, projection, layer_number)
                counts.update({letters: times * count for letters, count in inner.items()})
            continue
        for term in segment.terms:
            atoms = [atom for axis in term.axes for atom in axis]
            upper = sizes.directions if layer and any(atom.name == "x" for atom in atoms) else 1
            count = upper * prod(
                len(atom.labels) or (int(atom.name) if atom.name.isdigit() else 1) for atom in atoms
            )
            output = "y" if projection else "h"
            inputs = output if layer else "x"
            letters = [{"k": output, "x": inputs}.get(atom.name, atom.name) for atom in atoms]
            counts["".join(sorted(letter for letter in letters if letter in "hxy"))] += count
    return counts


class OpenSizesError(LayoutError):
    """Raised if shapes fit a layout but leave sizes open, which the caller has to state."""


def size_error(array: str, length: int, fits: list[Sizes], name: str, searched: bool = True) -> LayoutError:
    """Returns the error that asks the user for sizes, with the first few solutions.

    array, length: the name and length of a vector of all weights. fits: the solutions. name: the layout's.
    searched: whether all sizes were tried, so that no solution means that none exists.
    """
    if searched and not fits:
        return LayoutError(
            f"{array} has {length} numbers, and no sizes of {name} that agree with the stated ones make that"
        )
    some = "; ".join(map(str, fits[:-1] if len(fits) == MOST_SHOWN else fits))
    some += "; ..." if len(fits) == MOST_SHOWN else ""
    return OpenSizesError(
        f"{array} has {length} numbers, which fit several sizes of {name}{f' ({some})' if some else ''}: say "
        f"{option('sizes')}, and layers and directions if there are several"
    )


def stated_sizes(stated: Mapping[str, int | None], projection: bool) -> Unknowns:
    """Returns the caller's sizes by letter, None where not stated; raises `LayoutError` for unknown names and
    impossible sizes. `projection` tells if the layout (arrangement of weights) has a projection, and so a
    letter for it.
    """
    for name in stated:
        if name not in LETTERS:
            raise LayoutError(f"no size is called {name!r}; there are {', '.join(LETTERS)}")
    Sizes(
        **({"inputs": 1, "hidden": 1} | {name: value for name, value in stated.items() if value is not None})
    )
    if stated.get("projected") is not None and not projection:
        raise LayoutError("projected is stated, and the layout has no projection")
    letter_sizes: Unknowns = {letter: stated.get(name) for name, letter in LETTERS.items()}
    if not projection:
        del letter_sizes["y"]
    return letter_sizes


def sizes_from(letter_sizes: Unknowns) -> Sizes:
    """Converts a layer's sizes by letter, all of them known, to `Sizes`."""
    return Sizes(
        letter_sizes["x"] or 0,
        letter_sizes["h"] or 0,
        letter_sizes.get("y"),
        letter_sizes["L"] or 0,
        letter_sizes["D"] or 0,
    )
