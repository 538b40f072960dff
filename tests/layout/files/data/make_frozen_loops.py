"""Makes frozen_loops.tar.xz: frozen graphs of TensorFlow 2, whose constants are called after what reads them.

`python make_frozen_loops.py` needs tensorflow with Keras 3 and tf_keras, the tests none of them. outputs.npz
has under `<graph>:inputs` what a graph was given, under `<graph>:outputs` what it made of that, and under
`<graph>:<layer>/<name>` the weights that a layer was given.
"""

import os
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from packing import pack

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
tf: Any = import_module("tensorflow")
keras: Any = import_module("keras")
tf_keras: Any = import_module("tf_keras")
convert: Any = import_module("tensorflow.python.framework.convert_to_constants")
SIZE, TIME, ROWS = 3, 5, 2  # as many inputs as units: shapes do not tell the matrices apart
ALL: dict[str, Any] = {"return_sequences": True}


def models() -> dict[str, tuple[Any, list[Any]]]:
    """By name of a graph: which Keras makes it, and its layers."""
    return {**dict(of_keras(keras, "")), **dict(of_keras(tf_keras, "legacy_"))}


def of_keras(version: Any, front: str) -> Any:
    L = version.layers
    made: dict[str, list[Any]] = {
        "keras": [L.LSTM(SIZE, name="lstm", **ALL), L.GRU(SIZE, name="gru", **ALL),
                  L.Dense(SIZE, name="dense"),
                  L.SimpleRNN(SIZE, activation="relu", use_bias=False, name="rnn", **ALL)],
        "before": [L.GRU(SIZE, reset_after=False, name="before", **ALL)],
        "no_bias": [L.GRU(SIZE, reset_after=False, use_bias=False, name="no_bias", **ALL)],
        "functions": [L.GRU(SIZE, reset_after=False, activation="relu", name="relu",
                            recurrent_activation="softsign", **ALL),
                      L.GRU(SIZE, activation="elu", name="after", **ALL)],
        "backward": [L.LSTM(SIZE, go_backwards=True, name="last", **ALL)],
    }  # fmt: skip
    return {f"{front}{name}": (version, layers) for name, layers in made.items()}


class Own(tf.Module):
    """A recurrence of a program's own, with the gates of an LSTM in an order of its own."""

    def __init__(self, order: tuple[int, int, int, int]) -> None:
        super().__init__()
        draw = np.random.default_rng(3)
        shapes = {"w": (SIZE, 4 * SIZE), "r": (SIZE, 4 * SIZE), "b": (4 * SIZE,)}
        self.numbers = {name: draw.normal(0, 0.5, shape).astype("f4") for name, shape in shapes.items()}
        self.w, self.r, self.b = (tf.Variable(self.numbers[name]) for name in "wrb")
        self.order = order

    def __call__(self, x: Any) -> Any:
        outputs = tf.TensorArray(tf.float32, TIME)
        h = c = tf.zeros((ROWS, SIZE))
        steps = tf.TensorArray(tf.float32, TIME).unstack(tf.transpose(x, (1, 0, 2)))

        def step(t: Any, h: Any, c: Any, outputs: Any) -> Any:
            parts = tf.split(tf.matmul(steps.read(t), self.w) + tf.matmul(h, self.r) + self.b, 4, axis=1)
            i, f, g, o = (parts[place] for place in self.order)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            return t + 1, h, c, outputs.write(t, h)

        made = tf.while_loop(lambda t, *_: t < TIME, step, (0, h, c, outputs))
        return tf.transpose(made[3].stack(), (1, 0, 2))


def frozen(name: str, model: Any, folder: Path, found: dict[str, Any], lowered: bool) -> None:
    """Freezes what a model computes, and says what it gives."""
    given = np.random.default_rng(list(name.encode())).normal(size=(ROWS, TIME, SIZE)).astype("f4")
    found[f"{name}:inputs"], found[f"{name}:outputs"] = given, np.asarray(model(given))
    function = tf.function(model).get_concrete_function(tf.TensorSpec(given.shape, "float32"))
    made = convert.convert_variables_to_constants_v2(function, lower_control_flow=lowered)
    graph = made.graph.as_graph_def()
    for part in (*graph.node, *(node for one in graph.library.function for node in one.node_def)):
        part.ClearField("experimental_debug_info")
        part.attr.pop("_output_shapes", None)
    (folder / f"{name}{'' if lowered else '_loops'}.pb").write_bytes(graph.SerializeToString())


with TemporaryDirectory() as name:
    folder, found = Path(name), dict[str, Any]()
    for title, (version, layers) in models().items():
        model = version.Sequential([version.Input((TIME, SIZE)), *layers])
        draw = np.random.default_rng(list(title.encode()))
        model.set_weights([draw.normal(0, 0.5, array.shape).astype("f4") for array in model.get_weights()])
        for layer in layers:
            found |= {f"{title}:{layer.name}/{one.name}": np.asarray(one) for one in layer.weights}
        for lowered in (True, False):
            frozen(title, model, folder, found, lowered)
    for title, order in (("own", (0, 1, 2, 3)), ("other", (1, 0, 2, 3))):
        module = Own(order)
        found |= {f"{title}:{name}": array for name, array in module.numbers.items()}
        frozen(title, module, folder, found, lowered=True)
    np.savez_compressed(folder / "outputs.npz", **found)
    pack("frozen_loops", folder)
