"""Recurrent layers of PyTorch that the exporter unrolled, recognised by its metadata on nodes.

    pkg.torch.onnx.class_hierarchy   ['Model', 'torch.nn.modules.rnn.RNN', 'aten.linear.default']
    pkg.torch.onnx.name_scopes       ['', 'encoder.rnn', 'linear']

torch.onnx.export(dynamo=True) makes a node of an LSTM or a GRU. An RNN, and cells in a loop, become products:
their weights lose their names, and the first step is folded to its result.

Source: torch/onnx/_internal/exporter/_core.py of PyTorch 2.13.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from stepnet.layout.files.onnx.graph import GraphNode
from stepnet.layout.files.onnx.tensor import Proto, text

CLASSES, NAMES = "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"
RECURRENT = re.compile(r"torch\.nn\.modules\.rnn\.((?:RNN|GRU|LSTM)(?:Cell)?)")
QUOTED = re.compile(r"'([^']*)'")


def layer_of(node: Proto) -> tuple[str, str] | None:
    """Returns the name and class of the recurrent PyTorch layer that an ONNX node was exported from, by the
    metadata that the exporter wrote; None without one.
    """
    metadata = {text(entry.key): text(entry.value) for entry in node.metadata_props}
    classes, names = (QUOTED.findall(metadata.get(key, "")) for key in (CLASSES, NAMES))
    known = (
        (name, match[1])
        for name, class_name in zip(names, classes, strict=False)
        if (match := RECURRENT.fullmatch(class_name))
    )
    return next(known, None)


def unrolled(nodes: Iterable[GraphNode], is_recurrent: Callable[[GraphNode], bool]) -> Mapping[str, str]:
    """Returns the recurrent PyTorch layers that an exporter wrote as other nodes than ONNX's recurrent ones,
    so that they cannot be read: {name of the layer: message for the user}.

    nodes: all nodes of the model. is_recurrent: returns True for one of ONNX's recurrent nodes.
    """
    classes: dict[str, str] = {}
    as_nodes: set[str] = set()
    for node in nodes:
        layer = layer_of(node.proto)
        if layer is not None:
            classes.setdefault(*layer)
            as_nodes |= {layer[0]} if is_recurrent(node) else set()
    return {name: reason(name, class_name) for name, class_name in classes.items() if name not in as_nodes}


def reason(name: str, class_name: str) -> str:
    """Returns the message for a recurrent PyTorch layer that was exported step by step and so cannot be read;
    it says what to do instead. class_name: such as "LSTM" or "GRUCell".
    """
    nodes = "" if class_name.endswith("Cell") else "export it with dynamo=False, which makes nodes of it, or "
    return (
        f"{name or 'the model'} is a torch.nn.{class_name} that its exporter wrote out step by step, and no "
        f"layer any more: {nodes}convert its state dict"
    )
