"""A first call in one thread while another imports `stepnet.torch`, with a slow module in between.

The call is in the import of a package when the other thread begins, so neither may import what the other is
importing while it holds what that one needs.
"""

import faulthandler
import sys
import threading
import time
from importlib.machinery import PathFinder
from typing import Any

import numpy as np
import torch

import stepnet as sn

faulthandler.dump_traceback_later(60, exit=True)
SLOW = "stepnet.compiler.net.extensions"
begun, outputs = threading.Event(), []


class Slow:
    """A finder by which one module takes half a second to import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name == SLOW:
            begun.set()
            time.sleep(0.5)
        return PathFinder.find_spec(name, path, target) if name == SLOW else None


def call() -> None:
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=2)
    outputs.append(rnn(np.ones((2, 3, 2), "f4"))[0])


sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=call)
thread.start()
begun.wait()
import stepnet.torch as layers  # noqa: E402

thread.join()
assert outputs[0][0, -1, 0] == 3
assert layers.GRU(2, 3)(torch.ones(4, 1, 2))[0].shape == (4, 1, 3)
