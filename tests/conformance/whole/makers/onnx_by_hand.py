"""ONNX models written node by node, in the forms of exporters other than PyTorch's.

tf2onnx writes a layer of Keras as Transpose, LSTM, Squeeze and Transpose, with zeros of the batch's size as
initial states, and a loop of TensorFlow as Scan or Loop; skl2onnx writes models of rows.
"""

# pyright: basic

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from drawn_inputs import Input, real, tokens
from onnx import TensorProto, helper, numpy_helper

Made = tuple[bytes, dict[str, Input]]


class Writer:
    """Collects the nodes and constants of a graph."""

    def __init__(self, seed: int = 0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def add(self, operator: str, *inputs: str, count: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or a list of several."""
        names = [f"{operator}__{len(self.nodes)}:{number}" for number in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names if count > 1 else names[0]

    def constant(self, value: Any, dtype: str = "i8") -> str:
        """Adds a constant; returns its name."""
        name = f"const__{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def drawn(self, *shape: int) -> str:
        """Adds random weights; returns their name."""
        return self.constant(self.random.normal(0, 0.4, shape), "f4")

    def graph(
        self,
        inputs: Sequence[Any],
        outputs: Mapping[str, tuple[str, str]],
        dtypes: Mapping[str, int] | None = None,
    ) -> Any:
        """The graph, whose outputs are renamed: {new name: (name of the value, its axes)}."""
        for new, (old, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [old], [new]))
        dtypes = dtypes or {}
        values = [
            helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), sizes_of(axes))
            for name, (_, axes) in outputs.items()
        ]
        return helper.make_graph(self.nodes, "graph", inputs, values, self.constants)


def sizes_of(axes: str) -> list[Any]:
    """The sizes of axes, with names for those whose size is free."""
    names = {"N": "unk__1", "T": "unk__2"}
    return [names.get(axis) or int(axis) for axis in axes.split()]


def infos(inputs: Mapping[str, Input]) -> list[Any]:
    """The declarations of inputs, with names for the axes whose size is free."""
    return [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(np.dtype(each.dtype)),
            sizes_of(each.axes),
        )
        for name, each in inputs.items()
    ]


def model(graph: Any, inputs: dict[str, Input], opset: int, producer: str, **domains: int) -> Made:
    """A model of a graph."""
    versions = [helper.make_opsetid("", opset)]
    versions += [helper.make_opsetid(name.replace("_", "."), version) for name, version in domains.items()]
    made = helper.make_model(graph, opset_imports=versions, producer_name=producer, ir_version=8)
    return made.SerializeToString(), inputs


def zeros_of_batch(writer: Writer, x: str, hidden: int) -> str:
    """Writes zeros [1, batch, hidden], as tf2onnx does, from the shape of [batch, time, features]."""
    shape = writer.add("Cast", writer.add("Shape", x), to=TensorProto.INT32)
    batch = writer.add("Slice", shape, writer.constant([0]), writer.constant([1]), writer.constant([0]))
    size = writer.add(
        "Concat", writer.add("Cast", batch, to=TensorProto.INT64), writer.constant([hidden]), axis=0
    )
    return writer.add(
        "Unsqueeze", writer.add("Expand", writer.constant([0.0], "f4"), size), writer.constant([0])
    )


def keras_gru() -> Made:
    """Two GRU layers of Keras and a dense layer over the last step; opset 13."""
    writer, inputs = Writer(1), {"input_1": real("N T 5")}
    hidden = writer.add("Transpose", "input_1", perm=[1, 0, 2])
    for width in (5, 8):
        start = zeros_of_batch(writer, "input_1", 8)
        weights = writer.drawn(1, 24, width), writer.drawn(1, 24, 8), writer.drawn(1, 48)
        y, _ = writer.add(
            "GRU",
            hidden,
            *weights,
            "",
            start,
            count=2,
            hidden_size=8,
            direction="forward",
            linear_before_reset=1,
        )
        hidden = writer.add("Squeeze", y, writer.constant([1]))
    ends = writer.constant([-1]), writer.constant([np.iinfo("i8").max]), writer.constant([0])
    last = writer.add("Squeeze", writer.add("Slice", hidden, *ends), writer.constant([0]))
    scores = writer.add("Add", writer.add("MatMul", last, writer.drawn(8, 3)), writer.drawn(3))
    return model(
        writer.graph(infos(inputs), {"dense": (writer.add("Softmax", scores, axis=1), "N 3")}),
        inputs,
        13,
        "tf2onnx",
    )


def keras_bidirectional() -> Made:
    """A Bidirectional LSTM of Keras as two nodes, and a dense layer of all steps as one product; opset 11."""
    writer, inputs = Writer(2), {"input_1": tokens("N T", 25)}
    embedded = writer.add("Gather", writer.drawn(25, 6), "input_1")
    turned = writer.add("Transpose", embedded, perm=[1, 0, 2])
    halves = []
    for direction in ("forward", "reverse"):
        weights = writer.drawn(1, 28, 6), writer.drawn(1, 28, 7), writer.drawn(1, 56)
        y = writer.add("LSTM", turned, *weights, count=3, hidden_size=7, direction=direction)[0]
        halves.append(writer.add("Transpose", writer.add("Squeeze", y, axes=[1]), perm=[1, 0, 2]))
    joined = writer.add("Concat", *halves, axis=2)
    lead = writer.add(
        "Slice", writer.add("Shape", joined), writer.constant([0]), writer.constant([2]), writer.constant([0])
    )
    rows = writer.add("Reshape", joined, writer.constant([-1, 14]))
    product = writer.add("MatMul", rows, writer.drawn(14, 4))
    shaped = writer.add("Reshape", product, writer.add("Concat", lead, writer.constant([4]), axis=0))
    tags = writer.add("Softmax", writer.add("Add", shaped, writer.drawn(4)), axis=2)
    return model(writer.graph(infos(inputs), {"tags": (tags, "N T 4")}), inputs, 11, "tf2onnx")


def scan() -> Made:
    """A recurrence of two states as a Scan over time-major steps; opset 11."""
    writer, body, inputs = Writer(3), Writer(4), {"x": real("T N 4"), "h": real("N 6"), "level": real("N 6")}
    fed = body.add(
        "Add", body.add("MatMul", "x_t", body.drawn(4, 6)), body.add("MatMul", "h_in", body.drawn(6, 6))
    )
    h = body.add("Tanh", body.add("Add", fed, body.drawn(6)))
    kept = body.add("Mul", "level_in", body.constant(0.9, "f4"))
    level = body.add("Add", kept, body.add("Mul", h, body.constant(0.1, "f4")))
    inner = {"h_in": real("N 6"), "level_in": real("N 6"), "x_t": real("N 4")}
    outputs = {"h_out": (h, "N 6"), "level_out": (level, "N 6"), "y_t": (body.add("Sub", h, level), "N 6")}
    states = writer.add(
        "Scan", "h", "level", "x", count=3, body=body.graph(infos(inner), outputs), num_scan_inputs=1
    )
    scores = writer.add("MatMul", states[2], writer.drawn(6, 3))
    named = {"scores": (scores, "T N 3"), "h_last": (states[0], "N 6"), "level_last": (states[1], "N 6")}
    return model(writer.graph(infos(inputs), named), inputs, 11, "tf2onnx")


def loop() -> Made:
    """A recurrence as a Loop that takes steps by their numbers, as tf.while_loop becomes; opset 13."""
    writer, body, inputs = Writer(5), Writer(6), {"x": real("N T 4")}
    turned = writer.add("Transpose", "x", perm=[1, 0, 2])
    shape = writer.add("Shape", turned)
    steps = writer.add("Squeeze", writer.add("Gather", shape, writer.constant([0])), writer.constant([0]))
    start = writer.add("Squeeze", zeros_of_batch(writer, "x", 6), writer.constant([0]))
    x_t = body.add("Gather", turned, "i", axis=0)
    gate = body.add("Sigmoid", body.add("MatMul", body.add("Concat", x_t, "h_in", axis=1), body.drawn(10, 6)))
    made = body.add("Tanh", body.add("MatMul", x_t, body.drawn(4, 6)))
    h = body.add(
        "Add",
        body.add("Mul", gate, "h_in"),
        body.add("Mul", body.add("Sub", body.constant(1.0, "f4"), gate), made),
    )
    inner = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("h_in", TensorProto.FLOAT, sizes_of("N 6")),
    ]
    outputs = {"go_on": ("go", ""), "h_out": (h, "N 6"), "y_t": (h, "N 6")}
    graph = body.graph(inner, outputs, {"go_on": TensorProto.BOOL})
    last, stacked = writer.add("Loop", steps, writer.constant(True, "?"), start, count=2, body=graph)
    y = writer.add("Transpose", stacked, perm=[1, 0, 2])
    return model(
        writer.graph(infos(inputs), {"y": (y, "N T 6"), "last": (last, "N 6")}), inputs, 13, "tf2onnx"
    )


def rows_of_sklearn() -> Made:
    """A scaler and a perceptron of scikit-learn over rows, with labels and probabilities; opset 15."""
    writer, inputs = Writer(7), {"X": real("T 6", 3)}
    scaled = writer.add(
        "Scaler",
        "X",
        domain="ai.onnx.ml",
        offset=[0.1, -0.2, 0.3, 0.0, 0.5, -1.0],
        scale=[1.0, 0.5, 2.0, 1.0, 0.2, 0.3],
    )
    hidden = writer.add(
        "Relu", writer.add("Add", writer.add("MatMul", scaled, writer.drawn(6, 8)), writer.drawn(1, 8))
    )
    scores = writer.add("Add", writer.add("MatMul", hidden, writer.drawn(8, 3)), writer.drawn(1, 3))
    chances = writer.add("Softmax", scores, axis=-1)
    best = writer.add("ArgMax", chances, axis=1, keepdims=0)
    labels = writer.add("Gather", writer.constant([10, 20, 30]), best)
    graph = writer.graph(
        infos(inputs),
        {"label": (labels, "T"), "probabilities": (chances, "T 3")},
        {"label": TensorProto.INT64},
    )
    return model(graph, inputs, 15, "skl2onnx", ai_onnx_ml=3)


def peepholes() -> Made:
    """A bidirectional LSTM with peepholes, lengths and initial states, and a projection; opset 9."""
    writer = Writer(8)
    inputs = {
        "X": real("T N 4"),
        "seq_lens": Input("N", "lengths", dtype="i4"),
        "h0": real("2 N 5"),
        "c0": real("2 N 5"),
    }
    weights = writer.drawn(2, 20, 4), writer.drawn(2, 20, 5), writer.drawn(2, 40)
    y, h, c = writer.add(
        "LSTM",
        "X",
        *weights,
        "seq_lens",
        "h0",
        "c0",
        writer.drawn(2, 15),
        count=3,
        hidden_size=5,
        direction="bidirectional",
    )
    merged = writer.add("Reshape", writer.add("Transpose", y, perm=[0, 2, 1, 3]), writer.constant([0, 0, -1]))
    scores = writer.add("MatMul", merged, writer.drawn(10, 3))
    return model(
        writer.graph(infos(inputs), {"Y": (scores, "T N 3"), "Y_h": (h, "2 N 5"), "Y_c": (c, "2 N 5")}),
        inputs,
        9,
        "CNTK",
    )


BY_HAND = {
    "keras_gru": keras_gru,
    "keras_bidirectional": keras_bidirectional,
    "scan": scan,
    "loop": loop,
    "rows_of_sklearn": rows_of_sklearn,
    "peepholes": peepholes,
}
