"""`TimeDistributed` makes one call of a layer that works row by row, and as many as Keras of any other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stepnet.keras
from tests.keras.keras_cases import assert_same, keras, numbers

SHAPE = (2, 4, 6, 3)
ROW_BY_ROW: dict[str, Callable[[], Any]] = {
    "dense": lambda: keras.layers.Dense(5, "tanh"),
    "convolution": lambda: keras.layers.Conv1D(4, 3),
    "recurrent": lambda: keras.layers.GRU(4),
    "normalisation": lambda: keras.layers.LayerNormalization(),
    "several": lambda: keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)]),
}
NOT: dict[str, Callable[[], Any]] = {
    "batch normalisation": lambda: keras.layers.BatchNormalization(),
    "dropout": lambda: keras.layers.Dropout(0.5, seed=1),
    "recurrent dropout": lambda: keras.layers.LSTM(3, recurrent_dropout=0.5, seed=1),
    "several": lambda: keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5, seed=2)]),
}


class Called:
    """Counts the calls of a layer's `call`."""

    def __init__(self, layer: Any) -> None:
        self.count, theirs = 0, layer.call

        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return theirs(*arguments, **options)

        layer.call = call


def answers(where: Any, make: Callable[[], Any], training: bool) -> tuple[dict[str, Any], int]:
    """The results of a layer, with the gradients of its inputs and weights; and the number of its calls."""
    keras.utils.set_random_seed(3)
    layer = where.TimeDistributed(make())
    layer.build(SHAPE)
    x = torch.tensor(numbers(*SHAPE), requires_grad=True)
    called = Called(layer.layer)
    y = layer(x, training=training)
    weights = [weight.value for weight in layer.trainable_weights]
    gradients = torch.autograd.grad((y * torch.cos(y)).sum(), [x, *weights])
    known = {str(place): one.detach().numpy() for place, one in enumerate([y, *gradients])}
    return known, called.count


@pytest.mark.parametrize("layer", ROW_BY_ROW)
def test_a_layer_that_works_row_by_row_is_called_once(layer: str):
    (ours, count), (theirs, each) = (
        answers(where, ROW_BY_ROW[layer], True) for where in (stepnet.keras, keras.layers)
    )
    assert (count, each) == (1, SHAPE[1])
    assert_same(ours, theirs, 6 * 3)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", NOT)
def test_what_mixes_rows_or_draws_is_called_for_each_step(layer: str, training: bool):
    (ours, count), (theirs, _) = (
        answers(where, NOT[layer], training) for where in (stepnet.keras, keras.layers)
    )
    assert count == (SHAPE[1] if training else 1)
    assert_same(ours, theirs, 6 * 3)
