"""The results of the recurrent layers of PaddlePaddle."""

import paddle
from case import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, case, random, save
from paddle import nn


def from_layer(layout, layer, **semantics):
    """The arrays are those of the state dict: each parameter under all the names that Paddle has for it."""
    x = random(ROWS, STEPS, INPUTS)
    for value in layer.parameters():
        value.set_value(paddle.to_tensor(random(*value.shape)))
    arrays = {name: value.numpy() for name, value in layer.state_dict().items()}
    outputs = layer(paddle.to_tensor(x))[0].numpy()
    return case(layout, arrays, x, outputs, semantics)


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
            from_layer("paddle.lstm_projection", nn.LSTM(INPUTS, HIDDEN, proj_size=PROJECTED)),
            from_layer("paddle.lstm_projection", nn.LSTM(INPUTS, HIDDEN, proj_size=PROJECTED, **options)),
        ],
        {"paddlepaddle": paddle.__version__},
    )
