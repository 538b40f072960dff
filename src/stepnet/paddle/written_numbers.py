"""Numbers of an operation of a Paddle program that Paddle may have computed from the number of steps; see
`importers.example_steps`.

    scale(x) scale=0.0769231      [0.0769231]
    expand_v2(y) shape=[-1, 26]   [26]           copies of features
    slice(x) starts=[7]           [7]            over steps: it may leave the last six
    layer_norm(x) epsilon=1e-5    []             a setting of a layer
"""

from collections.abc import Sequence

from stepnet.importers import example_steps
from stepnet.importers.axes import Axes, features_of
from stepnet.importers.placed import Placed
from stepnet.paddle.call import PaddleCall
from stepnet.paddle.constants import filling
from stepnet.paddle.convolving import numbers_per_place
from stepnet.paddle.recurrent import SEQUENCE_OPERATORS

SETTINGS = {
    "arg_max", "dropout", "lookup_table", "lookup_table_v2", "prelu", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_sum", "sequence_pool", "split", "transpose2", "unsqueeze2",
    *SEQUENCE_OPERATORS,
}  # fmt: skip
"""The operators whose constants are settings of layers, axes, or places of features."""
LAYERS = {
    "batch_norm", "conv2d", "conv2d_transpose", "depthwise_conv2d", "depthwise_conv2d_transpose",
    "group_norm", "layer_norm",
}  # fmt: skip
"""The operators whose constants are weights if their elements differ."""


def of_filled(call: PaddleCall, axes: Axes) -> list[float]:
    """Returns the number with which an operation fills a value for each sequence, and of how many features,
    unless it is 0: an initial state has zeros, as many as its layer says.
    """
    number = filling(call).array.item()
    return example_steps.written(number, *(features_of(axes) if number else ()))


def of_slice(call: PaddleCall, axes: Axes) -> list[float]:
    """Returns the bounds of slices of steps."""
    x = call.operand("Input")
    starts = call.numbers("starts", "StartsTensor", "StartsTensorList") or []
    ends = call.numbers("ends", "EndsTensor", "EndsTensorList") or []
    own = zip(call.wholes("axes"), starts, ends, strict=False)
    return example_steps.of_slices(x, [(*each, 1) for each in own], example_steps.stated_steps(x))


def of_pad(call: PaddleCall, axes: Axes) -> list[float]:
    """Returns the numbers of entries that a pad3d puts around steps, and their value."""
    pads = call.wholes("paddings", "Paddings")
    ends = [(axis, pads[8 - 2 * axis], pads[9 - 2 * axis]) for axis in (2, 3, 4)]
    return [
        *example_steps.of_ends(call.operand(), ends),
        *example_steps.written(call.attribute("pad_value", call.attribute("value", 0.0))),
    ]


NUMBERS = example_steps.NumberRules[PaddleCall](
    settings=SETTINGS,
    layers=LAYERS,
    windows={
        "pool2d": lambda call: enumerate(numbers_per_place(call, "ksize", 1, "KSize"), 2),
        **dict.fromkeys(
            ("conv2d", "depthwise_conv2d"), lambda call: enumerate(call.operand("Filter").features[2:], 2)
        ),
    },
    attributes={
        "brelu": ("t_min", "t_max"),
        "clip": ("min", "max"),
        "matmul": ("alpha",),
        "pow": ("factor",),
        "scale": ("scale", "bias"),
    },
    products={"bmm", "fc", "matmul", "matmul_v2", "mul"},
    powers={"elementwise_pow", "pow"},
    rules={
        "concat": lambda call, axes: example_steps.of_constants(call.operands_of("X")),
        "expand_v2": lambda call, axes: example_steps.of_copies(call.operand(), axes),
        "fill_constant_batch_size_like": of_filled,
        "pad3d": of_pad,
        **dict.fromkeys(
            ("reshape2", "squeeze2"),
            lambda call, axes: example_steps.of_reshape(
                call.operand(), axes, example_steps.stated_steps(call.operand())
            ),
        ),
        "slice": of_slice,
    },
)


def numbers_of(call: PaddleCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers of an operation that may have been computed from the number of steps."""
    operands = [value for values in call.operands.values() for value in values]
    return NUMBERS.numbers(call.operation.type, call, operands, call.operation.attributes, results)
