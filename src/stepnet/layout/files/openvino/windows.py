"""OpenVINO's operators over windows: convolutions and pooling of [batch, features, places ...]."""

from collections.abc import Mapping

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import shaping
from stepnet.importers.axes import is_time
from stepnet.importers.convolving import convolve, convolve_transposed, window_of
from stepnet.importers.extending import mode_of, pad_with_copies
from stepnet.importers.grids import convolve_grid, moved, pad_axis, pool_axis
from stepnet.importers.placed import Placed
from stepnet.layout.files.openvino.call import OpenVinoCall, Rule


def grouped_convolution(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's GroupConvolution, whose weight has the groups as its first axis."""
    weight = call.operand(1)
    groups, out, into, *sizes = weight.features
    return convolved(call, shaping.reshape(weight, [groups * out, into, *sizes]), groups)


def convolved(call: OpenVinoCall, weight: Placed, groups: int) -> Placed:
    """Computes the convolution of the first operand with a weight [out, in / groups, sizes ...], by the
    layer's strides, dilations and pads. groups: the number of groups of features that are convolved apart.
    """
    x, sizes = call.x, weight.features[2:]
    windows = windows_of(call, sizes)
    if len(sizes) == 1 and is_time(x.axes[-1]):
        return convolve(x, weight, None, windows[0], groups)
    kernel = np.moveaxis(weight.array, (0, 1), (-1, -2))
    last = len(x.axes) - 1
    return moved(convolve_grid(moved(x, 1, last), kernel, None, windows, groups), last, 1)


def transposed(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's ConvolutionBackpropData over the steps of sequences: its weight is
    [in, out, size]. Raises `ModelError` for one over other axes, or with pads by another rule.
    """
    weight = call.operand(1)
    if len(weight.axes) != 3 or len(call.operands) > 2 or call.text("auto_pad", "explicit") != "explicit":
        raise ModelError("a transposed convolution of a model is over steps alone, with pads of its own")
    pads = call.whole("pads_begin", 0), call.whole("pads_end", 0)
    stride, dilation = call.whole("strides", 1), call.whole("dilations", 1)
    further = call.whole("output_padding", 0)
    return convolve_transposed(call.x, weight, None, stride, dilation, pads, further, 1)


def windows_of(call: OpenVinoCall, sizes: tuple[int, ...]) -> list[Window]:
    """Returns the entries that a kernel of these sizes reads along each axis that it goes over, by the
    attributes "strides", "dilations", "pads_begin", "pads_end" and "auto_pad" of an operator. Raises
    `ModelError` for an unknown auto_pad.
    """
    count, kind = len(sizes), call.text("auto_pad", "explicit")
    strides, dilations = call.several("strides", count, 1), call.several("dilations", count, 1)
    own = [*zip(sizes, strides, dilations, strict=True)]
    if kind in ("same_upper", "same_lower"):
        return [window_of(*each, 0, 0, kind.removeprefix("same_")) for each in own]
    if kind not in ("explicit", "notset", "valid"):
        raise ModelError(f"its auto_pad {short_repr(kind)} is not supported")
    before, after = ([0] * count if kind == "valid" else call.several(name, count, 0) for name in PADS)
    return [window_of(*each, *pads) for each, pads in zip(own, zip(before, after, strict=True), strict=True)]


PADS = ("pads_begin", "pads_end")


def pooling(how: str) -> Rule:
    """Makes the rule of OpenVINO's MaxPool and AvgPool. how: "max" or "mean"."""

    def rule(call: OpenVinoCall) -> Placed:
        """Computes OpenVINO's MaxPool or AvgPool (`how`) over all axes behind sequences and features."""
        if call.text("rounding_type", "floor") != "floor":
            raise ModelError(f"its rounding_type is {short_repr(call.text('rounding_type'))}")
        x, sizes = call.x, tuple(call.wholes("kernel"))
        counts = how == "mean" and not call.flag("exclude-pad")
        for axis, window in enumerate(windows_of(call, sizes), 2):
            x = pool_axis(x, axis, window, how, counts)
        return x

    return rule


COPIES = {mode: mode for mode in ("reflect", "edge", "symmetric")}
"""The modes of Pad that put copies of entries around an axis, with their names in `numpy.pad`."""


def padded(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Pad: adds entries before and after the operand along each axis, as
    many as the second and third operands say. All are one number, the fourth operand or 0, or copies of
    entries, by its mode.
    """
    mode = call.text("pad_mode", "constant")
    if mode != "constant":
        ends = [*zip(range(len(call.x.axes)), call.constants(1), call.constants(2), strict=True)]
        return pad_with_copies(call.x, ends, mode_of(mode, COPIES))
    number = call.operand(3).array.item() if len(call.operands) > 3 else 0
    x = call.x
    for axis, (before, after) in enumerate(zip(call.constants(1), call.constants(2), strict=True)):
        x = pad_axis(x, axis, before, after, number) if before or after else x
    return x


WINDOWS: Mapping[str, Rule] = {
    "AvgPool": pooling("mean"),
    "Convolution": lambda call: convolved(call, call.operand(1), 1),
    "ConvolutionBackpropData": transposed,
    "GroupConvolution": grouped_convolution,
    "MaxPool": pooling("max"),
    "Pad": padded,
}
"""The rule of each operator over windows."""
