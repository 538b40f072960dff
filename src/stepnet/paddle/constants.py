"""Paddle's operators that make values of numbers in the program: shapes, filled ones, and whole arrays."""

from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.files.paddle.program import DTYPES, dtype_of
from stepnet.graph.operators.placed import Placed, constant
from stepnet.graph.operators.shaping import repeated
from stepnet.graph.operators.sizes import TOKENS
from stepnet.graph.operators.sizes import product as joint
from stepnet.paddle.call import PaddleCall
from stepnet.values.arguments import shown

NAMED = {each.name: each for each in DTYPES.values()}


def dtype(stated: Any) -> Any:
    """A dtype by its number or its name; two bytes of a float are computed in four."""
    if isinstance(stated, int):
        made = dtype_of(stated)
    elif stated in NAMED:
        made = NAMED[stated]
    else:
        raise ModelError(f"its dtype is {shown(stated)}, which is none of numbers")
    return np.dtype(np.float32) if made.name in ("float16", "bfloat16") else made


def shape(call: PaddleCall) -> Placed:
    """shape."""
    return call.meaning("Shape", [call.operand("Input")])


def fill_constant(call: PaddleCall) -> Placed:
    """fill_constant: one number in a shape, which may be that of all sequences."""
    target = call.numbers("shape", "ShapeTensor", "ShapeTensorList") or []
    return repeated(filling(call), target)


def filling(call: PaddleCall) -> Placed:
    """The number that fills a shape."""
    exact, tensor = call.attribute("str_value", ""), call.optional("ValueTensor")
    try:
        number = float(exact) if exact else call.attribute("value", 0.0)
    except ValueError:
        raise ModelError(f"its str_value is {shown(exact)}, and should be a number") from None
    made = dtype(call.operation.attributes.get("dtype", 5))
    return constant(np.asarray(number if tensor is None else tensor.array.reshape(()), made))


def fill_like_batch(call: PaddleCall) -> Placed:
    """fill_constant_batch_size_like: a shape of which one size is that of another value."""
    like, target = call.operand("Input"), call.wholes("shape")
    source, place = (call.attribute(name, 0) for name in ("input_dim_idx", "output_dim_idx"))
    source = like.axis(source)
    if like.axes[source] == TOKENS or not 0 <= place < len(target):
        raise ModelError("it makes a value for each step of all sequences, or has no such axis")
    return repeated(filling(call), [*target[:place], like.sizes[source], *target[place + 1 :]])


def full_int_array(call: PaddleCall) -> Placed:
    """full_int_array: whole numbers."""
    return constant(np.asarray(call.wholes("value"), np.int64))


def assign_value(call: PaddleCall) -> Placed:
    """assign_value: an array in the program."""
    kinds = ("values", "fp32_values", "fp64_values", "int32_values", "int64_values", "bool_values")
    values: Any = next((value for name in kinds if (value := call.numbers(name, ""))), ())
    array, sizes = np.asarray(values, dtype(call.operation.attributes.get("dtype", 5))), call.wholes("shape")
    if array.size != joint(sizes):
        raise ModelError(f"it has {array.size} numbers, and the shape {sizes}")
    return constant(array.reshape(sizes))
