"""Computes quantized values: whole numbers of few bits, with the scale and the zero point to read them by.

    quantize      q = rint(x / scale) + zero, limited to the numbers of the dtype
    dequantize    x = (q - zero) * scale

A net has no dtypes of 8 or 16 bits, so computed whole numbers are int32 there. Products of whole numbers are
computed in a floating-point dtype in which all their sums are exact.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import symbols_in
from stepnet.importers.facts import UNKNOWN
from stepnet.importers.padding import check_idle
from stepnet.importers.placed import Placed, constant
from stepnet.importers.pointwise import as_type, clip, dtype_of, elementwise
from stepnet.importers.products import matmul
from stepnet.importers.values import Array
from stepnet.model.nested import reduce as over_steps

NARROW = ("uint8", "int8", "uint16", "int16")
"""The dtypes of quantized numbers."""
EXACT = 2**24
"""Whole numbers below this are exact in float32."""
LARGEST = 255
"""The largest distance of a number of 8 bits from its zero point."""


@dataclass(frozen=True)
class Scaling:
    """The scale and the zero point of quantized numbers: of all, or along one axis.

    scale: the scale. zero: the zero point; None for 0.
    """

    scale: Placed
    zero: Placed | None = None

    def along(self, x: Placed, axis: int) -> "Scaling":
        """Returns the scale and zero point with axes that broadcast with `x`: one number for all of x, or one
        for each entry of the axis of features `axis`. Raises `ModelError` for others.
        """
        single = self.zero is not None and is_single(self.zero) and is_single(self.scale)
        if self.zero is not None and self.zero.axes != self.scale.axes and not single:
            raise ModelError(
                f"its zero point is of {list(self.zero.sizes)}, and its scale of {list(self.scale.sizes)}"
            )
        zero = None if self.zero is None else along_axis(self.zero, x, axis)
        return Scaling(along_axis(self.scale, x, axis), zero)


def is_single(numbers: Placed) -> bool:
    """Tells whether a value is one number, as a scalar or an array of one."""
    return numbers.features in ((), (1,)) and not symbols_in(numbers.axes)


def along_axis(numbers: Placed, x: Placed, axis: int) -> Placed:
    """Returns scales or zero points shaped so that they broadcast with x: one number for all of x, or one for
    each element of the feature at an axis. Raises `ModelError` for another count of numbers.
    """
    if is_single(numbers):
        return numbers.shaped(())
    array, at = numbers.array, x.axis(axis)
    size = x.features[x.feature(at)]
    if array.shape != (size,):
        raise ModelError(
            f"its scale is of {list(array.shape)}, and axis {at} of its operand has {size}: there is one for "
            "all numbers, or one for each of these"
        )
    return constant(array.reshape(-1, *(1,) * (len(x.axes) - at - 1)))


def as_int32(x: Placed) -> Placed:
    """Returns whole numbers in int32, so that differences of narrow ones do not wrap around."""
    return x.with_value(as_type(x.value, "int32"))


def check_narrow(dtype: str) -> None:
    """Raises `ModelError` for a dtype to which numbers are not quantized here."""
    if dtype not in NARROW:
        raise ModelError(f"it quantizes to {dtype}: {', '.join(NARROW)} are supported")


def quantize(x: Placed, scaling: Scaling, dtype: str) -> Placed:
    """Quantizes a value to whole numbers, x / scale + zero point, limited to the dtype; halves are rounded to
    even numbers. dtype: the dtype of the whole numbers, one of `NARROW`.
    """
    check_narrow(dtype)
    return limited(elementwise("divide", x, scaling.scale), scaling.zero, dtype)


def limited(x: Placed, zero: Placed | None, dtype: str) -> Placed:
    """Rounds a value, adds a zero point, and limits the result to the range of `dtype`, of 8 or 16 bits. A
    value of the net is then int32, an array of that dtype.
    """
    x = elementwise("rint", x)
    if zero is not None:
        x = elementwise("add", x, zero.with_value(as_type(zero.value, dtype_of(x).name)))
    made = clip(x, np.iinfo(dtype).min, np.iinfo(dtype).max)
    return made.with_value(as_type(made.value, "int32" if isinstance(made.value, Traced) else dtype))


def centred(x: Placed, zero: Placed | None) -> Placed:
    """Returns whole numbers without their zero point, int32."""
    return as_int32(x) if zero is None else elementwise("subtract", as_int32(x), as_int32(zero))


def dequantize(x: Placed, scaling: Scaling) -> Placed:
    """Computes (x - zero point) * scale, the numbers of a quantized x, in the dtype of the scale."""
    numbers = centred(x, scaling.zero)
    numbers = numbers.with_value(as_type(numbers.value, dtype_of(scaling.scale).name))
    return elementwise("multiply", numbers, scaling.scale)


def quantize_each(x: Placed, padded: bool = False) -> tuple[Placed, Scaling]:
    """Quantizes each sequence to uint8 by its own range, which includes 0, as if it were alone.

    padded: whether the model has padding; the numbers there must then be known to be 0. Returns the whole
    numbers, and their scale and zero point, one of each per sequence.
    """
    if isinstance(x.value, Traced) and len(x.value.type.extent) > 1:
        check_idle(x, "sum", padded)
    low, high = bound_with_zero(x, "minimum"), bound_with_zero(x, "maximum")
    scale, zero = scale_of(low, high)
    scaling = Scaling(Placed(scale, (), x.stated), Placed(as_type(zero, "int32"), (), x.stated))
    made = quantize(x, scaling, "uint8")
    return replace(made, fact=UNKNOWN) if padded else made, scaling


def scale_of(low: Any, high: Any) -> tuple[Any, Any]:
    """Returns the scale and the zero point, a whole number in float32, for numbers from `low` (at most 0) to
    `high` (at least 0).
    """
    one = np.float32(1)
    scale = np.where(high == low, one, (high - low) / np.float32(LARGEST))
    zero = np.rint(np.minimum(np.maximum(-low / scale, 0 * one), LARGEST * one))
    return scale, zero


def bound_with_zero(x: Placed, bound: str) -> Any:
    """Returns the least or the largest of 0 and all numbers of x: of each sequence, for a value of the net,
    or of a whole array. bound: "minimum" or "maximum".
    """
    sign = 1 if bound == "maximum" else -1
    value = sign * x.value
    features = tuple(range(-len(x.features), 0))
    value = np.max(value, axis=features) if features else value
    if isinstance(value, Traced) and len(value.type.extent) > 1:
        value = over_steps(value, "max")
    return sign * np.maximum(value, np.float32(0))


def quantized_product(x: Any, weight: Mapping[str, Any]) -> Any:
    """Multiplies the memories of a step, [rows, units], by a quantized weight, after quantizing each row to
    uint8 by its own range.

    weight: "numbers", whole numbers [units, outputs] in a floating-point dtype in which their sums are exact,
    and "scale", one for all of them or one for each output.
    """
    numbers: Any = weight["numbers"]
    low, high = (np.minimum(np.min(x, axis=-1), 0), np.maximum(np.max(x, axis=-1), 0))
    scale, zero = (each[:, None] for each in scale_of(low, high))
    limited_x = np.minimum(np.maximum(np.rint(x / scale) + zero, 0), LARGEST) - zero
    return (limited_x.astype(numbers.dtype) @ numbers).astype(x.dtype) * (scale * weight["scale"])


def whole_product(
    a: Placed, b: Placed, zeros: tuple[Placed | None, Placed | None], padded: bool = False
) -> Placed:
    """Computes the product of two 8-bit integer matrices, with their zero points subtracted, as int32.

    zeros: the zero points of a, and of b: one number, or one for each column.
    """
    a_zero, b_zero = zeros
    a_zero = None if a_zero is None else one_number(a_zero)
    b_zero = None if b_zero is None else along_axis(b_zero, b, len(b.axes) - 1)
    left, right = centred(a, a_zero), centred(b, b_zero)
    dtype = exact_dtype(right.array, axis=-2) if right.is_array and right.array.ndim > 1 else "float64"
    product = matmul(in_dtype(left, dtype), in_dtype(right, dtype), padded)
    return product.with_value(as_type(product.value, "int32"))


def exact_dtype(weight: Array, axis: int | tuple[int, ...]) -> str:
    """Returns the floating-point dtype in which sums of products of numbers of 8 bits with the whole numbers
    `weight` are exact. axis: the axes over which products are added.
    """
    largest = np.abs(weight.astype("int64")).sum(axis=axis).max(initial=0) * LARGEST
    return "float32" if largest < EXACT else "float64"


def in_dtype(x: Placed, dtype: str) -> Placed:
    """Returns a value in another dtype, which holds all its numbers."""
    return x.with_value(as_type(x.value, dtype))


def one_number(x: Placed) -> Placed:
    """Removes the axes of a single number, such as a scale or zero point; raises `ModelError` for several."""
    if x.features not in ((), (1,)) or symbols_in(x.axes):
        raise ModelError(f"its zero point or scale is of {list(x.sizes)}: one number for all is supported")
    return x.shaped(())
