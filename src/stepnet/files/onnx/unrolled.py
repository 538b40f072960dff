"""Recurrent layers of PyTorch that an exporter wrote out step by step, by what it says of each node.

    pkg.torch.onnx.class_hierarchy   ['Model', 'torch.nn.modules.rnn.RNN', 'aten.linear.default']
    pkg.torch.onnx.name_scopes       ['', 'encoder.rnn', 'linear']

torch.onnx.export(dynamo=True) makes a node of an LSTM and of a GRU. Of an RNN, and of cells in a loop, it
makes products, whose weights have no names any more, and of the first step it keeps the result alone.

Source: torch/onnx/_internal/exporter/_core.py of PyTorch 2.13.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from stepnet.files.onnx.graph import Node
from stepnet.files.onnx.tensor import Proto, text

CLASSES, NAMES = "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"
RECURRENT = re.compile(r"torch\.nn\.modules\.rnn\.((?:RNN|GRU|LSTM)(?:Cell)?)")
QUOTED = re.compile(r"'([^']*)'")


def layer_of(node: Proto) -> tuple[str, str] | None:
    """The name and the class of the recurrent layer of PyTorch that a node is of; None for any other."""
    said = {text(entry.key): text(entry.value) for entry in node.metadata_props}
    classes, names = (QUOTED.findall(said.get(key, "")) for key in (CLASSES, NAMES))
    known = (
        (name, match[1])
        for name, class_name in zip(names, classes, strict=False)
        if (match := RECURRENT.fullmatch(class_name))
    )
    return next(known, None)


def unrolled(nodes: Iterable[Node], is_recurrent: Callable[[Node], bool]) -> Mapping[str, str]:
    """Why layers of a model are none of its recurrent nodes, by their names."""
    classes: dict[str, str] = {}
    whole: set[str] = set()
    for node in nodes:
        layer = layer_of(node.proto)
        if layer is not None:
            classes.setdefault(*layer)
            whole |= {layer[0]} if is_recurrent(node) else set()
    return {name: reason(name, class_name) for name, class_name in classes.items() if name not in whole}


def reason(name: str, class_name: str) -> str:
    """Why a layer is none of the recurrent nodes, and what to do."""
    nodes = "" if class_name.endswith("Cell") else "export it with dynamo=False, which makes nodes of it, or "
    return (
        f"{name or 'the model'} is a torch.nn.{class_name} that its exporter wrote out step by step, and no "
        f"layer any more: {nodes}convert its state dict"
    )
