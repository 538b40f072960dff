"""Exceptions out of a signal's handler while beams are searched, and rows reordered: all goes on right."""

import random
import signal

import numpy as np
from work import COUNT, Interrupt, interrupt

import stepnet as sn


def scoring(x, h, params):
    h = np.tanh(params["E"][x] + h @ params["R"])
    return h @ params["V"], h


def counting(x, h, params):
    return h, h + x


signal.signal(signal.SIGALRM, interrupt)
moments, drawn = random.Random(3), np.random.default_rng(0)
shapes = {"E": (90, 8), "R": (8, 8), "V": (8, 90)}
params = {name: drawn.normal(size=shape) for name, shape in shapes.items()}
rnn = sn.RNN(scoring, params, memory=8, inputs=sn.Spec((), np.int64))


def search() -> tuple[sn.Ragged, sn.Ragged]:
    return sn.beam_search(rnn, [1, 2, 3], beams=4, max_steps=20, stop=5)


right = search()
layer = sn.RNN(counting, memory=sn.Spec((), "float64"), inputs=sn.Spec((), "float64"))
stack = sn.Stack([layer, layer]).stream(2)
stack.step(np.zeros(2))
stack.reset(initial=(np.array([1.0, 2.0]), np.array([1.0, 2.0])))
for _ in range(COUNT):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 2e-3 * moments.random())
        search()
        while True:
            stack.reorder([1, 0])
    except Interrupt:
        pass
    lower, upper = (state.tolist() for state in stack.state)
    assert lower == upper, "the layers have parted"
    assert lower in ([1, 2], [2, 1]), "rows were lost"
    sequences, logs = search()
    assert sequences.equal(right[0]), "other sequences"
    assert logs.equal(right[1]), "other logs"
