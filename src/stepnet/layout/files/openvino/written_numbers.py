"""Numbers of a layer of an OpenVINO model that its converter may have computed from the number of steps; see
`importers.example_steps`.

    Divide(x, 3.605551)           [3.605551]
    Tile(y, [1, 1, 13])           [13]           copies of features
    Slice(x, 7, 13, 1, 1)         [7]            over steps: it may leave the last six
    MVN(x) eps="1e-05"            []             a setting of a layer
"""

from collections.abc import Sequence

from stepnet.importers.axes import Axes
from stepnet.importers.example_steps import (
    NumberRules,
    of_copies,
    of_ends,
    of_reshape,
    of_slices,
    stated_steps,
    written,
)
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


def kernel_of(call: OpenVinoCall) -> list[tuple[int, int]]:
    """Returns the axes that a convolution's kernel goes over, and its sizes: the last ones of the weight."""
    return [*enumerate(call.operand(1).features[2 - len(call.x.axes) :], 2)]


def pooled(call: OpenVinoCall) -> list[tuple[int, int]]:
    """Returns the axes that the windows of a pooling go over, and their sizes."""
    return [*enumerate(call.wholes("kernel"), 2)]


def of_strided_slice(call: OpenVinoCall, axes: Axes) -> list[float]:
    """Returns the bounds and strides of a StridedSlice of steps."""
    slices = [(axis, begin, None if one else end, step) for axis, begin, end, step, one in strided(call)]
    return of_slices(call.x, slices, stated_steps(call.x))


def of_pad(call: OpenVinoCall, axes: Axes) -> list[float]:
    """Returns the numbers of entries that a Pad puts around steps, and their value."""
    pads = zip(range(len(call.x.axes)), call.constants(1), call.constants(2), strict=True)
    number = [call.operand(3).array.item()] if len(call.operands) > 3 else []
    return [*of_ends(call.x, pads), *written(number)]


NUMBERS = NumberRules[OpenVinoCall](
    settings=frozenset(SETTINGS),
    layers=frozenset(LAYERS),
    windows={
        **dict.fromkeys(("AvgPool", "MaxPool"), pooled),
        **dict.fromkeys(("Convolution", "GroupConvolution"), kernel_of),
    },
    attributes={"Clamp": ("min", "max")},
    products=frozenset({"MatMul"}),
    powers=frozenset({"Power"}),
    rules={
        "Broadcast": lambda call, axes: of_copies(call.x, axes),
        "Pad": of_pad,
        **dict.fromkeys(
            ("Reshape", "Squeeze"), lambda call, axes: of_reshape(call.x, axes, stated_steps(call.x))
        ),
        "Slice": lambda call, axes: of_slices(call.x, slices_of(call), stated_steps(call.x)),
        "StridedSlice": of_strided_slice,
        "Tile": lambda call, axes: of_copies(call.x, axes),
    },
)


def numbers_of(call: OpenVinoCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers of a layer that may have been computed from the number of steps."""
    kind = call.layer.type
    attributes = {name: call.number(name, 0.0) for name in NUMBERS.attributes.get(kind, ())}
    return NUMBERS.numbers(kind, call, call.operands, attributes, results)
