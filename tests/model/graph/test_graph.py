"""Models as nets, against the same models in NumPy, one sequence at a time."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import WORDS, RandomModel, random_models
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.errors import InputError, StepError

Array = np.ndarray
LENGTHS = st.lists(st.integers(0, 6), min_size=0, max_size=5)


def words_of(lengths: list[int], seed: int = 0) -> sn.Ragged:
    random = np.random.default_rng(seed)
    return sn.Ragged(random.integers(0, WORDS, sum(lengths)), (np.cumsum([0, *lengths]),))


def assert_model(model: RandomModel, outputs: dict[str, Any], words: list[Array], dtype: str) -> None:
    length = 1 + max(map(len, words), default=0)
    for name, actual in outputs.items():
        rows = actual.to_list() if isinstance(actual, sn.Ragged) else list(actual)
        assert len(rows) == len(words)
        for row, sequence in zip(rows, words, strict=True):
            assert_close(row, model.plain(sequence)[name], length, 200, dtype)


@pytest.mark.long(examples=15)
@settings(max_examples=60)
@given(model=random_models(), lengths=LENGTHS)
def test_models_are_what_they_are_in_numpy(model: RandomModel, lengths: list[int]) -> None:
    words, graph = words_of(lengths), sn.Graph(model, model.structure)
    outputs = graph(words, engine="interpret")
    assert set(outputs) == {*model.ends, *(["steps"] if model.steps else [])}
    assert_model(model, outputs, words.to_list(), "float64")


@pytest.mark.long(examples=4)
@settings(max_examples=15)
@given(model=random_models(), lengths=LENGTHS, dtype=st.sampled_from(["float32", "float64"]))
def test_machine_code_runs_models(model: RandomModel, lengths: list[int], dtype: str) -> None:
    words = words_of(lengths)
    params = sn.Graph(model, model.structure).params
    narrow = {
        "table": params["table"].astype(dtype),
        "layers": tuple(cast_all(layer, dtype) for layer in params["layers"]),
    }
    assert_model(model, sn.Graph(model, narrow)(words), words.to_list(), dtype)


def cast_all(value: Any, dtype: str) -> Any:
    if isinstance(value, dict):
        return {name: cast_all(part, dtype) for name, part in value.items()}
    if isinstance(value, list):
        return [cast_all(part, dtype) for part in value]
    return None if value is None else value.astype(dtype)


# ---- calls -------------------------------------------------------------------------------------------------


gru = partial(rnn_of, "gru")


def test_arrays_with_lengths_and_time_first() -> None:
    layer = sn.Bidirectional(gru(3, 4), gru(3, 4, reverse=True))
    graph = sn.Graph(lambda x, params: {"h": layer(x)[0], "end": sn.reduce(layer(x)[0], "max")})
    x = np.random.default_rng(0).normal(size=(3, 5, 3)).astype("float32")
    lengths = [5, 0, 2]
    right = [graph(sn.Ragged.from_list([row[:length]])) for row, length in zip(x, lengths, strict=True)]
    padded = graph(x, lengths=lengths)
    first = graph(x.swapaxes(0, 1).copy(), lengths=lengths, time_major=True)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(padded["h"][row, :length], right[row]["h"].values)
        assert not padded["h"][row, length:].any()
        np.testing.assert_array_equal(padded["end"][row], right[row]["end"][0])
    np.testing.assert_array_equal(first["h"].swapaxes(0, 1), padded["h"])
    np.testing.assert_array_equal(first["end"], padded["end"])


def test_calls_of_one_shape_are_prepared_once_and_give_the_same() -> None:
    layers = sn.Stack([gru(3, 4), gru(4, 4)])
    graph = sn.Graph(
        lambda x, params: (sn.reduce(layers(x)[0], "last"), layers(x)[0] @ params), np.eye(4, 2, dtype="f4")
    )
    random = np.random.default_rng(0)
    for _ in range(4):
        x = random.normal(size=(2, 6, 3)).astype("float32")
        rows = sn.Ragged.from_list(list(x))
        last, outputs = graph(x)
        right_last, right = graph(rows)
        np.testing.assert_array_equal(last, right_last)
        np.testing.assert_array_equal(outputs.reshape(12, 2), right.values)


def test_statics_and_structures() -> None:
    def model(x: Any, params: Any, statics: Any) -> Any:
        h, _ = params_free(x["a"] + x["b"], initial=statics)
        return {"sum": sn.reduce(h, "sum"), "doubled": 2 * statics}

    params_free = sn.RNN(lambda x, h, params: (h + x, h + x), memory=2)
    graph = sn.Graph(model, inputs={"a": sn.Spec(2, "float64"), "b": sn.Spec(2, "float64")}, statics=2)
    x = {"a": np.ones((2, 3, 2)), "b": np.zeros((2, 3, 2))}
    outputs = graph(x, statics=np.array([[1.0, 1.0], [2.0, 2.0]]))
    np.testing.assert_array_equal(outputs["sum"], [[9, 9], [12, 12]])
    np.testing.assert_array_equal(outputs["doubled"], [[2, 2], [4, 4]])


def test_other_parameters_share_what_is_compiled_and_copies_run() -> None:
    model = Weighted()
    graph = sn.Graph(model, np.full((4, 2), 1, "float32"))
    x = np.random.default_rng(0).normal(size=(2, 3, 3)).astype("float32")
    first, kernels = graph(x), graph.program.kernels
    doubled = graph.with_params(np.full((4, 2), 2, "float32"))
    np.testing.assert_array_equal(doubled(x), 2 * first)
    assert doubled.program.kernels is kernels
    np.testing.assert_array_equal(graph(x), first)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(doubled))(x), 2 * first)
    with pytest.raises(
        InputError, match=r"the parameter is float32\[3, 2\]; that of the graph is float32\[4, 2\]"
    ):
        graph.with_params(np.ones((3, 2), "float32"))


class Weighted:
    """A model that can be pickled."""

    def __call__(self, x: Any, params: Any) -> Any:
        return sn.reduce(gru(3, 4)(x)[0], "last") @ params


def test_arrays_that_a_model_captures_are_parameters() -> None:
    cell = gru(3, 4)
    graph = sn.Graph(lambda x, params: cell(x)[0], inputs=3)
    names = [graph.net.nodes[number].name for number in graph.net.inputs]
    assert names == ["x", "gru.W", "gru.R", "gru.b", "gru.d"]
    assert not [node for node in graph.net.nodes if node.operation == "constant" and node.type.size > 16]


def test_one_layer_and_its_ends_are_a_single_plan() -> None:
    cell = gru(3, 4)

    def model(words: Any, params: Any) -> Any:
        return sn.softmax(sn.reduce(cell(params["table"][words])[0], "mean") @ params["W"])

    graph = sn.Graph(
        model, {"table": np.ones((5, 3), "f4"), "W": np.ones((4, 2), "f4")}, inputs=sn.Spec((), "int64")
    )
    assert graph.schedule.single_plan is not None
    assert "mean of" in graph.explain()
    assert "h @ [gru.R" in graph.explain()
    assert "gather table x" in str(graph.net)


def test_a_graph_prints_its_layers_on_one_screen() -> None:
    weights = [np.eye(3, dtype="float32")] * 40

    def model(x: Any, params: Any) -> Any:
        for weight in params:
            x = np.tanh(np.tanh(x) @ weight)
        return {f"y{place}": x * place for place in range(1, 8)}

    graph = sn.Graph(model, weights)
    assert str(graph) == repr(graph)
    graph(np.ones((1, 2, 3), "float32"))
    head, *lines = str(graph).splitlines()
    assert head == "model: 360 parameters (1.4 KiB)"
    assert lines[0].split() == ["x", "[sequences,", "steps,", "3]"]
    assert lines[1].split() == ["matmul", "[sequences,", "steps,", "3]", "9"]
    assert lines[-2] == "  and 24 more layers, which `stepnet show` lists"
    assert lines[-1].startswith("  outputs: y1 [sequences, steps, 3], y2 ")
    assert (lines[-1].endswith("] and 3 more"), len(lines)) == (True, 19)


def test_a_graph_is_a_part_of_another() -> None:
    inner = sn.Graph(lambda x, params: np.tanh(gru(3, 4)(x)[0] @ params), np.ones((4, 3), "float32"))
    outer = sn.Graph(lambda x, params: sn.reduce(inner(inner(x)), "mean"))
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    assert_close(outer(x), inner(inner(x)).mean(axis=1), 5, 10)
    for name, value in {"initial": x[:, 0], "lengths": [1], "engine": "llvm", "last_only": True}.items():
        message = rf"{name}= is not for a graph inside a model: give it to the outer one"
        refused(lambda x, params, given={name: value}: inner(x, **given), message)


# ---- what is refused ---------------------------------------------------------------------------------------


def refused(model: Any, message: str, kind: Any = StepError, **call: Any) -> None:
    with pytest.raises(kind, match=message):
        sn.Graph(model)(np.ones((2, 3, 2), "float32"), **call)


def test_mistakes_name_the_line() -> None:
    refused(lambda x, params: (), r"a model returns its outputs; this one returns none")
    refused(
        lambda x, params: x.foo(),
        r"array method \.foo is not an operation of a step: .*\n  at .*test_graph\.py",
    )
    for wrong in (lambda x, p: x.mean(2), lambda x, p: x.mean(0), lambda x, p: x.mean()):
        refused(wrong, r'steps are no axis of a value: over them write sn.reduce\(x, "mean"\)')
    refused(
        lambda x, params: x + sn.reduce(x, "max"),
        r"values along different axes meet: rows/steps and rows; sn.reduce",
    )
    refused(lambda x, params: "h", r"the output is .*", (StepError, InputError))


def test_inputs_that_are_statics_are_told_so() -> None:
    def model(x: Any, params: Any, statics: Any) -> Any:
        return x + sn.expand(statics["y"], x)

    graph = sn.Graph(model, inputs=sn.Spec(2), statics={"y": 2})
    x = np.ones((1, 3, 2), "float32")
    with pytest.raises(InputError, match=r"this graph was made for array, with statics=\{y: array\}"):
        graph((x, x))


def test_statics_fit_the_model() -> None:
    refused(
        lambda x, params: x,
        r"the model has no parameter named `statics`, and they were given",
        InputError,
        statics=np.ones((2, 1)),
    )
    refused(
        lambda x, params, statics: x,
        r"the model has a parameter named `statics`, and none were given",
        InputError,
    )
    with pytest.raises(InputError, match=r"model is a function model\(x, params\)"):
        sn.Graph(3)  # pyright: ignore[reportArgumentType]
    for wrong, message in (
        (lambda: 1, r"is called as <lambda>\(x, params\), and takes \(.*\): too many positional arguments"),
        (lambda x: x, r"is called as <lambda>\(x, params\), and takes \(.*\): too many positional arguments"),
        (lambda x, params, b: x, r"\(x, params\), and takes .*: missing a required argument: 'b'"),
        (
            lambda x, params, statics, b: x,
            r"\(x, params, statics\), and takes .*: missing a required argument: 'b'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            sn.Graph(wrong)
    with pytest.raises(
        InputError, match=r"is called as <lambda>\(x, memory, params\), and takes .*: too many"
    ):
        sn.RNN(lambda x, h: (x, h), memory=3, inputs=3)
    with pytest.raises(InputError, match=r"call the graph once, or make it with inputs="):
        print(sn.Graph(lambda x, params: x).net)


def test_inputs_fit_what_was_declared() -> None:
    graph = sn.Graph(lambda x, params: sn.reduce(x, "max"), inputs=3)
    with pytest.raises(InputError, match=r"input has features \[2\]; this graph was made for \[3\]"):
        graph(np.ones((1, 2, 2), "float32"))
    with pytest.raises(InputError, match=r"this graph was made for array: pass the array itself$"):
        graph({"frames": np.ones((1, 2, 3), "float32")})


@pytest.mark.parametrize("engine", ["llvm", "interpret", ("onednn", "llvm")])
def test_a_step_that_does_not_read_its_memory(engine: Any) -> None:
    random = np.random.default_rng(0)
    weights = random.normal(size=(3, 2))

    def step(x: Any, memory: Any, p: Any) -> Any:
        y = np.tanh(x @ p)
        return y, {"y": y, "count": memory["count"] + 1}

    memory = {"y": 2, "count": ()}
    here, back = (sn.RNN(step, weights, memory=memory, reverse=reverse) for reverse in (False, True))

    def model(x: Any, params: Any) -> Any:
        both = np.concatenate([here(x)[0], back(x)[0]], axis=-1)
        return {"steps": both, "sum": sn.reduce(here(x)[0], "sum")}

    sequences = [random.normal(size=(length, 3)) for length in (4, 0, 2)]
    outputs = sn.Graph(model)(sn.Ragged.from_list(sequences), engine=engine)
    for place, x in enumerate(sequences):
        right = np.tanh(x @ weights)
        assert_close(outputs["steps"][place], np.concatenate([right, right], axis=-1), 4, 3)
        assert_close(outputs["sum"][place], right.sum(axis=0), 4, 3)


def test_a_recurrence_begins_at_an_array() -> None:
    gru, lstm = rnn_of("gru", 3, 4, dtype="float32"), rnn_of("lstm", 4, 4, dtype="float32")
    h, c = (np.full(4, number, "float32") for number in (0.5, -1))

    def model(x: Any, params: Any) -> Any:
        outputs, _ = gru(x, initial=h)
        return lstm(outputs, initial={"h": params, "c": c})[0]

    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    rows = {name: np.stack([array, array]) for name, array in (("h", h), ("c", c))}
    outputs, _ = lstm(gru(x, initial=rows["h"])[0], initial=rows)
    np.testing.assert_array_equal(sn.Graph(model, h)(x), outputs)
    wrong = sn.Graph(lambda x, params: gru(x, initial=np.zeros((1, 4), "float32"))[0])
    with pytest.raises(StepError, match=r"the initial memory `h` is f32\[1, 4\]; it should be f32\[4\]"):
        wrong(x)


def test_a_long_chain_of_operations() -> None:
    def model(x: Any, params: Any) -> Any:
        for _ in range(400):
            x = 0.125 - np.abs(x)
        return x

    x = np.array([[[1.5]], [[-0.25]]], "float32")  # numbers of which all results are exact
    np.testing.assert_array_equal(sn.Graph(model)(x), model(x, None))
