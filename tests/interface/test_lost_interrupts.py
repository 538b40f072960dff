"""An exception of a signal's handler ends any call: raised at each call of a Python function within one.

C code that calls Python may drop the exception, as NumPy's does where it makes some dtypes: Ctrl-C is lost.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType

import numpy as np
import pytest

import stepnet as sn
from stepnet import cells

X = np.random.default_rng(0).normal(size=(3, 7, 8)).astype("float32")


class Interrupt(BaseException):
    """The exception of a signal's handler."""


def scoring(x, h, params):
    h = np.tanh(params["E"][x] + h @ params["R"])
    return h @ params["V"], h


def gru(seed: int = 0, *, reverse: bool = False) -> sn.RNN:
    return cells.rnn("gru", cells.CELLS["gru"].parameters(8, 16, seed=seed), reverse=reverse)


def symbols() -> sn.RNN:
    drawn = np.random.default_rng(0)
    shapes = {"E": (90, 8), "R": (8, 8), "V": (8, 90)}
    params = {name: drawn.normal(size=shape) for name, shape in shapes.items()}
    return sn.RNN(scoring, params, memory=8, inputs=sn.Spec((), np.int64))


def of_a_stream() -> Callable[[], object]:
    stream = gru().stream(3)

    def steps() -> object:
        stream.reset()
        stream.step(X[:, 0])
        stream.reorder([2, 1, 0])
        return stream.state

    return steps


def of_a_gradient() -> Callable[[], object]:
    forward = sn.vjp(gru())
    return lambda: forward(X)[1](np.ones((3, 7, 16), "float32"))


MODELS: dict[str, Callable[[], Callable[[], object]]] = {
    "a call": lambda: partial(gru(), X),
    "lengths": lambda: partial(gru(), X, lengths=[3, 0, 7]),
    "both directions": lambda: partial(sn.Bidirectional(gru(), gru(1, reverse=True)), X),
    "a stream": of_a_stream,
    "a gradient": of_a_gradient,
    "symbols": lambda: partial(sn.generate, symbols(), [1, 2, 3], max_steps=20, stop=5),
    "beams": lambda: partial(sn.beam_search, symbols(), [1, 2, 3], beams=4, max_steps=20, stop=5),
    "a new recurrence": lambda: gru,
}

FINAL = "<genexpr>", "__del__"
"""Functions in which Python itself ignores an exception, where it closes a generator or frees an object."""


Pair = tuple[CodeType, CodeType | None]
"""A function and the one that calls it, maybe by code that is not Python's."""


def pair(frame: FrameType) -> Pair:
    return frame.f_code, frame.f_back and frame.f_back.f_code


def pairs(operation: Callable[[], object]) -> set[Pair]:
    """All that an operation calls in Python."""
    found = set[Pair]()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        found.add(pair(frame))

    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(None)
    return {each for each in found if each[0].co_name not in FINAL}


def ends(operation: Callable[[], object], interrupted: Pair) -> bool:
    """Raises in the first such call. Tells whether that ended the operation, or there was none."""
    raised = False

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal raised
        if not raised and pair(frame) == interrupted:
            raised = True
            raise Interrupt

    sys.settrace(trace)
    try:
        operation()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return not raised


@pytest.mark.parametrize("name", MODELS)
def test_no_interrupt_is_lost(name: str) -> None:
    before = sys.gettrace(), sys.unraisablehook
    operation = MODELS[name]()
    for _ in range(2):
        operation()
    sys.unraisablehook = lambda _: None
    try:
        assert [each for each in pairs(operation) if not ends(operation, each)] == []
        operation()
    finally:
        sys.settrace(before[0])
        sys.unraisablehook = before[1]
