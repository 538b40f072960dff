"""What the recurrent layers of PaddlePaddle give."""

import paddle
from case import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, case, random, save
from paddle import nn


def from_layer(layout, layer, projection=False, **semantics):
    x = random(ROWS, STEPS, INPUTS)
    arrays = {}
    for name, value in layer.named_parameters():
        short = name.rpartition(".")[2]
        if short in arrays or "cell" in name:
            continue
        arrays[short] = random(*value.shape)
        value.set_value(paddle.to_tensor(arrays[short]))
    outputs = layer(paddle.to_tensor(x))[0].numpy()
    return case(layout, arrays, x, outputs, semantics)


def projected():
    """An LSTM with a projection; its state dict has the names of the cell, as the aliases are shifted."""
    layer, x, arrays = nn.LSTM(INPUTS, HIDDEN, proj_size=PROJECTED), random(ROWS, STEPS, INPUTS), {}
    cell = layer[0].cell
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_ho"):
        value = getattr(cell, name)
        arrays[name + "_l0"] = random(*value.shape)
        value.set_value(paddle.to_tensor(arrays[name + "_l0"]))
    return case("paddle.lstm_projection", arrays, x, layer(paddle.to_tensor(x))[0].numpy())


if __name__ == "__main__":
    options = {"num_layers": 2, "direction": "bidirect"}
    save(
        [
            from_layer("paddle.rnn", nn.SimpleRNN(INPUTS, HIDDEN), candidate_activation="tanh"),
            from_layer(
                "paddle.rnn", nn.SimpleRNN(INPUTS, HIDDEN, activation="relu"), candidate_activation="relu"
            ),
            from_layer("paddle.gru", nn.GRU(INPUTS, HIDDEN)),
            from_layer("paddle.gru", nn.GRU(INPUTS, HIDDEN, **options)),
            from_layer("paddle.lstm", nn.LSTM(INPUTS, HIDDEN)),
            from_layer("paddle.lstm", nn.LSTM(INPUTS, HIDDEN, **options)),
            projected(),
        ],
        {"paddlepaddle": paddle.__version__},
    )
