"""Cells in all that Keras has around them, of either version of Keras: what is in each model, and what each
cell makes of inputs.

A stack of cells, a layer of a TimeDistributed and a direction that differs from the other one are recurrent
modules of their own; two directions that are alike are one.
"""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from specimens import HIDDEN, INPUTS, ROWS, STEPS, Numbers, random

EVERY = {"return_sequences": True}
MODELS = {
    "cell": "RNN of a GRUCell with relu",
    "stack": "RNN of an LSTMCell, a GRUCell that resets before and a SimpleRNNCell, and a GRU over it",
    "alike": "RNN of two GRUCells",
    "both": "Bidirectional of an RNN of an LSTMCell, whose directions are multiplied",
    "own": "Bidirectional with a backward layer of its own, whose directions are added",
    "nested": "LSTM in a model in a model, GRU",
    "mixed": "Bidirectional of an LSTM, with a GRU backward",
    "stacks": "Bidirectional of an RNN of an LSTMCell and a GRUCell",
    "timed": "LSTM in a TimeDistributed",
}
APART = ("mixed", "stacks", "timed")  # no rows


def models(keras: ModuleType) -> Iterator[tuple[str, Any]]:
    """Every model, by its name."""
    layers = keras.layers

    def row(*held: Any, shape: tuple[Any, ...] = (None, INPUTS)) -> Any:
        return keras.Sequential([keras.Input(shape), *held])

    def both(layer: Any, **options: Any) -> Any:
        return row(layers.Bidirectional(layer, name="both", **options))

    def backward(kind: str) -> Any:
        return getattr(layers, kind)(HIDDEN, go_backwards=True, name="backward", **EVERY)

    lstm, gru, simple = layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell
    three = [lstm(3), gru(2, reset_after=False), simple(3)]
    inner = row(row(layers.LSTM(HIDDEN, name="inmost", **EVERY)), layers.Dropout(0.1))
    yield "cell", row(layers.RNN(gru(HIDDEN, activation="relu"), name="runs", **EVERY))
    yield "stack", row(layers.RNN(three, name="stack", **EVERY), layers.GRU(2, name="last", **EVERY))
    yield "alike", row(layers.RNN([gru(HIDDEN), gru(HIDDEN)], name="runs", **EVERY))
    yield "both", both(layers.RNN(lstm(HIDDEN), **EVERY), merge_mode="mul")
    forward = layers.LSTM(HIDDEN, name="ahead", **EVERY)
    yield "own", both(forward, backward_layer=backward("LSTM"), merge_mode="sum")
    yield "nested", row(inner, layers.GRU(HIDDEN, name="last", **EVERY))
    forward = layers.LSTM(HIDDEN, name="ahead", **EVERY)
    yield "mixed", both(forward, backward_layer=backward("GRU"))
    yield "stacks", both(layers.RNN([lstm(3), gru(2)], **EVERY))
    yield (
        "timed",
        row(layers.TimeDistributed(layers.LSTM(HIDDEN, name="lstm"), name="timed"), shape=(4, 5, 2)),
    )


def numbers(keras: ModuleType, numpy: Callable[[Any], Any], title: str, model: Any) -> Numbers:
    """The results of each module of a model for inputs, as the file calls it; and of all of them in a row.

    Each output of a direction that runs from the end is at its own step. numpy: a tensor as an array.
    """
    known: Numbers = {}
    for name, run, width, turned in modules(keras, model, title):
        x = random(ROWS, STEPS, width)
        y = numpy(run(x))
        known[name] = x, y[:, ::-1] if turned else y
    if title not in APART:
        x = random(ROWS, STEPS, INPUTS)
        known["*"] = x, numpy(model(x))
    return known


def modules(keras: ModuleType, model: Any, title: str) -> Iterator[tuple[str, Any, int, bool]]:
    """Each module of a model: its name, what runs it, its inputs, and whether it runs from the end."""
    for layer in model.layers:
        if hasattr(layer, "forward_layer") and title not in APART:
            yield layer.name, layer, INPUTS, False
        elif hasattr(layer, "forward_layer"):
            yield from cells(keras, f"{layer.name}/forward", layer.forward_layer.cell)
            yield from cells(keras, f"{layer.name}/backward", layer.backward_layer.cell, turned=True)
        elif hasattr(layer, "cell"):
            yield from cells(keras, layer.name, layer.cell)
        elif hasattr(layer, "layers"):
            for name, *rest in modules(keras, layer, title):
                yield f"{layer.name}/{name}", *rest
        elif hasattr(layer, "layer"):
            yield from cells(keras, f"{layer.name}/{layer.layer.name}", layer.layer.cell)


def cells(
    keras: ModuleType, name: str, cell: Any, turned: bool = False
) -> Iterator[tuple[str, Any, int, bool]]:
    """The cells of a layer, each of which a layer of its own runs."""
    several = getattr(cell, "cells", None)
    for place, one in enumerate(several or [cell]):
        run = keras.layers.RNN(one, go_backwards=turned, **EVERY)
        yield f"{name}/cells/{place}" if several else name, run, one.kernel.shape[0], turned
