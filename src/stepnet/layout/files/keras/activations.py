"""Keras' activations, by name in a layer's configuration and as layers of their own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting
from stepnet.importers.axes import ONE
from stepnet.importers.placed import Placed, constant
from stepnet.layout.files.keras.call import KerasCall, Rule
from stepnet.layout.files.keras.nodes import class_of, rows, table
from stepnet.layout.files.keras.rules import softmax, unary

SELU = (1.67326324, 1.05070098)
FUNCTIONS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    **{name: (name, ()) for name in ("linear", "relu", "sigmoid", "tanh", "softplus", "softsign", "silu")},
    **{name: (name, ()) for name in ("log_sigmoid", "sparse_plus", "tanh_shrink")},
    **{name: (name, (0.5,)) for name in ("hard_shrink", "soft_shrink")},
    **dict.fromkeys(("celu", "elu"), ("elu", (1.0,))),
    **dict.fromkeys(("hard_silu", "hard_swish"), ("hard_swish", ())),
    "exponential": ("exp", ()),
    "hard_tanh": ("clip", (-1, 1)),
    "gelu": ("gelu", (False,)),
    "leaky_relu": ("leaky_relu", (0.2,)),
    "relu6": ("clip6", ()),
    "selu": ("selu", SELU),
    "sparse_sigmoid": ("hard_sigmoid", (0.5, 0.5)),
    "squareplus": ("squareplus", (4.0,)),
    "swish": ("silu", ()),
}
"""The activations that are elementwise: their operator of `importers.pointwise`, and its numbers."""
SLOPES = {"2": 0.2, "3": 1 / 6}
"""The slope of hard_sigmoid, by the version of Keras."""


def activated(call: KerasCall, x: Placed) -> Placed:
    """Applies to x the activation that a Keras layer's setting "activation" has, as a name or as the
    configuration of an activation layer; returns x if the setting is null. Raises `ModelError` for an unknown
    activation.
    """
    layer = table(call.config.get("activation"))
    if layer and class_of(layer) in ACTIVATION_LAYERS:
        return ACTIVATION_LAYERS[class_of(layer)](
            replace(call, config=table(layer.get("config")), operands=(x,))
        )
    name = call.setting("activation", "linear")
    if name == "hard_sigmoid":
        return pointwise.elementwise(name, x, numbers=[SLOPES[call.version], 0.5])
    if name in OVER_FEATURES:
        return OVER_FEATURES[name](x)
    if name not in FUNCTIONS:
        raise ModelError(f"its activation {short_repr(name)} is not supported")
    operator, numbers = FUNCTIONS[name]
    return pointwise.elementwise(operator, x, numbers=numbers)


def gated(x: Placed) -> Placed:
    """Computes Keras' glu: the first half of the features times the sigmoid of the second half."""
    last, width = len(x.axes) - 1, x.sizes[-1]
    x.feature(last)
    values, gates = (selecting.slice_axis(x, last, at, at + width // 2, 1) for at in (0, width // 2))
    return pointwise.elementwise("multiply", values, pointwise.elementwise("sigmoid", gates))


def mish(x: Placed) -> Placed:
    """Computes x tanh(softplus(x))."""
    grown = pointwise.elementwise("tanh", pointwise.elementwise("softplus", x))
    return pointwise.elementwise("multiply", x, grown)


def sparsemax(x: Placed) -> Placed:
    """Computes Keras' sparsemax over the features: what exceeds a threshold.

    Of the entries from the largest to the smallest, those count that exceed the mean of all so far, less one
    over their number. The threshold is the sum of the running totals at these entries, less one, divided by
    their number. That is no projection to the simplex unless one entry counts, but it is what all of Keras'
    backends compute.
    """
    last, width, dtype = len(x.axes) - 1, x.sizes[-1], pointwise.dtype_of(x)
    x.feature(last)
    own, others = x.shaped((*x.axes, ONE)), x.shaped((*x.axes[:last], ONE, *x.axes[last:]))
    earlier = constant(np.tri(width, dtype=bool))
    tied = pointwise.elementwise("logical_and", pointwise.elementwise("equal", others, own), earlier)
    ahead = pointwise.elementwise("logical_or", pointwise.elementwise("greater", others, own), tied)
    ahead, one = pointwise.cast(ahead, dtype.name), constant(np.ones((), dtype))
    places = reductions.reduce(ahead, [last + 1], "sum", False)
    totals = reductions.reduce(pointwise.elementwise("multiply", ahead, others), [last + 1], "sum", False)
    mean = pointwise.elementwise("divide", pointwise.elementwise("subtract", totals, one), places)
    counted = pointwise.cast(pointwise.elementwise("greater", x, mean), dtype.name)
    kept = reductions.reduce(pointwise.elementwise("multiply", counted, totals), [last], "sum", True)
    count = reductions.reduce(counted, [last], "sum", True)
    threshold = pointwise.elementwise("divide", pointwise.elementwise("subtract", kept, one), count)
    return pointwise.elementwise("relu", pointwise.elementwise("subtract", x, threshold))


OVER_FEATURES: Mapping[str, Callable[[Placed], Placed]] = {
    "glu": gated,
    "log_softmax": lambda x: reductions.log_softmax(x, x.axis(-1)),
    "mish": mish,
    "softmax": lambda x: reductions.softmax(x, x.axis(-1)),
    "sparsemax": sparsemax,
}
"""The activations that are no operator of `importers.pointwise`."""


def relu(call: KerasCall) -> Placed:
    """Computes the result of Keras' ReLU, perhaps with a slope below a threshold (0 by default) and a largest
    value, as the configuration says.
    """
    slope, most = call.setting("negative_slope", 0.0), call.config.get("max_value")
    x, dtype = call.x, pointwise.dtype_of(call.x)
    threshold = constant(np.asarray(call.setting("threshold", 0.0), dtype))
    if threshold.array.item():
        below = pointwise.elementwise("subtract", x, threshold)
        low = pointwise.elementwise("multiply", below, constant(np.asarray(slope, dtype)))
        x = pointwise.where(pointwise.elementwise("greater", x, threshold), x, low)
    else:
        operator, own = ("leaky_relu", [slope]) if slope else ("relu", [])
        x = pointwise.elementwise(operator, x, numbers=own)
    if most is None:
        return x
    largest = np.asarray(call.setting("max_value", 0.0), pointwise.dtype_of(x))
    return pointwise.elementwise("minimum", x, constant(largest))


def leaky_relu(call: KerasCall) -> Placed:
    """Computes the result of Keras' LeakyReLU, whose slope had the name alpha in Keras 2."""
    slope = call.setting("negative_slope", call.setting("alpha", 0.3))
    return pointwise.elementwise("leaky_relu", call.x, numbers=[slope])


def prelu(call: KerasCall) -> Placed:
    """Computes the result of Keras' PReLU: below 0 a number is multiplied by a slope, which is an array over
    the axes after that of the sequences; of size 1 along the setting "shared_axes".
    """
    count = len(rows(call.config.get("shared_axes")))
    shared = {call.x.axis(axis) for axis in call.wholes("shared_axes", count)} if count else set[int]()
    shape = tuple(1 if axis in shared else call.width(axis) for axis in range(1, len(call.x.axes)))
    return pointwise.elementwise("leaky_relu", call.x, constant(call.arrays({"alpha": shape})[0]))


def softmax_layer(call: KerasCall) -> Placed:
    """Computes the result of Keras' Softmax; raises `ModelError` for a mask, for which Keras has an error."""
    if call.mask is not None:
        raise ModelError("it takes the mask of its operand, which Keras does not fit to the features")
    return softmax(call)


ACTIVATION_LAYERS: Mapping[str, Rule] = {
    "ELU": unary("elu", alpha=1.0),
    "LeakyReLU": leaky_relu,
    "ReLU": relu,
    "Softmax": softmax_layer,
}
"""The layers without arrays that an activation may be."""
