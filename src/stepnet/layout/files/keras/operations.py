"""Operations of keras.ops, as models of Keras have them between layers: a row for each class.

Sources: keras/src/ops/ of 3.15.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import is_time
from stepnet.importers.convolving import repeated
from stepnet.importers.extending import mode_of, pad_with_copies
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.layout.files.keras.activations import SELU, activated
from stepnet.layout.files.keras.call import KerasCall, Rule
from stepnet.layout.files.keras.conv_lstm import conv_lstm
from stepnet.layout.files.keras.nodes import Config, class_of, rows, table
from stepnet.layout.files.keras.normalising import numbers
from stepnet.layout.files.keras.rules import any_along, concatenate, filled, pair, same, softmax, unary


def reduction(how: str) -> Rule:
    """Makes the rule of a reduction of keras.ops over axes. how: its name in `importers.reductions`."""

    def rule(call: KerasCall) -> Placed:
        """Computes a reduction of keras.ops: reduces the operand over the axes of the configuration."""
        x, stated = call.x, call.config.get("axis")
        call.only("initial", None)
        axes = call.wholes("axis", len(rows(cast(object, stated))) or 1)
        return reductions.reduce(x, axes, how, bool(call.setting("keepdims", False)))

    return rule


def variance(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.var over the axes of the configuration."""
    axes = call.wholes("axis", len(rows(call.config.get("axis"))) or 1)
    return reductions.variance(call.x, axes, bool(call.setting("keepdims", False)))


def log_sum_exp(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.logsumexp over the axes of the configuration."""
    axes = call.wholes("axis", len(rows(call.config.get("axis"))) or 1)
    most = reductions.reduce(call.x, axes, "max", True)
    raised = pointwise.elementwise("exp", pointwise.elementwise("subtract", call.x, most))
    total = pointwise.elementwise("log", reductions.reduce(raised, axes, "sum", True))
    made = pointwise.elementwise("add", total, most)
    return made if call.setting("keepdims", False) else shaping.squeeze(made, axes)


def any_of(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.any over the axes of the configuration."""
    axes = call.wholes("axis", len(rows(call.config.get("axis"))) or 1)
    return any_along(call.x, axes, bool(call.setting("keepdims", False)))


def clip(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.clip: the operand between two numbers."""
    bounds = [numbers(call.config.get(name)).item() for name in ("x_min", "x_max")]
    return pointwise.elementwise("clip", call.x, numbers=bounds)


def flip(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.flip: reverses the feature axes among those of the configuration. An
    axis of steps is left alone here: `masks.py` records for each value whether Keras has its steps in
    reverse.
    """
    x = call.x
    for axis in map(x.axis, call.wholes("axis", len(rows(call.config.get("axis"))) or 1)):
        if not is_time(x.axes[axis]):
            x = selecting.sliced(x, axis, slice(None, None, -1))
    return x


def rounded(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.round to whole numbers."""
    call.only("decimals", 0)
    return pointwise.elementwise("rint", call.x)


def reshape_all(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.reshape, whose sizes begin with that of the sequences, -1."""
    target = call.wholes("newshape", max(1, len(rows(call.config.get("newshape")))))
    return shaping.reshape(call.x, [call.x.sizes[0], *target[1:]] if target[0] == -1 else target)


def split(call: KerasCall) -> list[Placed]:
    """Computes the results of keras.ops.split: parts of an axis of features, of equal sizes or between
    indices, as the setting "indices_or_sections" says. Raises `ModelError` if the features cannot be split
    so.
    """
    axis, stated = call.x.axis(call.wholes("axis", 1, 0)[0]), call.config.get("indices_or_sections")
    size = call.width(axis)
    if isinstance(stated, list):
        ends = [*call.wholes("indices_or_sections", len(rows(cast(object, stated)))), size]
        return selecting.split(call.x, axis, np.diff([0, *ends]).tolist())
    (count,) = call.wholes("indices_or_sections", 1)
    if count < 1 or size % count:
        raise ModelError(f"it splits {size} features into {count} equal parts")
    return selecting.split(call.x, axis, [size // count] * count)


def unstack(call: KerasCall) -> list[Placed]:
    """Computes the results of keras.ops.unstack: one per entry of an axis of features, without this axis."""
    axis = call.x.axis(call.wholes("axis", 1, 0)[0])
    parts = selecting.split(call.x, axis, [1] * call.width(axis))
    return [shaping.squeeze(part, [axis]) for part in parts]


def stack(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.stack: the operands joined along a new axis of features."""
    (axis,) = call.wholes("axis", 1, 0)
    place = call.operands[0].axis(axis, 1)
    return selecting.concatenate([shaping.unsqueeze(x, [place]) for x in call.operands], place)


def swapped_axes(call: KerasCall) -> Placed:
    """Computes keras.ops.swapaxes: the operand with the axes "axis1" and "axis2" exchanged."""
    first, second = (call.x.axis(call.wholes(name, 1)[0]) for name in ("axis1", "axis2"))
    order = [*range(len(call.x.axes))]
    order[first], order[second] = second, first
    return shaping.transpose(call.x, order)


def moved_axis(call: KerasCall) -> Placed:
    """Computes keras.ops.moveaxis: moves the axis of the setting "source" to the place in "destination"."""
    source, place = (call.x.axis(call.wholes(name, 1)[0]) for name in ("source", "destination"))
    order = [axis for axis in range(len(call.x.axes)) if axis != source]
    order.insert(place, source)
    return shaping.transpose(call.x, order)


def repeat(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.repeat: each entry of an axis several times."""
    (count,) = call.wholes("repeats", 1)
    return repeated(call.x, call.x.axis(call.wholes("axis", 1)[0]), count)


def where(call: KerasCall) -> Placed:
    """Computes keras.ops.where: the second operand where the first one is true; else the third."""
    if len(call.operands) != 3:
        raise ModelError(f"it is called on {len(call.operands)} tensors, where three are expected")
    return pointwise.where(pointwise.cast(call.operands[0], "bool"), *call.operands[1:])


def power(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.power. A constant exponent of 2 or 3 becomes a product."""
    base, exponent = call.several
    if exponent.is_array and exponent.array.size == 1 and exponent.array.item() in (2, 3):
        return pointwise.folded("multiply", [base] * int(exponent.array.item()))
    return pointwise.power(base, exponent)


def product(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.matmul."""
    first, second = call.several
    return matmul(first, second, padded=False)


def cumulative(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.cumsum over steps or over a feature."""
    call.only("dtype", None)
    return reductions.cumulate(call.x, call.axis(0))


def cast_to(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.cast: the operand in the dtype of the configuration, which is bool,
    float32, float64, int32 or int64; raises `ModelError` for others.
    """
    dtype = call.setting("dtype", "")
    if dtype not in ("bool", "float32", "float64", "int32", "int64"):
        raise ModelError(f"its dtype {short_repr(dtype)} is not supported")
    return pointwise.cast(call.x, dtype)


def scaled_log(factor: float) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of a logarithm to another base than e, such as
    keras.ops.log2. factor: the number by which the natural logarithm is multiplied, 1 / ln of the base.
    """

    def rule(call: KerasCall) -> Placed:
        """Computes the logarithm."""
        number = constant(np.asarray(factor, pointwise.dtype_of(call.x)))
        return pointwise.elementwise("multiply", pointwise.elementwise("log", call.x), number)

    return rule


def activation(name: str, **settings: Any) -> Rule:
    """Makes the rule (a function that computes a Keras layer) of an operation that is the activation called
    `name`; it raises `ModelError` where the call states other settings than these.
    """

    def rule(call: KerasCall) -> Placed:
        """Applies the activation of keras.ops, such as celu; raises `ModelError` for other settings."""
        for key, value in settings.items():
            call.only(key, value)
        return activated(replace(call, config={"activation": name}), call.x)

    return rule


COPIES = {mode: mode for mode in ("reflect", "symmetric")}
"""The modes of keras.ops.pad that put copies of entries around an axis, with their names in `numpy.pad`."""


def widths(call: KerasCall) -> list[tuple[int, int, int]]:
    """Returns each axis of the operand of keras.ops.pad with the numbers of entries that are put ahead and
    behind: one number for all, both for all, or both for each axis.
    """
    stated, rank = call.config.get("pad_width"), len(call.operands[0].axes)
    several = [replace(call, config={"pad_width": each}) for each in rows(stated) if isinstance(each, list)]
    if len(several) not in (0, 1, rank):
        raise ModelError(f"its pad_width is {short_repr(stated)}, and its operand has {rank} axes")
    ends = [each.wholes("pad_width", 2) for each in several or [call]]
    return [(axis, ends[axis % len(ends)][0], ends[axis % len(ends)][1]) for axis in range(rank)]


def padded(call: KerasCall) -> Placed:
    """Computes the result of keras.ops.pad: puts one number around features, zeros around steps, which only a
    convolution reads, or copies of entries.
    """
    x, mode = call.operands[0], call.setting("mode", "constant")
    ends = widths(call)
    if mode != "constant":
        return pad_with_copies(x, ends, mode_of(mode, COPIES))
    return selecting.pad(x, ends, call.operands[1].array.item() if len(call.operands) > 1 else 0)


WHOLE_AXIS: Config = {"class_name": "__slice__", "config": {}}
"""The index of a whole axis."""


Bounds = tuple[int | None, int | None, int | None]


def indices_of(call: KerasCall) -> list[Any]:
    """Returns the index of each axis, of the first axes, by which a Keras model indexes a tensor."""
    key = list(rows(call.keys[0]) if call.keys else [])
    at = next((at for at, index in enumerate(key) if class_of(table(index)) == "__ellipsis__"), None)
    if at is not None:
        key[at : at + 1] = [WHOLE_AXIS] * (len(call.x.axes) - len(key) + 1)
    return key


def slice_of(index: Any) -> Bounds:
    """Returns the first place, end and stride of an index that is a slice, or raises `ModelError`."""
    part = table(table(index).get("config"))
    start, stop, step = bounds = [part.get(name) for name in ("start", "stop", "step")]
    if table(index).get("class_name") != "__slice__" or {*map(type, bounds)} - {int, type(None)}:
        raise ModelError(f"its index {short_repr(index)} is not supported")
    return cast(Bounds, (start, stop, step))


def get_item(call: KerasCall) -> Placed:
    """Computes the result of indexing a tensor in a Keras model: slices of features, and the first or last
    step of each sequence. Raises `ModelError` for an index that is no number, slice or ellipsis.
    """
    x = call.x
    for axis, index in reversed([*enumerate(indices_of(call))]):
        if type(index) is int:
            x = selecting.gather(x, constant(np.asarray(index)), x.axis(axis))
        elif slice_of(index) != (None, None, None):
            start, stop, step = slice_of(index)
            end = selecting.HIGHEST[0] if stop is None else stop
            x = selecting.slice_axis(x, axis, start or 0, end, step or 1)
    return x


OPERATIONS: Mapping[str, Rule] = {
    "ops.Abs": unary("absolute"),
    "ops.Absolute": unary("absolute"),
    "ops.Add": pair("add"),
    "ops.Any": any_of,
    "ops.Arctan": unary("arctan"),
    "ops.Cast": cast_to,
    "ops.Ceil": unary("ceil"),
    "ops.Celu": activation("celu", alpha=1.0),
    "ops.Clip": clip,
    "ops.Concatenate": concatenate,
    "ops.ConvertToTensor": same,
    "ops.Cos": unary("cos"),
    "ops.Cosh": unary("cosh"),
    "ops.Cumsum": cumulative,
    "ops.Divide": pair("divide"),
    "ops.Elu": unary("elu", alpha=1.0),
    "ops.Equal": pair("equal"),
    "ops.Erf": unary("erf"),
    "ops.Exp": unary("exp"),
    "ops.ExpandDims": lambda call: shaping.unsqueeze(call.x, call.wholes("axis", 1)),
    "ops.Expm1": unary("expm1"),
    "ops.Flip": flip,
    "ops.Floor": unary("floor"),
    "ops.Gelu": lambda call: pointwise.elementwise(
        "gelu", call.x, numbers=[call.setting("approximate", True)]
    ),
    "ops.GetItem": get_item,
    "ops.Glu": activation("glu", axis=-1),
    "ops.Greater": pair("greater"),
    "ops.GreaterEqual": pair("greater_equal"),
    "ops.HardShrink": activation("hard_shrink", threshold=0.5),
    "ops.HardSigmoid": activation("hard_sigmoid"),
    "ops.HardSilu": activation("hard_silu"),
    "ops.HardTanh": activation("hard_tanh"),
    "ops.LeakyRelu": unary("leaky_relu", negative_slope=0.2),
    "ops.Less": pair("less"),
    "ops.LessEqual": pair("less_equal"),
    "ops.Log": unary("log"),
    "ops.Log10": scaled_log(1 / np.log(10)),
    "ops.Log1p": unary("log1p"),
    "ops.Log2": scaled_log(1 / np.log(2)),
    "ops.LogSigmoid": activation("log_sigmoid"),
    "ops.LogSoftmax": lambda call: reductions.log_softmax(call.x, call.axis()),
    "ops.LogicalAnd": pair("logical_and"),
    "ops.LogicalNot": unary("logical_not"),
    "ops.LogicalOr": pair("logical_or"),
    "ops.LogicalXor": pair("logical_xor"),
    "ops.Logsumexp": log_sum_exp,
    "ops.Matmul": product,
    "ops.Max": reduction("max"),
    "ops.Maximum": pair("maximum"),
    "ops.Mean": reduction("mean"),
    "ops.Min": reduction("min"),
    "ops.Minimum": pair("minimum"),
    "ops.Moveaxis": moved_axis,
    "ops.Multiply": pair("multiply"),
    "ops.Negative": unary("negative"),
    "ops.NotEqual": pair("not_equal"),
    "ops.OnesLike": filled(1),
    "ops.Pad": padded,
    "ops.Power": power,
    "ops.Reciprocal": unary("reciprocal"),
    "ops.Relu": unary("relu"),
    "ops.Relu6": activation("relu6"),
    "ops.Repeat": repeat,
    "ops.Reshape": reshape_all,
    "ops.Round": rounded,
    "ops.Rsqrt": unary("rsqrt"),
    "ops.Selu": lambda call: pointwise.elementwise("selu", call.x, numbers=SELU),
    "ops.Sigmoid": unary("sigmoid"),
    "ops.Sign": unary("sign"),
    "ops.Silu": unary("silu"),
    "ops.Sin": unary("sin"),
    "ops.Sinh": unary("sinh"),
    "ops.SoftShrink": activation("soft_shrink", threshold=0.5),
    "ops.Softmax": softmax,
    "ops.Softplus": unary("softplus"),
    "ops.Softsign": unary("softsign"),
    "ops.Sparsemax": activation("sparsemax", axis=-1),
    "ops.SparsePlus": activation("sparse_plus"),
    "ops.SparseSigmoid": activation("sparse_sigmoid"),
    "ops.Sqrt": unary("sqrt"),
    "ops.Square": unary("square"),
    "ops.Squareplus": activation("squareplus", b=4),
    "ops.Squeeze": lambda call: shaping.squeeze(
        call.x, call.wholes("axis", len(rows(call.config.get("axis"))) or 1)
    ),
    "ops.Stack": stack,
    "ops.Std": lambda call: pointwise.elementwise("sqrt", variance(call)),
    "ops.StopGradient": same,
    "ops.Subtract": pair("subtract"),
    "ops.Sum": reduction("sum"),
    "ops.Swapaxes": swapped_axes,
    "ops.Tan": unary("tan"),
    "ops.Tanh": unary("tanh"),
    "ops.TanhShrink": activation("tanh_shrink"),
    "ops.Transpose": lambda call: shaping.transpose(call.x, call.wholes("axes", len(call.x.axes))),
    "ops.TrueDivide": pair("divide"),
    "ops.Var": variance,
    "ops.Where": where,
    "ops.ZerosLike": filled(0),
}
"""The rule of each supported operation, with ops. ahead of its name."""
SEVERAL: Mapping[str, Callable[[KerasCall], list[Placed]]] = {
    "ConvLSTM1D": conv_lstm(1),
    "ConvLSTM2D": conv_lstm(2),
    "ops.Split": split,
    "ops.Unstack": unstack,
}
"""The rules of classes that have several results."""
FILLED = {"ops.Cast", "ops.OnesLike", "ops.ZerosLike"}
"""The operations that have a dtype of their own."""
