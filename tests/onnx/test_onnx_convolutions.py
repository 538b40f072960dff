"""Convolutions, pooling and other numbers of steps in saved ONNX models: run by onnxruntime."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import rnn_of, uniform

import stepnet as sn
from tests.onnx.onnx_saved import onnx, right, run, saved, stepnet_onnx

random = partial(uniform, seed=0)
LENGTHS = [7, 6, 0, 3]
WINDOWED = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "Gather"}

# For each, the operator that is written without lengths, and with lengths.
Made = Callable[[Any], Any]
OPERATORS: dict[str, tuple[Made, str, str]] = {
    "causal": (lambda x: sn.conv1d(x, random(5, 4, 3), random(5)), "Conv", "Conv"),
    "same, dilated": (lambda x: sn.conv1d(x, random(5, 4, 3), dilation=2, padding="same"), "Conv", "Conv"),
    "fewer steps": (lambda x: sn.conv1d(x, random(5, 4, 3), padding="valid"), "Conv", "Conv"),
    "a stride, and zeros": (
        lambda x: sn.conv1d(x, random(5, 4, 3), random(5), stride=2, padding=(2, 1)),
        "Conv",
        "Conv",
    ),
    "same with a stride": (
        lambda x: sn.conv1d(x, random(5, 4, 4), stride=3, padding="same"),
        "Conv",
        "Gather",
    ),
    "groups": (lambda x: sn.conv1d(x, random(6, 2, 3), groups=2), "Conv", "Conv"),
    "each feature": (lambda x: sn.conv1d(x, random(8, 1, 3), groups=4, padding="same"), "Conv", "Conv"),
    "one step": (lambda x: sn.conv1d(x, random(5, 4, 1), stride=2), "Conv", "Conv"),
    "transposed": (
        lambda x: sn.conv_transpose1d(x, random(4, 3, 4), random(3), stride=2, padding=1),
        "ConvTranspose",
        "ConvTranspose",
    ),
    "transposed, with more at the end": (
        lambda x: sn.conv_transpose1d(x, random(4, 2, 3), stride=3, dilation=2, output_padding=1, groups=2),
        "ConvTranspose",
        "ConvTranspose",
    ),
    "transposed, as many steps": (
        lambda x: sn.conv_transpose1d(x, random(4, 2, 3), padding=1),
        "ConvTranspose",
        "ConvTranspose",
    ),
    "maxima": (lambda x: sn.max_pool1d(x, 3, stride=2, padding=1), "MaxPool", "MaxPool"),
    "maxima, same": (lambda x: sn.max_pool1d(x, 3, stride=2, padding="same"), "MaxPool", "Gather"),
    "means": (lambda x: sn.avg_pool1d(x, 2), "AveragePool", "AveragePool"),
    "means with zeros": (lambda x: sn.avg_pool1d(x, 3, stride=1, padding=1), "AveragePool", "AveragePool"),
    "means of steps": (
        lambda x: sn.avg_pool1d(x, 3, stride=2, padding=1, count_include_pad=False),
        "AveragePool",
        "Gather",
    ),
}


def check(graph: sn.Graph, x: Any, path: Path, lengths: list[int] | None, width: int = 30) -> set[str]:
    """Asserts that onnxruntime computes what the interpreter does; returns the operators over windows."""
    model = saved(graph, path, lengths=lengths is not None)
    every = lengths or [x.shape[1]] * len(x)
    for actual, wanted in zip(run(model, [x], lengths), right(graph, [x], every), strict=True):
        assert_close(actual[:, : wanted.shape[1]] if lengths else actual, wanted, 7, width)
    return {node.op_type for node in model.graph.node} & WINDOWED


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", OPERATORS)
def test_convolutions_and_pooling_are_onnxs_operators(name: str, tmp_path: Path) -> None:
    function, *written = OPERATORS[name]
    rnn = rnn_of("gru", function_width(function), 3, seed=1, reverse=True)

    def model(x: Any, params: Any) -> Any:
        made = function(x)
        return {"made": made, "rnn": rnn(made)[0], "mean": sn.reduce(made, "mean"), "end": made - 1}

    graph = sn.Graph(model, inputs=sn.Spec(4, "float32"))
    for lengths, operator in zip((None, LENGTHS), written, strict=True):
        assert check(graph, random(4, 7, 4), tmp_path / "m.onnx", lengths) == {operator}


@pytest.mark.parametrize("name", OPERATORS)
def test_models_are_read_back_and_run_over_other_numbers_of_steps(name: str, tmp_path: Path) -> None:
    function = OPERATORS[name][0]

    def model(x: Any, params: Any) -> Any:
        made = function(x)
        return {"made": made, "centred": made - sn.expand(sn.reduce(made, "mean"), made)}

    graph = sn.Graph(model, inputs=sn.Spec(4, "float32"))
    saved(graph, tmp_path / "m.onnx")
    again = stepnet_onnx.load(tmp_path / "m.onnx")
    for lengths in ([7], [12], [6, 9, 5]):
        x = sn.Ragged.from_list([random(length, 4, seed=length) for length in lengths])
        found, wanted = again(x, engine="interpret"), graph(x, engine="interpret")
        for key, value in wanted.items():
            assert list(found[key].lengths) == list(value.lengths)
            assert_close(found[key].values, value.values, 12, 30)


def function_width(function: Made) -> int:
    """The number of features of a function's results."""
    net = sn.Graph(lambda x, params: function(x), inputs=sn.Spec(4, "float32")).net
    return net.type_of(net.results[0]).shape[0]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "lengths"])
@pytest.mark.parametrize("how", ["sum", "mean", "max", "first", "last"])
def test_reductions_over_other_numbers_of_steps(how: str, lengths: list[int] | None, tmp_path: Path) -> None:
    def model(x: Any, params: Any) -> Any:
        made = sn.conv1d(x, random(5, 4, 3), stride=2, padding="valid")
        return {"row": sn.reduce(made, how), "back": made - sn.expand(sn.reduce(made, how), made)}

    graph = sn.Graph(model, inputs=sn.Spec(4, "float32"))
    check(graph, random(4, 7, 4), tmp_path / "m.onnx", lengths)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "lengths"])
@pytest.mark.parametrize("name", ["fewer steps", "same with a stride", "maxima", "transposed"])
def test_in_float64_the_windows_are_gathered_or_slices(
    name: str, lengths: list[int] | None, tmp_path: Path
) -> None:
    function = OPERATORS[name][0]
    graph = sn.Graph(lambda x, params: function(x), inputs=sn.Spec(4, "float64"))
    x = random(4, 7, 4).astype("float64")
    model = saved(graph, tmp_path / "m.onnx", lengths=lengths is not None)
    (made,), (wanted,) = run(model, [x], lengths), right(graph, [x], lengths or [7] * 4)
    assert made.dtype == np.float64
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-12)
    kinds = {node.op_type for node in model.graph.node}
    assert ("Slice" if name == "fewer steps" else "Gather") in kinds


def test_a_convolution_has_its_weight_once(tmp_path: Path) -> None:
    weight = random(6, 2, 3)
    graph = sn.Graph(lambda x, w: sn.conv1d(x, w, groups=2), weight, inputs=sn.Spec(4, "float32"))
    model = saved(graph, tmp_path / "m.onnx", layout="TN")
    assert [node.op_type for node in model.graph.node] == ["Transpose", "Conv", "Transpose", "Identity"]
    (array,) = map(onnx.numpy_helper.to_array, model.graph.initializer)
    np.testing.assert_array_equal(array, weight)
