"""Gradients of forms that were seen before: bit for bit those of a first call, in arrays of their own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from callers import on_threads
from same_bits import assert_same_bits
from turns import in_turns
from zoo import normal, rnn_of

import stepnet as sn
from stepnet.compiler.values import leaves, transform
from stepnet.errors import IndexOutsideError, InputError, StepnetError

Array = np.ndarray
RANDOM = np.random.default_rng(5)
TABLE = RANDOM.normal(size=(9, 5)).astype("f4")
WEIGHTS = RANDOM.normal(size=(4, 2)).astype("f4")
numbers = partial(normal, seed=RANDOM)


def gru(inputs: int = 5, **options: Any) -> sn.RNN:
    return rnn_of("gru", inputs, 4, dtype="float32", **options)


def lstm(inputs: int = 5, **options: Any) -> sn.RNN:
    return rnn_of("lstm", inputs, 4, dtype="float32", **options)


def counted(x: Any, memory: Any, params: Any) -> Any:
    """A step with a whole number among its outputs and its memories."""
    h, count = memory["h"], memory["count"]
    h = np.tanh(x @ params + h)
    return {"h": h, "count": count}, {"h": h, "count": count + 1}


def mixed(x: Any, h: Any, params: Any) -> Any:
    """A step whose parameters have gradients of all kinds: a number, equal ones, zeros, parts of a whole."""
    weights = np.concatenate([params["a"], np.exp(params["b"])], axis=0)
    h = np.tanh(params["number"] * (x @ weights) + params["c"] + params["d"] + h)
    return h, h


def of_all_kinds() -> sn.RNN:
    shapes = {"a": (2, 4), "b": (3, 4), "c": (4,), "d": (4,), "number": (), "unread": (2,)}
    return sn.RNN(mixed, {name: numbers(*shape) for name, shape in shapes.items()}, memory=4)


def pooled() -> sn.Graph:
    layer = lstm()
    return sn.Graph(lambda x, params: sn.reduce(layer(x)[0], "mean") @ params, WEIGHTS)


def layered() -> sn.Graph:
    layer = lstm()
    return sn.Graph(lambda x, params: layer(x)[0] @ params, WEIGHTS)


MODELS: dict[str, Callable[[], sn.Model]] = {
    "gru": gru,
    "backward lstm": lambda: lstm(reverse=True),
    "stack": lambda: sn.Stack([gru(), lstm(4)]),
    "both": lambda: sn.Bidirectional(gru(), gru(reverse=True)),
    "pair": lambda: sn.Bidirectional(gru(), lstm(reverse=True), merge=None),
    "peepholes": lambda: rnn_of("lstm_peephole", 5, 4),
    "all kinds of gradients": of_all_kinds,
    "whole numbers": lambda: sn.RNN(
        counted, TABLE[:4, :].T.copy(), memory={"h": 4, "count": sn.Spec((), "int64")}
    ),
    "graph of steps": lambda: sn.Graph(lambda x, params: {"y": x @ params, "x": x}, TABLE[:4].T.copy()),
    "graph of layers": layered,
    "graph of sequences": pooled,
    "words": lambda: sn.Graph(lambda x, params: gru()(params[(x[..., 0] > 0).astype("int64")])[0], TABLE),
}

FORMS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "array": (lambda: numbers(3, 6, 5), {}),
    "one sequence": (lambda: numbers(1, 7, 5), {}),
    "ten sequences": (lambda: numbers(10, 3, 5), {}),
    "time first": (lambda: numbers(6, 3, 5), {"time_major": True}),
    "ragged": (lambda: sn.Ragged.from_list([numbers(n, 5) for n in (4, 1, 3)]), {}),
    "an empty sequence": (lambda: sn.Ragged.from_list([numbers(n, 5) for n in (4, 0, 3)]), {}),
    "last output": (lambda: numbers(3, 6, 5), {"last_only": True}),
    "parameters alone": (lambda: numbers(3, 6, 5), {"wrt": "params"}),
    "two kinds": (lambda: numbers(3, 6, 5), {"wrt": ["inputs", "params"]}),
}


def like(value: Any) -> Any:
    """Cotangents for a result."""

    def cotangent(leaf: Any) -> Any:
        if isinstance(leaf, sn.Ragged):
            return leaf.with_values(cotangent(leaf.values)) if leaf.dtype.kind == "f" else None
        return RANDOM.normal(size=leaf.shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else None

    return transform(cotangent, value)


def cotangents_of(model: sn.Model, results: Any) -> tuple[Any, ...]:
    return tuple(map(like, results)) if model.gives_final else (like(results),)


def prepared(run: Any, x: Any, **options: Any) -> Any:
    """The results and the backward pass of a prepared call."""
    for _ in range(3):
        run(x, **options)
    assert is_prepared(run)
    return run(x, **options)


def is_prepared(run: Any) -> bool:
    return any(run.calls.idle.values())


PREPARED = "array", "one sequence", "ten sequences", "ragged", "parameters alone", "two kinds"
"""The forms that are prepared for recurrences: sequences that lie end to end, each with all outputs."""


@pytest.mark.long(every=len(FORMS))
@pytest.mark.parametrize(("model", "form"), in_turns(MODELS, FORMS))
def test_a_prepared_gradient_has_the_bits_of_a_first_one(model: str, form: str) -> None:
    made, (inputs, options) = MODELS[model](), FORMS[form]
    if isinstance(made, sn.Graph) and form == "last output":
        pytest.skip("a graph has no last_only")
    run, kept = sn.vjp(made), list[tuple[Any, bytes]]()
    for _ in range(4):
        x = inputs()
        results, backward = run(x, **options)
        first, backward_of_first = sn.vjp(made)(x, **options)
        assert_same_bits(results, first)
        for given in (cotangents_of(made, results), (), cotangents_of(made, results)):
            gradients = backward(*given)
            assert_same_bits(vars(gradients), vars(backward_of_first(*given)))
            arrays = [
                leaf.values if isinstance(leaf, sn.Ragged) else leaf for leaf in leaves(vars(gradients))
            ]
            kept += [(array, array.tobytes()) for array in arrays if array is not None]
    assert is_prepared(run) or form not in PREPARED or model == "graph of sequences"
    assert all(array.tobytes() == before for array, before in kept)  # a later call has not written to it


@pytest.mark.parametrize("model", ["gru", "stack", "graph of layers"])
def test_calls_in_between_do_not_change_a_backward_pass(model: str) -> None:
    made = MODELS[model]()
    run = sn.vjp(made)
    for _ in range(3):
        run(numbers(3, 6, 5))
    calls = [(x, run(x)) for x in (numbers(3, 6, 5), numbers(3, 6, 5), numbers(3, 6, 5))]
    assert is_prepared(run)
    for x, (results, backward) in reversed(calls):
        given = cotangents_of(made, results)
        assert_same_bits(vars(backward(*given)), vars(sn.vjp(made)(x)[1](*given)))


@pytest.mark.parametrize("model", ["gru", "stack", "graph of layers"])
def test_parameters_of_a_call_change_what_is_prepared(model: str) -> None:
    made = MODELS[model]()
    run, own = sn.vjp(made), made.declaration.params
    calls: list[Any] = []
    for factor in (1, 2, 0.5, 3):
        params, x = transform(lambda array, by=factor: array * np.float32(by), own), numbers(3, 6, 5)
        calls.append((params, x, run(x, params=params)))
        run(x)  # the model's own have a form of their own
    assert is_prepared(run)
    for params, x, (results, backward) in reversed(calls):
        first, backward_of_first = sn.vjp(made)(x, params=params)
        assert_same_bits(results, first)
        given = cotangents_of(made, results)
        before = vars(backward_of_first(*given))
        transform(lambda array: array.fill(7), params)  # they were copied, so this has no effect
        assert_same_bits(vars(backward(*given)), before)
    with pytest.raises(InputError, match="parameter"):
        run(numbers(3, 6, 5), params=transform(lambda array: array[:1], own))


def test_memories_of_a_call_are_read_in_place() -> None:
    made = sn.Stack([gru(), lstm(4)])
    run = sn.vjp(made)
    for _ in range(4):
        x, initial = numbers(3, 6, 5), (numbers(3, 4), {"h": numbers(3, 4), "c": numbers(3, 4)})
        results, backward = run(x, initial=initial)
        first, backward_of_first = sn.vjp(made)(x, initial=initial)
        assert_same_bits(results, first)
        given = cotangents_of(made, results)
        assert_same_bits(vars(backward(*given)), vars(backward_of_first(*given)))
    x, wide = numbers(3, 6, 5), numbers(3, 4).astype("float64")
    assert_same_bits(run(x, initial=(wide, None))[0], sn.vjp(made)(x, initial=(wide, None))[0])


def test_cotangents_that_need_a_conversion_are_converted() -> None:
    made, x = gru(), sn.Ragged.from_list([numbers(n, 5) for n in (4, 1, 3)])
    (outputs, final), backward = prepared(sn.vjp(made), x)
    given = like(outputs), like(final)
    expected = vars(backward(*given))
    wide = outputs.with_values(given[0].values.astype("float64")), given[1].astype("float64")
    assert_same_bits(vars(backward(*wide)), expected)
    assert_same_bits(vars(backward(sn.Ragged(given[0].values, outputs.offsets), given[1])), expected)
    strided = np.repeat(given[1], 2, axis=0)[::2]
    assert_same_bits(vars(backward(given[0], strided)), expected)


def test_a_prepared_gradient_refuses_what_a_first_one_refuses() -> None:
    made, x = gru(), numbers(3, 6, 5)
    (outputs, _), backward = prepared(sn.vjp(made), x)
    wrong: list[tuple[Any, ...]] = [
        (outputs[:2],),
        (sn.Ragged.from_list([outputs[0]]),),
        ({"y": outputs},),
        (None, numbers(3, 5)),
    ]
    for given in wrong:
        with pytest.raises(InputError, match="cotangent"):
            backward(*given)
    graph = layered()
    run_graph = sn.vjp(graph)
    _, backward_of_graph = prepared(run_graph, x)
    with pytest.raises(InputError, match="a graph gives no last memories"):
        backward_of_graph(None, ())
    for options, message in (({"initial": ()}, "initial is "), ({"masked": 1}, "masked is 'repeat' or")):
        with pytest.raises(InputError, match=message):
            run_graph(x, **options)  # type: ignore[arg-type]


def test_a_model_that_has_changed_is_refused() -> None:
    class Changing:
        changed = False

        def __call__(self, x: Any, params: Any) -> Any:
            return x * params

        def check_unchanged(self) -> None:
            if self.changed:
                raise InputError("it has changed")

    model = Changing()
    graph = sn.Graph(model, np.ones(5, "f4"))
    run, train = sn.vjp(graph), sn.value_and_grad(lambda y, t: (y * t).sum(-1), graph)
    x = numbers(3, 6, 5)
    for _ in range(3):
        run(x)
        train(x, x)
    model.changed = True
    for call in (lambda: run(x), lambda: train(x, x)):
        with pytest.raises(StepnetError, match="it has changed"):
            call()


def test_threads_share_a_prepared_gradient() -> None:
    made = gru()
    run, calls = sn.vjp(made), [numbers(3, 6, 5) for _ in range(8)]
    for _ in range(3):
        run(calls[0])
    given = numbers(3, 6, 4)
    expected = [vars(sn.vjp(made)(x)[1](given)) for x in calls]

    def work(number: int) -> None:
        for _ in range(20):
            assert_same_bits(vars(run(calls[number])[1](given)), expected[number])

    on_threads(len(calls), work)


# ---- losses ------------------------------------------------------------------------------------------------


def squares(y: Any, target: Any) -> Any:
    whole = sum((leaf * leaf).sum(-1) for leaf in leaves(y) if leaf.ndim > 1 and leaf.dtype.kind == "f")
    return whole if target is None else whole + (target * target).sum(-1) * whole


@pytest.mark.long(every=len(FORMS))
@pytest.mark.parametrize(
    ("model", "form"), in_turns(["gru", "stack", "pair", "graph of layers", "graph of sequences"], FORMS)
)
def test_a_prepared_loss_has_the_bits_of_a_first_one(model: str, form: str) -> None:
    made, (inputs, options) = MODELS[model](), FORMS[form]
    reduce = "sum" if form in ("array", "ragged") else "mean"
    of_rows = form == "last output" or model == "graph of sequences"
    if isinstance(made, sn.Graph) and form == "last output":
        pytest.skip("a graph has no last_only")
    train = sn.value_and_grad(squares, made, reduce=reduce)
    for _ in range(4):
        x = inputs()
        if of_rows:
            targets: Any = numbers(x.shape[1] if "time_major" in options else len(x), 2)
        elif isinstance(x, sn.Ragged):
            targets = x.with_values(numbers(len(x.values), 2))
        else:
            targets = numbers(*x.shape[:2], 2)
        for given in (targets, None):
            value, gradients = train(x, given, **options)
            again, gradients_again = sn.value_and_grad(squares, made, reduce=reduce)(x, given, **options)
            assert_same_bits(value, again)
            assert_same_bits(vars(gradients), vars(gradients_again))
    assert is_prepared(train) or form not in PREPARED or model.startswith("graph")


def test_a_loss_trains_with_the_parameters_of_each_call() -> None:
    made = gru()
    train, x, targets = sn.value_and_grad(squares, made), numbers(3, 6, 5), numbers(3, 6, 4)
    params, values = made.params, list[float]()
    for _ in range(5):
        value, gradients = train(x, targets, params=params)
        again, expected = sn.value_and_grad(squares, made)(x, targets, params=params)
        assert_same_bits((value, gradients.params), (again, expected.params))
        values.append(float(value))
        params = {name: array - np.float32(0.05) * gradients.params[name] for name, array in params.items()}
    assert is_prepared(train)
    assert sorted(values, reverse=True) == values


def test_a_prepared_loss_refuses_what_a_first_one_refuses() -> None:
    made = gru()
    x = sn.Ragged.from_list([numbers(n, 5) for n in (4, 1, 3)])
    train = sn.value_and_grad(squares, made)
    for _ in range(3):
        train(x, x.with_values(numbers(8, 4)))
    with pytest.raises(InputError, match="`inputs` and `targets` have sequences of different lengths"):
        train(x, sn.Ragged.from_list([numbers(n, 4) for n in (1, 4, 3)]))
    message = r"Raggeds, such as x.with_values.* a Ragged among arrays; .* with last_only=True"
    with pytest.raises(InputError, match=message):
        train(x, numbers(8, 4))


def total(**options: Any) -> sn.RNN:
    return sn.RNN(lambda x, h, p: (h + x, h + x), memory=2, **options)


def graph_of(layer: sn.RNN) -> sn.Graph:
    return sn.Graph(lambda x, params: layer(x)[0])


KINDS: dict[str, Callable[[], sn.Model]] = {
    "rnn": total,
    "stack": lambda: sn.Stack([total(), sn.Bidirectional(total(), total(reverse=True))]),
    "graph": lambda: graph_of(total()),
}
CALLS: dict[str, Callable[[Any], Callable[[Array], Any]]] = {
    "call": lambda model: model,
    "vjp": sn.vjp,
    "loss": lambda model: partial(sn.value_and_grad(lambda y, target: y.sum(axis=-1), model), wrt="inputs"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_shows_the_kind_of_its_latest_call(kind: str, call: str) -> None:
    model = KINDS[kind]()
    run, single, double = CALLS[call](model), np.ones((2, 3, 2), "f4"), np.ones((2, 3, 2), "f8")
    for x, shown in [(single, "f32")] * 4 + [(double, "f64"), (single, "f32"), (double, "f64")]:
        run(x)
        for text in (str(model.net), model.explain()):
            assert {"f32[2]", "f64[2]"} & set(text.replace(",", " ").split()) == {f"{shown}[2]"}


def test_an_error_in_the_second_call_does_not_last():
    """While a call is prepared an index outside of its table raises; later ones are prepared all the same."""

    def step(word: Any, h: Any, p: Any) -> Any:
        h = np.tanh(p["E"][word] + h @ p["R"])
        return h, h

    params = {"E": np.ones((4, 3), "f4"), "R": np.eye(3, dtype="f4")}
    rnn, words = sn.RNN(step, params, memory=3), np.zeros((2, 5), int)
    loss, targets = (
        sn.value_and_grad(lambda y, t: np.sum((y - t) ** 2, axis=-1), rnn),
        np.zeros((2, 5, 3), "f4"),
    )
    first = loss(words, targets)
    with pytest.raises(IndexOutsideError):
        loss(words + 9, targets)
    for _ in range(40):
        assert_same_bits(loss(words, targets)[0], first[0])
    assert is_prepared(loss)
