"""The layers of a Keras file with their arrays: .keras, .weights.h5, and the .h5 of Keras 1, 2 and 3.

.keras        a zip of config.json, metadata.json and model.weights.h5
.weights.h5   layers/lstm_1/cell/vars/0: places by class and number, arrays by number
.h5           model_weights/lstm_2/lstm_2/lstm_cell/kernel:0, listed in attributes, with the configuration in
              one; or all that without model_weights and a configuration

Sources: keras/src/saving/saving_lib.py and legacy/saving/legacy_h5_format.py of 3.15; tf_keras 2.21;
keras/engine/topology.py of 1.2.2.
"""

import os
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from stepnet.errors import FileError
from stepnet.files import zips
from stepnet.files.jsons import parsed
from stepnet.files.keras import hdf5
from stepnet.files.keras.config import (
    KERNELS,
    VARIABLES,
    Config,
    Told,
    layers_of,
    numbered,
    rows,
    snake,
    table,
)
from stepnet.files.paths import existing
from stepnet.files.store import Store

Array = np.ndarray
Attributes = Mapping[str, hdf5.Attributes]

WEIGHTS, CONFIG, METADATA = "model.weights.h5", "config.json", "metadata.json"
DIRECTIONS = {"forward_layer": "forward", "backward_layer": "backward"}
INNER = {*DIRECTIONS, "cell", "cells", "layer"}  # groups in a layer's own
NO_LAYERS = {"optimizer", "metrics", "loss", "vars", "_loss_tracker", "_compile_metrics", "_compile_loss"}
NO_WEIGHTS = "seed_generator"


@dataclass(frozen=True)
class KerasLayer:
    """A layer with its arrays.

    name: its own, after those of the models that it lies in ("encoder/lstm"). class_name and config are None
    where the file has no configuration. arrays: for each its name in the layer ("kernel", "forward/bias",
    "cells/1/kernel"), and that in the file. inputs: the names of the layers that feed it, but for those that
    change nothing, such as Dropout, which are looked through.
    """

    name: str
    class_name: str | None
    config: Config | None
    arrays: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class KerasFile:
    """What a Keras file holds: the configuration of its model, its arrays by their path, and its layers with
    weights, in the model's order where that is told.

    version: of the Keras that wrote it, where it says so.
    """

    config: Config | None
    arrays: Mapping[str, Array]
    layers: tuple[KerasLayer, ...]
    version: str | None = None


def read(path: str | Path) -> KerasFile:
    """What a .keras, .weights.h5 or .h5 file holds; raises `FileError`, with the path, for what is none.

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
            raise FileError("this HDF5 file is not one of Keras: it names no layers")
        return KerasFile(None, arrays, tuple(modern(None, arrays, attributes, store)))


def archive(stream: BufferedReader) -> KerasFile:
    """What an open .keras file holds."""
    size = stream.seek(0, os.SEEK_END)
    store, members = Store(None, size), zips.members(stream, size)
    for name in (CONFIG, WEIGHTS):
        if name not in members:
            raise FileError(f"this is no .keras file: its zip has no {name}")
    config = parsed(zips.bytes_at(stream, place_of(stream, members[CONFIG], size)).tobytes(), CONFIG, store)
    version = None
    if METADATA in members:
        said = zips.bytes_at(stream, place_of(stream, members[METADATA], size)).tobytes()
        version = version_of(parsed(said, METADATA, store).get("keras_version"))
    weights = place_of(stream, members[WEIGHTS], size)
    checked(stream, weights)
    with hdf5.named(WEIGHTS):
        arrays, attributes = hdf5.content(stream, weights, store)
    return KerasFile(config, arrays, tuple(modern(config, arrays, attributes, store)), version)


def place_of(stream: BufferedReader, member: zips.Member, size: int) -> zips.Place:
    """Where a member's bytes lie."""
    if not member.stored:
        raise FileError(
            f"its zip's member {member.name} is compressed or encrypted; zip it without, as Keras does"
        )
    return zips.place_of(stream, member, size)


def checked(stream: BufferedReader, place: zips.Place) -> None:
    """Raises where the checksum of a place is wrong."""
    stream.seek(place.start)
    left, checksum = place.size, 0
    while left:
        data = stream.read(min(left, 1 << 20))
        left, checksum = left - len(data) if data else 0, zlib.crc32(data, checksum)
    if checksum != place.checksum:
        raise FileError(f"its {WEIGHTS} is damaged: its checksum is wrong")


def version_of(value: object) -> str | None:
    """A version where a file says one."""
    return value if isinstance(value, str) else None


# Arrays by place and number


def modern(
    config: Config | None, arrays: Mapping[str, Array], attributes: Attributes, store: Store
) -> Iterator[KerasLayer]:
    """The layers of a file of Keras 3's form: those that the configuration tells of, and then the others."""
    paths = sorted(arrays)
    rest = dict.fromkeys(paths)
    for told in layers_of(config, store) if config else ():
        place = told.place
        if not below(paths, place):  # as TensorFlow 2.12 wrote it
            place = place.replace("layers/", "_layer_checkpoint_dependencies/")
        found = [path for path in below(paths, place) if path in rest]
        for path in found:
            del rest[path]
        names = own_names(place, found, told)
        if names:
            yield KerasLayer(told.name, told.class_name, told.config, names, told.inputs)
    owners: dict[str, list[str]] = {}
    for path in sorted(rest, key=natural):
        if path.partition("/")[0] not in NO_LAYERS and "/vars/" in path:
            owners.setdefault(owner(path), []).append(path)
    for place, found in owners.items():
        names = own_names(place, found, None)
        if names:
            yield KerasLayer(title(place, attributes), None, None, names)


def below(paths: Sequence[str], place: str) -> Sequence[str]:
    """Those of sorted paths that lie in a group."""
    return paths[bisect_left(paths, f"{place}/") : bisect_left(paths, f"{place}0")]


def natural(path: str) -> list[tuple[int, str]]:
    """A key that sorts lstm_2 before lstm_10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path)]


def own_names(place: str, found: Sequence[str], told: Told | None) -> tuple[tuple[str, str], ...]:
    """The arrays of the layer at a place, each with its name in it; states of random generators are none."""
    named: list[tuple[tuple[str, ...], str, str]] = []
    stacks: dict[int, dict[str, tuple[str, Config]]] = {}
    for path in sorted(found, key=natural):
        *inner, group, number = path.removeprefix(f"{place}/").split("/")
        if group != "vars" or NO_WEIGHTS in inner:
            continue
        words, kind = described(inner, told, stacks)
        variables = KERNELS if told is None and inner and inner[-1] != "layer" else VARIABLES.get(kind, ())
        known = int(number) if number.isdecimal() else len(variables)
        own = variables[known] if known < len(variables) else number
        named.append((words, own, path))
    named.sort(key=lambda entry: [(word == "backward", natural(word)) for word in entry[0]])
    return tuple(("/".join((*words, own)), path) for words, own, path in named)


def described(
    inner: Sequence[str], told: Told | None, stacks: dict[int, dict[str, tuple[str, Config]]]
) -> tuple[tuple[str, ...], str]:
    """What the groups between a layer's own and an array are called, and the class of the last where told.

    stacks: the cells of every stack of them that was met, by its configuration's id.
    """
    node: Config = {"class_name": told.class_name, "config": told.config} if told else {}
    words: list[str] = []
    for before, part in zip(("", *inner), inner, strict=False):
        config = table(node.get("config"))
        if before == "cells":
            if id(config) not in stacks:
                stacks[id(config)] = cells_of(config)
            word, node = stacks[id(config)].get(part, (part, {}))
            words.append(word)
        elif part == "cells":
            words.append(part)
        elif part == "cell":  # that of an LSTM is described with it
            node = table(config.get("cell")) or node
        elif part in DIRECTIONS or part == "layer":
            node = table(config.get(part) or config.get("layer"))
            words.extend([DIRECTIONS[part]] if part in DIRECTIONS else [])
        else:
            node = {}
            words.append(part)
    return tuple(words), str(node.get("class_name", ""))


def cells_of(config: Config) -> dict[str, tuple[str, Config]]:
    """The cells of a stack by their groups: which one each is, and its configuration."""
    counts: dict[str, int] = {}
    cells = [table(cell) for cell in rows(config.get("cells"))]
    groups = [numbered(snake(str(cell.get("class_name"))), counts) for cell in cells]
    return {group: (str(place), cell) for place, (group, cell) in enumerate(zip(groups, cells, strict=True))}


def owner(path: str) -> str:
    """The group of the layer that an array belongs to, where no configuration tells."""
    parts = path.partition("/vars/")[0].split("/")
    for place in range(1, len(parts)):
        if (parts[place] in INNER or parts[place] == NO_WEIGHTS) and parts[place - 1] != "layers":
            return "/".join(parts[:place])
    return "/".join(parts)


def title(place: str, attributes: Attributes) -> str:
    """The name of the layer in a group: what newer files say in an attribute, or what groups are called."""
    parts, names = place.split("/"), list[str]()
    for end, part in enumerate(parts, 1):
        if part not in ("layers", "_layer_checkpoint_dependencies"):
            said = attributes.get("/".join([*parts[:end], "vars"]), {}).get("name", part)
            names.append(said if isinstance(said, str) else part)
    return "/".join(names)


# Arrays by name, listed in attributes


def legacy(group: str, arrays: Mapping[str, Array], attributes: Attributes, store: Store) -> KerasFile:
    """What a file of Keras 1's and 2's form holds, whose layers are in a group."""
    said = attributes.get("", {}).get("model_config")
    config = parsed(said.encode(), "model_config", store) if isinstance(said, str) else None
    outermost: dict[str, list[Told]] = {}
    for told in layers_of(config, store) if config else ():
        outermost.setdefault(told.outermost, []).append(told)
    here = attributes.get(group, {})
    layers: list[KerasLayer] = []
    for name in texts(here, "layer_names") or ():
        place = f"{group}/{name}".lstrip("/")
        weights = texts(attributes.get(place, {}), "weight_names") or ()
        paths = {weight: f"{place}/{weight}" for weight in weights}
        missing = [path for path in paths.values() if path not in arrays]
        if missing:
            raise FileError(f"it has no array {missing[0]!a}, which it lists")
        layers.extend(listed(name, paths, outermost.get(name, [])))
    return KerasFile(
        config, arrays, tuple(layers), version_of(here.get("keras_version")) or "1"
    )  # as Keras takes it


def texts(attributes: Mapping[str, hdf5.Attribute], name: str) -> tuple[str, ...] | None:
    """A list of texts, in several attributes where it is too long for one; None where there is none."""
    if name not in attributes and f"{name}0" not in attributes:
        return None
    keys = [name] if name in attributes else [f"{name}{part}" for part in range(len(attributes))]
    values = [attributes[key] for key in keys if key in attributes]
    return tuple(text for value in values if isinstance(value, tuple) for text in value)


def listed(name: str, paths: Mapping[str, str], layers: Sequence[Told]) -> Iterator[KerasLayer]:
    """The layers that one entry of a file's list stands for: several for a model in the model.

    paths: in the file, by the name of each weight. layers: what the configuration tells of the entry.
    """
    by_name = {told.own: told for told in layers}
    groups: dict[str, dict[str, str]] = {told.own: {} for told in layers}
    for weight, path in paths.items():
        if len(by_name) == 1:
            own = layers[0].own
        elif by_name:
            own = next((part for part in parts_of(weight) if part in by_name), "")
        else:
            own = weight.partition("/")[0]
        groups.setdefault(own, {})[weight] = path
    if not by_name and len(groups) > 1 and len({plain(name, weight) for weight in paths}) == len(paths):
        groups = {name: dict(paths)}
    for own, weights in groups.items():
        told = by_name.get(own)
        if told is not None and weights:
            names = weight_names(own, told.class_name, weights)
            yield KerasLayer(told.name, told.class_name, told.config, names, told.inputs)
        elif weights:
            title = f"{name}/{own}" if len(groups) > 1 and own else name
            yield KerasLayer(title, None, None, weight_names(own, None, weights))


def parts_of(weight: str) -> Iterator[str]:
    """What may be the name of a weight's layer, in "inner/lstm/lstm_cell/kernel:0" or in "lstm_1_W_i"."""
    *groups, leaf = weight.split("/")
    yield from reversed(groups)
    for _ in range(2):
        leaf = leaf.rpartition("_")[0]
        yield leaf


def weight_names(layer: str, class_name: str | None, paths: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The arrays of a layer, each with its name in the layer."""
    names = {weight: plain(layer, weight) for weight in paths}
    if len(set(names.values())) < len(names):  # a stack of cells, which come one after the other
        cells: dict[str, dict[str, int]] = {}
        for weight in names if class_name in (None, "RNN", "Bidirectional") else ():
            direction, _, own = names[weight].rpartition("/")
            known = cells.setdefault(direction, {})
            cell = known.setdefault(weight.rpartition("/")[0], len(known))
            names[weight] = f"{direction}/cells/{cell}/{own}".lstrip("/")
    if len(set(names.values())) < len(names):
        names = {weight: weight for weight in names}
    return tuple((names[weight], path) for weight, path in paths.items())


def plain(layer: str, weight: str) -> str:
    """A weight's name in its layer.

    >>> plain("lstm", "lstm/lstm_cell/kernel:0"), plain("lstm_1", "lstm_1_W_i:0")
    ('kernel', 'W_i')
    >>> plain("both", "both/backward_gru/gru_cell/bias:0"), plain("both", "forward_gru_1_U_z")
    ('backward/bias', 'forward/U_z')
    """
    *groups, leaf = re.sub(r":\d+$", "", weight).split("/")
    leaf = leaf.removeprefix(f"{layer}_")
    for part in (*groups, leaf):
        direction = part.partition("_")[0]
        if direction in DIRECTIONS.values() and part != layer:
            return f"{direction}/{re.sub('^.+_(?=[WUb](_[a-z])?$)', '', leaf)}"
    return leaf
