"""Matrices and tables of models in numbers of 16 bits, in which devices store them."""

from typing import Any

import ml_dtypes
import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.structure import named_leaves, rebuild
from stepnet.errors import InputError
from stepnet.model.program import called

Array = np.ndarray
STORAGE = tuple(name for name, row in DTYPES.items() if row.is_stored)
"""The dtypes of 16 bits."""


def in_half(array: Array, dtype: str, name: str) -> Array:
    """Returns a matrix or a table in float32 with each number rounded to a dtype of 16 bits. Others, such as
    biases, are few bytes, and come back unchanged, and so do infinities and NaN.

    name: its own, for messages. Raises `InputError` for a number that would become infinite.

    >>> in_half(np.float32([[0.1, 3]]), "float16", "W").tolist(), in_half(np.float32([0.1]), "float16", "b")
    ([[0.0999755859375, 3.0]], array([0.1], dtype=float32))
    """
    if array.dtype != np.float32 or array.ndim < 2:
        return array
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype).astype(np.float32)
    beyond = array[np.isinf(rounded) & np.isfinite(array)]
    if beyond.size:
        finfo: Any = ml_dtypes.finfo
        raise InputError(
            f"{called(name)} has {beyond[np.abs(beyond).argmax()]:.8g}, and the largest number of {dtype} is "
            f"{float(finfo(dtype).max):.8g}: scale the parameter, or leave it in float32"
        )
    return rounded


def in_halves(params: Any, dtype: str) -> Any:
    """Returns parameters in their structure, as `in_half` returns each of them."""
    return rebuild(params, [in_half(array, dtype, name) for name, array in named_leaves(params)])


def stored_dtypes(net: Net) -> list[str]:
    """Lists the 16-bit dtypes in which devices store matrices and tables of a model: the dtypes of its
    parameters, and the dtypes that the precisions of its recurrences set.
    """
    marks = [node.recur.precision for node in net.nodes if node.operation == "recur"]
    found = {"bfloat16" if mark.dtype == "stored" else mark.dtype for mark in marks if mark is not None}
    found |= {net.type_of(number).dtype for number in net.inputs if net.type_of(number).extent == CONST}
    return [dtype for dtype in STORAGE if dtype in found]
