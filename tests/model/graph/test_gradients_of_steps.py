"""Gradients of graphs called with initial=, mask=, begun= and last_only=: beside differences and layers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import WORDS, RandomModel, random_models
from same_bits import assert_same_bits
from tolerance import assert_close
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.compiler.values import leaves
from stepnet.errors import InputError
from tests.model.graph.model_gradients import (
    LENGTH,
    OWN,
    WIDTH,
    assert_model,
    cotangents_of,
    frames,
    numbers,
    own,
)
from tests.model.graph.test_graph_streams import has_stream, without_later_steps

Array = np.ndarray
ROWS, STEPS = 4, 6
X = numbers(ROWS, STEPS, 3)
MASK = np.arange(STEPS) % 3 != np.arange(ROWS)[:, None] % 3


# ---- models ------------------------------------------------------------------------------------------------


def two_layers(x: Any, params: Any) -> Any:
    below, _ = own(params["own"])(x)
    above, _ = own(params["own"])(np.maximum(below @ params["P"], 0.1))
    return np.tanh((below + above) @ params["Q"])


def causal(x: Any, params: Any) -> Any:
    """A convolution that reads two earlier steps, and a recurrence."""
    return own(params["own"])(sn.conv1d(x, params["kernel"]))[0]


def counts(x: Any, params: Any) -> Any:
    """A recurrence that reads the number of earlier steps."""

    def step(x: Any, h: Any, params: Any, index: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ params["W"] + h @ params["R"] / (1.0 + index[:, None].astype(x.dtype)))
        return h, h

    return sn.RNN(step, params, memory=3)(x)[0]


def ends(x: Any, params: Any) -> Any:
    """Outputs that a sequence has once, and one of each step."""
    h, final = own(params["own"])(x)
    return {"last": sn.reduce(h, "last") @ params["P"], "final": np.tanh(final), "steps": h * 2}


def begins(x: Any, params: Any, statics: Any) -> Any:
    """A recurrence that begins with a value of statics and parameters, and a static at each step."""
    first = np.tanh(statics @ params["P"])
    return own(params["own"])(x * sn.expand(statics, x), initial=first)[0] @ params["Q"]


def no_memory(x: Any, params: Any) -> Any:
    return np.tanh(x @ params["own"]["W"])


PARAMS = {"own": OWN, "P": numbers(3, 3, seed=3), "Q": numbers(3, 3, seed=4), "kernel": numbers(3, 3, 3)}
STATICS = numbers(ROWS, 3, seed=5)
MODELS: dict[str, tuple[Any, Any]] = {
    "two layers": (two_layers, PARAMS),
    "causal": (causal, PARAMS),
    "counts": (counts, OWN),
    "ends": (ends, PARAMS),
    "begins": (begins, PARAMS),
    "no memory": (no_memory, PARAMS),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "last_only": {"last_only": True},
    "begun": {"begun": [0, 3, 1, 2]},
    "mask": {"mask": MASK},
    "zero": {"mask": MASK, "masked": "zero", "last_only": True, "begun": 2},
    "lengths": {"mask": MASK, "lengths": [6, 1, 4, 2]},
}


def statics_of(name: str) -> Any:
    return STATICS if name == "begins" else None


def state_of(graph: sn.Graph, rows: int, x: Array, statics: Any = None) -> Any:
    """The state of a stream after two steps, in float64."""
    stream = graph.stream(rows, statics=statics, engine="interpret")
    for step in range(2):
        stream.step(x[:, step])
    return stream.state


@pytest.mark.long(each=True)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_call(name: str, option: str) -> None:
    model, params = MODELS[name]
    if name == "ends" and "mask" in OPTIONS[option]:
        with pytest.raises(InputError, match="last is a value that each sequence has once, and a mask says"):
            sn.vjp(sn.Graph(model, params))(X, **OPTIONS[option])
        return
    assert_model(model, params, X, statics_of(name), **OPTIONS[option])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_given_memories(name: str) -> None:
    model, params = MODELS[name]
    state = state_of(sn.Graph(model, params), ROWS, X, statics_of(name))
    assert_model(model, params, X, statics_of(name), ("float64",), initial=state)
    masked = {} if name == "ends" else {"mask": MASK, "masked": "zero"}
    assert_model(model, params, X, statics_of(name), (), initial=state, last_only=True, begun=1, **masked)


def test_the_last_output_after_a_stride() -> None:
    def strided(x: Any, params: Any) -> Any:
        return own(params["own"])(sn.conv1d(x, params["kernel"], stride=2))[0]

    assert_model(strided, PARAMS, X, last_only=True, lengths=[6, 0, 3, 1])


def test_raggeds_and_time_major() -> None:
    x, state = frames(3), (numbers(4, 3), numbers(4, 3, seed=1))
    mask = x.with_values(np.arange(len(x.values)) % 3 > 0)
    assert_model(two_layers, PARAMS, x, initial=state, mask=mask)
    turned = {"mask": MASK.T.copy(), "time_major": True, "last_only": True}
    assert_model(two_layers, PARAMS, X.swapaxes(0, 1).copy(), initial=state, **turned)


@pytest.mark.long(examples=4)
@settings(max_examples=30)
@given(model=random_models(), seed=st.integers(0, 9))
def test_random_models(model: RandomModel, seed: int) -> None:
    model = without_later_steps(model)
    random = np.random.default_rng(seed)
    words, mask = random.integers(0, WORDS, (2, 4)), random.random((2, 4)) > 0.3
    if not has_stream(model):
        return  # a layer in both directions, or an end that needs all steps
    state = state_of(sn.Graph(model, model.structure), 2, words)
    options: dict[str, Any] = {"begun": 1} if model.ends else {"mask": mask}
    given = {"initial": state} if leaves(state) else {}
    assert_model(model, model.structure, words, None, ("float64",), **given, **options)


# ---- beside layers -----------------------------------------------------------------------------------------


def weighted_outer(x: Any, S: Any, params: Any) -> tuple[Any, Any]:
    """A step whose memory is a matrix: its gradient runs in blocks of steps."""
    S = 0.9 * S + (x @ params["W"])[:, :, None] * x[:, None, :]
    return np.sum(S * (x @ params["R"])[:, None, :], axis=-1), S


BIG = {"W": numbers(16, 16), "R": numbers(16, 16, seed=1)}
LAYERS: dict[str, tuple[Any, Array, Any]] = {
    "vector": (lambda params: own(params), X, OWN),
    "matrix": (
        lambda params: sn.RNN(weighted_outer, params, memory=(16, 16)),
        numbers(ROWS, 9, 16),
        BIG,
    ),
}


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("checkpoint", [None, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_of_one_recurrence_has_its_bits(name: str, dtype: str, checkpoint: Any) -> None:
    make, x, params = LAYERS[name]
    x, params = x.astype(dtype), {key: array.astype(dtype) for key, array in params.items()}
    layer, graph = make(params), sn.Graph(lambda x, params: make(params)(x)[0], params)
    memory = layer.memory.shape
    options: dict[str, Any] = {
        "initial": numbers(ROWS, *memory).astype(dtype),
        "mask": np.arange(x.shape[1]) % 3 != np.arange(ROWS)[:, None] % 3,
    }
    for call in (options, {"initial": options["initial"]}, {**options, "last_only": True, "begun": 2}):
        (right, _), backward_of_layer = sn.vjp(layer)(x, checkpoint=checkpoint, **call)
        outputs, backward = sn.vjp(graph)(x, checkpoint=checkpoint, **call)
        assert_same_bits(outputs, right)
        one, other = backward(cotangents_of(right)), backward_of_layer(cotangents_of(right))
        for kind in ("params", "inputs", "initial"):
            assert_same_bits(getattr(one, kind), getattr(other, kind))


def test_layers_in_a_graph_have_the_gradients_of_a_stack() -> None:
    stack = sn.Stack([own(OWN), own({name: -array for name, array in OWN.items()})])
    model = sn.Graph(lambda x, params: sn.Stack([own(params[0]), own(params[1])])(x)[0], list(stack.params))
    state = numbers(ROWS, 3), numbers(ROWS, 3, seed=1)
    (right, _), backward_of_stack = sn.vjp(stack)(X, initial=state, mask=MASK, masked="zero")
    outputs, backward = sn.vjp(model)(X, initial=state, mask=MASK, masked="zero")
    assert_close(outputs, right, LENGTH, WIDTH)
    one, other = backward(cotangents_of(right)), backward_of_stack(cotangents_of(right))
    for kind in ("params", "inputs", "initial"):
        for left, known in zip(leaves(getattr(one, kind)), leaves(getattr(other, kind)), strict=True):
            assert_close(left, known, LENGTH, WIDTH)


def squares(outputs: Any, targets: Any) -> Any:
    return np.sum((outputs - targets) ** 2, axis=-1)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("checkpoint", [None, 2, "sqrt"])
@pytest.mark.parametrize("last_only", [False, True])
def test_losses_and_checkpoints(last_only: bool, checkpoint: Any) -> None:
    graph, state = sn.Graph(two_layers, PARAMS), (numbers(ROWS, 3), numbers(ROWS, 3, seed=1))
    targets = numbers(ROWS, 3, seed=8) if last_only else numbers(ROWS, STEPS, 3, seed=8)
    calls: list[dict[str, Any]] = [{"initial": state}, {"initial": state, "mask": MASK}, {"begun": 2}, {}]
    for options in calls:
        call: dict[str, Any] = options | {"last_only": last_only}
        right, backward = sn.vjp(graph)(X, **call, engine="interpret")
        kinds = ("params", "inputs", *(["initial"] if "initial" in options else []))
        value, gradients = sn.value_and_grad(squares, graph, reduce="sum")(
            X, targets, wrt=kinds, checkpoint=checkpoint, **call
        )
        assert_close(value, np.sum((right - targets) ** 2), LENGTH, WIDTH)
        known = backward(2 * (right - targets))
        for kind in kinds:
            for one, other in zip(
                leaves(getattr(gradients, kind)), leaves(getattr(known, kind)), strict=True
            ):
                assert_close(one, other, LENGTH, WIDTH)


# ---- prepared calls ----------------------------------------------------------------------------------------


def test_calls_with_and_without_memories_alternate() -> None:
    graph = sn.Graph(begins_with_a_parameter, {"own": OWN, "begin": numbers(3)})
    run, train = sn.vjp(graph), sn.value_and_grad(squares, graph)
    calls: list[dict[str, Any]] = [
        {"initial": numbers(ROWS, 3, seed=2)},
        {},
        {"last_only": True},
        {"initial": numbers(ROWS, 3, seed=2), "last_only": True},
    ]
    first = dict[int, Any]()
    for _ in range(4):
        for place, options in enumerate(calls):
            targets = X[:, 0] if "last_only" in options else X
            outputs, backward = run(X, **options)
            gradients = backward(outputs)
            value, of_loss = train(X, targets, **options)
            made = (outputs, gradients.params, gradients.inputs, gradients.initial, value, of_loss.params)
            assert_same_bits(outputs, sn.vjp(graph)(X, **options)[0])
            assert_same_bits(made, first.setdefault(place, made))
            assert (gradients.initial is None) == ("initial" not in options)


def begins_with_a_parameter(x: Any, params: Any) -> Any:
    return own(params["own"])(x, initial=params["begin"])[0]


def test_given_parameters_are_taken() -> None:
    graph, state = sn.Graph(two_layers, PARAMS), (numbers(ROWS, 3), numbers(ROWS, 3, seed=1))
    moved = PARAMS | {"Q": 2 * PARAMS["Q"]}
    right = sn.vjp(graph.with_params(moved))(X, initial=state, mask=MASK)
    outputs, backward = sn.vjp(graph)(X, params=moved, initial=state, mask=MASK)
    assert_same_bits(outputs, right[0])
    assert_same_bits(backward(outputs).params, right[1](outputs).params)


def test_captured_arrays_and_given_memories() -> None:
    layer = own(OWN)
    graph, state = sn.Graph(lambda x, params: layer(x)[0] * params, numbers(3)), numbers(ROWS, 3)
    outputs, backward = sn.vjp(graph)(X, initial=state)
    assert_close(outputs, graph(X, initial=state), LENGTH, WIDTH)
    _, backward_of_layer = sn.vjp(layer)(X, initial=state)
    right = backward_of_layer(outputs * numbers(3)).initial
    assert_close(backward(outputs).initial, right, LENGTH, WIDTH)


# ---- what stays a constant, and what is refused ------------------------------------------------------------


class Detached(nn.Module):
    """A module that stops the gradient between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.GRU(3, 3, batch_first=True), nn.GRU(3, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.above(self.below(x)[0].detach())[0]


def test_a_detached_value_has_no_gradient() -> None:
    torch.manual_seed(0)
    graph = stepnet.torch.graph(Detached().double(), torch.zeros(1, 2, 3, dtype=torch.float64))
    state = state_of(graph, ROWS, X)
    outputs, backward = sn.vjp(graph)(X, initial=state)
    below, above = leaves(backward(np.ones_like(outputs)).initial)
    assert not below.any()
    assert above.all()


def test_mistakes() -> None:
    graph, state = sn.Graph(two_layers, PARAMS), (numbers(ROWS, 3), numbers(ROWS, 3, seed=1))
    run = sn.vjp(graph)
    mean = sn.Graph(lambda x, params: sn.reduce(own(params)(x)[0], "mean"), OWN)
    given: list[tuple[sn.Graph, dict[str, Any]]] = [
        (graph, {"initial": state[0]}),
        (graph, {"initial": (state[0][:2], state[1])}),
        (graph, {"mask": MASK[:, :2]}),
        (graph, {"mask": MASK, "masked": "one"}),
        (graph, {"begun": -1}),
        (graph, {"last_only": 1}),
        (mean, {"initial": state[0]}),
        (mean, {"begun": 1}),
        (mean, {"mask": MASK}),
    ]
    for model, options in given:
        with pytest.raises(InputError) as of_call:
            model(X, **options)
        with pytest.raises(InputError) as of_gradient:
            sn.vjp(model)(X, **options)
        assert str(of_gradient.value) == str(of_call.value)
    with pytest.raises(InputError, match="wrt is some of 'params', 'inputs', 'statics', not 'initial'"):
        run(X, wrt="initial")
    outputs, backward = run(X, wrt="initial", initial=state)
    assert [array.shape for array in backward(outputs).initial] == [(ROWS, 3)] * 2


def test_a_quantized_graph_is_refused() -> None:
    layer = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(3, 4))
    x = X.astype("float32")
    small = sn.quantize(sn.Graph(lambda x, params: layer(x)[0]), [x], "bfloat16")
    message = (
        "initial=, mask= and begun= are not for the gradient of a quantized graph: take that of the graph"
    )
    with pytest.raises(InputError, match=message):
        sn.vjp(small)(x, begun=1)
    assert_close(sn.vjp(small)(x, last_only=True)[0], small(x, last_only=True), LENGTH, WIDTH, "bfloat16")
