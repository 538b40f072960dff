"""Graphs saved as ONNX models: run by onnxruntime, against the interpreter in float64."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import WORDS, RandomModel, random_models
from tolerance import assert_close
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.values import leaves, transform
from stepnet.errors import FileError, InputError, ModelError
from tests.onnx.onnx_saved import LENGTHS, assert_saved, onnx, operators, right, run, saved, stepnet_onnx

Array = np.ndarray


random = partial(uniform, seed=0)


# ---- cells -------------------------------------------------------------------------------------------------

WRITTEN = {
    "simple_rnn": "RNN",
    "simple_rnn_relu": "RNN",
    "gru": "GRU",
    "gru_reset_before": "GRU",
    "minimal_gated_unit": "GRU",
    "lstm": "LSTM",
    "lstm_peephole": "LSTM",
    "lstm_projection": "Scan",
}


def named_cell(name: str, reverse: bool) -> sn.RNN:
    return rnn_of(name, 3, 4, seed=1, projected=2, reverse=reverse)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", sn.cells.CELLS)
def test_cells_are_the_operators_of_onnx(name: str, reverse: bool, tmp_path: Path) -> None:
    rnn = named_cell(name, reverse)
    graph = sn.Graph(lambda x, params: rnn(x), inputs=3)
    assert operators(saved(graph, tmp_path / "m.onnx")) == [WRITTEN[name]]
    assert_saved(graph, [random(4, 5, 3)], tmp_path / "m.onnx")


def test_recurrences_in_float64_are_scans_which_alone_onnxruntime_runs(tmp_path: Path) -> None:
    params = {name: array.astype("float64") for name, array in sn.cells.CELLS["gru"].parameters(3, 4).items()}
    rnn = sn.cells.rnn("gru", params)
    graph = sn.Graph(lambda x, params: rnn(x), inputs=sn.Spec(3, "float64"))
    x = random(4, 5, 3).astype("float64")
    model = saved(graph, tmp_path / "m.onnx", lengths=True)
    assert operators(model) == ["Scan"]
    for actual, wanted in zip(run(model, [x], LENGTHS), right(graph, [x], LENGTHS), strict=True):
        assert_close(actual, wanted, 5, 30)


def leaky(x: Any, h: Any, params: Any) -> Any:
    h = 0.5 * h + 0.5 * np.tanh(x @ params["W"] + h @ params["R"])
    return np.tanh(h @ params["V"]), h


def coupled_lstm(x: Any, state: Any, params: Any) -> Any:
    h, c = state["h"], state["c"]
    f, g, o = np.split(np.concatenate([x, h], axis=-1) @ params["W"], 3, axis=-1)
    f = sn.sigmoid(f + 1)
    c = f * c + (1 - f) * np.tanh(g)
    h = sn.sigmoid(o) * np.tanh(c)
    return h, {"h": h, "c": c}


def writing_gru(x: Any, h: Any, params: Any) -> Any:
    z = 1 / (1 + np.exp(-(np.concatenate([h, x], axis=-1) @ params["Z"])))
    r = sn.sigmoid(np.concatenate([h, x], axis=-1) @ params["R"])
    n = np.tanh(np.concatenate([r * h, x], axis=-1) @ params["N"])
    h = (1 - z) * h + z * n
    return h @ params["V"], h


def counting(x: Any, state: Any, params: Any, index: Any) -> Any:
    h, count = state["h"], state["count"]
    h = np.where((count < 2)[:, None], h + x, h * 0.5) + index[:, None].astype("float32")
    return (h.sum(axis=-1), count), {"h": h, "count": count + 1}


def own(step: Any, params: Any, memory: Any, reverse: bool = False) -> sn.Graph:
    rnn = sn.RNN(step, params, memory=memory, reverse=reverse)
    return sn.Graph(lambda x, params: rnn(x), inputs=3)


OWN: dict[str, tuple[Callable[[bool], sn.Graph], str]] = {
    "leaky": (
        lambda way: own(leaky, {"W": random(3, 4), "R": random(4, 4), "V": random(4, 4)}, 4, way),
        "Scan",
    ),
    "coupled LSTM": (lambda way: own(coupled_lstm, {"W": random(7, 12)}, {"h": 4, "c": 4}, way), "LSTM"),
    "GRU that writes, projected outputs": (
        lambda way: own(
            writing_gru, {n: random(7, 4, seed=s) for s, n in enumerate("ZRN")} | {"V": random(4, 2)}, 4, way
        ),
        "GRU",
    ),
    "numbers of steps": (
        lambda way: own(counting, None, {"h": 3, "count": sn.Spec((), "int64")}, way),
        "Scan",
    ),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", OWN)
def test_own_cells_are_recognised_or_scanned(name: str, reverse: bool, tmp_path: Path) -> None:
    made, operator = OWN[name]
    graph = made(reverse)
    assert operators(saved(graph, tmp_path / "m.onnx")) == [operator]
    assert_saved(graph, [random(4, 5, 3)], tmp_path / "m.onnx")


# ---- models ------------------------------------------------------------------------------------------------


def graph_of(model: RandomModel) -> sn.Graph:
    params = transform(lambda array: array.astype("float32"), model.structure)
    return sn.Graph(model, params, inputs=sn.Spec((), "int64"))


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(model=random_models(convolutions=False))
def test_random_models(model: RandomModel, tmp_path_factory: Any) -> None:
    words = np.random.default_rng(0).integers(0, WORDS, (4, 5))
    assert_saved(graph_of(model), [words], tmp_path_factory.mktemp("m") / "m.onnx", 100)


@pytest.mark.long(examples=5)
@settings(max_examples=15)
@given(model=random_models(convolutions=False), layout=st.sampled_from(["NT", "TN"]))
def test_a_saved_model_is_loaded_as_the_same_graph(
    model: RandomModel, layout: str, tmp_path_factory: Any
) -> None:
    graph, path = graph_of(model), tmp_path_factory.mktemp("m") / "m.onnx"
    saved(graph, path, layout=layout)
    loaded = stepnet_onnx.load(path, axes={"x": layout})
    words = sn.Ragged.from_list([np.arange(length) % WORDS for length in (4, 1, 6)])
    made = loaded(words, engine="interpret")
    for actual, wanted in zip(leaves(made), leaves(graph(words, engine="interpret")), strict=True):
        if isinstance(wanted, sn.Ragged):
            actual, wanted = actual.values, wanted.values
        assert_close(actual, wanted, 6, 100)


def test_time_first(tmp_path: Path) -> None:
    rnn = named_cell("gru", False)
    graph = sn.Graph(lambda x, params: {"h": rnn(x)[0], "end": rnn(x)[1]}, inputs=3)
    x = random(4, 5, 3)
    model = saved(graph, tmp_path / "m.onnx", layout="TN", lengths=True)
    h, end = run(model, [x.swapaxes(0, 1)], LENGTHS)
    wanted = right(graph, [x], LENGTHS)
    assert_close(h.swapaxes(0, 1), wanted[0], 5, 30)
    assert_close(end, wanted[1], 5, 30)


def test_statics_are_inputs_and_memories_begin_with_them(tmp_path: Path) -> None:
    rnn, scanned = named_cell("gru", True), sn.RNN(leaky_with, memory=4)

    def model(x: Any, params: Any, statics: Any) -> Any:
        h, _ = rnn(x["frames"], initial=statics["h"])
        y, last = scanned(h, statics=statics["scale"])
        return {"y": y + sn.expand(statics["scale"], y), "last": last, "frames": x["more"]}

    inputs = {"frames": sn.Spec(3, "float32"), "more": sn.Spec((), "float32")}
    statics = {"h": sn.Spec(4, "float32"), "scale": sn.Spec(4, "float32")}
    graph = sn.Graph(model, inputs=inputs, statics=statics)
    arrays = [random(4, 5, 3), random(4, 5), random(4, 4, seed=1), random(4, 4, seed=2)]
    assert_saved(graph, arrays, tmp_path / "m.onnx")
    names = [value.name for value in saved(graph, tmp_path / "m.onnx", lengths=True).graph.input]
    assert names == ["frames", "more", "h", "scale", "lengths"]


def leaky_with(x: Any, h: Any, params: Any, statics: Any) -> Any:
    h = 0.5 * h + np.tanh(x * statics)
    return h, h


# ---- operations --------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 2) * x / 3 - x,
    "floor_divide": lambda x: (x * 7) // 1.5 + (x * 7) // -1.5,
    "remainder": lambda x: (x * 7) % 1.5 + (x * 7) % -1.5,
    "whole numbers": lambda x: (w := (x * 9).astype("int32")) // 4 + w % 4 + w // -4 + w % -4 + abs(w),
    "bounds": lambda x: np.minimum(np.maximum(x, -0.5), 0.5),
    "comparisons": lambda x: (x > 0) & (x >= 0.1) | (x < -0.5) ^ (x <= -0.1),
    "equal": lambda x: (np.sign(x) == 1) != np.logical_not(x > 0.5),
    "truth values added": lambda x: (x > 0) + (x > 0.5),
    "where": lambda x: np.where(x > 0, x, 1),
    "rounded": lambda x: np.floor(x * 5) + np.ceil(x * 3) + np.rint(x * 4),
    "roots": lambda x: np.sqrt(abs(x)) + x**3,
    "exponentials": lambda x: np.exp(x) + np.expm1(x) + np.expm1(x * 1e-6) * 1e6,
    "logarithms": lambda x: np.log(x + 2) + np.log1p(x) + np.log1p(x * 1e-6) * 1e6,
    "angles": lambda x: np.sin(x) + np.cos(x) + np.tan(x) + np.arctan(x),
    "hyperbolic": lambda x: np.sinh(x) + np.cosh(x) + np.tanh(x) + sn.sigmoid(x),
    "erf": lambda x: sn.gelu(x),
    "slices": lambda x: np.concatenate([x[:, ::-1], x[:, 1:4:2], x[:, -2:]], axis=-1),
    "views": lambda x: x.reshape(-1, 2, 3).transpose(0, 2, 1).reshape(x.shape[0], 6)[:, [5, 0, 0]],
    "broadcast": lambda x: np.broadcast_to(x.reshape(x.shape[0], 2, 1, 3), (x.shape[0], 2, 2, 3)),
    "over features": lambda x: x.sum(axis=-1) + x.max(axis=-1) * x.min(axis=-1) + x.mean(axis=-1),
    "argmax": lambda x: x.argmax(axis=-1),
    "cumulated": lambda x: np.cumsum(x, axis=-1) + np.cumprod(x + 0.5, axis=-1),
    "softmax": lambda x: sn.softmax(x),
    "matmul": lambda x: x.reshape(-1, 2, 3) @ random(3, 4),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_on_features(name: str, tmp_path: Path) -> None:
    function = FUNCTIONS[name]

    def model(x: Any, params: Any) -> Any:
        return {"steps": function(x), "rows": function(sn.reduce(x, "first") * 0.9)}

    assert_saved(sn.Graph(model, inputs=sn.Spec(6, "float32")), [random(4, 5, 6)], tmp_path / "m.onnx")


@pytest.mark.long(each=True)
@pytest.mark.parametrize("how", ["sum", "mean", "max", "first", "last"])
@pytest.mark.parametrize("features", [(), (2,), (2, 3)], ids=str)
def test_reductions_over_steps(how: str, features: tuple[int, ...], tmp_path: Path) -> None:
    def model(x: Any, params: Any) -> Any:
        made = {"floats": sn.reduce(x - 2, how), "back": x - sn.expand(sn.reduce(x, how), x)}
        wholes = (x * 9).astype("int64") - 20
        return (
            made
            | ({"wholes": sn.reduce(wholes, how)} if how != "mean" else {})
            | ({"truth": sn.reduce(x > 0, how)} if how in ("first", "last", "max") else {})
        )

    assert_saved(
        sn.Graph(model, inputs=sn.Spec(features, "float32")), [random(4, 5, *features)], tmp_path / "m.onnx"
    )


def test_attention_over_steps(tmp_path: Path) -> None:
    def model(x: Any, params: Any) -> Any:
        return sn.reduce(sn.softmax_over_steps(x @ params) * x, "sum")

    graph = sn.Graph(model, random(3, 1), inputs=sn.Spec(3, "float32"))
    assert_saved(graph, [random(4, 5, 3)], tmp_path / "m.onnx")


def test_rows_of_a_parameter_at_negative_places_too(tmp_path: Path) -> None:
    graph = sn.Graph(lambda x, params: params[x - 3], random(6, 2), inputs=sn.Spec((2,), "int64"))
    assert_saved(graph, [np.arange(40).reshape(4, 5, 2) % 6], tmp_path / "m.onnx")


def test_halves_are_stored_and_computed_in_float32(tmp_path: Path) -> None:
    graph = sn.Graph(
        lambda x, params: x @ params, random(3, 2).astype("float16"), inputs=sn.Spec(3, "float16")
    )
    x = random(5, 4, 3).astype("float16")
    (made,) = run(saved(graph, tmp_path / "m.onnx", layout="TN", lengths=True), [x], LENGTHS)
    wanted = x.astype("float64") @ random(3, 2).astype("float16")
    wanted[np.arange(5)[:, None] >= np.array(LENGTHS)] = 0
    assert made.dtype == np.float16
    assert_close(made, wanted, 1, 3)


def test_constants_are_computed_once(tmp_path: Path) -> None:
    graph = sn.Graph(lambda x, params: x @ np.tanh(params * 2), random(3, 2), inputs=sn.Spec(3, "float32"))
    model = saved(graph, tmp_path / "m.onnx", layout="TN")
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Identity"]
    (array,) = map(onnx.numpy_helper.to_array, model.graph.initializer)
    np.testing.assert_array_equal(array, np.tanh(random(3, 2) * 2))


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "op"), [(sn.gelu, "Erf"), (np.tan, "Tan"), (np.arctan, "Atan"), (np.cosh, "Cosh")]
)
def test_operators_without_float64_in_onnxruntime_are_refused(tmp_path: Path, function: Any, op: str) -> None:
    graph = sn.Graph(lambda x, params: function(x), inputs=sn.Spec(3, "float64"))
    with pytest.raises(ModelError, match=rf"cannot be written as ONNX: onnxruntime has no {op} of float64"):
        stepnet_onnx.save(graph, tmp_path / "m.onnx")


def test_what_onnx_lacks_is_refused_with_its_line(tmp_path: Path) -> None:
    inner = sn.RNN(lambda x, h, params: (h + x, h + x), memory=3)

    def outer(x: Any, h: Any, params: Any) -> Any:
        h = h + inner(x, initial="zeros")[1]
        return h, h

    rnn = sn.RNN(outer, memory=3)
    graph = sn.Graph(lambda x, params: rnn(x)[1], inputs=sn.Spec(3, "float32", 1))
    with pytest.raises(ModelError, match=r"cannot be written as ONNX: .* ONNX has no nested sequences"):
        stepnet_onnx.save(graph, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments(tmp_path: Path) -> None:
    graph = sn.Graph(lambda x, params: x * 2)
    with pytest.raises(InputError, match="the inputs are not known yet"):
        stepnet_onnx.save(graph, tmp_path / "m.onnx")
    graph = sn.Graph(lambda x, params: x * 2, inputs=sn.Spec(3, "float32"))
    with pytest.raises(InputError, match="layout is one of NT, TN, not 'BT'"):
        stepnet_onnx.save(graph, tmp_path / "m.onnx", layout="BT")
    with pytest.raises(InputError, match="save takes an RNN, a Stack, a Bidirectional or a Graph, not Net"):
        stepnet_onnx.save(graph.net, tmp_path / "m.onnx")
    stepnet_onnx.save(graph, tmp_path / "m.onnx")
    with pytest.raises(InputError, match="path is a text or a Path, not 3"):
        stepnet_onnx.save(graph, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileError, match="there already"):
        stepnet_onnx.save(graph, tmp_path / "m.onnx")
