"""The results of the cells of TensorFlow 1, and of Keras 2 with the weights of its CuDNN layers."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tf_keras
from case import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, case, random, save
from tf_keras.src.layers.rnn import legacy_cells
from tf_keras.src.saving.legacy import hdf5_format


def from_cell(layout, cell, **semantics):
    """A cell that is a layer, with random weights."""
    x = random(ROWS, STEPS, INPUTS)
    state = cell.zero_state(ROWS, tf.float32)
    cell(x[:, 0], state)
    arrays = {}
    for variable in cell.variables:
        name = variable.name.partition(":")[0]
        arrays[name] = random(*variable.shape)
        variable.assign(arrays[name])
    outputs = []
    for step in range(STEPS):
        output, state = cell(x[:, step], state)
        outputs.append(output.numpy())
    return case(layout, arrays, x, np.stack(outputs, 1), semantics)


def from_gru_block():
    """GRUBlockCell's variable w_c has the gates' kernel, and w_ru the candidate's."""
    x, h, outputs = random(ROWS, STEPS, INPUTS), np.zeros((ROWS, HIDDEN), "float32"), []
    both = INPUTS + HIDDEN
    arrays = {
        "w_c": random(both, 2 * HIDDEN),
        "b_ru": random(2 * HIDDEN),
        "w_ru": random(both, HIDDEN),
        "b_c": random(HIDDEN),
    }
    for step in range(STEPS):
        h = tf.raw_ops.GRUBlockCell(
            x=x[:, step],
            h_prev=h,
            w_ru=arrays["w_c"],
            w_c=arrays["w_ru"],
            b_ru=arrays["b_ru"],
            b_c=arrays["b_c"],
        ).h
        outputs.append(h.numpy())
    outputs = np.stack(outputs, 1)
    second = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")
    renamed = {name: arrays[old] for name, old in zip(second, ("w_c", "b_ru", "w_ru", "b_c"), strict=False)}
    return [case("tf1.gru_block", arrays, x, outputs), case("tf1.gru_block_v2", renamed, x, outputs)]


def from_lstm_block(peepholes):
    x, outputs = random(ROWS, STEPS, INPUTS), []
    h = c = np.zeros((ROWS, HIDDEN), "float32")
    arrays = {"kernel": random(INPUTS + HIDDEN, 4 * HIDDEN), "bias": random(4 * HIDDEN)}
    diagonals = {f"w_{gate}_diag": random(HIDDEN) for gate in "ifo"}
    for step in range(STEPS):
        found = tf.raw_ops.LSTMBlockCell(
            x=x[:, step],
            cs_prev=c,
            h_prev=h,
            w=arrays["kernel"],
            b=arrays["bias"],
            wci=diagonals["w_i_diag"],
            wcf=diagonals["w_f_diag"],
            wco=diagonals["w_o_diag"],
            forget_bias=1.0,
            cell_clip=-1.0,
            use_peephole=peepholes,
        )
        h, c = found.h, found.cs
        outputs.append(h.numpy())
    arrays.update(diagonals if peepholes else {})
    return case("tf1.lstm_block", arrays, x, np.stack(outputs, 1), {"forget_bias": 1.0})


def from_cudnn(layout, make, units):
    """Weights of a CuDNN layer of Keras 2, converted by Keras for the layer that runs on any processor."""
    x, layer = random(ROWS, STEPS, INPUTS), make(HIDDEN, return_sequences=True)
    layer.build((None, None, INPUTS))
    names = ("kernel", "recurrent_kernel", "bias")
    shapes = ((INPUTS, units * HIDDEN), (HIDDEN, units * HIDDEN), (2 * units * HIDDEN,))
    arrays = {name: random(*shape) for name, shape in zip(names, shapes, strict=False)}
    layer.set_weights(hdf5_format._convert_rnn_weights(layer, list(arrays.values())))
    return case(layout, arrays, x, layer(x).numpy())


def from_keras(layout, layer, **semantics):
    x = random(ROWS, STEPS, INPUTS)
    layer(x)
    arrays = {}
    for variable in layer.weights:
        arrays[variable.name.rpartition("/")[2].partition(":")[0]] = random(*variable.shape)
    layer.set_weights(list(arrays.values()))
    return case(layout, arrays, x, layer(x).numpy(), semantics)


if __name__ == "__main__":
    keras = tf_keras.layers
    every = {"return_sequences": True}
    hard = {"recurrent_activation": "hard_sigmoid"}
    save(
        [
            from_cell("tf1.rnn", legacy_cells.BasicRNNCell(HIDDEN)),
            from_cell("tf1.gru", legacy_cells.GRUCell(HIDDEN)),
            from_cell("tf1.basic_lstm", legacy_cells.BasicLSTMCell(HIDDEN), forget_bias=1.0),
            from_cell("tf1.lstm", legacy_cells.LSTMCell(HIDDEN), forget_bias=1.0),
            from_cell(
                "tf1.lstm",
                legacy_cells.LSTMCell(HIDDEN, use_peepholes=True, forget_bias=0.5),
                forget_bias=0.5,
            ),
            from_cell(
                "tf1.lstm_projection",
                legacy_cells.LSTMCell(HIDDEN, use_peepholes=True, num_proj=PROJECTED),
                forget_bias=1.0,
            ),
            *from_gru_block(),
            from_lstm_block(False),
            from_lstm_block(True),
            from_cudnn("keras.cudnn_gru", keras.GRU, 3),
            from_cudnn("keras.cudnn_lstm", keras.LSTM, 4),
            from_keras("keras2.rnn", keras.SimpleRNN(HIDDEN, **every)),
            from_keras("keras2.gru", keras.GRU(HIDDEN, **every), gate_activation="sigmoid"),
            from_keras(
                "keras2.gru_reset_before",
                keras.GRU(HIDDEN, reset_after=False, **every, **hard),
                gate_activation="hard_sigmoid_fifth",
            ),
            from_keras(
                "keras2.lstm", keras.LSTM(HIDDEN, **every, **hard), gate_activation="hard_sigmoid_fifth"
            ),
        ],
        {"tensorflow": tf.__version__, "tf_keras": tf_keras.__version__},
    )
