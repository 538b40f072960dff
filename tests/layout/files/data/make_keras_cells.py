"""Makes keras_cells_2.tar.xz and keras_cells_3.tar.xz: cells in all that Keras has around them, in every kind
of file, and what Keras computes.

`python make_keras_cells.py 2` needs tensorflow and tf_keras, `python make_keras_cells.py 3` tensorflow and
Keras 3; the tests need neither. outputs.npz has under `<model>:inputs` and `<model>:outputs` what a model
makes of inputs, and under `<model>:<layer>` what a layer in it does.
"""

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from packing import pack

VERSION = sys.argv[1]
os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
os.environ.update(TF_ENABLE_ONEDNN_OPTS="0", KERAS_BACKEND="tensorflow")
tf: Any = import_module("tensorflow")
keras: Any = import_module("tf_keras" if VERSION == "2" else "keras")
layers: Any = keras.layers
ROWS, TIME, INPUTS = 2, 5, 2
MANY = {"return_sequences": True}


@keras.saving.register_keras_serializable("Mine")
class Encoder(layers.Layer):
    """A layer of the program's own, which holds others as attributes."""

    def __init__(self, units: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.units = units
        self.first = layers.LSTM(units, **MANY)
        self.both = layers.Bidirectional(layers.GRU(2, **MANY), merge_mode="sum")
        self.head = layers.Dense(2)

    def build(self, shape: Any) -> None:
        self.first.build((None, None, INPUTS))
        self.both.build((None, None, self.units))
        self.head.build((None, None, 2))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.head(self.both(self.first(x)))

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], 2)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("Mine")
class Minimal(layers.Layer):
    """A cell of the program's own, whose arrays look as those of a SimpleRNNCell do."""

    def __init__(self, units: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.units = self.state_size = self.output_size = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent_kernel")
        self.built = True

    def call(self, x: Any, states: Any) -> Any:
        h = tf.sin(tf.matmul(x, self.kernel) + tf.matmul(states[0], self.recurrent_kernel))
        return h, [h]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def row(*held: Any, shape: tuple[int, ...] = (TIME, INPUTS)) -> Any:
    return keras.Sequential([keras.Input(shape), *held])


def stack() -> list[Any]:
    return [layers.LSTMCell(3), layers.GRUCell(2, reset_after=False), layers.LSTMCell(3, activation="relu")]


def bidirectional(backward: Any, merge: str) -> Any:
    forward = layers.LSTM(3, name="ahead", **MANY)
    return layers.Bidirectional(forward, merge_mode=merge, backward_layer=backward, name="both")


def models() -> dict[str, Any]:
    grus = layers.RNN([layers.GRUCell(3), layers.GRUCell(3)], name="grus", **MANY)
    inner = row(row(layers.LSTM(3, name="lstm", **MANY)), layers.Dropout(0.1, name="drop"))
    entrance = keras.Input((TIME, INPUTS))
    functional = keras.Model(entrance, layers.GRU(3, name="gru", **MANY)(inner(entrance)), name="inside")
    return {
        "rnn": row(layers.RNN(layers.GRUCell(3, activation="relu", name="own"), name="runs", **MANY)),
        "simple": row(layers.RNN(layers.SimpleRNNCell(3), name="runs", go_backwards=True)),
        "bare": row(layers.GRU(3, use_bias=False, reset_after=False, name="gru", **MANY)),
        "stack": row(layers.RNN(stack(), name="stack", **MANY), layers.GRU(2, name="last", **MANY)),
        "grus": row(grus),
        "both": row(
            layers.Bidirectional(layers.RNN(layers.LSTMCell(3), **MANY), merge_mode="mul", name="both")
        ),
        "bothgru": row(layers.Bidirectional(layers.GRU(3, **MANY), merge_mode="ave", name="both")),
        "mine": row(bidirectional(layers.LSTM(3, go_backwards=True, name="mine", **MANY), "sum")),
        "mixed": row(bidirectional(layers.GRU(2, go_backwards=True, name="mine", **MANY), "concat")),
        "stacks": row(layers.Bidirectional(layers.RNN(stack()[:2], **MANY), name="both")),
        "timed": row(
            layers.TimeDistributed(layers.LSTM(3, name="lstm"), name="timed"), shape=(4, TIME, INPUTS)
        ),
        "custom": row(Encoder(name="encoder")),
        "foreign": row(layers.RNN(Minimal(3), name="runs", **MANY)),
        "nested": row(functional, layers.Bidirectional(layers.GRU(3, **MANY), name="both")),
    }


def save(model: Any, folder: Path) -> None:
    model.save(folder / "model.keras")
    if VERSION == "2":
        model.save(folder / "model.h5", save_format="h5")
        model.save_weights(folder / "weights.h5", save_format="h5")
        model.save_weights(folder / "checkpoint", save_format="tf")
        (folder / "checkpoint").unlink()  # the text that says which is the latest
        model.save(folder / "saved", save_format="tf")
    else:
        model.save(folder / "model.h5")
        tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
        tf.saved_model.save(model, str(folder / "saved"))
        model.export(str(folder / "exported"), verbose=False)
    model.save_weights(folder / "model.weights.h5")
    for saved in folder.glob("*/saved_model.pb"):
        saved.write_bytes(b"")  # the graph, which is large, and which nobody reads


with TemporaryDirectory() as name:
    folder, found = Path(name), dict[str, Any]()
    for title, model in models().items():
        draw = np.random.default_rng(list(title.encode()))
        model.set_weights([draw.normal(0, 0.6, array.shape).astype("f4") for array in model.get_weights()])
        inputs = draw.normal(size=(ROWS, *model.input_shape[1:])).astype("f4")
        found[f"{title}:inputs"], found[f"{title}:outputs"] = inputs, model.predict(inputs, verbose=0)
        if title == "custom":
            found["custom:first"] = np.asarray(model.layers[-1].first(inputs))
            found["custom:both"] = np.asarray(model.layers[-1].both(found["custom:first"]))
        (folder / title).mkdir()
        save(model, folder / title)
    np.savez_compressed(folder / "outputs.npz", **found)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    pack(f"keras_cells_{VERSION}", folder)
