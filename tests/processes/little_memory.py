"""Where the system has too little memory to compile, a call raises MemoryError, and the process goes on."""

import os
import resource
import sys

import numpy as np

import stepnet as sn

os.environ["STEPNET_CACHE"] = "0"
LSTM = sn.cells.rnn("lstm", sn.cells.CELLS["lstm"].parameters(inputs=4, hidden=8))
GRU = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=4, hidden=8))
X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
MB = 2**20


def limited(rnn: sn.RNN, room: int) -> str:
    """The output of a first call that may use so many bytes more than the process has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + room, before[1]))
    try:
        rnn(X)
    except MemoryError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return "none"


def check(rnn: sn.RNN) -> None:
    """The values of a call without a limit are right."""
    right = rnn(X.astype("float64"), engine="interpret")[0]
    assert np.abs(rnn(X)[0] - right).max() < 1e-5


# Before LLVM's library is loaded, and after. Any other error, or the end of the process, is one of this test.
said = limited(LSTM, 100 * MB)
assert said.startswith("compiling takes 256 MB more memory"), said
check(LSTM)
for megabytes in map(int, sys.argv[1:]):
    # Python itself may be the first to have none.
    said = limited(GRU, megabytes * MB)
    assert said != "none", megabytes
check(GRU)
