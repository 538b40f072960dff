"""Computes convolutions and maxima over images whose columns are the steps of a sequence.

    [sequences, channels, rows, steps]   or   [sequences, channels, steps, rows]

The rows are a feature. Along it, windows are slices, one for each of their entries; along the steps they are
those of each sequence.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers.axes import BATCH, is_feature, is_time, text_of
from stepnet.importers.convolving import changed_lengths
from stepnet.importers.padding import check_idle
from stepnet.importers.placed import Placed
from stepnet.importers.values import check_room, part_of, repeated_at, reshaped, transposed
from stepnet.model.convolution import lowest, windowed_max, windows_of

# NumPy's functions return values of a net for such arguments, which its type stubs do not express.
numpy: Any = np
Windows = Sequence[Window]
"""The windows along the third and the fourth axis of an image."""


def convolve_image(
    x: Placed, weight: Placed, bias: Placed | None, windows: Windows, padded: bool = False
) -> Placed:
    """Convolves images over their rows and over the steps of each sequence.

    weight: a parameter [out, in, kernel, kernel], with the axes of the kernel in the order of those of the
    image. bias: a parameter [out]; None for none. padded: whether the model has padding.
    """
    value, at = image(x)
    steps, rows = windows[at], windows[1 - at]
    if padded and not steps.keeps_lengths:
        raise changed_lengths("convolution")
    if steps.after:
        check_idle(x, "sum", padded)
    kernel = weight.array if at == 1 else weight.array.swapaxes(2, 3)
    outputs, inputs, high, _ = kernel.shape
    if inputs != x.features[0]:
        raise ModelError(
            f"its weight is of {list(weight.sizes)}, and its operand has {x.features[0]} channels: groups of "
            "channels are not supported for images"
        )
    entries = along_rows(value, rows, 0)
    count = entries[0].type.shape[1]
    stacked = np.concatenate([reshaped(entry, (1, inputs, count)) for entry in entries], axis=1)
    by_row = reshaped(transposed(stacked, (2, 0, 1)), (count, high * inputs))
    read = reshaped(transposed(windows_of(by_row, steps), (1, 0, 2)), (count, steps.size * high * inputs))
    matrix = kernel.transpose(3, 2, 1, 0).reshape(-1, outputs)
    made = transposed(read @ np.ascontiguousarray(matrix), (1, 0))
    return placed_image(x, made if bias is None else made + bias.array.reshape(-1, 1), at)


def max_of_image(x: Placed, windows: Windows, padded: bool = False) -> Placed:
    """Returns the largest numbers of windows over the rows of images and the steps of each sequence.

    padded: whether the model has padding, for which `ModelError` is raised if the number of steps changes.
    """
    value, at = image(x)
    steps, rows = windows[at], windows[1 - at]
    if padded and (steps.size, steps.stride) != (1, 1):
        raise changed_lengths("pooling")
    value = value if (steps.size, steps.stride) == (1, 1) else windowed_max(value, steps)
    entries: Any = along_rows(value, rows, lowest(value.type.dtype))
    return placed_image(x, reduce(np.maximum, entries), at)


def image(x: Placed) -> tuple[Traced, int]:
    """Returns the value of an image, with features [channels, rows], and the axis of its steps: 0 for the
    third, 1 for the fourth. Raises `ModelError` for other values.
    """
    spatial = [is_time(axis) for axis in x.axes[2:]]
    fits = len(x.axes) == 4 and x.axes[0] == BATCH and is_feature(x.axes[1]) and len(x.features) == 2
    if not fits or sum(spatial) != 1 or not isinstance(x.value, Traced):
        raise ModelError(
            f"a convolution or pooling over two axes is of [sequences, channels, rows, steps], with rows and "
            f"steps in any order, and not of {text_of(x.axes)}"
        )
    return x.value, spatial.index(True)


def placed_image(x: Placed, made: Traced, at: int) -> Placed:
    """Returns a result with features [channels, rows] with the axes of an image. at: the axis of the steps,
    as `image` returns it.
    """
    channels, rows = made.type.shape
    axes = [(rows,), (made.type.extent[-1],)]
    return x.with_value(made, (x.axes[0], (channels,), *(axes if at == 1 else axes[::-1])))


def along_rows(value: Traced, window: Window, outside: float) -> list[Traced]:
    """Returns, for each entry of windows along the rows of [channels, rows], this entry of all windows.

    outside: the number that windows read beyond the rows.
    """
    channels, rows = value.type.shape
    count = int(window.lengths.of(np.array([rows]))[0])
    before = int(window.befores(np.array([rows]))[0])
    after = max((count - 1) * window.stride + window.reach + 1 - before - rows, 0)
    if not count:
        raise ModelError(f"its kernel has {window.reach + 1} rows, and its operand {rows}")
    check_room((channels, before + rows + after))
    for amount, is_first in ((before, True), (after, False)):
        if amount:
            more = repeated_at(np.full((channels, amount), outside, value.dtype), value)
            parts: Any = [more, value] if is_first else [value, more]
            value = numpy.concatenate(parts, axis=2)
    firsts = [entry * window.dilation for entry in range(window.size)]
    last = (count - 1) * window.stride + 1
    return [part_of(value, 1, slice(first, first + last, window.stride)) for first in firsts]
