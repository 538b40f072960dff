"""The recurrent layers of a Keras file as modules, and modules as a Keras file.

A configuration tells which layer is which and how it is set. Where a file has weights alone, shapes tell what
they can, and the rest is asked for.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError, LayoutError
from stepnet.files.keras import write as writers
from stepnet.files.keras.config import layers_of
from stepnet.files.keras.file import KerasFile, KerasLayer
from stepnet.files.keras.file import read as read_layers
from stepnet.files.keras.write import NewLayer
from stepnet.files.model import Array, Model, Module, layer_arrays
from stepnet.files.store import Store
from stepnet.layout.find import find
from stepnet.layout.registry import record, records

CELLS = {"SimpleRNN": "rnn", "GRU": "gru", "LSTM": "lstm", "CuDNNGRU": "cudnn_gru", "CuDNNLSTM": "cudnn_lstm"}
MERGES = {"concat": "concat", "sum": "sum", "ave": "average", "mul": "product"}
SETTINGS = ("activation", "recurrent_activation")
ONCE = {"recurrent_activation": "inner_activation"}  # as Keras 1 called it
FRAMEWORKS = ("keras", "keras2", "keras1")


def read(path: Path) -> Model:
    """The recurrent layers of a file, each a module, in the model's order."""
    file = read_layers(path)
    modules: list[Module] = []
    for layer in file.layers:
        module = of_layer(path, file, layer)
        if module is not None:
            modules.append(module)
    taken = {name for module in modules for name in module.names.values()}
    rest = {name: array for name, array in file.arrays.items() if name not in taken}
    names = {module.name for module in modules}
    store = Store(path, path.stat().st_size)
    return Model(str(path), tuple(modules), rest, tuple(others(file, names, store)))


def others(file: KerasFile, recurrent: Collection[str], store: Store) -> Iterator[str]:
    """What the layers are called that are no recurrent modules; without a configuration those with arrays."""
    if file.config is None:
        yield from (layer.name for layer in file.layers if layer.name not in recurrent)
        return
    for layer in layers_of(file.config, store):
        if layer.name not in recurrent and layer.class_name != "InputLayer":
            yield f"{layer.name} ({layer.class_name})"


def of_layer(path: Path, file: KerasFile, layer: KerasLayer) -> Module | None:
    """A layer as a module; None where it is not a recurrent one that a layout says."""
    arrays = {own: file.arrays[place] for own, place in layer.arrays}
    names = dict(layer.arrays)
    follows = layer.inputs[0] if len(layer.inputs) == 1 else None
    if layer.class_name is None or layer.config is None:
        return by_shapes(layer.name, arrays, names, follows)
    class_name, config, merge = layer.class_name, layer.config, "concat"
    if class_name == "Bidirectional":
        mode = config.get("merge_mode", "concat")
        if not isinstance(mode, str) or mode not in MERGES:
            raise FileError(
                f"{path}: {layer.name!r} has merge_mode {str(mode)[:100]!r}, which gives no one output"
            )
        merge = MERGES[mode]
        class_name, config = inner(config)
    if class_name not in CELLS:
        return None
    layout = layout_of(file, class_name, arrays)
    reverse = bool(config.get("go_backwards")) and layer.class_name != "Bidirectional"
    try:
        semantics = record(layout).translated(settings(config))
    except LayoutError as error:
        raise FileError(f"{path}: {layer.name!r}: {error}") from error
    return Module(
        layer.name,
        (layout,),
        arrays,
        names,
        semantics=semantics,
        follows=follows,
        reverse=reverse,
        flipped=reverse and bool(config.get("return_sequences")),
        merge=merge,
    )


def inner(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The class and configuration of the layer that a Bidirectional runs in both directions."""
    layer = config.get("layer")
    if not isinstance(layer, dict):
        return "", {}
    found = cast("dict[str, Any]", layer)
    settings = found.get("config")
    return str(found.get("class_name")), cast(
        "dict[str, Any]", settings if isinstance(settings, dict) else {}
    )


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The activations that a configuration names; one that is left out has Keras' usual value."""
    known = {ONCE.get(name, name) if name not in config else name: name for name in SETTINGS}
    return {name: config[given] or "linear" for given, name in known.items() if given in config}


def layout_of(file: KerasFile, class_name: str, arrays: Mapping[str, Array]) -> str:
    """The layout of a layer of a class, in the version of Keras that wrote the file."""
    cell = CELLS[class_name]
    if cell.startswith("cudnn"):
        return f"keras.{cell}"
    version = (file.version or "3").partition(".")[0]
    framework = {"1": "keras1", "2": "keras2"}.get(version, "keras")
    if framework == "keras1" and not any(name.endswith(("W", "W_i", "W_z")) for name in arrays):
        framework = "keras2"  # whose names Keras 1.2 has already where gates lie side by side
    bias = arrays.get("bias", arrays.get("forward/bias"))
    if cell == "gru" and framework != "keras1" and bias is not None and bias.ndim == 1:
        cell = "gru_reset_before"
    return f"{framework}.{cell}"


def by_shapes(
    name: str, arrays: Mapping[str, Array], names: Mapping[str, str], follows: str | None
) -> Module | None:
    """A layer of which only arrays are known."""
    frameworks = ("keras",) if any("/vars/" in place for place in names.values()) else FRAMEWORKS
    known = [one for one in records().values() if one.name.partition(".")[0] in frameworks]
    found = find({own: array.shape for own, array in arrays.items()}, known)
    if len(found) != 1 or found[0].prefix:
        return None
    return Module(name, tuple(found[0].layouts), dict(arrays), dict(names), follows=follows)


# ---- writing -----------------------------------------------------------------------------------------------

CLASSES = {
    "rnn": "SimpleRNN",
    "gru": "GRU",
    "gru_reset_before": "GRU",
    "lstm": "LSTM",
    "cudnn_gru": "CuDNNGRU",
    "cudnn_lstm": "CuDNNLSTM",
}
WRITERS = {
    ".keras": "write_model",
    ".weights.h5": "write_weights",
    ".h5": "write_legacy",
    ".hdf5": "write_legacy",
}


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Writes the modules as layers of a Keras model: all of a .keras file, or the weights of an .h5 file.

    Raises `FileError` for other layouts than Keras' own, and for arrays of other layers, which a Keras file
    has no place for.
    """
    if rest:
        raise FileError(f"{path}: a new Keras file is of its recurrent layers alone; leave the rest out")
    ending = next(ending for ending in WRITERS if path.name.lower().endswith(ending))
    layers: list[NewLayer] = []
    for module in modules:
        layers += new_layers(path, module, WRITERS[ending] == "write_legacy", len(layers))
    getattr(writers, WRITERS[ending])(path, layers, force)


def new_layers(path: Path, module: Module, legacy: bool, count: int) -> list[NewLayer]:
    """The Keras layers that a module is."""
    framework, _, cell = module.layout.partition(".")
    if framework not in ("keras", "keras2") or cell not in CLASSES:
        raise FileError(f"{path}: a Keras file takes the layouts keras.* and keras2.*, not {module.layout}")
    if not legacy and (framework == "keras2" or cell.startswith("cudnn")):
        raise FileError(f"{path}: {module.layout} is of Keras 2; write an .h5 file, or convert to keras.*")
    by_layer = layer_arrays(module)
    both = module.told().directions > 1
    class_name = "Bidirectional" if both else CLASSES[cell]
    names = names_of(module, len(by_layer), count)
    config = configuration(module, cell)
    if both:
        mode = {ours: theirs for theirs, ours in MERGES.items()}[module.merge]
        inner: dict[str, Any] = {"class_name": CLASSES[cell], "config": config}
        config = {"merge_mode": mode, "layer": inner}
    return [NewLayer(name, class_name, arrays, config) for name, arrays in zip(names, by_layer, strict=True)]


def names(modules: Iterable[Module]) -> list[str]:
    """What the layers of modules are called in a file that is written of them, in the order of the model: a
    file of weights has another.
    """
    known: list[str] = []
    for module in modules:
        known += names_of(module, module.told().layers, len(known))
    return known


def names_of(module: Module, layers: int, count: int) -> list[str]:
    """What the layers of a module are called behind so many others: as they were, where Keras takes that."""
    names = module.name.split(" + ")
    if len(names) == layers and all(name.replace("_", "").isalnum() for name in names):
        return names
    both, cell = module.told().directions > 1, module.layout.partition(".")[2]
    plain = "bidirectional" if both else CLASSES[cell].lower()
    return [f"{plain}_{place}" if place else plain for place in range(count, count + layers)]


def configuration(module: Module, cell: str) -> dict[str, Any]:
    """The settings of a layer, by Keras' names."""
    config: dict[str, Any] = {"return_sequences": True, "go_backwards": module.reverse}
    if cell.startswith("gru"):
        config["reset_after"] = cell == "gru"
    for field, setting in module.record.settings().items():
        value = module.semantics.get(field, setting.usual)
        config[setting.name] = (setting.values or {})[value]
    return config
