"""Reads the layers of a Keras file with their arrays: .keras, .weights.h5, and the .h5 of Keras 1, 2 and 3.

.keras        a zip of config.json, metadata.json and model.weights.h5
.weights.h5   layers/lstm_1/cell/vars/0: groups by class and number, arrays by number
.h5           model_weights/lstm_2/lstm_2/lstm_cell/kernel:0, with lists of names and the configuration in
              attributes; or the same without the group model_weights and the configuration

Sources: keras/src/saving/saving_lib.py and legacy/saving/legacy_h5_format.py of 3.15; tf_keras 2.21;
keras/engine/topology.py of 1.2.2.
"""

import os
import re
import zlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from io import BufferedReader
from pathlib import Path

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files import zips
from stepnet.layout.files.jsons import parsed
from stepnet.layout.files.keras import hdf5
from stepnet.layout.files.keras.config import ConfiguredLayer, Use, layers_of
from stepnet.layout.files.keras.names import DIRECTIONS, INNER, KERNELS, NO_LAYERS, NO_WEIGHTS, VARIABLES
from stepnet.layout.files.keras.nodes import Config
from stepnet.layout.files.keras.parts import (
    KeyPath,
    Sublayer,
    by_scope,
    check_complete,
    is_filled,
    layer_parts,
    paths_of,
    sublayer_at,
)
from stepnet.layout.files.paths import existing
from stepnet.layout.files.store import Store

Array = np.ndarray
Attributes = Mapping[str, hdf5.Attributes]

WEIGHTS, CONFIG, METADATA = "model.weights.h5", "config.json", "metadata.json"


@dataclass(frozen=True)
class KerasLayer:
    """A Keras layer with its arrays.

    Attributes:
        name: Its name, with those of the models around it as a prefix ("encoder/lstm").
        class_name: Its class; None if the file has no configuration.
        config: Its configuration; None if the file has none.
        sublayers: The parts of it that have arrays.
        inputs: The names of the layers that compute its inputs, where layers such as Dropout are skipped.
        timed: The name of the TimeDistributed that runs it once for each outer step, if there is one.
        use: How the model uses it; None if the file has no configuration of a model.
    """

    name: str
    class_name: str | None
    config: Config | None
    sublayers: tuple[Sublayer, ...]
    inputs: tuple[str, ...] = ()
    timed: str = ""
    use: Use | None = None

    @property
    def arrays(self) -> tuple[tuple[str, str], ...]:
        """The Keras layer's arrays as (name in the layer, such as "cells/1/kernel"; path in the file)."""
        return tuple(
            ("/".join((*sublayer.path, own)), path)
            for sublayer in self.sublayers
            for own, path in sublayer.arrays
        )


@dataclass(frozen=True)
class KerasFile:
    """The contents of a Keras file.

    Attributes:
        config: The configuration of its model.
        arrays: Its arrays, by path.
        layers: Its layers with weights.
        configured: All layers in the configuration.
        version: The version of Keras that wrote it, if the file has it.
        foreign: Whether it is an HDF5 file that is not Keras', of which only the arrays are read.
        ordered: Whether the layers are in the model's order.
        lost: The names of layers in the configuration that have arrays, of which the file has none; each with
            its class.
    """

    config: Config | None
    arrays: Mapping[str, Array]
    layers: tuple[KerasLayer, ...]
    configured: tuple[ConfiguredLayer, ...] = ()
    version: str | None = None
    foreign: bool = False
    ordered: bool = True
    lost: Mapping[str, str] = field(default_factory=dict[str, str])


def read(path: str | Path) -> KerasFile:
    """Reads the layers and arrays of a .keras, .weights.h5 or .h5 file; raises `FileError`, with the path,
    for any other file. Of an HDF5 file that is not Keras' only the arrays are read.

    >>> read("model.keras")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.keras: there is no such file
    """
    with hdf5.named(path):
        with open(existing(path), "rb") as stream:
            if stream.read(2) == b"PK":
                return archive(stream)
            store = Store(None, stream.seek(0, os.SEEK_END))
            arrays, attributes = hdf5.content(stream, None, store)
        for group in ("model_weights", ""):
            if texts(attributes.get(group, {}), "layer_names") is not None:
                return legacy(group, arrays, attributes, store)
        if not any(re.search(r"(^|/)vars/\d+$", name) for name in arrays):
            return KerasFile(None, arrays, (), foreign=True)
        return KerasFile(None, arrays, tuple(keras3_layers((), arrays, attributes, store)), ordered=False)


def archive(stream: BufferedReader) -> KerasFile:
    """Reads an open .keras file, which is a zip of a configuration and an HDF5 file of weights; raises
    `FileError` if one of these is missing, compressed or damaged.
    """
    size = stream.seek(0, os.SEEK_END)
    store, members = Store(None, size), zips.members(stream, size)
    for name in (CONFIG, WEIGHTS):
        if name not in members:
            raise FileError(f"this is not a .keras file: its zip has no {name}")
    config = parsed(
        zips.bytes_at(stream, byte_range_of(stream, members[CONFIG], size)).tobytes(), CONFIG, store
    )
    version = None
    if METADATA in members:
        data = zips.bytes_at(stream, byte_range_of(stream, members[METADATA], size)).tobytes()
        version = version_of(parsed(data, METADATA, store).get("keras_version"))
    weights = byte_range_of(stream, members[WEIGHTS], size)
    checked(stream, weights)
    with hdf5.named(WEIGHTS):
        arrays, attributes = hdf5.content(stream, weights, store)
    configured = tuple(layers_of(config, store))
    layers = tuple(keras3_layers(configured, arrays, attributes, store))
    lost = dict(
        without_arrays(configured, {layer.name for layer in layers if layer.config is not None}, store)
    )
    return KerasFile(config, arrays, layers, configured, version, lost=lost)


def without_arrays(
    configured: Iterable[ConfiguredLayer], found: Collection[str], store: Store
) -> Iterator[tuple[str, str]]:
    """Yields (name, class) of each layer in a Keras configuration that must have arrays and whose name is not
    in `found`, the layers with arrays in the file. store: the limit on memory. configured: the layers in the
    configuration.
    """
    for layer in configured:
        if layer.name not in found and is_filled(layer.node, layer_parts(layer.node, store).values()):
            yield layer.name, layer.class_name


def byte_range_of(stream: BufferedReader, member: zips.Member, size: int) -> zips.ByteRange:
    """Returns the range of the bytes of a member in a .keras file, which is a zip of `size` bytes; raises
    `FileError` if the member is compressed.
    """
    if not member.stored:
        raise FileError(
            f"its zip's member {member.name} is compressed or encrypted; zip it without, as Keras does"
        )
    return zips.byte_range_of(stream, member, size)


def checked(stream: BufferedReader, byte_range: zips.ByteRange) -> None:
    """Raises `FileError` if the weights in a .keras file, the bytes in the range `byte_range` of its zip, are
    damaged: if they do not have the checksum that the zip states.
    """
    stream.seek(byte_range.start)
    remaining, checksum = byte_range.size, 0
    while remaining:
        data = stream.read(min(remaining, 1 << 20))
        remaining, checksum = remaining - len(data) if data else 0, zlib.crc32(data, checksum)
    if checksum != byte_range.checksum:
        raise FileError(f"its {WEIGHTS} is damaged: its checksum is wrong")


def version_of(value: object) -> str | None:
    """Returns the version of Keras that a file's metadata states, such as "3.5.0"; else None."""
    return value if isinstance(value, str) else None


# Arrays by place and number


def keras3_layers(
    layers: Sequence[ConfiguredLayer], arrays: Mapping[str, Array], attributes: Attributes, store: Store
) -> Iterator[KerasLayer]:
    """Yields the layers of a Keras 3 file, which has a group of arrays for each layer: first the layers in
    the configuration, then groups without a layer in the configuration.

    layers: the layers in the configuration. arrays, attributes: of the HDF5 file, by path. store: the limit
    on memory.
    """
    paths = sorted(arrays)
    rest = dict.fromkeys(paths)
    for layer in layers:
        if layer.wraps:
            continue
        group = layer.group
        if not below(paths, group):  # the name of the group in files of TensorFlow 2.12
            group = group.replace("layers/", "_layer_checkpoint_dependencies/")
        layer_paths = [path for path in below(paths, group) if path in rest]
        for path in layer_paths:
            del rest[path]
        with hdf5.within(layer.name):
            configured = layer_parts(layer.node, store)
            sublayers = sublayers_in(group, layer_paths, configured)
            check_complete(configured.values(), sublayers)
        if sublayers:
            yield keras_layer(layer, sublayers)
    owners: dict[str, list[str]] = {}
    for path in sorted(rest, key=natural):
        if path.partition("/")[0] not in NO_LAYERS and "/vars/" in path:
            owners.setdefault(owner(path), []).append(path)
    for group, layer_paths in owners.items():
        sublayers = sublayers_in(group, layer_paths, {})
        if sublayers:
            yield KerasLayer(title(group, attributes), None, None, sublayers)


def keras_layer(layer: ConfiguredLayer, sublayers: tuple[Sublayer, ...]) -> KerasLayer:
    """Makes the record of a Keras layer from its configuration and its sublayers with their arrays."""
    return KerasLayer(
        layer.name, layer.class_name, layer.config, sublayers, layer.inputs, layer.timed, layer.use
    )


def below(paths: Sequence[str], group: str) -> Sequence[str]:
    """Returns the paths of arrays that lie in the group (folder) `group` of a Keras file. paths: all paths of
    the file, sorted, so that those in a group are consecutive.
    """
    return paths[bisect_left(paths, f"{group}/") : bisect_left(paths, f"{group}0")]


def natural(path: str) -> list[tuple[int, str]]:
    """Returns a sort key for a path that compares numbers in it as numbers: lstm_2 before lstm_10."""
    return [(int(piece) if piece.isdecimal() else -1, piece) for piece in re.split(r"(\d+)", path)]


def sublayers_in(
    layer_group: str, paths: Sequence[str], configured: Mapping[KeyPath, Sublayer]
) -> tuple[Sublayer, ...]:
    """Returns the parts of a Keras layer that have arrays, such as cells, with these arrays, which are
    recognised by their paths in the layer's group (folder of the HDF5 file); without the states of random
    generators.

    layer_group: the path of the layer's group. paths: the paths of the arrays in it. configured: the parts in
    the layer's configuration, by the path of their groups.
    """
    arrays: dict[KeyPath, list[tuple[str, str]]] = {}
    for path in sorted(paths, key=natural):
        *steps, group, number = path.removeprefix(f"{layer_group}/").split("/")
        if group == "vars" and NO_WEIGHTS not in steps:
            arrays.setdefault(tuple(steps), []).append((number, path))
    sublayers: list[Sublayer] = []
    for steps, numbers in arrays.items():
        sublayer = sublayer_at(steps, configured)
        variables = VARIABLES.get(sublayer.class_name, KERNELS if is_kernels(sublayer, steps) else ())
        named = {str(index): name for index, name in enumerate(variables)}
        sublayers.append(
            replace(sublayer, arrays=tuple((named.get(own, own), path) for own, path in numbers))
        )
    return tuple(
        sorted(sublayers, key=lambda sublayer: [(key == "backward", natural(key)) for key in sublayer.path])
    )


def is_kernels(sublayer: Sublayer, steps: KeyPath) -> bool:
    """Returns True if a part of a Keras layer (`sublayer`) has the arrays of a cell (kernel,
    recurrent_kernel, bias): if the part is a cell, or if `steps`, the path of groups (folders of the HDF5
    file) to the arrays, ends like the path of a cell.
    """
    return sublayer.in_cell or steps[-1:] == ("cell",) or bool(steps and steps[-1] in DIRECTIONS)


def owner(path: str) -> str:
    """Returns the path of the group (folder of the HDF5 file) of the Keras layer to which an array belongs:
    the front of the array's path, before the first group of a part of a layer, such as "cell" or
    "forward_layer", and before "vars".
    """
    groups = path.partition("/vars/")[0].split("/")
    for index in range(1, len(groups)):
        if (groups[index] in INNER or groups[index] == NO_WEIGHTS) and groups[index - 1] != "layers":
            return "/".join(groups[:index])
    return "/".join(groups)


def title(group: str, attributes: Attributes) -> str:
    """Returns the name of the Keras layer whose arrays are in the group (folder of the HDF5 file) `group`,
    after the names of the models around it. Each name is the attribute "name" of the group "vars" in its
    group or, if that is missing, the name of the group. attributes: the attributes of the file, by path.
    """
    groups, names = group.split("/"), list[str]()
    for end, folder in enumerate(groups, 1):
        if folder not in ("layers", "_layer_checkpoint_dependencies"):
            name = attributes.get("/".join([*groups[:end], "vars"]), {}).get("name", folder)
            names.append(name if isinstance(name, str) else folder)
    return "/".join(names)


# Arrays by name, listed in attributes


def legacy(group: str, arrays: Mapping[str, Array], attributes: Attributes, store: Store) -> KerasFile:
    """Reads the layers of an .h5 file of Keras 1 or 2, whose attributes list the names of layers and weights.
    group: the group that contains the layers, "model_weights" or "". arrays, attributes: those of the file,
    by path. store: the limit on memory. Raises `FileError` if an array that is listed is missing.
    """
    text = attributes.get("", {}).get("model_config")
    config = parsed(text.encode(), "model_config", store) if isinstance(text, str) else None
    configured = tuple(layers_of(config, store)) if config else ()
    outermost: dict[str, list[ConfiguredLayer]] = {}
    for layer in configured:
        if not layer.passes and not layer.wraps:
            outermost.setdefault(layer.outermost, []).append(layer)
    listing = attributes.get(group, {})
    layers: list[KerasLayer] = []
    for name in texts(listing, "layer_names") or ():
        layer_group = f"{group}/{name}".lstrip("/")
        weights = texts(attributes.get(layer_group, {}), "weight_names") or ()
        paths = {weight: f"{layer_group}/{weight}" for weight in weights}
        missing = [path for path in paths.values() if path not in arrays]
        if missing:
            raise FileError(f"it has no array {missing[0]!a}, which it lists")
        layers.extend(layers_of_entry(name, paths, outermost.get(name, []), store))
    version = version_of(listing.get("keras_version")) or "1"  # as Keras assumes
    unclear = {
        layer.name for layer in layers if layer.config is None
    }  # the names of their weights do not say to which layer they belong
    expected = [layer for layer in configured if layer.outermost not in unclear]
    lost = dict(without_arrays(expected, {layer.name for layer in layers}, store))
    return KerasFile(config, arrays, tuple(layers), configured, version, lost=lost)


def texts(attributes: Mapping[str, hdf5.Attribute], name: str) -> tuple[str, ...] | None:
    """Returns an attribute that is a list of texts; None if there is none. Keras splits a long list into
    several attributes, NAME0, NAME1, ..., which are joined.
    """
    if name not in attributes and f"{name}0" not in attributes:
        return None
    keys = [name] if name in attributes else [f"{name}{number}" for number in range(len(attributes))]
    values = [attributes[key] for key in keys if key in attributes]
    return tuple(text for value in values if isinstance(value, tuple) for text in value)


def layers_of_entry(
    name: str, paths: Mapping[str, str], layers: Sequence[ConfiguredLayer], store: Store
) -> Iterator[KerasLayer]:
    """Yields the layers of one entry in the list of layers of a Keras 2 file, with their arrays. There are
    several if the entry is an inner model; then a weight belongs to the layer whose name is in the weight's
    name.

    name: of the entry. paths: {name of a weight of the entry: its path in the file}. layers: the layers of
    the entry in the configuration. store: the limit on memory.
    """
    by_name = {layer.own: layer for layer in layers}
    groups: dict[str, dict[str, str]] = {layer.own: {} for layer in layers}
    for weight, path in paths.items():
        if len(by_name) == 1:
            layer_name = layers[0].own
        elif by_name:
            layer_name = next(
                (candidate for candidate in layer_candidates(weight) if candidate in by_name), ""
            )
        else:
            layer_name = weight.partition("/")[0]
        groups.setdefault(layer_name, {})[weight] = path
    if not by_name and len(groups) > 1 and len({plain(name, weight) for weight in paths}) == len(paths):
        groups = {name: dict(paths)}
    for layer_name, weights in groups.items():
        layer = by_name.get(layer_name)
        if layer is not None and weights:
            with hdf5.within(layer.name):
                sublayers = sublayers_by_name(layer_name, weights, layer, store)
            yield keras_layer(layer, sublayers)
        elif weights:
            title = f"{name}/{layer_name}" if len(groups) > 1 and layer_name else name
            yield KerasLayer(title, None, None, sublayers_by_name(layer_name, weights, None, store))


def layer_candidates(weight: str) -> Iterator[str]:
    """Yields candidates for the name of the layer in the name of its weight: the groups in front of the
    weight's own name, the last one first, as in "inner/lstm/lstm_cell/kernel:0"; then the own name without
    its last word, and without its last two, as in "lstm_1_W_i" of Keras 1.
    """
    *groups, leaf = weight.split("/")
    yield from reversed(groups)
    for _ in range(2):
        leaf = leaf.rpartition("_")[0]
        yield leaf


def sublayers_by_name(
    layer: str, paths: Mapping[str, str], configured: ConfiguredLayer | None, store: Store
) -> tuple[Sublayer, ...]:
    """Returns the parts of a Keras 2 layer that have arrays, such as cells, with these arrays. The weights of
    a part have the same scope: the names in front of the weight's own in its name. Raises `FileError` if
    these are not the parts in the configuration.

    layer: its name. paths: {name of a weight: its path in the file}. configured: the layer's configuration,
    None without one. store: the limit on memory.
    """
    scopes: dict[KeyPath, dict[str, str]] = {}
    for weight, path in paths.items():
        way, _, own = plain(layer, weight).rpartition("/")
        scope = weight.split("/")[:-1]
        if layer in scope:
            scope = scope[len(scope) - scope[::-1].index(layer) :]
        if way and not any(group.startswith(f"{way}_") for group in scope):
            scope = [f"{way}_{layer}"]  # Keras 1, whose names have no groups
        scopes.setdefault(tuple(scope), {})[own] = path
    configured_sublayers = list(layer_parts(configured.node, store).values()) if configured else []
    cells = [sublayer for sublayer in configured_sublayers if sublayer.cell or sublayer.in_cell]
    if cells:
        sublayers = by_scope(cells, list(scopes))
    elif configured is not None and len(scopes) == 1:
        sublayers = [Sublayer((), configured.class_name, configured.config, configured.config)]
    else:
        sublayers = [Sublayer(sublayer_path, in_cell=True) for sublayer_path in paths_of(list(scopes))]
    return tuple(
        replace(sublayer, arrays=tuple(arrays.items()))
        for sublayer, arrays in zip(sublayers, scopes.values(), strict=True)
    )


def plain(layer: str, weight: str) -> str:
    """Returns the short name of a weight in its Keras layer, such as "kernel" or "backward/bias": without
    groups, number and the layer's name, but with its direction.

    >>> plain("lstm", "lstm/lstm_cell/kernel:0"), plain("lstm_1", "lstm_1_W_i:0")
    ('kernel', 'W_i')
    >>> plain("both", "both/backward_gru/gru_cell/bias:0"), plain("both", "forward_gru_1_U_z")
    ('backward/bias', 'forward/U_z')
    """
    *groups, leaf = re.sub(r":\d+$", "", weight).split("/")
    leaf = leaf.removeprefix(f"{layer}_")
    for word in (*groups, leaf):
        direction = word.partition("_")[0]
        if direction in DIRECTIONS.values() and word != layer:
            return f"{direction}/{re.sub('^.+_(?=[WUb](_[a-z])?$)', '', leaf)}"
    return leaf
