"""The recurrent layers of a Keras file as modules, and modules as a Keras file.

Layers and their settings are read from the configuration. In a file of weights alone they are recognised by
shapes, and the user is asked for what shapes leave open.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepnet.errors import FileError, LayoutError
from stepnet.files.damage import damaged_layers
from stepnet.files.keras import write as writers
from stepnet.files.keras.around import neutral, others
from stepnet.files.keras.config import ConfiguredLayer, Use
from stepnet.files.keras.file import KerasFile, KerasLayer
from stepnet.files.keras.file import read as read_layers
from stepnet.files.keras.lost import problems_of
from stepnet.files.keras.names import ACTIVATIONS, DIRECTIONS, DROPOUTS, INPUT, MERGES, MODELS, NOTES, PARTS
from stepnet.files.keras.new_layers import names_of, new_layers
from stepnet.files.keras.nodes import class_of, rows
from stepnet.files.keras.parts import LayerPart
from stepnet.files.keras.write import NewLayer
from stepnet.files.model import WEIGHTS, Array, FileContents, Module, among
from stepnet.files.others import Stated
from stepnet.layout.damaged import Damage
from stepnet.layout.find import find
from stepnet.layout.options import option
from stepnet.layout.registry import record, records

FRAMEWORKS = ("keras", "keras2", "keras1")
HDF5 = ("chainer",)  # frameworks with plain HDF5 files


def read(path: Path, layout: str | None = None, layouts: Mapping[str, str] | None = None) -> FileContents:
    """Reads the recurrent layers of a Keras file, each as a module, in the model's order.

    layout, layouts: the stated layout, of all modules and by name, for cells whose classes are not Keras'
    own, and for the layers of an HDF5 file that is not Keras'.
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
    """Adds to a Keras model the texts that name its layers which are no modules, also of those that change
    nothing, the names of its inputs, and why the file does not specify a whole model.
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
    """Returns why a file does not specify a whole model of one of Keras' own classes; "" if it does."""
    if file.config is None:
        return WEIGHTS
    own = class_of(file.config)
    return "" if own in MODELS else f"its model is a {own or 'class without a name'}, whose code it lacks"


def damaged_by_names(modules: Iterable[Module], rest: Mapping[str, Array]) -> tuple[Damage, ...]:
    """Finds recurrent layers with missing or misshapen arrays in `rest`, by the names of Keras 1 and 2."""
    full_names = {re.sub(r":\d+$", "", name): name for name in rest}
    shapes = {name: rest[full].shape for name, full in full_names.items()}
    layouts = [name for module in modules for name in module.layouts]
    return damaged_layers(shapes, full_names, layouts, FRAMEWORKS)


def stated(layers: Iterable[KerasLayer]) -> Iterator[tuple[str, Stated]]:
    """Yields (path, layer and part) of the arrays of dense layers and embeddings, by the file's classes."""
    for layer in layers:
        kind, most = PARTS.get(layer.class_name or "", ("", 0))
        if len(layer.arrays) <= most:
            for part, (_, place) in enumerate(layer.arrays):
                yield place, Stated(kind, layer.name, part)


def modules_of(
    path: Path, file: KerasFile, layout: str | None, layouts: Mapping[str, str]
) -> tuple[Module, ...]:
    """Converts the recurrent layers of a Keras file to modules, stepnet's form of layers, in order, each with
    the name of the module or layer that is its input. The cells of a stack become consecutive modules.

    layout, layouts: the layout that the user states, of all modules and by name.
    """
    modules, features = list[Module](), features_of(file.configured)
    ends: dict[str, str] = {}  # the last module of each layer that consists of consecutive modules
    for layer in file.layers:
        follows = follows_of(layer, ends)
        cells = [
            (part, module)
            for part in layer.parts
            if (module := of_part(path, file, layer, part, layout, layouts)) is not None
        ]
        made = both_ways(path, layer, cells)
        row = [layer.name] == [module.name for module in made] or (
            layer.class_name == "RNN" and len(cells) == len(layer.parts)
        )
        for place, module in enumerate(made):
            *front, own = module.name.split("/")
            stacked = front[-1:] == ["cells"] and own.isdecimal() and own != "0"
            below = "/".join((*front, str(int(own) - 1))) if stacked else follows if row else None
            made[place] = replace(module, follows=below)
            check_features(path, made[place], features.get(below or ""))
            if (width := width_of(module)) is not None:
                features[module.name] = width
        if row:
            ends[layer.name] = made[-1].name
        modules += made
    return tuple(modules)


def follows_of(layer: KerasLayer, ends: Mapping[str, str]) -> str | None:
    """Returns the name of the module or layer that computes a Keras layer's only input; "" if it has several
    inputs, None if the file does not specify them.

    ends: the last module of each layer that consists of consecutive modules.
    """
    if layer.use is None:
        return None
    name = layer.inputs[0] if len(layer.inputs) == 1 and not layer.use.more else ""
    return ends.get(name, name)


def of_part(
    path: Path,
    file: KerasFile,
    layer: KerasLayer,
    part: LayerPart,
    layout: str | None,
    layouts: Mapping[str, str],
) -> Module | None:
    """Converts a part of a Keras layer, such as a cell, to a module (recurrent layer); None if it has no
    known recurrent layout, or is of the program's own class and the user states no layout. Raises `FileError`
    if its arrays do not fit.

    layout, layouts: the layout that the user states, of all modules and by name.
    """
    arrays, names = {own: file.arrays[place] for own, place in part.arrays}, dict(part.arrays)
    name = "/".join((layer.name, *part.words))
    stated = layouts.get(name, layouts.get(layer.name, layout))
    if part.cell:
        check_config(path, name, part, arrays, (file.version or "").startswith("3"))
        candidates: tuple[str, ...] = (layout_of(file, part, arrays),)
    elif part.class_name and part.in_cell and stated is None:
        return None  # a cell defined by the program, which may compute anything from such arrays
    else:
        candidates = by_names(file, arrays)
    if not candidates:
        return None
    layout_record, use = record(candidates[0]), layer.use or Use()
    try:
        semantics = layout_record.translated(settings(part.config))
    except LayoutError as error:
        raise FileError(f"{path}: {name!r}: {error}") from error
    reverse = bool(part.run.get("go_backwards")) or (part.way == "backward" and not part.run)
    sequences = not part.run or bool(part.run.get("return_sequences"))  # a setting that is left out is False
    last = part.words[-2:-1] != ("cells",) or part.words == layer.parts[-1].words
    return Module(
        name,
        candidates,
        arrays,
        names,
        semantics=semantics,
        reverse=reverse,
        flipped=reverse and last and bool(part.run) and sequences and part.way != "backward",
        last_only=last and not sequences,
        states=last and bool(part.run.get("return_state")),
        returned=last and bool(part.run.get("return_state")) and use.states,
        notes=notes_of(use, part, candidates),
        use=tuple(uses(use, last, part.policies)),
        alone=alone_of(use, layer.timed or part.timed),
    )


def alone_of(use: Use, timed: str) -> str:
    """Returns why part of a Keras layer cannot run by itself, by the model's `use` of it; "" if it can."""
    reasons = [f"is run once for each step of {timed} (TimeDistributed)"] if timed else []
    if use.besides:
        reasons.append(f"starts from what other layers compute ({', '.join(use.besides)})")
    if use.calls > 1:
        reasons.append(f"is called {use.calls} times in its model")
    return " and ".join(reasons)


def uses(use: Use, last: bool, policies: Iterable[str]) -> Iterator[str]:
    """Yields notes for the user on how a Keras model uses a part other than by its outputs at all steps.

    last: True if the part's outputs are those of its layer. policies: the dtype policies that round its
    numbers.
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


def notes_of(use: Use, part: LayerPart, layouts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns notes for the user on settings of a Keras layer that no layout has, such as an initial state
    from outside.

    use: how the model uses the layer. part: the layer or a part of it. layouts: those that it may have.
    """
    named = [name for name in NOTES if name != "zero_output_for_mask" or not part.way]
    notes = [NOTES[name] for name in named if part.run.get(name)]
    if use.more and not use.besides:
        notes.append("its initial state is given when the model runs")
    if use.training and any(part.config.get(name) for name in DROPOUTS):
        notes.append("it drops out as in training whenever the model runs (training=True)")
    if part.class_name and not part.cell:
        notes.append(f"it is a {part.class_name}, taken for {' or '.join(layouts)} by its arrays' names")
    return tuple(notes)


def check_config(path: Path, name: str, part: LayerPart, arrays: Mapping[str, Array], current: bool) -> None:
    """Raises `FileError` if the arrays of a cell do not fit its configuration: in the number of units, the
    presence of a bias, or the rows of a GRU's bias.

    name: for messages. current: True if Keras 3 wrote it, where `reset_after` is True if it is left out.
    """
    units, recurrent, bias = part.config.get("units"), arrays.get("recurrent_kernel"), arrays.get("bias")
    if (type(units) is not int or units < 1) and "output_dim" not in part.config:
        raise FileError(
            f"{path}: {name!r} has units={repr(units)[:100]} in its configuration, and a number of units "
            "is expected there"
        )
    if recurrent is not None and recurrent.shape[:1] != (units,):
        raise FileError(
            f"{path}: {name!r} has {units} units, as its configuration says, and a recurrent_kernel of shape "
            f"{recurrent.shape}"
        )
    biased = part.config.get("use_bias")
    if biased is not None and recurrent is not None and bool(biased) != (bias is not None):
        expected = "a bias, and the file has none" if biased else "no bias, and the file has one"
        raise FileError(f"{path}: {name!r} has {expected}: its configuration says so")
    after = part.config.get("reset_after", True if current else None)
    if part.cell == "gru" and after is not None and bias is not None and bool(after) != (bias.ndim == 2):
        expected = "two rows of biases" if after else "one row of biases"
        raise FileError(
            f"{path}: {name!r} has reset_after={repr(after)[:100]} in its configuration, to which {expected} "
            f"belong, and a bias of shape {bias.shape}"
        )


def features_of(configured: Iterable[ConfiguredLayer]) -> dict[str, int]:
    """Returns the number of features of each input of a model whose configuration has one, by its name."""
    found = dict[str, int]()
    for layer in configured:
        shape = rows(layer.config.get("batch_shape", layer.config.get("batch_input_shape")))
        if layer.class_name == INPUT and shape and type(shape[-1]) is int:
            found[layer.name] = shape[-1]
    return found


def width_of(module: Module) -> int | None:
    """Returns the number of features of a module's outputs; None if its arrays or the merge of its directions
    do not say it.
    """
    units = [
        len(array) for name, array in module.arrays.items() if name.rpartition("/")[2] == "recurrent_kernel"
    ]
    if not units or module.merge is None:
        return None
    return sum(units) if module.merge == "concat" else units[0]


def check_features(path: Path, module: Module, features: int | None) -> None:
    """Raises `FileError` if a module has a kernel for another number of features than the module or the input
    of the model that it takes. features: those of this; None if it takes another layer, or they are not
    known.
    """
    for name, kernel in module.arrays.items():
        if features is not None and name.rpartition("/")[2] == "kernel" and kernel.shape[:1] != (features,):
            raise FileError(
                f"{path}: {module.name!r} takes {module.follows}, which has {features} features, as the "
                f"configuration says, and has a kernel of shape {kernel.shape}"
            )


# ---- both directions ---------------------------------------------------------------------------------------


def both_ways(path: Path, layer: KerasLayer, cells: Sequence[tuple[LayerPart, Module]]) -> list[Module]:
    """Returns the modules of a layer of both directions: a forward and a backward module are joined if they
    differ only in direction, and else marked as parts of a Bidirectional, which cannot run alone.

    cells: the layer's parts that are modules, with these.
    """
    by_words, modules = {part.words: cell_module for part, cell_module in cells}, list[Module]()
    for part, module in cells:
        front = part.words[:-1]
        name = "/".join((layer.name, *front))
        ways = [by_words.get((*front, way)) for way in DIRECTIONS.values()]
        forward, backward = ways
        if part.way is None:
            modules.append(module)
        elif forward is None or backward is None or not are_directions(forward, backward):
            modules.append(as_one_direction(path, part, module))
        elif module is forward:
            merge = merge_of(path, part, name)
            modules.append(joined(name, forward, backward, merge))
    return modules


def are_directions(forward: Module, backward: Module) -> bool:
    """Returns True if two modules differ only in direction, so that they can become one of both."""
    shapes = [{name: array.shape for name, array in way.arrays.items()} for way in (forward, backward)]
    same = forward.layouts == backward.layouts and forward.semantics == backward.semantics
    gives = [(way.last_only, way.states) for way in (forward, backward)]
    same = same and gives[0] == gives[1]
    return same and shapes[0] == shapes[1] and backward.reverse and not forward.reverse


def joined(name: str, forward: Module, backward: Module, merge: str | None) -> Module:
    """Joins a forward and a backward module as the directions of one; merge: how their outputs are merged."""
    ways = {"forward": forward, "backward": backward}
    return replace(
        forward,
        name=name,
        arrays={
            f"{way}/{own}": array for way, module in ways.items() for own, array in module.arrays.items()
        },
        names={f"{way}/{own}": place for way, module in ways.items() for own, place in module.names.items()},
        merge=merge,
    )


def as_one_direction(path: Path, part: LayerPart, module: Module) -> Module:
    """Marks a module (recurrent layer) as one direction of a Bidirectional, which cannot run by itself,
    unless there is another reason already. part: the module's part of the layer.
    """
    merge = merge_of(path, part, module.name)
    how = f" by {merge}" if merge else ""
    return replace(
        module, alone=module.alone or f"is one direction of a Bidirectional, which merges both{how}"
    )


def merge_of(path: Path, part: LayerPart, name: str) -> str | None:
    """Returns how the Bidirectional around a part merges its directions' outputs; None if the file does not
    specify it. Raises `FileError` if it does not merge them to one output. name: the part's, for messages.
    """
    if part.merge is None and not part.run:
        return None
    if not isinstance(part.merge, str) or part.merge not in MERGES:
        raise FileError(
            f"{path}: {name!r} has merge_mode {str(part.merge)[:100]!r}, which gives no one output"
        )
    return MERGES[part.merge]


# ---- layouts -----------------------------------------------------------------------------------------------


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the activations in a configuration by their names since Keras 2; None becomes "linear"."""
    spellings = {name if name in config else once: name for once, name in ACTIVATIONS.items()}
    return {name: config[written] or "linear" for written, name in spellings.items() if written in config}


def layout_of(file: KerasFile, part: LayerPart, arrays: Mapping[str, Array]) -> str:
    """Returns the layout, such as "keras.gru", of one of Keras' own cells (`part`), in the version of Keras
    that wrote the file; a GRU's also depends on its reset, by the setting or the shape of the bias.
    """
    cell = str(part.cell)
    if cell.startswith("cudnn"):
        return f"keras.{cell}"
    version = (file.version or "3").partition(".")[0]
    framework = {"1": "keras1", "2": "keras2"}.get(version, "keras")
    if framework == "keras1" and not any(name.endswith(("W", "W_i", "W_z")) for name in arrays):
        framework = "keras2"  # Keras 1.2 uses its names for gates in a single array
    bias = arrays.get("bias")
    after = part.config.get("reset_after", True) if bias is None else bias.ndim == 2
    if cell == "gru" and framework != "keras1" and not after:
        cell = "gru_reset_before"
    return f"{framework}.{cell}"


def by_names(file: KerasFile, arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Returns the layouts that the arrays of a part of a layer (such as a cell) may have by their names and
    shapes, in the versions of Keras that may have written the file; () if none fits, or if they are several
    layers.
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
    """Writes the modules as layers of a Keras model: a .keras file, or the weights of an .h5 file.

    Raises `FileError` for other layouts than Keras' own, and for `rest`, arrays of other layers.
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
    """Returns the names of modules' layers in a new Keras file of weights, in the order of the model."""
    names_so_far: list[str] = []
    for module in modules:
        names_so_far += names_of(module, module.solved_sizes().layers, len(names_so_far))
    return names_so_far
