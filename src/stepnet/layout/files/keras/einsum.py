"""Keras' EinsumDense: a sum over features that an equation states, as one product with a matrix.

abc,cde->abde    -->    x [a, b, c] times the kernel [c, d e], reshaped to [a, b, d, e]
"""

from math import prod
from typing import Any, cast

from stepnet.errors import ModelError
from stepnet.importers import pointwise, shaping
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.nodes import rows


def einsum_dense(call: KerasCall) -> Placed:
    """Computes the result of EinsumDense, without its activation: a product with the kernel, and a bias.

    Raises `ModelError` for an equation that is no such product, as one that sums over the operand alone.
    """
    equation = call.setting("equation", "")
    inputs, kernel_letters, made = letters_of(equation, len(call.x.axes))
    summed = [letter for letter in inputs if letter in kernel_letters]
    kept = [letter for letter in inputs if letter not in summed]
    own = [letter for letter in kernel_letters if letter not in summed]
    if not summed or {*kept, *own} != {*made} or len(made) != len(kept) + len(own):
        raise ModelError(f"its equation {equation!r} is no product with a matrix")
    sizes = {letter: call.width(inputs.index(letter)) for letter in summed}
    sizes |= own_sizes(call, made, own)
    shapes = {"kernel": tuple(sizes[letter] for letter in kernel_letters)}
    bias_axes = call.setting("bias_axes", "")
    if bias_axes:
        first = min(made.index(letter) for letter in bias_axes)
        shapes["bias"] = tuple(sizes[letter] if letter in bias_axes else 1 for letter in made[first:])
    kernel, *bias = call.arrays(shapes)
    order = [kernel_letters.index(letter) for letter in (*summed, *own)]
    matrix = kernel.transpose(order).reshape(prod(sizes[letter] for letter in summed), -1)
    x = shaping.transpose(call.x, [inputs.index(letter) for letter in (*kept, *summed)])
    x = shaping.reshape(x, [*x.sizes[: len(kept)], len(matrix)])
    result = matmul(x, constant(matrix), padded=False)
    result = shaping.reshape(result, [*x.sizes[:-1], *(sizes[letter] for letter in own)])
    result = shaping.transpose(result, [[*kept, *own].index(letter) for letter in made])
    return pointwise.elementwise("add", result, constant(bias[0])) if bias else result


def letters_of(equation: str, rank: int) -> tuple[str, str, str]:
    """Returns the letters of the axes of operand, kernel and result, with letters for an ellipsis too; raises
    `ModelError` for an equation of another form, or an operand of another rank.

    >>> letters_of("...x,xy->...y", 3)
    ('ABx', 'xy', 'ABy')
    """
    operands, _, made = equation.replace(" ", "").partition("->")
    inputs, _, kernel = operands.partition(",")
    further = "ABCDEFGH"[: max(0, rank - len(inputs.replace("...", "")))]
    inputs, made = inputs.replace("...", further), made.replace("...", further)
    letters = inputs + kernel + made
    if (
        len(inputs) != rank
        or not letters.isalpha()
        or any(len({*part}) != len(part) for part in (inputs, kernel, made))
    ):
        raise ModelError(f"its equation {equation!r} does not fit an operand of {rank} axes")
    return inputs, kernel, made


def own_sizes(call: KerasCall, made: str, own: list[str]) -> dict[str, int]:
    """Returns the sizes of the axes that the kernel brings, which the setting "output_shape" states."""
    stated: Any = call.config.get("output_shape")
    shape = rows(cast(object, stated)) or [stated]
    shape = [None] * (len(made) - len(shape)) + shape
    found: dict[str, Any] = {letter: shape[made.index(letter)] for letter in own}
    if len(shape) != len(made) or any(type(size) is not int or size < 1 for size in found.values()):
        raise ModelError(f"its output_shape {stated!r} does not fit its equation")
    return found
