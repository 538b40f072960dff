"""A child that is forked while another thread imports a module of stepnet at its first use."""

import faulthandler
import os
import sys
import threading
import time
from importlib.machinery import PathFinder
from typing import Any

import numpy as np

import stepnet as sn

rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=2)
x = np.ones((2, 3, 2), "f4")
USES = {"explain.plan": lambda: rnn.explain(), "cells.at_test_time": lambda: sn.cells.ttt_linear}
use, module = USES[sys.argv[1]], f"stepnet.{sys.argv[1]}"
begun = threading.Event()


class Slow:
    """A finder by which one module takes half a second to import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name == module:
            begun.set()
            time.sleep(0.5)
        return PathFinder.find_spec(name, path, target) if name == module else None


rnn(x)
assert module not in sys.modules
sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=use)
thread.start()
begun.wait()
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(20, exit=True)
    use()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
