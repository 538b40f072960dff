"""The results of the recurrent layers of Keras 3, on the torch backend."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save
from keras import layers

EVERY = {"return_sequences": True}


def from_layer(layout, layer, **semantics):
    x = random(ROWS, STEPS, INPUTS)
    layer(x)
    arrays = {}
    for variable in layer.weights:
        way = variable.path.partition("/")[2].partition("_")[0]
        front = way + "/" if way in ("forward", "backward") else ""
        arrays[front + variable.name] = random(*variable.shape)
        variable.assign(arrays[front + variable.name])
    return case(layout, arrays, x, np.asarray(layer(x).detach()), semantics)


if __name__ == "__main__":
    save(
        [
            from_layer("keras.rnn", layers.SimpleRNN(HIDDEN, **EVERY)),
            from_layer(
                "keras.rnn", layers.SimpleRNN(HIDDEN, activation="relu", **EVERY), candidate_activation="relu"
            ),
            from_layer("keras.gru", layers.GRU(HIDDEN, **EVERY)),
            from_layer("keras.gru_reset_before", layers.GRU(HIDDEN, reset_after=False, **EVERY)),
            from_layer(
                "keras.gru",
                layers.GRU(HIDDEN, recurrent_activation="hard_sigmoid", **EVERY),
                gate_activation="hard_sigmoid",
            ),
            from_layer("keras.lstm", layers.LSTM(HIDDEN, **EVERY)),
            from_layer("keras.lstm", layers.Bidirectional(layers.LSTM(HIDDEN, **EVERY))),
            from_layer("keras.gru", layers.Bidirectional(layers.GRU(HIDDEN, **EVERY))),
        ],
        {"keras": keras.__version__, "backend": keras.backend.backend()},
    )
