"""Computes Paddle's operators whose results are constants: shapes, filled arrays, and stored arrays."""

from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers.axes import TOKENS
from stepnet.importers.placed import Placed, constant
from stepnet.importers.shaping import expand
from stepnet.importers.sizes import product as joint
from stepnet.layout.files.paddle.program import DTYPES, dtype_of
from stepnet.paddle.call import PaddleCall

NAMED = {each.name: each for each in DTYPES.values()}


def dtype(stated: Any) -> Any:
    """Returns the NumPy dtype for a number or name of Paddle's. Half precision is computed in float32. Raises
    `ModelError` for any other text.
    """
    if isinstance(stated, int):
        dtype_read = dtype_of(stated)
    elif stated in NAMED:
        dtype_read = NAMED[stated]
    else:
        raise ModelError(f"its dtype is {short_repr(stated)}, which is not a dtype of numbers")
    return np.dtype(np.float32) if dtype_read.name in ("float16", "bfloat16") else dtype_read


def fill_constant(call: PaddleCall) -> Placed:
    """Computes Paddle's fill_constant: one number repeated to a shape, which may have batch and steps."""
    target = call.numbers("shape", "ShapeTensor", "ShapeTensorList") or []
    return expand(filling(call), target)


def filling(call: PaddleCall) -> Placed:
    """Returns the number with which an operator such as fill_constant fills its result, as a constant: from a
    tensor, else from a text (for exact numbers), else from an attribute.
    """
    exact, tensor = call.attribute("str_value", ""), call.optional("ValueTensor")
    try:
        number = float(exact) if exact else call.attribute("value", 0.0)
    except ValueError:
        raise ModelError(f"its str_value is {short_repr(exact)}, and should be a number") from None
    result_dtype = dtype(call.operation.attributes.get("dtype", 5))
    return constant(np.asarray(number if tensor is None else tensor.array.reshape(()), result_dtype))


def fill_like_batch(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator fill_constant_batch_size_like: a filled array, one of whose
    sizes is that of another value, such as the number of sequences.
    """
    like, target = call.operand("Input"), call.wholes("shape")
    source, axis = (call.attribute(name, 0) for name in ("input_dim_idx", "output_dim_idx"))
    source = like.axis(source)
    if like.axes[source] == TOKENS or not 0 <= axis < len(target):
        raise ModelError("its result would have a value for each step, or its input has no such axis")
    return expand(filling(call), [*target[:axis], like.sizes[source], *target[axis + 1 :]])


def assign_value(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator assign_value: an array that is stored in the program."""
    kinds = ("values", "fp32_values", "fp64_values", "int32_values", "int64_values", "bool_values")
    values: Any = next((value for name in kinds if (value := call.numbers(name, ""))), ())
    array, sizes = np.asarray(values, dtype(call.operation.attributes.get("dtype", 5))), call.wholes("shape")
    if array.size != joint(sizes):
        raise ModelError(f"it has {array.size} numbers, and the shape {sizes}")
    return constant(array.reshape(sizes))
