"""Tensors as arrays of NumPy that share their memory."""

import numpy as np
import pytest
import torch

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
