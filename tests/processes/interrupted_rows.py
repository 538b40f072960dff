"""Exceptions out of a signal's handler while rows of a stream come, go, wait and move: each is done whole or
not at all, in both layers.
"""

import random
import signal

import numpy as np
from work import COUNT, Interrupt, interrupt

import stepnet as sn


def counting(x, h, params, index):
    """Carries the user's number and the count of steps, and gives both with the step's number."""
    count = index.astype(np.float32)[:, None]
    return np.concatenate([h, count], axis=-1), h + np.array([0, 1], "f4")


signal.signal(signal.SIGALRM, interrupt)
moments = random.Random(5)
layers = [sn.RNN(counting, memory=2, inputs=features) for features in (1, 3)]
stream, people = sn.Stack(layers).stream(rows=1), 0
stream.step(np.zeros((1, 1), "f4"))
for _ in range(COUNT):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 2e-3 * moments.random())
        while True:
            people += 2
            first = np.array([[people, 0], [people + 1, 0]], "f4")
            stream.add(2, (first, first))
            if stream.rows > 12:
                stream.drop(moments.sample(range(stream.rows), 7))
            some = sorted(moments.sample(range(stream.rows), 2))
            for rows in (None, some):
                count = stream.rows if rows is None else 2
                outputs = stream.step(np.zeros((count, 1), "f4"), rows)
                assert (outputs[:, 1] == outputs[:, 2]).all(), "counts of steps and memories have parted"
            stream.reset(moments.randrange(stream.rows), (first[:1], first[:1]))
            stream.reorder(np.arange(stream.rows)[::-1])
    except Interrupt:
        pass
    lower, upper = stream.state
    assert np.array_equal(lower, upper), "the layers have parted"
