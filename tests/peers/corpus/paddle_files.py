"""The files of PaddlePaddle: state dicts of models, and of their optimisers beside them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import paddle
from paddle import nn
from specimens import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, Specimens, pack, random

WORDS = 4


class Speech(nn.Layer):
    """Words to numbers: LSTM, dropout, GRU in both directions of two layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, INPUTS)
        self.encoder = nn.LSTM(INPUTS, HIDDEN)
        self.dropout = nn.Dropout(0.1)
        self.decoder = nn.GRU(HIDDEN, HIDDEN, 2, "bidirect")
        self.head = nn.Linear(2 * HIDDEN, 2)


class Alone(nn.Layer):
    """One layer."""

    def __init__(self, layer):
        super().__init__()
        self.rnn = layer


def filled(model):
    for value in model.parameters():
        value.set_value(paddle.to_tensor(random(*value.shape)))
    model.eval()
    return model


def numbers(model):
    known = {}
    for name, layer in model.named_children():
        if isinstance(layer, nn.SimpleRNN | nn.LSTM | nn.GRU):
            x = random(ROWS, STEPS, layer.input_size)
            known[name] = x, layer(paddle.to_tensor(x))[0].numpy()
    return known


def save(made, folder):
    kinds = {
        "speech": ("Embedding, LSTM, Dropout, GRU of 2 layers and both directions, Linear", Speech()),
        "relu": ("SimpleRNN with relu", Alone(nn.SimpleRNN(INPUTS, HIDDEN, activation="relu"))),
        "projected": ("LSTM with a projection", Alone(nn.LSTM(INPUTS, HIDDEN, proj_size=PROJECTED))),
    }
    for name, (what, model) in kinds.items():
        paddle.save(filled(model).state_dict(), str(folder / f"{name}.pdparams"))
        said = ("--semantics", "activation=relu") if name == "relu" else ()
        made.add(f"{name}.pdparams", what, numbers(model), *said)


if __name__ == "__main__":
    made = Specimens({"paddlepaddle": paddle.__version__})
    with TemporaryDirectory() as name, paddle.no_grad():
        save(made, Path(name))
        pack("paddle", Path(name), made)
