"""The results of Chainer's recurrent links, from zero states."""

import chainer
import numpy as np
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save
from chainer import links


def randomised(link):
    arrays = {}
    for name, param in link.namedparams():
        arrays[name[1:]] = random(*param.shape)
        param.array = arrays[name[1:]]
    return arrays


def from_nstep(layout, link, memories, semantics=None):
    x = random(ROWS, STEPS, INPUTS)
    arrays = randomised(link)
    found = link(*[None] * memories, list(x))[-1]
    return case(layout, arrays, x, np.stack([row.array for row in found]), semantics)


def from_lstm():
    x, link = random(ROWS, STEPS, INPUTS), links.LSTM(INPUTS, HIDDEN)
    arrays = randomised(link)
    return case("chainer.lstm", arrays, x, np.stack([link(x[:, step]).array for step in range(STEPS)], 1))


def from_gru():
    x, link = random(ROWS, STEPS, INPUTS), links.StatelessGRU(INPUTS, HIDDEN)
    arrays, outputs = randomised(link), []
    h = np.zeros((ROWS, HIDDEN), "float32")
    for step in range(STEPS):
        h = link(h, x[:, step]).array
        outputs.append(h)
    return case("chainer.gru", arrays, x, np.stack(outputs, 1))


if __name__ == "__main__":
    save(
        [
            from_lstm(),
            from_gru(),
            from_nstep("chainer.nstep_gru", links.NStepGRU(1, INPUTS, HIDDEN, 0), 1),
            from_nstep("chainer.nstep_gru", links.NStepGRU(2, INPUTS, HIDDEN, 0), 1),
            from_nstep("chainer.nstep_lstm", links.NStepLSTM(1, INPUTS, HIDDEN, 0), 2),
            from_nstep(
                "chainer.nstep_rnn",
                links.NStepRNNTanh(1, INPUTS, HIDDEN, 0),
                1,
                {"candidate_activation": "tanh"},
            ),
            from_nstep(
                "chainer.nstep_rnn",
                links.NStepRNNReLU(1, INPUTS, HIDDEN, 0),
                1,
                {"candidate_activation": "relu"},
            ),
            from_nstep("chainer.nstep_bigru", links.NStepBiGRU(1, INPUTS, HIDDEN, 0), 1),
            from_nstep("chainer.nstep_bigru", links.NStepBiGRU(2, INPUTS, HIDDEN, 0), 1),
            from_nstep("chainer.nstep_bilstm", links.NStepBiLSTM(2, INPUTS, HIDDEN, 0), 2),
            from_nstep(
                "chainer.nstep_birnn",
                links.NStepBiRNNReLU(1, INPUTS, HIDDEN, 0),
                1,
                {"candidate_activation": "relu"},
            ),
        ],
        {"chainer": chainer.__version__},
    )
