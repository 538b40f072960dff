"""Calls that end half-way: later calls have the bits of those before, whatever the first one was doing."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.targets.cuda import RECORDED, EmulatedDevice
from stepnet.compiler.values import leaves

X = np.random.default_rng(0).normal(size=(3, 6, 4)).astype("f4")
ENGINE = "cuda-emulated"
GRU, OTHER = (rnn_of("gru", 4, 20), rnn_of("gru", 20, 20))


def trained() -> list[Any]:
    """A call with its gradients."""
    results, backward = sn.vjp(GRU)(X, lengths=[6, 0, 3], engine=ENGINE)
    gradients = backward(*results)
    return [*leaves(results), *leaves((gradients.params, gradients.inputs))]


def stacked() -> list[Any]:
    """A call of two layers, which may run as a wavefront."""
    return leaves(sn.Stack([GRU, OTHER])(X, lengths=[6, 0, 3], engine=ENGINE))


@pytest.mark.long(every=4)
@pytest.mark.parametrize("run", [trained, stacked])
@pytest.mark.parametrize(("place", "error"), [("allocate", MemoryError), ("launch", KeyboardInterrupt)])
@pytest.mark.parametrize("is_known", [False, True])
def test_later_calls_are_right(
    run: Any, place: str, error: type[BaseException], is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is at each use of the device in turn, in first calls and in recorded ones."""
    expected = [np.asarray(each).tobytes() for each in run()]
    whole: Any = getattr(EmulatedDevice, place)
    for fault in range(60):
        if not is_known:
            RECORDED.clear()
        left = [fault]

        def failing(device: Any, *arguments: Any, left: list[int] = left) -> Any:
            """Does the work, but for one piece of it."""
            left[0] -= 1
            if left[0] == -1:
                raise error("a fault")
            return whole(device, *arguments)

        with monkeypatch.context() as patch, suppress(error):
            patch.setattr(EmulatedDevice, place, failing)
            run()
        assert [np.asarray(each).tobytes() for each in run()] == expected
        if left[0] >= 0:
            return
    pytest.fail("the calls use the device more often than they are tried")
