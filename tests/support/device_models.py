"""Models of every kind, each as a function that runs it on an engine, for targets with their own memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.values import leaves

Array = np.ndarray
RANDOM = np.random.default_rng(0)


def gru(inputs: int, hidden: int = 4, **options: Any) -> sn.RNN:
    return rnn_of("gru", inputs, hidden, **options)


def ragged(*lengths: int, features: int = 3) -> sn.Ragged:
    return sn.Ragged.from_list([RANDOM.normal(size=(n, features)).astype("f4") for n in lengths])


def same(made: Any, right: Any, length: int = 8, width: int = 16) -> None:
    for ours, theirs in zip(leaves(made), leaves(right), strict=True):
        ours, theirs = getattr(ours, "values", ours), getattr(theirs, "values", theirs)
        assert type(ours) is np.ndarray
        assert_close(ours, theirs, length, width)


X = ragged(3, 0, 5, 1)


def flat() -> Callable[[str], Any]:
    rnn = gru(3)
    return lambda engine: rnn(X, engine=engine)


def padded_and_masked() -> Callable[[str], Any]:
    rnn, x = gru(3, reverse=True), RANDOM.normal(size=(2, 5, 3)).astype("f4")
    mask = RANDOM.random((2, 5)) < 0.7
    return lambda engine: (rnn(x, lengths=[5, 2], engine=engine), rnn(x, mask=mask, engine=engine))


def last_outputs() -> Callable[[str], Any]:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True)), gru(8)])
    return lambda engine: layers(X, last_only=True, engine=engine)


def layered() -> Callable[[str], Any]:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True), "sum"), gru(4)])
    return lambda engine: layers(X, engine=engine)


def nested() -> Callable[[str], Any]:
    words = gru(3)

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        _, last = words(x, initial="zeros")
        return last + h, h + sn.reduce(x, "sum").sum(axis=-1, keepdims=True)

    rnn = sn.RNN(step, memory=1)
    documents = sn.Ragged.from_list([[RANDOM.normal(size=(n, 3)).astype("f4") for n in (2, 3)], []])
    return lambda engine: rnn(documents, engine=engine)


def inner_needs_the_memory() -> Callable[[str], Any]:
    words = gru(3)

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        outputs, h = words(x, initial=h)
        return outputs, h

    rnn = sn.RNN(step, memory=4)
    documents = sn.Ragged.from_list(
        [[RANDOM.normal(size=(n, 3)).astype("f4") for n in (2, 3)], [np.ones((1, 3), "f4")]]
    )
    return lambda engine: rnn(documents, engine=engine)


def attention() -> Callable[[str], Any]:
    def step(x: Any, h: Any, params: Any, statics: Any) -> tuple[Any, Any]:
        scores = (statics * sn.expand(h, statics)).sum(axis=-1)
        weights = np.exp(scores - sn.expand(sn.reduce(scores, "max"), scores))
        context = sn.reduce(weights[..., None] * statics, "sum")
        return context, np.tanh(x + context)

    rnn = sn.RNN(step, memory=3)
    keys = ragged(2, 1, 4, 3)
    return lambda engine: rnn(X, statics=keys, engine=engine)


def graph() -> Callable[[str], Any]:
    rnn = gru(3)

    def model(x: Any, params: Any) -> Any:
        h, _ = rnn(x)
        weights = sn.softmax_over_steps(h @ params["v"])
        return sn.reduce(weights[:, None] * h, "sum") @ params["W"], h

    params = {"v": RANDOM.normal(size=4).astype("f4"), "W": RANDOM.normal(size=(4, 2)).astype("f4")}
    made = sn.Graph(model, params)
    return lambda engine: made(X, engine=engine)


def attention_between_steps() -> Callable[[str], Any]:
    rnn = gru(3)

    def model(x: Any, params: Any) -> Any:
        h, _ = rnn(x)
        return sn.attention(h, h @ params, h, heads=2, causal=True)

    made = sn.Graph(model, RANDOM.normal(size=(4, 4)).astype("f4"))
    return lambda engine: made(X, engine=engine)


def copies_of_steps() -> Callable[[str], Any]:
    kernel = np.random.default_rng(1).normal(size=(2, 3, 3)).astype("f4")

    def model(x: Any, params: Any) -> Any:
        more = sn.pad_steps(x, (2, 1), mode="replicate")
        return sn.pad_steps(np.tanh(sn.conv1d(more, params, padding="valid")), (1, 1))

    made = sn.Graph(model, kernel)
    return lambda engine: made(X, engine=engine)


def whole_sequences() -> Callable[[str], Any]:
    """A decoder that reads a whole sequence at each step, and steps that overlap."""

    def step(x: Any, h: Any, params: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(h + x + sn.reduce(statics * sn.expand(h, statics), "max"))
        return h, h

    decoder, weight = sn.RNN(step, memory=3), np.random.default_rng(1).normal(size=(3, 2, 2)).astype("f4")
    made = sn.Graph(lambda x, w: sn.conv_transpose1d(decoder(x, statics=x * 2)[0], w, stride=2), weight)
    return lambda engine: made(X, engine=engine)


def gradient() -> Callable[[str], Any]:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True)), gru(8)])

    def run(engine: str) -> Any:
        (outputs, final), backward = sn.vjp(layers)(X, engine=engine)
        gradients = backward(outputs, final)
        return outputs, final, gradients.params, gradients.inputs, gradients.initial

    return run


def gradient_of_one_recurrence() -> Callable[[str], Any]:
    rnn = gru(3)

    def run(engine: str) -> Any:
        (outputs, final), backward = sn.vjp(rnn)(X, engine=engine)
        gradients = backward(outputs, final)
        return outputs, final, gradients.params, gradients.inputs, gradients.initial

    return run


def training() -> Callable[[str], Any]:
    rnn = gru(3)
    run = sn.value_and_grad(lambda outputs, target: ((outputs - target) ** 2).sum(axis=-1), rnn)
    target = RANDOM.normal(size=(len(X.values), 4)).astype("f4")
    return lambda engine: run(X, X.with_values(target), engine=engine)[1].params


def stream() -> Callable[[str], Any]:
    layers = sn.Stack([gru(3), gru(4)])
    x = RANDOM.normal(size=(4, 2, 3)).astype("f4")

    def run(engine: str) -> Any:
        steps = layers.stream(rows=2, engine=engine)
        return [steps.step(each) for each in x]

    return run


def matrix_memory() -> sn.RNN:
    """Linear attention: its memory is a matrix, which can be cut into fibers and trained in blocks."""

    def step(x: Any, matrix: Any, params: Any) -> tuple[Any, Any]:
        q, k, v = np.split(x, 3, axis=-1)
        matrix = matrix + k[:, :, None] * v[:, None, :]
        return (matrix * q[:, :, None]).sum(axis=1), matrix

    return sn.RNN(step, memory=(16, 16), inputs=48)


def training_in_blocks() -> Callable[[str], Any]:
    """Its inputs are small: an output is a sum of products of three of them, and a gradient one of five."""
    rnn, x = matrix_memory(), ragged(5, 0, 2, features=48)
    x = x.with_values(x.values / 4)

    def run(engine: str) -> Any:
        (outputs, final), backward = sn.vjp(rnn)(x, engine=engine)
        return outputs, final, backward(outputs, final).inputs

    return run


MODELS = [
    flat,
    padded_and_masked,
    last_outputs,
    layered,
    nested,
    inner_needs_the_memory,
    attention,
    graph,
    gradient,
    gradient_of_one_recurrence,
    training,
    training_in_blocks,
    stream,
    attention_between_steps,
    copies_of_steps,
    whole_sequences,
]
