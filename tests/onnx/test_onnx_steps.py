"""ONNX models with a fixed number of steps: which of them run over other numbers of steps."""

import re
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

from stepnet.errors import InputError, ModelError
from tests.onnx.onnx_models import FLOAT, model_of, node, onnx, random, read, theirs, value

STEPS = 13
SUM = node("ReduceSum", "x one", "s", keepdims=0)
MEAN = node("ReduceMean", "x", "m", axes=[1])
COMPUTED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a quotient": ([SUM, node("Div", "s a")], {"a": np.float32(13)}, "13 of node 'y' (Div)"),
    "a root": ([SUM, node("Div", "s a")], {"a": np.float32(13**0.5)}, "3.60555 of node 'y' (Div)"),
    "the same for each feature": ([SUM, node("Mul", "s a")], {"a": np.full(4, 1 / 13, "f4")}, "0.0769231 of"),
    "an exponent": (
        [SUM, node("Abs", "s", "p"), node("Pow", "p a")],
        {"a": np.float32(1 / 13)},
        "0.0769231 of",
    ),
    "a bound": ([node("Clip", "x - a")], {"a": np.float32(0.125)}, "0.125 of node 'y' (Clip)"),
    "a factor of a product": ([SUM, node("Gemm", "s w", alpha=1 / 13)], {"w": random(4, 2)}, "0.0769231 of"),
    "the last six": ([node("Slice", "x a b one")], {"a": np.array([7]), "b": np.array([2**40])}, "7 of"),
    "zeros up to sixteen steps": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Pad", "t a", "p"), node("Conv", "p w")],
        {"a": np.array([0, 0, 0, 0, 0, 3]), "w": random(4, 4, 1)},
        "3 of node 'p' (Pad)",
    ),
    "copies": ([MEAN, node("Expand", "m a")], {"a": np.array([1, 26, 1])}, "26 of node 'y' (Expand)"),
    "a vector of as many": (
        [SUM, node("MatMul", "s w", "v"), node("Reshape", "v a")],
        {"w": random(4, 26), "a": np.array([-1, 13, 2])},
        "13 of node 'y' (Reshape)",
    ),
}
"""Numbers that an exporter computes of the number of steps: nodes, arrays, and words of the message."""
LAYERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "weights": (
        [node("MatMul", "x w", "h"), node("Add", "h b")],
        {"w": random(4, 3), "b": random(3, seed=1)},
    ),
    "one minus": ([node("Tanh", "x", "t"), node("Sub", "a t")], {"a": np.float32(1)}),
    "squares": ([node("Pow", "x a")], {"a": np.float32(2)}),
    "a slope": ([node("LeakyRelu", "x", alpha=0.2)], {}),
    "a mean": ([MEAN, node("Add", "x m")], {}),
}


def made(nodes: list[Any], arrays: dict[str, Any], steps: Any = STEPS) -> Any:
    used = {name for each in nodes for name in each.input}
    arrays = {name: array for name, array in {**arrays, "one": np.array([1])}.items() if name in used}
    whole, summed = nodes[-1].op_type == "ArgMax", SUM in nodes and len(nodes) == 2
    result = value("y", *[None] * (3 - (whole or summed)), kind=onnx.TensorProto.INT64 if whole else FLOAT)
    return model_of(nodes, [value("x", "batch", steps, 4)], [result], arrays)


def numbers(model: Any, steps: int) -> Any:
    (wanted,) = theirs(model, {"x": random(2, steps, 4)})
    return wanted


@pytest.mark.parametrize("name", COMPUTED)
def test_a_number_that_may_be_computed_is_for_the_steps_of_the_file(name: str):
    nodes, arrays, words = COMPUTED[name]
    model = made(nodes, arrays)
    graph = read(model)
    assert_close(np.asarray(graph(random(2, STEPS, 4))), turned(numbers(model, STEPS), name), STEPS, 10)
    said = (
        rf"was written for 13 steps, and sequence 0 has 5; the number {re.escape(words)}(.|\n)*dynamic_axes"
    )
    with pytest.raises(InputError, match=said):
        graph(random(2, 5, 4))


def turned(array: Any, name: str) -> Any:
    """An output [batch, features, steps] as stepnet has it."""
    return array.swapaxes(1, 2) if name == "zeros up to sixteen steps" else array


@pytest.mark.parametrize("name", LAYERS)
def test_weights_and_settings_are_for_any_number_of_steps(name: str):
    nodes, arrays = LAYERS[name]
    graph = read(made(nodes, arrays))
    for steps in (STEPS, 5, 20):
        wanted = numbers(made(nodes, arrays, "time"), steps)
        assert_close(np.asarray(graph(random(2, steps, 4))), wanted, steps, 10)


def test_an_open_number_of_steps_has_no_such_numbers():
    nodes, arrays, _ = COMPUTED["a root"]
    model = made(nodes, arrays, "time")
    for steps in (STEPS, 5):
        assert_close(np.asarray(read(model)(random(2, steps, 4))), numbers(model, steps), steps, 10)


def test_whole_numbers_have_no_nan():
    nodes = [node("Mul", "x a", "h"), node("ArgMax", "h", axis=2, keepdims=0)]
    with pytest.raises(ModelError, match="was written for 13 steps, and its output 'y' is int64, without a"):
        read(made(nodes, {"a": np.float32(0.5)}))


def test_an_array_with_a_number_for_each_step_of_the_file_is_refused_with_the_remedy():
    with pytest.raises(ModelError, match=r"each of the 13 steps that the file fixes: .* open number of them"):
        read(made([node("Add", "x a")], {"a": random(STEPS, 1)}))


def test_several_steps_that_are_selected_are_named():
    with pytest.raises(ModelError, match=r"it selects the steps \[1, 2\]: only the first or the last"):
        read(made([node("Gather", "x a", axis=1)], {"a": np.array([1, 2])}))
