"""Makes the files of Keras 1 and 2 in this folder again: `python make_keras.py`.

It needs tensorflow and tf_keras. `keras.npz` has what a model makes of inputs (`<name>:inputs` and
`<name>:outputs`), as tf_keras computes it.
"""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
HIDDEN, INPUTS, TIME, ROWS = 3, 2, 5, 2
Numbers = dict[str, Any]

# The gates of Keras 1 in the order in which it lists them (keras/layers/recurrent.py of 1.2.2).
KERAS_1 = {"LSTM": "icfo", "GRU": "zrh"}


def libraries() -> tuple[Any, Any]:
    os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
    os.environ.update(TF_ENABLE_ONEDNN_OPTS="0")
    return import_module("tensorflow"), import_module("tf_keras")


def filled(model: Any, name: str) -> Any:
    """A model with weights that no two draws have alike."""
    draw = np.random.default_rng(list(name.encode()))
    model.set_weights(
        [draw.normal(0, 0.7, weight.shape).astype(np.float32) for weight in model.get_weights()]
    )
    return model


def run(model: Any, name: str, found: Numbers) -> None:
    found[f"{name}:inputs"] = np.random.default_rng(0).normal(size=(ROWS, TIME, INPUTS)).astype(np.float32)
    found[f"{name}:outputs"] = model.predict(found[f"{name}:inputs"], verbose=0)


def sequential(keras: Any, layer: Any) -> Any:
    return keras.Sequential([keras.layers.Input((None, INPUTS)), layer])


def plain(keras: Any, found: Numbers) -> None:
    layers = keras.layers
    gru, lstm = layers.GRU, layers.LSTM
    made = {
        "keras2_lstm": lstm(HIDDEN, return_sequences=True),
        "keras2_gru": gru(HIDDEN, return_sequences=True),
        "keras2_gru_before": gru(HIDDEN, reset_after=False, recurrent_activation="hard_sigmoid"),
        "keras2_bidirectional": layers.Bidirectional(lstm(HIDDEN, return_sequences=True), merge_mode="sum"),
    }
    for name, layer in made.items():
        model = filled(sequential(keras, layer), name)
        run(model, name, found)
        model.save(HERE / f"{name}.h5", save_format="h5")


def nested(keras: Any, found: Numbers) -> None:
    """A model in a model, a stack of cells, states handed on: as .h5, as .keras and as weights alone."""
    layers = keras.layers
    inputs = layers.Input((None, INPUTS))
    steps, *states = layers.LSTM(HIDDEN, return_sequences=True, return_state=True)(inputs)
    inside = layers.Input((None, HIDDEN))
    within = layers.Dense(2)(layers.GRU(HIDDEN, return_sequences=True)(inside))
    steps = keras.Model(inside, within, name="inner")(layers.Dropout(0.1)(steps))
    cells = layers.RNN(layers.StackedRNNCells([layers.LSTMCell(HIDDEN), layers.GRUCell(2)]))(steps)
    outputs = layers.Concatenate()([layers.LSTM(HIDDEN)(steps, initial_state=states), cells])
    model = filled(keras.Model(inputs, outputs), "nested")
    run(model, "keras2_nested", found)
    model.save(HERE / "keras2_nested.h5", save_format="h5")
    model.save_weights(HERE / "keras2_nested_weights.h5", save_format="h5")
    model.save(HERE / "keras2_nested.keras")


def cudnn(tf: Any, keras: Any, found: Numbers) -> None:
    """Layers that run on graphics processors alone, and what others compute that load their weights."""
    v1 = tf.compat.v1.keras
    for cell, options in (("GRU", {"reset_after": True}), ("LSTM", {})):
        name = f"keras2_cudnn_{cell.lower()}"
        layer = getattr(v1.layers, f"CuDNN{cell}")(HIDDEN, return_sequences=True)
        model = filled(sequential(keras, layer), name)
        model.save(HERE / f"{name}.h5", save_format="h5")
        twin = sequential(keras, getattr(keras.layers, cell)(HIDDEN, return_sequences=True, **options))
        twin.load_weights(HERE / f"{name}.h5")
        run(twin, name, found)


def keras_1(keras: Any, found: Numbers) -> None:
    """Files as Keras 1.2.2 wrote them (save_model in keras/models.py), by h5py."""
    layers = keras.layers
    lstm, gru = (
        layers.LSTM(HIDDEN, return_sequences=True),
        layers.GRU(HIDDEN, return_sequences=True, reset_after=False),
    )
    save_1(sequential(keras, lstm), "LSTM", "lstm_1", ("lstm_1",), found)
    save_1(sequential(keras, gru), "GRU", "gru_1", ("gru_1",), found)
    both = layers.Bidirectional(layers.GRU(HIDDEN, return_sequences=True, reset_after=False))
    save_1(sequential(keras, both), "GRU", "bidirectional_1", ("forward_gru_1", "backward_gru_1"), found)


def save_1(model: Any, cell: str, layer: str, owners: tuple[str, ...], found: Numbers) -> None:
    """Writes a file of Keras 1 with one layer, and runs it as a model of tf_keras that loads it.

    owners: what the names of its arrays begin with.
    """
    name = f"keras1_{layer.removesuffix('_1')}"
    draw = np.random.default_rng(list(name.encode()))
    shapes = {"W": (INPUTS, HIDDEN), "U": (HIDDEN, HIDDEN), "b": (HIDDEN,)}
    weights = {
        f"{owner}_{kind}_{gate}": draw.normal(0, 0.7, shape).astype(np.float32)
        for owner in owners
        for gate in KERAS_1[cell]
        for kind, shape in shapes.items()
    }
    config: dict[str, Any] = {
        "name": owners[0].removeprefix("forward_"),
        "output_dim": HIDDEN,
        "go_backwards": False,
    }
    config |= {"activation": "tanh", "inner_activation": "sigmoid", "return_sequences": True}
    node: dict[str, Any] = {"class_name": cell, "config": config}
    if len(owners) == 2:
        node = {
            "class_name": "Bidirectional",
            "config": {"name": layer, "merge_mode": "concat", "layer": node},
        }
    node["config"]["batch_input_shape"] = [None, None, INPUTS]
    with import_module("h5py").File(HERE / f"{name}.h5", "w") as file:
        file.attrs["keras_version"] = b"1.2.2"
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": [node]}).encode()
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = [layer.encode()]
        inner = group.create_group(layer)
        inner.attrs["weight_names"] = [weight.encode() for weight in weights]
        for weight, array in weights.items():
            inner.create_dataset(weight, data=array)
    model.load_weights(HERE / f"{name}.h5")
    run(model, name, found)


def main() -> None:
    tf, keras = libraries()
    found: Numbers = {}
    plain(keras, found)
    nested(keras, found)
    cudnn(tf, keras, found)
    keras_1(keras, found)
    np.savez_compressed(HERE / "keras.npz", **dict(sorted(found.items())))


if __name__ == "__main__":
    main()
