"""The recurrent operators of a TFLite model as modules."""

from pathlib import Path
from typing import Any

from stepnet.errors import FileError, LayoutError
from stepnet.files import tflite
from stepnet.files.model import Array, Model, Module
from stepnet.layout.registry import record


def read(path: Path) -> Model:
    """The recurrent operators of a model, each a module."""
    nodes = tflite.read(path)
    return Model(str(path), tuple(module(path, node) for node in nodes))


def module(path: Path, node: tflite.TfliteNode) -> Module:
    """An operator as a module; raises `FileError` for a function that no layout says."""
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
    follows = node.after[0] if len(node.after) == 1 else None
    return Module(
        node.name, (layout,), dict(node.arrays), semantics=semantics, follows=follows, reverse=node.reverse
    )


def layout_of(node: tflite.TfliteNode) -> str:
    """The layout of an operator, by which weights it has."""
    names = {name.removeprefix("fw_").removeprefix("bw_") for name in node.arrays}
    if "weights" in names:
        return "tflite.rnn"
    if "projection_weights" in names:
        return "tflite.lstm_projection"
    return "tflite.lstm" if "input_to_input_weights" in names else "tflite.lstm_coupled"


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Refuses: a TFLite model is a whole program, which its own converter writes."""
    raise FileError(
        f"{path}: TFLite models are read, not written; write a .keras file and use TFLite's converter"
    )
