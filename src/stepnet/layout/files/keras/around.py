"""The layers of a Keras file that are no recurrent modules, as texts.

dense (Dense)                             a layer of another class
rnn (my>RNN)                              a layer of the user's that runs a cell of Keras' own
both/forward (my>RNN)                     the same within a Bidirectional
inner (my>Encoder)                        a model of the user's, whose layers are read and whose code is not
dropout (Dropout, dtype mixed_bfloat16)   a layer that would change nothing if it did not round
"""

import re
from collections.abc import Collection, Iterator

from stepnet.layout.files.keras.config import ConfiguredLayer
from stepnet.layout.files.keras.file import KerasFile
from stepnet.layout.files.keras.names import INPUT, KERNELS
from stepnet.layout.files.keras.nodes import Config, rounding
from stepnet.layout.files.keras.parts import Sublayer
from stepnet.layout.options import option


def others(file: KerasFile, recurrent: Collection[str]) -> Iterator[str]:
    """Yields texts that name, for the user, the layers of a Keras file that are no recurrent modules, and the
    parts of layers, such as cells, that are not read; without a configuration, only layers with arrays.
    recurrent: the names of the file's recurrent modules.
    """
    with_arrays = {layer.name: layer for layer in file.layers}
    timed = set[str]()
    for listed in file.configured or map(unconfigured, with_arrays):
        name, class_name = listed.name, listed.class_name
        text = titled(name, class_name, listed.config)
        layer = with_arrays.get(name)
        if layer and layer.timed and layer.timed not in timed:
            timed.add(layer.timed)
            yield f"{layer.timed} (TimeDistributed)"
        if listed.wraps or (class_name == INPUT and rounding(listed.node)):
            timed.add(name)
            yield text
            continue
        parts = layer.sublayers if layer else ()
        held = [part for part in parts if is_held(name, part, recurrent)]
        strange = dict.fromkeys(f"{name}{where}" for part in held for where in part.foreign)
        yield from strange
        if class_name == INPUT or name in recurrent:
            continue
        unused = [part for part in parts if part not in held]
        if listed.passes:
            yield neutral(name, class_name)
        elif text not in strange and ((class_name and class_name != "RNN") or len(unused) == len(parts)):
            yield text
        for part in unused:
            where, foreign = "/".join((name, *part.path)), part.class_name if is_asked_for(part) else ""
            remedy = option("layout of", module=where, layout="LAYOUT")
            hint = f": say {remedy} where it computes what one of Keras' does" if foreign else ""
            if hint or len(unused) < len(parts):
                yield f"{name}/{part.title}{hint}"


def is_asked_for(part: Sublayer) -> bool:
    """Returns True if a part of a Keras layer is a cell, or has arrays of one and a class of the program's
    own: it is read if the user states its layout (a framework's arrangement of weights).
    """
    own = {re.sub(r":\d+$", "", name) for name, _ in part.arrays}
    return bool(part.class_name) and (part.in_cell or (">" in part.class_name and {*KERNELS[:2]} <= own))


def unconfigured(name: str) -> ConfiguredLayer:
    """Makes the `ConfiguredLayer` of a layer of which the file has only the arrays, from its name."""
    return ConfiguredLayer(name, name, name, "", {}, (), "")


def titled(name: str, class_name: str, config: Config) -> str:
    """Returns the name and class of a Keras layer for the user, and a dtype that rounds."""
    policy = rounding({"config": config})
    return f"{name} ({class_name}{f', dtype {policy}' if policy else ''})" if class_name else name


def is_held(name: str, part: Sublayer, recurrent: Collection[str]) -> bool:
    """Returns True if a part of the layer `name`, such as a cell, is or lies in a module of `recurrent`."""
    ends = range(len(part.path) + 1)
    return any("/".join((name, *part.path[:end])) in recurrent for end in ends)


def neutral(name: str, class_name: str) -> str:
    """Returns the text that names a layer such as Dropout, which changes nothing in inference."""
    return f"{name} ({class_name}, which changes nothing in use)"
