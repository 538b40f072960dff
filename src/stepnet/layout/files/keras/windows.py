"""Keras' layers over windows: convolutions, pooling, and layers that add, repeat or leave steps out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, selecting, shaping
from stepnet.importers.axes import is_feature
from stepnet.importers.convolving import (
    ZerosAround,
    convolve,
    convolve_transposed,
    pool_adaptively,
    repeated,
    window_of,
)
from stepnet.importers.grids import convolve_grid, pool_grid
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.layout.files.keras.activations import activated
from stepnet.layout.files.keras.call import KerasCall, Rule
from stepnet.layout.files.keras.nodes import rows
from stepnet.layout.files.keras.rules import with_bias

Array = np.ndarray


def convolution(places: int) -> Rule:
    """Makes the rule of Conv1D and Conv2D. places: the number of axes that the kernel goes over."""

    def rule(call: KerasCall) -> Placed:
        """Convolves the operand over the axes after that of the sequences, and applies the activation; raises
        `ModelError` for groups that do not divide the features.
        """
        sizes, (filters,) = call.wholes("kernel_size", places), call.wholes("filters", 1)
        inputs, groups = features_read(call), call.setting("groups", 1)
        if groups < 1 or inputs % groups or filters % groups:
            raise ModelError(f"its {groups} groups do not divide {inputs} features and {filters} filters")
        (kernel,), bias = with_bias(call, {"kernel": (*sizes, inputs // groups, filters)}, filters)
        return activated(call, convolved(call, kernel, bias, groups))

    return rule


def depthwise(places: int) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of DepthwiseConv1D and DepthwiseConv2D, which
    convolve each feature by itself.

    places: the number of axes that the kernel goes over.
    """

    def rule(call: KerasCall) -> Placed:
        """Computes a depthwise convolution of Keras: of each feature over the axes after the sequences."""
        name = "depthwise_kernel" if "depthwise_kernel" in call.stored else "kernel"
        shape = by_feature_shape(call, places)
        (kernel,), bias = with_bias(call, {name: shape}, shape[-2] * shape[-1])
        return activated(call, convolved(call, *by_feature(kernel, bias)))

    return rule


def separable(places: int) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of SeparableConv1D and SeparableConv2D: a
    convolution of each feature, and a product.

    places: the number of axes that the kernel goes over.
    """

    def rule(call: KerasCall) -> Placed:
        """Computes a separable convolution of Keras: convolves each feature over the axes after that of the
        sequences, and mixes the features.
        """
        (filters,), shape = call.wholes("filters", 1), by_feature_shape(call, places)
        across_shape = (*[1] * places, shape[-2] * shape[-1], filters)
        shapes = {"depthwise_kernel": shape, "pointwise_kernel": across_shape}
        (kernel, across), bias = with_bias(call, shapes, filters)
        matrix = constant(across.reshape(across_shape[-2:]))
        mixed = matmul(convolved(call, *by_feature(kernel)), matrix, padded=False)
        return activated(call, mixed if bias is None else pointwise.elementwise("add", mixed, constant(bias)))

    return rule


def features_read(call: KerasCall) -> int:
    """Returns the number of features that a convolution reads, perhaps behind a ZeroPadding1D."""
    return replace(call, operands=(zeros_of(call.x).source,)).width()


def by_feature_shape(call: KerasCall, places: int) -> tuple[int, ...]:
    """Returns the shape of a kernel [sizes ..., in, own] that convolves each feature."""
    (own,) = call.wholes("depth_multiplier", 1, 1)
    return (*call.wholes("kernel_size", places), features_read(call), own)


def zeros_of(x: Placed) -> ZerosAround:
    """Returns an operand with the steps of zeros around it, of which there may be none."""
    return x.value if isinstance(x.value, ZerosAround) else ZerosAround("", x, 0, 0)


def by_feature(kernel: Array, bias: Array | None = None) -> tuple[Array, Array | None, int]:
    """Returns the arguments of `convolved` for a kernel [sizes ..., in, own] that convolves each feature."""
    *sizes, inputs, own = kernel.shape
    return kernel.reshape(*sizes, 1, inputs * own), bias, inputs


def convolved(call: KerasCall, kernel: Array, bias: Array | None, groups: int) -> Placed:
    """Convolves the operand by the settings of a layer.

    kernel, bias: arrays [sizes ..., in / groups, out] and [out]. groups: the number of groups of features.
    """
    call.only("data_format", "channels_last", None)
    zeros, sizes = zeros_of(call.x), kernel.shape[:-2]
    x, windows = zeros.source, windows_of(call, sizes, [1] * len(sizes), zeros)
    if len(sizes) > 1 or is_feature(x.axes[1]):
        return convolve_grid(x, kernel, bias, windows, groups)
    weight = constant(kernel.transpose(2, 1, 0))
    own = None if bias is None else constant(bias)
    return shaping.swapped(convolve(shaping.swapped(x), weight, own, windows[0], groups))


def windows_of(
    call: KerasCall, sizes: Sequence[int], strides: Sequence[int], zeros: ZerosAround
) -> list[Window]:
    """Returns the entries that the kernel of a layer reads along each axis, by its settings "strides",
    "dilation_rate" and "padding".

    sizes: the sizes of the kernel. strides: the default for a layer without the setting. zeros: the steps of
    zeros that a ZeroPadding1D put around the operand, along the first of the axes.
    """
    count, around = len(sizes), [(zeros.before, zeros.after), *[(0, 0)] * (len(sizes) - 1)]
    own = strides if call.config.get("strides") is None else call.wholes("strides", count)
    dilations = call.wholes("dilation_rate", count, 1)
    return [window_along(call, *each) for each in zip(sizes, own, dilations, around, strict=True)]


def window_along(call: KerasCall, size: int, stride: int, dilation: int, zeros: tuple[int, int]) -> Window:
    """Returns the entries that a kernel of this size, stride and dilation (the distance of entries) reads
    along one axis, with the zeros around by the setting "padding". Raises `ModelError` for an unknown
    padding.

    zeros: the numbers of zeros that a ZeroPadding1D put before and after the operand along this axis.
    """
    kind, reach = call.setting("padding", "valid"), (size - 1) * dilation
    if kind not in ("valid", "same", "causal"):
        raise ModelError(f"its padding is {short_repr(kind)}: valid, same, causal are supported")
    if kind == "same" and not any(zeros):
        return window_of(size, stride, dilation, 0, 0, "upper")
    if kind == "same" and stride > 1:
        raise ModelError("its zeros follow from the length, and a ZeroPadding1D put others around it")
    own = {"valid": (0, 0), "same": (reach // 2, reach - reach // 2), "causal": (reach, 0)}[kind]
    return window_of(size, stride, dilation, zeros[0] + own[0], zeros[1] + own[1])


def convolution_transposed(call: KerasCall) -> Placed:
    """Computes the result of Keras' Conv1DTranspose over the steps of sequences.

    With the padding "same" Keras cuts results off at both ends, so that there are `stride` for each step;
    with "valid" it keeps all of them. Raises `ModelError` for other paddings, and for a stride beyond a
    kernel with a dilation.
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


def pooling(places: int, how: str) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of a class that pools windows, such as
    MaxPooling1D.

    places: the number of axes that the windows go over. how: "max" or "mean".
    """

    def rule(call: KerasCall) -> Placed:
        """Computes a pooling layer of Keras: "max" or "mean" (`how`) over the axes after the sequences."""
        call.only("data_format", "channels_last", None)
        sizes = call.wholes("pool_size", places, 2)
        return pool_grid(call.x, windows_of(call, sizes, sizes, zeros_of(call.x)), how)

    return rule


def adaptive_pooling(places: int, how: str) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of a class that divides each axis into a number
    of parts and pools each part, such as AdaptiveMaxPooling1D.

    places: the number of axes that are pooled. how: "max" or "mean".
    """

    def rule(call: KerasCall) -> Placed:
        """Computes an adaptive pooling layer of Keras: divides each axis after that of the sequences into
        parts, and pools each part. Raises `ModelError` for too many parts.
        """
        call.only("data_format", "channels_last", None)
        x = call.x
        for axis, count in enumerate(call.wholes("output_size", places), 1):
            if not 0 < count <= MOST_PARTS:
                raise ModelError(f"it pools to {count} parts: 1 to {MOST_PARTS} are supported")
            x = pool_adaptively(x, axis, count, how)
        return x

    return rule


MOST_PARTS = 256
"""The most parts that an adaptive pooling gives, each of which is a pass over the steps."""


def cropped(call: KerasCall) -> Placed:
    """Computes the result of Keras' Cropping1D and Cropping2D: the operand without some entries at both ends
    of each axis, as many as the setting "cropping" says.
    """
    x = call.x
    for axis, (before, after) in enumerate(pairs(call, "cropping"), 1):
        x = selecting.cut(x, axis, before, after)
    return x


def pairs(call: KerasCall, name: str) -> list[list[int]]:
    """Returns a setting of numbers at both ends of each axis: [1, 2] of a layer over one axis, [[1, 2], [0,
    0]] of one over two. Raises `ModelError` for negative ones.
    """
    stated = rows(call.config.get(name))
    several = [replace(call, config={name: each}) for each in stated if isinstance(each, list)]
    found = [each.wholes(name, 2) for each in several] or [call.wholes(name, 2, 1)]
    if min(map(min, found)) < 0 or (several and len(several) != len(stated)):
        raise ModelError(f"its {name} is {short_repr(stated)}")
    return found


def repeated_steps(places: int) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of UpSampling1D and UpSampling2D, which repeat
    each entry. places: the number of axes along which they do.
    """

    def rule(call: KerasCall) -> Placed:
        """Computes upsampling in Keras: repeats each entry of the axes after that of the sequences."""
        call.only("data_format", "channels_last", None)
        call.only("interpolation", "nearest")
        x = call.x
        for axis, size in enumerate(call.wholes("size", places, 2), 1):
            x = repeated(x, axis, size)
        return x

    return rule


def zeros_around(call: KerasCall) -> Placed:
    """Computes the result of Keras' ZeroPadding1D and ZeroPadding2D. Zeros around axes of features are
    written into the value. Steps of zeros are only recorded with the value, because a convolution that
    follows adds them as its own padding.
    """
    call.only("data_format", "channels_last", None)
    pads = [(axis, before, after) for axis, (before, after) in enumerate(pairs(call, "padding"), 1)]
    return selecting.pad(selecting.pad(call.x, pads[1:], 0), pads[:1], 0)
