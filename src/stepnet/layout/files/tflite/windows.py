"""TensorFlow Lite's operators over windows: convolutions and pooling of pictures, of which some have one row.

[batch, 1, steps, features]     the steps of sequences, as Keras' Conv1D makes of them
[batch, steps, rows, features]  steps and features, as of spectrograms
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import shaping
from stepnet.importers.axes import ONE, is_time
from stepnet.importers.convolving import convolve, convolve_transposed, window_of
from stepnet.importers.extending import mode_of, pad_with_copies
from stepnet.importers.grids import convolve_grid, pad_axis, pool_grid
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.layout.files.tflite.call import Rule, TfliteCall

Array = np.ndarray


def usable(x: Placed) -> Placed:
    """Returns the value x unchanged; raises `ModelError` if it is a placeholder, which few operators can
    read, such as steps in reverse order. The message has the placeholder's reason.
    """
    if isinstance(x.value, Unusable):
        raise ModelError(x.value.reason)
    return x


def windows_of(
    call: TfliteCall, sizes: Sequence[int], dilations: tuple[int, ...] = ()
) -> tuple[Window, Window]:
    """Returns the entries that a kernel reads along the rows and the columns of a picture, by the first three
    options of the operator: the padding and both strides.

    sizes: the sizes of the kernel. dilations: the numbers of the options with the dilations of columns and
    rows; empty if the operator has none.
    """
    same = "upper" if call.option(0, "b") == 0 else ""
    strides = [call.option(field, "i", 1) for field in (2, 1)]
    apart = [call.option(field, "i", 1) for field in dilations[::-1]] or [1, 1]
    first, second = (window_of(*each, 0, 0, same) for each in zip(sizes, strides, apart, strict=True))
    return first, second


def convolved(
    x: Placed, kernel: Array, bias: Placed | None, windows: tuple[Window, Window], groups: int
) -> Placed:
    """Convolves pictures [batch, rows, columns, features]. kernel: [rows, columns, in / groups, out]. bias:
    [out], or None. windows: what the kernel reads along rows and columns. groups: the number of groups of
    features that are convolved apart.
    """
    if len(x.axes) == 4 and x.axes[1] == ONE and is_time(x.axes[2]) and len(kernel) == 1:
        weight = constant(kernel[0].transpose(2, 1, 0))
        made = convolve(shaping.swapped(shaping.squeeze(x, [1])), weight, bias, windows[1], groups)
        return shaping.unsqueeze(shaping.swapped(made), [1])
    return convolve_grid(x, kernel, None if bias is None else bias.array, windows, groups)


def bias_of(call: TfliteCall) -> Placed | None:
    """Returns the third operand; None if it is missing."""
    return call.operands[2] if len(call.operands) > 2 else None


def convolution(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's CONV_2D, whose weights are [out, rows, columns, in / groups].

    TFLite writes a dilated convolution as one of steps that SPACE_TO_BATCH_ND has put apart; that is computed
    as the dilated one. Raises `ModelError` if the features do not fit.
    """
    kernel = call.operand(1).array.transpose(1, 2, 3, 0)
    spaced = call.x.value if isinstance(call.x.value, SpacedSteps) else None
    x = usable(call.x) if spaced is None else spaced.source
    inputs = x.sizes[-1]
    if kernel.shape[2] < 1 or inputs % kernel.shape[2]:
        raise ModelError(f"its weights are for {kernel.shape[2]} features, and it reads {inputs}")
    first, second = windows_of(call, kernel.shape[:2], (4, 5))
    if spaced is not None:
        if second != Window(second.size, 1, 0, 1, second.size - 1):
            raise ModelError("it has a stride, a dilation or zeros of its own over steps in blocks")
        second = window_of(second.size, 1, spaced.every, 0, 0)
    made = convolved(x, kernel, bias_of(call), (first, second), inputs // kernel.shape[2])
    made = call.activated(made, field=3)
    return made if spaced is None else made.with_value(replace(spaced, source=made))


def depthwise(call: TfliteCall) -> Placed:
    """Computes TFLite's DEPTHWISE_CONV_2D, with weights [1, rows, columns, out]: each feature by itself."""
    kernel = call.operand(1).array.transpose(1, 2, 0, 3)
    windows = windows_of(call, kernel.shape[:2], (5, 6))
    return call.activated(convolved(call.x, kernel, bias_of(call), windows, call.x.sizes[-1]), field=4)


def transposed(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's TRANSPOSE_CONV of pictures of one row, whose columns are steps.

    Its operands are the shape of the result, the weights [out, 1, size, in], the pictures and perhaps a bias.
    Raises `ModelError` for pictures of several rows.
    """
    kernel, x = call.operand(1).array, call.operand(2)
    if len(x.axes) != 4 or x.axes[1] != ONE or not is_time(x.axes[2]) or kernel.shape[1] != 1:
        raise ModelError("a transposed convolution of a model is over steps alone")
    bias = call.operands[3] if len(call.operands) > 3 else None
    stride, size = call.option(1, "i", 1), kernel.shape[2]
    extra = size - stride
    ends = (max(extra, 0) // 2, max(extra, 0) - max(extra, 0) // 2) if call.option(0, "b") == 0 else (0, 0)
    weight = constant(kernel[:, 0].transpose(2, 0, 1))
    made = convolve_transposed(
        *(shaping.swapped(shaping.squeeze(x, [1])), weight, bias), *(stride, 1, ends, max(-extra, 0), 1)
    )
    return call.activated(shaping.unsqueeze(shaping.swapped(made), [1]), field=3)


def pooling(how: str) -> Rule:
    """Makes the rule of TFLite's MAX_POOL_2D and AVERAGE_POOL_2D. how: "max" or "mean"."""

    def rule(call: TfliteCall) -> Placed:
        """Pools windows of rows and columns of a picture."""
        sizes = [call.option(field, "i", 1) for field in (4, 3)]
        return call.activated(pool_grid(call.x, windows_of(call, sizes), how), field=5)

    return rule


def padded(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's PAD and PADV2: adds entries before and after the operand along each
    axis, as many as the second operand says. All are one number, the third operand or 0.
    """
    x, pads = call.x, call.operand(1).array
    number = call.operand(2).array.item() if len(call.operands) > 2 else 0
    for axis, (before, after) in enumerate(pads.tolist()):
        x = pad_axis(x, axis, before, after, number) if before or after else x
    return x


def mirrored(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's MIRROR_PAD: puts copies of entries before and after the operand along
    each axis, as many as the second operand says, as in a mirror at the first and the last entry, or ahead of
    the first and behind the last one.
    """
    ends = [(axis, *both) for axis, both in enumerate(call.operand(1).array.tolist())]
    return pad_with_copies(call.x, ends, mode_of(call.option(0, "b"), MIRRORS))


MIRRORS = {0: "reflect", 1: "symmetric"}
"""The modes of MIRROR_PAD, by number, with their names in `numpy.pad`."""


@dataclass(frozen=True)
class SpacedSteps(Unusable):
    """Placeholder for steps in blocks, as a convolution with a dilation is written: step 0, 2, 4 ... as a
    sequence, and step 1, 3, 5 ... as another one.

    source: the value in the order of the steps. every: the number of blocks. added: the number of zeros added
    at the end so that blocks have equal lengths; they are removed from the result.
    """

    source: Placed
    every: int
    added: int


def spaced(call: TfliteCall) -> Placed:
    """Returns the placeholder for the result of SPACE_TO_BATCH_ND over steps, which TensorFlow writes ahead
    of a convolution with a dilation: each n-th step in a block of its own. Only a convolution reads it.
    Raises `ModelError` for blocks of another axis.
    """
    (every,), ((before, behind),) = call.numbers(1), call.operand(2).array.tolist()
    if before or every < 1 or len(call.x.axes) < 2 or not is_time(call.x.axes[1]):
        raise ModelError("it makes blocks of another axis than the steps, or puts zeros ahead of them")
    reason = "steps are in blocks, which only a convolution may read"
    return call.x.with_value(SpacedSteps(reason, call.x, every, behind))


def in_order(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's BATCH_TO_SPACE_ND, the inverse of SPACE_TO_BATCH_ND: the value whose
    steps are in order, which the placeholder has; raises `ModelError` for another operand.
    """
    value, (every,), ((before, behind),) = call.x.value, call.numbers(1), call.operand(2).array.tolist()
    if not isinstance(value, SpacedSteps) or (value.every, 0, value.added) != (every, before, behind):
        raise ModelError("it puts other blocks in order than a SPACE_TO_BATCH_ND made of steps")
    return value.source


WINDOWS: Mapping[str, Rule] = {
    "AVERAGE_POOL_2D": pooling("mean"),
    "BATCH_TO_SPACE_ND": in_order,
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": depthwise,
    "MAX_POOL_2D": pooling("max"),
    "PAD": padded,
    "PADV2": padded,
    "MIRROR_PAD": mirrored,
    "SPACE_TO_BATCH_ND": spaced,
    "TRANSPOSE_CONV": transposed,
}
"""The rule of each operator over windows."""
