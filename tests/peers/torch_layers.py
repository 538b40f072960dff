"""The results of the recurrent modules of PyTorch."""

import warnings

import numpy as np
import torch
from case import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, case, random, save
from torch import nn

warnings.simplefilter("ignore")


def from_module(layout, kind, semantics=None, **options):
    x, module = random(ROWS, STEPS, INPUTS), kind(INPUTS, HIDDEN, batch_first=True, **options)
    arrays = {name: random(*value.shape) for name, value in module.state_dict().items()}
    module.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
    with torch.no_grad():
        return case(layout, arrays, x, module(torch.from_numpy(x))[0].numpy(), semantics)


def from_cell(layout, kind, semantics=None, **options):
    x, cell = random(ROWS, STEPS, INPUTS), kind(INPUTS, HIDDEN, **options)
    arrays = {name: random(*value.shape) for name, value in cell.state_dict().items()}
    cell.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
    memory, outputs = None, []
    with torch.no_grad():
        for step in range(STEPS):
            memory = cell(torch.from_numpy(x[:, step]), memory)
            outputs.append((memory[0] if isinstance(memory, tuple) else memory).numpy())
    return case(layout, arrays, x, np.stack(outputs, 1), semantics)


if __name__ == "__main__":
    stack = {"num_layers": 2, "bidirectional": True}
    save(
        [
            from_module("torch.rnn", nn.RNN, {"candidate_activation": "tanh"}),
            from_module("torch.rnn", nn.RNN, {"candidate_activation": "relu"}, nonlinearity="relu"),
            from_module("torch.gru", nn.GRU),
            from_module("torch.gru", nn.GRU, **stack),
            from_module("torch.lstm", nn.LSTM),
            from_module("torch.lstm", nn.LSTM, **stack),
            from_module("torch.lstm_projection", nn.LSTM, proj_size=PROJECTED, **stack),
            from_cell("torch.rnn_cell", nn.RNNCell, {"candidate_activation": "tanh"}),
            from_cell("torch.gru_cell", nn.GRUCell),
            from_cell("torch.lstm_cell", nn.LSTMCell),
        ],
        {"torch": torch.__version__},
    )
