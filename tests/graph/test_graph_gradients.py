"""Gradients of whole models: against differences, on every engine, of any order, and against PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_models
from gradcheck import assert_gradient, segments_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_gradients import assert_differences, cast, is_float, plain, random_like, values_of
from random_models import WORDS, RandomModel, random_models
from same_bits import assert_same_bits
from test_torch_models import MODELS as TORCH_MODELS
from test_torch_models import graph_of, made, sequences
from tolerance import assert_close

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError, StepError
from stepnet.net.interpret import Segments
from stepnet.ragged.offsets import offsets_of
from stepnet.values.structure import leaves, transform

Array = np.ndarray
LENGTHS = (3, 0, 1, 5)
LENGTH, WIDTH = 24, 16


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape)


def frames(*shape: int, lengths: tuple[int, ...] = LENGTHS) -> sn.Ragged:
    return sn.Ragged(numbers(sum(lengths), *shape), (offsets_of(lengths),))


def words_like(x: sn.Ragged) -> sn.Ragged:
    return x.with_values(np.arange(len(x.values)) * 5 % WORDS)


def cotangents_of(outputs: Any, seed: int = 0) -> Any:
    return transform(lambda leaf: leaf if is_float(values_of(leaf)) else None, random_like(outputs, seed))


def assert_model(
    model: Any,
    params: Any,
    x: Any,
    statics: Any = None,
    narrow: tuple[str, ...] = ("float32",),
    **options: Any,
) -> None:
    """Asserts that the gradients of a model are what differences of calls say, and the same on llvm.

    Everything comes in float64. narrow: the dtypes on llvm.
    """
    graph = sn.Graph(model, params)
    run = sn.vjp(graph)
    outputs, backward = run(x, statics=statics, engine="interpret", **options)
    called = graph(x, statics=statics, engine="interpret", **options)
    for one, other in zip(plain(outputs), plain(called), strict=True):
        assert_close(one, other, LENGTH, WIDTH)
    right = backward(cotangents_of(outputs))
    assert right.initial is None
    parts = {"params": graph.params, "inputs": x, "statics": statics}

    def at(moved: Any) -> Any:
        other = graph.with_params(moved["params"])
        return (other(moved["inputs"], statics=moved["statics"], engine="interpret", **options),)

    assert_differences(at, parts, {name: getattr(right, name) for name in parts}, 0)
    for dtype in narrow:
        given = {name: cast(part, dtype) for name, part in parts.items()}
        narrowed = sn.vjp(sn.Graph(model, given["params"]))
        results, back = narrowed(given["inputs"], statics=given["statics"], engine="llvm", **options)
        found = back(cotangents_of(cast(outputs, dtype)))
        for one, wide in zip(plain(results), plain(outputs), strict=True):
            assert_close(one, wide, LENGTH, WIDTH, dtype)
        for name in parts:
            for one, wide in zip(plain(getattr(found, name)), plain(getattr(right, name)), strict=True):
                assert one.dtype == dtype
                assert_close(one, wide, LENGTH, WIDTH)


# ---- random models -----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(model=random_models())
def test_the_gradient_of_a_random_model(model: RandomModel) -> None:
    assert_gradient(sn.Graph(model, model.structure, inputs=sn.Spec((), "int64")).net, segments_of())


@settings(max_examples=6)
@given(model=random_models())
def test_the_second_derivative_of_a_random_model(model: RandomModel) -> None:
    net = sn.Graph(model, model.structure, inputs=sn.Spec((), "int64")).net
    assert_gradient(net, segments_of((2, 0, 3)), order=2)


@settings(max_examples=8)
@given(model=random_models())
def test_machine_code_has_the_gradient_of_a_random_model(model: RandomModel) -> None:
    assert_model(model, model.structure, words_like(frames()), narrow=("float64",))


# ---- models of every kind ----------------------------------------------------------------------------------


def step(x: Any, h: Any, params: Any) -> Any:
    h = np.tanh(x @ params["W"] + h @ params["R"])
    return h, h


OWN = {"W": numbers(3, 3), "R": numbers(3, 3, seed=1)}


def own(params: Any, reverse: bool = False) -> sn.RNN:
    """A recurrence with parameters of its model."""
    return sn.RNN(step, params, memory=3, reverse=reverse)


def classifier(words: Any, params: Any) -> Any:
    h = sn.Bidirectional(own(params["forward"]), own(params["backward"], reverse=True))(
        params["table"][words]
    )[0]
    return {"tags": sn.softmax(h @ params["W"]), "mood": np.tanh(sn.reduce(h, "mean") @ params["v"])}


def attention(x: Any, params: Any) -> Any:
    h, last = own(params["own"])(x)
    weight = sn.softmax_over_steps(np.sum(h * sn.expand(last @ params["Q"], h), axis=-1))
    return sn.reduce(weight[:, None] * h, "sum")


def in_sequence(x: Any, params: Any) -> Any:
    first, _ = own(params["own"])(x)
    second, last = own(params["own"], reverse=True)(np.maximum(first @ params["P"], 0.1))
    third, end = own(params["own"])(np.concatenate([first, second], axis=-1) @ params["Q"], initial=last)
    return {how: sn.reduce(third, how) for how in ("first", "last", "max", "sum")} | {"end": end}


def with_statics(x: Any, params: Any, statics: Any) -> Any:
    h, _ = own(params["own"])(x * sn.expand(statics["scale"], x), initial=np.tanh(statics["begin"]))
    return h * sn.expand(statics["scale"], h), statics["begin"] @ params["P"]


def begins_with_a_static(x: Any, params: Any, statics: Any) -> Any:
    return own(params)(x, initial=statics)[0]


def begins_with_a_parameter(x: Any, params: Any) -> Any:
    return own(params["own"])(x, initial=params["begin"])[0]


def encoder_and_decoder(x: Any, params: Any) -> Any:
    _, code = own(params["own"])(x["source"])
    h, _ = own(params["own"])(x["target"], initial=code)
    return params["table"][np.argmax(h, axis=-1)] + h, sn.reduce(h, "max")


def without_recurrences(x: Any, params: Any) -> Any:
    return np.tanh(x @ params["W"]), sn.reduce(x @ params["R"], "mean")


def without_parameters(x: Any, params: Any) -> Any:
    return sn.reduce(own(OWN)(x)[0], "mean")


def gives_what_it_gets(x: Any, params: Any) -> Any:
    return {"x": x, "again": x, "W": sn.reduce(x, "sum") @ params["W"], "count": sn.reduce(x * 0 + 1, "sum")}


DIRECTIONS = {"forward": OWN, "backward": {name: -array for name, array in OWN.items()}}
ENDS = {"table": numbers(WORDS, 3), "W": numbers(6, 4), "v": numbers(6, 1)}
STATICS = {"scale": numbers(4, 3), "begin": numbers(4, 3, seed=1)}
KINDS: dict[str, tuple[Any, ...]] = {
    "tagger and classifier": (classifier, DIRECTIONS | ENDS, words_like(frames())),
    "attention": (attention, {"own": OWN, "Q": numbers(3, 3, seed=2)}, frames(3)),
    "in sequence": (
        in_sequence,
        {"own": OWN, "P": numbers(3, 3, seed=3), "Q": numbers(6, 3, seed=4)},
        frames(3),
    ),
    "statics": (with_statics, {"own": OWN, "P": numbers(3, 2)}, frames(3), STATICS),
    "a static as memory": (begins_with_a_static, OWN, frames(3), numbers(4, 3)),
    "a parameter as memory": (begins_with_a_parameter, {"own": OWN, "begin": numbers(3)}, frames(3)),
    "encoder and decoder": (
        encoder_and_decoder,
        {"own": OWN, "table": numbers(3, 3, seed=5)},
        {"source": frames(3), "target": frames(3)},
    ),
    "no recurrence": (without_recurrences, OWN, frames(3)),
    "no parameters": (without_parameters, None, frames(3)),
    "inputs as outputs": (gives_what_it_gets, OWN, frames(3)),
    "no sequences": (classifier, DIRECTIONS | ENDS, words_like(frames(lengths=()))),
    "no steps": (classifier, DIRECTIONS | ENDS, words_like(frames(lengths=(0, 0)))),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_of_a_model(name: str) -> None:
    assert_model(*KINDS[name])


# ---- PyTorch's modules -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", TORCH_MODELS)
def test_the_gradient_of_a_module_is_that_of_pytorch(name: str) -> None:
    what, first = TORCH_MODELS[name]
    module = made(getattr(torch_models, name), "float64")
    graph = graph_of(name, module, "float64")
    rows = sequences(what, [3, 1, 7, 4], "float64")
    outputs, backward = sn.vjp(graph)(sn.Ragged.from_list(rows))
    cotangents = random_like(outputs, 3)
    found = backward(cotangents)
    by_row = [leaf.to_list() if isinstance(leaf, sn.Ragged) else list(leaf) for leaf in leaves(cotangents)]
    wanted = list[Array]()
    for place, row in enumerate(rows):
        x = torch.from_numpy(row).unsqueeze(0 if first else 1).requires_grad_(what == "frames")
        further = (torch.tensor([len(row)]),) if name in ("Packed", "Masked") else ()
        results = [result.squeeze(0 if first else 1) for result in leaves(module(x, *further))]
        torch.autograd.backward(results, [torch.from_numpy(cotangent[place]) for cotangent in by_row])
        wanted.append(np.zeros(()) if x.grad is None else x.grad.squeeze(0 if first else 1).numpy())
    if what == "frames":
        assert_close(found.inputs.values, np.concatenate(wanted), 7, 400)
    assert_parameters(module, found.params)


def assert_parameters(module: Any, found: dict[str, Array]) -> None:
    """Asserts that gradients by names of the state_dict are those of a module; names of one tensor add up."""
    named = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in named.items():
        total = sum(found[other] for other, tensor in named.items() if tensor is parameter)
        right = np.zeros_like(total) if parameter.grad is None else parameter.grad.numpy()
        assert_close(total, right, 7, 400)
    assert any(np.abs(array).max() > 1e-3 for name, array in found.items() if name in named)
