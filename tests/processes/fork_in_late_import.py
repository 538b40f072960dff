"""A child that is forked while another thread imports a module of stepnet at its first use."""

import faulthandler
import importlib
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
USES = {
    "stepnet.explain.plan": lambda: rnn.explain(),
    "stepnet.cells.at_test_time": lambda: sn.cells.ttt_linear,
    "stepnet.torch.patches.transformers.patch": lambda: sn.torch.accelerate(lstm()),
    "numpy.random": lambda: sn.cells.CELLS["gru"].parameters(2, 3),
}
module = sys.argv[1]
use = USES[module]
begun = threading.Event()


def lstm() -> Any:
    """A layer of PyTorch, which `accelerate` asks all patches about."""
    return importlib.import_module("torch").nn.LSTM(2, 3)


class Slow:
    """A finder by which one module takes half a second to import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name == module:
            begun.set()
            time.sleep(0.5)
        return PathFinder.find_spec(name, path, target) if name == module else None


rnn(x)
if "torch" in module:
    importlib.import_module("stepnet.torch")
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
