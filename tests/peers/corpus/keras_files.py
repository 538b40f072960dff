"""The files of Keras 3: rows of layers with others between, branches, both directions, other functions."""

import os

os.environ["KERAS_BACKEND"] = "torch"

from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import keras_cells
from keras import layers
from specimens import HIDDEN, INPUTS, ROWS, STEPS, Specimens, pack, random

EVERY = {"return_sequences": True}
RECURRENT = (layers.RNN, layers.Bidirectional)


def filled(model):
    """A model with weights that are never zero."""
    model.set_weights([random(*weight.shape) for weight in model.get_weights()])
    return model


def twin(layer):
    """A recurrent layer with the same weights that gives every step."""
    config = layer.get_config()
    own = config["layer"]["config"] if isinstance(layer, layers.Bidirectional) else config
    own |= {"return_sequences": True, "return_state": False}
    made = type(layer).from_config(config)
    made.build((None, None, layer.input.shape[-1]))
    made.set_weights(layer.get_weights())
    return made


def outputs(layer, x):
    """The results of a recurrent layer for inputs, each step at its own place."""
    y = keras.ops.convert_to_numpy(twin(layer)(x))
    return y[:, ::-1] if getattr(layer, "go_backwards", False) else y


def numbers(model, row=False):
    """The results of each recurrent layer for inputs; row: also those of all of them, one after another."""
    recurrent = [layer for layer in model.layers if isinstance(layer, RECURRENT)]
    known = {}
    for layer in recurrent:
        x = random(ROWS, STEPS, layer.input.shape[-1])
        known[layer.name] = x, outputs(layer, x)
    if row:
        x = y = random(ROWS, STEPS, INPUTS)
        for layer in recurrent:
            y = outputs(layer, y)
        known["*"] = x, y
    return known


def normalised():
    """LSTM, LayerNormalization, LSTM."""
    x = y = keras.Input((None, INPUTS))
    y = layers.LSTM(HIDDEN, **EVERY, name="lower")(y)
    y = layers.LayerNormalization(name="norm")(y)
    return keras.Model(x, layers.LSTM(HIDDEN, name="upper")(y))


def row():
    """GRU, both directions of an LSTM, SimpleRNN: each takes what the one before gives."""
    return keras.Sequential(
        [
            keras.Input((None, INPUTS)),
            layers.GRU(HIDDEN, **EVERY, name="first"),
            layers.Dropout(0.2, name="dropout"),
            layers.Bidirectional(layers.LSTM(HIDDEN, **EVERY), name="second"),
            layers.SimpleRNN(HIDDEN, **EVERY, name="third"),
        ]
    )


def branches():
    """Two layers over the same inputs, and one over both."""
    x = keras.Input((None, INPUTS))
    one = layers.GRU(HIDDEN, **EVERY, name="one")(x)
    other = layers.LSTM(HIDDEN, **EVERY, name="other")(x)
    both = layers.Concatenate(name="both")([one, other])
    return keras.Model(x, layers.Dense(1, name="head")(layers.LSTM(HIDDEN, name="upon")(both)))


def merges():
    """Both directions, put together in every way that gives one output."""
    x = keras.Input((None, INPUTS))
    made = [
        layers.Bidirectional(layers.GRU(HIDDEN, **EVERY), merge_mode=mode, name=mode)(x)
        for mode in ("concat", "sum", "mul", "ave")
    ]
    return keras.Model(x, made)


def states():
    """A row whose last layer's last states are outputs of the model, too."""
    x = keras.Input((None, INPUTS))
    y = layers.GRU(HIDDEN, **EVERY, name="lower")(x)
    return keras.Model(x, layers.LSTM(HIDDEN, **EVERY, return_state=True, name="upper")(y))


def apart():
    """Both directions, which are not put together."""
    x = keras.Input((None, INPUTS))
    return keras.Model(x, layers.Bidirectional(layers.GRU(HIDDEN, **EVERY), merge_mode=None, name="apart")(x))


def backwards():
    """Layers that go backwards: every step, and the last one."""
    x = keras.Input((None, INPUTS))
    steps = layers.LSTM(HIDDEN, go_backwards=True, **EVERY, name="steps")(x)
    return keras.Model(x, [steps, layers.GRU(HIDDEN, go_backwards=True, name="last")(x)])


def functions():
    """Other functions than the usual ones, and none of some weights."""
    x = keras.Input((None, INPUTS))
    made = [
        layers.GRU(HIDDEN, reset_after=False, name="before", **EVERY)(x),
        layers.LSTM(HIDDEN, recurrent_activation="hard_sigmoid", name="hard", **EVERY)(x),
        layers.SimpleRNN(HIDDEN, activation="relu", name="relu", **EVERY)(x),
        layers.LSTM(HIDDEN, use_bias=False, name="no_bias", **EVERY)(x),
    ]
    return keras.Model(x, made)


def save(made, folder):
    """Models in the kinds of files that people have of them."""
    model = filled(normalised())
    known = numbers(model)
    for ending in ("keras", "weights.h5", "h5"):
        file = f"normalised.{ending}"
        (model.save_weights if ending == "weights.h5" else model.save)(folder / file)
        made.add(file, "LSTM, LayerNormalization, LSTM", known)
    kinds = {
        "row": "GRU, Dropout, LSTM in both directions, SimpleRNN, in a row",
        "branches": "GRU and LSTM side by side, LSTM over both",
        "merges": "GRU in both directions, put together in every way",
        "backwards": "LSTM and GRU that go backwards",
        "functions": "GRU that resets before, hard sigmoid, relu, no bias",
        "states": "GRU, LSTM whose last states the model gives",
    }
    for name, what in kinds.items():
        model = filled(globals()[name]())
        model.save(folder / f"{name}.keras")
        known = numbers(model, row=name in ("row", "states"))
        made.add(f"{name}.keras", what, known)
    model, (x, _) = filled(apart()), known["*"]
    model.save(folder / "apart.keras")
    each = zip(("apart/forward", "apart/backward"), model(x), strict=True)
    known = {name: (x, keras.ops.convert_to_numpy(y)) for name, y in each}
    made.add("apart.keras", "GRU in both directions, which stay apart", known)
    for name, model in keras_cells.models(keras):
        filled(model).save(folder / f"{name}.keras")
        known = keras_cells.numbers(keras, keras.ops.convert_to_numpy, name, model)
        made.add(f"{name}.keras", keras_cells.MODELS[name], known)


if __name__ == "__main__":
    made = Specimens({"keras": keras.__version__})
    with TemporaryDirectory() as name:
        save(made, Path(name))
        pack("keras", Path(name), made)
