"""cumsum and cumprod of floats: the bits of NumPy's, which goes number by number, at every width."""

from typing import Any

import numpy as np
import pytest

import stepnet as sn
import stepnet.compiler.targets.cpu.engine
from stepnet.compiler.targets.cpu import Processor, available_processors


@pytest.mark.long(each=True)
@pytest.mark.parametrize("processor", available_processors(), ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(1,), (37,), (5, 1), (5, 16), (3, 4, 35)], ids=str)
def test_bits_are_numpys(
    shape: tuple[int, ...], dtype: str, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepnet.compiler.targets.cpu.engine, "host_processor", lambda: processor)
    axes = range(-len(shape), 0)

    def step(x: Any, h: Any, p: Any) -> Any:
        h = h + x
        return {str(axis): (np.cumsum(h, axis=axis), np.cumprod(h, axis=axis)) for axis in axes}, h

    x = np.random.default_rng(0).normal(size=(3, 4, *shape)).astype(dtype)
    memories = np.cumsum(x, axis=1)
    outputs, _ = sn.RNN(step, memory=shape)(x, engine="llvm")
    for axis in axes:
        for found, scan in zip(outputs[str(axis)], (np.cumsum, np.cumprod), strict=True):
            np.testing.assert_array_equal(found, scan(memories, axis=axis))
