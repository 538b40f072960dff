"""Numbers in a node of an ONNX model that its exporter may have computed from the number of steps; see
`importers.example_steps`.

    Div(x, 3.605551)                [3.605551]
    Expand(y, [1, 13, 1])           [13]           unless it becomes the axis of steps
    Slice(x, 7, 2147483647, 1)      [7]            over steps: it may leave the last six
    Conv(x, W, strides=[2])         []             settings of a layer
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from stepnet.importers.axes import features_of, is_time, time_of
from stepnet.importers.example_steps import ROOTS, written, written_in
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import STEPS
from stepnet.layout.files.onnx.node import GATES
from stepnet.onnx.call import OnnxCall

ATTRIBUTES = {
    "Gemm": ("alpha", "beta"),
    "FusedGemm": ("alpha", "beta"),
    "FusedMatMul": ("alpha",),
    "Clip": ("min", "max"),
}
"""The attributes that are numbers of arithmetic, by operator."""
LAYERS = {
    "Attention", "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "CumSum",
    "DequantizeLinear", "Dropout", "DynamicQuantizeLSTM", "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul", "FusedConv", "Gather", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "MaxPool", "PRelu",
    "QLinearConv", "QLinearMatMul", "QuantizeLinear", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "ScatterElements", "Split", "Squeeze", "TopK", "Unsqueeze", *GATES,
}  # fmt: skip
"""The operators whose constants are weights, settings of layers, axes, or places of features."""


def of_copies(call: OnnxCall, result: Placed) -> list[float]:
    """Returns how often an Expand repeats the features of its operand."""
    before, after = prod(call.x.features), prod(features_of(result.axes))
    return written(after // before) if before else []


def of_reshape(call: OnnxCall, result: Placed) -> list[float]:
    """Returns the number of steps where a Reshape makes an axis of features of that size, of a value without
    steps.
    """
    steps = dict(call.x.stated).get(STEPS)
    is_made = steps in features_of(result.axes) and steps not in call.x.features
    return written(steps) if is_made and time_of(call.x.axes) is None else []


def of_slice(call: OnnxCall, result: Placed) -> list[float]:
    """Returns the bounds and the strides of slices of steps, but for an end that is the number of steps."""
    x, starts, ends = call.x, call.numbers(1, "starts"), call.numbers(2, "ends")
    axes = call.integers(3, "axes", list(range(len(starts)))) or []
    steps, count = call.integers(4, "steps", [1] * len(starts)) or [], dict(x.stated).get(STEPS)
    bounds = [
        (start, None if end == count else end, step)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=False)
        if is_time(x.axes[axis])
    ]
    return written(*(number for each in bounds for number in each))


def of_pad(call: OnnxCall, result: Placed) -> list[float]:
    """Returns the numbers of entries that a Pad puts around steps, and what they are."""
    x, pads = call.x, call.integers(1, "pads") or []
    axes, half = call.integers(3, "axes", list(range(len(x.axes)))) or [], len(pads) // 2
    around = zip(axes, pads[:half], pads[half:], strict=False)
    counts = [count for axis, *both in around if is_time(x.axes[axis]) for count in both]
    return written(*counts, call.number(2, "value"))


RULES: Mapping[str, Callable[[OnnxCall, Placed], list[float]]] = {
    "Expand": of_copies,
    "Reshape": of_reshape,
    "Slice": of_slice,
    "Pad": of_pad,
}
"""The rule of nodes whose numbers count otherwise than those of arithmetic, by operator."""


def numbers_of(call: OnnxCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers in a node that may have been computed from the number of steps; none for a node
    that computes a constant, which counts where it is read.

    results: those of the node.
    """
    if call.op in LAYERS or all(value.is_constant for value in call.present):
        return []
    if call.op in RULES:
        return RULES[call.op](call, results[0])
    arrays = [value.value for value in call.present if value.is_constant]
    attributes = [call.attributes.get(name) for name in ATTRIBUTES.get(call.op, ())]
    found = [*(number for array in arrays for number in written_in(array)), *written(*attributes)]
    return [number for number in found if call.op != "Pow" or number not in ROOTS]
