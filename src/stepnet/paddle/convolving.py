"""Paddle's operators over windows of places, and those of channels: convolutions, pooling, padding, norms.

Paddle writes a Conv1D as an unsqueeze, a conv2d over an axis of size one and the steps, and a squeeze:

    [sequences, channels, 1, steps]   ->   a convolution over the steps

A convolution over the steps and features, as over the height of lines of text, is one over a grid.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.errors import ModelError
from stepnet.importers import convolving, pointwise, reductions, selecting
from stepnet.importers.axes import ONE, is_feature, is_time, text_of
from stepnet.importers.extending import mode_of, pad_with_copies
from stepnet.importers.grids import convolve_channels, pool_channels
from stepnet.importers.placed import Placed, constant
from stepnet.model.convolution import windowed_max, windowed_mean
from stepnet.paddle.call import PaddleCall

Rule = Callable[[PaddleCall], Any]
POOLINGS = {"max": "max", "avg": "mean"}
PLACES = 2
"""The axes of places of conv2d and pool2d, behind those of sequences and channels."""


def numbers_per_place(call: PaddleCall, name: str, default: int, tensor: str = "") -> list[int]:
    """Returns an attribute with a number for each axis of places, or one for all."""
    found = call.wholes(name, tensor) or [default]
    return found * PLACES if len(found) == 1 else found


def windows_of(
    call: PaddleCall, sizes: Sequence[int], around: Sequence[tuple[int, int]] = ((0, 0),) * PLACES
) -> list[Window]:
    """Returns, for each axis that a convolution or pooling goes over, its window (which entries the kernel
    reads), by its attributes strides, dilations and paddings.

    sizes: the sizes of its kernel. around: for each axis, the numbers of zeros that an earlier operation put
    ahead of it and behind it.
    """
    strides, dilations = numbers_per_place(call, "strides", 1), numbers_per_place(call, "dilations", 1)
    algorithm = call.attribute("padding_algorithm", "EXPLICIT")
    pads = call.wholes("paddings") or [0]
    pads = pads * PLACES if len(pads) == 1 else pads
    pairs = [*zip(pads[::2], pads[1::2], strict=False)] if len(pads) == 2 * PLACES else [(n, n) for n in pads]
    if algorithm == "VALID":
        pairs = [(0, 0)] * PLACES
    same = "upper" if algorithm == "SAME" else ""
    if same:  # Paddle's UpdatePaddingAndDilation leaves the dilation out
        dilations = [1] * PLACES
    if same and any(map(any, around)):
        raise ModelError("its zeros follow from the length, and a pad3d put others around it")
    if not all(len(each) == PLACES for each in (sizes, strides, dilations, pairs)):
        raise ModelError(f"its strides, paddings and dilations are not of {PLACES} axes")
    return [
        convolving.window_of(
            size, stride, dilation, *((0, 0) if same else (own[0] + before, own[1] + after)), same
        )
        for size, stride, dilation, own, (before, after) in zip(
            sizes, strides, dilations, pairs, around, strict=True
        )
    ]


def checked_channels_first(call: PaddleCall) -> None:
    """Raises `ModelError` for an operation whose channels are the last axis."""
    layout = call.attribute("data_format", call.attribute("data_layout", "NCHW"))
    if layout not in ("NCHW", "NCL", "NCDHW", "AnyLayout"):
        raise ModelError(f"its data_format is {layout!r}: channels are to be the second axis")


def only_steps(x: Placed, windows: Sequence[Window]) -> int | None:
    """Returns the number of the axis of size one beside the steps in a value [sequences, channels, ...], if
    the windows along it leave it as it is, so that the operation is over steps alone; else None.
    """
    for place, window in enumerate(windows):
        is_same = (window.size, window.before, window.stride, window.lost) == (1, 0, 1, 0)
        if x.axes[PLACES + place] == ONE and is_time(x.axes[-1 - place]) and is_same:
            return PLACES + place
    return None


def without(x: Placed, axis: int) -> Placed:
    """Returns a value without an axis of size one."""
    return x.shaped((*x.axes[:axis], *x.axes[axis + 1 :]))


def with_one(x: Placed, axis: int) -> Placed:
    """Returns a value with an axis of size one at a place."""
    return x.shaped((*x.axes[:axis], ONE, *x.axes[axis:]))


def checked_places(x: Placed) -> Placed:
    """Returns a value [sequences, channels, height, width] unchanged; raises `ModelError` for other axes."""
    if len(x.axes) != PLACES + 2 or not is_feature(x.axes[1]):
        raise ModelError(f"it is over the last two axes of a tensor of four, not of {text_of(x.axes)}")
    return x


def convolution(call: PaddleCall) -> dict[str, Placed]:
    """Computes the result of Paddle's operators conv2d and depthwise_conv2d, over the steps alone, or over
    them and an axis of features.
    """
    checked_channels_first(call)
    given, weight, groups = call.operand("Input"), call.operand("Filter").array, call.attribute("groups", 1)
    zeros = (
        given.value
        if isinstance(given.value, convolving.ZerosAround)
        else convolving.ZerosAround("", given, 0, 0)
    )
    x = checked_places(zeros.source)
    around = [(zeros.before, zeros.after) if is_time(axis) else (0, 0) for axis in x.axes[PLACES:]]
    windows = windows_of(call, weight.shape[2:], around)
    one = only_steps(x, windows)
    if one is not None:
        kernel = constant(weight.squeeze(one))
        made = convolving.convolve(
            without(x, one), kernel, None, windows[PLACES + 1 - one], groups, call.padded
        )
        return {"Output": with_one(made, one)}
    if call.padded:
        raise ModelError("it is over steps and features, in a program with lengths")
    return {"Output": convolve_channels(x, weight, None, windows, groups)}


def transposed_convolution(call: PaddleCall) -> dict[str, Placed]:
    """Computes the result of conv2d_transpose or depthwise_conv2d_transpose, over the steps of sequences. The
    result is by slot (the name of the output).
    """
    checked_channels_first(call)
    x, weight = checked_places(call.operand("Input")), call.operand("Filter").array
    strides, dilations = numbers_per_place(call, "strides", 1), numbers_per_place(call, "dilations", 1)
    more, pads = numbers_per_place(call, "output_padding", 0), call.wholes("paddings") or [0]
    pads = pads * PLACES if len(pads) == 1 else pads
    pads = [number for number in pads for _ in range(2)] if len(pads) == PLACES else pads
    if (
        call.wholes("output_size", "OutputSize")
        or call.attribute("padding_algorithm", "EXPLICIT") != "EXPLICIT"
    ):
        raise ModelError("its zeros follow from the number of results: state its paddings")
    place = next((place for place in range(PLACES) if x.axes[PLACES + place] == ONE), 0)
    own = (weight.shape[2 + place], strides[place], *pads[2 * place : 2 * place + 2], more[place])
    if own != (1, 1, 0, 0, 0) or not is_time(x.axes[3 - place]):
        raise ModelError(
            f"a transposed convolution is over the steps alone, not over axes of {text_of(x.axes)}"
        )
    other, kernel = 1 - place, constant(weight.squeeze(2 + place))
    made = convolving.convolve_transposed(
        without(x, PLACES + place),
        kernel,
        None,
        strides[other],
        dilations[other],
        (pads[2 * other], pads[2 * other + 1]),
        more[other],
        call.attribute("groups", 1),
        call.padded,
    )
    return {"Output": with_one(made, PLACES + place)}


def pooling(call: PaddleCall) -> Placed:
    """Computes the result of pool2d: the maximum or mean over windows of places, or over all places."""
    checked_channels_first(call)
    x, how = checked_places(call.operand()), POOLINGS.get(call.attribute("pooling_type", ""))
    sizes = numbers_per_place(call, "ksize", 1, "KSize")
    if how is None or call.attribute("ceil_mode", False):
        raise ModelError("its pooling_type is not max or avg, or its ceil_mode is set")
    if call.attribute("global_pooling", False) or call.attribute("adaptive", False):
        over = [place for place, size in zip((2, 3), sizes, strict=True) if x.axes[place] != ONE or size != 1]
        if not call.attribute("global_pooling", False) and sizes != [1, 1]:
            raise ModelError(f"its adaptive pooling gives {sizes} places: a model pools all steps to one")
        return reductions.reduce(x, over, how, True, padded=call.padded) if over else x
    windows = windows_of(call, sizes)
    one = only_steps(x, windows)
    if one is not None:
        counts = not call.attribute("exclusive", True)
        window = windows[PLACES + 1 - one]
        function = windowed_max if how == "max" else partial(windowed_mean, counts_zeros=counts)
        return with_one(convolving.pool(without(x, one), partial(function, window=window), call.padded), one)
    if call.padded or not call.attribute("exclusive", True):
        raise ModelError("it pools steps and features, with zeros that count or in a program with lengths")
    return pool_channels(x, windows, how)


def padding(call: PaddleCall) -> Placed:
    """Computes the result of Paddle's operator pad3d: puts numbers around features, zeros around steps, which
    only a convolution reads, or copies of either.
    """
    x, pads = call.operand(), call.wholes("paddings", "Paddings")
    number = call.attribute("pad_value", call.attribute("value", 0.0))
    mode = call.attribute("mode", "constant")
    if len(pads) != 6 or len(x.axes) != 5:
        raise ModelError("it pads another tensor than one of five axes")
    checked_channels_first(call)
    ends = [(axis, pads[8 - 2 * axis], pads[9 - 2 * axis]) for axis in (2, 3, 4)]
    if mode != "constant":
        return pad_with_copies(x, ends, mode_of(mode, COPIES), call.padded)
    return selecting.pad(x, ends, number)


COPIES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""The modes of pad3d that put copies of entries around an axis, with their names in `numpy.pad`."""


# ---- channels ----------------------------------------------------------------------------------------------


def batch_norm(call: PaddleCall) -> dict[str, Placed]:
    """Computes batch_norm in inference, as output "Y": each channel is normalised by constants."""
    checked_channels_first(call)
    if not (call.attribute("is_test", False) or call.attribute("use_global_stats", False)):
        raise ModelError("it takes statistics of the batch: save the program for inference")
    slots = ("Scale", "Bias", "Mean", "Variance")
    scale, shift, mean, variance = (call.operand(slot).array for slot in slots)
    epsilon = call.attribute("epsilon", 1e-5)
    return {"Y": reductions.batch_norm(call.operand(), 1, scale, shift, mean, variance, epsilon)}


def group_norm(call: PaddleCall) -> dict[str, Placed]:
    """Computes the result of group_norm, under its name "Y": groups of channels normalised over all steps."""
    checked_channels_first(call)
    given = (call.optional(slot) for slot in ("Scale", "Bias"))
    arrays = (None if each is None else each.array for each in given)
    groups, epsilon = call.attribute("groups", 1), call.attribute("epsilon", 1e-5)
    return {"Y": reductions.group_norm(call.operand(), groups, epsilon, *arrays, padded=call.padded)}


def prelu(call: PaddleCall) -> Placed:
    """Computes prelu: x where it is positive, else x times a slope, of all numbers or per channel."""
    checked_channels_first(call)
    x, slope, mode = call.operand(), call.operand("Alpha").array, call.attribute("mode", "all")
    if mode not in ("all", "channel"):
        raise ModelError(f"its mode is {mode!r}: a slope is of all numbers or of a channel")
    factor = reductions.per_channel(x, slope) if mode == "channel" else constant(slope.reshape(()))
    return pointwise.elementwise("leaky_relu", x, factor)


def limited(call: PaddleCall) -> Placed:
    """Computes the result of brelu, which PIR calls hardtanh: the operand limited to two numbers."""
    bounds = (np.float32(call.attribute(name, usual)) for name, usual in (("t_min", 0.0), ("t_max", 24.0)))
    return pointwise.clip(call.operand(), *bounds)


CONVOLUTIONS = ("conv2d", "depthwise_conv2d")
CONVOLVING: Mapping[str, Rule] = {
    "batch_norm": batch_norm,
    "brelu": limited,
    "conv2d": convolution,
    "conv2d_transpose": transposed_convolution,
    "depthwise_conv2d": convolution,
    "depthwise_conv2d_transpose": transposed_convolution,
    "group_norm": group_norm,
    "pad3d": padding,
    "pool2d": pooling,
    "prelu": prelu,
}
"""The rules of these operators."""
