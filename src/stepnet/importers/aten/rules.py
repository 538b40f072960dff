"""Rules for ATen operations on a step's values, by functions of NumPy and stepnet. Rules for operations that
move or pick features, or make new values, are in `places`.

A rule takes the arguments that PyTorch gives to the operation, with a step's values in place of tensors. If
it needs the result that PyTorch infers, that is its first argument. What is here has no operator in
`importers`: it takes arguments, gives several results, or rounds in an order that only PyTorch does. Its
values have features alone; `rows` translates their axes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.contractions import matrix_product
from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.traced import Traced, refuse, reshaped
from stepnet.compiler.values.records import dataclass
from stepnet.importers.activations import rsqrt
from stepnet.importers.reductions import REDUCTIONS

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


@dataclass(frozen=True)
class InferredResult:
    """Description of an operation's result, as PyTorch infers it, for the rule that computes the result.

    features, dtype: its sizes after the rows, and its dtype.
    common: the common dtype of the operands.
    per_row: whether it has one entry per row (sequence).
    like: any value of the step, to whose net constants are added.
    """

    features: tuple[int, ...]
    dtype: str
    common: str
    per_row: bool
    like: Traced


def to(dtype: str, values: Sequence[Any]) -> list[Any]:
    """Casts the operands that are values of a net to a dtype; returns all operands in order."""
    return [value.astype(dtype) if isinstance(value, Traced) else value for value in values]


def as_bool(value: Any) -> Any:
    """Converts a value to booleans (true where it is not zero), as logical operations of PyTorch do."""
    return value if value.dtype == np.bool_ else value != 0


# ---- pointwise ---------------------------------------------------------------------------------------------


def itself(x: Any, *_: Any, **__: Any) -> Any:
    """Returns x unchanged, for operations such as `clone` that have no effect on values of a net."""
    return x


def detached(x: Any) -> Any:
    """Stops gradients at x, as `Tensor.detach` does: adds a `detach` node to the net."""
    return Traced(x.builder, x.builder.add("detach", x.number)) if x.type.is_float else x


def add(a: Any, b: Any, alpha: Any = 1) -> Any:
    """Computes ATen's `add`: a + alpha b."""
    return a + scaled(b, alpha)


def subtract(a: Any, b: Any, alpha: Any = 1) -> Any:
    """Computes ATen's `sub`: a - alpha b."""
    return a - scaled(b, alpha)


def scaled(b: Any, alpha: Any) -> Any:
    """Computes alpha * b in the dtype of b, for ATen's `add` and `sub`."""
    if alpha == 1:
        return b
    return (b * alpha).astype(b.dtype) if isinstance(b, Traced) else b * alpha


def divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """Computes ATen's `div`: a / b, rounded as `rounding_mode` says: "floor", "trunc" (to zero), or None."""
    if rounding_mode is None:
        return a / b
    if rounding_mode == "floor":
        return a // b
    if a.type.is_float:
        return truncate(a / b)
    down = a // b
    return numpy.where((down < 0) & (down * b != a), down + 1, down)


def truncate(x: Any) -> Any:
    """Rounds x towards zero, as ATen's `trunc` does."""
    return numpy.where(x < 0, np.ceil(x), np.floor(x))


def rounding(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes the rule for a rounding function such as floor, which leaves integers unchanged."""
    return lambda x: function(x) if x.type.is_float else x


def sign(x: Any) -> Any:
    """Computes the sign of x: -1, 0 or 1, and 0 for NaN; booleans are returned as they are."""
    return x if x.dtype == np.bool_ else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def logarithm(base: float) -> Callable[[Any], Any]:
    """Makes the rule that computes the logarithm to a base."""
    return lambda x: np.log(x) / math.log(base)


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Computes ATen's `elu`: scale x for x > 0, else scale alpha (exp(input_scale x) - 1)."""
    return numpy.where(x > 0, x, np.expm1(numpy.where(x > 0, 0, x) * input_scale) * alpha) * scale


def gelu(x: Any, *, approximate: str = "none") -> Any:
    """Computes GELU: x times the normal distribution function at x; "tanh" approximates it by a tanh."""
    return functions.gelu(x, approximate == "tanh")


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
    """Computes ATen's `clamp`: limits x to `min` and `max`, either of which may be None."""
    return numpy.clip(x, min, max)


def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    """Computes ATen's `hardtanh`: limits x to two bounds, first converted to the dtype of x."""
    return clamp(x, x.dtype.type(low), x.dtype.type(high))


def power(x: Any, exponent: float) -> Any:
    """Computes ATen's `pow` for a constant exponent: x ** exponent."""
    return rsqrt(x) if exponent == -0.5 else np.power(x, exponent)


def power_of(base: float, exponent: Any) -> Any:
    """Computes ATen's `pow` for a constant base; raises `StepError` for integer exponents."""
    if not exponent.type.is_float:
        raise refuse(f"{base} to the power of integers is not an operation of a step: write {base}.0 ** x")
    return np.power(base, exponent) if base <= 0 else np.exp(exponent * math.log(base))


def is_infinite(x: Any) -> Any:
    """Tells for each number of x whether it is infinite."""
    return numpy.absolute(x) == math.inf


def chosen(result: InferredResult, condition: Any, a: Any, b: Any) -> Any:
    """Computes ATen's `where`: a where the condition is true, else b, in the dtype of the result."""
    return numpy.where(condition, *to(result.dtype, (a, b)))


def cast(result: InferredResult, x: Any, *_: Any, **__: Any) -> Any:
    """Computes ATen's `_to_copy`: x in the dtype of the result."""
    return x.astype(result.dtype)


# ---- products ----------------------------------------------------------------------------------------------


def product(a: Any, b: Any) -> Any:
    """Computes a product of matrices: a times a parameter b, or, for each row (a sequence or step), [..., m,
    k] times [..., k, n].

    Raises `StepError` for matrices of different dtypes, as PyTorch does not multiply these.
    """
    if a.dtype != b.dtype:
        raise refuse(
            f"PyTorch multiplies matrices of one dtype, not {a.dtype} and {b.dtype}: cast one of them"
        )
    if not b.is_constant or (b.ndim > 2 and (a.is_constant or b.type.shape[0] != 1)):
        return matrix_product(a, b)
    return a @ (b if b.ndim == 2 else reshaped(b, b.type.shape[1:]))  # [1, k, n], where a is [1, rows, k]


# ---- over features -----------------------------------------------------------------------------------------


def axes(x: Any, dim: Any) -> tuple[int, ...]:
    """Converts PyTorch's argument `dim` to the tuple of axes of x to reduce; None and [] are all axes."""
    if dim is None or dim == []:
        return tuple(range(x.ndim))
    return tuple(listed(dim))


def reduced(how: str) -> Callable[..., Any]:
    """Makes the function that reduces a value x over its feature axes `dim`; None is all of them. keepdim:
    whether they stay with size one. how: the name of the reduction in `importers.reductions`, such as "sum".
    """

    def reduce(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        """Reduces x over the axes `dim`."""
        return REDUCTIONS[how](x, axis=axes(x, dim), keepdims=keepdim)

    return reduce


total, mean, largest, smallest = map(reduced, ("sum", "mean", "max", "min"))


def along(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the function that computes an operation of PyTorch along one feature axis by a function of
    NumPy's names; the result has the dtype of the operand.
    """

    def rule(x: Any, dim: int, **_: Any) -> Any:
        """Calls the function along `dim`, and casts its result to the dtype of x."""
        return function(x, axis=dim).astype(x.dtype)

    return rule


def largest_and_index(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """Computes ATen's `max.dim` along a feature axis `dim`: the maximum and its index."""
    return largest(x, dim, keepdim), index_of_largest(x, dim, keepdim)


def smallest_and_index(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """Computes ATen's `min.dim` along a feature axis `dim`: the minimum and its index."""
    return smallest(x, dim, keepdim), index_of_smallest(x, dim, keepdim)


def product_along(x: Any, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Computes ATen's `prod.dim_int`: the product along a feature axis `dim`. keepdim: whether the axis stays
    with size one. dtype: ignored, as x has that of the result.
    """
    return numpy.prod(x, axis=dim, keepdims=keepdim)


def index_of_largest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Computes ATen's `argmax` along a feature axis `dim`. keepdim: keep the axis with size one."""
    return numpy.argmax(x, axis=dim, keepdims=keepdim)


def index_of_smallest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Computes ATen's `argmin`: the index of the minimum along a feature axis `dim`. keepdim: whether the
    axis stays with size one.

    Nets have only the index of a maximum, so it is that of -x; of -1 - x for integers, where the least one
    has no negative.
    """
    return index_of_largest(-x if x.type.is_float else -1 - x.astype(np.int64), dim, keepdim)


def variance(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """Computes the variance over the feature axes `dim`; None is all of them. keepdim: whether they stay with
    size one.

    correction: is subtracted from the count of numbers, by which the sum of squares is divided; None is 1.
    """
    return numpy.var(x, axis=axes(x, dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def variance_and_mean(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """Computes ATen's `var_mean`: the variance and the mean over the feature axes `dim`; None is all of them.

    correction: is subtracted from the count of numbers, by which the sum of squares is divided; None is 1.
    keepdim: whether the axes stay with size one.
    """
    return variance(x, dim, correction=correction, keepdim=keepdim), mean(x, dim, keepdim)


def norm(x: Any, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """Computes the norm of vectors along the feature axes `dim`; None is all of them. order: 1, 2 or
    infinity; others raise `StepError`. keepdim: whether the axes stay with size one.
    """
    if order == 2:
        return np.sqrt(total(x * x, dim, keepdim))
    if order not in (1, math.inf):
        raise refuse(f"a norm of order {order} is not an operation of a step")
    size = numpy.absolute(x)
    return total(size, dim, keepdim) if order == 1 else largest(size, dim, keepdim)


def layer_norm(x: Any, shape: Sequence[int], scale: Any, shift: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Normalises x to mean 0 and variance 1 over its last axes, then scales and shifts it, as ATen's
    `native_layer_norm`.

    Returns the result, the mean, and 1 / standard deviation. shape: the sizes of these axes.
    scale, shift: the factors and the summands of the result; None for none.
    epsilon: a number that is added to the variance.
    """
    last = list(range(-len(shape), 0))
    middle = mean(x, last, True)
    away = x - middle
    inverse = 1 / np.sqrt(mean(away * away, last, True) + epsilon)
    normal = away * inverse
    normal = normal if scale is None else normal * scale
    return normal if shift is None else normal + shift, middle, inverse
