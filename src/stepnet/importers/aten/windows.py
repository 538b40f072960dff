"""Rules for graph nodes of convolutions and pooling over steps; see `torch/convolutions.py` and `kept.py`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.windows import Window
from stepnet.compiler.trace.traced import Traced
from stepnet.importers.aten.replay import ReplayedNode
from stepnet.importers.axes import is_feature
from stepnet.importers.convolving import convolve, convolve_transposed, pool, repeated
from stepnet.importers.extending import extend
from stepnet.importers.placed import Placed
from stepnet.importers.selecting import cut
from stepnet.importers.shaping import transpose
from stepnet.model.convolution import windowed_max, windowed_mean


def numbers_of(window: Window) -> list[int]:
    """Returns the numbers of a window, as an argument of an operator."""
    return [window.size, window.dilation, window.before, window.stride, window.lost]


def window_from(numbers: Sequence[int]) -> Window:
    """Returns the window of the numbers of `numbers_of`."""
    size, dilation, before, stride, lost = numbers
    return Window(size, dilation, before, stride, lost)


def convolved(call: ReplayedNode) -> Placed:
    """Evaluates a `convolved` node of a PyTorch graph on values with named axes."""
    x, weight, bias, window, groups = call.arguments.values()
    return convolve(x, weight, bias, window_from(window), groups)


def convolved_transposed(call: ReplayedNode) -> Placed:
    """Evaluates a `convolved_transposed` node of a PyTorch graph on values with named axes."""
    x, weight, bias, (stride, dilation, padding, more), groups = call.arguments.values()
    return convolve_transposed(x, weight, bias, stride, dilation, (padding, padding), more, groups)


POOLINGS: Mapping[str, Callable[[Traced, Window], Traced]] = {
    "max": windowed_max,
    "mean": partial(windowed_mean, counts_zeros=True),
    "mean of steps": partial(windowed_mean, counts_zeros=False),
}


def pooled(call: ReplayedNode) -> Placed:
    """Evaluates a `pooled` node of a PyTorch graph on values with named axes."""
    x, how, window = call.arguments.values()
    return pool(x, lambda value: POOLINGS[how](value, window_from(window)))


def cut_off(call: ReplayedNode) -> Placed:
    """Evaluates a `cut` node of a PyTorch graph: leaves steps out at both ends."""
    return cut(*call.arguments.values())


def extended_steps(call: ReplayedNode) -> Placed:
    """Evaluates an `extended` node of a PyTorch graph: puts copies of steps at the ends of sequences."""
    x, before, after, how = call.arguments.values()
    return extend(x, len(x.axes) - 1, Extension(before, after, how))


def repeated_steps(call: ReplayedNode) -> Placed:
    """Evaluates a `repeated` node of a PyTorch graph: repeats each step."""
    x, dim, count = call.arguments.values()
    first = next((place for place in range(dim) if is_feature(x.axes[place])), dim)
    order = [*range(first), dim, *(place for place in range(first, len(x.axes)) if place != dim)]
    made = repeated(transpose(x, order), first, count)
    return transpose(made, [order.index(place) for place in range(len(order))])
