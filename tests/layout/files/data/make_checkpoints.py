"""Makes the TensorFlow checkpoints of this folder again: `python make_checkpoints.py`.

It needs tensorflow and tf_keras. `checkpoints.npz` has under `<name>/<variable>` what a checkpoint holds, as
TensorFlow reads it, and under `<name>:<what>` what the cell makes of `<name>:inputs`.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
HIDDEN, INPUTS, TIME, ROWS = 3, 2, 5, 2
Numbers = dict[str, Any]


def tensorflow() -> Any:
    os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
    os.environ.update(TF_ENABLE_ONEDNN_OPTS="0")
    return import_module("tensorflow")


def run_v1(tf: Any, name: str, build: Any, found: Numbers, v1: bool, **saver: Any) -> None:
    """Builds a graph of TensorFlow 1, fills its variables, saves them and runs it."""
    draw = np.random.default_rng(len(name))
    with tf.Graph().as_default(), session(tf) as run:
        inputs = draw.normal(size=(ROWS, TIME, INPUTS)).astype(np.float32)
        outputs = build(tf.compat.v1, tf.constant(inputs))
        for variable in tf.compat.v1.global_variables():
            kind = variable.dtype.base_dtype.as_numpy_dtype
            run.run(variable.assign(draw.normal(0, 0.5, size=variable.shape).astype(kind)))
        formats = {"": 2, "_v1": 1} if v1 else {"": 2}
        for ending, version in formats.items():
            saver_of = tf.compat.v1.train.Saver(write_version=version, **saver)
            saver_of.save(run, str(HERE / f"{name}{ending}"), write_meta_graph=False, write_state=False)
        found[f"{name}:inputs"] = inputs
        for what, output in outputs.items():
            found[f"{name}:{what}"] = run.run(output)
        reader = tf.train.load_checkpoint(str(HERE / name))
        for key in reader.get_variable_to_shape_map():
            found[f"{name}/{key}"] = reader.get_tensor(key)


def session(tf: Any) -> Any:
    return tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))


def basic_lstm(tf: Any, inputs: Any) -> dict[str, Any]:
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(HIDDEN), inputs, dtype="float32")
    return {"outputs": outputs}


def lstm(tf: Any, inputs: Any) -> dict[str, Any]:
    """Peepholes and a projection, with every variable in pieces."""
    with tf.variable_scope("model", partitioner=tf.fixed_size_partitioner(2)):
        cell = tf.nn.rnn_cell.LSTMCell(HIDDEN, use_peepholes=True, num_proj=2, forget_bias=0.5)
        outputs, _ = tf.nn.dynamic_rnn(cell, inputs, dtype="float32")
    with tf.variable_scope("columns", partitioner=tf.fixed_size_partitioner(3, axis=1)):
        tf.get_variable("matrix", (2, 7))
    return {"outputs": outputs}


def gru(tf: Any, inputs: Any) -> dict[str, Any]:
    """Both directions, each on a device of its own, so that there are several data files."""
    cells = []
    for device in ("/cpu:0", "/cpu:1"):
        cells.append(tf.nn.rnn_cell.DeviceWrapper(tf.nn.rnn_cell.GRUCell(HIDDEN), device))
    (forward, backward), _ = tf.nn.bidirectional_dynamic_rnn(*cells, inputs, dtype="float32")
    return {"forward": forward, "backward": backward}


def kinds(tf: Any, inputs: Any) -> dict[str, Any]:
    for kind in (
        "float16",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "bool",
        "complex64",
    ):
        tf.Variable(np.array([[0, 1, -2 if kind[0] in "fic" else 2]], kind), name=kind)
    tf.Variable(3.5, name="scalar")
    tf.Variable(np.zeros((0, 4), np.float32), name="empty")
    return {}


def train_checkpoint(tf: Any, found: Numbers) -> None:
    keras = import_module("tf_keras")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.GRU(HIDDEN, return_sequences=True, bias_initializer="normal")])
    inputs = np.random.default_rng(0).normal(size=(ROWS, TIME, INPUTS)).astype(np.float32)
    found["gru_2:outputs"], found["gru_2:inputs"] = model(inputs).numpy(), inputs
    halves = tf.Variable(np.arange(4), dtype="bfloat16")
    saved = tf.train.Checkpoint(model=model, text=tf.Variable(["some", "text"]), halves=halves)
    saved.write(str(HERE / "gru_2"))
    reader = tf.train.load_checkpoint(str(HERE / "gru_2"))
    for key, kind in reader.get_variable_to_dtype_map().items():
        if kind != tf.string:
            found[f"gru_2/{key}"] = np.asarray(reader.get_tensor(key)).astype(np.float32)


def main() -> None:
    tf = tensorflow()
    found: Numbers = {}
    run_v1(tf, "basic_lstm", basic_lstm, found, v1=True)
    run_v1(tf, "lstm", lstm, found, v1=True)
    run_v1(tf, "gru", gru, found, v1=False, sharded=True)
    run_v1(tf, "kinds", kinds, found, v1=True)
    train_checkpoint(tf, found)
    np.savez_compressed(HERE / "checkpoints.npz", **dict(sorted(found.items())))


if __name__ == "__main__":
    main()
