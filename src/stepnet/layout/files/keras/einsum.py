"""Keras' EinsumDense: a sum over features that an equation states, as one product with a matrix.

abc,cde->abde    -->    x [a, b, c] times the kernel [c, d e], reshaped to [a, b, d, e]
"""

from typing import Any, cast

from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.einsum import einsum, letters_of
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import multiplied
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.nodes import rows


def einsum_dense(call: KerasCall) -> Placed:
    """Computes the result of Keras' EinsumDense, without its activation: a product with the kernel, and a
    bias.

    Raises `ModelError` for an equation that is no such product, as one that sums over the operand alone.
    """
    equation = call.setting("equation", "")
    second = equation.partition("->")[0].partition(",")[2]
    (inputs, kernel_letters), made = letters_of(equation, [len(call.x.axes), len(second.strip())])
    summed = [letter for letter in inputs if letter in kernel_letters]
    own = [letter for letter in kernel_letters if letter not in summed]
    if not summed or {*made} != {*inputs, *own} - {*summed}:
        raise ModelError(f"its equation {equation!r} is no product with a matrix")
    sizes = {letter: call.width(inputs.index(letter)) for letter in summed}
    sizes |= own_sizes(call, made, own)
    shapes = {"kernel": tuple(sizes[letter] for letter in kernel_letters)}
    bias_axes = call.setting("bias_axes", "")
    if bias_axes:
        first = min(made.index(letter) for letter in bias_axes)
        shapes["bias"] = tuple(sizes[letter] if letter in bias_axes else 1 for letter in made[first:])
    kernel, *bias = call.arrays(shapes)
    result = einsum(equation, [call.x, constant(kernel)], multiplied)
    return pointwise.elementwise("add", result, constant(bias[0])) if bias else result


def own_sizes(call: KerasCall, made: str, own: list[str]) -> dict[str, int]:
    """Returns the sizes of the result's axes that the kernel has and the operand has not, by letter, from the
    setting "output_shape". made, own: the letters of the result, and of these axes. Raises `ModelError` if
    the setting does not fit the equation.
    """
    stated: Any = call.config.get("output_shape")
    shape = rows(cast(object, stated)) or [stated]
    shape = [None] * (len(made) - len(shape)) + shape
    found: dict[str, Any] = {letter: shape[made.index(letter)] for letter in own}
    if len(shape) != len(made) or any(type(size) is not int or size < 1 for size in found.values()):
        raise ModelError(f"its output_shape {stated!r} does not fit its equation")
    return found
