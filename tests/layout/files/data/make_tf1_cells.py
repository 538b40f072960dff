"""Makes tf1_cells.tar.xz: checkpoints of cells of several kinds, and what TensorFlow computes with them.

`python make_tf1_cells.py` needs tensorflow and tf_keras, the tests neither. outputs.npz has under
`<checkpoint>:inputs` what a model was given, and under `<checkpoint>:outputs` what it made of that.
"""

import os
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from packing import pack

os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
tf: Any = import_module("tensorflow")
v1 = tf.compat.v1
INPUTS, TIME, ROWS = 3, 5, 2


def stack(x: Any) -> Any:
    """A GRUCell and a BasicLSTMCell over it."""
    cells = [v1.nn.rnn_cell.GRUCell(4), v1.nn.rnn_cell.BasicLSTMCell(3)]
    return v1.nn.dynamic_rnn(v1.nn.rnn_cell.MultiRNNCell(cells), x, dtype="float32")[0]


def joined(x: Any) -> Any:
    """A BasicLSTMCell, a dense layer, and a BasicRNNCell of four units."""
    with v1.variable_scope("encoder"):
        x, _ = v1.nn.dynamic_rnn(v1.nn.rnn_cell.BasicLSTMCell(4), x, dtype="float32")
    with v1.variable_scope("decoder"):
        x = tf.matmul(x, v1.get_variable("dense/kernel", (4, 3))) + v1.get_variable("dense/bias", 3)
        return v1.nn.dynamic_rnn(v1.nn.rnn_cell.BasicRNNCell(4), x, dtype="float32")[0]


with TemporaryDirectory() as folder:
    numbers: dict[str, Any] = {}
    for model in (stack, joined):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(1)
            x = v1.placeholder("float32", (None, TIME, INPUTS))
            outputs = model(x)
            session.run(v1.global_variables_initializer())
            v1.train.Saver().save(session, f"{folder}/{model.__name__}", write_meta_graph=False)
            given = np.random.default_rng(0).normal(size=(ROWS, TIME, INPUTS)).astype("float32")
            numbers[f"{model.__name__}:inputs"] = given
            numbers[f"{model.__name__}:outputs"] = session.run(outputs, {x: given})
    np.savez_compressed(Path(folder) / "outputs.npz", **numbers)
    (Path(folder) / "checkpoint").unlink()
    pack("tf1_cells", Path(folder))
