"""The recurrent layers of a Keras file as modules, and modules as a Keras file.

Layers and their settings are read from the configuration. In a file of weights alone they are recognised by
shapes, and the user is asked for what shapes leave open.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepnet.errors import FileError, LayoutError
from stepnet.layout.damaged import Damage
from stepnet.layout.files.damage import damaged_layers
from stepnet.layout.files.keras import write as writers
from stepnet.layout.files.keras.around import neutral, others
from stepnet.layout.files.keras.config import ConfiguredLayer, Use
from stepnet.layout.files.keras.directions import merged_directions
from stepnet.layout.files.keras.file import KerasFile, KerasLayer
from stepnet.layout.files.keras.file import read as read_layers
from stepnet.layout.files.keras.lost import problems_of
from stepnet.layout.files.keras.names import ACTIVATIONS, DROPOUTS, INPUT, MODELS, NOTES, PARTS
from stepnet.layout.files.keras.new_layers import names_of, new_layers
from stepnet.layout.files.keras.nodes import class_of, rows
from stepnet.layout.files.keras.parts import Sublayer
from stepnet.layout.files.keras.write import NewLayer
from stepnet.layout.files.model import WEIGHTS, Array, FileContents, Module, among
from stepnet.layout.files.others import Stated
from stepnet.layout.find import find
from stepnet.layout.options import option
from stepnet.layout.registry import record, records

FRAMEWORKS = ("keras", "keras2", "keras1")
HDF5 = ("chainer",)  # frameworks with plain HDF5 files


def read(path: Path, layout: str | None = None, layouts: Mapping[str, str] | None = None) -> FileContents:
    """Reads the recurrent layers of a Keras file, each as a module, in the model's order.

    layout, layouts: the stated layout (a framework's arrangement of weights), of all modules and by name, for
    cells whose classes are not Keras' own, and for the layers of an HDF5 file that is not Keras'.
    """
    file = read_layers(path)
    if file.foreign:
        return among(str(path), file.arrays, HDF5, layout, layouts)
    modules = modules_of(path, file, layout, layouts or {})
    used = {name for module in modules for name in module.names.values()}
    rest = {name: array for name, array in file.arrays.items() if name not in used}
    model = FileContents(
        str(path),
        modules,
        rest,
        stated=dict(stated(file.layers)),
        problems=problems_of(file, modules, rest),
        damaged=() if file.configured else damaged_by_names(modules, rest),
        ordered=file.ordered,
    )
    return with_architecture(model, file)


def with_architecture(model: FileContents, file: KerasFile) -> FileContents:
    """Adds the facts in a Keras file's configuration to its contents: texts that name the layers which were
    not read as modules (recurrent layers), with those that return their input unchanged, the names of its
    inputs, and a reason if the file does not specify a whole model. file: the layers of the file.
    """
    configured = file.configured
    return replace(
        model,
        layers=tuple(others(file, {module.name for module in model.modules})),
        neutral=tuple(neutral(layer.name, layer.class_name) for layer in configured if layer.passes),
        entrances=tuple(layer.name for layer in configured if layer.class_name == INPUT and not layer.wraps),
        unspecified=unspecified(file),
    )


def unspecified(file: KerasFile) -> str:
    """Returns why a file does not specify a whole model; "" if it does."""
    if file.config is None:
        return WEIGHTS
    own = class_of(file.config)
    return "" if own in MODELS else f"its model is a {own or 'class without a name'}, whose code it lacks"


def damaged_by_names(modules: Iterable[Module], rest: Mapping[str, Array]) -> tuple[Damage, ...]:
    """Finds recurrent layers with missing or misshapen arrays in `rest`, the arrays that are in no module, by
    the names of Keras 1 and 2. modules: the layers of the file that were read.
    """
    full_names = {re.sub(r":\d+$", "", name): name for name in rest}
    shapes = {name: rest[full].shape for name, full in full_names.items()}
    layouts = [name for module in modules for name in module.layouts]
    return damaged_layers(shapes, full_names, layouts, FRAMEWORKS)


def stated(layers: Iterable[KerasLayer]) -> Iterator[tuple[str, Stated]]:
    """Yields (path of an array, its meaning) for the arrays of dense layers and embeddings, which the file
    names by their classes. The meaning is the kind of layer, its name and the array's role in it.
    """
    for layer in layers:
        kind, most = PARTS.get(layer.class_name or "", ("", 0))
        if len(layer.arrays) <= most:
            for role, (_, path) in enumerate(layer.arrays):
                yield path, Stated(kind, layer.name, role)


def modules_of(
    path: Path, file: KerasFile, layout: str | None, layouts: Mapping[str, str]
) -> tuple[Module, ...]:
    """Converts the recurrent layers of a Keras file to modules, the form of layers in all of stepnet's
    readers, in order; each also names the module or layer that is its input. The cells of a stack become
    consecutive modules.

    path: of the file, for messages. layout, layouts: the layout (a framework's arrangement of weights) that
    the user states, for all modules and for modules by name.
    """
    modules, features = list[Module](), features_of(file.configured)
    ends: dict[str, str] = {}  # the last module of each layer that consists of consecutive modules
    for layer in file.layers:
        follows = follows_of(layer, ends)
        cells = [
            (sublayer, module)
            for sublayer in layer.sublayers
            if (module := module_of_sublayer(path, file, layer, sublayer, layout, layouts)) is not None
        ]
        layer_modules = merged_directions(path, layer, cells)
        row = [layer.name] == [module.name for module in layer_modules] or (
            layer.class_name == "RNN" and len(cells) == len(layer.sublayers)
        )
        for index, module in enumerate(layer_modules):
            *front, own = module.name.split("/")
            stacked = front[-1:] == ["cells"] and own.isdecimal() and own != "0"
            below = "/".join((*front, str(int(own) - 1))) if stacked else follows if row else None
            layer_modules[index] = replace(module, follows=below)
            check_features(path, layer_modules[index], features.get(below or ""))
            if (width := width_of(module)) is not None:
                features[module.name] = width
        if row:
            ends[layer.name] = layer_modules[-1].name
        modules += layer_modules
    return tuple(modules)


def follows_of(layer: KerasLayer, ends: Mapping[str, str]) -> str | None:
    """Returns the name of the module (recurrent layer) or other layer whose outputs are the only input of a
    Keras layer; "" if the layer has several inputs, None if the file does not specify them.

    ends: {name of a layer that consists of consecutive modules: name of its last module}.
    """
    if layer.use is None:
        return None
    name = layer.inputs[0] if len(layer.inputs) == 1 and not layer.use.more else ""
    return ends.get(name, name)


def module_of_sublayer(
    path: Path,
    file: KerasFile,
    layer: KerasLayer,
    sublayer: Sublayer,
    layout: str | None,
    layouts: Mapping[str, str],
) -> Module | None:
    """Converts a part (`sublayer`) of a Keras layer, such as a cell, to a module (recurrent layer); None if
    it has no known recurrent layout (a framework's arrangement of weights), or if its class is the program's
    own and the user states no layout. Raises `FileError` if its arrays do not fit.

    path: of the file, for messages. layout, layouts: the layout that the user states, for all modules and for
    modules by name.
    """
    arrays, names = {own: file.arrays[key] for own, key in sublayer.arrays}, dict(sublayer.arrays)
    name = "/".join((layer.name, *sublayer.path))
    stated = layouts.get(name, layouts.get(layer.name, layout))
    if sublayer.cell:
        check_config(path, name, sublayer, arrays, (file.version or "").startswith("3"))
        candidates: tuple[str, ...] = (layout_of(file, sublayer, arrays),)
    elif sublayer.class_name and (sublayer.in_cell or ">" in sublayer.class_name) and stated is None:
        return None  # a class of the program's own, which may compute anything from such arrays
    else:
        candidates = by_names(file, arrays)
    if not candidates:
        return None
    layout_record, use = record(candidates[0]), layer.use or Use()
    try:
        semantics = layout_record.translated(settings(sublayer.config))
    except LayoutError as error:
        raise FileError(f"{path}: {name!r}: {error}") from error
    reverse = bool(sublayer.run.get("go_backwards")) or (
        sublayer.direction == "backward" and not sublayer.run
    )
    sequences = not sublayer.run or bool(
        sublayer.run.get("return_sequences")
    )  # a setting that is left out is False
    row = [each.path for each in layer.sublayers if each.path[:-1] == sublayer.path[:-1]]
    last = sublayer.path[-2:-1] != ("cells",) or sublayer.path == row[-1]
    return Module(
        name,
        candidates,
        arrays,
        names,
        semantics=semantics,
        reverse=reverse,
        flipped=reverse and last and bool(sublayer.run) and sequences and sublayer.direction != "backward",
        last_only=last and not sequences,
        states=last and bool(sublayer.run.get("return_state")),
        returned=last and bool(sublayer.run.get("return_state")) and use.states,
        notes=notes_of(use, sublayer, candidates),
        use=tuple(uses(use, last, sublayer.policies)),
        alone=alone_of(use, layer.timed or sublayer.timed),
    )


def alone_of(use: Use, timed: str) -> str:
    """Returns why a part of a Keras layer, such as a cell, cannot be run by itself on the inputs of the
    layer; "" if it can. use: how the model uses the layer. timed: the name of the TimeDistributed that runs
    it once per step, or "".
    """
    reasons = [f"is run once for each step of {timed} (TimeDistributed)"] if timed else []
    if use.besides:
        reasons.append(f"starts from what other layers compute ({', '.join(use.besides)})")
    if use.calls > 1:
        reasons.append(f"is called {use.calls} times in its model")
    return " and ".join(reasons)


def uses(use: Use, last: bool, policies: Iterable[str]) -> Iterator[str]:
    """Yields notes for the user on a part of a Keras layer, such as a cell: if it rounds numbers or takes a
    mask, and if its outputs are only one of the model's outputs, or not among them.

    use: how the model uses the whole layer. last: True if the part's outputs are those of its layer.
    policies: the dtype policies that round the part's numbers.
    """
    for policy in policies:
        yield f"it computes in the dtypes of the policy {policy}"
    if last and use.outputs:
        yield f"it gives one of its model's {use.outputs} outputs"
    if last and use.bare:
        yield "its outputs are not outputs of its model"
    if use.lost:
        yield "no output of its model is computed from it"
    if use.masked:
        yield "its mask is given when the model runs"


def notes_of(use: Use, sublayer: Sublayer, layouts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns notes for the user on settings of a Keras layer that no layout (a framework's arrangement of
    weights) can express, such as an initial state from outside.

    use: how the model uses the layer. sublayer: the layer, or a part of it such as a cell. layouts: the
    layouts that it may have.
    """
    named = [name for name in NOTES if name != "zero_output_for_mask" or not sublayer.direction]
    notes = [NOTES[name] for name in named if sublayer.run.get(name)]
    if use.more and not use.besides:
        notes.append("its initial state is given when the model runs")
    if use.training and any(sublayer.config.get(name) for name in DROPOUTS):
        notes.append("it drops out as in training whenever the model runs (training=True)")
    if sublayer.class_name and not sublayer.cell:
        notes.append(f"it is a {sublayer.class_name}, taken for {' or '.join(layouts)} by its arrays' names")
    return tuple(notes)


def check_config(
    path: Path, name: str, sublayer: Sublayer, arrays: Mapping[str, Array], current: bool
) -> None:
    """Raises `FileError` if the arrays of a Keras cell do not fit its configuration: in the number of units,
    the presence of a bias, or the rows of a GRU's bias.

    path, name: of the file and of the cell, for messages. sublayer: the cell with its configuration. arrays:
    its arrays by name, such as "bias". current: True if Keras 3 wrote the file, where `reset_after` is True
    if it is left out.
    """
    units, recurrent, bias = sublayer.config.get("units"), arrays.get("recurrent_kernel"), arrays.get("bias")
    if (type(units) is not int or units < 1) and "output_dim" not in sublayer.config:
        raise FileError(
            f"{path}: {name!r} has units={repr(units)[:100]} in its configuration, and a number of units "
            "is expected there"
        )
    if recurrent is not None and recurrent.shape[:1] != (units,):
        raise FileError(
            f"{path}: {name!r} has {units} units, as its configuration says, and a recurrent_kernel of shape "
            f"{recurrent.shape}"
        )
    biased = sublayer.config.get("use_bias")
    if biased is not None and recurrent is not None and bool(biased) != (bias is not None):
        expected = "a bias, and the file has none" if biased else "no bias, and the file has one"
        raise FileError(f"{path}: {name!r} has {expected}: its configuration says so")
    after = sublayer.config.get("reset_after", True if current else None)
    if sublayer.cell == "gru" and after is not None and bias is not None and bool(after) != (bias.ndim == 2):
        expected = "two rows of biases" if after else "one row of biases"
        raise FileError(
            f"{path}: {name!r} has reset_after={repr(after)[:100]} in its configuration, to which {expected} "
            f"belong, and a bias of shape {bias.shape}"
        )


def features_of(configured: Iterable[ConfiguredLayer]) -> dict[str, int]:
    """Returns {input of a Keras model: its number of features}, where its configuration states it."""
    found = dict[str, int]()
    for layer in configured:
        shape = rows(layer.config.get("batch_shape", layer.config.get("batch_input_shape")))
        if layer.class_name == INPUT and shape and type(shape[-1]) is int:
            found[layer.name] = shape[-1]
    return found


def width_of(module: Module) -> int | None:
    """Returns the number of features of the outputs of a module (recurrent layer); None if it has no
    recurrent kernel, or if the merge of its two directions is unknown.
    """
    units = [
        len(array) for name, array in module.arrays.items() if name.rpartition("/")[2] == "recurrent_kernel"
    ]
    if not units or module.merge is None:
        return None
    return sum(units) if module.merge == "concat" else units[0]


def check_features(path: Path, module: Module, features: int | None) -> None:
    """Raises `FileError` if a kernel of a module (recurrent layer) is not for `features` inputs: the number
    of features of the module or model input whose outputs it takes; None if this is unknown. path: of the
    file, for messages.
    """
    for name, kernel in module.arrays.items():
        if features is not None and name.rpartition("/")[2] == "kernel" and kernel.shape[:1] != (features,):
            raise FileError(
                f"{path}: {module.name!r} takes {module.follows}, which has {features} features, as the "
                f"configuration says, and has a kernel of shape {kernel.shape}"
            )


# ---- layouts -----------------------------------------------------------------------------------------------


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the activations in the configuration of a Keras layer, by the names of these settings since
    Keras 2; None, which stands for no activation, becomes "linear".
    """
    spellings = {name if name in config else once: name for once, name in ACTIVATIONS.items()}
    return {name: config[written] or "linear" for written, name in spellings.items() if written in config}


def layout_of(file: KerasFile, sublayer: Sublayer, arrays: Mapping[str, Array]) -> str:
    """Returns the layout (format of weights), such as "keras.gru", of a recurrent cell of one of Keras' own
    classes (`sublayer`, with its arrays by name). It depends on the version of Keras that wrote the file; a
    GRU's also depends on its reset, by the setting or the shape of the bias.
    """
    cell = str(sublayer.cell)
    if cell.startswith("cudnn"):
        return f"keras.{cell}"
    version = (file.version or "3").partition(".")[0]
    framework = {"1": "keras1", "2": "keras2"}.get(version, "keras")
    if framework == "keras1" and not any(name.endswith(("W", "W_i", "W_z")) for name in arrays):
        framework = "keras2"  # Keras 1.2 uses its names for gates in a single array
    bias = arrays.get("bias")
    after = sublayer.config.get("reset_after", True) if bias is None else bias.ndim == 2
    if cell == "gru" and framework != "keras1" and not after:
        cell = "gru_reset_before"
    return f"{framework}.{cell}"


def by_names(file: KerasFile, arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Returns the layouts (arrangements of weights) that the arrays of a part of a layer (such as a cell) may
    have by their names and shapes, in the versions of Keras that may have written the file; () if none fits,
    or if they are several layers.
    """
    version = (file.version or "3").partition(".")[0]
    frameworks = {"2": ("keras2", "keras"), "3": ("keras",)}.get(version, FRAMEWORKS)
    shapes = {own: array.shape for own, array in arrays.items()}
    for group in [frameworks[:1], frameworks[1:]] if version == "2" else [frameworks]:
        candidates = [
            candidate for candidate in records().values() if candidate.name.partition(".")[0] in group
        ]
        matches = find(shapes, candidates)
        if len(matches) == 1 and not matches[0].prefix:
            return tuple(matches[0].layouts)
    return ()


# ---- writing -----------------------------------------------------------------------------------------------

WRITERS = {
    ".keras": "write_model",
    ".weights.h5": "write_weights",
    ".h5": "write_legacy",
    ".hdf5": "write_legacy",
}


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Writes modules (recurrent layers) as layers of a Keras model: a .keras file, or the weights of an .h5
    file.

    Raises `FileError` for other layouts (arrangements of weights) than Keras' own, and if there are arrays of
    other layers (`rest`). force: whether to replace an existing file.
    """
    if rest:
        remedy = option("rest", rest="drop")
        raise FileError(f"{path}: a new Keras file holds only recurrent layers; say {remedy}")
    ending = next(ending for ending in WRITERS if path.name.lower().endswith(ending))
    layers: list[NewLayer] = []
    for module in modules:
        layers += new_layers(path, module, WRITERS[ending] == "write_legacy", len(layers))
    getattr(writers, WRITERS[ending])(path, layers, force)


def names(modules: Iterable[Module]) -> list[str]:
    """Returns the names of modules' layers in a new Keras file of weights, in the model's order."""
    names_so_far: list[str] = []
    for module in modules:
        names_so_far += names_of(module, module.solved_sizes().layers, len(names_so_far))
    return names_so_far
