"""Recognises the recurrent layers among arrays, and the layouts that fit them, by names and shapes.

    {"rnn.weight_ih_l0": (9, 2), "rnn.weight_hh_l0": (9, 3), "head.weight": (5, 3)}
        -> Match("rnn.", torch.gru); head.weight belongs to no recurrent layer

A layer is a prefix followed by the array names of a record. Shapes alone never choose a layout: a record
whose arrays have common names (`kernel`, `bias`) has a mark, a pattern that the layer's own name must match.
The record that explains most names wins. If several different records do, the match lists all of them, and
code that needs a single layout asks the user.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, cast

from stepnet.compiler.values.arguments import checked_integer, instance, mapping
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.names import match_names
from stepnet.layout.options import option
from stepnet.layout.possible import Array, conditions, possible
from stepnet.layout.record import Record
from stepnet.layout.registry import record as record_of
from stepnet.layout.sizes import Shape, Sizes, shape_of
from stepnet.layout.solve import OpenSizesError, sizes_of, solved

MOST_SHOWN = 20
MOST_TRIED = 1000  # the most candidates for the nearest record
MOST_WRONG = 3  # the most wrong arrays that are named
ALIKE = 0.85  # the least similarity, by difflib, of two names of which one may be meant for the other
MOST_LEFT_OUT = 16  # the most arrays that are left out in turn, to solve the sizes from the others


@dataclass(frozen=True)
class Match:
    """The arrays of one recurrent layer or stack of layers, and the layouts that fit them.

    Attributes:
        prefix: The prefix of the names of its arrays.
        names: The full name of each array, by its name without the prefix.
        layouts: The names of the layouts that fit.
    """

    prefix: str
    names: Mapping[str, str]
    layouts: Sequence[str]

    @property
    def layout(self) -> str:
        """The name of the only layout that fits this layer's arrays; raises `LayoutError` if several fit."""
        if len(self.layouts) > 1:
            arrays = ", ".join(self.names)
            raise LayoutError(
                f"{arrays} fit{'s' if len(self.names) == 1 else ''} {' and '.join(self.layouts)}, "
                f"which shapes do not distinguish: say {option('layout')}"
            )
        return self.layouts[0]


def find(
    shapes: Mapping[str, Shape],
    among: Iterable[Record] | None = None,
    frameworks: Iterable[str] = (),
    *,
    marked: bool | None = None,
) -> tuple[Match, ...]:
    """Finds the recurrent layers among arrays of these names and shapes, in the order of the arrays.

    No array belongs to two of them: layers of more arrays, then those with a shorter prefix, are taken first.

    Args:
        shapes: Shapes by name.
        among: The records (layouts of weights) to consider; by default all.
        frameworks: The frameworks to prefer if several layouts fit.
        marked: Whether the name of a layer must match the mark of its record (a pattern for it, such as
            lstm). By default it must if all records are considered.

    Raises:
        InputError: For shapes that are no tuples of whole numbers by name.

    >>> find({"rnn.weight_ih_l0": (9, 2), "rnn.weight_hh_l0": (9, 3), "head.weight": (5, 3)})
    (Match(prefix='rnn.', names={...}, layouts=('torch.gru',)),)
    """
    check_shapes(shapes)
    fits: dict[tuple[str, frozenset[str]], list[Record]] = {}
    refused: dict[Any, bool] = {}
    conditions_of: dict[Any, tuple[Array, ...]] = {}
    for group in match_names(shapes, among, marked).complete_groups():
        held = {short_name: shapes[name] for short_name, name in group.names.items()}
        kind_key = (
            tuple(group.record.arrays.items()),
            group.record.directions,
            tuple(held),
        )  # many records share these, and so their conditions
        if kind_key not in conditions_of:
            conditions_of[kind_key] = conditions(group.record, held)
        if not possible(conditions_of[kind_key], held):
            continue
        key = kind_key, tuple(held.values())  # computed once for layers of the same names and shapes
        if key not in refused:
            refused[key] = why_not(group.record, held) is not None
        if not refused[key]:
            fits.setdefault((group.prefix, frozenset(group.names.values())), []).append(group.record)
    order = {name: index for index, name in enumerate(shapes)}
    matched: set[str] = set()
    matches: list[Match] = []
    for prefix, held in sorted(fits, key=lambda key: (-len(key[1]), len(key[0]))):
        if not held & matched:
            matched |= held
            names = {name[len(prefix) :]: name for name in sorted(held, key=order.__getitem__)}
            matches.append(Match(prefix, names, distinct(preferred(fits[prefix, held], tuple(frameworks)))))
    return tuple(sorted(matches, key=lambda match: min(order[name] for name in match.names.values())))


def check_shapes(shapes: Any) -> None:
    """Raises `InputError` unless `shapes` maps names of arrays to tuples of whole numbers."""
    for name, shape in mapping(shapes, "shapes are tuples of whole numbers by the names of arrays").items():
        meaning = f"the shape of {name} is a tuple of whole numbers"
        for size in cast("tuple[Any, ...]", instance(shape, tuple, meaning)):
            checked_integer(size, meaning)


def why_not(record: Record, shapes: Mapping[str, Shape]) -> str | None:
    """Returns the reason why arrays of these shapes do not fit a record (a layout of weights); None if they
    fit, even if some sizes of the layer stay unknown.
    """
    try:
        sizes_of(record, shapes)
    except OpenSizesError:
        return None
    except LayoutError as error:
        return str(error)
    return None


def preferred(fitting: list[Record], frameworks: Sequence[str]) -> list[Record]:
    """Returns the records (layouts) of these frameworks, such as "torch"; all of `fitting` if none is."""
    return [record for record in fitting if record.name.partition(".")[0] in frameworks] or fitting


def distinct(fitting: list[Record]) -> tuple[str, ...]:
    """Returns the names of layouts that fit a layer, without those equal to an earlier record."""
    different: list[Record] = []
    for record in fitting:
        if not any(record.same_as(earlier) for earlier in different):
            different.append(record)
    return tuple(record.name for record in different)


def one_function(layouts: Sequence[str], arrays: Iterable[str], semantics: Mapping[str, Any]) -> str | None:
    """Returns the first of the layouts (arrangements of weights) if all compute the same function of these
    arrays, so that a layer that fits them all can be read; None if they differ or the values leave something
    open.

    semantics: the user's values by field of `Semantics`.

    >>> known = {"gate_activation": "sigmoid"}  # keras2.gru leaves it open
    >>> one_function(("keras.gru", "keras2.gru"), ("kernel", "recurrent_kernel"), known)
    'keras.gru'
    """
    names = set(arrays)
    try:
        candidates = map(record_of, layouts)
        meanings = [(candidate.settled(semantics), candidate.notation(names)) for candidate in candidates]
    except LayoutError:
        return None
    return layouts[0] if all(meaning == meanings[0] for meaning in meanings) else None


def nearest(shapes: Mapping[str, Shape], among: Iterable[Record] | None = None) -> LayoutError:
    """Returns the error for arrays among which no recurrent layer was found. Its message names the layout (a
    framework's arrangement of weights) that comes nearest by `misfits`, and the reason why the arrays do not
    fit it; or the arrays, if no layout has a name of theirs. At most `MOST_TRIED` groups (a layout at a
    prefix) are measured, the likely ones first.
    """
    groups = match_names(shapes, among)
    best: tuple[tuple[int, int], tuple[int, int], str] | None = None
    tried: dict[Any, tuple[tuple[int, int], str]] = {}
    for least, order, group in groups.nearly(MOST_TRIED):
        if best is not None and best[0] < least:
            break
        named_shapes = tuple((short_name, shapes[name]) for short_name, name in group.names.items())
        key = id(group.record), named_shapes  # groups that differ only in the prefix are equally near
        if key not in tried:
            tried[key] = misfits(group.record, group.prefix, group.names, shapes)
            misfit, reason = tried[key]
            candidate = misfit, order, f"{group.record.name} comes nearest, but {reason}"
            best = candidate if best is None else min(best, candidate, key=lambda misfit: misfit[:2])
    if best is None:
        shown = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:MOST_SHOWN])
        shown += ", ..." if len(shapes) > MOST_SHOWN else ""
        return LayoutError(
            f"no recurrent layer is here: no array has a name of a layout; the arrays are {shown or 'none'}"
        )
    return LayoutError(f"no recurrent layer is here: {best[2]}")


def misfits(
    record: Record,
    prefix: str,
    names: Mapping[str, str],
    shapes: Mapping[str, Shape],
    others: Collection[str] = (),
) -> tuple[tuple[int, int], str]:
    """Measures how badly arrays fit a record (a layout of weights); returns (measure, message for the user).
    The measure is for sorting: the number of wrong arrays minus the number of right ones, then minus the
    number of arrays. The message describes the first wrong arrays. The sizes are solved from all arrays, and
    from all but one, because one of a wrong shape spoils them; the best measure counts. `names` has the full
    names by the record's names. `others` are names after the prefix that the record lacks; one may be meant
    for a missing array.
    """
    own_shapes = {short_name: shapes[name] for short_name, name in names.items()}
    count = len(own_shapes)
    best = (count + 1, -count), [f"{next(iter(names.values()))} does not fit"]
    for without in (None, *islice(own_shapes, MOST_LEFT_OUT)):
        try:
            sizes = sizes_but_inputs(
                record,
                {short_name: shape for short_name, shape in own_shapes.items() if short_name != without},
            )
        except LayoutError as error:
            best = min(best, ((count, -count), [f"{error}"]), key=lambda misfit: misfit[0])
            continue
        wrong: list[str] = []
        count_wrong = right = 0
        for entry in record.entries(sizes[0]):
            expected = [shape_of(entry.pattern, possible, entry.layer or 0) for possible in sizes]
            if entry.name not in own_shapes and entry.optional:
                continue
            if own_shapes.get(entry.name) in expected:
                right += 1
                continue
            count_wrong += 1
            if count_wrong > MOST_WRONG:
                continue
            if entry.name in own_shapes:
                expectation = f"{expected[0]} is expected of {sizes[0]}"
                wrong.append(f"{prefix}{entry.name} has shape {own_shapes[entry.name]} where {expectation}")
            else:
                shape = expected[0] if len({*expected}) == 1 else None
                wrong.append(missing_text(prefix, entry.name, others, shape))
        more = [f"{count_wrong - MOST_WRONG} more are wrong"] if count_wrong > MOST_WRONG else []
        reasons = [*wrong, *more] or [why_not(record, own_shapes) or left_out_text(record, prefix)]
        best = min(best, ((count_wrong - right, -count), reasons), key=lambda misfit: misfit[0])
    return best[0], "; ".join(best[1])


def sizes_but_inputs(record: Record, shapes: Mapping[str, Shape]) -> tuple[Sizes, ...]:
    """Solves the sizes of a layer from shapes; if only the number of inputs stays unknown, returns the sizes
    for 1 and 2 inputs, so that callers can compare the rest. Raises `LayoutError` if no sizes fit.
    """
    try:
        return (solved(record, shapes),)
    except LayoutError:
        return tuple(solved(record, shapes, {"inputs": inputs}) for inputs in (1, 2))


def missing_text(prefix: str, own: str, others: Iterable[str], shape: Shape | None = None) -> str:
    """Returns the message for a missing array, whose name is the prefix followed by `own`.

    others: names after the prefix of arrays that are there; one may be meant for the missing one.
    shape: the missing array's shape, if it is known.

    >>> missing_text("rnn.", "weight_hh_l1", ["bias", "weight_h_l1"], (9, 3))
    'rnn.weight_hh_l1 is missing, of shape (9, 3) (rnn.weight_h_l1 is there)'
    """
    near = get_close_matches(own, others, 1, ALIKE)
    expected = f", of shape {shape}" if shape is not None else ""
    return f"{prefix}{own} is missing{expected}{f' ({prefix}{near[0]} is there)' if near else ''}"


def left_out_text(record: Record, prefix: str) -> str:
    """Returns the message for arrays at `prefix` that fit a layout that was not searched for."""
    name = re.sub("[./_]$", "", prefix)
    remedy = option("layout of", module=name, layout=record.name)
    return f"what {name!r} has fits it, and was not looked for: say {remedy} if it is a layer"
