"""The engine "placed", which takes tensors of the CPU where they lie, as that of a GPU takes those there: on
the emulated device, whose memory is that of this process. And how modules on it are compared with others.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import CudaEngine, DeviceCode, EmulatedDevice
from stepnet.torch import places

Array = np.ndarray
PackedSequence = torch.nn.utils.rnn.PackedSequence
COPIES: list[str] = []
"""The copies between the host and the device."""
KERNELS: list[str] = []
"""The kernels that ran."""


class CountedDevice(EmulatedDevice):
    """The emulated device, with a record of copies and kernels."""

    def write(self, address: int, array: Array) -> None:
        COPIES.append(f"write {array.dtype}")
        super().write(address, array)

    def read(self, address: int, array: Array) -> None:
        COPIES.append(f"read {array.dtype}")
        super().read(address, array)

    def launch(self, code: DeviceCode, blocks: int, words: Any) -> None:
        KERNELS.append(code.name)
        self.freed.clear()  # PyTorch may have got memory that the device freed
        super().launch(code, blocks, words)


DEVICE = CountedDevice()


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine "placed", which takes tensors of the CPU where they lie."""
    monkeypatch.setitem(
        targets.ENGINES, "placed", lambda: CudaEngine(DEVICE, name="placed", devices=("cpu",))
    )  # type: ignore[arg-type]
    COPIES.clear()
    KERNELS.clear()
    yield
    targets.engine.cache_clear()
    places.kept_place.cache_clear()


def flat(results: Any) -> list[torch.Tensor]:
    """The tensors of some results, those of a PackedSequence without its positions."""
    if isinstance(results, PackedSequence):
        return [results.data]
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for part in results for tensor in flat(part)]


def answers(module: Any, call: Callable[[Any], Any], x: torch.Tensor) -> list[Array]:
    """Values with and without gradients, and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    own = flat(call(x))
    loss: Any = sum(
        (tensor * torch.linspace(-1, 1, tensor.numel()).view(tensor.shape)).sum() for tensor in own
    )
    loss.backward()
    with torch.no_grad():
        plain = flat(call(x))
    grads: list[Any] = [x.grad, *(parameter.grad for parameter in module.parameters())]
    return [tensor.detach().numpy() for tensor in (*own, *plain, *grads)]


def check_same(ours: Any, theirs: Any, call: Callable[[Any, Any], Any], x: torch.Tensor) -> None:
    """Compares a module on the device with another that has its parameters. After the first calls nothing is
    copied but the integers of positions.
    """
    answers(ours, lambda x: call(ours, x), x)
    COPIES.clear()
    found = answers(ours, lambda x: call(ours, x), x)
    assert KERNELS
    assert set(COPIES) <= {"write int64"}
    expected = answers(theirs, lambda x: call(theirs, x), x)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 5, 64)


def packed_of(x: torch.Tensor) -> Any:
    """The sequences [time, 4, features] as a PackedSequence of lengths 3, 5, 1, 2 in this order."""
    return torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5, 1, 2]), enforce_sorted=False)


def on_padded(module: Any, x: Any) -> Any:
    return module(x)


def on_packed(module: Any, x: Any) -> Any:
    return module(packed_of(x))
