"""The recurrent layers among the variables of a TensorFlow checkpoint or SavedModel: Keras' layers, and
cells.

    model/layer_with_weights-0/forward_layer/cell/kernel     the attributes of Keras' objects
    both/forward_lstm/lstm_cell/kernel                       or the names in the program
    rnn/basic_lstm_cell/kernel                               TensorFlow 1's cells

Keras' layers are recognised by the attributes in names, and by the names of a cell's weights. A checkpoint
has neither activations nor the merge of two directions. Other layers are found as in any file of arrays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from stepnet.layout.files.checkpoint import file
from stepnet.layout.files.keras.file import KerasFile, KerasLayer
from stepnet.layout.files.keras.modules import modules_of
from stepnet.layout.files.keras.names import DIRECTIONS
from stepnet.layout.files.keras.parts import CELL, STACK, KeyPath, Sublayer, paths_of, sublayer_at
from stepnet.layout.files.model import Array, FileContents, among

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # the end of each name that TensorFlow 2 saves
NEEDED = {"kernel", "recurrent_kernel"}
KERAS_3 = {"_layers", "_operations", "_functional", "_all_variables"}  # attributes of its models
ATTRIBUTES = ("cell", "cells", *DIRECTIONS)


def read(path: Path, layout: str | None = None, layouts: Mapping[str, str] | None = None) -> FileContents:
    """Reads the recurrent layers of a TensorFlow checkpoint as modules.

    layout: the layout (a framework's arrangement of weights) or the framework of all modules; layouts: the
    layouts of single modules, by name.
    """
    arrays = file.read(path)
    return model_of(
        path,
        arrays,
        by_names({name: name for name in arrays}, arrays, version_of(arrays)),
        ("tf1", "keras2"),
        layout,
        layouts or {},
    )


def model_of(
    path: Path,
    arrays: Mapping[str, Array],
    keras: KerasFile,
    frameworks: tuple[str, ...],
    layout: str | None,
    layouts: Mapping[str, str],
) -> FileContents:
    """Makes the contents of a file from its variables: Keras' layers become modules (recurrent layers); other
    modules are found by names and shapes among the remaining variables.

    arrays: all variables by name.
    keras: Keras' layers among them, with the names of their variables.
    frameworks: the frameworks whose layouts (arrangements of weights) the remaining variables probably have.
    layout, layouts: the layout that the user states, for all modules and for modules by name.
    """
    may_be_keras = layout is None or layout.startswith("keras")
    modules = modules_of(path, keras, layout, layouts) if may_be_keras else ()
    used = {name for module in modules for name in module.names.values()}
    rest = {name: array for name, array in arrays.items() if name not in used}
    names = {module.name for module in modules}
    other_layouts = {name: stated for name, stated in layouts.items() if name not in names}
    configured = {name for layer in keras.layers if layer.config is not None for _, name in layer.arrays}
    # Weights of cells whose classes are not Keras' own: no layer is looked for among them.
    configured_rest = {name: rest[name] for name in rest if may_be_keras and name in configured}
    unknown = {name: array for name, array in rest.items() if name not in configured_rest}
    others = among(str(path), unknown, frameworks, layout, other_layouts, suffix=VALUE)
    return replace(others, modules=(*modules, *others.modules), rest={**configured_rest, **others.rest})


def version_of(keys: Iterable[str]) -> str:
    """Returns the major version of Keras, "2" or "3", that wrote a checkpoint, by its variables' keys."""
    return "3" if any(KERAS_3 & {*key.split("/")} for key in keys) else "2"


def by_names(paths: Mapping[str, str], arrays: Mapping[str, Array], version: str) -> KerasFile:
    """Finds Keras' recurrent layers among the variables of a checkpoint by their names. Variables below the
    same path that are a cell's weights (kernel, recurrent_kernel and perhaps bias) become a cell of a layer.

    paths: {name of a variable: the path of attributes that leads to it, or its name in the program}. arrays:
    the variables by name, for the result. version: of Keras, "2" or "3".
    """
    folders: dict[KeyPath, dict[str, str]] = {}
    for name, path in paths.items():
        *steps, leaf = path.removesuffix(VALUE).split("/")
        folders.setdefault(tuple(steps), {})[leaf] = name
    cells = {steps: own for steps, own in folders.items() if {*own} - {"bias"} == NEEDED}
    owners: dict[KeyPath, list[tuple[KeyPath, KeyPath]]] = {}
    for steps in cells:
        owner, scope = split_at_layer(steps, cells)
        owners.setdefault(owner, []).append((scope, steps))
    layers: list[KerasLayer] = []
    for owner, held in owners.items():
        sublayers = tuple(
            Sublayer(words, arrays=tuple(cells[steps].items()))
            for words, (_, steps) in zip(cell_paths([scope for scope, _ in held]), held, strict=True)
        )
        names = [name for sublayer in sublayers for _, name in sublayer.arrays]
        title = owner if all(paths[name] == name for name in names) else layer_name(names)
        layers.append(KerasLayer("/".join(title), None, None, sublayers))
    return KerasFile(None, arrays, tuple(layers), version=version)


def layer_name(names: Iterable[str]) -> KeyPath:
    """Returns the name of the Keras layer to which all of these variables belong, as a tuple of its parts.

    >>> layer_name(["both/forward_gru/gru_cell/kernel", "both/backward_gru/gru_cell/kernel"])
    ('both',)
    """
    steps: list[str] = []
    for same in zip(*(name.split("/")[:-1] for name in names), strict=False):
        if len({*same}) > 1:
            break
        steps.append(same[0])
    return split_at_layer(tuple(steps), {})[0]


def cell_paths(scopes: list[KeyPath]) -> list[KeyPath]:
    """Returns the path of each cell in its Keras layer, in the form that layouts (arrangements of weights)
    use: ("forward",) for the forward cell.

    scopes: the paths of the cells in the file: attributes such as ("forward_layer", "cell"), or names in the
    program such as ("forward_gru", "gru_cell").
    """
    if any({*scope} & {*ATTRIBUTES} for scope in scopes):
        return [sublayer_at(scope, {}).path for scope in scopes]
    return paths_of(scopes, ordered=False)


def split_at_layer(steps: KeyPath, cells: Mapping[KeyPath, object]) -> tuple[KeyPath, KeyPath]:
    """Splits the path of a Keras cell in a checkpoint into the path of the layer that the cell belongs to,
    and the path from this layer to the cell.

    steps: the path of the cell. cells: the paths of all cells, to recognise the two directions of a layer.

    >>> split_at_layer(("model", "both", "forward_layer", "cell"), {})
    (('model', 'both'), ('forward_layer', 'cell'))
    >>> split_at_layer(("encoder", "gru_cell"), {})
    (('encoder',), ('gru_cell',))
    """
    inner = next((index for index, step in enumerate(steps) if step in ATTRIBUTES), None)
    if inner is not None:
        return steps[:inner], steps[inner:]
    end = len(steps)
    end -= end > 1 and CELL.fullmatch(steps[end - 1]) is not None
    end -= end > 1 and STACK.fullmatch(steps[end - 1]) is not None
    way, _, own = steps[end - 1].partition("_") if end > 1 else ("", "", "")
    opposite = {"forward": "backward", "backward": "forward"}.get(way)
    beside = (*steps[: end - 1], f"{opposite}_{own}", *steps[end:])
    return (steps[: end - 1], steps[end - 1 :]) if beside in cells else (steps[:end], steps[end:])
