"""The first calls of a process, from many threads at the same moment."""

import faulthandler
import sys
import threading

import numpy as np

from stepnet import cells

faulthandler.enable()
x = np.random.default_rng(0).normal(size=(32, 20, 8)).astype("f4")
rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(8, 128))
begin = threading.Barrier(int(sys.argv[1]))
outputs: list[np.ndarray] = []


def call() -> None:
    begin.wait()
    for _ in range(20):
        outputs.append(rnn(x)[0])


started = [threading.Thread(target=call) for _ in range(begin.parties)]
for thread in started:
    thread.start()
for thread in started:
    thread.join()
assert len(outputs) == 20 * begin.parties
assert all(np.array_equal(found, outputs[0]) for found in outputs)
