"""The results of the recurrent layers of MLX, with a state given: without, MLX up to 0.31 leaves bhn out."""

import mlx.core as mx
import numpy as np
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save
from mlx import nn


def from_layer(layout, layer, state):
    x = random(ROWS, STEPS, INPUTS)
    arrays = {}
    for name, value in layer.parameters().items():
        arrays[name] = random(*value.shape)
        setattr(layer, name, mx.array(arrays[name]))
    zeros = mx.zeros((ROWS, HIDDEN))
    outputs = layer(mx.array(x), *[zeros] * state)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    return case(layout, arrays, x, np.array(outputs))


if __name__ == "__main__":
    save(
        [
            from_layer("mlx.rnn", nn.RNN(INPUTS, HIDDEN), 1),
            from_layer("mlx.gru", nn.GRU(INPUTS, HIDDEN), 1),
            from_layer("mlx.lstm", nn.LSTM(INPUTS, HIDDEN), 2),
        ],
        {"mlx": mx.__version__},
    )
