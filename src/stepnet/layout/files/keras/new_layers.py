"""Modules as layers of a new Keras file: their classes, names, arrays and configurations."""

from pathlib import Path
from typing import Any

from stepnet.errors import FileError
from stepnet.layout.files.keras.names import BIDIRECTIONAL, CLASSES, MERGES
from stepnet.layout.files.keras.write import NewLayer
from stepnet.layout.files.model import Module
from stepnet.layout.files.stacks import layer_arrays


def new_layers(path: Path, module: Module, legacy: bool, count: int) -> list[NewLayer]:
    """Converts a module (one or more recurrent layers) to layers of a new Keras file; raises `FileError` for
    layouts (arrangements of weights) that such a file does not have.

    legacy: True for an .h5 file of Keras 2. count: the number of layers before, to number default names.
    """
    framework, _, cell = module.layout.partition(".")
    if framework not in ("keras", "keras2") or cell not in CLASSES:
        raise FileError(f"{path}: a Keras file takes the layouts keras.* and keras2.*, not {module.layout}")
    if not legacy and (framework == "keras2" or cell.startswith("cudnn")):
        raise FileError(f"{path}: {module.layout} is of Keras 2; write an .h5 file, or convert to keras.*")
    by_layer = layer_arrays(module)
    both = module.solved_sizes().directions > 1
    class_name = BIDIRECTIONAL if both else CLASSES[cell]
    names = names_of(module, len(by_layer), count)
    configs = [configuration(module, cell, last) for last in [*[False] * (len(by_layer) - 1), True]]
    if both:
        if module.merge is None:
            raise FileError(f"{path}: how {module.name!r} merges the outputs of its directions is not known")
        mode = {ours: theirs for theirs, ours in MERGES.items()}[module.merge]
        inner: list[dict[str, Any]] = [{"class_name": CLASSES[cell], "config": config} for config in configs]
        configs = [{"merge_mode": mode, "layer": layer} for layer in inner]
    layers = zip(names, by_layer, configs, strict=True)
    return [NewLayer(name, class_name, arrays, config) for name, arrays, config in layers]


def names_of(module: Module, layers: int, count: int) -> list[str]:
    """Returns the names of the Keras layers to which a module (one or more recurrent layers) is written: the
    module's own if Keras allows them, else default names with numbers, such as lstm_1.

    layers: the number of layers of the module. count: the number of layers before it in the file, with which
    the numbers begin.
    """
    names = list(module.parts)
    if len(names) == layers and all(name.replace("_", "").isalnum() for name in names):
        return names
    both, cell = module.solved_sizes().directions > 1, module.layout.partition(".")[2]
    plain = "bidirectional" if both else CLASSES[cell].lower()
    return [f"{plain}_{index}" if index else plain for index in range(count, count + layers)]


def configuration(module: Module, cell: str, last: bool) -> dict[str, Any]:
    """Returns the Keras configuration of one layer of a module (one or more recurrent layers): its outputs,
    direction and activations.

    cell: the cell in the name of the module's layout (arrangement of weights), such as "gru". last: True for
    the module's last layer, which alone may return only the last step or states.
    """
    returns_sequences = not (last and module.last_only)
    config: dict[str, Any] = {"return_sequences": returns_sequences, "go_backwards": module.reverse}
    config["return_state"] = last and module.returned
    if cell.startswith("gru"):
        config["reset_after"] = cell == "gru"
    for field, setting in module.record.settings().items():
        value = module.semantics.get(field, setting.usual)
        config[setting.name] = (setting.values or {})[value]
    return config
