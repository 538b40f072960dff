"""Layers that a Keras file has in part, or only in its configuration: the message for each.

lstm_1 in config.json                                   and no arrays of it in model.weights.h5
layers/lstm_1/cell/vars/0, layers/lstm_1/cell/vars/2    not the arrays of the class that the group names
layers/bidirectional/forward_layer/cell/vars/0 ...      and nothing that fits in backward_layer
"""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from stepnet.layout.files.keras.config import ConfiguredLayer
from stepnet.layout.files.keras.file import KerasFile
from stepnet.layout.files.keras.names import DIRECTIONS, LAYERS, NO_LAYERS
from stepnet.layout.files.keras.nodes import snake
from stepnet.layout.files.model import Array, Module
from stepnet.layout.options import option

MOST = 4  # the most layers in messages
MOST_SHOWN = 4  # the most arrays of a layer in a message
CLASSES = {snake(name): name for name in LAYERS}


def problems_of(file: KerasFile, modules: Collection[Module], rest: Mapping[str, Array]) -> dict[str, str]:
    """Returns the recurrent or configured layers of a Keras file whose arrays are missing from it in part or
    whole, at most `MOST`: {layer name: message for the user}.

    modules: the recurrent layers that were read. rest: the arrays that are in no module.
    """
    remedy = f"say {option('module')} to take another layer by itself"
    texts = {
        name: f"{name} ({class_name}) is in the configuration, and {why_lost(file, name)}: {remedy}"
        for name, class_name in file.lost.items()
    }
    if not file.configured:
        found = (*single_directions(modules), *(incomplete_groups(rest) if not file.ordered else ()))
        texts |= {name: f"{text}: {remedy}" for name, text in found}
    return dict(islice(texts.items(), MOST))


def why_lost(file: KerasFile, name: str) -> str:
    """Returns a text that says why a Keras file has no arrays of the configured layer `name`: Keras saves the
    arrays of a layer that two models share once (if the file has an equal layer with arrays); else that there
    are none.
    """
    (lost,) = (layer for layer in file.configured if layer.name == name)
    found = {layer.name for layer in file.layers}
    for layer in file.configured:
        alike = (layer.class_name, settings(layer)) == (lost.class_name, settings(lost))
        if layer.name in found and alike:
            return (
                f"the file has its arrays only at {layer.name}: where models share a layer, Keras saves its "
                "arrays once, and loads no such file itself"
            )
    return "the file has no arrays of it"


def settings(layer: ConfiguredLayer) -> dict[str, object]:
    """Returns the settings of a layer but objects, which a file numbers; the layer's own name is one."""
    return {name: value for name, value in layer.config.items() if not isinstance(value, dict)}


def incomplete_groups(rest: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
    """Yields the groups (folders of arrays) of a Keras file that have the name of a recurrent class, such as
    lstm_1, but not all arrays of it: (path of the group, message for the user).

    rest: the arrays that are in no module, by path.
    """
    groups: dict[str, list[str]] = {}
    for path in rest:
        steps = path.split("/")
        for end, step in enumerate(steps[:-1], 1):
            if steps[0] not in NO_LAYERS and re.sub(r"_\d+$", "", step) in CLASSES:
                groups.setdefault("/".join(steps[:end]), []).append(path)
                break
    for group, paths in groups.items():
        class_name = CLASSES[re.sub(r"_\d+$", "", group.rpartition("/")[2])]
        arrays = ", ".join(f"{path} {rest[path].shape}" for path in paths[:MOST_SHOWN])
        expected = "kernel, recurrent_kernel and bias of one number of units are expected"
        yield group, f"{group} has the name of a layer {class_name}: {expected}, and {arrays} are there"


def single_directions(modules: Collection[Module]) -> Iterator[tuple[str, str]]:
    """Yields the Keras layers of which only one of two directions became a module (recurrent layer), because
    the arrays of the other are missing or do not fit: (name of the layer, message for the user).
    """
    names = {module.name for module in modules}
    for front, way in (name.rpartition("/")[::2] for name in names):
        for other in DIRECTIONS.values():
            if way in DIRECTIONS.values() and f"{front}/{other}" not in names:
                yield front, f"{front} has weights that run {way}, and none that fit and run {other}"
