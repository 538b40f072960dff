"""Gradients of recurrences and of layers: on every engine, of any order, and those of PyTorch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from callers import threads
from gradcheck import assert_gradient, segments_of
from random_gradients import assert_gradients, cast, plain
from same_bits import assert_same_bits
from tolerance import assert_close
from turns import in_turns
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.cells import CELLS
from stepnet.compiler.net import LevelSizes
from stepnet.errors import StepnetError
from stepnet.ragged import offsets_of

Array = np.ndarray
LENGTHS = (3, 0, 1, 5)
WIDTH = 16


numbers = partial(uniform, dtype="float64")


def sequences(*shape: int, lengths: tuple[int, ...] = LENGTHS) -> sn.Ragged:
    return sn.Ragged.from_list([numbers(length, *shape) for length in lengths])


def cell(name: str, inputs: int = 3, reverse: bool = False, dtype: str = "float64", seed: int = 0) -> sn.RNN:
    return rnn_of(name, inputs, 4, dtype=dtype, seed=seed, reverse=reverse)


def custom(step: Callable[..., Any], params: Any, memory: Any = 3, **options: Any) -> Callable[[str], sn.RNN]:
    """A function that makes the recurrence of a step with parameters of a dtype."""
    return lambda dtype: sn.RNN(step, cast(params, dtype), memory=memory, **options)


PARAMS = {"W": numbers(3, 3), "R": numbers(3, 3) / 2, "K": numbers(2, 3), "b": numbers(3)}

# ---- steps -------------------------------------------------------------------------------------------------


def normed(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(sn.layer_norm(x @ p["W"] + h @ p["R"], epsilon=0.1) * p["b"])
    return sn.softmax(h), h


def with_statics(x: Any, h: Any, p: Any, statics: Any, index: Any) -> Any:
    h = np.tanh(x @ p["W"] + statics @ p["K"] + h @ p["R"] + (index[:, None] * 0.1).astype(h.dtype))
    return h, h


def embedded(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(p["W"][x] + h @ p["R"])
    return h, h


def counting(x: Any, memory: Any, p: Any) -> Any:
    h, count = memory
    h = np.tanh(x @ p["W"] + h @ p["R"]) * np.where(count[:, None] % 2 == 0, 1.0, 0.5).astype(h.dtype)
    return (h, count), (h, count + 1)


def of_matrices(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh((x[:, None] * np.ones((2, 1), x.dtype)) @ p["W"] + h @ p["R"] + h[:, ::-1])
    return h.max(axis=1), h


def largest(x: Any, h: Any, p: Any) -> Any:
    h = sn.sigmoid(x + p["b"]) * h + x + np.tanh(x)  # the adjoint adds these in another order
    return h.max(axis=-1), h


def attending(x: Any, h: Any, p: Any, statics: Any) -> Any:
    keys, query = statics @ p["K"], h @ p["R"]
    weights = sn.softmax_over_steps(np.sum(keys * sn.expand(query, statics), axis=-1))
    h = np.tanh(x @ p["W"] + sn.reduce(statics * weights[:, None], "sum") @ p["K"] + h @ p["R"])
    return h, h


def without_memory(x: Any, h: Any, p: Any) -> Any:
    return x @ p["W"], h


STEPS: dict[str, tuple[Callable[[str], sn.RNN], dict[str, Any]]] = {
    "layer norm": (custom(normed, PARAMS), {"sequences": sequences(3)}),
    "statics and index": (
        custom(with_statics, PARAMS),
        {"sequences": sequences(3), "statics": numbers(4, 2)},
    ),
    "embeddings": (custom(embedded, PARAMS), {"sequences": sequences().with_values(np.arange(9) % 3)}),
    "a counter": (custom(counting, PARAMS, (3, sn.Spec((), "int64"))), {"sequences": sequences(3)}),
    "matrices": (custom(of_matrices, PARAMS, (2, 3)), {"sequences": sequences(3)}),
    "the largest of sums": (custom(largest, PARAMS), {"sequences": sequences(3)}),
    "attention": (
        custom(attending, PARAMS),
        {"sequences": sequences(3), "statics": sequences(2, lengths=(2, 3, 0, 1))},
    ),
    "no memory that counts": (custom(without_memory, PARAMS), {"sequences": sequences(3)}),
    "the last one": (custom(normed, PARAMS), {"sequences": sequences(3), "last_only": True}),
    "an array": (custom(normed, PARAMS), {"sequences": numbers(4, 6, 3), "lengths": np.array([6, 0, 2, 1])}),
    "time major": (
        custom(normed, PARAMS),
        {"sequences": numbers(6, 4, 3), "lengths": np.array([6, 0, 2, 1]), "time_major": True},
    ),
    "a mask": (custom(normed, PARAMS), {"sequences": numbers(4, 6, 3), "mask": numbers(4, 6) > -0.2}),
    "zeros for a mask": (
        custom(normed, PARAMS),
        {"sequences": numbers(4, 6, 3), "mask": numbers(4, 6) > -0.2, "masked": "zero"},
    ),
    "begun": (
        custom(with_statics, PARAMS),
        {"sequences": sequences(3), "statics": numbers(4, 2), "begun": np.array([0, 1, 2, 3])},
    ),
    "a beginning": (custom(normed, PARAMS), {"sequences": sequences(3), "initial": numbers(4, 3)}),
    "no sequences": (
        custom(normed, PARAMS),
        {"sequences": sn.Ragged(np.zeros((0, 3)), (np.zeros(1, "int64"),))},
    ),
}


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("name", "dtype"), in_turns(STEPS, ["float32", "float64"]))
def test_the_gradient_of_a_step(name: str, dtype: str) -> None:
    make, given = STEPS[name]
    assert_gradients(make, given, 0, 8, WIDTH, dtype)


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("name", "reverse"), in_turns(CELLS, [False, True]))
def test_the_gradient_of_a_cell(name: str, reverse: bool) -> None:
    given = {"sequences": sequences(3)}
    assert_gradients(lambda dtype: cell(name, 3, reverse, dtype), given, 1, 8, WIDTH)


# ---- layers ------------------------------------------------------------------------------------------------


def both(dtype: str, inputs: int = 3, **options: Any) -> sn.Bidirectional:
    return sn.Bidirectional(cell("gru", inputs, dtype=dtype), cell("lstm", inputs, True, dtype), **options)


LAYERS: dict[str, Callable[[str], Any]] = {
    "directions": both,
    "their product": lambda dtype: sn.Bidirectional(
        cell("gru", dtype=dtype), cell("gru", 3, True, dtype, 1), merge="product"
    ),
    "layers": lambda dtype: sn.Stack(
        [cell("gru", dtype=dtype), both(dtype, 4), cell("lstm", 8, dtype=dtype)]
    ),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("name", "last_only"), in_turns(LAYERS, [False, True]))
def test_the_gradient_of_layers(name: str, last_only: bool) -> None:
    assert_gradients(LAYERS[name], {"sequences": sequences(3), "last_only": last_only}, 2, 24, WIDTH)


# ---- nested ------------------------------------------------------------------------------------------------


def nested(dtype: str, enters: bool, reverse: bool = False) -> sn.RNN:
    frames = custom(normed, PARAMS)(dtype)

    def step(x: Any, h: Any, p: Any) -> Any:
        outputs, last = frames(x, initial=h if enters else "zeros")
        h = np.tanh(last @ p["W"] + sn.reduce(outputs, "max") + sn.reduce(outputs, "mean") + h @ p["R"])
        return outputs * sn.expand(h, outputs), h

    return sn.RNN(step, cast(PARAMS, dtype), memory=3, reverse=reverse)


def with_inner_parameters(dtype: str) -> sn.RNN:
    frames = custom(normed, PARAMS)(dtype)

    def step(x: Any, h: Any, p: Any) -> Any:
        outputs, last = frames.with_params(p["frames"])(x, initial=h)
        h = np.tanh(last @ p["W"] + sn.reduce(outputs, "max"))
        return h, h

    return sn.RNN(step, cast({"frames": PARAMS, "W": PARAMS["W"]}, dtype), memory=3)


def with_a_known_inner_cell(dtype: str) -> sn.RNN:
    """The recurrences of both levels have the same number in their nets, and results that nobody reads."""
    words = cell("gru", dtype=dtype)

    def step(x: Any, h: Any, p: Any) -> Any:
        _, last = words(x, initial=h)
        h = np.tanh(last @ p["V"])
        return h, h

    return sn.RNN(step, {"V": np.eye(4).astype(dtype)}, memory=4)


def three_levels(dtype: str, enters: bool) -> sn.RNN:
    sentences = nested(dtype, enters)

    def step(x: Any, h: Any, p: Any) -> Any:
        _, last = sentences(x, initial=h if enters else "zeros")
        h = np.tanh(last @ p["W"] + h @ p["R"])
        return h, h

    return sn.RNN(step, cast(PARAMS, dtype), memory=3)


def documents() -> sn.Ragged:
    counts = [[3, 0, 1], [], [2], [0, 4, 2]]
    return sn.Ragged.from_list([[numbers(n, 3) for n in document] for document in counts])


def shelves() -> sn.Ragged:
    shelf = [[[2, 1], [], [0]], [], [[1], [2, 0]]]
    return sn.Ragged.from_list([[[numbers(n, 3) for n in one] for one in books] for books in shelf], levels=3)


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("enters", "reverse"), in_turns([False, True], [False, True]))
def test_the_gradient_of_a_nested_recurrence(enters: bool, reverse: bool) -> None:
    given = {"sequences": documents()}
    assert_gradients(lambda dtype: nested(dtype, enters, reverse), given, 3, 16, WIDTH)


def test_the_gradient_through_the_memory_of_a_known_inner_cell() -> None:
    assert_gradients(with_a_known_inner_cell, {"sequences": documents()}, 3, 16, WIDTH)


def test_the_gradient_of_the_parameters_of_an_inner_recurrence() -> None:
    assert_gradients(with_inner_parameters, {"sequences": documents()}, 3, 16, WIDTH)


@pytest.mark.parametrize("enters", [False, True])
def test_the_gradient_of_three_levels(enters: bool) -> None:
    given = {"sequences": shelves()}
    assert_gradients(lambda dtype: three_levels(dtype, enters), given, 3, 16, WIDTH)


# ---- of any order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_gradient_of_the_gradient_of_a_cell(name: str) -> None:
    layer = cell(name)
    layer(sequences(3), engine="interpret")
    assert_gradient(layer.net, segments_of(LENGTHS), order=3 if name == "gru" else 2)


@pytest.mark.parametrize("name", ["layer norm", "statics and index", "embeddings", "attention", "matrices"])
def test_the_gradient_of_the_gradient_of_a_step(name: str) -> None:
    make, given = STEPS[name]
    layer = make("float64")
    layer(given["sequences"], statics=given.get("statics"), engine="interpret")
    segments = LevelSizes(4, (offsets_of(LENGTHS),), beside={"static": offsets_of((2, 3, 0, 1))})
    assert_gradient(layer.net, segments, order=2)


@pytest.mark.parametrize("enters", [False, True])
def test_the_gradient_of_the_gradient_of_a_nested_recurrence(enters: bool) -> None:
    layer, given = nested("float64", enters), documents()
    layer(given, engine="interpret")
    assert_gradient(layer.net, LevelSizes(4, given.offsets), order=2)


# ---- PyTorch's ---------------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize(("name", "named"), [("GRU", "gru"), ("LSTM", "lstm"), ("RNN", "simple_rnn")])
def test_gradients_are_those_of_pytorch(name: str, named: str, engine: str) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, name)(3, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    layer = sn.layout.from_torch(module.state_dict(), cell=named)
    x = numbers(4, 6, 3)
    own = torch.tensor(x, requires_grad=True)
    outputs, _ = module(own)
    weights = torch.tensor(numbers(*outputs.shape))
    (outputs * weights).sum().backward()
    (found, _), backward = sn.vjp(layer)(x, engine=engine)
    assert_close(found, outputs.detach().numpy(), 6, WIDTH)
    gradients = backward(weights.numpy())
    assert own.grad is not None
    assert_close(gradients.inputs, own.grad.numpy(), 12, WIDTH)
    slopes = {name: parameter.grad for name, parameter in module.named_parameters()}
    right = sn.layout.from_torch(slopes, cell=named).params
    for one, other in zip(plain(gradients.params), plain(right), strict=True):
        assert_close(one, other, 24, WIDTH)


# ---- rows that end early -----------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_rows_that_end_early(reverse: bool, engine: str) -> None:
    x = sequences(3, lengths=(5, 0, 1, 4, 6))
    options: dict[str, Any] = {"memory": 3, "reverse": reverse}
    ending = sn.RNN(normed, PARAMS, until=lambda y, h: h[:, 0] > 0.2, **options)
    (outputs, final), backward = sn.vjp(ending)(x, engine=engine)
    right, last = ending(x, engine=engine)
    np.testing.assert_array_equal(outputs.lengths, right.lengths)
    assert outputs.lengths.sum() < x.lengths.sum()
    assert_close(outputs.values, right.values)
    assert_close(final, last)
    gradients = backward(outputs, final)
    cut = [one[len(one) - n :] if reverse else one[:n] for one, n in zip(x, outputs.lengths, strict=True)]
    (_, _), other = sn.vjp(sn.RNN(normed, PARAMS, **options))(sn.Ragged.from_list(cut), engine=engine)
    expected = other(outputs, final)
    assert_close(gradients.params["W"], expected.params["W"])
    for whole, part in zip(gradients.inputs, expected.inputs, strict=True):
        taken, rest = (whole[len(whole) - len(part) :], whole[: len(whole) - len(part)])
        if not reverse:
            taken, rest = whole[: len(part)], whole[len(part) :]
        assert_close(taken, part)
        assert not rest.any()


def test_rows_end_where_the_given_parameters_end_them() -> None:
    x = sequences(3, lengths=(5, 0, 1, 4, 6))
    ending = sn.RNN(normed, PARAMS, until=lambda y, h: h[:, 0] > 0.2, memory=3)
    params = {name: 0.1 * array for name, array in PARAMS.items()}
    (outputs, final), backward = sn.vjp(ending)(x, params=params)
    right, last = ending.with_params(params)(x)
    assert outputs.lengths.tolist() == right.lengths.tolist() != ending(x)[0].lengths.tolist()
    assert_close(outputs.values, right.values)
    assert_close(final, last)
    _, other = sn.vjp(ending.with_params(params))(x)
    for name, gradient in other(outputs, final).params.items():
        assert_close(backward(outputs, final).params[name], gradient)


# ---- losses ------------------------------------------------------------------------------------------------


def squares(y: Any, target: Any) -> Any:
    return np.sum((y - target) ** 2, axis=-1)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
def test_the_value_and_gradient_of_a_loss(last_only: bool, engine: str) -> None:
    x, layer = sequences(3), cell("gru")
    targets: Any = numbers(4, 4) if last_only else sequences(4)
    (outputs, _), backward = sn.vjp(layer)(x, last_only=last_only, engine=engine)
    y, t = (part if last_only else part.values for part in (outputs, targets))
    count = len(y)
    train = sn.value_and_grad(squares, layer)
    value, gradients = train(x, targets, last_only=last_only, wrt=("params", "inputs"), engine=engine)
    assert_close(value, np.sum((y - t) ** 2) / count, 9, WIDTH)
    slope = 2 * (y - t) / count
    right = backward(slope if last_only else outputs.with_values(slope))
    assert gradients.initial is None
    for name, found in gradients.params.items():
        assert_close(found, right.params[name], 9, WIDTH)
    assert_close(gradients.inputs.values, right.inputs.values, 9, WIDTH)


def test_a_loss_of_the_last_memories(engine: str) -> None:
    layer, x = cell("lstm"), sequences(3)

    def loss(y: Any, targets: Any, final: Any) -> Any:
        return np.sum(final["c"] * final["h"], axis=-1)

    value, gradients = sn.value_and_grad(loss, layer, reduce="sum")(x, engine=engine)
    (_, final), backward = sn.vjp(layer)(x, engine=engine)
    assert_close(value, np.sum(final["c"] * final["h"]), 5, WIDTH)
    right = backward(None, {"h": final["c"], "c": final["h"]})
    for name, found in gradients.params.items():
        assert_close(found, right.params[name], 9, WIDTH)


def test_a_loss_falls_in_training() -> None:
    layer, x = cell("gru", dtype="float32"), sequences(3).with_values(numbers(9, 3).astype("float32"))
    targets = x.with_values(np.full((9, 4), 0.5, "float32"))
    train, params, values = sn.value_and_grad(squares, layer), layer.params, list[float]()
    for _ in range(30):
        value, gradients = train(x, targets, params=params)
        values.append(float(value))
        params = {name: array - 0.2 * gradients.params[name] for name, array in params.items()}
    assert values[-1] < 0.2 * values[0]
    outputs, _ = layer.with_params(params)(x)
    assert_close(float(np.mean(np.sum((outputs.values - 0.5) ** 2, -1))), values[-1], 9, WIDTH, "float16")


# ---- what is refused ---------------------------------------------------------------------------------------


def refusals() -> dict[str, Callable[[], Any]]:
    layer, x = cell("gru"), sequences(3)
    _, backward = sn.vjp(layer)(x, engine="interpret")
    ending = sn.RNN(normed, PARAMS, memory=3, until=lambda y, h: h[:, 0] > 0)
    _, of_lstm = sn.vjp(cell("lstm"))(x, engine="interpret")
    return {
        "or a Graph, not <function": lambda: sn.vjp(squares),  # type: ignore[arg-type]
        "one by one": lambda: sn.vjp(sn.Stack([ending])),
        "take vjp of it": lambda: sn.value_and_grad(squares, ending)(x, sequences(3)),
        "wrt is some of": lambda: sn.vjp(layer)(x, wrt="weights"),
        "reduce is 'mean' or 'sum'": lambda: sn.value_and_grad(squares, layer, reduce="max"),
        "of the parameters .*, R, b, d are missing": lambda: sn.vjp(layer)(x, params={"W": np.zeros(2)}),
        "it should be a Ragged": lambda: backward(numbers(9, 4)),
        "the cotangent of final is": lambda: backward(None, numbers(3, 4)),
        r"the cotangent of final is \[\]; it should be \[4, 4\]": lambda: backward(None, 1.0),
        "the cotangents of final are": lambda: of_lstm(None, {"h": 0}),
        "different": lambda: sn.value_and_grad(squares, layer)(x, sequences(4, lengths=(3, 0, 2, 5))),
        "should be the 4 sequences": lambda: sn.value_and_grad(squares, layer)(
            x, numbers(3, 4), last_only=True
        ),
        "a loss gives one floating-point number": lambda: sn.value_and_grad(lambda y, t: y, layer)(x),
    }


@pytest.mark.parametrize("message", refusals())
def test_what_has_no_gradient_is_refused(message: str) -> None:
    with pytest.raises(StepnetError, match=message):
        refusals()[message]()


# ---- bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["statics and index", "attention"])
def test_gradients_of_a_sequence_have_the_same_bits_in_any_batch(name: str) -> None:
    make, given = STEPS[name]
    run, x, statics = (
        sn.vjp(make("float32")),
        *(cast(given[one], "float32") for one in ("sequences", "statics")),
    )
    (outputs, final), backward = run(x, statics=statics)
    gradients = backward(outputs, final)
    for place in range(len(x)):
        one = slice(place, place + 1)
        (part, last), alone = run(x[one], statics=statics[one])
        found = alone(part, last)
        assert_same_bits(found.inputs[0], gradients.inputs[place])
        assert_same_bits(found.initial[0], gradients.initial[place])
        assert_same_bits(found.statics[0], gradients.statics[place])


@pytest.mark.usefixtures("small_calls_are_shared")
def test_gradients_have_the_same_bits_for_any_number_of_threads() -> None:
    layer, x = both("float32"), cast(sequences(3, lengths=LENGTHS * 12), "float32")
    run, found = sn.vjp(layer), list[Any]()
    for count in (1, 2, 3):
        with threads(count):
            (outputs, final), backward = run(x)
            found.append(backward(outputs, final))
    for other in found[1:]:
        for one, right in zip(plain(vars(other)), plain(vars(found[0])), strict=True):
            assert_same_bits(one, right)


# ---- what else may come ------------------------------------------------------------------------------------


def test_sequences_that_go_on_have_the_gradient_of_the_whole(engine: str) -> None:
    x, run = numbers(4, 6, 3), sn.vjp(cell("gru"))
    (first, between), into_first = run(x[:, :2], engine=engine)
    (second, _), into_second = run(x[:, 2:], initial=between, engine=engine)
    late = into_second(second)
    early = into_first(first, late.initial)
    (outputs, _), backward = run(x, engine=engine)
    whole = backward(outputs)
    assert_close(np.concatenate([early.inputs, late.inputs], axis=1), whole.inputs, 6, WIDTH)
    for name, right in whole.params.items():
        assert_close(early.params[name] + late.params[name], right, 24, WIDTH)


def test_half_precision_has_gradients_in_half_precision(engine: str) -> None:
    x, params = numbers(2, 4, 3), {name: PARAMS[name] for name in ("W", "R", "b")}
    narrow, wide = (sn.vjp(sn.RNN(normed, cast(params, dtype), memory=3)) for dtype in ("float16", "float64"))
    (outputs, _), backward = narrow(x.astype("float16"), engine=engine)
    found = backward(outputs)
    assert {found.inputs.dtype, *(one.dtype for one in found.params.values())} == {np.dtype("float16")}
    _, right = wide(x, engine="interpret")
    expected = right(outputs.astype("float64"))
    assert_close(found.inputs, expected.inputs, 8, WIDTH)
    for name, one in found.params.items():
        assert_close(one, expected.params[name], 8, WIDTH)


def test_nan_stays_in_its_sequence(engine: str) -> None:
    x = numbers(2, 4, 3)
    x[0, 1, 0] = np.nan
    (outputs, _), backward = sn.vjp(cell("gru"))(x, engine=engine)
    gradients = backward(np.ones_like(outputs))
    assert np.isnan(gradients.params["W"]).any()
    assert np.isnan(gradients.inputs[0]).any()
    assert np.isfinite(gradients.inputs[1]).all()


def test_a_backward_is_called_as_often_as_one_likes(engine: str) -> None:
    (outputs, final), backward = sn.vjp(cell("lstm"))(sequences(3), engine=engine)
    first, again = backward(outputs, final), backward(outputs, final)
    for one, other in zip(plain(vars(first)), plain(vars(again)), strict=True):
        assert_same_bits(one, other)
    nothing = backward()
    assert not any(one.any() for one in plain(vars(nothing)))


def test_a_view_of_an_input_that_is_saved_and_read_in_the_loop():
    params = {name: np.full((1, 1), 0.1 * place) for place, name in enumerate("ahvx", 1)}

    def step(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
        scaled = 0.5 * (x.reshape(-1, 1) * p["a"][0])
        h = np.tanh(h @ p["h"] + scaled @ p["v"] + x[:, None] @ p["x"])
        return h, h

    x = np.array([[1.0, 2.0, 3.0]])
    layer = sn.RNN(step, params, memory=1)
    results, backward = sn.vjp(layer)(x)
    expected, other = sn.vjp(layer)(x, engine="interpret")
    ours, theirs = backward(*results), other(*expected)
    assert_close(ours.inputs, theirs.inputs, 3)
    for name in params:
        assert_close(ours.params[name], theirs.params[name], 3)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_the_inputs_alone_where_no_memory_counts(reverse: bool):
    layer = custom(without_memory, PARAMS, reverse=reverse)("float64")
    x = sequences(3)
    (outputs, _), backward = sn.vjp(layer)(x, wrt=("inputs",))
    assert_close(backward(outputs).inputs.values, outputs.values @ layer.params["W"].T, 1, WIDTH)


def test_a_gradient_traces_the_step_no_second_time() -> None:
    traces, x = list[int](), numbers(2, 5, 3)

    def step(x: Any, h: Any, params: Any) -> Any:
        traces.append(1)
        return h + x * params, h + x

    rnn = sn.RNN(step, numbers(3), memory=3)
    rnn(x)
    before = len(traces)
    sn.vjp(rnn)(x)
    sn.vjp(rnn)(x, last_only=True)
    assert len(traces) == before
    sn.vjp(rnn)(x, mask=np.ones((2, 5), bool))
    masked = len(traces)
    sn.vjp(rnn)(x, mask=np.ones((2, 5), bool))
    assert len(traces) == masked > before


@pytest.mark.parametrize(
    ("make", "noun"),
    [
        (lambda: cell("gru"), "recurrence"),
        (lambda: sn.Stack([cell("gru")]), "stack"),
        (lambda: sn.Bidirectional(cell("gru"), cell("gru", reverse=True)), "bidirectional layer"),
    ],
)
def test_other_parameters_are_refused_in_the_words_for_the_model(make: Any, noun: str) -> None:
    with pytest.raises(StepnetError, match=rf"of the parameters of the {noun}, .* missing"):
        sn.vjp(make())(numbers(2, 5, 3), params={})
