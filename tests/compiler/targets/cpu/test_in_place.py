"""Arrays whose rows are read and written where they lie: nothing beyond them is touched."""

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn

Array = np.ndarray
PAGE = mmap.PAGESIZE


def at_the_end(array: Array) -> Array:
    """A copy of an array that ends where memory does: to read beyond it kills the process."""
    pages = -(-array.nbytes // PAGE) + 1
    memory = mmap.mmap(-1, pages * PAGE)
    buffer = np.frombuffer(memory, np.uint8)
    beyond = buffer.ctypes.data + (pages - 1) * PAGE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(beyond), ctypes.c_size_t(PAGE), 0) == 0
    start = (pages - 1) * PAGE - array.nbytes
    copy = np.ndarray(array.shape, array.dtype, memory, start)
    copy[...] = array
    return copy


def adds(x: Array, h: Array, _: Any) -> tuple[Array, Array]:
    """A memory as wide as the input."""
    h = np.tanh(0.5 * h + x)
    return h, h


def reads_parts(x: Array, h: Array, _: Any) -> tuple[Array, Array]:
    """Parts of the input that begin and end within vectors, the last of them at its end."""
    size = x.shape[-1]
    h = 0.5 * h + x[..., size - 5 :] * x[..., 3:8]
    return np.concatenate([h, x[..., 1 : size - 4]], axis=-1), h


def reads_backwards(x: Array, h: Array, _: Any) -> tuple[Array, Array]:
    """The input in another order, in the loop and outside of it."""
    h = h + np.tanh(h * x[..., ::-1])
    return h + x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape), h


def sums(x: Array, h: Array, _: Any) -> tuple[Array, Array]:
    """Sums over features, the largest of the last ones, and sums up to each."""
    h = h + x.sum(axis=-1, keepdims=True) * x[..., -5:].max(axis=-1, keepdims=True) + np.cumsum(x, axis=-1)
    return h, h


STEPS: dict[str, tuple[Callable[..., Any], int]] = {
    "adds": (adds, 0),
    "reads parts": (reads_parts, 5),
    "reads backwards": (reads_backwards, 0),
    "sums": (sums, 0),
}


def recurrence(name: str, size: int) -> sn.RNN:
    """The recurrence of a step for inputs of so many features."""
    step, width = STEPS[name]
    return sn.RNN(step, memory=width or size)


@pytest.mark.long(each=True)
@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect, to end memory behind an array")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("name", STEPS)
def test_nothing_behind_an_array_is_read(name: str, size: int, dtype: str):
    x = np.random.default_rng(0).standard_normal((3, 4, size)).astype(dtype)
    rnn = recurrence(name, size)
    expected = rnn(x, engine="interpret")
    for time_major in (False, True):
        lying = at_the_end(x.swapaxes(0, 1) if time_major else x)
        outputs, last = rnn(lying, time_major=time_major)
        outputs = outputs.swapaxes(0, 1) if time_major else outputs
        for made, right in zip((outputs, last), expected, strict=True):
            assert_close(made, right, 4, size)


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("count", [1, 5, 9, 19])
def test_no_other_row_is_written(count: int, last_only: bool):
    # Tiles are of 8 rows and of fewer: some reach beyond the rows of a step.
    random = np.random.default_rng(count)
    lengths = random.integers(1, 9, count)
    x = random.standard_normal((count, 9, 16)).astype("float32")
    weights = 0.3 * random.standard_normal((16, 16)).astype("float32")

    def step(x: Array, h: Array, weights: Array) -> tuple[Any, Array]:
        gate = np.tanh(x @ weights + h @ weights)
        h = h + gate @ weights
        return {"gate": gate, "memory": h, "behind": h * x, "before": x @ weights}, h

    rnn = sn.RNN(step, weights, memory=16)
    outputs, _ = rnn(x, lengths=lengths, last_only=last_only)
    expected, _ = rnn(x, lengths=lengths, last_only=last_only, engine="interpret")
    for name, right in expected.items():
        assert_close(outputs[name], right, 9, 16)
        if not last_only:
            assert not outputs[name][np.arange(9) >= lengths[:, None]].any()
