"""Arguments of wrong calls: recurrences, sequences, and ways to get into a step or a block."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong calls are what this is about.

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

import stepnet as sn
import stepnet.torch

F32 = np.float32
ANY: Any = sn  # so that wrong types are not refused before they are run
GRU = sn.cells.CELLS["gru"].parameters(inputs=3, hidden=4)
X = np.ones((2, 5, 3), F32)
RAGGED = sn.Ragged.from_list([np.ones((2, 3), F32), np.ones((4, 3), F32)])
DEEP = RAGGED.group([2])
RNN: Any = sn.cells.rnn("gru", GRU)
BACKWARD: Any = sn.cells.rnn("gru", GRU, reverse=True)
STACK: Any = sn.Stack([RNN])
BOTH: Any = sn.Bidirectional(RNN, BACKWARD)
SYMBOLS: Any = sn.RNN(lambda x, h, p: (x @ p, h), np.eye(4, dtype=F32), memory=1, inputs=4)
STILL: Any = sn.RNN(lambda x, h, p, statics: (h + statics, h + x + statics), memory=3)
SCOPES: Any = RNN.trace_steps(RAGGED)
KERAS = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9)), "bias": np.ones((2, 9))}
TORCH = {"weight_ih_l0": np.ones((9, 2)), "weight_hh_l0": np.ones((9, 3))}
CELL = torch.nn.GRUCell(3, 4)
EXAMPLE = torch.zeros(1, 3), torch.zeros(1, 4)
GRADIENT = torch.ones(2, 5, 3, requires_grad=True)
CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
Pair = namedtuple("Pair", "a b")

BYTES = np.ones((2, 5, 3), ml_dtypes.float8_e5m2)
MASKED = np.ma.masked_array(X, X > 2)


def keep(x: Any, h: Any, params: Any) -> Any:
    """A step that adds up."""
    return h, h + x


def inside(step: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """A call of a recurrence whose step does this with an input [rows, 3] and a memory [rows, 2, 3]."""

    def run() -> Any:
        def of(x: Any, h: Any, params: Any) -> Any:
            return step(x, h), h

        return sn.RNN(of, memory=(2, 3))(X, engine="interpret")

    return run


def within(call: Callable[[Any], Any]) -> Callable[[], Any]:
    """A call of a recurrence whose step does this with inner sequences [steps, 3]."""

    def run() -> Any:
        return sn.RNN(lambda x, h, p: (call(x), h), memory=4)(DEEP, engine="interpret")

    return run


def block(call: Callable[[Any], Any]) -> Any:
    """A recurrence written as a block, which calls this with its rnn."""
    rnn = sn.create_rnn_op()
    with rnn.stepnet():
        call(rnn)
    return rnn


def written(call: Callable[[Any, Any, Any], Any] = lambda rnn, x, h: None) -> Any:
    """The rnn of a block that does this with its rnn, input and memory."""
    rnn = sn.create_rnn_op()
    with rnn.stepnet():
        x = rnn.add_input(X)
        h = rnn.add_memory(shape=3)
        call(rnn, x, h)
        h.update(h.pre_state() + x)
        rnn.add_outputs(h)
    return rnn
