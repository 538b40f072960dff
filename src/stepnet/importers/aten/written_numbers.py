"""Numbers in a graph of a file that torch.export may have computed from the number of steps; see
`importers.example_steps`.

    div.Tensor(x, 3.605551)           [3.605551]
    repeat.default(y, [1, 13, 1])     [13]           unless it becomes the axis of steps
    slice.Tensor(x, 1, 7)             [7]            over steps: it may leave the last six
    conv1d.default(x, W, b, [2])      []             settings of a layer
"""

import re
from collections.abc import Callable
from typing import Any

from stepnet.compiler.trace.indexing import listed
from stepnet.importers import example_steps
from stepnet.importers.aten.replay import ReplayedNode
from stepnet.importers.axes import Axes, features_of, is_time
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import STEPS

SETTINGS = {
    "ceil_mode", "chunks", "correction", "count_include_pad", "dilation", "dim", "dim0", "dim1", "dims",
    "divisor_override", "dropout_p", "eps", "group", "groups", "kernel_size", "max_val", "min_val",
    "momentum", "negative_slope", "normalized_shape", "num_groups", "ord", "output_padding", "output_size",
    "p", "padding", "padding_idx", "stride", "threshold", "N", "C", "HxW",
}  # fmt: skip
"""The arguments that are settings of layers, or say which axis."""


def numbers_of(call: ReplayedNode, result: Any) -> list[float]:
    """Returns the numbers in a node of an exported graph that may have been computed from the example's
    number of steps.

    result: the value of the node.
    """
    axes = result.axes if isinstance(result, Placed) else ()
    for names, rule in RULES:
        if names.match(call.name):
            return rule(call, axes)
    return of_arguments(call)


def of_arguments(call: ReplayedNode) -> list[float]:
    """Returns the numbers among the arguments of a node that are no settings."""
    return example_steps.written(*(value for name, value in call.arguments.items() if name not in SETTINGS))


def of_pooling(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns the size of windows of a pooling that are all steps. axes: not read."""
    x, (size, *_) = call.arguments["self"], listed(call.arguments["kernel_size"])
    return example_steps.of_windows(x, [(len(x.axes) - 1, size)], call.replay.stated or {})


def of_convolution(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns the size of a kernel of a convolution that is all steps. axes: not read."""
    x, weight = call.arguments["input"], call.arguments["weight"]
    return example_steps.of_windows(x, [(len(x.axes) - 1, weight.features[-1])], call.replay.stated or {})


def of_power(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns the exponent of a power that is neither a square nor a root, or the base that is a number."""
    return [number for number in of_arguments(call) if number not in example_steps.ROOTS]


def steps_of(call: ReplayedNode) -> int | None:
    """Returns the number of steps that the file of a node states."""
    return (call.replay.stated or {}).get(STEPS)


def of_new(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns the numbers with which a node such as `full` makes a value: the number that fills it, and its
    sizes, as these may follow from the number of steps. The sizes are left out for the initial state of
    recurrent layers, where they follow from the weights. axes: the axes of the result.
    """
    number = example_steps.written(call.arguments.get("fill_value"))
    if call.name.split(".")[0].endswith("_like") or any(map(is_time, axes)) or is_state(call):
        return number
    return [*number, *example_steps.written(*features_of(axes))]


def is_state(call: ReplayedNode) -> bool:
    """Tells whether only recurrent layers read the result of a node, as their initial state."""
    reads = [
        (node.operation, name)
        for node in call.replay.graph.nodes
        for name, value in node.arguments.items()
        if any(each is call.node for each in listed(value))
    ]
    return bool(reads) and all(name == "hx" and operation.endswith(".input") for operation, name in reads)


def of_slice(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns the bounds and the stride of a slice of steps."""
    own = (int(call.arguments["dim"]), *(call.arguments[name] for name in ("start", "end", "step")))
    return example_steps.of_slices(call.operands[0], [own], steps_of(call))


def of_pad(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns the sizes of the padding that a `pad` node puts around axes of steps, and the value that it
    pads with: numbers that may follow from the example's number of steps. axes: not read.
    """
    x, pads = call.operands[0], listed(call.arguments.get("pad"))
    last = range(len(x.axes))[::-1]
    return [
        *example_steps.of_ends(x, zip(last, pads[::2], pads[1::2], strict=False)),
        *example_steps.written(call.arguments.get("value")),
    ]


def of_none(call: ReplayedNode, axes: Axes) -> list[float]:
    """Returns no number, for nodes whose numbers count features or are settings of recurrent layers."""
    return []


Numbers = Callable[[ReplayedNode, Axes], list[float]]
RULES: tuple[tuple[re.Pattern[str], Numbers], ...] = (
    (re.compile(r"(select|split\w*|chunk|narrow|unbind|index_select|gather|roll)[.]"), of_none),
    (re.compile(r"(gru|lstm|rnn_tanh|rnn_relu)[.]"), of_none),
    (
        re.compile(r"(_unsafe_view|view\w*|reshape|flatten|unflatten|squeeze|unsqueeze)[.]"),
        lambda call, axes: example_steps.of_reshape(call.operands[0], axes, steps_of(call)),
    ),
    (
        re.compile(r"(expand|expand_as|repeat)[.]"),
        lambda call, axes: example_steps.of_copies(call.operands[0], axes),
    ),
    (re.compile(r"((new_)?(zeros|ones|full|empty)(_like)?|arange|eye)[.]"), of_new),
    (re.compile(r"slice(_scatter)?[.]"), of_slice),
    (re.compile(r"(constant_)?pad\w*[.]"), of_pad),
    (re.compile(r"pow[.]"), of_power),
    (re.compile(r"(avg|max)_pool1d\w*[.]"), of_pooling),
    (re.compile(r"conv1d[.]"), of_convolution),
)
"""The rule of nodes whose numbers count otherwise than those of arithmetic, by their names."""
