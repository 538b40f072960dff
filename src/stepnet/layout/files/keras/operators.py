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
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.windows import LARGEST, Lengths, Window, derived_axis
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import ONE, is_time, text_of
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
from stepnet.importers.sizes import STEPS, product
from stepnet.importers.values import repeated_at
from stepnet.layout.files.keras.attention import additive_attention, attention, multi_head_attention
from stepnet.layout.files.keras.call import KerasCall, Rule, Shapes
from stepnet.layout.files.keras.einsum import einsum_dense
from stepnet.layout.files.keras.names import LOOKED_THROUGH
from stepnet.layout.files.keras.nodes import Config, class_of, rows, table
from stepnet.layout.files.keras.normalising import (
    LEAST,
    batch_norm,
    group_norm,
    layer_norm,
    normalization,
    numbers,
    of_length_one,
    rescaling,
    rms_norm,
    unit_norm,
)
from stepnet.model.convolution import windowed_max, windowed_mean

Array = np.ndarray


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
    """Applies the activation that the layer's configuration names to a value; null stands for none."""
    layer = table(call.config.get("activation"))
    if layer and class_of(layer) in ACTIVATION_LAYERS:
        return KERAS[class_of(layer)](replace(call, config=table(layer.get("config")), operands=(x,)))
    name = call.setting("activation", "linear")
    if name == "hard_sigmoid":
        return pointwise.elementwise(name, x, numbers=[SLOPES[call.version], 0.5])
    if name in OVER_FEATURES:
        return OVER_FEATURES[name](x)
    if name not in FUNCTIONS:
        raise ModelError(f"its activation {short_repr(name)} is not supported")
    operator, numbers = FUNCTIONS[name]
    return pointwise.elementwise(operator, x, numbers=numbers)


ACTIVATION_LAYERS = ("ELU", "LeakyReLU", "ReLU", "Softmax")
"""The layers without arrays that an activation may be."""


def gated(x: Placed) -> Placed:
    """Computes one half of the features times the sigmoid of the other half."""
    last, width = len(x.axes) - 1, x.sizes[-1]
    x.feature(last)
    values, gates = (selecting.slice_axis(x, last, at, at + width // 2, 1) for at in (0, width // 2))
    return pointwise.elementwise("multiply", values, pointwise.elementwise("sigmoid", gates))


def mish(x: Placed) -> Placed:
    """Computes x tanh(softplus(x))."""
    grown = pointwise.elementwise("tanh", pointwise.elementwise("softplus", x))
    return pointwise.elementwise("multiply", x, grown)


OVER_FEATURES: Mapping[str, Callable[[Placed], Placed]] = {
    "glu": gated,
    "log_softmax": lambda x: reductions.log_softmax(x, x.axis(-1)),
    "mish": mish,
    "softmax": lambda x: reductions.softmax(x, x.axis(-1)),
}
"""The activations that are no operator of `importers.pointwise`."""


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


def cropped(call: KerasCall) -> Placed:
    """Computes the result of Cropping1D: the steps of each sequence without some at both ends."""
    before, after = call.wholes("cropping", 2, 1)
    if min(before, after) < 0:
        raise ModelError(f"it leaves {before} and {after} steps out")
    window = window_of(before + after + 1, 1, 1, 0, 0)

    def read(x: Traced) -> Traced:
        """Reads of each window the step that stays."""
        return apply("windows", x, **window.attributes)[:, before]

    return shaping.swapped(pool(shaping.swapped(call.x), read))


def repeated_steps(call: KerasCall) -> Placed:
    """Computes the result of UpSampling1D, which repeats each step."""
    (size,), width = call.wholes("size", 1, 2), call.width()
    ones = constant(np.ones((width, 1, size), pointwise.dtype_of(call.x)))
    made = convolve_transposed(shaping.swapped(call.x), ones, None, size, 1, (0, 0), 0, width)
    return shaping.swapped(made)


def zeros_around(call: KerasCall) -> Placed:
    """Returns the placeholder for the result of ZeroPadding1D, which only a convolution reads."""
    call.only("data_format", "channels_last", None)
    before, after = call.wholes("padding", 2, 1)
    return with_zeros(call.x, before, after)


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


def clip(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.clip: the operand between two numbers."""
    bounds = [numbers(call.config.get(name)).item() for name in ("x_min", "x_max")]
    return pointwise.elementwise("clip", call.x, numbers=bounds)


def flip(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.flip over the axes of the configuration; over steps `masks.py` says
    that they are last first now.
    """
    x = call.x
    for axis in map(x.axis, call.wholes("axis", len(rows(call.config.get("axis"))) or 1)):
        if not is_time(x.axes[axis]):
            x = selecting.sliced(x, axis, slice(None, None, -1))
    return x


def reshape_all(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.reshape, whose sizes begin with that of the sequences, -1."""
    target = call.wholes("newshape", max(1, len(rows(call.config.get("newshape")))))
    return shaping.reshape(call.x, [call.x.sizes[0], *target[1:]] if target[0] == -1 else target)


def squeeze(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.squeeze: without axes of size one."""
    return shaping.squeeze(call.x, call.wholes("axis", len(rows(call.config.get("axis"))) or 1))


def transpose(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.transpose: the axes in another order."""
    return shaping.transpose(call.x, call.wholes("axes", len(call.x.axes)))


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


def repeat_vector(call: KerasCall) -> Placed:
    """Computes the result of RepeatVector: a sequence of n steps, each of which is the operand.

    The steps are an axis that is derived from those of the inputs: one of each sequence, n times. A sequence
    without steps has none here either.
    """
    (count,) = call.wholes("n", 1)
    if call.x.letters != "N_":
        raise ModelError(f"it repeats {text_of(call.x.axes)}, which is no vector per sequence")
    if not 0 < count <= LARGEST:
        raise ModelError(f"its n is {count}")
    one = derived_axis(STEPS, Lengths(0, LARGEST))
    axis = (derived_axis(one, Lengths(0, count, multiplies=True)),)
    return shaping.broadcast_to(shaping.unsqueeze(call.x, [1]), (call.x.axes[0], axis, call.x.axes[1]))


def dot(call: KerasCall) -> Placed:
    """Computes the result of Dot: products that are summed along an axis of each operand."""
    if len(call.operands) != 2:
        raise ModelError(f"it is called on {len(call.operands)} tensors, where two are expected")
    axes = [x.axis(axis) for x, axis in zip(call.operands, call.wholes("axes", 2), strict=True)]
    if 0 in axes:
        raise ModelError("it goes over the sequences, which mixes them")
    a, b = call.operands
    if call.setting("normalize", False):
        a, b = (of_length_one(x, [axis], LEAST) for x, axis in zip((a, b), axes, strict=True))
    if max(len(a.axes), len(b.axes)) > 3:
        raise ModelError(f"it is called on {text_of(a.axes)} and {text_of(b.axes)}: at most 3 axes each")
    row, column = len(a.axes) == 2, len(b.axes) == 2
    a = shaping.unsqueeze(a, [1]) if row else a if axes[0] == 2 else shaping.swapped(a)
    b = shaping.unsqueeze(b, [2]) if column else b if axes[1] == 1 else shaping.swapped(b)
    made = matmul(a, b, padded=False)
    return shaping.squeeze(made, [1]) if row else shaping.squeeze(made, [2]) if column else made


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
    "AdditiveAttention": additive_attention,
    "Attention": attention,
    "Average": lambda call: pointwise.mean(*call.several),
    "AveragePooling1D": pooling_steps(partial(windowed_mean, counts_zeros=False)),
    "BatchNormalization": batch_norm,
    "Concatenate": concatenate,
    "Conv1D": convolution,
    "Conv1DTranspose": convolution_transposed,
    "Cropping1D": cropped,
    "Dense": dense,
    "DepthwiseConv1D": depthwise,
    "Dot": dot,
    "ELU": unary("elu", alpha=1.0),
    "EinsumDense": lambda call: activated(call, einsum_dense(call)),
    "Embedding": embedding,
    "Flatten": flatten,
    "GlobalAveragePooling1D": global_mean,
    "GlobalMaxPooling1D": pooling("max"),
    "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm,
    "LeakyReLU": leaky_relu,
    "Masking": masking,
    "MaxPooling1D": pooling_steps(windowed_max),
    "Maximum": extreme("maximum"),
    "Minimum": extreme("minimum"),
    "MultiHeadAttention": multi_head_attention,
    "Multiply": multiply,
    "Normalization": normalization,
    "PReLU": prelu,
    "Permute": permute,
    "RMSNormalization": rms_norm,
    "ReLU": relu,
    "RepeatVector": repeat_vector,
    "Rescaling": rescaling,
    "Reshape": reshape,
    "SeparableConv1D": separable,
    "Softmax": softmax_layer,
    "Subtract": pair("subtract"),
    "UnitNormalization": unit_norm,
    "UpSampling1D": repeated_steps,
    "ZeroPadding1D": zeros_around,
    "ops.Absolute": unary("absolute"),
    "ops.Add": pair("add"),
    "ops.Any": any_of,
    "ops.Ceil": unary("ceil"),
    "ops.Clip": clip,
    "ops.Concatenate": concatenate,
    "ops.Cos": unary("cos"),
    "ops.Divide": pair("divide"),
    "ops.Elu": unary("elu", alpha=1.0),
    "ops.Exp": unary("exp"),
    "ops.ExpandDims": expand_dims,
    "ops.Expm1": unary("expm1"),
    "ops.Flip": flip,
    "ops.Floor": unary("floor"),
    "ops.Gelu": lambda call: pointwise.elementwise(
        "gelu", call.x, numbers=[call.setting("approximate", True)]
    ),
    "ops.GetItem": get_item,
    "ops.LeakyRelu": unary("leaky_relu", negative_slope=0.2),
    "ops.Log": unary("log"),
    "ops.Log1p": unary("log1p"),
    "ops.LogSoftmax": lambda call: reductions.log_softmax(call.x, call.axis()),
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
    "ops.Reshape": reshape_all,
    "ops.Rsqrt": unary("rsqrt"),
    "ops.Selu": lambda call: pointwise.elementwise("selu", call.x, numbers=SELU),
    "ops.Sigmoid": unary("sigmoid"),
    "ops.Sign": unary("sign"),
    "ops.Silu": unary("silu"),
    "ops.Sin": unary("sin"),
    "ops.Softmax": softmax,
    "ops.Softplus": unary("softplus"),
    "ops.Sqrt": unary("sqrt"),
    "ops.Square": unary("square"),
    "ops.Squeeze": squeeze,
    "ops.Subtract": pair("subtract"),
    "ops.Sum": reduction("sum"),
    "ops.Tanh": unary("tanh"),
    "ops.Transpose": transpose,
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

    An .h5 file of Keras 3 does not state modules. There an operation has calls, and no setting of layers.
    """
    parts = str(node.get("module") or "").split(".")
    calls, layer = rows(node.get("inbound_nodes")), {"trainable", "dtype"} & table(node.get("config")).keys()
    is_bare = not node.get("module") and not layer and bool(table(calls[0] if calls else None))
    is_operation = (parts[0] == "keras" and "ops" in parts) or is_bare
    return f"ops.{class_of(node)}" if is_operation else class_of(node)
