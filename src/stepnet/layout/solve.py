"""The sizes that shapes of arrays tell.

Each axis of each array is an equation: its length is the sum, over the terms stacked there, of products of
sizes. Those with one unknown are solved until none is left. A vector that holds everything is one equation
with several unknowns; then all sizes that fit it are found, and unless that is one set of sizes, they are
asked for.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from math import isqrt, prod
from typing import Any

import numpy as np

from stepnet.errors import LayoutError
from stepnet.layout.notation import Atom, Axis, Flat, Loop, Pattern, Stack
from stepnet.layout.options import option
from stepnet.layout.record import Record, letters_of
from stepnet.layout.sizes import LETTERS, Shape, Sizes, shape_of

Unknowns = dict[str, int | None]  # sizes by letter, None where not known yet

MOST_SHOWN = 5  # sizes that fit
MOST_LAYERS = 16  # that are considered where nothing but the length of a vector tells


def told(record: Record, shapes: Mapping[str, Shape], given: Mapping[str, int | None] | None = None) -> Sizes:
    """The sizes that arrays of these shapes have, by name.

    given: sizes that the shapes may leave open. Raises `LayoutError` for arrays that are missing, unknown
    or do not fit, and for sizes that are left open.
    """
    sizes = solved(record, shapes, given)
    check(record, shapes, sizes)
    return sizes


def solved(
    record: Record, shapes: Mapping[str, Shape], given: Mapping[str, int | None] | None = None
) -> Sizes:
    """The sizes that solve the equations of some arrays, whether or not all arrays fit them."""
    places = {name: record.place(name) for name in shapes}
    strangers = [name for name, place in places.items() if place is None]
    if strangers:
        raise LayoutError(f"{record.name} has no array {strangers[0]!r}; it has {', '.join(record.names())}")
    known = unknowns(record, [place for place in places.values() if place], given)
    system: list[Equation] = []
    for name, place in places.items():
        if place is not None:
            system += equations(name, record.patterns[place[0]], shapes[name], place[1])
    return finished(record, solve(system, known), shapes, places)


def unknowns(
    record: Record,
    places: Collection[tuple[Any, int | None, int | None]],
    given: Mapping[str, int | None] | None = None,
) -> Unknowns:
    """The sizes by letter that are known before any shape is: those given, and the counts that names say.

    places: what the names of the arrays are in the record, each with its layer and direction.
    """
    known = given_unknowns(given or {}, record.projection)
    for letter, index in (("L", 1), ("D", 2)):
        found = [at for at in (place[index] for place in places) if isinstance(at, int)]
        if found:
            known = counted(record.name, known, letter, 1 + max(found))
        elif not any(letter in letters_of(pattern) for pattern in record.patterns.values()):
            known[letter] = 1
    return known


def finished(
    record: Record, known: Unknowns, shapes: Mapping[str, Shape], places: Mapping[str, Any]
) -> Sizes:
    """The sizes, the last unknowns from the length of a vector."""
    if None not in known.values():
        return sizes_from(known)
    for name, place in places.items():
        pattern = record.patterns[place[0]]
        if isinstance(pattern, Flat) and not pattern.shape:
            if known["h"] is None and known.get("y", 0) is None:
                raise asked(name, shapes[name][0], [], record.name, searched=False)
            fits = list(islice(fitting(pattern, shapes[name][0], known), MOST_SHOWN))
            if len(fits) != 1:
                raise asked(name, shapes[name][0], fits, record.name)
            return fits[0]
    missing = [name for name in record.names() if name not in shapes and not name.endswith("?")]
    raise LayoutError(
        f"{record.name} needs {', '.join(missing) or 'more arrays'}; given are {', '.join(shapes) or 'none'}"
    )


def check(record: Record, shapes: Mapping[str, Shape], sizes: Sizes) -> None:
    """Raises `LayoutError` unless these are exactly the arrays of these sizes."""
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
    strangers = [name for name in shapes if name not in entries]
    if strangers:
        raise LayoutError(f"{whose} no array {strangers[0]!r}; it has {', '.join(entries)}")
    beside: dict[str, str] = {}  # the first array that is there, of those that may be missing, by kind
    for name, entry in entries.items():
        if entry.optional and name in shapes:
            beside = dict.fromkeys(entry.kinds, name) | beside
    for name, entry in entries.items():
        missed = entry.kinds & beside.keys() if entry.optional and name not in shapes else set[str]()
        if missed:
            first = next(one for one in entries if one in {beside[kind] for kind in missed})
            raise LayoutError(f"{name} is missing, and {first} is there")


def counted(name: str, known: Unknowns, letter: str, count: int) -> Unknowns:
    """The sizes with a count that names say; raises `LayoutError` where another one is given."""
    given = known[letter]
    if given not in (None, count):
        what = {"L": "layers", "D": "directions"}[letter]
        raise LayoutError(f"{name}: the names are of {count} {what}, and given is {what}={given}")
    return known | {letter: count}


# ---- the equations -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equation:
    """The length of an axis of an array, as a sum of products: of the layer whose array it is."""

    array: str
    length: int
    products: tuple[tuple[Atom, ...], ...]
    layer: int

    def left(self, known: Unknowns) -> set[str]:
        """The letters that are not known."""
        return {
            letter for atoms in self.products for atom in atoms for letter in unknown(atom, known, self.layer)
        }

    def total(self, known: Unknowns) -> int:
        """The length by the sizes known."""
        return sum(value(atoms, known, self.layer) for atoms in self.products)

    def solved(self, letter: str, known: Unknowns) -> int:
        """The one unknown, with which the sum grows; raises `LayoutError` where no whole number fits."""
        low, high = 1, max(1, self.length)
        while low < high:
            middle = (low + high) // 2
            if self.total(known | {letter: middle}) < self.length:
                low = middle + 1
            else:
                high = middle
        if self.total(known | {letter: low}) != self.length:
            raise LayoutError(f"{self.array} has an axis of {self.length}, which is not {self}")
        return low

    def __str__(self) -> str:
        return " + ".join(" ".join(map(atom_text, atoms)) for atoms in self.products)


def atom_text(atom: Atom) -> str:
    """What an axis counts, in words where it is one for people."""
    names = {"x": "inputs", "h": "hidden", "k": "output", "y": "projected"}
    return f"{len(atom.labels)}" if atom.labels else names.get(atom.name, atom.name)


def unknown(atom: Atom, known: Unknowns, layer: int) -> list[str]:
    """The letters that the size of an axis waits for."""
    return [letter for letter in needed(atom.name, known, layer) if known[letter] is None]


def needed(name: str, known: Unknowns, layer: int) -> list[str]:
    """The letters that say the size of an axis: what recurs is y or h; upper layers' inputs are outputs."""
    output = "y" if "y" in known else "h"
    if name == "x" and layer > 0:
        return ["D", output]
    return [] if name.isdigit() or name == "g" else [output if name == "k" else name]


def value(atoms: tuple[Atom, ...], known: Unknowns, layer: int) -> int:
    """The product of the sizes of axes, all known."""
    result = 1
    for atom in atoms:
        result *= len(atom.labels) or (int(atom.name) if atom.name.isdigit() else 1)
        for letter in needed(atom.name, known, layer):
            result *= known[letter] or 0
    return result


def equations(array: str, pattern: Pattern, shape: Shape, layer: int | None) -> Iterator[Equation]:
    """What the shape of an array says of its sizes; of a vector of all layers nothing yet."""
    axes = pattern.shape if isinstance(pattern, Flat) else pattern.terms[0].axes
    if len(shape) != (len(axes) or 1):
        raise LayoutError(f"{array} has shape {shape}; the axes expected there are {len(axes) or 1}")
    if isinstance(pattern, Flat):
        for axis, length in zip(axes, shape, strict=False):
            yield Equation(array, length, (axis,), layer or 0)
        if not axes and layer is not None:
            yield Equation(array, shape[0], tuple(flat_products(pattern.parts)), layer)
        return
    joined = range(len(axes))[pattern.axis] if len(pattern.terms) > 1 else -1
    for place, length in enumerate(shape):
        each: list[Axis] = [term.axes[place] for term in pattern.terms]
        for products in [tuple(each)] if place == joined else [(axis,) for axis in dict.fromkeys(each)]:
            yield Equation(array, length, products, layer or 0)


def flat_products(parts: tuple[Stack | Loop, ...]) -> Iterator[tuple[Atom, ...]]:
    """The products whose sum is the length of buffers of one layer and direction."""
    for part in parts:
        if isinstance(part, Loop):
            yield from flat_products(part.parts)
        else:
            for term in part.terms:
                yield tuple(atom for axis in term.axes for atom in axis)


def solve(system: list[Equation], known: Unknowns) -> Unknowns:
    """The unknowns that equations with one unknown say, one after the other."""
    while True:
        ready = [(one, one.left(known)) for one in system]
        found = [(one, left.pop()) for one, left in ready if len(left) == 1]
        if not found:
            return known
        one, letter = found[0]
        known = known | {letter: one.solved(letter, known)}


# ---- one vector of everything ------------------------------------------------------------------------------


def fitting(pattern: Flat, length: int, known: Unknowns) -> Iterator[Sizes]:
    """All sizes with which a vector has that length, those known being as they are."""
    layers = [known["L"]] if known["L"] else range(1, MOST_LAYERS + 1)
    directions = [known["D"]] if known["D"] else (1, 2)
    most = length // (known.get("y") or 1) if known.get("y") else isqrt(length)
    hidden = np.array([known["h"]] if known["h"] else range(1, most + 1))
    for count, ways in product(layers, directions):
        sums = monomials(pattern.parts, Sizes(1, 1, None, count, ways), "y" in known)
        for projected in projections(known, length):
            rest, slope = np.full_like(hidden, length), np.zeros_like(hidden)
            for letters, times in sums.items():
                number = times * hidden ** letters.count("h") * (projected or 1) ** letters.count("y")
                slope, rest = (slope + number, rest) if "x" in letters else (slope, rest - number)
            inputs = rest // slope
            fits = (inputs >= 1) & (inputs * slope == rest)
            for one, given in zip(hidden[fits].tolist(), inputs[fits].tolist(), strict=True):
                if known["x"] in (None, given):
                    yield Sizes(given, one, projected, count, ways)


def projections(known: Unknowns, length: int) -> Iterable[int | None]:
    """The sizes of the projection to consider: none where the layout has none."""
    if known.get("y") or "y" not in known:
        return [known.get("y")]
    hidden = known["h"] or 1  # a projection is never to more than there are
    return range(1, min(hidden, length // hidden) + 1)


def monomials(
    parts: tuple[Stack | Loop, ...], sizes: Sizes, projection: bool, layer: int = 0
) -> Counter[str]:
    """How many numbers buffers hold, as a sum of products of h, x and y: how often each product is in it."""
    found: Counter[str] = Counter()
    for part in parts:
        if isinstance(part, Loop):
            layers = range(sizes.layers) if "L" in part.over else [layer]
            times = sizes.directions if "D" in part.over else 1
            for each in layers:
                inner = monomials(part.parts, sizes, projection, each)
                found.update({letters: times * count for letters, count in inner.items()})
            continue
        for term in part.terms:
            atoms = [atom for axis in term.axes for atom in axis]
            upper = sizes.directions if layer and any(atom.name == "x" for atom in atoms) else 1
            count = upper * prod(
                len(atom.labels) or (int(atom.name) if atom.name.isdigit() else 1) for atom in atoms
            )
            output = "y" if projection else "h"
            inputs = output if layer else "x"
            letters = [{"k": output, "x": inputs}.get(atom.name, atom.name) for atom in atoms]
            found["".join(sorted(letter for letter in letters if letter in "hxy"))] += count
    return found


class OpenSizesError(LayoutError):
    """Shapes fit a layout, and leave sizes open."""


def asked(array: str, length: int, fits: list[Sizes], of: str, searched: bool = True) -> LayoutError:
    """The error that asks for sizes, with the first few that fit."""
    if searched and not fits:
        return LayoutError(f"{array} has {length} numbers, and no sizes of {of} with what is given make that")
    some = "; ".join(map(str, fits[:-1] if len(fits) == MOST_SHOWN else fits))
    some += "; ..." if len(fits) == MOST_SHOWN else ""
    return OpenSizesError(
        f"{array} has {length} numbers, which fit several sizes of {of}{f' ({some})' if some else ''}: say "
        f"{option('sizes')}, and layers and directions if there are several"
    )


def given_unknowns(given: Mapping[str, int | None], projection: bool) -> Unknowns:
    """Sizes by letter, as far as they are given; raises `LayoutError` for names and numbers of no size."""
    for name in given:
        if name not in LETTERS:
            raise LayoutError(f"no size is called {name!r}; there are {', '.join(LETTERS)}")
    said = {name: value for name, value in given.items() if value is not None}
    Sizes(**({"inputs": 1, "hidden": 1} | said))  # which checks each
    if given.get("projected") is not None and not projection:
        raise LayoutError("projected is given, and the layout has no projection")
    known: Unknowns = {letter: given.get(name) for name, letter in LETTERS.items()}
    if not projection:
        del known["y"]
    return known


def sizes_from(known: Unknowns) -> Sizes:
    """Sizes, all of which are known."""
    return Sizes(known["x"] or 0, known["h"] or 0, known.get("y"), known["L"] or 0, known["D"] or 0)
