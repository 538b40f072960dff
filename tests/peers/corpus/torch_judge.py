"""The results of PyTorch for state dicts that stepnet wrote: every layer is loaded strictly."""

import torch
from judge import main
from safetensors.torch import load_file
from torch import nn

LAYERS = {
    "torch.rnn": nn.RNN,
    "torch.gru": nn.GRU,
    "torch.lstm": nn.LSTM,
    "torch.lstm_projection": nn.LSTM,
}
CELLS = {"torch.rnn_cell": nn.RNNCell, "torch.gru_cell": nn.GRUCell, "torch.lstm_cell": nn.LSTMCell}


def arrays_of(path):
    return load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=True)


def cell_of(part):
    """A function that makes a cell of its arrays, and runs it over all steps."""

    def load(arrays, inputs):
        bias = "bias_ih" in arrays
        cell = CELLS[part.layout](inputs, part.sizes["hidden"], bias=bias, **part.settings)
        cell.load_state_dict(arrays, strict=True)

        def run(x):
            state, outputs = None, []
            for step in range(x.shape[1]):
                state = cell(torch.from_numpy(x[:, step].copy()), state)
                outputs.append(state[0] if isinstance(state, tuple) else state)
            return torch.stack(outputs, 1).numpy()

        return run

    return load


def layer_of(part, state):
    """A function that runs a layer of all layers and directions."""
    own, sizes = part.own(state), part.sizes
    projection = {"proj_size": sizes["projected"]} if sizes.get("projected") else {}
    layer = LAYERS[part.layout](
        sizes["inputs"],
        sizes["hidden"],
        sizes["layers"],
        bias="bias_ih_l0" in own,
        batch_first=True,
        bidirectional=sizes["directions"] == 2,
        **projection,
        **part.settings,
    )
    layer.load_state_dict(own, strict=True)
    return lambda x: layer(torch.from_numpy(x))[0].numpy()


def judged(job):
    state = arrays_of(job.path)

    def load(part):
        return part.over_cells(state, cell_of(part)) if part.layout in CELLS else layer_of(part, state)

    return job.outputs(load)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(judged, {"torch": torch.__version__})
