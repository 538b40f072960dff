"""Exceptions out of a signal's handler, at any moment of calls of several threads: what is right stays right,
and there are as many threads as before.
"""

import random
import signal
import sys
import time

import numpy as np
from work import BATCHES, COUNT, EXPECTED, RNN, Interrupt, interrupt, threads

import stepnet as sn
from stepnet.compiler.targets.cpu.running import prepared_chain

sn.set_threads(int(sys.argv[2]))
if len(sys.argv) > 3:
    prepared_chain.SLICE = float(sys.argv[3])
for x in BATCHES * 2:  # the second calls import what prepares calls; an exception may be lost in an import
    RNN(x)
before = threads()


signal.signal(signal.SIGALRM, interrupt)
moments = random.Random(1)
interrupts = calls = lost = 0
while interrupts < COUNT:
    try:
        lost += 1
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 2e-3 * moments.random())
        begun = time.monotonic()
        # Python drops an exception that reaches it while memory is given back: then a second passes.
        while time.monotonic() < begun + 1:
            place = moments.randrange(len(BATCHES))
            outputs, final = RNN(BATCHES[place])
            assert np.array_equal(outputs, EXPECTED[place][0])
            assert np.array_equal(final, EXPECTED[place][1])
            calls += 1
    except Interrupt:
        interrupts += 1
        lost -= 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert lost <= 1 + COUNT // 20, f"{lost} interrupts did not arrive"
assert calls > COUNT // 50, "hardly a call came to its end"
assert threads() == before, f"{threads()} threads, and {before} before"
