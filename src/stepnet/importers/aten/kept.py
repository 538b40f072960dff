"""The ATen operations of files of torch.export: the operations of the table, and composed ones, which a trace
of PyTorch replaces by simpler ones.

    linear.default(x, W, b)       ->   x W' + b
    gru.input(x, h, weights)      ->   the layers of a torch.nn.GRU
    conv1d.padding(x, W, b)       ->   a convolution over the steps of each sequence

A file does not hold the default values of arguments, so the rules here have them, and `DEFAULTS` has those
of the other table's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import refuse
from stepnet.importers import convolving, selecting
from stepnet.importers.activations import hard_sigmoid, hard_swish, log_sigmoid
from stepnet.importers.aten import axis_rules, channels, places, rules
from stepnet.importers.aten.backwards import flipped
from stepnet.importers.aten.channels import feature_of
from stepnet.importers.aten.layers import recurrent
from stepnet.importers.aten.replay import NoValue, ReplayedNode
from stepnet.importers.aten.rows import AtenOperation, aligned, on_features, with_axes
from stepnet.importers.aten.rules import InferredResult
from stepnet.importers.aten.table import ATEN, elementwise, pointwise, promoted, uncast
from stepnet.importers.aten.windows import POOLINGS
from stepnet.importers.einsum import einsum
from stepnet.importers.extending import pad_with_copies
from stepnet.importers.placed import Placed
from stepnet.importers.reductions import log_softmax, softmax
from stepnet.importers.shaping import transpose, unsqueeze
from stepnet.importers.values import check_room, deepest, part_of

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "addmm.default": {"beta": 1, "alpha": 1},
    "argmax.default": {"dim": None},
    "argmin.default": {"dim": None},
    "cat.default": {"dim": 0},
    "linalg_vector_norm.default": {"dim": None},
    "slice.Tensor": {"dim": 0, "start": None, "end": None, "step": 1},
    "slice_scatter.default": {"dim": 0, "start": None, "end": None, "step": 1},
    "split_with_sizes.default": {"dim": 0},
    "var.correction": {"dim": None},
    "var_mean.correction": {"dim": None},
}
"""The default values of arguments that rules of the table read by name."""


MOST_MADE = 1 << 22
"""The largest number of elements of an array that a file describes by its size alone."""


# ---- elementwise -------------------------------------------------------------------------------------------


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """Computes ATen's `softplus`: log(1 + exp(beta x)) / beta, which is x above the threshold."""
    return numpy.where(x * beta > threshold, x, functions.softplus(x * beta) / beta)


def reversed_subtract(a: Any, b: Any, alpha: Any = 1) -> Any:
    """Computes ATen's `rsub`: b - alpha a."""
    return b - rules.scaled(a, alpha)


def mish(x: Any) -> Any:
    """Computes x tanh(softplus(x))."""
    return x * np.tanh(functions.softplus(x))


def sixth_sigmoid(x: Any) -> Any:
    """Computes ATen's `hardsigmoid`: x / 6 + 0.5, limited to 0..1."""
    return hard_sigmoid(x, 1 / 6, 0.5)


def selu(x: Any) -> Any:
    """Computes the scaled exponential linear unit of x."""
    return rules.elu(x, 1.6732632423543772, 1.0507009873554805)


def limited_above(x: Any, max: Any) -> Any:  # noqa: A002 - PyTorch's names
    """Computes ATen's `clamp_max`: x, at most `max`."""
    return rules.clamp(x, None, max)


def masked(result: InferredResult, x: Any, mask: Any, value: Any) -> Any:
    """Computes ATen's `masked_fill`: the value where the mask is true, else x."""
    return numpy.where(mask, *rules.to(result.dtype, (value, x)))


def kept(call: ReplayedNode) -> Placed:
    """Evaluates a dropout node of a PyTorch graph: returns the operand, as in evaluation; raises `StepError`
    if it is in training with a probability above 0.
    """
    if call.arguments.get("train") is not False and call.arguments.get("p", 0.5) != 0:
        raise refuse("dropout draws random numbers: call .eval() on the module ahead of torch.export.export")
    return next(iter(call.operands))


# ---- new values --------------------------------------------------------------------------------------------


def made(number: float | None = None, like: bool = False) -> AtenOperation:
    """Makes the entry, in the table of PyTorch's operations, of one that returns a tensor filled with one
    number, such as `zeros` or `full_like`.

    number: the number; None for the argument `fill_value`. like: whether it has the axes of the operand.
    """

    def rule(call: ReplayedNode) -> Placed:
        """Makes the filled tensor, with the axes of the operand (`like`) or of the stated sizes. The number
        is `number` or the argument `fill_value`; raises `StepError` if that is computed.
        """
        axes = call.operands[0].axes if like else call.axes(call.tensors[0], [])
        value = call.arguments.get("fill_value") if number is None else number
        if isinstance(value, Placed):
            raise refuse("it fills a tensor with a number that is computed")
        return with_axes(places.filled(call.result(axes), None, value), [axes])

    return AtenOperation(on_axes=rule)


def arange(call: ReplayedNode) -> Any:
    """Evaluates an `arange` node of a PyTorch graph, from `start` (by default 0) to `end` by `step` (1): as
    the numbers of steps or sequences if `end` is their number, else as a constant.
    """
    arguments = {"start": 0, "step": 1, **call.arguments}
    found = axis_rules.arange(replace(call, arguments=arguments))
    if found is not None:
        return found
    start, end, step = (arguments[name] for name in ("start", "end", "step"))
    if abs((end - start) / step) > MOST_MADE:
        raise refuse(f"it makes more than {MOST_MADE} numbers")
    axes = call.axes(call.tensors[0], [])
    return with_axes(places.arange(call.result(axes), start, end, step), [axes])


def repeat(call: ReplayedNode) -> Placed:
    """Evaluates a `repeat` node, after a check of its sizes."""
    check_room([count for count in call.arguments["repeats"] if isinstance(count, int)])
    return axis_rules.repeated(call)


# ---- axes --------------------------------------------------------------------------------------------------


def transposed(call: ReplayedNode) -> Placed:
    """Evaluates a `transpose` or `t` node of a PyTorch graph: exchanges two axes, by default 0 and 1."""
    x = call.operands[0]
    order = [*range(len(x.axes))]
    if len(order) < 2:
        return x
    a, b = (x.axis(call.arguments.get(name, place)) for place, name in enumerate(("dim0", "dim1")))
    order[a], order[b] = b, a
    return transpose(x, order)


def stacked(call: ReplayedNode) -> Placed:
    """Evaluates a `stack` node of a PyTorch graph: joins tensors along a new axis."""
    dim = call.arguments.get("dim", 0)
    dtype = call.result(()).dtype
    parts = [x.with_value(x.value.astype(dtype)) for x in call.operands]
    return selecting.concatenate([unsqueeze(x, [dim]) for x in parts], parts[0].axis(dim, 1))


def split(call: ReplayedNode) -> list[Placed]:
    """Evaluates `split` or `chunk` of PyTorch: cuts a feature axis into the parts that it inferred."""
    x = call.operands[0]
    dim = feature_of(x, call.arguments.get("dim", 0))
    return selecting.split(x, dim, [tensor.shape[dim] for tensor in call.tensors])


def unbound(call: ReplayedNode) -> list[Placed]:
    """Evaluates an `unbind` node of a PyTorch graph: lists the entries along an axis of features."""
    x = call.operands[0]
    dim = feature_of(x, call.arguments.get("dim", 0))
    axes, place = (*x.axes[:dim], *x.axes[dim + 1 :]), x.feature(dim) + len(x.features)
    return [x.with_value(part_of(x.value, place, number), axes) for number in range(x.axes[dim][0])]  # type: ignore[arg-type]


def narrowed(call: ReplayedNode) -> Placed:
    """Evaluates a `narrow` node of a PyTorch graph: takes a part of an axis of features."""
    x, start = call.operands[0], call.arguments["start"]
    dim = feature_of(x, call.arguments["dim"])
    return selecting.sliced(x, dim, slice(start, start + call.arguments["length"]))


# ---- layers ------------------------------------------------------------------------------------------------


def embedded(call: ReplayedNode) -> Placed:
    """Evaluates an `embedding` node: rows of a table at integers."""
    table, index = call.arguments["weight"], call.arguments["indices"]
    return index.with_value(places.embedded(table.value, index.value), index.axes + table.axes[1:])


def linear(call: ReplayedNode) -> Placed:
    """Evaluates a `linear` node of a PyTorch graph: x times the transposed weight, plus an optional bias."""
    x, weight = call.arguments["input"], call.arguments["weight"]
    result = axis_rules.matrix_product(x, transpose(weight, [1, 0]))
    bias = call.arguments.get("bias")
    return result if bias is None else result.with_value(result.value + aligned(call, bias, result.axes))


def matmul(call: ReplayedNode) -> Placed:
    """Evaluates a `matmul` node of a PyTorch graph: a product of matrices, or with a vector."""
    if len(call.operands[0].axes) < 2:
        raise refuse("it multiplies a vector by a matrix: multiply a matrix of one row")
    return axis_rules.multiplied(call)


def einsummed(call: ReplayedNode) -> Placed:
    """Evaluates an `einsum` node of PyTorch: products, summed over the letters that the result lacks."""
    extent = deepest([x.value for x in call.operands])
    operands = [axis_rules.at_extent(x, extent) for x in call.operands]
    return einsum(call.arguments["equation"], operands, rules.product)


def unbiased(variance: AtenOperation, root: bool) -> AtenOperation:
    """Makes the entry, in the table of PyTorch's operations, of a variance or a standard deviation, in any of
    their forms: `correction` is a number that is subtracted from the count, and `unbiased` stands for 1 or 0.

    variance: the entry of `var.correction`. root: whether it is the standard deviation.
    """

    def rule(call: ReplayedNode) -> Placed:
        """Evaluates a `var` or `std` node of a PyTorch graph: the variance, by the rule of `var.correction`,
        and its root for a deviation.
        """
        given = call.arguments
        number = given.get("correction", int(given.get("unbiased", True)))
        arguments = {"self": given["self"], "dim": given.get("dim"), "correction": number}
        arguments["keepdim"] = given.get("keepdim", False)
        node = replace(call.node, positions=("self",), options=("dim", "correction", "keepdim"))
        made: Placed = on_features(replace(call, node=node, arguments=arguments), variance)
        return made.with_value(np.sqrt(made.value)) if root else made

    return AtenOperation(on_axes=rule)


# ---- over windows of steps ---------------------------------------------------------------------------------


def single(number: Any, default: int) -> Any:
    """Returns the only entry of a list, as settings of one axis are written; the default for an empty one."""
    return number if not isinstance(number, list) else number[0] if number else default  # type: ignore[return-value]


COPIES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""The modes of padding that put copies of entries around an axis, with their names in `numpy.pad`."""


def copied(x: Placed, pads: Sequence[int], mode: str) -> Placed:
    """Pads the last axes of a value at both ends with copies of its entries. pads: the numbers of copies at
    the two ends of the last axis, then of the axis before it. mode: PyTorch's name.
    """
    rank = len(x.axes)
    ends = [(rank - 1 - at, pads[2 * at], pads[2 * at + 1]) for at in range(len(pads) // 2)]
    return pad_with_copies(x, ends, COPIES[mode])


def padded_by(mode: str, call: ReplayedNode) -> Placed:
    """Evaluates a node of a PyTorch graph that pads the last axes by one mode, such as `reflection_pad1d`."""
    return copied(call.operands[0], call.arguments["padding"], mode)


def padded(call: ReplayedNode) -> Placed:
    """Evaluates a `pad` node of a PyTorch graph: numbers around features, zeros around steps, which only a
    convolution reads, or copies of steps.
    """
    x, pads, number = call.operands[0], call.arguments["pad"], call.arguments.get("value") or 0
    mode = call.arguments.get("mode", "constant")
    if mode in COPIES:
        return copied(x, pads, mode)
    if mode != "constant":
        raise refuse(f"padding of mode {mode} is not an operation of a model; use torch.cat")
    rank = len(x.axes)
    sides = [(rank - 1 - at, *pads[2 * at : 2 * at + 2]) for at in range(len(pads) // 2)]
    return selecting.pad(x, sides, number)


def convolution(call: ReplayedNode) -> Placed:
    """Evaluates a `conv1d`, `conv_transpose1d` or `convolution` node, of a PyTorch graph, over the steps of
    each sequence. Zeros that a `pad` put around the steps become its own padding.
    """
    x, weight, bias = call.arguments["input"], call.arguments["weight"], call.arguments.get("bias")
    stride, dilation = (single(call.arguments.get(name, 1), 1) for name in ("stride", "dilation"))
    number, groups = single(call.arguments.get("padding", 0), 0), call.arguments.get("groups", 1)
    zeros = x.value if isinstance(x.value, convolving.ZerosAround) else convolving.ZerosAround("", x, 0, 0)
    if len(weight.axes) != 3:
        raise refuse("a convolution over two or three axes is no operation of a model")
    if call.name.startswith("conv_transpose1d") or call.arguments.get("transposed", False):
        more = single(call.arguments.get("output_padding", 0), 0)
        return convolving.convolve_transposed(
            x, weight, bias, stride, dilation, (number, number), more, groups
        )
    size: int = weight.axes[-1][0]
    reach = (size - 1) * dilation
    named = {"same": (reach // 2, reach - reach // 2), "valid": (0, 0)}
    before, after = named.get(number, (number, number))
    window = convolving.window_of(size, stride, dilation, zeros.before + before, zeros.after + after)
    return convolving.convolve(zeros.source, weight, bias, window, groups)


def pooled(how: str) -> AtenOperation:
    """Makes the table entry of an operation that pools over windows of steps. how: "max" or "mean"."""

    def rule(call: ReplayedNode) -> Placed:
        """Pools over windows of steps; raises `StepError` for windows that end beyond the sequence."""
        x, size = call.arguments["self"], single(call.arguments["kernel_size"], 0)
        stride, number = (
            single(call.arguments.get("stride", []), size),
            single(call.arguments.get("padding", 0), 0),
        )
        if call.arguments.get("ceil_mode"):
            raise refuse(
                "its ceil_mode has windows that end beyond the sequence: pad the steps, or leave it out"
            )
        counts = call.arguments.get("count_include_pad", True)
        name = "max" if how == "max" else "mean" if counts else "mean of steps"
        window = convolving.window_of(
            size, stride, single(call.arguments.get("dilation", 1), 1), number, number
        )
        return convolving.pool(x, lambda value: POOLINGS[name](value, window))

    return AtenOperation(on_axes=rule)


def pooled_to_one(how: str) -> AtenOperation:
    """Makes the entry, in the table of PyTorch's operations, of an adaptive pooling to one number for all
    steps. how: "max" or "mean".
    """

    def rule(call: ReplayedNode) -> Any:
        """Evaluates an adaptive pooling of a PyTorch graph: reduces the last axis, of steps, to one number;
        raises `StepError` for adaptive pooling to more than one.
        """
        if call.arguments["output_size"] != [1]:
            raise refuse("adaptive pooling of a model is over all steps, to a size of 1")
        reduced = axis_rules.reduced(how)(
            replace(call, arguments={**call.arguments, "dim": [-1], "keepdim": True})
        )
        return [reduced, NoValue("the place of a step")] if how == "max" else reduced

    return AtenOperation(on_axes=rule)


STATISTICS = NoValue("a mean or a deviation of a batch")

ROWS: Mapping[str, Callable[[ReplayedNode], Any]] = {
    **dict.fromkeys(("dropout.default", "feature_dropout.default", "alpha_dropout.default"), kept),
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), arange),
    "repeat.default": repeat,
    **dict.fromkeys(("transpose.int", "t.default"), transposed),
    "permute.default": lambda call: transpose(call.operands[0], call.arguments["dims"]),
    "stack.default": stacked,
    **dict.fromkeys(("split.Tensor", "chunk.default"), split),
    "unbind.int": unbound,
    "narrow.default": narrowed,
    **dict.fromkeys(
        ("reshape.default", "flatten.using_ints", "squeeze.default", "squeeze.dim"), axis_rules.squeezed
    ),
    "unflatten.int": axis_rules.viewed,
    "view_as.default": lambda call: axis_rules.viewed(
        replace(call, arguments={"self": call.arguments["self"]})
    ),
    "expand_as.default": lambda call: axis_rules.expanded(
        replace(call, arguments={"self": call.arguments["self"]})
    ),
    "embedding.default": embedded,
    "scaled_dot_product_attention.default": axis_rules.attention,
    "linear.default": linear,
    "matmul.default": matmul,
    "batch_norm.default": channels.batch_norm,
    "group_norm.default": channels.group_norm,
    "instance_norm.default": channels.instance_norm,
    "glu.default": channels.gated,
    "prelu.default": channels.sloped,
    "einsum.default": einsummed,
    "flip.default": flipped,
    "_native_batch_norm_legit_no_training.default": lambda call: [
        channels.batch_norm(call),
        STATISTICS,
        STATISTICS,
    ],
    **dict.fromkeys(
        ("conv1d.default", "conv1d.padding", "conv_transpose1d.default", "convolution.default"), convolution
    ),
    "pad.default": padded,
    **{
        f"{name}_pad{places}d.default": partial(padded_by, mode)
        for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
        for places in (1, 2)
    },
    "softmax.int": axis_rules.along(softmax),
    "log_softmax.int": axis_rules.along(log_softmax),
    "sum.default": axis_rules.reduced("sum"),
    "mean.default": axis_rules.reduced("mean"),
    **{f"{name}.input": partial(recurrent, name) for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")},
}
"""The rules of operations on values with named axes."""

CAST = AtenOperation(rules.cast, True)
FILLED = {"zeros": 0, "ones": 1, "full": None}

EXPORTED: Mapping[str, AtenOperation] = {
    **ATEN,
    **{name: AtenOperation(on_axes=rule) for name, rule in ROWS.items()},
    **{
        f"{prefix}{name}{end}.default": made(number, end == "_like")
        for name, number in FILLED.items()
        for prefix, end in (("", ""), ("new_", ""), ("", "_like"))
    },
    **dict.fromkeys(("to.dtype", "to.device", "to.dtype_layout", "to.other", "type_as.default"), CAST),
    "contiguous.default": uncast(rules.itself, folded=True),
    "max_pool1d.default": pooled("max"),
    "avg_pool1d.default": pooled("mean"),
    "adaptive_max_pool1d.default": pooled_to_one("max"),
    "adaptive_avg_pool1d.default": pooled_to_one("mean"),
    "layer_norm.default": replace(promoted(channels.layer_norm), on_axes=channels.over_features),
    "silu.default": elementwise("silu"),
    "square.default": elementwise("square"),
    "softplus.default": pointwise(softplus),
    "mish.default": pointwise(mish),
    "log_sigmoid.default": pointwise(log_sigmoid),
    "hardsigmoid.default": pointwise(sixth_sigmoid),
    "hardswish.default": pointwise(hard_swish),
    "relu6.default": elementwise("clip6"),
    "selu.default": pointwise(selu),
    "rsub.Scalar": pointwise(reversed_subtract),
    "rsub.Tensor": pointwise(reversed_subtract),
    "sub.Scalar": pointwise(rules.subtract),
    "div.Scalar": pointwise(rules.divide),
    **{
        f"{name}.{end}": unbiased(ATEN["var.correction"], name == "std")
        for name in ("var", "std")
        for end in ("default", "dim", "correction")
    },
    "clamp_min.default": pointwise(rules.clamp),
    "clamp_max.default": pointwise(limited_above),
    "masked_fill.Scalar": AtenOperation(masked, True),
    "masked_fill.Tensor": AtenOperation(masked, True),
    **dict.fromkeys(
        ("where.ScalarSelf", "where.ScalarOther", "where.Scalar"), AtenOperation(rules.chosen, True)
    ),
}
"""The entry of each operation that a file of torch.export may have, by name."""
