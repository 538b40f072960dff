"""Which arrays of a file are recurrent layers, and of which layouts, by names and shapes alone.

    {"rnn.weight_ih_l0": (9, 2), "rnn.weight_hh_l0": (9, 3), "head.weight": (5, 3)}
        -> Found("rnn.", torch.gru), and head.weight is nobody's

Names are those of a record behind some prefix, and shapes alone never choose: a record whose arrays are
called as those of other layers are (`kernel`, `bias`) has a mark, a pattern that the layer's own name has to
have. The record that explains most names is taken. Where several do that are not the same, nothing is
guessed: all are given, and who needs one asks for it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from stepnet.errors import LayoutError
from stepnet.layout import registry
from stepnet.layout.names import spelled
from stepnet.layout.options import option
from stepnet.layout.possible import Array, conditions, possible
from stepnet.layout.record import Record
from stepnet.layout.sizes import Shape, shape_of
from stepnet.layout.solve import OpenSizesError, solved, told
from stepnet.values.arguments import instance, mapping, whole

MOST_SHOWN = 20
MOST_TRIED = 1000  # records, of which one comes nearest
MOST_LEFT_OUT = 16  # arrays that may be the wrong one: the first say the sizes


@dataclass(frozen=True)
class Found:
    """The arrays of one recurrent layer, or stack of layers: the prefix of their names, what is behind it
    by the whole name, and the layouts that fit.
    """

    prefix: str
    names: Mapping[str, str]
    layouts: Sequence[str]

    @property
    def layout(self) -> str:
        """The only layout that fits; raises `LayoutError` where there are several."""
        if len(self.layouts) > 1:
            arrays = ", ".join(self.names)
            raise LayoutError(
                f"{arrays} fit{'s' if len(self.names) == 1 else ''} {' and '.join(self.layouts)}, "
                f"which shapes do not tell apart: say {option('layout')}"
            )
        return self.layouts[0]


def find(
    shapes: Mapping[str, Shape],
    among: Iterable[Record] | None = None,
    frameworks: Iterable[str] = (),
    *,
    marked: bool | None = None,
) -> tuple[Found, ...]:
    """The recurrent layers among arrays of these names and shapes, in the order of the arrays.

    Each has the prefix of its names, its arrays, and the layouts that fit. No other layer has these arrays.

    Args:
        shapes: Shapes by name.
        among: The records to consider; by default all.
        frameworks: The frameworks to prefer if several layouts fit.
        marked: Whether the name of a layer has to have the mark of its record; by default that of all records
            alone.

    Raises:
        LayoutError: For names and shapes that are none.

    >>> find({"rnn.weight_ih_l0": (9, 2), "rnn.weight_hh_l0": (9, 3), "head.weight": (5, 3)})
    (Found(prefix='rnn.', names={...}, layouts=('torch.gru',)),)
    """
    check_shapes(shapes)
    fits: dict[tuple[str, frozenset[str]], list[Record]] = {}
    refused: dict[Any, bool] = {}
    asked: dict[Any, tuple[Array, ...]] = {}
    for group in spelled(shapes, among, marked).whole():
        held = {own: shapes[name] for own, name in group.names.items()}
        alike = (
            tuple(group.record.arrays.items()),
            group.record.directions,
            tuple(held),
        )  # as many records are
        if alike not in asked:
            asked[alike] = conditions(group.record, held)
        if not possible(asked[alike], held):
            continue
        key = alike, tuple(held.values())  # many layers are alike
        if key not in refused:
            refused[key] = why_not(group.record, held) is not None
        if not refused[key]:
            fits.setdefault((group.prefix, frozenset(group.names.values())), []).append(group.record)
    order = {name: place for place, name in enumerate(shapes)}
    taken: set[str] = set()
    found: list[Found] = []
    for prefix, held in sorted(fits, key=lambda key: (-len(key[1]), len(key[0]))):
        if not held & taken:
            taken |= held
            names = {name[len(prefix) :]: name for name in sorted(held, key=order.__getitem__)}
            found.append(Found(prefix, names, distinct(preferred(fits[prefix, held], tuple(frameworks)))))
    return tuple(sorted(found, key=lambda one: min(order[name] for name in one.names.values())))


def check_shapes(shapes: Any) -> None:
    """Raises `InputError` for what is no shapes by name."""
    for name, shape in mapping(shapes, "shapes are tuples of whole numbers by the names of arrays").items():
        meaning = f"the shape of {name} is a tuple of whole numbers"
        for size in cast("tuple[Any, ...]", instance(shape, tuple, meaning)):
            whole(size, meaning)


def why_not(record: Record, shapes: Mapping[str, Shape]) -> str | None:
    """Why arrays are not those of a record; None where they are, whether or not the shapes tell all sizes."""
    try:
        told(record, shapes)
    except OpenSizesError:
        return None
    except LayoutError as error:
        return str(error)
    return None


def preferred(fitting: list[Record], frameworks: Sequence[str]) -> list[Record]:
    """The records of some frameworks; all of them where they have none."""
    own = [one for one in fitting if one.name.partition(".")[0] in frameworks]
    return own or fitting


def distinct(fitting: list[Record]) -> tuple[str, ...]:
    """The names of records, less those that say the same as one before."""
    kept: list[Record] = []
    for record in fitting:
        if not any(record.same_as(one) for one in kept):
            kept.append(record)
    return tuple(record.name for record in kept)


def one_function(layouts: Sequence[str], arrays: Iterable[str], semantics: Mapping[str, Any]) -> str | None:
    """The first of the layouts, if with these semantics all are the same function of arrays of these names;
    None where they are not, or do not say it all.

    >>> known = {"gate_activation": "sigmoid"}  # which keras2.gru leaves open
    >>> one_function(("keras.gru", "keras2.gru"), ("kernel", "recurrent_kernel"), known)
    'keras.gru'
    """
    names = set(arrays)
    try:
        meanings = [(one.settled(semantics), one.notation(names)) for one in map(registry.record, layouts)]
    except LayoutError:
        return None
    return layouts[0] if all(meaning == meanings[0] for meaning in meanings) else None


def nearest(shapes: Mapping[str, Shape], among: Iterable[Record] | None = None) -> LayoutError:
    """The error for arrays among which no recurrent layer is: what comes nearest, and why it is not one."""
    groups = spelled(shapes, among)
    best: tuple[tuple[int, int], tuple[int, int], str] | None = None
    tried: dict[Any, tuple[tuple[int, int], str]] = {}
    for least, order, group in groups.nearly(MOST_TRIED):
        if best is not None and best[0] < least:
            break
        held = tuple((own, shapes[name]) for own, name in group.names.items())
        key = id(group.record), held  # what differs in the prefix alone is as near
        if key not in tried:
            tried[key] = misfits(group.record, group.prefix, group.names, shapes)
            misfit, reason = tried[key]
            this = misfit, order, f"{group.record.name} comes nearest, but {reason}"
            best = this if best is None else min(best, this, key=lambda one: one[:2])
    if best is None:
        shown = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:MOST_SHOWN])
        shown += ", ..." if len(shapes) > MOST_SHOWN else ""
        return LayoutError(
            f"no recurrent layer is here: no name is one of a layout; there are {shown or 'none'}"
        )
    return LayoutError(f"no recurrent layer is here: {best[2]}")


def misfits(
    record: Record, prefix: str, names: Mapping[str, str], shapes: Mapping[str, Shape]
) -> tuple[tuple[int, int], str]:
    """How many more arrays are wrong than right, at the sizes at which fewest are, of how many; and one of
    the wrong ones.
    """
    held = {own: shapes[name] for own, name in names.items()}
    best = (len(held) + 1, -len(held)), f"{next(iter(names.values()))} does not fit"
    for without in (None, *islice(held, MOST_LEFT_OUT)):
        try:
            sizes = solved(record, {own: shape for own, shape in held.items() if own != without})
        except LayoutError as error:
            best = min(best, ((len(held), -len(held)), f"{error}"), key=lambda one: one[0])
            continue
        wrong: list[str] = []
        right = 0
        for entry in record.entries(sizes):
            expected = shape_of(entry.pattern, sizes, entry.layer or 0)
            if entry.name not in held and not entry.optional:
                wrong.append(f"{prefix}{entry.name} is missing")
            elif held.get(entry.name, expected) != expected:
                where = f"{expected} is expected of {sizes}"
                wrong.append(f"{prefix}{entry.name} has shape {held[entry.name]} where {where}")
            else:
                right += entry.name in held
        reason = wrong[0] if wrong else why_not(record, held) or left_out_text(record, prefix)
        found = (len(wrong) - right, -len(held)), reason
        best = min(best, found, key=lambda one: one[0])
    return best


def left_out_text(record: Record, prefix: str) -> str:
    """Why arrays that fit a record are no layer: they lie where none is looked for."""
    name = re.sub("[./_]$", "", prefix)
    said = option("layout of", module=name, layout=record.name)
    return f"what {name!r} has fits it, and was not looked for: say {said} if it is a layer"
