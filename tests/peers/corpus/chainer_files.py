"""The files of Chainer, .npz and HDF5: NStep links of several layers and of both directions, and others."""

from pathlib import Path
from tempfile import TemporaryDirectory

import chainer
import numpy as np
from chainer import links, serializers
from specimens import HIDDEN, INPUTS, ROWS, STEPS, Specimens, pack, random

TANH = ("--semantics", "candidate_activation=tanh")


def filled(link):
    """A link with weights that are never zero."""
    for param in link.params():
        param.array = random(*param.shape)
    return link


def chain(**children):
    """A chain of links by their names."""
    made = chainer.Chain()
    with made.init_scope():
        for name, child in children.items():
            setattr(made, name, child)
    return filled(made)


def stacks(inputs):
    """Every NStep link, of one direction and of both."""
    return chain(
        rnn=links.NStepRNNTanh(2, inputs, HIDDEN, 0),
        gru=links.NStepGRU(2, inputs, HIDDEN, 0),
        lstm=links.NStepLSTM(3, inputs, HIDDEN, 0),
        both_rnn=links.NStepBiRNNTanh(2, inputs, HIDDEN, 0),
        both_gru=links.NStepBiGRU(1, inputs, HIDDEN, 0),
        both_lstm=links.NStepBiLSTM(2, inputs, HIDDEN, 0),
        head=links.Linear(HIDDEN, 2),
    )


def steps(inputs):
    """Links that take one step after another."""
    return chain(lstm=links.LSTM(inputs, HIDDEN), gru=links.StatefulGRU(inputs, HIDDEN))


def outputs(link, x):
    """The results of a link for sequences, from states of zeros."""
    if hasattr(link, "n_layers"):
        states = [None, None] if "LSTM" in type(link).__name__ else [None]
        return np.stack([row.array for row in link(*states, list(x))[-1]])
    if isinstance(link, links.StatefulGRU):
        link.set_state(chainer.Variable(np.zeros((len(x), HIDDEN), "float32")))
    else:
        link.reset_state()
    return np.stack([link(x[:, step]).array for step in range(STEPS)], 1)


def numbers(model, inputs):
    """The results of each link of a chain for inputs."""
    found = {}
    for link in model.children():
        if not isinstance(link, links.Linear):
            x = random(ROWS, STEPS, inputs)
            found[link.name] = x, outputs(link, x)
    return found


if __name__ == "__main__":
    made = Specimens({"chainer": chainer.__version__})
    with TemporaryDirectory() as name:
        folder = Path(name)
        for title, model in (("stacks", stacks(INPUTS)), ("steps", steps(INPUTS))):
            said = TANH if title == "stacks" else ()
            serializers.save_npz(folder / f"{title}.npz", model)
            made.add(f"{title}.npz", f"save_npz of {title}", numbers(model, INPUTS), *said)
            serializers.save_hdf5(folder / f"{title}.h5", model)
            made.add(f"{title}.h5", f"save_hdf5 of {title}", numbers(model, INPUTS), *said)
        square = chain(both=links.NStepBiGRU(1, HIDDEN, HIDDEN, 0))  # as a stack of two layers, by its shapes
        serializers.save_npz(folder / "square.npz", square)
        known = numbers(square, HIDDEN)
        made.add("square.npz", "NStepBiGRU, said to be one", known, "--from", "chainer.nstep_bigru")
        pack("chainer", folder, made)
