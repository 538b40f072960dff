"""Numbers of steps in a graph of a file, where torch.export may have put the number of its example.

    y[:, : x.size(1)]           slice.Tensor(y, 1, 0, 7)      cut to the steps of the inputs
    torch.arange(x.size(1))     arange.default(7)             the number of each step
    y.view(n, t // 2, 2 * c)    view.default(y, [3, 4, 8])    two steps as one

The model that is read runs over any number of steps.
"""

import re
from typing import Any

from stepnet.importers.aten.graph import ARGUMENT
from stepnet.importers.aten.replay import ReplayedNode, is_size
from stepnet.importers.axes import TIME, is_time, size_of
from stepnet.importers.convolving import join_steps
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import STEPS

STEPS_MORE = re.compile(STEPS + r"\[[+](\d+)/1\]")
"""The name of an axis of more steps than the inputs have, in a number that is fixed."""


def is_steps(call: ReplayedNode, size: Any) -> bool:
    """Tells whether a number in the graph of a file is taken for the number of steps of the example that was
    exported: it equals that, and no feature of an input or a weight has this size.
    """
    fixed = (call.replay.stated or {}).get(STEPS)
    if size != fixed or is_size(size):
        return False
    arguments = (call.replay.values[node] for node in call.replay.graph.nodes if node.kind == ARGUMENT)
    return all(size not in value.features for value in arguments if isinstance(value, Placed))


def steps_joined(call: ReplayedNode, x: Placed) -> Placed | None:
    """Evaluates a `view` node in the graph of a file that joins n neighbouring steps to one, with the
    features of all of them; None for any other view.
    """
    shape = call.tensors[0].shape
    if call.replay.stated is None or len(x.axes) != 3 or len(shape) != 3 or not is_time(x.axes[1]):
        return None
    (width,), wide = x.axes[2] if len(x.axes[2]) == 1 else (None,), shape[2]
    if not isinstance(width, int) or not isinstance(wide, int) or wide <= width or wide % width:
        return None
    count, steps = wide // width, call.replay.stated.get(str(x.axes[1][0]))
    if is_size(shape[1]) or steps != shape[1] * count:
        return None
    made = join_steps(x, count)
    return made.shaped((*made.axes[:2], (wide,)))


def cuts_of(call: ReplayedNode, x: Placed, dim: int, start: Any, end: Any) -> tuple[int, int] | None:
    """Returns the numbers of steps of the axis `dim` of x that a slice leaves out ahead and behind, in the
    graph of a file that fixes the number of steps; None for a slice that counts the steps which it keeps, as
    x[:, :3].
    end: None for all steps.

    An axis with more steps than the inputs, as after a convolution with zeros, may be cut to as many as
    these.
    """
    if is_size(start) or start < 0:
        return None
    if end is None:
        return start, 0
    if not is_size(end) and end < 0:
        return start, -end
    if start == 0 and x.axes[dim] == TIME and cuts_others(call, dim, end):
        return 0, 0
    more = STEPS_MORE.fullmatch(str(x.axes[dim][0]))
    size = end.size if is_size(end) else end
    known = [size_of(TIME), (call.replay.stated or {}).get(STEPS)]
    return (start, int(more[1])) if more and start == 0 and size in known else None


def cuts_others(call: ReplayedNode, dim: int, end: Any) -> bool:
    """Tells whether the graph of a file slices another value along the axis `dim` to `end` steps, the number
    of steps of the exported example, as layers do whose convolutions give one step more. Then that number
    stands for the steps of the inputs, and is no constant of the model.
    """
    if end != (call.replay.stated or {}).get(STEPS):
        return False
    others = (node for node in call.replay.graph.nodes if node.operation == call.name)
    longer = (node.arguments["self"].results[0].shape for node in others if node.arguments["end"] == end)
    return any(len(shape) > dim and isinstance(shape[dim], int) and shape[dim] > end for shape in longer)
