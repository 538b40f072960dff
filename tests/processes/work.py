"""Recurrences whose steps two threads share, though they are small, and their results by one thread."""

import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.testing  # before there are threads: it brings hooks for forks with it

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets.cpu.running import native

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from sharing import by_units

faulthandler.enable()
native.partition = by_units
COUNT = int(sys.argv[1])

PARAMS = cells.CELLS["gru"].parameters(24, 48, seed=3)
RNN = cells.rnn("gru", PARAMS)
RANDOM = np.random.default_rng(0)
# Both directions of which run at the same time.
BOTH = sn.Bidirectional(RNN, cells.rnn("gru", cells.CELLS["gru"].parameters(24, 48, seed=4), reverse=True))
BATCHES = [
    RANDOM.normal(size=(rows, steps, 24)).astype("f4") for rows, steps in ((1, 200), (3, 50), (40, 30))
]
sn.set_threads(1)
EXPECTED = [RNN(x) for x in BATCHES]
MERGED = [BOTH(x)[0] for x in BATCHES]
sn.set_threads(2)
STREAM = RNN.stream()
STREAM.step(BATCHES[0][:, 0])


class Interrupt(BaseException):
    """The exception of a signal's handler."""


def interrupt(*_: object) -> None:
    """The handler of a signal."""
    raise Interrupt


def check(calls: int) -> None:
    """Makes so many calls; ends the process with code 1 where one gives other bits than one thread does."""
    for call in range(calls):
        place = call % len(BATCHES)
        outputs, final = RNN(BATCHES[place])
        right, last = EXPECTED[place]
        if not (np.array_equal(outputs, right) and np.array_equal(final, last)):
            print(f"call {call} gave other bits", file=sys.stderr, flush=True)
            os._exit(1)
        if not np.array_equal(BOTH(BATCHES[place])[0], MERGED[place]):
            print(f"call {call} of both directions gave other bits", file=sys.stderr, flush=True)
            os._exit(1)
    STREAM.reset()
    for step in range(min(calls, 200)):
        if not np.array_equal(STREAM.step(BATCHES[0][:, step]), EXPECTED[0][0][:, step]):
            print(f"step {step} of the stream gave other bits", file=sys.stderr, flush=True)
            os._exit(1)


def new_recurrences() -> Iterator[sn.RNN]:
    """Recurrences that are to be compiled each."""
    for number in range(10**6):

        def step(x, h, params, number=number):
            h = np.tanh(x @ params + h * (1 + number))
            return h, h

        yield sn.RNN(step, np.ones((2, 3), "f4"), memory=3)


def compiles(rnn: sn.RNN) -> None:
    """Compiles a recurrence and runs it."""
    outputs, _ = rnn(np.ones((1, 2, 2), "f4"))
    np.testing.assert_allclose(outputs[0, 0], np.tanh(np.full(3, 2.0)), rtol=1e-6)


def in_children(count: int, work) -> None:
    """Forks so many children that each do some work, and waits for them; works beside them."""
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            faulthandler.dump_traceback_later(120, exit=True)
            work()
            os._exit(0)
        children.append(child)
    check(COUNT)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * count, codes


def threads() -> int:
    """The number of threads of this process, less those that are about to end."""
    counts: list[int] = []
    for _ in range(20):
        counts.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.02)
    return min(counts)
