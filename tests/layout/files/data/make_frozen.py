"""Makes frozen.tar.xz: graphs whose variables were made constants, and what TensorFlow computes with them.

`python make_frozen.py` needs tensorflow and tf_keras, the tests neither. outputs.npz has under
`<graph>:inputs` what a graph was given, and under `<graph>:<what>` what it made of that.
"""

import os
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from packing import pack

os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
os.environ.update(TF_ENABLE_ONEDNN_OPTS="0")
tf: Any = import_module("tensorflow")
v1 = tf.compat.v1
HIDDEN, INPUTS, TIME, ROWS = 3, 2, 5, 2
Numbers = dict[str, Any]


def dynamic(x: Any) -> dict[str, Any]:
    """A loop over a BasicLSTMCell, and a dense layer."""
    outputs, _ = v1.nn.dynamic_rnn(v1.nn.rnn_cell.BasicLSTMCell(HIDDEN, forget_bias=0.5), x, dtype="float32")
    v1.get_variable("head/kernel", (HIDDEN, 2))
    return {"outputs": outputs, "head": tf.matmul(outputs[:, -1], v1.get_variable("dense", (HIDDEN, 2)))}


def unrolled(x: Any) -> dict[str, Any]:
    """A GRUCell in both directions, step after step."""
    cells = v1.nn.rnn_cell.GRUCell(HIDDEN), v1.nn.rnn_cell.GRUCell(HIDDEN)
    outputs, _, _ = v1.nn.static_bidirectional_rnn(*cells, tf.unstack(x, axis=1), dtype="float32")
    forward, backward = tf.split(tf.stack(outputs, 1), 2, axis=-1)
    return {"forward": tf.identity(forward), "backward": tf.identity(backward)}


def block(x: Any) -> dict[str, Any]:
    """The operator of a whole LSTM."""
    kernel = v1.get_variable("lstm_cell/kernel", (INPUTS + HIDDEN, 4 * HIDDEN))
    bias = v1.get_variable("lstm_cell/bias", (4 * HIDDEN,))
    zeros, none = tf.zeros((ROWS, HIDDEN)), tf.zeros((HIDDEN,))
    made = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.constant(TIME, tf.int64),
        x=tf.transpose(x, (1, 0, 2)),
        cs_prev=zeros,
        h_prev=zeros,
        w=kernel,
        wci=none,
        wcf=none,
        wco=none,
        b=bias,
        forget_bias=1.0,
        cell_clip=0.0,
        use_peephole=False,
    )
    return {"outputs": tf.transpose(made.h, (1, 0, 2))}


def frozen(name: str, build: Any, folder: Path, found: Numbers) -> None:
    """Builds a graph of TensorFlow 1, fills its variables, runs it, and saves it with them as constants."""
    draw = np.random.default_rng(list(name.encode()))
    with tf.Graph().as_default() as graph, v1.Session() as run:
        x = v1.placeholder("float32", (ROWS, TIME, INPUTS), "x")
        outputs = {what: tf.identity(y, what) for what, y in build(x).items()}
        for variable in v1.global_variables():
            run.run(variable.assign(draw.normal(0, 0.5, size=variable.shape).astype("f4")))
        found[f"{name}:inputs"] = given = draw.normal(size=(ROWS, TIME, INPUTS)).astype("f4")
        for what, y in outputs.items():
            found[f"{name}:{what}"] = run.run(y, {x: given})
        ends = [y.op.name for y in outputs.values()]
        made = v1.graph_util.convert_variables_to_constants(run, graph.as_graph_def(), ends)
        (folder / f"{name}.pb").write_bytes(made.SerializeToString())


def keras_2(folder: Path, found: Numbers) -> None:
    """A model of Keras 2, frozen as TensorFlow 2 does."""
    keras: Any = import_module("tf_keras")
    convert: Any = import_module("tensorflow.python.framework.convert_to_constants")
    layers = [
        keras.layers.LSTM(HIDDEN, return_sequences=True, name="lstm"),
        keras.layers.GRU(HIDDEN, name="gru"),
    ]
    model = keras.Sequential([keras.Input((TIME, INPUTS)), *layers])
    draw = np.random.default_rng(5)
    model.set_weights([draw.normal(0, 0.5, array.shape).astype("f4") for array in model.get_weights()])
    found["keras:inputs"] = given = draw.normal(size=(ROWS, TIME, INPUTS)).astype("f4")
    found["keras:outputs"] = np.asarray(model(given))
    function = tf.function(model).get_concrete_function(tf.TensorSpec((None, TIME, INPUTS), "float32"))
    made = convert.convert_variables_to_constants_v2(function)
    (folder / "keras.pb").write_bytes(made.graph.as_graph_def().SerializeToString())


with TemporaryDirectory() as name:
    folder, found = Path(name), dict[str, Any]()
    for build in (dynamic, unrolled, block):
        frozen(build.__name__, build, folder, found)
    keras_2(folder, found)
    np.savez_compressed(folder / "outputs.npz", **found)
    pack("frozen", folder)
