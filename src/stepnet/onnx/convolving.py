"""Reads ONNX's convolutions and pooling over the steps of sequences, [batch, features, time]."""

from dataclasses import replace
from functools import partial
from typing import Any

from stepnet.compiler.net.windows import Window
from stepnet.compiler.values.arguments import is_one_of, short_repr
from stepnet.errors import ModelError
from stepnet.importers.axes import is_feature, is_time, text_of
from stepnet.importers.convolving import (
    ZerosAround,
    changed_lengths,
    convolve,
    convolve_transposed,
    pool,
    window_of,
)
from stepnet.importers.grids import convolve_channels, pool_channels
from stepnet.importers.padding import check_idle
from stepnet.importers.placed import Placed, Unusable
from stepnet.model.convolution import windowed_max, windowed_mean
from stepnet.onnx.call import OnnxCall

PLACES = 2
"""The axes of an image: its rows and the steps of a sequence, in any order."""


def conv(call: OnnxCall) -> Placed:
    """Computes the result of a Conv node over the steps of sequences, or, for a weight with four axes, over
    those and one more axis.
    """
    if len(call.operand(1).axes) == 4:
        return conv_image(call, call.operand(1))
    x, weight = call.x, kernel_of(call.operand(1))
    zeros = ZerosAround("", x, 0, 0)
    if isinstance(x.value, ZerosAround):
        zeros, x = x.value, x.value.source
    elif isinstance(x.value, Unusable):
        raise ModelError(x.value.reason)
    window = window_of_kernel(call, weight.features[-1], zeros.before, zeros.after)
    return convolve(x, weight, call.optional(2), window, call.attributes.get("group", 1), call.padded)


def conv_image(call: OnnxCall, weight: Placed) -> Placed:
    """Computes the result of a Conv node over two axes. weight: its weight, with four axes."""
    if isinstance(call.x.value, Unusable):
        raise ModelError(call.x.value.reason)
    windows = [window_of_kernel(of_axis(call, at), weight.features[2 + at]) for at in range(PLACES)]
    groups, bias, channels = call.attributes.get("group", 1), call.optional(2), channels_of(call.x)
    if weight.sizes[1] * groups != channels:
        raise ModelError(
            f"its weight is of {list(weight.sizes)} with group={groups}, and its operand has {channels} "
            "channels"
        )
    for axis, window in enumerate(windows, 2):
        if call.padded and is_time(call.x.axes[axis]):
            if not window.keeps_lengths:
                raise changed_lengths("convolution")
            if window.after:
                check_idle(call.x, "sum", call.padded)
    return convolve_channels(call.x, weight.array, None if bias is None else bias.array, windows, groups)


def channels_of(x: Placed) -> int:
    """Returns the number of channels of an image; raises `ModelError` for a value that is not [sequences,
    channels, rows, steps].
    """
    if len(x.axes) != 2 + PLACES or not is_feature(x.axes[1]):
        raise ModelError(
            f"a convolution over two axes is of [sequences, channels, rows, steps], with rows and steps in "
            f"any order, and not of {text_of(x.axes)}"
        )
    return int(x.sizes[1])


def pool_image(call: OnnxCall, how: str) -> Placed:
    """Computes the result of a pooling node over two axes, which leaves out places outside of the image.

    how: "max" or "mean". Raises `ModelError` in a model with lengths if the number of steps changes.
    """
    windows = [pool_window(of_axis(call, at)) for at in range(PLACES)]
    for axis, window in enumerate(windows, 2):
        if call.padded and is_time(call.x.axes[axis]) and (window.size, window.stride) != (1, 1):
            raise changed_lengths("pooling")
    return pool_channels(call.x, windows, how)


def of_axis(call: OnnxCall, at: int) -> OnnxCall:
    """Returns the call of a node over two axes as one over a single axis: its attributes, such as strides,
    are those of the first (`at` 0) or second (1) axis. Raises `ModelError` for attributes of another number
    of axes.
    """
    counts = {"strides": 2, "dilations": 2, "kernel_shape": 2, "pads": 4}
    stated = {name: count for name, count in counts.items() if call.attributes.get(name) is not None}
    own = {name: of_axes(call, name, (0,) * count)[at::2] for name, count in stated.items()}
    return replace(call, attributes={**call.attributes, **own})


def kernel_of(weight: Placed) -> Placed:
    """Returns the weight of a convolution unchanged; raises `ModelError` unless it has the three axes of a
    convolution over one axis.
    """
    if len(weight.axes) != 3:
        raise ModelError(
            f"its weight has {len(weight.axes)} axes: a convolution of a model is over steps, and a Conv may "
            "be over one more axis"
        )
    return weight


def window_of_kernel(call: OnnxCall, size: int, before: int = 0, after: int = 0) -> Window:
    """Returns the `Window`, which steps the kernel of a convolution or of a pooling reads at each step, by
    the attributes strides, dilations, pads and auto_pad.

    size: the length of the kernel. before, after: the steps of zeros that a Pad node put around the operand
    already.
    """
    (stride,), (dilation,) = of_axes(call, "strides", (1,)), of_axes(call, "dilations", (1,))
    if of_axes(call, "kernel_shape", (size,)) != (size,):
        raise ModelError(f"its kernel_shape is not that of its weight, which has {size} steps")
    auto = auto_pad(call)
    if auto.startswith("SAME") and not (before or after):
        return window_of(size, stride, dilation, 0, 0, auto.removeprefix("SAME_").lower())
    if auto.startswith("SAME"):
        raise ModelError(
            f"its zeros follow from the length by auto_pad={auto}, and a Pad put others around it"
        )
    pads = (0, 0) if auto == "VALID" else of_axes(call, "pads", (0, 0))
    return window_of(size, stride, dilation, before + pads[0], after + pads[1])


def auto_pad(call: OnnxCall) -> str:
    """Returns the attribute auto_pad; raises `ModelError` for a text that ONNX does not have."""
    auto: Any = call.attributes.get("auto_pad", "NOTSET")
    if not is_one_of(auto, ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")):
        raise ModelError(f"its auto_pad is {short_repr(auto)}: NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    return auto


def of_axes(call: OnnxCall, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the attribute `name` of a convolution or pooling with as many whole numbers as the default has,
    or the default if it is missing; raises `ModelError` for others.
    """
    value: Any = call.attributes.get(name)
    if value is None:
        return default
    numbers: tuple[Any, ...] = tuple(value) if type(value) in (list, tuple) else ()
    if len(numbers) != len(default) or not all(isinstance(number, int) for number in numbers):
        raise ModelError(f"its {name} are {short_repr(value)}: there are {len(default)} whole numbers")
    return numbers


def conv_transpose(call: OnnxCall) -> Placed:
    """Computes the result of a ConvTranspose node over the steps of sequences."""
    auto = auto_pad(call)
    if auto.startswith("SAME") or call.attributes.get("output_shape"):
        raise ModelError(
            "its pads follow from the number of results, by auto_pad or output_shape: state them"
        )
    before, after = (0, 0) if auto == "VALID" else of_axes(call, "pads", (0, 0))
    pads = before, after
    (stride,), (dilation,) = of_axes(call, "strides", (1,)), of_axes(call, "dilations", (1,))
    more, groups = call.integer("output_padding", 0), call.attributes.get("group", 1)
    return convolve_transposed(
        call.x,
        kernel_of(call.operand(1)),
        call.optional(2),
        stride,
        dilation,
        pads,
        more,
        groups,
        call.padded,
    )


def max_pool(call: OnnxCall) -> Placed:
    """Computes a MaxPool node over steps, or over steps and one more axis."""
    if len(call.attributes.get("kernel_shape") or ()) == PLACES:
        return pool_image(call, "max")
    return pool(call.x, partial(windowed_max, window=pool_window(call)), call.padded)


def average_pool(call: OnnxCall) -> Placed:
    """Computes the result of an AveragePool node over the steps of sequences, or over those and one more
    axis: the mean of each window.
    """
    counts = bool(call.attributes.get("count_include_pad", 0))
    if len(call.attributes.get("kernel_shape") or ()) == PLACES:
        if counts and any(of_axes(call, "pads", (0,) * 4)):
            raise ModelError("its mean counts zeros around an image (count_include_pad=1): not supported")
        return pool_image(call, "mean")
    return pool(call.x, partial(windowed_mean, window=pool_window(call), counts_zeros=counts), call.padded)


def pool_window(call: OnnxCall) -> Window:
    """Returns the window of a pooling node: its size, stride and the zeros around the sequence; raises
    `ModelError` for one over several axes, or with windows that end beyond the zeros.
    """
    if call.attributes.get("ceil_mode", 0):
        raise ModelError("its ceil_mode is 1, which has windows that end beyond the sequence: it must be 0")
    if call.outputs > 1:
        raise ModelError("it gives the places of the maxima too, which are no steps of a model")
    if call.attributes.get("kernel_shape") is None:
        raise ModelError("it has no kernel_shape")
    (size,) = of_axes(call, "kernel_shape", (1,))
    window = window_of_kernel(call, size)
    if not window.same and max(window.before, window.reach - window.before - window.lost) > window.reach:
        raise ModelError(f"its pads are beyond its kernel of {size}, so that some windows have no step")
    return window
