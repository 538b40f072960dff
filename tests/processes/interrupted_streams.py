"""Exceptions out of a signal's handler while streams are stepped: each step is taken whole or not at all."""

import random
import signal

import numpy as np
from work import COUNT, Interrupt, interrupt

import stepnet as sn


def counting(x, h, params, index):
    """Counts its steps in the memory, and gives both counts."""
    count = index.astype(np.float32)[:, None]
    return np.concatenate([x[:, :1], count, h], axis=-1), h + 1


def layer(features: int) -> sn.RNN:
    return sn.RNN(counting, memory=1, inputs=features)


signal.signal(signal.SIGALRM, interrupt)
moments = random.Random(3)
stack = sn.Stack([layer(2), layer(3)])
stream, streams = layer(2).stream(), stack.stream()
x = np.zeros((1, 2), "f4")
stream.step(x)
streams.step(x)
for _ in range(COUNT):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 5e-4 * moments.random())
        while True:
            (outputs,) = stream.step(x)
            assert outputs[1] == outputs[2], "the count of steps and the memory have parted"
            streams.step(x)
    except Interrupt:
        pass
    lower, upper = (float(state[0, 0]) for state in streams.state)
    assert lower == upper, "the layers have parted"
