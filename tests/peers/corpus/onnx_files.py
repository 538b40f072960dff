"""The models of PyTorch's two exporters for ONNX, and nodes as people write them by hand."""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from specimens import HIDDEN, INPUTS, ROWS, STEPS, Specimens, pack, random
from torch import nn

NUMBER, WHOLE = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
EVERY = {"batch_first": True}


class Layers(nn.Module):
    """An LSTM and a GRU of two layers in both directions, with a dense layer between them."""

    def __init__(self):
        super().__init__()
        self.lower = nn.LSTM(INPUTS, HIDDEN, **EVERY)
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.upper = nn.GRU(HIDDEN, HIDDEN, 2, bidirectional=True, **EVERY)

    def forward(self, x):
        return self.upper(self.dense(self.lower(x)[0]))[0]


def run(model, **inputs):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def without_places(path):
    """Takes from a model what says where its source lay on the machine that made it."""
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, path)


def node_numbers(path):
    """The results of each recurrent node of a model for inputs [rows, steps, numbers], run by itself."""
    model = onnx.load(path)
    held = {one.name: one for one in model.graph.initializer}
    known, below = {}, None
    for node in model.graph.node:
        if node.op_type not in ("RNN", "GRU", "LSTM"):
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _, _, width = held[node.input[1]].dims
        empty = [name if name in held else "" for name in node.input[1:4]]
        del copy.input[:], copy.output[:]
        copy.input.extend(["x", *empty])
        copy.output.extend(["y"])
        graph = helper.make_graph(
            [copy],
            "one",
            [helper.make_tensor_value_info("x", NUMBER, ["s", "b", width])],
            [helper.make_tensor_value_info("y", NUMBER, None)],
            [held[name] for name in empty if name],
        )
        one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
        x = random(ROWS, STEPS, width)
        known[node.name] = x, over(one, x)
        if below is not None and below.op_type == node.op_type:  # the next layer of one
            x, y = known[below.name]
            known[f"{below.name} + {node.name}"] = x, over(one, y)
        below = node
    return known


def over(model, x):
    """The outputs of a model of one node, [batch, steps, features] as its inputs."""
    y = run(model.SerializeToString(), x=np.ascontiguousarray(x.transpose(1, 0, 2)))
    return y.transpose(2, 0, 1, 3).reshape(len(x), STEPS, -1)


def by_hand(path, nodes, lengths=False):
    """A model of recurrent nodes one after another: op, name, inputs, and attributes."""
    drawn, held, before = [], [], "x"
    fed = [helper.make_tensor_value_info("x", NUMBER, ["s", "b", nodes[0][2]])]
    if lengths:
        fed.append(helper.make_tensor_value_info("lengths", WHOLE, ["b"]))
    for op, name, width, options in nodes:
        ways = 2 if options.get("direction") == "bidirectional" else 1
        rows = {"RNN": 1, "GRU": 3, "LSTM": 4}[op] * HIDDEN
        for letter, shape in {"W": (rows, width), "R": (rows, HIDDEN), "B": (2 * rows,)}.items():
            held.append(numpy_helper.from_array(random(ways, *shape), f"{name}.{letter}"))
        weights = [f"{name}.{letter}" for letter in "WRB"]
        inputs = [before, *weights, *(["lengths"] if lengths else [])]
        drawn.append(helper.make_node(op, inputs, [f"{name}.y"], name, hidden_size=HIDDEN, **options))
        held.append(numpy_helper.from_array(np.array([0, 0, -1]), f"{name}.shape"))
        drawn.append(helper.make_node("Transpose", [f"{name}.y"], [f"{name}.t"], perm=[0, 2, 1, 3]))
        drawn.append(helper.make_node("Reshape", [f"{name}.t", f"{name}.shape"], [f"{name}.o"]))
        before = f"{name}.o"
    given = [helper.make_tensor_value_info(before, NUMBER, ["s", "b", "o"])]
    graph = helper.make_graph(drawn, "by hand", fed, given, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def save(made, folder):
    model, x = Layers().eval(), torch.zeros(ROWS, STEPS, INPUTS)
    for name, dynamo in (("exported", True), ("traced", False)):
        path = folder / f"{name}.onnx"
        torch.onnx.export(model, (x,), path, dynamo=dynamo, external_data=False, verbose=False)
        without_places(path)
        made.add(path.name, f"torch.onnx.export, dynamo={dynamo}", node_numbers(path))
    hand = [
        ("RNN", "first", INPUTS, {"direction": "bidirectional", "activations": ["Relu", "Relu"]}),
        ("GRU", "second", 2 * HIDDEN, {"direction": "reverse", "linear_before_reset": 1}),
        ("LSTM", "third", HIDDEN, {}),
    ]
    path = folder / "by_hand.onnx"
    by_hand(path, hand)
    known, x = node_numbers(path), random(ROWS, STEPS, INPUTS)
    y = run(str(path), x=np.ascontiguousarray(x.transpose(1, 0, 2)))
    known["*"] = x, y.transpose(1, 0, 2)
    made.add(path.name, "by hand: RNN with relu in both directions, GRU from the end, LSTM", known)
    for name, options in (("before", {"linear_before_reset": 0}), ("lengths", {"linear_before_reset": 1})):
        path = folder / f"{name}.onnx"
        by_hand(path, [("GRU", "gru", INPUTS, options)], lengths=name == "lengths")
        made.add(path.name, f"by hand: {name}", node_numbers(path))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    versions = {"torch": torch.__version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    made = Specimens(versions)
    with TemporaryDirectory() as name:
        save(made, Path(name))
        pack("onnx", Path(name), made)
