"""The recurrent nodes of an ONNX model as modules, and modules as a model."""

from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import FileError, LayoutError
from stepnet.layout.files.model import Array, FileContents, Module, bare
from stepnet.layout.files.onnx import file
from stepnet.layout.files.onnx.node import STATES, WEIGHTS, OnnxNode
from stepnet.layout.files.onnx.write import write as write_nodes
from stepnet.layout.files.stacks import layer_arrays
from stepnet.layout.options import option
from stepnet.layout.registry import record

ALPHAS = {"HardSigmoid": 0.2, "Elu": 1.0}  # stepnet's values of the parameters of activations
BETAS = {"HardSigmoid": 0.5}
BEGINS = {
    "constant": "is a constant in the file, which is left out",
    "given": "is given when the model runs",
    "computed": "is what other nodes compute",
}


def read(path: Path) -> FileContents:
    """Reads an ONNX model, each recurrent node as a module (recurrent layer), and lists all else in it."""
    model = file.contents(path)
    modules = tuple(module(path, node) for node in model.nodes)
    return FileContents(str(path), modules, model.rest, model.others, problems=model.unrolled, unspecified="")


def module(path: Path, node: OnnxNode) -> Module:
    """Converts a recurrent ONNX node to a module (a layer): its weights and settings, what it takes and
    returns, and notes on its initial state. Raises `FileError` for a function that no layout (a framework's
    arrangement of weights) has.
    """
    layout = f"onnx.{node.op.lower()}"
    attributes = node.attributes
    where = f"{path}: {node.op} {node.name!r}"
    if attributes.get("input_forget"):
        raise FileError(f"{where} has input_forget=1, which runtimes understand differently")
    count = len(attributes["activations"]) // node.directions
    activations, backward = attributes["activations"][:count], attributes["activations"][count:]
    if backward and activations != backward:
        raise FileError(
            f"{where} has other activations in each direction: {', '.join(activations + backward)}"
        )
    for numbers, defaults in (
        (attributes["activation_alpha"], ALPHAS),
        (attributes["activation_beta"], BETAS),
    ):
        for name, number in zip(attributes["activations"], numbers, strict=True):
            if number is not None and number != defaults.get(name):
                raise FileError(f"{where} has the activation {name} with {number}, which is not read")
    settings: dict[str, Any] = {f"activations[{index}]": name for index, name in enumerate(activations)}
    settings["clip"] = float(attributes["clip"] or 0)
    if "linear_before_reset" in attributes:
        settings["linear_before_reset"] = attributes["linear_before_reset"]
    try:
        semantics = record(layout).translated(settings)
    except LayoutError as error:
        raise FileError(f"{where}: {error}") from error
    computed = [slot for slot in STATES if node.begins.get(slot) == "computed"]
    begins = {slot: kind for slot, kind in node.begins.items() if slot not in computed}
    notes = [
        f"{slot} {BEGINS[kind]}" for slot, kind in begins.items() if slot in STATES or kind != "computed"
    ]
    return Module(
        node.name,
        (layout,),
        {name: node.arrays[name] for name in WEIGHTS if name in node.arrays},
        semantics=semantics,
        follows=node.after,
        reverse=attributes["direction"] == "reverse",
        last_only="Y_h" in node.gives and "Y" not in node.gives,
        states="Y_c" in node.gives or {"Y", "Y_h"} <= {*node.gives},
        notes=tuple(notes),
        alone=f"starts from what other nodes compute ({' and '.join(computed)})" if computed else "",
        besides=tuple(node.constants),
    )


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Writes an ONNX model that runs the modules (recurrent layers) one after another, for any batch and
    number of steps.

    rest: arrays of other layers, which it cannot hold: `FileError` if there are any, and for an existing file
    unless `force`.
    """
    if rest:
        remedy = option("rest", rest="drop")
        raise FileError(f"{path}: a new ONNX model holds only recurrent layers; say {remedy}")
    nodes = [node for module in modules for node in nodes_of(module, path)]
    write_nodes(path, nodes, force, last_only=modules[-1].last_only)


def nodes_of(module: Module, path: Path) -> list[OnnxNode]:
    """Converts a module (recurrent layers) to ONNX nodes, one for each layer; raises `FileError` for other
    layouts (arrangements of weights) than ONNX's, and for directions that are not concatenated. path: for
    messages.
    """
    if not module.layout.startswith("onnx."):
        raise FileError(f"{path}: an ONNX model takes the layouts onnx.*, not {module.layout}")
    if module.merge != "concat":
        raise FileError(
            f"{path}: {module.name!r} merges its directions by {module.merge!r}, and ONNX does not"
        )
    settings = {
        setting.name: module.semantics.get(field, setting.usual)
        if setting.values is None
        else setting.values[module.semantics.get(field, setting.usual)]
        for field, setting in module.record.settings().items()
    }
    sizes = module.solved_sizes()
    names = [settings[f"activations[{index}]"] for index in range(3) if f"activations[{index}]" in settings]
    names = names * sizes.directions
    attributes: dict[str, Any] = {
        "direction": "bidirectional" if sizes.directions > 1 else "reverse" if module.reverse else "forward",
        "activations": tuple(names),
        "activation_alpha": tuple(ALPHAS.get(name) for name in names),
        "activation_beta": tuple(BETAS.get(name) for name in names),
        "clip": settings["clip"] or None,
        "hidden_size": sizes.hidden,
    }
    if "linear_before_reset" in settings:
        attributes["linear_before_reset"] = settings["linear_before_reset"]
    op = module.layout.removeprefix("onnx.").upper()
    several = sizes.layers > 1
    return [
        OnnxNode(
            f"{bare(module.name) or op.lower()}{f'_{layer}' if several else ''}",
            op,
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            attributes,
        )
        for layer, arrays in enumerate(layer_arrays(module))
    ]
