"""Numbers in a node of an ONNX model that its exporter may have computed from the number of steps; see
`importers.example_steps`.

    Div(x, 3.605551)                [3.605551]
    Expand(y, [1, 13, 1])           [13]           unless it becomes the axis of steps
    Slice(x, 7, 2147483647, 1)      [7]            over steps: it may leave the last six
    Conv(x, W, strides=[2])         []             settings of a layer
"""

from collections.abc import Sequence

from stepnet.importers.axes import Axes
from stepnet.importers.example_steps import NumberRules, of_ends, of_slices, stated_steps, written
from stepnet.importers.placed import Placed
from stepnet.layout.files.onnx.node import GATES
from stepnet.onnx.call import OnnxCall

ATTRIBUTES = {
    "Gemm": ("alpha", "beta"),
    "FusedGemm": ("alpha", "beta"),
    "FusedMatMul": ("alpha",),
    "Clip": ("min", "max"),
}
"""The attributes that are numbers of arithmetic, by operator."""
SETTINGS = {
    "Attention", "CumSum", "DequantizeLinear", "Dropout", "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "Gather", "MatMulInteger",
    "MatMulIntegerToFloat", "PRelu", "QLinearMatMul", "QuantizeLinear", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceSum", "ScatterElements", "Split", "TopK", "Unsqueeze",
}  # fmt: skip
"""The operators whose constants are settings of layers, axes, or places of features."""
LAYERS = {
    "BatchNormalization", "Conv", "ConvTranspose", "FusedConv", "GroupNormalization",
    "InstanceNormalization", "LayerNormalization", *GATES,
}  # fmt: skip
"""The operators whose constants are weights if their elements differ."""
WINDOWED = ("AveragePool", "Conv", "ConvInteger", "FusedConv", "MaxPool", "QLinearConv")
"""The operators whose kernel may be all steps."""


def kernel_of(call: OnnxCall) -> list[tuple[int, int]]:
    """Returns the axes that the kernel of a convolution or pooling goes over, and its sizes."""
    sizes = call.attributes.get("kernel_shape")
    return [*enumerate(call.operand(1).features[2:] if sizes is None else sizes, 2)]


def of_slice(call: OnnxCall, axes: Axes) -> list[float]:
    """Returns the bounds and the strides of a Slice of steps."""
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    over = call.integers(3, "axes", list(range(len(starts)))) or []
    strides = call.integers(4, "steps", [1] * len(starts)) or []
    return of_slices(call.x, zip(over, starts, ends, strides, strict=False), stated_steps(call.x))


def of_pad(call: OnnxCall, axes: Axes) -> list[float]:
    """Returns the numbers of entries that a Pad puts around steps, and their value."""
    pads = call.integers(1, "pads") or []
    over, half = call.integers(3, "axes", list(range(len(call.x.axes)))) or [], len(pads) // 2
    ends = zip(over, pads[:half], pads[half:], strict=False)
    return [*of_ends(call.x, ends), *written(call.number(2, "value"))]


NUMBERS = NumberRules[OnnxCall](
    settings=SETTINGS,
    layers=LAYERS,
    windows=dict.fromkeys(WINDOWED, kernel_of),
    attributes=ATTRIBUTES,
    copies={"Expand"},
    reshapes={"Flatten", "Reshape", "Squeeze"},
    products={"MatMul"},
    powers={"Pow"},
    rules={"Slice": of_slice, "Pad": of_pad},
)


def numbers_of(call: OnnxCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers in a node that may have been computed from the number of steps."""
    return NUMBERS.numbers(call.op, call, call.present, call.attributes, results)
