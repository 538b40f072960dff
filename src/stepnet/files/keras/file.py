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
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path

import numpy as np

from stepnet.errors import FileError
from stepnet.files import zips
from stepnet.files.jsons import parsed
from stepnet.files.keras import hdf5
from stepnet.files.keras.config import KERNELS, VARIABLES, Config, Told, Use, layers_of
from stepnet.files.keras.parts import (
    DIRECTIONS,
    Part,
    Steps,
    by_scope,
    check_complete,
    part_at,
    places,
    words_of,
)
from stepnet.files.paths import existing
from stepnet.files.store import Store

Array = np.ndarray
Attributes = Mapping[str, hdf5.Attributes]

WEIGHTS, CONFIG, METADATA = "model.weights.h5", "config.json", "metadata.json"
INNER = {*DIRECTIONS, "cell", "cells", "layer"}  # groups in a layer's own
NO_LAYERS = {"optimizer", "metrics", "loss", "vars", "_loss_tracker", "_compile_metrics", "_compile_loss"}
NO_WEIGHTS = "seed_generator"


@dataclass(frozen=True)
class KerasLayer:
    """A layer with its arrays.

    name: its own, after those of the models that it lies in ("encoder/lstm"). class_name and config are None
    where the file has no configuration. parts: what in it has arrays. inputs: the names of the layers that
    feed it, but for those that change nothing, such as Dropout, which are looked through. timed: the name of
    the TimeDistributed that runs it once for each outer step, if any. use: how the model uses it, None where
    no configuration of a model says so.
    """

    name: str
    class_name: str | None
    config: Config | None
    parts: tuple[Part, ...]
    inputs: tuple[str, ...] = ()
    timed: str = ""
    use: Use | None = None

    @property
    def arrays(self) -> tuple[tuple[str, str], ...]:
        """Each of its arrays: the name in the layer ("kernel", "forward/bias", "cells/1/kernel"), and that in
        the file.
        """
        return tuple(("/".join((*part.words, own)), path) for part in self.parts for own, path in part.arrays)


@dataclass(frozen=True)
class KerasFile:
    """What a Keras file holds: the configuration of its model, its arrays by their path, and its layers with
    weights, in the model's order where that is told.

    told: all layers that the configuration tells of. ordered: whether the model's order is told. version:
    of the Keras that wrote it, where it says so. foreign: whether it is an HDF5 file of something else than
    Keras, of which arrays are all that is known.
    """

    config: Config | None
    arrays: Mapping[str, Array]
    layers: tuple[KerasLayer, ...]
    told: tuple[Told, ...] = ()
    version: str | None = None
    foreign: bool = False
    ordered: bool = True


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
            return KerasFile(None, arrays, (), foreign=True)
        return KerasFile(None, arrays, tuple(modern((), arrays, attributes, store)), ordered=False)


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
    told = tuple(layers_of(config, store))
    return KerasFile(config, arrays, tuple(modern(told, arrays, attributes, store)), told, version)


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
    layers: Sequence[Told], arrays: Mapping[str, Array], attributes: Attributes, store: Store
) -> Iterator[KerasLayer]:
    """The layers of a file of Keras 3's form: those that the configuration tells of, and then the others."""
    paths = sorted(arrays)
    rest = dict.fromkeys(paths)
    for told in layers:
        place = told.place
        if not below(paths, place):  # as TensorFlow 2.12 wrote it
            place = place.replace("layers/", "_layer_checkpoint_dependencies/")
        found = [path for path in below(paths, place) if path in rest]
        for path in found:
            del rest[path]
        with hdf5.within(told.name):
            known = places(told.node, store)
            parts = parts_in(place, found, known)
            check_complete(known.values(), parts)
        if parts:
            yield of(told, parts)
    owners: dict[str, list[str]] = {}
    for path in sorted(rest, key=natural):
        if path.partition("/")[0] not in NO_LAYERS and "/vars/" in path:
            owners.setdefault(owner(path), []).append(path)
    for place, found in owners.items():
        parts = parts_in(place, found, {})
        if parts:
            yield KerasLayer(title(place, attributes), None, None, parts)


def of(told: Told, parts: tuple[Part, ...]) -> KerasLayer:
    """A layer that a configuration tells of, with what in it has arrays."""
    return KerasLayer(told.name, told.class_name, told.config, parts, told.inputs, told.timed, told.use)


def below(paths: Sequence[str], place: str) -> Sequence[str]:
    """Those of sorted paths that lie in a group."""
    return paths[bisect_left(paths, f"{place}/") : bisect_left(paths, f"{place}0")]


def natural(path: str) -> list[tuple[int, str]]:
    """A key that sorts lstm_2 before lstm_10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path)]


def parts_in(place: str, found: Sequence[str], known: Mapping[Steps, Part]) -> tuple[Part, ...]:
    """What has the arrays of the layer at a place; states of random generators are none.

    known: what the configuration tells of the layer.
    """
    arrays: dict[Steps, list[tuple[str, str]]] = {}
    for path in sorted(found, key=natural):
        *steps, group, number = path.removeprefix(f"{place}/").split("/")
        if group == "vars" and NO_WEIGHTS not in steps:
            arrays.setdefault(tuple(steps), []).append((number, path))
    parts: list[Part] = []
    for steps, numbers in arrays.items():
        part = part_at(steps, known)
        variables = VARIABLES.get(part.class_name, KERNELS if is_kernels(part, steps) else ())
        named = {str(place): name for place, name in enumerate(variables)}
        parts.append(replace(part, arrays=tuple((named.get(own, own), path) for own, path in numbers)))
    return tuple(sorted(parts, key=lambda part: [(word == "backward", natural(word)) for word in part.words]))


def is_kernels(part: Part, steps: Steps) -> bool:
    """Whether groups alone say that the arrays in them are a cell's."""
    return part.in_cell or steps[-1:] == ("cell",) or bool(steps and steps[-1] in DIRECTIONS)


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
    told = tuple(layers_of(config, store)) if config else ()
    outermost: dict[str, list[Told]] = {}
    for one in told:
        if not one.passes:
            outermost.setdefault(one.outermost, []).append(one)
    here = attributes.get(group, {})
    layers: list[KerasLayer] = []
    for name in texts(here, "layer_names") or ():
        place = f"{group}/{name}".lstrip("/")
        weights = texts(attributes.get(place, {}), "weight_names") or ()
        paths = {weight: f"{place}/{weight}" for weight in weights}
        missing = [path for path in paths.values() if path not in arrays]
        if missing:
            raise FileError(f"it has no array {missing[0]!a}, which it lists")
        layers.extend(listed(name, paths, outermost.get(name, []), store))
    version = version_of(here.get("keras_version")) or "1"  # as Keras takes it
    return KerasFile(config, arrays, tuple(layers), told, version)


def texts(attributes: Mapping[str, hdf5.Attribute], name: str) -> tuple[str, ...] | None:
    """A list of texts, in several attributes where it is too long for one; None where there is none."""
    if name not in attributes and f"{name}0" not in attributes:
        return None
    keys = [name] if name in attributes else [f"{name}{part}" for part in range(len(attributes))]
    values = [attributes[key] for key in keys if key in attributes]
    return tuple(text for value in values if isinstance(value, tuple) for text in value)


def listed(name: str, paths: Mapping[str, str], layers: Sequence[Told], store: Store) -> Iterator[KerasLayer]:
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
            with hdf5.within(told.name):
                parts = parts_by_name(own, weights, told, store)
            yield of(told, parts)
        elif weights:
            title = f"{name}/{own}" if len(groups) > 1 and own else name
            yield KerasLayer(title, None, None, parts_by_name(own, weights, None, store))


def parts_of(weight: str) -> Iterator[str]:
    """What may be the name of a weight's layer, in "inner/lstm/lstm_cell/kernel:0" or in "lstm_1_W_i"."""
    *groups, leaf = weight.split("/")
    yield from reversed(groups)
    for _ in range(2):
        leaf = leaf.rpartition("_")[0]
        yield leaf


def parts_by_name(layer: str, paths: Mapping[str, str], told: Told | None, store: Store) -> tuple[Part, ...]:
    """What in a layer has arrays, by the names of these."""
    scopes: dict[Steps, dict[str, str]] = {}
    for weight, path in paths.items():
        way, _, own = plain(layer, weight).rpartition("/")
        scope = weight.split("/")[:-1]
        if layer in scope:
            scope = scope[len(scope) - scope[::-1].index(layer) :]
        if way and not any(part.startswith(f"{way}_") for part in scope):
            scope = [f"{way}_{layer}"]  # Keras 1, whose names have no groups
        scopes.setdefault(tuple(scope), {})[own] = path
    known = list(places(told.node, store).values()) if told else []
    cells = [part for part in known if part.cell or part.in_cell]
    if cells:
        parts = by_scope(cells, list(scopes))
    elif told is not None and len(scopes) == 1:
        parts = [Part((), told.class_name, told.config, told.config)]
    else:
        parts = [Part(words, in_cell=True) for words in words_of(list(scopes))]
    return tuple(
        replace(part, arrays=tuple(arrays.items()))
        for part, arrays in zip(parts, scopes.values(), strict=True)
    )


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
