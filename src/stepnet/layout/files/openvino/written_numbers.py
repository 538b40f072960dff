"""Numbers of a layer of an OpenVINO model that its converter may have computed from the number of steps; see
`importers.example_steps`.

    Divide(x, 3.605551)           [3.605551]
    Tile(y, [1, 1, 13])           [13]           copies of features
    Slice(x, 7, 13, 1, 1)         [7]            over steps: it may leave the last six
    MVN(x) eps="1e-05"            []             a setting of a layer
"""

from collections.abc import Sequence

from stepnet.importers.axes import Axes
from stepnet.importers.example_steps import NumberRules, of_ends, of_slices, of_strided, stated_steps, written
from stepnet.importers.placed import Placed
from stepnet.layout.files.openvino.call import OpenVinoCall
from stepnet.layout.files.openvino.names import OPERATORS
from stepnet.layout.files.openvino.operators import slices_of, strided

SETTINGS = {
    "CumSum", "Gather", "HardSigmoid", "MVN", "PReLU", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "Selu", "Split", "Transpose", "Unsqueeze", "VariadicSplit",
}  # fmt: skip
"""The operators whose constants are settings of layers, axes, or places of features."""
LAYERS = {"Convolution", "ConvolutionBackpropData", "GroupConvolution", *OPERATORS}
"""The operators whose constants are weights if their elements differ."""


def of_pad(call: OpenVinoCall, axes: Axes) -> list[float]:
    """Returns the numbers of entries that a Pad puts around steps, and their value."""
    pads = zip(range(len(call.x.axes)), call.constants(1), call.constants(2), strict=True)
    number = [call.operand(3).array.item()] if len(call.operands) > 3 else []
    return [*of_ends(call.x, pads), *written(number)]


NUMBERS = NumberRules[
    OpenVinoCall
](
    settings=SETTINGS,
    layers=LAYERS,
    windows={
        **dict.fromkeys(("AvgPool", "MaxPool"), lambda call: enumerate(call.wholes("kernel"), 2)),
        **dict.fromkeys(  # a convolution's kernel: the last sizes of the weight
            ("Convolution", "GroupConvolution"),
            lambda call: enumerate(call.operand(1).features[2 - len(call.x.axes) :], 2),
        ),
    },
    attributes={"Clamp": ("min", "max")},
    copies={"Broadcast", "Tile"},
    reshapes={"Reshape", "Squeeze"},
    products={"MatMul"},
    powers={"Power"},
    rules={
        "Pad": of_pad,
        "Slice": lambda call, axes: of_slices(call.x, slices_of(call), stated_steps(call.x)),
        "StridedSlice": lambda call, axes: of_strided(call.x, strided(call)),
    },
)


def numbers_of(call: OpenVinoCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers of a layer that may have been computed from the number of steps."""
    kind = call.layer.type
    attributes = {name: call.number(name, 0.0) for name in NUMBERS.attributes.get(kind, ())}
    return NUMBERS.numbers(kind, call, call.operands, attributes, results)
