"""Writes Keras files: the .keras and .weights.h5 of Keras 3, and the .h5 of Keras 2.

Keras is not needed; HDF5 is written by h5py. Sources: as in file.py, and keras/src/layers/rnn/ of 3.15.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.keras.names import (
    BIDIRECTIONAL,
    DIRECTIONS,
    GATES,
    MERGES,
    SETTINGS,
    VARIABLES,
    WITH_CELLS,
)
from stepnet.layout.files.keras.nodes import numbered, snake, table
from stepnet.layout.files.paths import library, new_file

Array = np.ndarray

GROUPS = {direction: group for group, direction in DIRECTIONS.items()}

KINDS = ("float16", "float32", "float64")
KERAS_2, KERAS_3 = "2.15.0", "3.5.0"  # the versions that the files name


@dataclass(frozen=True)
class NewLayer:
    """A layer to write.

    arrays: by their names in it, "kernel", "recurrent_kernel", "bias"; for Bidirectional "forward/kernel" and
    so on. config: as in Keras. Of a recurrent layer, activation, recurrent_activation, reset_after,
    return_sequences, return_state and go_backwards are used; all else follows from the arrays. Bidirectional
    has merge_mode and {"layer": {"class_name": "GRU", "config": {...}}}.
    """

    name: str
    class_name: str
    arrays: Mapping[str, Array]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def inner(self) -> tuple[str, Mapping[str, Any]]:
        """The class and configuration of this layer or, if it is a Bidirectional, of the layer inside it."""
        if self.class_name != BIDIRECTIONAL:
            return self.class_name, self.config
        layer = table(self.config.get("layer"))
        return str(layer.get("class_name")), table(layer.get("config"))

    def parts(self) -> dict[str, dict[str, Array]]:
        """Returns the arrays of each direction of the layer to write, by direction and name; if the layer is
        no Bidirectional, all under the direction "".
        """
        if self.class_name != BIDIRECTIONAL:
            return {"": dict(self.arrays)}
        by_direction: dict[str, dict[str, Array]] = {direction: {} for direction in GROUPS}
        for name, array in self.arrays.items():
            direction, _, own = name.partition("/")
            by_direction.setdefault(direction, {})[own] = array
        return by_direction


def write_weights(path: str | Path, layers: Sequence[NewLayer], force: bool = False) -> None:
    """Writes a .weights.h5 file for `load_weights` of a Keras 3 model that has layers of the same classes.

    Layers of the same class have to be in the model's order. Raises `FileError` for another ending of the
    file's name, for layers that the file cannot hold, and if the file exists, unless `force`.
    """
    h5py = library("h5py", "a Keras file", "keras")
    if not str(path).endswith(".weights.h5"):
        raise FileError(f"{path}: Keras loads such a file only where its name ends in .weights.h5")
    arrays = dict(numbered_arrays(path, layers))
    with new_file(path, force) as partial:
        write_arrays(h5py, partial, layers, arrays)


def write_model(path: str | Path, layers: Sequence[NewLayer], force: bool = False) -> None:
    """Writes a .keras file of a model, an input and a stack of recurrent layers, for `load_model` of Keras 3.

    Raises `FileError` for another ending of the file's name, for layers that do not fit each other or that
    the file cannot hold, and if the file exists, unless `force`.
    """
    h5py = library("h5py", "a Keras file", "keras")
    if not str(path).endswith(".keras"):
        raise FileError(f"{path}: Keras loads such a file only where its name ends in .keras")
    arrays = dict(numbered_arrays(path, layers))
    config = json.dumps(model(path, layers))
    with new_file(path, force) as partial:
        weights = partial.with_name(f"{partial.name}.h5")
        try:
            write_arrays(h5py, weights, layers, arrays)
            with zipfile.ZipFile(partial, "w") as archive:
                archive.writestr(zipfile.ZipInfo("metadata.json"), json.dumps({"keras_version": KERAS_3}))
                archive.writestr(zipfile.ZipInfo("config.json"), config)
                member = zipfile.ZipInfo("model.weights.h5")
                with open(weights, "rb") as source, archive.open(member, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        finally:
            weights.unlink(missing_ok=True)


def write_legacy(path: str | Path, layers: Sequence[NewLayer], force: bool = False) -> None:
    """Writes an .h5 or .hdf5 file of weights in the format of Keras 2, for `load_weights` of Keras 2,
    tf_keras and Keras 3.

    The layers are all of the model's layers with weights, in order. Raises `FileError` for another ending of
    the file's name, for two layers of one name, for layers that the file cannot hold, and if the file exists,
    unless `force`.
    """
    h5py = library("h5py", "a Keras file", "keras")
    if not str(path).endswith((".h5", ".hdf5")) or str(path).endswith(".weights.h5"):
        raise FileError(
            f"{path}: Keras loads such a file only where its name ends in .h5 or .hdf5, not .weights.h5"
        )
    if len({layer.name for layer in layers}) < len(layers):
        raise FileError(f"{path}: two layers have the same name")
    names = [list(weights_of(path, layer)) for layer in layers]
    with new_file(path, force) as partial, h5py.File(partial, "w") as file:
        file.attrs["layer_names"] = texts([layer.name for layer in layers])
        file.attrs["backend"], file.attrs["keras_version"] = b"tensorflow", KERAS_2.encode()
        for layer, weights in zip(layers, names, strict=True):
            group = file.create_group(layer.name)
            group.attrs["weight_names"] = texts([name for name, _ in weights])
            for name, array in weights:
                group.create_dataset(name, data=array)


def texts(names: Sequence[str]) -> Array:
    """Encodes names as an array of byte strings, in which HDF5 stores a list of texts as an attribute."""
    return np.array([name.encode() for name in names], dtype=None if names else "S1")


# Arrays


def numbered_arrays(path: str | Path, layers: Sequence[NewLayer]) -> Iterator[tuple[str, Array]]:
    """Yields the arrays of the layers to write, each with its path in a file of Keras 3, such as
    layers/gru_1/cell/vars/0, which numbers layers of a class and arrays by their order. path: of the file,
    for messages.
    """
    counts: dict[str, int] = {}
    for layer in layers:
        group = f"layers/{numbered(snake(layer.class_name), counts)}"
        class_name, _ = layer.inner
        for direction, arrays in layer.parts().items():
            inside = [
                group,
                *([GROUPS[direction]] if direction else []),
                *["cell"] * (class_name in WITH_CELLS),
            ]
            for name, array in ordered(path, layer, class_name, arrays):
                *groups, own = name.split("/")
                order = VARIABLES.get(class_name, ())
                number = str(order.index(own)) if own in order else own
                yield "/".join([*inside, *groups, "vars", number]), array


def ordered(
    path: str | Path, layer: NewLayer, class_name: str, arrays: Mapping[str, Array]
) -> list[tuple[str, Array]]:
    """Returns the arrays of a layer, or of one direction of it, as (name, array) in Keras' order; raises
    `FileError` if one is missing, or has a name or dtype that Keras' class does not have.

    path: of the file, for messages. layer: the layer to write. class_name: the class of the layer, or of the
    layer inside a Bidirectional.
    """
    if layer.class_name == BIDIRECTIONAL and set(layer.parts()) != set(GROUPS):
        refuse(
            path, layer, f"has {', '.join(layer.arrays)}, and all of Bidirectional's begin with a direction"
        )
    order = VARIABLES.get(class_name, ())
    needed = order[: max(2, len(arrays))] if class_name in WITH_CELLS else ()
    for part in (layer.name, *(part for name in arrays for part in name.split("/"))):
        if part in ("", ".", "..") or "/" in part:
            raise FileError(f"{path}: {part!r} is no name of a layer or array")
    if any(name not in arrays for name in needed):
        refuse(path, layer, f"has {', '.join(arrays) or 'no arrays'}, and needs {', '.join(needed)}")
    for name, array in arrays.items():
        if name not in order and not name.rpartition("/")[2].isdecimal():
            refuse(path, layer, f"has {name!r}, which no {class_name} has")
        if array.dtype.name not in KINDS and name in order:
            refuse(path, layer, f"has {name!r} of {array.dtype.name}; Keras has {', '.join(KINDS)}")
    rank = {name: index for index, name in enumerate(order)}
    in_order = sorted(arrays.items(), key=lambda item: rank.get(item[0], len(order)))
    return [(name, array.astype(array.dtype.newbyteorder("="), copy=False)) for name, array in in_order]


def refuse(path: str | Path, layer: NewLayer, what: str) -> NoReturn:
    """Raises the `FileError` for a layer that a Keras file cannot have; what: the rest of the message."""
    raise FileError(f"{path}: the layer {layer.name!r} {what}")


def write_arrays(h5py: Any, file: Path, layers: Sequence[NewLayer], arrays: Mapping[str, Array]) -> None:
    """Writes an HDF5 file with the arrays `arrays`, by path, and the names of the layers in attributes. h5py:
    the library.

    Keras 3.5 and tf_keras need a group "vars" in every group that might have arrays.
    """
    counts: dict[str, int] = {}
    with h5py.File(file, "w") as target:
        target.create_group("vars")
        for layer in layers:
            group = f"layers/{numbered(snake(layer.class_name), counts)}"
            target.require_group(f"{group}/vars").attrs["name"] = layer.name
        for path, array in arrays.items():
            parts = path.split("/")
            for end in range(2, len(parts) - 2):
                target.require_group("/".join([*parts[:end], "vars"]))
            target.create_dataset(path, data=array)


def weights_of(path: str | Path, layer: NewLayer) -> Iterator[tuple[str, Array]]:
    """Yields the arrays of a layer to write, each with the name that Keras 2 gives it, such as
    lstm/lstm_cell/kernel:0. path: of the file, for messages.
    """
    class_name, config = layer.inner
    cell = [f"{snake(class_name)}_cell"] if class_name in WITH_CELLS else []
    own = str(config.get("name") or snake(class_name)).removeprefix("forward_")
    for direction, arrays in layer.parts().items():
        for name, array in ordered(path, layer, class_name, arrays):
            groups = [layer.name, *([f"{direction}_{own}"] if direction else []), *cell]
            yield "/".join([*groups, f"{name}:0"]), array


# Configurations


def model(path: str | Path, layers: Sequence[NewLayer]) -> dict[str, Any]:
    """Returns the configuration of a Keras model of an input and a stack of recurrent layers, for a .keras
    file. It is a functional model if layers return states, else a Sequential. Raises `FileError` for layers
    that do not fit each other. path: of the file, for messages.
    """
    if not layers:
        raise FileError(f"{path}: a model needs a layer")
    if len({layer.name for layer in layers}) < len(layers):
        raise FileError(f"{path}: two layers have the same name")
    described, width, dtype = list[dict[str, Any]](), 0, ""
    states = list[list[str | int]]()
    for index, layer in enumerate(layers):
        config, inputs, outputs = recurrent(path, layer)
        shape = [None, None, inputs]
        if not index:
            dtype, width = config["dtype"], inputs
            # Not Keras 2's batch_input_shape, which Keras 3 takes too: tf_keras would then load the file, and
            # has other functions by the same names (hard_sigmoid).
            entrance = {"name": "input", "batch_shape": shape, "dtype": dtype}
            described.append(serialized("InputLayer", entrance))
        if inputs != width:
            refuse(path, layer, f"takes {inputs} inputs, and gets {width}")
        _, inner = layer.inner
        if index < len(layers) - 1 and not inner.get("return_sequences"):
            refuse(path, layer, "is under another, and so needs return_sequences")
        described.append(serialized(layer.class_name, config) | {"build_config": {"input_shape": shape}})
        states += [[layer.name, 0, index] for index in range(1, states_of(layer) + 1)]
        width = outputs
    if states:
        return functional(described, states, dtype)
    sequential = {"name": "sequential", "trainable": True, "dtype": dtype, "layers": described}
    return serialized("Sequential", sequential, "keras")


def states_of(layer: NewLayer) -> int:
    """Returns the number of final states that a Keras layer returns, by its setting return_state."""
    class_name, config = layer.inner
    ways = 2 if layer.class_name == BIDIRECTIONAL else 1
    return ways * (2 if class_name == "LSTM" else 1) if config.get("return_state") else 0


def functional(
    layers: Sequence[dict[str, Any]], states: Sequence[list[str | int]], dtype: str
) -> dict[str, Any]:
    """Returns the configuration of a Keras model that runs layers one after another, and returns the outputs
    of the last layer and then the final states `states`. It is a functional model, because a Sequential has
    one output.

    layers: the configurations of the layers, of which the first is the input. states: [layer, call, output]
    of each. dtype: of the tensors.
    """
    names = [layer["config"]["name"] for layer in layers]
    described: list[dict[str, Any]] = []
    for layer, name, below in zip(layers, names, [None, *names[:-1]], strict=True):
        shape: list[int | None] = layer["build_config"]["input_shape"] if below else []
        tensor: dict[str, Any] = {"shape": shape, "dtype": dtype, "keras_history": [below, 0, 0]}
        call: dict[str, Any] = {"args": [{"class_name": "__keras_tensor__", "config": tensor}], "kwargs": {}}
        described.append({**layer, "name": name, "inbound_nodes": [call] if below else []})
    ends = {"input_layers": [names[0], 0, 0], "output_layers": [[names[-1], 0, 0], *states]}
    config = {"name": "functional", "trainable": True, "layers": described, **ends}
    return serialized("Functional", config, "keras.src.models.functional")


def recurrent(path: str | Path, layer: NewLayer) -> tuple[dict[str, Any], int, int]:
    """Returns the Keras configuration of a recurrent layer for a .keras file, its number of input features,
    and that of output features. Raises `FileError` for other layers, and for two directions that differ or
    are not merged to one output.
    """
    class_name, inner_config = layer.inner
    if class_name not in GATES:
        refuse(
            path,
            layer,
            f"is a {class_name}; a .keras file is written of {', '.join(GATES)} and Bidirectional",
        )
    by_direction = [
        settings(path, layer, class_name, inner_config, arrays) for arrays in layer.parts().values()
    ]
    config, inputs = by_direction[0]
    if layer.class_name != BIDIRECTIONAL:
        return {"name": layer.name, **config}, inputs, config["units"]
    merge = layer.config.get("merge_mode", "concat")
    if merge not in MERGES:
        refuse(path, layer, f"has merge_mode {merge!r}; a model of one output has {', '.join(MERGES)}")
    if by_direction[0] != by_direction[1] or config["go_backwards"]:
        refuse(path, layer, "has directions of different sizes or kinds, or both go backwards")
    name = str(inner_config.get("name") or snake(class_name)).removeprefix("forward_")
    inner = serialized(class_name, {"name": f"forward_{name}", **config})
    wrapper = {"name": layer.name, "trainable": True, "dtype": config["dtype"], "merge_mode": merge}
    return {**wrapper, "layer": inner}, inputs, config["units"] * (2 if merge == "concat" else 1)


def settings(
    path: str | Path,
    layer: NewLayer,
    class_name: str,
    written: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> tuple[dict[str, Any], int]:
    """Returns the configuration of a recurrent Keras layer, or of one direction of it, without its name, and
    the number of input features. Raises `FileError` for arrays of wrong shapes or of several dtypes.

    path: the path of the file; layer: the whole layer, both for messages. class_name: the class of the
    recurrent layer. written: the settings that the caller states; others get Keras' defaults. arrays: the
    arrays of the direction.
    """
    shapes = {name: array.shape for name, array in ordered(path, layer, class_name, arrays)}
    units, (inputs, *_) = (*shapes["recurrent_kernel"], 0)[0], (*shapes["kernel"], 0)
    config: dict[str, Any] = {}
    for name, usual in (SETTINGS[""] | SETTINGS[class_name]).items():
        value = written.get(name, usual)
        if isinstance(usual, str) and not isinstance(value, str | None):
            refuse(path, layer, f"has {name} {value!r}; the name of one of Keras' is needed")
        config[name] = value if isinstance(usual, str) else bool(value)
    wide = units * GATES[class_name]
    bias = (2, wide) if config.get("reset_after") else (wide,)
    right = {"kernel": (inputs, wide), "recurrent_kernel": (units, wide), "bias": bias}
    for name, shape in shapes.items():
        if shape != right[name]:
            refuse(
                path,
                layer,
                f"has {name!r} of shape {shape}; {class_name} of {units} units has {right.get(name)}",
            )
    kinds = {array.dtype.name for array in arrays.values()}
    if len(kinds) > 1:
        refuse(path, layer, f"has arrays of {' and '.join(sorted(kinds))}; Keras has one kind in a layer")
    config |= {"units": units, "use_bias": "bias" in arrays, "dtype": kinds.pop(), "trainable": True}
    return config, inputs


def serialized(class_name: str, config: Mapping[str, Any], module: str = "keras.layers") -> dict[str, Any]:
    """Returns a layer or model in Keras 3's JSON form; module: the Python module of its class."""
    return {"module": module, "class_name": class_name, "config": dict(config), "registered_name": None}
