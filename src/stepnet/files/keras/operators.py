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
from dataclasses import dataclass
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
    """

    config: Config
    operands: tuple[Placed, ...]
    stored: Mapping[str, Array]
    keys: tuple[Any, ...] = ()
    version: str = "3"

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

    def arrays(self, *names: str) -> list[Array]:
        """Returns the layer's arrays: those of these names, or all in order where the file has numbers;
        raises `ModelError` if they are others.
        """
        numbered = all(name.isdecimal() for name in self.stored)
        expected = [str(number) for number in range(len(names))] if numbered else names
        if {*expected} != {*self.stored}:
            raise ModelError(f"its arrays are {', '.join(self.stored) or 'none'}, not {', '.join(names)}")
        return [self.stored[name] for name in expected]

    def axis(self, default: int = -1) -> int:
        """Returns the axis of the operand that the setting "axis" states, a number or a list of one."""
        return self.x.axis(self.wholes("axis", 1, default)[0])


Rule = Callable[[KerasCall], Placed]


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
    return pointwise.elementwise("leaky_relu", call.x, constant(call.arrays("alpha")[0]))


def softmax(call: KerasCall) -> Placed:
    """Computes the result of Softmax along an axis: features, or the steps of each sequence."""
    return reductions.softmax(call.x, call.axis())


# ---- layers with arrays ------------------------------------------------------------------------------------


def with_bias(call: KerasCall, name: str) -> tuple[Array, Array | None]:
    """Returns the array `name` of a layer, and its bias; None if it has none."""
    arrays = call.arrays(name, *(["bias"] if call.setting("use_bias", True) else []))
    return arrays[0], arrays[1] if len(arrays) > 1 else None


def dense(call: KerasCall) -> Placed:
    """Computes the result of Dense: a product with the kernel, perhaps a bias, and the activation."""
    kernel, bias = with_bias(call, "kernel")
    result = matmul(call.x, constant(kernel), padded=False)
    return activated(call, result if bias is None else pointwise.elementwise("add", result, constant(bias)))


def embedding(call: KerasCall) -> Placed:
    """Computes the result of Embedding: rows of a table at the whole numbers of the operand."""
    call.only("mask_zero", False)
    x, (rows_of_table,) = call.x, call.arrays("embeddings")
    whole = pointwise.dtype_of(x).kind in "iu"
    return selecting.take_computed(constant(rows_of_table), x if whole else pointwise.cast(x, "int64"))


def convolution(call: KerasCall) -> Placed:
    """Computes the result of Conv1D over the steps of sequences."""
    kernel, bias = with_bias(call, "kernel")
    return activated(call, convolved(call, kernel, bias, call.setting("groups", 1)))


def depthwise(call: KerasCall) -> Placed:
    """Computes the result of DepthwiseConv1D, which convolves each feature by itself."""
    name = "depthwise_kernel" if "depthwise_kernel" in call.stored else "kernel"
    kernel, bias = with_bias(call, name)
    return activated(call, convolved(call, *by_feature(kernel, bias)))


def separable(call: KerasCall) -> Placed:
    """Computes the result of SeparableConv1D: a convolution of each feature, and a product."""
    own = ["bias"] if call.setting("use_bias", True) else []
    kernel, across, *bias = call.arrays("depthwise_kernel", "pointwise_kernel", *own)
    mixed = matmul(convolved(call, *by_feature(kernel)), constant(across[0]), padded=False)
    return activated(call, pointwise.elementwise("add", mixed, constant(bias[0])) if bias else mixed)


def by_feature(kernel: Array, bias: Array | None = None) -> tuple[Array, Array | None, int]:
    """Returns the arguments of `convolved` for a kernel [size, in, own] that convolves each feature."""
    size, inputs, own = kernel.shape
    return kernel.reshape(size, 1, inputs * own), bias, inputs


def convolved(call: KerasCall, kernel: Array, bias: Array | None, groups: int) -> Placed:
    """Convolves the operand by the settings of a layer.

    kernel, bias: arrays [size, in / groups, out] and [out]. groups: the number of groups of features.
    """
    call.only("data_format", "channels_last", None)
    zeros = call.x.value if isinstance(call.x.value, ZerosAround) else ZerosAround("", call.x, 0, 0)
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
    kernel, bias = with_bias(call, "kernel")
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
    before, after = call.wholes("padding", 2, 1)
    return with_zeros(call.x, before, after)


def layer_norm(call: KerasCall) -> Placed:
    """Computes the result of LayerNormalization over the last axis."""
    call.only("rms_scaling", False)
    names = [name for name, use in (("gamma", "scale"), ("beta", "center")) if call.setting(use, True)]
    arrays = dict(zip(names, map(constant, call.arrays(*names)), strict=True))
    last = len(call.x.axes) - 1
    if call.axis() != last:
        raise ModelError("it normalises over another axis than the last")
    epsilon = float(call.setting("epsilon", 1e-3))
    return reductions.layer_norm(call.x, last, epsilon, arrays.get("gamma"), arrays.get("beta"))


def batch_norm(call: KerasCall) -> Placed:
    """Computes the result of BatchNormalization in use, by its moving mean and variance."""
    own = [name for name, use in (("gamma", "scale"), ("beta", "center")) if call.setting(use, True)]
    names = (*own, "moving_mean", "moving_variance")
    arrays = dict(zip(names, call.arrays(*names), strict=True))
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
        mean, variance, _ = call.arrays("mean", "variance", "count")
    else:
        mean, variance = (numbers(value) for value in stated)
    deviation = np.maximum(np.sqrt(variance), np.float32(LEAST))
    centred = pointwise.elementwise("subtract", call.x, constant(mean.ravel()))
    return pointwise.elementwise("divide", centred, constant(deviation.ravel()))


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
    "GlobalAveragePooling1D": pooling("mean"),
    "GlobalMaxPooling1D": pooling("max"),
    "LayerNormalization": layer_norm,
    "LeakyReLU": leaky_relu,
    "MaxPooling1D": pooling_steps(windowed_max),
    "Maximum": folded("maximum"),
    "Minimum": folded("minimum"),
    "Multiply": folded("multiply"),
    "Normalization": normalization,
    "PReLU": prelu,
    "Permute": permute,
    "ReLU": relu,
    "Rescaling": rescaling,
    "Reshape": reshape,
    "SeparableConv1D": separable,
    "Softmax": softmax,
    "Subtract": pair("subtract"),
    "ZeroPadding1D": zeros_around,
    "ops.Absolute": unary("absolute"),
    "ops.Add": pair("add"),
    "ops.Concatenate": concatenate,
    "ops.Divide": pair("divide"),
    "ops.Exp": unary("exp"),
    "ops.GetItem": get_item,
    "ops.Log": unary("log"),
    "ops.Max": reduction("max"),
    "ops.Maximum": pair("maximum"),
    "ops.Mean": reduction("mean"),
    "ops.Min": reduction("min"),
    "ops.Minimum": pair("minimum"),
    "ops.Multiply": pair("multiply"),
    "ops.Negative": unary("negative"),
    "ops.Relu": unary("relu"),
    "ops.Sigmoid": unary("sigmoid"),
    "ops.Softmax": softmax,
    "ops.Sqrt": unary("sqrt"),
    "ops.Square": unary("square"),
    "ops.Subtract": pair("subtract"),
    "ops.Sum": reduction("sum"),
    "ops.Tanh": unary("tanh"),
    "ops.TrueDivide": pair("divide"),
}
"""The rule of each supported class of Keras' layers and, with ops. ahead of the name, of its operations."""
READS_ZEROS = ("Conv1D", "DepthwiseConv1D", "SeparableConv1D")
"""The classes that take the result of a ZeroPadding1D."""
ON_FEATURES = {
    *LOOKED_THROUGH,
    *("Activation", "Dense", "ELU", "LayerNormalization", "LeakyReLU", "ReLU", "Rescaling"),
}
"""The classes that compute with the last axis alone, so that a TimeDistributed of one is the same."""
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
