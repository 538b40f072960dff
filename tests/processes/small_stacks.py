"""A thread with a stack of 32 KB, the least that Python gives, compiles and runs a model.

On the thread's own stack LLVM would end the process. Other threads get the stacks that the program has set.
"""

import sys
import threading

import numpy as np

from stepnet import cells

SIZE = 32768
RIGHT = list[bool]()


def first_call() -> None:
    """Compiles a model and runs it, and compares the results with the interpreter's."""
    rnn = cells.rnn("lstm", cells.CELLS["lstm"].parameters(8, 70))
    x = np.random.default_rng(0).normal(size=(3, 20, 8)).astype("f4")
    outputs, _ = rnn(x)
    right, _ = rnn(x, engine="interpret")
    RIGHT.append(bool(np.allclose(outputs, right, atol=1e-5)))
    RIGHT.append(threading.stack_size() == SIZE)


threading.stack_size(SIZE)
thread = threading.Thread(target=first_call)
thread.start()
thread.join()
sys.exit(RIGHT != [True, True])
