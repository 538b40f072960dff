"""Tensors as arrays of NumPy that share their memory."""

from typing import Any

import numpy as np
import pytest
import torch

import stepnet.torch
from stepnet.errors import InputError
from stepnet.torch import bound
from stepnet.torch.arrays import view_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_a_view_shares_the_memory_of_a_tensor_that_pytorch_may_still_free(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype).requires_grad_(dtype.is_floating_point)
    array = view_of(tensor)
    assert array.shape == (2, 3)
    assert array.astype("float64").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.__array_interface__["data"][0] == tensor.data_ptr()
    assert view_of(tensor.T).flags.c_contiguous
    del array
    tensor.untyped_storage().resize_(0)  # as FSDP does, and as PyTorch refuses after Tensor.numpy()


def test_a_tensor_without_memory_on_the_cpu_has_no_view() -> None:
    with pytest.raises((RuntimeError, NotImplementedError, BufferError)):
        view_of(torch.ones(2, device="meta"))
    assert np.shares_memory(view_of(one := torch.ones(2)), view_of(one))


def test_inference_leaves_storages_that_pytorch_can_free() -> None:
    x, h = torch.randn(5, 2, 3), torch.randn(1, 2, 4)
    with torch.no_grad():
        for _ in range(3):
            stepnet.torch.GRU(3, 4)(x, h)
            stepnet.torch.GRUCell(3, 4)(x[0], h[0])
    assert [each.untyped_storage().resize_(0).nbytes() for each in (x, h)] == [0, 0]


@pytest.mark.parametrize("is_dense", [True, False])
def test_parameters_are_refused_once_their_storage_has_a_part_of_their_numbers(
    is_dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any number is compared, also behind calls that have found the storage whole."""

    bits_of = bound.bits_of

    def whole(tensor: Any) -> Any:
        assert tensor.untyped_storage().nbytes() == 576
        return bits_of(tensor)

    monkeypatch.setattr(bound, "bits_of", lambda each: whole(each) if each.shape == (12, 12) else each)
    layer, x = stepnet.torch.GRU(12, 4), torch.randn(3, 2, 12)
    weight = layer.weight_ih_l0
    if not is_dense:
        weight.data = weight.detach().mT.contiguous().mT
    with torch.no_grad():
        before = layer(x)[0]
        for _ in range(8):
            for _ in range(3):
                layer(x)
            weight.untyped_storage().resize_(4 * 12 * 6)
            with pytest.raises(InputError, match=r"ends at byte 576 of its storage, which has 288"):
                layer(x)
            weight.untyped_storage().resize_(4 * 12 * 12)
            weight.fill_(0.5)
            assert not torch.equal(layer(x)[0], before)


@pytest.mark.parametrize("is_dense", [True, False])
def test_a_storage_with_a_part_of_the_numbers_is_an_error(is_dense: bool) -> None:
    made = torch.randn(5, 2, 3)
    x, layer = made if is_dense else made.mT, stepnet.torch.GRU(3 if is_dense else 2, 4)
    made.untyped_storage().resize_(60)
    with (
        torch.no_grad(),
        pytest.raises(InputError, match=r"ends at byte 120 of its storage, which has 60: it was shrunk"),
    ):
        layer(x)
    made.untyped_storage().resize_(120)
    made.fill_(1)
    with torch.no_grad():
        assert torch.equal(layer(x)[0], layer(torch.ones_like(x).contiguous())[0])
