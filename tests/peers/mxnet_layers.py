"""The results of MXNet's recurrent layers and cells, by their names in each way of saving."""

import os
import tempfile

import mxnet as mx
import numpy as np
from case import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, case, random, save
from mxnet import nd
from mxnet.gluon import contrib, rnn

BOTH = {"num_layers": 2, "bidirectional": True}


def written(block, way):
    """The arrays of the file that a block writes, without a layer's own prefix."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.params")
        if way == "save_parameters":
            block.save_parameters(path)
        else:
            block.collect_params().save(path, strip_prefix=block.prefix)  # as save_params did
        return {name: value.asnumpy() for name, value in nd.load(path).items()}


def randomised(block):
    for parameter in block.collect_params().values():
        parameter.set_data(nd.array(random(*parameter.shape)))


def from_layer(kind, layer, semantics=None):
    """The same layer under both spellings of its names."""
    x = random(ROWS, STEPS, INPUTS)
    layer.initialize()
    outputs = layer(nd.array(x))
    randomised(layer)
    outputs = layer(nd.array(x)).asnumpy()
    ways = (("", "save_params"), ("_unfused", "save_parameters"))
    return [case(f"mxnet.{kind}{end}", written(layer, way), x, outputs, semantics) for end, way in ways]


def from_cell(kind, cell, semantics=None):
    x = random(ROWS, STEPS, INPUTS)
    cell.initialize()

    def run():
        cell.reset()
        return cell.unroll(STEPS, nd.array(x), layout="NTC", merge_outputs=True)[0].asnumpy()

    run()
    randomised(cell)
    return case(f"mxnet.{kind}_cell", written(cell, "save_parameters"), x, run(), semantics)


def from_vector(kind, mode, gates, semantics=None):
    """The operator RNN, which FusedRNNCell of the module mx.rnn is."""
    x = random(ROWS, STEPS, INPUTS)
    parameters = random(gates * HIDDEN * (INPUTS + HIDDEN + 2))
    zeros = nd.zeros((1, ROWS, HIDDEN))
    states = [zeros, zeros] if kind == "lstm" else [zeros]
    found = nd.RNN(
        nd.array(x.transpose(1, 0, 2)),
        nd.array(parameters),
        *states,
        state_size=HIDDEN,
        num_layers=1,
        mode=mode,
    )
    outputs = found.asnumpy().transpose(1, 0, 2)
    sizes = {"inputs": INPUTS, "hidden": HIDDEN, "layers": 1, "directions": 1}
    return case(f"mxnet.{kind}_flat", {"parameters": parameters}, x, outputs, semantics, sizes)


if __name__ == "__main__":
    batches = {"layout": "NTC"}
    relu, tanh = {"candidate_activation": "relu"}, {"candidate_activation": "tanh"}
    lstm_of_relu = {
        "gate_activation": "softsign",
        "candidate_activation": "relu",
        "output_activation": "relu",
    }
    save(
        [
            *from_layer("rnn", rnn.RNN(HIDDEN, **batches), relu),
            *from_layer("rnn", rnn.RNN(HIDDEN, activation="tanh", **BOTH, **batches), tanh),
            *from_layer("gru", rnn.GRU(HIDDEN, **batches)),
            *from_layer("gru", rnn.GRU(HIDDEN, **BOTH, **batches)),
            *from_layer("lstm", rnn.LSTM(HIDDEN, **batches)),
            *from_layer("lstm", rnn.LSTM(HIDDEN, **BOTH, **batches)),
            from_cell("rnn", rnn.RNNCell(HIDDEN), tanh),
            from_cell("gru", rnn.GRUCell(HIDDEN)),
            from_cell("lstm", rnn.LSTMCell(HIDDEN)),
            from_cell(
                "lstm",
                rnn.LSTMCell(HIDDEN, activation="relu", recurrent_activation="softsign"),
                lstm_of_relu,
            ),
            from_cell("lstm", rnn.BidirectionalCell(rnn.LSTMCell(HIDDEN), rnn.LSTMCell(HIDDEN))),
            from_cell("lstm_projection", contrib.rnn.LSTMPCell(HIDDEN, PROJECTED)),
            from_vector("rnn", "rnn_tanh", 1, tanh),
            from_vector("gru", "gru", 3),
            from_vector("lstm", "lstm", 4),
        ],
        {"mxnet": mx.__version__, "numpy": np.__version__},
    )
