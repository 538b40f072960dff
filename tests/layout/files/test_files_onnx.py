"""ONNX models: what exporters write is read, what is written runs, and hostile ones are refused."""

import os
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from constants import Constants
from containers import refusal
from tolerance import assert_close
from zoo import normal

from stepnet.errors import FileError, InputError
from stepnet.layout.files.onnx import graph as onnx_graph
from stepnet.layout.files.onnx.file import contents, read
from stepnet.layout.files.onnx.node import OnnxNode
from stepnet.layout.files.onnx.write import write

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
helper, numpy_helper, Tensor = onnx.helper, onnx.numpy_helper, onnx.TensorProto

ORDER = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}  # torch's gates, in the order of ONNX's
ALLOWED = "far more than the file has; --most BYTES ahead of the command (Python: most=BYTES) allows more"
CELLS = [("RNN", "tanh"), ("RNN", "relu"), ("GRU", ""), ("LSTM", "")]


# ---- torch's layers


def module(op: str, function: str = "", layers: int = 1, both: bool = False, **more: Any) -> Any:
    torch.manual_seed(layers + 2 * both)
    options = {"nonlinearity": function} if function else {}
    made = getattr(torch.nn, op)(
        3, 4, num_layers=layers, bidirectional=both, batch_first=True, **options, **more
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made.eval()


def blocks(op: str, array: Any) -> np.ndarray:
    """A parameter of torch with its gates in the order of ONNX's."""
    gates = np.split(array.detach().numpy(), len(ORDER[op]))
    return np.concatenate([gates[index] for index in ORDER[op]])


def arrays_of(op: str, made: Any, layer: int) -> dict[str, np.ndarray]:
    """The parameters of one layer of torch as those of an ONNX node."""
    ends = [f"l{layer}{end}" for end in ("", "_reverse")[: 1 + made.bidirectional]]
    found = {
        name: [blocks(op, getattr(made, f"{kind}_{end}")) for end in ends]
        for name, kind in (("W", "weight_ih"), ("R", "weight_hh"), ("Wb", "bias_ih"), ("Rb", "bias_hh"))
    }
    biases = [np.concatenate(pair) for pair in zip(found["Wb"], found["Rb"], strict=True)]
    return {"W": np.stack(found["W"]), "R": np.stack(found["R"]), "B": np.stack(biases)}


def described(op: str, function: str, made: Any) -> list[OnnxNode]:
    attributes: dict[str, Any] = {"direction": "bidirectional" if made.bidirectional else "forward"}
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    if function:
        attributes["activations"] = (function.capitalize(),) * (1 + made.bidirectional)
    return [
        OnnxNode(f"layer{index}", op, arrays_of(op, made, index), attributes)
        for index in range(made.num_layers)
    ]


class Only(torch.nn.Module):
    """A layer without its final state."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


def exported(path: Path, made: Any, dynamic: bool = True) -> Path:
    axes = {"x": {0: "batch", 1: "time"}} if dynamic else None
    with warnings.catch_warnings():  # torch warns of its older exporter, and of batches other than 1
        warnings.simplefilter("ignore")
        example = (torch.randn(2, 5, 3),)
        torch.onnx.export(Only(made), example, path, dynamo=False, dynamic_axes=axes, input_names=["x"])
    return path


def same(found: Any, right: Any) -> None:
    assert found.keys() == right.keys()
    for name, array in right.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


# ---- what exporters write


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("op", "function", "layers", "both"),
    [("GRU", "", 2, True), ("LSTM", "", 2, True), ("LSTM", "", 1, False), ("RNN", "relu", 2, False)],
)
def test_what_torch_exports(tmp_path: Path, op: str, function: str, layers: int, both: bool, dynamic: bool):
    made = module(op, function, layers, both)
    found = read(exported(tmp_path / "model.onnx", made, dynamic))
    assert [node.op for node in found] == [op] * layers
    assert [node.after for node in found] == ["", *(node.name for node in found[:-1])]
    for index, node in enumerate(found):
        same(node.arrays, arrays_of(op, made, index))
        assert node.directions == 1 + both
        assert node.fed == ()  # states of zeros are none
        assert node.attributes["hidden_size"] == 4
        assert node.attributes["layout"] == 0
    if op == "GRU":
        assert {node.attributes["linear_before_reset"] for node in found} == {1}
    if function:
        assert {node.attributes["activations"] for node in found} == {("Relu",)}
    assert found[0].inputs[-1] == "x"


def test_what_torch_exports_by_onnxscript(tmp_path: Path):
    pytest.importorskip("onnxscript")
    made, path = module("LSTM", "", 2, True), tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Only(made), (torch.randn(2, 5, 3),), path, dynamo=True, verbose=False)
    found = read(path)
    assert [node.after for node in found] == ["", found[0].name]
    for index, node in enumerate(found):
        same(node.arrays, arrays_of("LSTM", made, index))


def test_the_rest_of_a_model_is_given_by_name(tmp_path: Path):
    made = torch.nn.Sequential(Only(module("GRU")), torch.nn.Linear(4, 2))
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(made, (torch.randn(2, 5, 3),), path, dynamo=False)
    found = contents(path).rest
    np.testing.assert_array_equal(found["1.bias"], made[1].bias.detach().numpy())
    others = [array for name, array in found.items() if name != "1.bias"]
    np.testing.assert_array_equal(others[0], made[1].weight.detach().numpy().T)
    assert len(others) == 1


# ---- models composed by hand


W, R, B = normal(1, 12, 3), normal(1, 12, 4), normal(1, 24)


def model(nodes: list[Any], constants: Any = (), inputs: Any = ("x",), **more: Any) -> Any:
    """A model of those nodes; constants are tensors, or arrays by name."""
    tensors = [numpy_helper.from_array(a, n) for n, a in constants.items()] if constants else []
    given = [helper.make_tensor_value_info(name, Tensor.FLOAT, ["t", "n", 3]) for name in inputs]
    graph = helper.make_graph(nodes, "model", given, [], tensors)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)], **more)


def saved(path: Path, nodes: Any, constants: Any = (), **more: Any) -> Path:
    path.write_bytes(model(nodes, constants, **more).SerializeToString())
    return path


def gru(*inputs: str, name: str = "gru", **attributes: Any) -> Any:
    return helper.make_node("GRU", list(inputs), ["y", "y_h"], name, hidden_size=4, **attributes)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_attributes_have_the_defaults_of_onnx(path: Path):
    (found,) = read(saved(path, [gru("x", "w", "r")], {"w": W, "r": R}))
    same(found.arrays, {"W": W, "R": R})
    assert found.name == "gru"
    assert found.attributes == {
        "direction": "forward",
        "hidden_size": 4,
        "activations": ("Sigmoid", "Tanh"),
        "activation_alpha": (None, None),
        "activation_beta": (None, None),
        "clip": None,
        "linear_before_reset": 0,
        "layout": 0,
    }


def test_numbers_of_activations_go_to_those_that_take_them(path: Path):
    lstm = helper.make_node(
        "LSTM",
        ["x", "w", "r", "", "lengths", "", "", "p"],
        ["y"],
        activations=["HardSigmoid", "ScaledTanh", "leakyrelu"],
        activation_alpha=[0.3, 1.7],
        activation_beta=[0.25],
        clip=3.5,
        input_forget=1,
    )
    arrays = {"w": normal(1, 16, 3), "r": normal(1, 16, 4), "p": normal(1, 12)}
    (found,) = read(saved(path, [lstm], arrays))
    same(found.arrays, {"W": arrays["w"], "R": arrays["r"], "P": arrays["p"]})
    assert found.name == "y"
    assert found.attributes["activations"] == ("HardSigmoid", "ScaledTanh", "LeakyRelu")
    assert found.attributes["activation_alpha"] == (0.3, 1.7, 0.01)
    assert found.attributes["activation_beta"] == (0.25, None, None)
    assert (found.attributes["clip"], found.attributes["input_forget"]) == (3.5, 1)
    assert found.fed == ("sequence_lens",)


def test_weights_that_nodes_move_about_are_followed(path: Path):
    """As exporters write them: transposed, joined, cut, cast, and in constants."""
    halves = W.astype(np.float16)
    nodes = [
        helper.make_node("Constant", [], ["axes"], value_ints=[0]),
        helper.make_node("Constant", [], ["biases"], value=numpy_helper.from_array(B[0])),
        node("Unsqueeze", "biases axes", "b"),
        node("Transpose", "kernel", "turned", perm=[1, 0]),
        node("Identity", "turned", "same"),
        node("Cast", "same", "wide", to=Tensor.FLOAT),
        node("Reshape", "wide shape", "w"),
        node("Split", "long", "first second", axis=1),
        node("Concat", "second first", "swapped", axis=1),
        node("Slice", "swapped zero three one", "short"),
        node("Gather", "short order", "r", axis=2),
        gru("x", "w", "r", "b"),
    ]
    constants = {
        "kernel": halves[0].T,
        "shape": np.array([1, -1, 3]),
        "long": np.concatenate([np.roll(R, 6, 1)] * 2),
        "zero": np.array([0]),
        "three": np.array([1]),
        "one": np.array([0]),
        "order": np.array([0, 1, 2, -1]),
    }
    (found,) = read(saved(path, nodes, constants))
    same(found.arrays, {"W": halves.astype(np.float32), "R": R, "B": B})
    assert all(array.flags.c_contiguous and array.flags.writeable for array in found.arrays.values())
    assert contents(path).rest == {}


@pytest.mark.parametrize("kind", [Tensor.FLOAT, Tensor.DOUBLE, Tensor.FLOAT16, Tensor.BFLOAT16])
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_hold_numbers_as_bytes_or_in_lists(path: Path, kind: int, raw: bool):
    # Older versions of onnx have no NumPy dtype for bfloat16.
    dtype = ml_dtypes.bfloat16 if kind == Tensor.BFLOAT16 else helper.tensor_dtype_to_np_dtype(kind)
    stored = W.astype(dtype)
    values = stored.tobytes() if raw else [float(number) for number in stored.ravel()]
    made = model([gru("x", "w", "r")])
    made.graph.initializer.append(helper.make_tensor("w", kind, W.shape, values, raw=raw))
    made.graph.initializer.append(numpy_helper.from_array(R, "r"))
    path.write_bytes(made.SerializeToString())
    right = stored if kind == Tensor.DOUBLE else stored.astype(np.float32)
    same(read(path)[0].arrays, {"W": right, "R": R})


def test_layers_follow_each_other_where_only_directions_are_laid_side_by_side(path: Path):
    def second(moves: list[Any]) -> str | None:
        nodes = [gru("x", "w", "r", name="one", direction="bidirectional"), *moves]
        two = helper.make_node("RNN", ["next", "w2", "r2"], [], "two", hidden_size=8)
        weights = {"w": np.repeat(W, 2, 0), "r": np.repeat(R, 2, 0), "w2": normal(1, 8, 8)}
        constants = {
            **weights,
            "r2": normal(1, 8, 8),
            "rows": np.array([0, 0, -1]),
            "two": np.array([0, 0, 8]),
        }
        constants |= {"all": np.array([9]), "one": np.array([1]), "zero": np.array([0])}
        return read(saved(path, [*nodes, two], constants))[1].after

    turned = node("Transpose", "y", "t", perm=[0, 2, 1, 3])
    assert second([turned, node("Reshape", "t rows", "next")]) == "one"
    assert "rows" not in contents(path).rest  # a shape between layers belongs to them
    assert "all" in contents(path).rest
    assert second([turned, node("Reshape", "t two", "u"), node("Identity", "u", "next")]) == "one"
    forth = [node("Slice", "y zero one one", "f"), node("Squeeze", "f one", "f3")]
    back = [node("Slice", "y one all one", "b"), node("Squeeze", "b one", "b3")]
    assert second([*forth, *back, node("Concat", "f3 b3", "next", axis=2)]) == "one"
    assert second([*forth, *back, node("Concat", "b3 f3", "next", axis=2)]) == ""
    assert second([node("Reshape", "y rows", "next")]) == ""
    assert second([turned, node("Reshape", "t rows", "u"), node("Relu", "u", "next")]) == ""
    assert second([turned, node("Reshape", "t missing", "next")]) == ""
    assert second([node("Squeeze", "y_h zero", "next")]) == ""


def test_layers_of_static_shapes_follow_each_other(path: Path):
    """Exporters write sizes into a Reshape where batch and time are no variables."""

    def second(*sizes: Any, **attributes: Any) -> str | None:
        two = helper.make_node("RNN", ["next", "w2", "r2"], [], "two", hidden_size=4)
        one = gru("x", "w", "r", name="one", **attributes)
        constants = {"w": W, "r": R, "w2": R[:, :4], "r2": R[:, :4], "rows": np.array([5, 7, 4])}
        made = model([one, node("Reshape", "y rows", "next"), two], constants)
        made.graph.value_info.append(helper.make_tensor_value_info("y", Tensor.FLOAT, sizes))
        path.write_bytes(made.SerializeToString())
        return read(path)[1].after

    assert second(5, 1, 7, 4) == "one"
    assert second(5, 1, "batch", 4) == ""
    assert second("time", 1, "batch", 4) == ""
    assert second(5, 1, 7) == ""
    assert second(1 << 40, 1, 7, 4) is None
    assert second(5, 1, -7, 4) is None
    assert second(7, 5, 1, 4, layout=1) == ""  # Y by batch, X by time


def test_an_initial_state_is_an_array_or_zeros_or_fed(path: Path):
    def state(*nodes: Any, **constants: Any) -> OnnxNode:
        given = {"w": W, "r": R, "batch": np.array([1, 7, 1]), **constants}
        return read(saved(path, [*nodes, gru("x", "w", "r", "", "", "h")], given))[0]

    one = normal(1, 1, 4)
    np.testing.assert_array_equal(state(h=one).arrays["initial_h"], one)
    expanded = state(node("Shape", "x", "sizes"), node("Expand", "one sizes", "h"), one=one)
    np.testing.assert_array_equal(expanded.arrays["initial_h"], one)
    assert expanded.fed == ()
    zeros = [node("Shape", "x", "sizes"), node("ConstantOfShape", "sizes", "o"), node("Identity", "o", "h")]
    for none in (state(h=0 * one), state(*zeros)):
        assert "initial_h" not in none.arrays
        assert none.fed == ()
    fed = state(node("Relu", "x", "h"))
    assert "initial_h" not in fed.arrays
    assert fed.fed == ("initial_h",)


def test_nodes_in_bodies_and_functions_are_found(path: Path):
    body = helper.make_graph([gru("x", "w", "r", name="inner")], "body", [], [])
    branch = helper.make_node("If", ["condition"], ["z"], "if", then_branch=body, else_branch=body)
    function = helper.make_function(
        "mine",
        "Layer",
        ["a", "v"],
        ["b"],
        [
            helper.make_node("Identity", ["v"], ["w"]),
            helper.make_node("RNN", ["a", "w", "w"], ["c"], "rnn", hidden_size=4),
            helper.make_node("Squeeze", ["c", "axis"], ["b"]),
            helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        ],
        [helper.make_opsetid("", 17)],
        ["direction"],
    )
    for inner in function.node:
        if inner.op_type == "RNN":
            inner.attribute.add(name="direction", ref_attr_name="direction", type=3)
    calls = [
        helper.make_node("Layer", ["x", "v"], ["z1"], "call", domain="mine", direction="reverse"),
        helper.make_node("Layer", ["z1", "v"], ["z2"], "call", domain="mine"),
    ]
    V = normal(1, 4, 4)
    found = read(saved(path, [branch, *calls], {"w": W, "r": R, "v": V}, functions=[function]))
    assert [one.name for one in found] == ["if/inner", "if/inner_1", "call/rnn", "call/rnn_3"]
    same(found[0].arrays, {"W": W, "R": R})
    same(found[3].arrays, {"W": V, "R": V})
    assert [one.attributes["direction"] for one in found[2:]] == ["reverse", "forward"]
    assert found[3].after == "call/rnn"
    assert found[2].inputs[0] == "a"


def test_a_model_without_recurrent_nodes_has_none(path: Path):
    assert read(saved(path, [node("Relu", "x", "y")], {"w": W})) == ()
    same(contents(path).rest, {"w": W})


# ---- external data


def outside(path: Path, **entries: str) -> Path:
    """A model whose W lies in another file."""
    made = model([gru("x", "w", "r")], {"r": R})
    tensor = made.graph.initializer.add(name="w", data_type=Tensor.FLOAT, dims=W.shape, data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(made.SerializeToString())
    return path


def test_weights_may_lie_in_files_of_the_folder(path: Path):
    (path.parent / "weights").mkdir()
    (path.parent / "weights" / "all.bin").write_bytes(b"12345" + W.tobytes() + b"6")
    size = str(W.nbytes)
    (found,) = read(outside(path, location="weights/all.bin", offset="5", length=size))
    same(found.arrays, {"W": W, "R": R})
    (path.parent / "w.bin").write_bytes(W.tobytes())
    same(read(outside(path, location="w.bin"))[0].arrays, {"W": W, "R": R})


def test_no_path_leaves_the_folder(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(W.tobytes())
    os.symlink(secret, folder / "link.bin")
    os.symlink(tmp_path, folder / "up")
    for location in (
        str(secret),
        "../secret.bin",
        "a/../../secret.bin",
        "..\\secret.bin",
        "C:\\secret.bin",
        "\\secret.bin",
        "link.bin",
        "up/secret.bin",
        "",
        "nul\0",
    ):
        with pytest.raises(FileError, match=r"outside the model's folder; put it beside the model$"):
            read(outside(folder / "model.onnx", location=location))


def test_external_data_is_checked_before_it_is_read(path: Path):
    os.mkfifo(path.parent / "pipe")
    (path.parent / "w.bin").write_bytes(W.tobytes())
    for location in ("missing", "pipe", ".", "x" * 5000):
        with pytest.raises(FileError, match="there is no such file"):
            read(outside(path, location=location))
    for entries in (
        {"offset": "1"},
        {"length": "8"},
        {"offset": "9" * 18},
        {"offset": "0", "length": "1440"},
    ):
        with pytest.raises(FileError, match="takes 144 bytes, and is said to lie"):
            read(outside(path, location="w.bin", **entries))
    for number in ("-1", "1e3", "9" * 5000, "", "٣"):
        with pytest.raises(FileError, match="for an offset or a length"):
            read(outside(path, location="w.bin", offset=number))


# ---- refusals


def test_quantized_weights_are_refused_by_name(path: Path):
    quantized = helper.make_node("DynamicQuantizeLSTM", ["x"], ["y"], "lstm", domain="com.microsoft")
    assert refusal(read, saved(path, [quantized])) == (
        "DynamicQuantizeLSTM 'lstm' is not read: its weights are quantized; read the model it was quantized"
        " from"
    )
    nodes = [node("DequantizeLinear", "q s", "v"), node("Identity", "v", "w"), gru("x", "w", "r")]
    constants = {"q": np.ones((1, 12, 3), np.int8), "s": np.float32(1).reshape(()), "r": R}
    assert refusal(read, saved(path, nodes, constants)) == (
        "GRU 'gru': its W is quantized; read the model it was quantized from"
    )


def test_weights_that_are_no_constants_are_refused(path: Path):
    assert refusal(read, saved(path, [gru("x", "x", "r")], {"r": R})) == (
        "GRU 'gru': its W is an input of the model; save it as a constant"
    )
    moved = [helper.make_node("Add", ["v", "v"], ["w"], "sum"), gru("x", "w", "r")]
    assert refusal(read, saved(path, moved, {"v": W, "r": R})) == (
        "GRU 'gru': its W comes from Add 'sum', which is not computed here; simplify the model"
    )


def test_nodes_that_are_none_of_onnx_are_refused(path: Path):
    def reason(constants: dict[str, Any], *inputs: str, **attributes: Any) -> str:
        found = refusal(read, saved(path, [gru("x", *inputs, **attributes)], constants))
        return found.removeprefix("GRU 'gru' is no such node: ")

    weights = {"w": W, "r": R, "b": B}
    assert reason(weights, "w") == "it has no R"
    assert reason({**weights, "b": W}, "w", "r", "b") == (
        "its B is of (1, 12, 3), and with 1 x 4 units it would be of (1, 24)"
    )
    assert reason({"w": W, "r": R[:, :9, :3]}, "w", "r") == "its hidden_size is 4, and R is of 3"
    assert reason(weights, "w", "r", direction="up") == (
        "its direction is 'up', and not one of forward, reverse, bidirectional"
    )
    assert reason(weights, "w", "r", activations=["Sigmoid", "Sine"]) == (
        "its activations are Sigmoid, Sine, and not 2 of ONNX's"
    )
    assert reason(weights, "w", "r", layout=7) == "its layout is 7, and not 0 or 1"
    assert reason({**weights, "w": W.astype(np.int32)}, "w", "r") == (
        "its W holds int32, and not float32 or float64"
    )
    assert reason(weights, "w", "r", direction=numpy_helper.from_array(W)).startswith("unhashable type")
    assert reason(weights, "w", "r", layout=float("inf")) == "its layout is inf, and not 0 or 1"
    assert "activation_alpha" not in reason(weights, "w", "r", activation_alpha=3)


def tensor(kind: int = Tensor.FLOAT, dims: Any = (1, 12, 3), **more: Any) -> Any:
    return Tensor(name="w", data_type=kind, dims=dims, **more)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (tensor(dims=[1 << 62, 4]), "has the shape (4611686018427387904, 4), which no weight has"),
        (tensor(dims=[0, 1 << 62]), "has the shape (0, 4611686018427387904), which no weight has"),
        (tensor(dims=[-1]), "has the shape (-1,), which no weight has"),
        (tensor(dims=[1] * 99999), "has the shape (1, 1, 1, 1, 1, 1, 1, 1, 1), which no weight has"),
        (tensor(dims=[1 << 40]), "it would fill more than 67111400 bytes of memory, " + ALLOWED),
        (tensor(raw_data=b"abc"), "of (1, 12, 3) takes 144 bytes and has 3"),
        (tensor(float_data=[1, 2]), "of (1, 12, 3) has 2 numbers"),
        (
            tensor(Tensor.STRING),
            "holds numbers of ONNX type 8, which stepnet does not read; save it as FLOAT",
        ),
        (tensor(99), "holds numbers of ONNX type 99, which stepnet does not read; save it as FLOAT"),
    ],
)
def test_tensors_that_are_none_are_refused_before_memory_is_taken(path: Path, made: Any, reason: str):
    whole = model([gru("x", "w", "r")], {"r": R})
    whole.graph.initializer.append(made)
    path.write_bytes(whole.SerializeToString())
    assert refusal(read, path).removeprefix("with ") == f"tensor 'w' {reason}"


def test_constants_never_grow_far_beyond_the_file(path: Path):
    def grown(*nodes: Any, **constants: Any) -> str:
        return refusal(read, saved(path, [*nodes, gru("x", "w", "r")], {"r": R, **constants}))

    doubled = [node("Concat", f"w{i} w{i}", f"w{i + 1}", axis=0) for i in range(60)]
    large, one = np.array([1 << 40]), W[0, 0, :1]
    many = [node("Expand", "v n", f"e{i}") for i in range(5)]
    for nodes, constants in (
        ([*doubled, node("Identity", "w60", "w")], {"w0": W}),
        ([node("ConstantOfShape", "n", "w")], {"n": large}),
        ([node("Expand", "v n", "w")], {"v": one, "n": large}),
        ([*many, node("Concat", "e0 e1 e2 e3 e4", "w", axis=0)], {"v": one, "n": np.array([1 << 22])}),
        ([node("Gather", "v n", "w")], {"v": W, "n": np.zeros(1 << 22, np.int8)}),
    ):
        assert "by nodes that cannot be computed here" in grown(*nodes, **constants)


def test_graphs_without_an_end_end(path: Path, constants: Constants):
    constants(onnx_graph, NODES=10_000)
    start = time.process_time()
    circle = [node("Identity", "w", "v"), node("Concat", "v v", "w", axis=0), gru("w", "w", "r")]
    assert "its W" in refusal(read, saved(path, circle, {"r": R}))
    long = [node("Identity", f"w{i}", f"w{i + 1}") for i in range(5000)]
    assert "its W" in refusal(read, saved(path, [*long, gru("x", "w5000", "r")], {"w0": W, "r": R}))
    through = helper.make_function("f", "F", ["a"], ["a"], [], [helper.make_opsetid("", 17)])
    call = helper.make_node("F", ["w"], ["w"], domain="f")
    assert "its W" in refusal(read, saved(path, [call, gru("x", "w", "r")], {"r": R}, functions=[through]))
    again = helper.make_node("F", ["a"], ["b"], domain="f")
    itself = helper.make_function("f", "F", ["a"], ["b"], [again], [helper.make_opsetid("", 17)])
    assert "100 deep" in refusal(read, saved(path, [call], functions=[itself]))
    twice = [
        helper.make_function(
            "f",
            f"F{i}",
            ["a"],
            ["b"],
            [helper.make_node(f"F{i + 1}", ["a"], [made], domain="f") for made in "cb"],
            [helper.make_opsetid("", 17)],
        )
        for i in range(40)
    ]
    first = helper.make_node("F0", ["w"], ["v"], domain="f")
    assert "more than 10000 nodes" in refusal(read, saved(path, [first], functions=twice))
    assert time.process_time() - start < 60


@pytest.mark.parametrize(
    "data", [b"", b"abcde", b"\0" * 100, random.Random(0).randbytes(1000), b"PK\3\4" * 50]
)
def test_what_is_no_model_is_refused(path: Path, data: bytes):
    path.write_bytes(data)
    assert refusal(read, path).startswith("this is not a complete ONNX model (")


# ---- the writer


def session(path: Path) -> Callable[..., list[np.ndarray]]:
    runtime = pytest.importorskip("onnxruntime")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    made = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda **inputs: made.run(None, inputs)


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("op", "function"), CELLS)
def test_what_is_written_runs_as_torch_does(path: Path, op: str, function: str, layers: int, both: bool):
    made = module(op, function, layers, both)
    nodes = described(op, function, made)
    write(path, nodes)
    run = session(path)
    for batch, length in ((1, 1), (1, 7), (2, 3), (3, 7)):
        x = torch.randn(batch, length, 3)
        right, state = made(x)
        output, *states = run(input=x.numpy())
        assert_close(output, right.detach().numpy(), length, 16)
        finals = [part.detach().numpy() for part in (state if op == "LSTM" else (state,))]
        for index, final in enumerate(states):
            layer, part = divmod(index, len(finals))
            first = layer * (1 + both)
            assert_close(final, finals[part][first : first + 1 + both], length, 16)
    back = read(path)
    assert [(one.name, one.op) for one in back] == [(one.name, one.op) for one in nodes]
    assert [one.after for one in back] == ["", "layer0"][:layers]
    for one, other in zip(back, nodes, strict=True):
        same(one.arrays, other.arrays)
        assert other.attributes.items() <= one.attributes.items()
    assert contents(path).rest == {}


def test_lengths_are_an_input_where_asked_for(path: Path):
    made = module("GRU", "", 2, True)
    write(path, described("GRU", "", made), lengths=True)
    x, lengths = torch.randn(3, 6, 3), torch.tensor([6, 1, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    right, state = made(packed)
    right, _ = torch.nn.utils.rnn.pad_packed_sequence(right, batch_first=True)
    output, *states = session(path)(input=x.numpy(), lengths=lengths.numpy().astype(np.int32))
    assert_close(output, right.detach().numpy(), 6, 16)
    assert_close(np.concatenate(states), state.detach().numpy(), 6, 16)
    assert {one.fed for one in read(path)} == {("sequence_lens",)}


def test_initial_states_go_to_every_sequence(path: Path):
    made = module("LSTM", "", 2, False)
    nodes = described("LSTM", "", made)
    states = {"initial_h": normal(1, 1, 4), "initial_c": normal(1, 1, 4) + 1}
    nodes = [OnnxNode(one.name, one.op, {**one.arrays, **states}, one.attributes) for one in nodes]
    write(path, nodes)
    x = torch.randn(3, 5, 3)
    given = [torch.from_numpy(np.tile(state, (2, 3, 1))) for state in states.values()]
    assert_close(session(path)(input=x.numpy())[0], made(x, tuple(given))[0].detach().numpy(), 5, 16)
    same(read(path)[1].arrays, nodes[1].arrays)
    held = {f"layer{index}.{slot}": state for index in range(2) for slot, state in states.items()}
    same(contents(path).rest, held)  # what nodes start from is no weight


def test_all_attributes_are_written_and_read(path: Path):
    attributes = {
        "direction": "reverse",
        "hidden_size": 4,
        "activations": ("HardSigmoid", "Softsign", "ScaledTanh"),
        "activation_alpha": (0.25, None, 1.5),
        "activation_beta": (0.5, None, 0.75),
        "clip": 2.5,
        "input_forget": 1,
        "layout": 0,
    }
    arrays = {"W": normal(1, 16, 3), "R": normal(1, 16, 4), "P": normal(1, 12)}
    write(path, [OnnxNode("lstm", "LSTM", arrays, attributes)])
    (found,) = read(path)
    assert found.attributes == attributes
    same(found.arrays, arrays)
    session(path)(input=normal(2, 3, 3))


def test_float64_stays_float64(path: Path):
    arrays = {name: array.astype(np.float64) for name, array in {"W": W, "R": R, "B": B}.items()}
    write(path, [OnnxNode("gru", "GRU", arrays, {"linear_before_reset": 1})])
    same(read(path)[0].arrays, arrays)
    made = module("GRU").double()
    write(path, described("GRU", "", made), force=True)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    reference = pytest.importorskip("onnx.reference")
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    output = reference.ReferenceEvaluator(str(path)).run(None, {"input": x.numpy()})[0]
    assert_close(output, made(x)[0].detach().numpy(), 3, 16)


def test_layers_that_do_not_fit_are_not_written(path: Path):
    def reason(*nodes: OnnxNode) -> str:
        with pytest.raises(InputError) as caught:
            write(path, nodes)
        assert not path.exists()
        return str(caught.value)

    one = OnnxNode("one", "GRU", {"W": W, "R": R})
    assert reason(OnnxNode("one", "GRU", {"W": W})) == "layer 'one' (GRU) cannot be written: it has no R"
    assert reason(OnnxNode("one", "CRU", {"W": W, "R": R})) == (
        "layer 'one' (CRU) cannot be written: ONNX has no CRU"
    )
    assert reason(one, OnnxNode("two", "GRU", {"W": W, "R": R})) == (
        "layer 'two' takes 3 numbers, and 'one' gives 4"
    )
    assert reason(OnnxNode("one", "LSTM", {"W": W, "R": R})) == (
        "layer 'one' (LSTM) cannot be written: its W is of (1, 12, 3), and with 1 x 4 units it would be of"
        " (1, 16, any)"
    )
    assert reason(OnnxNode("one", "GRU", {"W": W, "R": R.astype(np.float64)})) == (
        "the layers to write are of float32 and float64; cast them to one"
    )
    assert "at least one, and each its own" in reason()
    assert "at least one, and each its own" in reason(one, one)
    many = OnnxNode("one", "GRU", {"W": W, "R": R, "initial_h": normal(1, 2, 4)})
    assert "its initial_h is of (1, 2, 4), and any batch may come" in reason(many)


def test_arrays_of_any_order_of_bytes_and_axes_are_written(path: Path):
    swapped = W.astype(">f4")
    write(path, [OnnxNode("one", "GRU", {"W": swapped, "R": np.asfortranarray(R), "B": B})])
    same(read(path)[0].arrays, {"W": W, "R": R, "B": B})
    session(path)(input=normal(2, 3, 3))
