"""A stream in the midst of a call takes no other one: two would run machine code on the same arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "step": lambda stream, _: stream.step(np.ones(2)),
    "step of some": lambda stream, _: stream.step(np.ones(1), rows=[0]),
    "add": lambda stream, _: stream.add(rows=1),
    "drop": lambda stream, _: stream.drop(0),
    "reset": lambda stream, _: stream.reset(),
    "reorder": lambda stream, _: stream.reorder([1, 0]),
    "save": lambda stream, folder: stream.save(folder / "other.safetensors"),
    "load": lambda stream, folder: stream.load(folder / "rows.safetensors"),
    "state": lambda stream, _: stream.state,
}


class Meanwhile:
    """An input of ones, which calls a function when the stream reads it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        self.call()
        return np.ones(2)


def total(x: Any, memory: Any, _: Any) -> tuple[Any, Any]:
    return memory + x, memory + x


@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_the_midst_of_a_step_is_refused_and_the_step_goes_on(name: str, tmp_path: Path):
    stream = sn.RNN(total, memory=()).stream(rows=2)
    stream.step(np.array([1.0, 2.0]))
    stream.save(tmp_path / "rows.safetensors")

    def refused() -> None:
        with pytest.raises(InputError, match="another call of this stream has not returned yet: one thread"):
            CALLS[name](stream, tmp_path)

    assert stream.step(Meanwhile(refused)).tolist() == [2.0, 3.0]
    assert stream.state.tolist() == [2.0, 3.0]
    CALLS[name](stream, tmp_path)


def test_what_raises_gives_the_stream_back():
    stream = sn.RNN(total, memory=()).stream(rows=2)
    stream.step(np.array([1.0, 2.0]))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream.step(Meanwhile(interrupt))
    with pytest.raises(InputError, match="the stream has 2 rows"):
        stream.step(np.ones(3))
    with pytest.raises(InputError):
        stream.drop(7)
    assert stream.step(np.ones(2)).tolist() == [2.0, 3.0]
