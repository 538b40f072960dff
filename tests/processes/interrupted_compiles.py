"""Exceptions out of a signal's handler while recurrences are compiled: others can compile after them."""

import random
import signal
import threading

from work import COUNT, Interrupt, compiles, interrupt, new_recurrences

from stepnet.compiler.targets.cpu import engine

signal.signal(signal.SIGALRM, interrupt)
engine.KEPT.most = 1  # so that code is freed all the time, too
fresh, moments = new_recurrences(), random.Random(2)
compiles(next(fresh))
for _ in range(COUNT):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.08 * moments.random())
        while True:
            compiles(next(fresh))
    except Interrupt:
        pass
    except StopIteration:  # an interrupt came out of the generator
        fresh = new_recurrences()
done: list[bool] = []
other = threading.Thread(target=lambda: done.append(compiles(next(new_recurrences())) is None))
other.start()
other.join(30)
assert done == [True], "another thread cannot compile"
