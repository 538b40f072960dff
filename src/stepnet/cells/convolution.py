"""Convolutions over time: the memory holds the inputs of the last steps."""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.errors import InputError

__all__ = ["causal_convolution"]


def causal_convolution(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of a causal depthwise convolution over time, as in Mamba and others in front of the
    cell, for the sequences (rows) of a batch; returns (output y, next memory).

    y[t] = sum over j of weight[:, j] x[t - kernel + 1 + j] + bias: PyTorch's `Conv1d` with one group per
    channel and kernel - 1 zeros of padding on the left. No activation.

    Args:
        x: [rows, channels].
        memory: The last inputs [rows, channels, kernel - 1], the latest at the end.
        params: weight [channels, kernel], and bias [channels] or none.

    >>> weight = np.array([[1.0, 10.0, 100.0]])
    >>> causal_convolution(np.array([[3.0]]), np.array([[[1.0, 2.0]]]), {"weight": weight})
    (array([[321.]]), array([[[2., 3.]]]))
    """
    u, last, weight, bias = arrays("causal_convolution", x, memory, params)
    if weight.shape[1] != last.shape[2] + 1:
        sizes = f"the memory holds {last.shape[2]} inputs, and the kernel has length {weight.shape[1]}"
        raise InputError(f"{sizes}: causal_convolution has a memory of kernel - 1 inputs")
    window = np.concatenate([last, u[..., None]], axis=-1)
    y = (window * weight).sum(-1)
    return (y if bias is None else y + bias), window[..., 1:]
