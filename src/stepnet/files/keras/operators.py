"""Keras' classes: a map from their names to the operators of `importers`, one row per class.

    Multiply          -->   multiply, from left to right
    ELU alpha=1.0     -->   elu, with the setting as its number
    Dense units=3     -->   a product with the array "kernel", a sum, and the activation

A row of an elementwise operator names a row of the table in `importers/pointwise.py`. Any other row has a
rule that reads the settings and arrays of a layer, and calls functions of `importers`, which know no format.
Recurrent layers are no rows: `modules.py` reads them, and `whole.py` runs them.

Sources: keras/src/layers/ and keras/src/ops/ of 3.15; tf_keras 2.21.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.files.keras.names import LOOKED_THROUGH
from stepnet.files.keras.nodes import Config, class_of, rows, table
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import ONE
from stepnet.importers.convolving import (
    ZerosAround,
    convolve,
    convolve_transposed,
    pool,
    window_of,
    with_zeros,
)
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.sizes import product
from stepnet.importers.values import repeated_at
from stepnet.model.convolution import windowed_max, windowed_mean

Array = np.ndarray

KINDS: Mapping[type, tuple[Any, str]] = {
    bool: (int, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a text"),
}
"""For the type of a setting's default: the types that the setting may have, and their name in messages."""


@dataclass(frozen=True)
class KerasCall:
    """Call of a Keras layer, as the rule of its class takes it.

    config: the layer's configuration.
    operands: the values that it is called on, and constants for numbers among them.
    stored: its arrays by name, or by number in files of Keras 3.
    keys: arguments that are neither tensors nor numbers, such as an index.
    version: the major version of Keras that wrote the file, "2" or "3".
    masks: for each operand its mask, a bool per step; None for one without a mask.
    """

    config: Config
    operands: tuple[Placed, ...]
    stored: Mapping[str, Array]
    keys: tuple[Any, ...] = ()
    version: str = "3"
    masks: tuple[Placed | None, ...] = ()

    @property
    def mask(self) -> Placed | None:
        """The mask of the first operand; None for none."""
        return self.masks[0] if self.masks else None

    @property
    def x(self) -> Placed:
        """The only operand of the layer; raises `ModelError` if it has none or several."""
        if len(self.operands) != 1:
            raise ModelError(f"it is called on {len(self.operands)} tensors, where one is expected")
        return self.operands[0]

    @property
    def several(self) -> tuple[Placed, ...]:
        """All operands of the layer, at least two; raises `ModelError` for fewer."""
        if len(self.operands) < 2:
            raise ModelError(f"it is called on {len(self.operands)} tensors, where several are expected")
        return self.operands

    def setting(self, name: str, default: Any) -> Any:
        """Returns a setting of the layer, or `default` if the file does not have it, or has null.

        Raises `ModelError` for a value of another type than the default.
        """
        value: Any = self.config.get(name)
        value = default if value is None else value
        types, kind = KINDS[type(default)]
        if not isinstance(value, types):
            raise ModelError(f"its {name} is {short_repr(value)}, and should be {kind}")
        return value

    def wholes(self, name: str, count: int, default: int | None = None) -> list[int]:
        """Returns a setting that is `count` whole numbers, or one number for all; raises `ModelError` for
        others. default: the number if the file does not have the setting.
        """
        value: Any = self.config.get(name, default)
        numbers = cast("list[Any]", value) if isinstance(value, list) else [value] * count
        if len(numbers) != count or not all(type(number) is int for number in numbers):
            raise ModelError(f"its {name} is {short_repr(value)}, and should be {count} whole numbers")
        return numbers

    def only(self, name: str, *values: Any) -> None:
        """Raises `ModelError` if a setting has another value than `values`, of which the first is usual."""
        if self.config.get(name, values[0]) not in values:
            said = " or ".join(map(repr, values))
            raise ModelError(f"its {name} is {short_repr(self.config[name])}: only {said} is supported")

    def arrays(self, shapes: "Shapes") -> list[Array]:
        """Returns the layer's arrays: those of the names in `shapes`, or all in order where the file has
        numbers; raises `ModelError` if they are others, or have other shapes or numbers that are no floats.

        shapes: by the name of each array, the shape that the configuration and the operand state.
        """
        numbered = all(name.isdecimal() for name in self.stored)
        expected = [str(number) for number in range(len(shapes))] if numbered else [*shapes]
        if {*expected} != {*self.stored}:
            raise ModelError(f"its arrays are {', '.join(self.stored) or 'none'}, not {', '.join(shapes)}")
        arrays = [self.stored[name] for name in expected]
        for (name, shape), array in zip(shapes.items(), arrays, strict=True):
            check_array(name, array, shape)
        return arrays

    def width(self, axis: int = -1) -> int:
        """Returns the size of an axis of the operand; raises `AxesError` unless it is a feature."""
        place = self.x.axis(axis)
        self.x.feature(place)
        return self.x.sizes[place]

    def axis(self, default: int = -1) -> int:
        """Returns the axis of the operand that the setting "axis" states, a number or a list of one."""
        return self.x.axis(self.wholes("axis", 1, default)[0])


Rule = Callable[[KerasCall], Placed]
Shapes = Mapping[str, tuple[int, ...]]


def check_array(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raises `ModelError` unless an array of a layer has the shape that its configuration and operand state,
    and numbers that are floats.
    """
    if array.shape != shape:
        raise ModelError(
            f"its {name} has the shape {array.shape}, and its configuration and operand say {shape}"
        )
    if array.dtype.kind != "f":
        raise ModelError(f"its {name} is of {array.dtype} numbers, where floats are expected")


def unary(operator: str, **defaults: float) -> Rule:
    """Makes the rule of a class that is elementwise in its operand.

    operator: its name in `importers.pointwise`. defaults: the settings with their defaults, in the order of
    the function's parameters.
    """
    return lambda call: pointwise.elementwise(
        operator, call.x, numbers=[call.setting(name, usual) for name, usual in defaults.items()]
    )


def folded(operator: str) -> Rule:
    """Makes the rule of a class that applies the elementwise `operator` to its operands, left to right."""
    return lambda call: pointwise.folded(operator, call.several)


def pair(operator: str) -> Rule:
    """Makes the rule of a class of two operands that is the elementwise `operator` of `importers`."""

    def rule(call: KerasCall) -> Placed:
        """Computes the elementwise `operator` of both operands."""
        if len(call.operands) != 2:
            raise ModelError(f"it is called on {len(call.operands)} tensors, where two are expected")
        return pointwise.elementwise(operator, *call.operands)

    return rule


def same(call: KerasCall) -> Placed:
    """Returns the operand; it is the rule of layers that compute nothing in use, such as Dropout."""
    return call.x


# ---- activations -------------------------------------------------------------------------------------------

SELU = (1.67326324, 1.05070098)
FUNCTIONS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    **{name: (name, ()) for name in ("linear", "relu", "sigmoid", "tanh", "softplus", "softsign", "silu")},
    "elu": ("elu", (1.0,)),
    "exponential": ("exp", ()),
    "gelu": ("gelu", (False,)),
    "relu6": ("clip6", ()),
    "selu": ("selu", SELU),
    "swish": ("silu", ()),
}
"""The activations that are elementwise: their operator of `importers.pointwise`, and its numbers."""
SLOPES = {"2": 0.2, "3": 1 / 6}
"""The slope of hard_sigmoid, by the version of Keras."""


def activated(call: KerasCall, x: Placed) -> Placed:
    """Applies the activation that the layer's configuration names to a value; null stands for none."""
    name = call.setting("activation", "linear")
    if name == "softmax":
        return reductions.softmax(x, x.axis(-1))
    if name == "hard_sigmoid":
        return pointwise.elementwise(name, x, numbers=[SLOPES[call.version], 0.5])
    if name not in FUNCTIONS:
        raise ModelError(f"its activation {short_repr(name)} is not supported")
    operator, numbers = FUNCTIONS[name]
    return pointwise.elementwise(operator, x, numbers=numbers)


def relu(call: KerasCall) -> Placed:
    """Computes the result of ReLU, perhaps with a slope below 0 and a largest value."""
    call.only("threshold", 0, None)
    slope, most = call.setting("negative_slope", 0.0), call.config.get("max_value")
    operator, own = ("leaky_relu", [slope]) if slope else ("relu", [])
    x = pointwise.elementwise(operator, call.x, numbers=own)
    if most is None:
        return x
    largest = np.asarray(call.setting("max_value", 0.0), pointwise.dtype_of(x))
    return pointwise.elementwise("minimum", x, constant(largest))


def leaky_relu(call: KerasCall) -> Placed:
    """Computes the result of LeakyReLU, whose slope had the name alpha in Keras 2."""
    slope = call.setting("negative_slope", call.setting("alpha", 0.3))
    return pointwise.elementwise("leaky_relu", call.x, numbers=[slope])


def prelu(call: KerasCall) -> Placed:
    """Computes the result of PReLU, whose slopes are an array."""
    count = len(rows(call.config.get("shared_axes")))
    shared = {call.x.axis(axis) for axis in call.wholes("shared_axes", count)} if count else set[int]()
    shape = tuple(1 if axis in shared else call.width(axis) for axis in range(1, len(call.x.axes)))
    return pointwise.elementwise("leaky_relu", call.x, constant(call.arrays({"alpha": shape})[0]))


def softmax(call: KerasCall) -> Placed:
    """Computes the softmax along an axis: features, or the steps of each sequence."""
    return reductions.softmax(call.x, call.axis())


def softmax_layer(call: KerasCall) -> Placed:
    """Computes the result of Softmax; raises `ModelError` for a mask, for which Keras has an error."""
    if call.mask is not None:
        raise ModelError("it takes the mask of its operand, which Keras does not fit to the features")
    return softmax(call)


# ---- layers with arrays ------------------------------------------------------------------------------------


def with_bias(call: KerasCall, shapes: Shapes, outputs: int) -> tuple[list[Array], Array | None]:
    """Returns the arrays of a layer, and its bias; None if it has none.

    shapes: those of the arrays by name. outputs: the number of features of the result, and of the bias.
    """
    biased = call.setting("use_bias", True)
    arrays = call.arrays({**shapes, "bias": (outputs,)} if biased else shapes)
    return arrays[: len(shapes)], arrays[-1] if biased else None


def dense(call: KerasCall) -> Placed:
    """Computes the result of Dense: a product with the kernel, perhaps a bias, and the activation."""
    (units,) = call.wholes("units", 1)
    (kernel,), bias = with_bias(call, {"kernel": (call.width(), units)}, units)
    result = matmul(call.x, constant(kernel), padded=False)
    return activated(call, result if bias is None else pointwise.elementwise("add", result, constant(bias)))


def embedding(call: KerasCall) -> Placed:
    """Computes the result of Embedding: rows of a table at the whole numbers of the operand."""
    shape = (*call.wholes("input_dim", 1), *call.wholes("output_dim", 1))
    x, (rows_of_table,) = call.x, call.arrays({"embeddings": shape})
    whole = pointwise.dtype_of(x).kind in "iu"
    return selecting.take_computed(constant(rows_of_table), x if whole else pointwise.cast(x, "int64"))


def convolution(call: KerasCall) -> Placed:
    """Computes the result of Conv1D over the steps of sequences."""
    (size,), (filters,) = call.wholes("kernel_size", 1), call.wholes("filters", 1)
    inputs, groups = features_read(call), call.setting("groups", 1)
    if groups < 1 or inputs % groups or filters % groups:
        raise ModelError(f"its {groups} groups do not divide {inputs} features and {filters} filters")
    (kernel,), bias = with_bias(call, {"kernel": (size, inputs // groups, filters)}, filters)
    return activated(call, convolved(call, kernel, bias, groups))


def depthwise(call: KerasCall) -> Placed:
    """Computes the result of DepthwiseConv1D, which convolves each feature by itself."""
    name = "depthwise_kernel" if "depthwise_kernel" in call.stored else "kernel"
    shape = by_feature_shape(call)
    (kernel,), bias = with_bias(call, {name: shape}, shape[1] * shape[2])
    return activated(call, convolved(call, *by_feature(kernel, bias)))


def separable(call: KerasCall) -> Placed:
    """Computes the result of SeparableConv1D: a convolution of each feature, and a product."""
    (filters,), shape = call.wholes("filters", 1), by_feature_shape(call)
    shapes = {"depthwise_kernel": shape, "pointwise_kernel": (1, shape[1] * shape[2], filters)}
    (kernel, across), bias = with_bias(call, shapes, filters)
    mixed = matmul(convolved(call, *by_feature(kernel)), constant(across[0]), padded=False)
    return activated(call, mixed if bias is None else pointwise.elementwise("add", mixed, constant(bias)))


def features_read(call: KerasCall) -> int:
    """Returns the number of features that a convolution reads, perhaps behind a ZeroPadding1D."""
    return replace(call, operands=(zeros_of(call.x).source,)).width()


def by_feature_shape(call: KerasCall) -> tuple[int, int, int]:
    """Returns the shape of a kernel [size, in, own] that convolves each feature."""
    (size,), (own,) = call.wholes("kernel_size", 1), call.wholes("depth_multiplier", 1, 1)
    return size, features_read(call), own


def zeros_of(x: Placed) -> ZerosAround:
    """Returns an operand with the steps of zeros around it, of which there may be none."""
    return x.value if isinstance(x.value, ZerosAround) else ZerosAround("", x, 0, 0)


def by_feature(kernel: Array, bias: Array | None = None) -> tuple[Array, Array | None, int]:
    """Returns the arguments of `convolved` for a kernel [size, in, own] that convolves each feature."""
    size, inputs, own = kernel.shape
    return kernel.reshape(size, 1, inputs * own), bias, inputs


def convolved(call: KerasCall, kernel: Array, bias: Array | None, groups: int) -> Placed:
    """Convolves the operand by the settings of a layer.

    kernel, bias: arrays [size, in / groups, out] and [out]. groups: the number of groups of features.
    """
    call.only("data_format", "channels_last", None)
    zeros = zeros_of(call.x)
    (dilation,) = call.wholes("dilation_rate", 1, 1)
    window = window_of_steps(call, len(kernel), dilation, zeros)
    first, weight = shaping.swapped(zeros.source), constant(kernel.transpose(2, 1, 0))
    made = convolve(first, weight, None if bias is None else constant(bias), window, groups)
    return shaping.swapped(made)


def window_of_steps(call: KerasCall, size: int, dilation: int, zeros: ZerosAround, stride: int = 1) -> Window:
    """Returns the steps that the kernel of a layer reads, by its settings "strides" and "padding".

    size, dilation: those of the kernel. zeros: the steps of zeros around the operand.
    stride: that of a layer without the setting.
    """
    (stride,) = call.wholes("strides", 1, stride) if call.config.get("strides") is not None else [stride]
    kind, reach = call.setting("padding", "valid"), (size - 1) * dilation
    if kind not in ("valid", "same", "causal"):
        raise ModelError(f"its padding is {short_repr(kind)}: valid, same, causal are supported")
    if kind == "same" and not (zeros.before or zeros.after):
        return window_of(size, stride, dilation, 0, 0, "upper")
    if kind == "same" and stride > 1:
        raise ModelError("its zeros follow from the length, and a ZeroPadding1D put others around it")
    own = {"valid": (0, 0), "same": (reach // 2, reach - reach // 2), "causal": (reach, 0)}[kind]
    return window_of(size, stride, dilation, zeros.before + own[0], zeros.after + own[1])


def convolution_transposed(call: KerasCall) -> Placed:
    """Computes the result of Conv1DTranspose over the steps of sequences.

    Keras leaves the results at the ends out with the padding "same", so that there are `stride` for each
    step; with "valid" there are at least as many.
    """
    call.only("data_format", "channels_last", None)
    call.only("output_padding", None)
    (size,), (filters,) = call.wholes("kernel_size", 1), call.wholes("filters", 1)
    (kernel,), bias = with_bias(call, {"kernel": (size, filters, call.width())}, filters)
    (stride,), (dilation,) = call.wholes("strides", 1, 1), call.wholes("dilation_rate", 1, 1)
    kind, extra = call.setting("padding", "valid"), (len(kernel) - 1) * dilation + 1 - stride
    if kind not in ("valid", "same"):
        raise ModelError(f"its padding is {short_repr(kind)}: valid, same are supported")
    if extra < 0 and dilation > 1:
        raise ModelError(
            "its stride is beyond a kernel with a dilation, which Keras' backends compute differently"
        )
    ends = (max(extra, 0) // 2, max(extra, 0) - max(extra, 0) // 2) if kind == "same" else (0, 0)
    weight = constant(kernel.transpose(2, 1, 0))
    made = convolve_transposed(
        *(shaping.swapped(call.x), weight, None if bias is None else constant(bias)),
        *(stride, dilation, ends, max(-extra, 0), 1),
    )
    return activated(call, shaping.swapped(made))


def pooling_steps(how: Callable[[Traced, Window], Traced]) -> Rule:
    """Makes the rule of a class that pools windows of steps, such as MaxPooling1D. how: the pooling."""

    def rule(call: KerasCall) -> Placed:
        """Pools windows of the steps of each sequence."""
        call.only("data_format", "channels_last", None)
        (size,) = call.wholes("pool_size", 1, 2)
        window = window_of_steps(call, size, 1, ZerosAround("", call.x, 0, 0), stride=size)
        return shaping.swapped(pool(shaping.swapped(call.x), lambda x: how(x, window)))

    return rule


def zeros_around(call: KerasCall) -> Placed:
    """Returns the placeholder for the result of ZeroPadding1D, which only a convolution reads."""
    call.only("data_format", "channels_last", None)
    before, after = call.wholes("padding", 2, 1)
    return with_zeros(call.x, before, after)


def layer_norm(call: KerasCall) -> Placed:
    """Computes the result of LayerNormalization over the last axis."""
    call.only("rms_scaling", False)
    names = [name for name, use in (("gamma", "scale"), ("beta", "center")) if call.setting(use, True)]
    last = len(call.x.axes) - 1
    if call.axis() != last:
        raise ModelError("it normalises over another axis than the last")
    found = call.arrays(dict.fromkeys(names, (call.width(),)))
    arrays = dict(zip(names, map(constant, found), strict=True))
    epsilon = float(call.setting("epsilon", 1e-3))
    return reductions.layer_norm(call.x, last, epsilon, arrays.get("gamma"), arrays.get("beta"))


def batch_norm(call: KerasCall) -> Placed:
    """Computes the result of BatchNormalization in use, by its moving mean and variance."""
    own = [name for name, use in (("gamma", "scale"), ("beta", "center")) if call.setting(use, True)]
    names = (*own, "moving_mean", "moving_variance")
    found = call.arrays(dict.fromkeys(names, (call.width(call.axis()),)))
    arrays = dict(zip(names, found, strict=True))
    variance = arrays["moving_variance"]
    deviation = np.sqrt(variance + variance.dtype.type(call.setting("epsilon", 1e-3)))
    scale, shift = arrays.get("gamma", np.ones_like(variance)), arrays.get("beta", np.zeros_like(variance))
    return reductions.batch_norm(call.x, call.axis(), scale, shift, arrays["moving_mean"], deviation)


LEAST = 1e-7
"""The least deviation by which Normalization divides: Keras' epsilon."""


def normalization(call: KerasCall) -> Placed:
    """Computes the result of Normalization over the last axis, by the mean and variance of its configuration
    or of its arrays.
    """
    call.only("invert", False)
    if call.axis() != len(call.x.axes) - 1:
        raise ModelError("it normalises over another axis than the last")
    stated = [call.config.get(name) for name in ("mean", "variance")]
    if None in stated:
        shape = (call.width(),)
        mean, variance, *_ = replace(call, stored=without_count(call)).arrays(
            {"mean": shape, "variance": shape}
        )
    else:
        mean, variance = (numbers(value) for value in stated)
        for array in (mean, variance):
            if array.size not in (1, call.width()):
                raise ModelError(f"its configuration has {array.size} numbers for {call.width()} features")
    deviation = np.maximum(np.sqrt(variance), np.float32(LEAST))
    centred = pointwise.elementwise("subtract", call.x, constant(mean.ravel()))
    return pointwise.elementwise("divide", centred, constant(deviation.ravel()))


def without_count(call: KerasCall) -> Mapping[str, Array]:
    """Returns the arrays of a Normalization but the count of the numbers that it saw, which is not used;
    raises `ModelError` if there is none.
    """
    count = "2" if "2" in call.stored else "count"
    if count not in call.stored:
        raise ModelError(f"its arrays are {', '.join(call.stored) or 'none'}, not mean, variance, count")
    return {name: array for name, array in call.stored.items() if name != count}


def numbers(value: Any) -> Array:
    """Returns the numbers of a configuration, a number or a list of numbers, as an array; raises `ModelError`
    for others.
    """
    array = np.asarray(value, object).ravel()
    if not all(type(number) in (int, float) for number in array):
        raise ModelError(f"its configuration has {short_repr(value)}, where numbers are expected")
    return array.astype(np.float32)


def rescaling(call: KerasCall) -> Placed:
    """Computes the result of Rescaling: the operand times a scale, plus an offset."""
    scale, offset = (constant(numbers(call.config.get(name, 0.0))) for name in ("scale", "offset"))
    return pointwise.elementwise("add", pointwise.elementwise("multiply", call.x, scale), offset)


# ---- over axes ---------------------------------------------------------------------------------------------


def pooling(how: str) -> Rule:
    """Makes the rule of a class that reduces the steps of each sequence, such as GlobalMaxPooling1D.

    how: the name of the reduction in `importers.reductions`.
    """

    def rule(call: KerasCall) -> Placed:
        """Reduces over the axis of the steps."""
        call.only("data_format", "channels_last", None)
        return reductions.reduce(call.x, [1], how, bool(call.setting("keepdims", False)))

    return rule


def reduction(how: str) -> Rule:
    """Makes the rule of a reduction of keras.ops over axes. how: its name in `importers.reductions`."""

    def rule(call: KerasCall) -> Placed:
        """Reduces over the axes of the configuration."""
        x, stated = call.x, call.config.get("axis")
        call.only("initial", None)
        axes = call.wholes("axis", len(rows(cast(object, stated))) or 1)
        return reductions.reduce(x, axes, how, bool(call.setting("keepdims", False)))

    return rule


def global_mean(call: KerasCall) -> Placed:
    """Computes the result of GlobalAveragePooling1D: the mean of all steps, or of those that a mask leaves;
    NaN where it leaves none.
    """
    if call.mask is None:
        return pooling("mean")(call)
    call.only("data_format", "channels_last", None)
    if len(call.x.axes) != 3 or call.mask.axes != call.x.axes[:2]:
        raise ModelError("its mask has other axes than its operand")
    keep, counted = bool(call.setting("keepdims", False)), per_feature(call.mask)
    x = pointwise.where(counted, call.x, zero_like(call.x))
    counts = pointwise.cast(counted, pointwise.dtype_of(x).name)
    sums = [reductions.reduce(value, [1], "sum", keep) for value in (x, counts)]
    return pointwise.elementwise("divide", *sums)


def multiply(call: KerasCall) -> Placed:
    """Computes the result of Multiply. In Keras 3, a factor is 1 at the steps that its mask leaves out, and
    the product 0 where all factors are left out.
    """
    if call.version == "2" or not any(call.masks):
        return pointwise.folded("multiply", call.several)
    masks = [None if mask is None else per_feature(mask) for mask in call.masks]
    one = constant(np.ones((), pointwise.dtype_of(call.several[0])))
    factors = [
        x if mask is None else pointwise.where(mask, x, one)
        for x, mask in zip(call.several, masks, strict=True)
    ]
    counted = [mask for mask in masks if mask is not None]
    made = pointwise.folded("multiply", factors)
    if len(counted) < len(masks):
        return made
    return pointwise.where(pointwise.folded("logical_or", counted), made, zero_like(made))


def extreme(operator: str) -> Rule:
    """Makes the rule of Maximum and Minimum. operator: its name in `importers.pointwise`."""

    def rule(call: KerasCall) -> Placed:
        """Computes the extreme of all operands, from left to right. In Keras 3, where the mask of one side
        leaves a step out, the other side stands in for it.
        """
        first, *others = call.several
        masks = [None] * len(call.operands) if call.version == "2" else call.masks
        mask, *masks = [None if each is None else per_feature(each) for each in masks]
        for x, own in zip(others, masks, strict=True):
            other = x if own is None else pointwise.where(own, x, first)
            first = first if mask is None else pointwise.where(mask, first, other)
            both = [each for each in (mask, own) if each is not None]
            mask = pointwise.folded("logical_or", both) if len(both) == 2 else None
            first = pointwise.elementwise(operator, first, other)
        return first

    return rule


def per_feature(mask: Placed) -> Placed:
    """Returns a mask with an axis of size one for the features."""
    return mask.shaped((*mask.axes, ONE))


def steps_that_differ(call: KerasCall) -> Placed:
    """Returns the mask of Masking: whether any feature of a step differs from the setting "mask_value"."""
    dtype, value = pointwise.dtype_of(call.x), call.setting("mask_value", 0.0)
    if dtype.kind in "iu" and not (-(2**31) <= value < 2**31 and float(value).is_integer()):
        raise ModelError(f"its mask_value is {short_repr(value)}, and it is called on integers")
    number = np.asarray(value, dtype)
    return any_along(pointwise.elementwise("not_equal", call.x, constant(number)), [-1], False)


def any_along(x: Placed, axes: list[int], keep: bool) -> Placed:
    """Returns whether any of the numbers along axes is not 0; keep: leaves axes of size one."""
    truth = pointwise.cast(pointwise.cast(x, "bool"), "float32")
    largest = reductions.reduce(truth, axes, "max", keep)
    return pointwise.elementwise("greater", largest, constant(np.float32(0)))


def any_of(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.any over the axes of the configuration."""
    axes = call.wholes("axis", len(rows(call.config.get("axis"))) or 1)
    return any_along(call.x, axes, bool(call.setting("keepdims", False)))


def filled(number: int) -> Rule:
    """Makes the rule of a class that repeats a number in the shape of its operand."""

    def rule(call: KerasCall) -> Placed:
        """Repeats the number, in the dtype of the configuration or of the operand."""
        x, dtype = call.x, call.setting("dtype", pointwise.dtype_of(call.x).name)
        if dtype not in ("bool", "float32", "float64", "int32", "int64"):
            raise ModelError(f"its dtype {short_repr(dtype)} is not supported")
        array = np.full(x.features, number, dtype)
        return x.with_value(repeated_at(array, x.value) if isinstance(x.value, Traced) else array)

    return rule


def expand_dims(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.expand_dims: an axis of size one at the index of the setting."""
    return shaping.unsqueeze(call.x, call.wholes("axis", 1))


def masking(call: KerasCall) -> Placed:
    """Computes the result of Masking: its operand, with zeros at the steps that it masks."""
    return pointwise.where(per_feature(steps_that_differ(call)), call.x, zero_like(call.x))


def zero_like(x: Placed) -> Placed:
    """Returns a zero of the dtype of a value."""
    return constant(np.zeros((), pointwise.dtype_of(x)))


def concatenate(call: KerasCall) -> Placed:
    """Computes the result of Concatenate: the operands joined along an axis."""
    return selecting.concatenate(call.operands, call.wholes("axis", 1, -1)[0])


def permute(call: KerasCall) -> Placed:
    """Computes the result of Permute: the axes after the first in another order, counted from 1."""
    return shaping.transpose(call.x, [0, *call.wholes("dims", len(call.x.axes) - 1)])


def reshape(call: KerasCall) -> Placed:
    """Computes the result of Reshape: the axes after the first in another shape."""
    target = call.wholes("target_shape", max(1, len(rows(call.config.get("target_shape")))))
    return shaping.reshape(call.x, [call.x.sizes[0], *target])


def flatten(call: KerasCall) -> Placed:
    """Computes the result of Flatten: all axes after the first joined to one."""
    call.only("data_format", "channels_last", None)
    return shaping.reshape(call.x, [call.x.sizes[0], product(call.x.sizes[1:])])


def get_item(call: KerasCall) -> Placed:
    """Computes the result of an index: slices of features, and the first or last step of each sequence."""
    x, key = call.x, rows(call.keys[0]) if call.keys else []
    for axis, index in reversed([*enumerate(key)]):
        part = table(table(index).get("config"))
        bounds = [part.get(name) for name in ("start", "stop", "step")]
        if type(index) is int:
            x = selecting.gather(x, constant(np.asarray(index)), x.axis(axis))
        elif table(index).get("class_name") != "__slice__" or {*map(type, bounds)} - {int, type(None)}:
            raise ModelError(f"its index {short_repr(index)} is not supported")
        elif bounds != [None, None, None]:
            start, stop, step = bounds
            end = selecting.HIGHEST[0] if stop is None else stop
            x = selecting.slice_axis(x, axis, start or 0, end, step or 1)
    return x


KERAS: Mapping[str, Rule] = {
    **dict.fromkeys(LOOKED_THROUGH, same),
    "Activation": lambda call: activated(call, call.x),
    "Add": folded("add"),
    "Average": lambda call: pointwise.mean(*call.several),
    "AveragePooling1D": pooling_steps(partial(windowed_mean, counts_zeros=False)),
    "BatchNormalization": batch_norm,
    "Concatenate": concatenate,
    "Conv1D": convolution,
    "Conv1DTranspose": convolution_transposed,
    "Dense": dense,
    "DepthwiseConv1D": depthwise,
    "ELU": unary("elu", alpha=1.0),
    "Embedding": embedding,
    "Flatten": flatten,
    "GlobalAveragePooling1D": global_mean,
    "GlobalMaxPooling1D": pooling("max"),
    "LayerNormalization": layer_norm,
    "LeakyReLU": leaky_relu,
    "Masking": masking,
    "MaxPooling1D": pooling_steps(windowed_max),
    "Maximum": extreme("maximum"),
    "Minimum": extreme("minimum"),
    "Multiply": multiply,
    "Normalization": normalization,
    "PReLU": prelu,
    "Permute": permute,
    "ReLU": relu,
    "Rescaling": rescaling,
    "Reshape": reshape,
    "SeparableConv1D": separable,
    "Softmax": softmax_layer,
    "Subtract": pair("subtract"),
    "ZeroPadding1D": zeros_around,
    "ops.Absolute": unary("absolute"),
    "ops.Add": pair("add"),
    "ops.Any": any_of,
    "ops.Concatenate": concatenate,
    "ops.Divide": pair("divide"),
    "ops.Exp": unary("exp"),
    "ops.ExpandDims": expand_dims,
    "ops.GetItem": get_item,
    "ops.Log": unary("log"),
    "ops.LogicalOr": pair("logical_or"),
    "ops.Max": reduction("max"),
    "ops.Maximum": pair("maximum"),
    "ops.Mean": reduction("mean"),
    "ops.Min": reduction("min"),
    "ops.Minimum": pair("minimum"),
    "ops.Multiply": pair("multiply"),
    "ops.Negative": unary("negative"),
    "ops.NotEqual": pair("not_equal"),
    "ops.OnesLike": filled(1),
    "ops.Relu": unary("relu"),
    "ops.Sigmoid": unary("sigmoid"),
    "ops.Softmax": softmax,
    "ops.Sqrt": unary("sqrt"),
    "ops.Square": unary("square"),
    "ops.Subtract": pair("subtract"),
    "ops.Sum": reduction("sum"),
    "ops.Tanh": unary("tanh"),
    "ops.TrueDivide": pair("divide"),
    "ops.ZerosLike": filled(0),
}
"""The rule of each supported class of Keras' layers and, with ops. ahead of the name, of its operations."""
READS_ZEROS = ("Conv1D", "DepthwiseConv1D", "SeparableConv1D")
"""The classes that take the result of a ZeroPadding1D."""
ON_FEATURES = {
    *LOOKED_THROUGH,
    *("Activation", "Dense", "ELU", "LayerNormalization", "LeakyReLU", "ReLU", "Rescaling"),
}
"""The classes that compute with the last axis alone, so that a TimeDistributed of one is the same."""
FILLED = {"ops.OnesLike", "ops.ZerosLike"}
"""The operations that have a dtype of their own."""
SCALING = {"ops.Divide", "ops.Multiply", "ops.TrueDivide"}
"""The operations whose factor may be the number of steps."""


def row_of(node: Config) -> str:
    """Returns the name that the row of a layer or operation has in the table, by its configuration.

    >>> row_of({"class_name": "Add", "module": "keras.layers"})
    'Add'
    >>> row_of({"class_name": "Add", "module": "keras.src.ops.numpy", "registered_name": "Add"})
    'ops.Add'
    """
    parts = str(node.get("module") or "").split(".")
    return f"ops.{class_of(node)}" if parts[0] == "keras" and "ops" in parts else class_of(node)
