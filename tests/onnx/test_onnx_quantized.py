"""Quantized ONNX models beside onnxruntime, also those that onnxruntime's own tools quantize."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import uniform

import stepnet as sn
from stepnet.errors import ModelError
from tests.onnx.onnx_models import (
    Array,
    assert_as_theirs,
    helper,
    model_of,
    node,
    numpy_helper,
    onnx,
    ort,
    read,
    stepnet_onnx,
    theirs,
    value,
)

random = partial(uniform, seed=0)
X = [value("x", "n", "t", 4)]
INT8, UINT8 = 3, 2


def whole(*shape: int, dtype: str = "int8", seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


# ---- one scale, or one for each ----------------------------------------------------------------------------

TIES = np.array([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 300, -300], "float32").reshape(1, 2, 4)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("along", [None, 2], ids=["one", "each"])
def test_numbers_are_rounded_to_even_ones_and_limited(dtype: str, along: int | None) -> None:
    scale = np.array(0.5, "float32") if along is None else np.array([0.5, 0.25, 0.3, 2], "float32")
    zero = np.asarray(whole(*scale.shape, dtype=dtype))
    options: dict[str, Any] = {} if along is None else {"axis": along}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [node("QuantizeLinear", "x s z", "q", **options), node("DequantizeLinear", "q s z", **options)]
    outputs = [value("q", "n", "t", 4, kind=kind), value("y", "n", "t", 4)]
    model = model_of(nodes, X, outputs, {"s": scale, "z": zero})
    assert_as_theirs(model, {"x": TIES})
    assert_as_theirs(model, {"x": 9 * random(3, 5, 4)})


def test_without_a_zero_point_the_numbers_are_uint8() -> None:
    model = model_of(
        [node("QuantizeLinear", "x s")], X, [value("y", "n", "t", 4, kind=UINT8)], {"s": np.array(0.1, "f4")}
    )
    assert_as_theirs(model, {"x": 20 * random(2, 5, 4)})


def test_weights_of_whole_numbers_are_constants() -> None:
    nodes = [
        node("DequantizeLinear", "w s z", "W", axis=1),
        node("MatMul", "x W", "p"),
        node("DequantizeLinear", "b bs", "B"),
        node("Add", "p B"),
    ]
    arrays = {
        "w": whole(4, 3),
        "s": np.array([0.1, 0.2, 0.3], "float32"),
        "z": whole(3, seed=1),
        "b": np.array([7, -5, 3], "int32"),
        "bs": np.float32(0.01),
    }
    model = model_of(nodes, X, [value("y", "n", "t", 3)], arrays)
    load: Any = read(model)
    x = random(2, 5, 4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # else it quantizes x
    (right,) = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    assert_close(np.asarray(load(x, engine="interpret")), right, 10, 30)
    assert {each.operation for each in load.net.nodes} == {"input", "constant", "matmul", "add"}


def test_rows_of_a_quantized_table() -> None:
    nodes = [node("Gather", "table x", "q"), node("DequantizeLinear", "q s z")]
    arrays = {"table": whole(9, 3, dtype="uint8"), "s": np.float32(0.1), "z": np.uint8(120)}
    model = model_of(nodes, [value("x", "n", "t", kind=7)], [value("y", "n", "t", 3)], arrays)
    assert_as_theirs(model, {"x": np.arange(10).reshape(2, 5) % 9})


# ---- products ----------------------------------------------------------------------------------------------


SCALES = {"s": np.float32(0.02), "z": np.uint8(131)}


@pytest.mark.parametrize("wide", [4, 4000])
@pytest.mark.parametrize("columns", [False, True], ids=["one", "each"])
def test_products_of_whole_numbers_are_exact(columns: bool, wide: int) -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("MatMulInteger", "q w z zw")]
    zero = whole(3, seed=1) if columns else np.int8(3)
    weight = whole(wide, 3) if wide == 4 else (np.arange(wide * 3) % 28 + 100).astype("int8").reshape(-1, 3)
    arrays = {"w": weight, "zw": np.asarray(zero), **SCALES}
    model = model_of(nodes, [value("x", "n", "t", wide)], [value("y", "n", "t", 3, kind=6)], arrays)
    x = 3 * random(2, 5, wide) + 3
    (made,) = stepnet_onnx.Backend.run_model(model, {"x": x})
    np.testing.assert_array_equal(made, theirs(model, {"x": x})[0])


def test_products_are_quantized_again() -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("QLinearMatMul", "q s z w ws wz ys yz")]
    arrays = {
        "w": whole(4, 3),
        "ws": np.float32(0.01),
        "wz": np.int8(2),
        "ys": np.float32(0.05),
        "yz": np.uint8(100),
        **SCALES,
    }
    model = model_of(nodes, X, [value("y", "n", "t", 3, kind=UINT8)], arrays)
    assert_as_theirs(model, {"x": 2 * random(3, 5, 4)})


@pytest.mark.parametrize("operator", ["ConvInteger", "QLinearConv"])
def test_convolutions_of_whole_numbers(operator: str) -> None:
    plain = operator == "ConvInteger"
    operands = "q w z wz" if plain else "q s z w ws wz ys yz b"
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node(operator, operands, pads=[1, 1], strides=[2]),
    ]
    arrays = {
        "w": whole(5, 4, 3, dtype="uint8" if plain else "int8"),
        "wz": np.uint8(120) if plain else np.zeros(5, "int8"),
        "ws": np.array([0.01, 0.02, 0.03, 0.04, 0.05], "float32"),
        "ys": np.float32(0.1),
        "yz": np.uint8(100),
        "b": np.array([100, -100, 2000, 3, 4], "int32"),
        **SCALES,
    }
    used = {name: array for name, array in arrays.items() if name in operands.split() or name in "sz"}
    outputs = [value("y", "n", 5, "t", kind=6 if plain else UINT8)]
    model = model_of(nodes, [value("x", "n", 4, "t")], outputs, used)
    made = np.asarray(read(model, {"x": "N_T"})(np.swapaxes(random(2, 4, 7), 1, 2)))
    np.testing.assert_array_equal(made.swapaxes(1, 2), theirs(model, {"x": random(2, 4, 7)})[0])


# ---- by the range of each sequence -------------------------------------------------------------------------


def dynamic(tmp_path: Path, nodes: Any, outputs: Any, arrays: dict[str, Array], **options: Any) -> Any:
    """A model that onnxruntime's own tool has quantized dynamically."""
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(model_of(nodes, X, outputs, arrays), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", **options)
    return onnx.load(tmp_path / "q.onnx")


def assert_each_as_theirs(model: Any, x: Array, steps: int = 10) -> None:
    """Asserts that the sequences of a batch have the results that onnxruntime has for each of them alone."""
    load = read(model)
    input_ = load.model.inputs[0]
    made = load(sn.Ragged.from_list(list(x)))
    made = {"": made} if not isinstance(made, dict) else made
    for index, own in enumerate(x):
        given = own[None] if input_.axes == "NT_" else own[:, None]
        for result, right in zip(made.values(), theirs(model, {"x": given}), strict=True):
            entry = result.to_list()[index] if isinstance(result, sn.Ragged) else result[index]
            assert_close(np.squeeze(entry), np.squeeze(right), steps, 30)


def test_dynamic_products_are_by_the_range_of_each_sequence(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "p"),
        node("Add", "p b", "s"),
        node("Tanh", "s", "t"),
        node("MatMul", "t v"),
    ]
    arrays = {"w": random(4, 8), "b": random(8), "v": random(8, 3)}
    model = dynamic(tmp_path, nodes, [value("y", "n", "t", 3)], arrays)
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= {each.op_type for each in model.graph.node}
    assert_each_as_theirs(model, random(3, 6, 4) * np.array([1, 5, 0.1], "float32")[:, None, None])


@pytest.mark.parametrize("per_channel", [False, True], ids=["one", "each"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamic_lstms_are_by_the_range_of_each_sequence(
    direction: str, per_channel: bool, tmp_path: Path
) -> None:
    count = 2 if direction == "bidirectional" else 1
    nodes = [node("LSTM", "x W R B", "y h c", hidden_size=5, direction=direction)]
    arrays = {"W": random(count, 20, 4), "R": random(count, 20, 5, seed=1), "B": random(count, 40, seed=2)}
    outputs = [value("y", *[None] * 4), value("h", *[None] * 3), value("c", *[None] * 3)]
    model = dynamic(tmp_path, nodes, outputs, arrays, per_channel=per_channel)
    assert [each.op_type for each in model.graph.node] == ["DynamicQuantizeLSTM"]
    assert_each_as_theirs(model, random(3, 7, 4) * np.array([1, 5, 0.1], "float32")[:, None, None])


def test_optimized_dynamic_products(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "p"), node("Add", "p b", "s"), node("Relu", "s")]
    model = dynamic(tmp_path, nodes, [value("y", "n", "t", 3)], {"w": random(4, 3), "b": random(3)})
    optimized = with_fusions(model, tmp_path / "o.onnx")
    assert "DynamicQuantizeMatMul" in {each.op_type for each in optimized.graph.node}
    assert_each_as_theirs(optimized, random(3, 6, 4))


def with_fusions(model: Any, path: Path) -> Any:
    """A model as onnxruntime optimizes it."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(model.SerializeToString(), options)
    return onnx.load(path)


def test_a_backend_runs_one_sequence_at_a_time() -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z")]
    model = model_of(nodes, X, [value("y", "n", "t", 4)])
    assert_as_theirs(model, {"x": random(1, 5, 4)})
    with pytest.raises(
        ModelError, match=r"run one sequence at a time\n  at node 'q' \(DynamicQuantizeLinear\)"
    ):
        stepnet_onnx.Backend.run_model(model, {"x": random(2, 5, 4)})


def test_a_range_over_padding_is_refused() -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z", name="odd"),
        node("DequantizeLinear", "q s z", "d"),
        node("Transpose", "d", "frames", perm=[1, 0, 2]),
        node("RNN", "frames W R - lengths", "y", hidden_size=2),
    ]
    arrays = {"W": random(1, 2, 4), "R": random(1, 2, 2)}
    model = model_of(nodes, [*X, value("lengths", "n", kind=6)], [value("y", *[None] * 4)], arrays)
    with pytest.raises(ModelError, match=r"it is over all steps, padding included(?s:.*)at node 'odd'"):
        read(model)


# ---- what is refused ---------------------------------------------------------------------------------------

Q = node("QuantizeLinear", "x s z", "q")
REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a zero point of another shape": (
        [node("QuantizeLinear", "x s z", name="odd")],
        {"s": np.array([1, 2, 3, 4], "float32"), "z": np.array([1, 2], "int8")},
        "its zero point is of [2], and its scale of [4]",
    ),
    "as many scales as other features": (
        [node("QuantizeLinear", "x s z", name="odd", axis=2)],
        {"s": np.array([1, 2, 3], "float32"), "z": np.array([1, 2, 3], "int8")},
        "its scale is of [3], and axis 2 of its operand has 4: there is one for all numbers, or one for each "
        "of these",
    ),
    "a scale of each step": (
        [node("QuantizeLinear", "x s z", name="odd", axis=1)],
        {"s": np.array([1, 2, 3], "float32"), "z": np.array([1, 2, 3], "int8")},
        "axis 1 of [sequences, steps, 4] is not a feature",
    ),
    "an axis that is none": (
        [node("QuantizeLinear", "x s z", name="odd", axis=3)],
        {"s": np.array([1, 2, 3], "float32"), "z": np.array([1, 2, 3], "int8")},
        "its operand has 3 axes, so there is no axis 3",
    ),
    "blocks": (
        [node("QuantizeLinear", "x s z", name="odd", block_size=2)],
        {"s": np.float32(1), "z": np.int8(1)},
        "its block_size is not 0",
    ),
    "another dtype": (
        [node("QuantizeLinear", "x s z", name="odd")],
        {"s": np.float32(1), "z": np.int32(1)},
        "it quantizes to int32: uint8, int8, uint16, int16 are supported",
    ),
    "a scale that is missing": (
        [node("DequantizeLinear", "x", name="odd")],
        {},
        "its input 1 is missing",
    ),
    "a zero point for each row": (
        [Q, node("MatMulInteger", "q w zs", name="odd")],
        {"s": np.float32(1), "z": np.uint8(1), "zs": np.array([1, 2], "uint8"), "w": whole(4, 3)},
        "its zero point or scale is of [2]: one number for all is supported",
    ),
    "zero points for other columns": (
        [Q, node("MatMulInteger", "q w z zw", name="odd")],
        {"s": np.float32(1), "z": np.uint8(1), "zw": np.array([1, 2], "int8"), "w": whole(4, 3)},
        "its scale is of [2], and axis 1 of its operand has 3",
    ),
    "weights of other axes": (
        [node("DynamicQuantizeLSTM", "x W R - - - - - s z s z", name="odd", domain="com.microsoft")],
        {"W": whole(1, 20), "R": whole(1, 5, 20), "s": np.array([1], "float32"), "z": np.array([0], "int8")},
        "its W is of [1, 20], with scales of [1] and zero points of [1]",
    ),
    "zero points of other outputs": (
        [node("DynamicQuantizeLSTM", "x W R - - - - - s z s z", name="odd", domain="com.microsoft")],
        {
            "W": whole(1, 4, 20),
            "R": whole(1, 5, 20),
            "s": np.array([1], "float32"),
            "z": np.array([0, 1], "int8"),
        },
        "its W is of [1, 4, 20], with scales of [1] and zero points of [2]",
    ),
    "an unknown activation": (
        [node("FusedGemm", "w w", name="odd", domain="com.microsoft", activation="Odd")],
        {"w": random(4, 4)},
        "its activation 'Odd' is not supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_quantized_nodes_that_do_not_fit_are_refused(name: str) -> None:
    nodes, arrays, message = REFUSED[name]
    nodes[-1].output[:] = ["y"]
    initial = [numpy_helper.from_array(np.asarray(array), title) for title, array in arrays.items()]
    graph = helper.make_graph(nodes, "made", X, [value("y", *[None] * 3)], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)
    with pytest.raises(ModelError) as error:
        read(model, {"x": "NT"})
    assert message in str(error.value)
    assert "\n  at node 'odd' (" in str(error.value)
