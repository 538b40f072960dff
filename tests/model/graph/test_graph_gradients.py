"""Gradients of whole models: against differences, on every engine, of any order, and against PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gradcheck import assert_gradient, assert_tangent, segments_of
from hypothesis import given, settings
from random_gradients import cast, plain, random_like, with_plain
from random_models import WORDS, RandomModel, random_models
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, StepError
from tests.model.graph.model_gradients import (
    LENGTH,
    LENGTHS,
    OWN,
    WIDTH,
    assert_model,
    cotangents_of,
    frames,
    numbers,
    own,
)
from tests.torch import torch_models
from tests.torch.test_torch_models import EXTRA, graph_of, made, sequences
from tests.torch.test_torch_models import MODELS as TORCH_MODELS

Array = np.ndarray


def words_like(x: sn.Ragged) -> sn.Ragged:
    return x.with_values(np.arange(len(x.values)) * 5 % WORDS)


# ---- random models -----------------------------------------------------------------------------------------


@pytest.mark.long(examples=10)
@settings(max_examples=40)
@given(model=random_models())
def test_the_gradient_of_a_random_model(model: RandomModel) -> None:
    assert_gradient(sn.Graph(model, model.structure, inputs=sn.Spec((), "int64")).net, segments_of())


@pytest.mark.long(examples=4)
@settings(max_examples=40)
@given(model=random_models())
def test_the_tangent_of_a_random_model(model: RandomModel) -> None:
    net = sn.Graph(model, model.structure, inputs=sn.Spec((), "int64")).net
    assert_tangent(net, segments_of((2, 0, 3)))


@pytest.mark.long(examples=2)
@settings(max_examples=6)
@given(model=random_models())
def test_the_second_derivative_of_a_random_model(model: RandomModel) -> None:
    net = sn.Graph(model, model.structure, inputs=sn.Spec((), "int64")).net
    assert_gradient(net, segments_of((2, 0, 3)), order=2)


@pytest.mark.long(examples=2)
@settings(max_examples=4)
@given(model=random_models())
def test_machine_code_has_the_gradient_of_a_random_model(model: RandomModel) -> None:
    assert_model(model, model.structure, words_like(frames()), narrow=("float64",))


# ---- models of every kind ----------------------------------------------------------------------------------


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


def begins_with_the_first_static(x: Any, params: Any, statics: Any) -> Any:
    h, _ = own(params)(x * sn.expand(statics["scale"], x), initial=statics["begin"])
    return sn.reduce(h, "max")


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
    "a static as memory ahead of another": (
        begins_with_the_first_static,
        OWN,
        frames(3),
        {"begin": numbers(4, 3, seed=1), "scale": numbers(4, 3)},
    ),
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


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_of_a_model(name: str) -> None:
    assert_model(*KINDS[name])


# ---- PyTorch's modules -------------------------------------------------------------------------------------


@pytest.mark.long(every=8)
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
        further = (torch.tensor([len(row)]),) if name in EXTRA else ()
        results = [result.squeeze(0 if first else 1) for result in leaves(module(x, *further))]
        torch.autograd.backward(results, [torch.from_numpy(cotangent[place]) for cotangent in by_row])
        wanted.append(np.zeros(()) if x.grad is None else x.grad.squeeze(0 if first else 1).numpy())
    if what == "frames":
        assert_close(found.inputs.values, np.concatenate(wanted), 7, 400)
    assert_parameters(module, found.params)


def assert_parameters(module: Any, found: dict[str, Array]) -> None:
    """Asserts that gradients by names of the state_dict are those of a module; names of one tensor add up."""
    named = dict(module.named_parameters(remove_duplicate=False))
    for parameter in named.values():
        total = sum(found[other] for other, tensor in named.items() if tensor is parameter)
        right = np.zeros_like(total) if parameter.grad is None else parameter.grad.numpy()
        assert_close(total, right, 7, 400)
    assert any(np.abs(array).max() > 1e-3 for name, array in found.items() if name in named)


# ---- forms of calls ----------------------------------------------------------------------------------------

PADDED, SHORT = numbers(4, 6, 3), np.array([6, 0, 2, 1])


@pytest.mark.parametrize("time_major", [False, True])
def test_arrays_with_lengths(time_major: bool) -> None:
    x = PADDED.swapaxes(0, 1).copy() if time_major else PADDED
    params = {"own": OWN, "Q": numbers(3, 3, seed=2)}
    assert_model(attention, params, x, narrow=("float64",), lengths=SHORT, time_major=time_major)


@pytest.mark.parametrize("engine", [("onednn", "llvm"), ("llvm", "interpret"), "interpret"])
def test_each_part_of_a_gradient_runs_on_the_first_engine_that_takes_it(engine: Any) -> None:
    def model(x: Any, params: Any) -> Any:
        h, _ = sn.cells.rnn("gru", params["gru"])(x)
        return sn.reduce(np.sin(h) @ params["W"], "max")

    gru = sn.cells.CELLS["gru"].parameters(3, 4)
    x = cast(frames(3), "float32")
    run = sn.vjp(sn.Graph(model, {"gru": gru, "W": numbers(4, 2).astype("float32")}))
    outputs, backward = run(x, engine=engine)
    found, right = (back(cotangents_of(outputs)) for back in (backward, run(x)[1]))
    for one, other in zip(plain(found.params), plain(right.params), strict=True):
        assert_close(one, other, LENGTH, WIDTH)


def test_only_what_is_asked_for_is_made_and_other_parameters_are_taken() -> None:
    graph = sn.Graph(begins_with_a_static, OWN)
    given = {"sequences": frames(3), "statics": numbers(4, 3), "engine": "interpret"}
    outputs, backward = sn.vjp(graph)(**given, wrt=["statics"])
    alone = backward(outputs)
    assert alone.params is None
    assert alone.inputs is None
    doubled = {name: 2 * array for name, array in OWN.items()}
    right = sn.vjp(graph.with_params(doubled))(**given)[1](outputs)
    found = sn.vjp(graph)(**given, params=doubled)[1](outputs)
    for one, other in zip(plain(found.params), plain(right.params), strict=True):
        assert_same_bits(one, other)
    assert np.abs(found.statics - alone.statics).max() > 1e-3


def test_a_cotangent_of_none_is_zeros() -> None:
    x = words_like(frames())
    outputs, backward = sn.vjp(sn.Graph(classifier, DIRECTIONS | ENDS))(x, engine="interpret")
    tags, mood = (backward({name: outputs[name], **other}) for name, other in BOTH.items())
    both = backward(outputs)
    for one, other, together in zip(plain(tags.params), plain(mood.params), plain(both.params), strict=True):
        assert_close(one + other, together, LENGTH, WIDTH)
    assert not tags.params["v"].any()
    assert backward().params["W"].shape == (6, 4)


BOTH: dict[str, dict[str, Any]] = {"tags": {"mood": None}, "mood": {"tags": None}}


def test_arrays_that_a_model_captures_are_constants() -> None:
    _, backward = sn.vjp(sn.Graph(without_parameters))(frames(3))
    assert backward(np.ones((4, 3))).params is None


def test_the_same_bits_in_every_batch() -> None:
    graph, x = sn.Graph(attention, {"own": OWN, "Q": numbers(3, 3, seed=2)}), frames(3)
    run = sn.vjp(graph)
    outputs, backward = run(x)
    cotangents = numbers(*outputs.shape)
    whole = backward(cotangents).inputs.to_list()
    for place, row in enumerate(x.to_list()):
        _, alone = run(sn.Ragged.from_list([row], features=(3,)))
        assert_same_bits(alone(cotangents[place : place + 1]).inputs.values, whole[place])


@pytest.mark.long(each=True)
@pytest.mark.parametrize("checkpoint", [1, 3, "sqrt"])
@pytest.mark.parametrize("name", ["a static as memory", "encoder"])
def test_memories_alone_may_be_saved(name: str, checkpoint: Any) -> None:
    def encoder(x: Any, params: Any) -> Any:
        _, code = own(params)(x["source"])
        h, _ = own(params)(np.tanh(x["target"]), initial=code)
        return sn.reduce(h @ params["W"], "last")

    model, params, x, statics = (
        KINDS[name] if name in KINDS else (encoder, OWN, KINDS["encoder and decoder"][2], None)
    )
    run = sn.vjp(sn.Graph(model, params))
    outputs, backward = run(x, statics=statics, engine="interpret")
    _, again = run(x, statics=statics, checkpoint=checkpoint, engine="interpret")
    right, found = (plain(each(outputs).params) for each in (backward, again))
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, LENGTH, WIDTH)
        assert np.abs(one).max() > 1e-3


def test_explain_says_what_a_gradient_costs() -> None:
    graph = sn.Graph(classifier, DIRECTIONS | ENDS, inputs=sn.Spec((), "int64"))
    text = sn.vjp(graph).explain("params", rows=2, steps=10)
    assert text.startswith("gradients of params\n  engine      llvm\n")
    assert "for 2 sequences of 10 steps" in text


# ---- losses ------------------------------------------------------------------------------------------------


def both_losses(outputs: Any, targets: Any) -> Any:
    tags = -np.log(np.sum(outputs["tags"] * targets["tags"], axis=-1))
    return sn.reduce(tags, "sum") + np.sum((outputs["mood"] - targets["mood"]) ** 2, axis=-1)


def loss_of(outputs: Any, targets: Any) -> float:
    tags = -np.log((outputs["tags"].values * targets["tags"].values).sum(-1))
    return float(tags.sum() + ((outputs["mood"] - targets["mood"]) ** 2).sum())


def tags_and_moods(x: sn.Ragged) -> dict[str, Any]:
    return {"tags": x.with_values(np.eye(4)[np.arange(9) % 4]), "mood": numbers(4, 1)}


def slope(run: Callable[[float], float]) -> float:
    return (run(1e-6) - run(-1e-6)) / 2e-6


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_loss_of_outputs_of_steps_and_of_sequences(reduce: str) -> None:
    x, graph = words_like(frames()), sn.Graph(classifier, DIRECTIONS | ENDS)
    targets, share = tags_and_moods(x), 4 if reduce == "mean" else 1
    train = sn.value_and_grad(both_losses, graph, reduce=reduce)
    value, gradients = train(x, targets, engine="interpret")
    assert_close(value, loss_of(graph(x, engine="interpret"), targets) / share, LENGTH, WIDTH)
    direction = random_like(graph.params, 5)

    def along(way: float) -> float:
        moved = transform_pairs(lambda array, d: array + way * d, graph.params, direction)
        return loss_of(graph.with_params(moved)(x, engine="interpret"), targets) / share

    pairs = zip(plain(gradients.params), plain(direction), strict=True)
    assert abs(sum(float((one * d).sum()) for one, d in pairs) - slope(along)) < 1e-6
    compiled, found = train(x, targets)
    assert_close(compiled, value, LENGTH, WIDTH)
    for one, other in zip(plain(found.params), plain(gradients.params), strict=True):
        assert_close(one, other, LENGTH, WIDTH)


def transform_pairs(change: Callable[[Array, Array], Array], left: Any, right: Any) -> Any:
    return with_plain(left, [change(a, b) for a, b in zip(plain(left), plain(right), strict=True)])


def squares(outputs: Any, targets: Any) -> Any:
    return np.sum((outputs - targets) ** 2, axis=-1)


def test_a_loss_of_sequences_and_one_of_steps() -> None:
    params, x = {"own": OWN, "Q": numbers(3, 3, seed=2)}, frames(3)
    ends = numbers(4, 3)
    value, _ = sn.value_and_grad(squares, sn.Graph(attention, params))(x, ends)
    right = sn.Graph(attention, params)(x)
    assert_close(value, ((right - ends) ** 2).sum() / 4, LENGTH, WIDTH)
    graph, wanted = sn.Graph(begins_with_a_parameter, {"own": OWN, "begin": numbers(3)}), frames(3)
    value, gradients = sn.value_and_grad(squares, graph)(x, wanted)
    away = graph(x).values - wanted.values
    assert_close(value, (away**2).sum() / 9, LENGTH, WIDTH)
    _, backward = sn.vjp(graph)(x)
    right = backward(x.with_values(2 * away / 9)).params
    for one, other in zip(plain(gradients.params), plain(right), strict=True):
        assert_close(one, other, LENGTH, WIDTH)
    padded, target = PADDED, numbers(4, 6, 3, seed=9)
    value, _ = sn.value_and_grad(squares, graph)(padded, target, lengths=SHORT)
    rows = [((graph(padded[i : i + 1, :n])[0] - target[i, :n]) ** 2).sum() for i, n in enumerate(SHORT)]
    assert_close(value, sum(rows) / SHORT.sum(), LENGTH, WIDTH)


def test_a_model_is_trained_by_its_gradients() -> None:
    def model(x: Any, params: Any) -> Any:
        return sn.reduce(sn.cells.rnn("gru", params["gru"])(params["table"][x])[0], "last") @ params["W"]

    random = np.random.default_rng(0)
    rows = [random.integers(0, WORDS, length) for length in random.integers(1, 6, 40)]
    x, wanted = sn.Ragged.from_list(rows), np.array([[float(row[-1] > 2)] for row in rows], "float32")
    params: Any = {
        "table": random.normal(size=(WORDS, 4)).astype("float32"),
        "gru": sn.cells.CELLS["gru"].parameters(4, 8),
        "W": np.zeros((8, 1), "float32"),
    }
    graph = sn.Graph(model, params)
    train, values = sn.value_and_grad(squares, graph), list[float]()
    for _ in range(300):
        value, gradients = train(x, wanted, params=params)
        values.append(float(value))
        params = transform_pairs(lambda array, d: array - np.float32(0.3) * d, params, gradients.params)
    assert values[-1] < 0.05 < 0.2 < values[0]
    answers = graph.with_params(params)(x)
    assert ((answers > 0.5) == (wanted > 0.5)).all()


# ---- what is refused ---------------------------------------------------------------------------------------


def test_mistakes() -> None:
    graph, x = sn.Graph(classifier, DIRECTIONS | ENDS), words_like(frames())
    run, train = sn.vjp(graph), sn.value_and_grad(both_losses, graph)
    _, backward = run(x, engine="interpret")
    targets = tags_and_moods(x)
    of_steps = sn.value_and_grad(squares, sn.Graph(begins_with_a_static, OWN))
    deep = sn.Ragged.from_list([[np.ones((1, 3))] * length for length in LENGTHS], features=(3,), levels=2)
    mistakes: dict[str, Callable[[], Any]] = {
        "a Bidirectional or a Graph, not {}": lambda: sn.vjp({}),  # type: ignore[arg-type]
        r"wrt is some of 'params', 'inputs', 'statics', not": lambda: run(x, wrt="initial"),
        "with initial= a graph runs step by step: this model has no stream: a": lambda: run(
            x, initial="zeros"
        ),
        "with mask= a graph runs step by step: this model has no stream: a recurrence of it": lambda: train(
            x, targets, mask=np.ones((4, 5), bool)
        ),
        "a graph gives no last memories: only its outputs": lambda: backward(None, np.ones(3)),
        "the cotangents of outputs are": lambda: backward(np.ones((4, 1))),
        "the cotangent of outputs mood": lambda: backward({"tags": None, "mood": np.ones((4, 2))}),
        "of the parameters of the graph": lambda: run(x, params={}),
        "call the graph once": lambda: sn.vjp(sn.Graph(classifier, DIRECTIONS | ENDS)).explain(),
        "target tone has the name of no output; some outputs are of each step and others of each sequence, "
        "so a target has the name of one: tags, mood": lambda: train(x, targets | {"tone": numbers(4)}),
        r"target mood is \[3, 1\]; its first axis should be the 4 sequences": lambda: train(
            x, targets | {"mood": numbers(3, 1)}
        ),
        "different lengths": lambda: train(x, targets | {"tags": frames(4, lengths=(3, 0, 2, 4))}),
        "target has 2 levels of sequences; the inputs have 1": lambda: of_steps(
            frames(3), deep, statics=numbers(4, 3)
        ),
        "its loss has no parameter named `final`": lambda: sn.value_and_grad(
            lambda outputs, targets, final: outputs["mood"][:, 0], graph
        )(x),
        "checkpoint= runs a few steps at a time, and the mean over steps is known only after all steps: "
        "leave checkpoint= out\n  at .*test_graph_gradients": lambda: run(x, checkpoint=2),
        "a recurrence begins with the result of tanh, neither an input nor zeros": lambda: sn.vjp(
            sn.Graph(with_statics, {"own": OWN, "P": numbers(3, 2)})
        )(frames(3), statics=STATICS, checkpoint=2),
    }
    for message, call in mistakes.items():
        with pytest.raises((InputError, StepError), match=message):
            call()
