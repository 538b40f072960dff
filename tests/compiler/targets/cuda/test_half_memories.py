"""Memories in float16 and bfloat16: loops read and write them as they are, whatever kernel runs the steps."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tolerance import assert_close
from watched_device import WatchedDevice, bits

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import RECORDED, CudaEngine, DeviceCode, StreamCosts, put, weighed_by

RANDOM = np.random.default_rng(11)
FREE = StreamCosts(events=0.0, chunk=0.0, given=0.0, chunks=(3,), fewest=1)
"""Costs with which everything that fits runs at the same time."""


class CountingDevice(WatchedDevice):
    """An emulated device. launched: the names of the kernels that were launched since it was cleared."""

    def __init__(self) -> None:
        super().__init__(3)
        self.launched = list[str]()

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        self.launched.append(code.name)
        super().launch(code, blocks, words)


DEVICE = CountingDevice()


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine "placed", whose device is emulated."""
    made = CudaEngine(DEVICE, name="placed", devices=("cpu",))
    monkeypatch.setitem(targets.ENGINES, "placed", lambda: made)  # type: ignore[arg-type]
    yield
    targets.engine.cache_clear()


def drawn(dtype: Any, *shape: int) -> Any:
    return RANDOM.normal(0, 0.4, shape).astype(dtype)


def alone(dtype: Any) -> sn.RNN:
    step = lambda x, h, p: (np.tanh(h * p + x), h * p + x)  # noqa: E731
    return sn.RNN(step, drawn(dtype, 8), memory=sn.Spec(8, dtype), inputs=sn.Spec(8, dtype))


def apart(dtype: Any) -> sn.RNN:
    """A step of units that are alone, with float64, which tensor cores refuse."""
    step = lambda x, h, p: (h, h * p + (x.astype("float64") * 2).astype("float32"))  # noqa: E731
    return sn.RNN(step, drawn(dtype, 8), memory=sn.Spec(8, dtype), inputs=sn.Spec(8, dtype))


def largest(dtype: Any) -> sn.RNN:
    """A step with a maximum over units, which tensor cores refuse."""
    step = lambda x, h, p: (h, np.tanh((h - h.max(-1, keepdims=True)) @ p + x))  # noqa: E731
    return sn.RNN(step, drawn(dtype, 8, 8), memory=sn.Spec(8, dtype), inputs=sn.Spec(8, dtype))


def mixing(dtype: Any, reverse: bool = False) -> sn.RNN:
    step = lambda x, h, p: (h, np.tanh(h @ p + x))  # noqa: E731
    spec = sn.Spec(64, dtype)
    return sn.RNN(step, drawn(dtype, 64, 64), memory=spec, inputs=spec, reverse=reverse)


MODELS: dict[Callable[[Any], Any], str] = {
    alone: "loop, alone2-float32",
    mixing: "loop, plain1-float32",
    largest: "loop of 1 memories",
    apart: "loop of 1 memories",
}
"""The models, with the names of the kernels of their loops."""


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_loops_read_and_write_them(make: Callable[[Any], Any], dtype: Any) -> None:
    rnn = make(dtype)
    shape = rnn.declaration.inputs.shape, rnn.memory.shape
    x, h = drawn(dtype, 3, 4, *shape[0]), drawn(dtype, 3, *shape[1])
    DEVICE.launched.clear()
    outputs, final = rnn(put(DEVICE, x), put(DEVICE, h), lengths=[4, 0, 2], engine="placed")
    assert not any("stage" in name for name in DEVICE.launched)
    assert any(name.startswith(MODELS[make]) for name in DEVICE.launched)
    for one, other in zip((outputs, final), rnn(x, h, lengths=[4, 0, 2], engine="interpret"), strict=True):
        assert one.dtype == other.dtype.name
        assert_close(one.numpy(), other, 4, 64)
    assert (final.numpy()[1] == h[1]).all()  # of the sequence without steps


def directions(dtype: Any) -> Any:
    return sn.Bidirectional(mixing(dtype), mixing(dtype, reverse=True))


def layers(dtype: Any) -> Any:
    return sn.Stack([mixing(dtype), mixing(dtype)])


@pytest.mark.parametrize("make", [directions, layers], ids=lambda make: make.__name__)
def test_chunks_hand_on_what_steps_carry(make: Callable[[Any], Any]) -> None:
    model, dtype = make(np.float16), np.float16
    x, h = (put(DEVICE, drawn(dtype, *shape)) for shape in ((3, 11, 64), (3, 64)))
    initial = {"forward": h, "backward": h} if make is directions else (h, h)
    made = list[list[bytes]]()
    for costs in (None, FREE):
        RECORDED.clear()
        with weighed_by(costs):
            made += [bits(model(x, initial, engine="placed")) for _ in range(3)]
    assert made == made[:1] * 6
