"""Rules of Keras' classes that several tables have, and parts of rules."""

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting
from stepnet.importers.axes import ONE
from stepnet.importers.placed import Placed, constant
from stepnet.importers.values import repeated_at
from stepnet.layout.files.keras.call import KerasCall, Rule, Shapes

Array = np.ndarray


def unary(operator: str, **defaults: float) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of a class or operation that applies a function
    to each element.

    operator: the name of the function in `importers.pointwise`. defaults: the settings of the class that the
    function takes, with Keras' defaults, in the order of its parameters.
    """
    return lambda call: pointwise.elementwise(
        operator, call.x, numbers=[call.setting(name, usual) for name, usual in defaults.items()]
    )


def folded(operator: str) -> Rule:
    """Makes the rule of a Keras class that folds its operands by an elementwise operator, left to right."""
    return lambda call: pointwise.folded(operator, call.several)


def pair(operator: str) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of a class that combines two operands by an
    elementwise operator, which has the name `operator` in `importers.pointwise`.
    """

    def rule(call: KerasCall) -> Placed:
        """Computes a Keras layer of two operands by the elementwise `operator`; else raises `ModelError`."""
        if len(call.operands) != 2:
            raise ModelError(f"it is called on {len(call.operands)} tensors, where two are expected")
        return pointwise.elementwise(operator, *call.operands)

    return rule


def same(call: KerasCall) -> Placed:
    """Returns the operand; it is the rule of layers that compute nothing in use, such as Dropout."""
    return call.x


def with_bias(call: KerasCall, shapes: Shapes, outputs: int) -> tuple[list[Array], Array | None]:
    """Returns the arrays of a layer, and its bias; None if it has none. shapes: the shapes of the arrays by
    name. outputs: the number of features of the result, and of the bias.
    """
    biased = call.setting("use_bias", True)
    arrays = call.arrays({**shapes, "bias": (outputs,)} if biased else shapes)
    return arrays[: len(shapes)], arrays[-1] if biased else None


def global_pooling(how: str) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of a class that reduces all axes between the
    sequences (first) and the features (last), such as GlobalMaxPooling1D.

    how: the name of the reduction in `importers.reductions`.
    """

    def rule(call: KerasCall) -> Placed:
        """Computes Keras' pooling over all places: all axes but the first and the last."""
        call.only("data_format", "channels_last", None)
        axes, keep = range(1, len(call.x.axes) - 1), bool(call.setting("keepdims", False))
        return reductions.reduce(call.x, axes, how, keep)

    return rule


def per_feature(mask: Placed) -> Placed:
    """Returns a mask with an axis of size one for the features."""
    return mask.shaped((*mask.axes, ONE))


def steps_that_differ(call: KerasCall) -> Placed:
    """Returns the mask that Keras' Masking gives its output: True at the steps of which any feature differs
    from the setting "mask_value". Raises `ModelError` if the steps have integers, and this setting is none of
    their dtype.
    """
    dtype, value = pointwise.dtype_of(call.x), call.setting("mask_value", 0.0)
    if dtype.kind in "iu" and not (-(2**31) <= value < 2**31 and float(value).is_integer()):
        raise ModelError(f"its mask_value is {short_repr(value)}, and it is called on integers")
    number = np.asarray(value, dtype)
    return any_along(pointwise.elementwise("not_equal", call.x, constant(number)), [-1], False)


def any_along(x: Placed, axes: list[int], keep: bool) -> Placed:
    """Returns True where any number along `axes` is not 0. keep: True to keep these axes, with size 1."""
    truth = pointwise.cast(pointwise.cast(x, "bool"), "float32")
    largest = reductions.reduce(truth, axes, "max", keep)
    return pointwise.elementwise("greater", largest, constant(np.float32(0)))


def zero_like(x: Placed) -> Placed:
    """Returns a zero of the dtype of a value."""
    return constant(np.zeros((), pointwise.dtype_of(x)))


def filled(number: int) -> Rule:
    """Makes the rule of a class that repeats a number in the shape of its operand."""

    def rule(call: KerasCall) -> Placed:
        """Returns `number` in the operand's shape, in the configuration's dtype or that of the operand.
        Raises `ModelError` for a dtype that nets do not have.
        """
        x, dtype = call.x, call.setting("dtype", pointwise.dtype_of(call.x).name)
        if dtype not in ("bool", "float32", "float64", "int32", "int64"):
            raise ModelError(f"its dtype {short_repr(dtype)} is not supported")
        array = np.full(x.features, number, dtype)
        return x.with_value(repeated_at(array, x.value) if isinstance(x.value, Traced) else array)

    return rule


def concatenate(call: KerasCall) -> Placed:
    """Computes the result of Keras' Concatenate: the operands joined along an axis."""
    return selecting.concatenate(call.operands, call.wholes("axis", 1, -1)[0])


def softmax(call: KerasCall) -> Placed:
    """Computes the softmax along an axis: features, or the steps of each sequence."""
    return reductions.softmax(call.x, call.axis())
