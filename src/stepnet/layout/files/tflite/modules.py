"""The recurrent operators of a TFLite model as modules, and modules as a model."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepnet.errors import FileError, LayoutError
from stepnet.layout.files.model import Array, FileContents, Module, bare
from stepnet.layout.files.stacks import layer_arrays
from stepnet.layout.files.tflite import file
from stepnet.layout.files.tflite.node import TfliteNode
from stepnet.layout.files.tflite.write import write as write_nodes
from stepnet.layout.options import option
from stepnet.layout.registry import record


def read(path: Path) -> FileContents:
    """Reads a TFLite model: each recurrent operator as a module (recurrent layer), and the others by name.

    A module that runs backward and whose outputs no other module reads is `flipped`: its outputs stay in the
    order in which they are computed, last step first.
    """
    model = file.read(path)
    names = {node.name for node in model.nodes}
    modules = tuple(module(path, node, preceding_name(node, names)) for node in model.nodes)
    preceding = {module.follows for module in modules}
    modules = tuple(
        replace(module, flipped=module.reverse and module.name not in preceding) for module in modules
    )
    return FileContents(str(path), modules, layers=model.others, unspecified="")


def preceding_name(node: TfliteNode, names: Collection[str]) -> str:
    """Returns the name of the only operator, recurrent or not, whose outputs are the input of a recurrent
    TFLite operator, `node`. It is "" if there is no such operator or several, and if an operator that is not
    recurrent has the name of a recurrent one.

    names: the names of the recurrent operators.
    """
    if node.over:
        return "" if node.over in names else node.over
    return node.after[0] if len(node.after) == 1 else ""


def module(path: Path, node: TfliteNode, follows: str) -> Module:
    """Converts a recurrent TFLite operator to a module (layer in stepnet's form); raises `FileError` for a
    function that no layout (a framework's arrangement of weights) has. follows: the name of the operator that
    computes its input, or "".
    """
    where = f"{path}: {node.op} {node.name!r}"
    norms = [name for name in node.arrays if "layer_norm" in name]
    if norms:
        raise FileError(f"{where} normalises its layers ({norms[0]}), which is not read")
    layout = layout_of(node)
    settings: dict[str, Any] = dict(node.options)
    activation = settings.pop("fused_activation_function", None)
    if layout == "tflite.rnn":
        settings["fused_activation_function"] = activation
    elif activation != "TANH":
        raise FileError(f"{where} has the activation {activation}, and only TANH is read")
    try:
        semantics = record(layout).translated(settings)
    except LayoutError as error:
        raise FileError(f"{where}: {error}") from error
    return Module(
        node.name, (layout,), dict(node.arrays), semantics=semantics, follows=follows, reverse=node.reverse
    )


def layout_of(node: TfliteNode) -> str:
    """Returns the name of the layout (arrangement of weights) of a TFLite operator, such as "tflite.lstm", by
    the names of its weights. An LSTM without weights of an input gate has coupled gates.
    """
    names = {name.removeprefix("fw_").removeprefix("bw_") for name in node.arrays}
    if "input_weights" in names:
        return "tflite.rnn"
    if "weights" in names:
        return "tflite.basic_lstm"
    if "projection_weights" in names:
        return "tflite.lstm_projection"
    return "tflite.lstm" if "input_to_input_weights" in names else "tflite.lstm_coupled"


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Writes a TFLite model that runs the modules (recurrent layers) one after another, in float32, for one
    sequence of any length. rest: arrays of other layers, which it cannot hold: `FileError` if there are any.
    """
    if rest:
        remedy = option("rest", rest="drop")
        raise FileError(f"{path}: a new TFLite model holds only recurrent layers; say {remedy}")
    write_nodes(path, [node for module in modules for node in nodes_of(path, module)], force)


def nodes_of(path: Path, module: Module) -> list[TfliteNode]:
    """Converts a module (recurrent layers) to TFLite operators over sequences, one for each layer; raises
    `FileError` for layouts (arrangements of weights) that cannot be, and for directions that are not
    concatenated. path: the new file.
    """
    if not module.layout.startswith("tflite."):
        raise FileError(f"{path}: a TFLite model takes the layouts tflite.*, not {module.layout}")
    if module.layout == "tflite.basic_lstm":
        raise FileError(
            f"{path}: a new TFLite model runs whole sequences, and {module.layout} is the operator of one "
            "step; convert to tflite.lstm"
        )
    if module.merge != "concat":
        raise FileError(
            f"{path}: {module.name!r} merges its directions by {module.merge!r}, and TFLite does not"
        )
    ways = "BIDIRECTIONAL" if module.solved_sizes().directions > 1 else "UNIDIRECTIONAL"
    cell = "RNN" if module.layout == "tflite.rnn" else "LSTM"
    options: dict[str, Any] = {}
    for field, setting in module.record.settings().items():
        value = module.semantics.get(field, setting.usual)
        options[setting.name] = value if setting.values is None else setting.values[value]
    by_layer = layer_arrays(module)
    name = bare(module.name) or cell.lower()
    names = [f"{name}_{layer}" for layer in range(len(by_layer))] if len(by_layer) > 1 else [name]
    return [
        TfliteNode(node_name, f"{ways}_SEQUENCE_{cell}", arrays, options, reverse=module.reverse)
        for node_name, arrays in zip(names, by_layer, strict=True)
    ]
