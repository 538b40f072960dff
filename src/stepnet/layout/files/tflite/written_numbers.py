"""Numbers of an operator of a TFLite model that its converter may have computed from the number of steps; see
`importers.example_steps`.

    DIV(x, 3.605551)              [3.605551]
    STRIDED_SLICE(x, 7, ...)      [7]            over steps: it may leave the last six
    FULLY_CONNECTED(x, W, b)      []             weights

The converter writes layers as arithmetic: what a normalisation adds to a variance is a number here.
"""

from collections.abc import Sequence

from stepnet.importers.axes import Axes
from stepnet.importers.example_steps import NumberRules, of_ends, of_slices, of_strided, stated_steps, written
from stepnet.importers.placed import Placed
from stepnet.layout.files.tflite.call import TfliteCall
from stepnet.layout.files.tflite.operators import strided

SETTINGS = {
    "BATCH_TO_SPACE_ND", "CUMSUM", "EXPAND_DIMS", "GATHER", "MEAN", "REDUCE_MAX", "REDUCE_MIN",
    "REVERSE_V2", "SPACE_TO_BATCH_ND", "SPLIT", "SPLIT_V", "SUM", "TRANSPOSE",
}  # fmt: skip
"""The operators whose constants are settings of layers, axes, or places of features."""
LAYERS = {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
"""The operators whose constants are weights if their elements differ."""


def of_slice(call: TfliteCall, axes: Axes) -> list[float]:
    """Returns the first places of a SLICE of steps, and its ends where it does not go on to the last."""
    own = zip(call.numbers(1), call.numbers(2), strict=True)
    slices = [
        (axis, begin, None if size == -1 else begin + size, 1) for axis, (begin, size) in enumerate(own)
    ]
    return of_slices(call.x, slices, stated_steps(call.x))


def of_pad(call: TfliteCall, axes: Axes) -> list[float]:
    """Returns the numbers of entries that a PAD puts around steps, and their value."""
    pads = [(axis, *both) for axis, both in enumerate(call.operand(1).array.tolist())]
    numbers = [call.operand(2).array.item()] if len(call.operands) > 2 else []
    return [*of_ends(call.x, pads), *written(numbers)]


NUMBERS = NumberRules[TfliteCall](
    settings=SETTINGS,
    layers=LAYERS,
    windows={
        **dict.fromkeys(
            ("AVERAGE_POOL_2D", "MAX_POOL_2D"),
            lambda call: [(1, call.option(4, "i", 1)), (2, call.option(3, "i", 1))],
        ),
        **dict.fromkeys(
            ("CONV_2D", "DEPTHWISE_CONV_2D"), lambda call: enumerate(call.operand(1).features[1:3], 1)
        ),
    },
    reshapes={"RESHAPE", "SQUEEZE"},
    products={"BATCH_MATMUL", "FULLY_CONNECTED"},
    powers={"POW"},
    rules={
        "PAD": of_pad,
        "PADV2": of_pad,
        "MIRROR_PAD": of_pad,
        "SLICE": of_slice,
        "STRIDED_SLICE": lambda call, axes: of_strided(call.x, strided(call)),
    },
)


def numbers_of(operator: str, call: TfliteCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers of an operator that may have been computed from the number of steps."""
    operands = [operand for operand in call.operands if operand is not None]
    return NUMBERS.numbers(operator, call, operands, {}, results)
