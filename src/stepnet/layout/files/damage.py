"""Damaged layers in a file of arrays by name, and the message about one; see `stepnet.layout.damaged`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from stepnet.layout.damaged import Damage, damaged
from stepnet.layout.options import option
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.sizes import Shape

MOST_SHOWN = 4


def damaged_layers(
    shapes: Mapping[str, Shape],
    full_names: Mapping[str, str],
    layouts: Iterable[str],
    frameworks: Iterable[str],
) -> tuple[Damage, ...]:
    """Finds recurrent layers that lack an array, or have one with a wrong name or shape, to report them to
    the user. They are looked for among the arrays of a file that belong to no layer.

    shapes: the shapes of these arrays, by their names without the format's suffix. full_names: {name without
    suffix: name in the file}. layouts: the layouts (formats of weights) of the layers that were found.
    frameworks: the frameworks that usually write such files.
    """
    return tuple(
        replace(layer, names=tuple(full_names[name] for name in layer.names))
        for layer in damaged(shapes, likely(layouts, frameworks))
    )


def likely(layouts: Iterable[str], frameworks: Iterable[str]) -> list[Record]:
    """Returns the records (descriptions) of the layouts that a damaged layer may have, the likeliest first:
    `layouts` (of the file's other layers), then all other layouts of their frameworks and of `frameworks`,
    which usually write such files.
    """
    here = {name: record(name) for name in layouts}
    near = {*frameworks, *(name.partition(".")[0] for name in here)}
    others = [other for name, other in records().items() if name.partition(".")[0] in near]
    return [*here.values(), *(other for other in others if other.name not in here)]


def damage_text(damage: Damage) -> str:
    """Returns the message for a damaged layer: the reason why it cannot be read, and the options by which the
    user reads the file without it.
    """
    more = len(damage.names) - MOST_SHOWN
    arrays = ", ".join(damage.names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    name = re.sub("[./_]$", "", damage.prefix) or "the layer without a name"
    return (
        f"{name} looks like {damage.layout}, but {damage.reason}: say {option('module')} to take another "
        f"layer by itself, or {option('drop')} for each of {arrays} to leave it out"
    )
