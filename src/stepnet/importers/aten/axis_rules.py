"""Rules for ATen operations on values with named axes, by the operators of `importers`; see
`rows.AtenOperation`.

A rule takes a `ReplayedNode` (one operation of a PyTorch graph with its evaluated arguments) and returns the
result. Some rules return None for an operation on features alone: then the rule on features in the table is
used.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.importers import shaping
from stepnet.importers.aten import rules
from stepnet.importers.aten.fixed_steps import cuts_of, is_steps, steps_joined
from stepnet.importers.aten.module_sequences import ordered, source_of
from stepnet.importers.aten.places import tiled
from stepnet.importers.aten.replay import (
    ReplayedNode,
    Rule,
    SequenceOrder,
    axis_of,
    fixed_regrouped,
    is_size,
    torch_name,
)
from stepnet.importers.aten.rows import aligned, at_extent, dims_of, scalar
from stepnet.importers.attention import attended
from stepnet.importers.axes import (
    BATCH,
    ONE,
    TIME,
    axis_error,
    extent_of,
    features_of,
    is_feature,
    is_keys,
    is_time,
    regrouped,
    size_of,
    symbols_in,
)
from stepnet.importers.placed import Placed
from stepnet.importers.products import product
from stepnet.importers.reductions import reduce
from stepnet.importers.selecting import concatenate, cut, step_at
from stepnet.importers.sizes import SEQUENCES
from stepnet.importers.values import deepest, first_feature

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


def operand(call: ReplayedNode) -> Placed:
    """Returns the only operand of a graph node, cast to the dtype that PyTorch infers for the result."""
    (x,) = call.operands
    return x.with_value(x.value.astype(torch_name(call.tensors[0])))


# ---- axes --------------------------------------------------------------------------------------------------


def viewed(call: ReplayedNode) -> Placed:
    """Evaluates a `view` node of a PyTorch graph: the same numbers in the same order, with other axes. Axes
    of sequences and steps are found by their sizes: in a graph of a file, which may fix the numbers of
    sequences and steps, by these numbers (`stated`); otherwise they are symbols.
    """
    x, stated = call.operands[0], call.replay.stated
    joined = steps_joined(call, x)
    if joined is not None:
        return joined
    sizes = call.sizes(call.tensors[0].shape)
    return x.shaped(regrouped(x.axes, sizes) if stated is None else fixed_regrouped(x.axes, sizes, stated))


def squeezed(call: ReplayedNode) -> Placed:
    """Evaluates a `squeeze`, `flatten` or `reshape` node of a PyTorch graph as `viewed` does. Where a file
    states so many steps that one is left of them, as after a pooling over all, the node may make a feature of
    it.
    """
    (x,), stated = call.operands, call.replay.stated
    if stated is None:
        return viewed(call)
    known = shaping.beside_one_step(
        replace(x, stated=tuple(stated.items())), call.sizes(call.tensors[0].shape)
    )
    return viewed(replace(call, arguments={**call.arguments, "self": replace(known, stated=x.stated)}))


def permuted(call: ReplayedNode) -> Placed:
    """Evaluates a `permute` node of a PyTorch graph: brings the axes of the operand into another order."""
    (x,) = call.operands
    return shaping.transpose(x, [dim % len(x.axes) for dim in call.arguments["dims"]])


def expanded(call: ReplayedNode) -> Placed:
    """Evaluates an `expand` node of a PyTorch graph: repeats axes of size one to the sizes of the result,
    which may be the numbers of sequences and steps.
    """
    (x,), sizes = call.operands, call.sizes(call.tensors[0].shape)
    if call.replay.stated is not None:
        own = (ONE,) * (len(sizes) - len(x.axes)) + x.axes
        sizes = [
            size_of(axis)
            if not is_feature(axis)
            else size_of(TIME)
            if axis == ONE and is_steps(call, size)
            else size
            for axis, size in zip(own, sizes, strict=True)
        ]
    extent = extent_of(tuple(axis_of(size, {}) for size in sizes))
    return shaping.expand(at_extent(x, extent), sizes)


def repeated(call: ReplayedNode) -> Placed:
    """Evaluates a `repeat` node of a PyTorch graph: puts copies of the operand one after the other along its
    axes.

    Its argument `repeats` has a number for each axis; axes of size one are added in front. Only an axis of
    size one may be repeated to the number of sequences or steps, which cannot be repeated themselves.
    """
    (x,), repeats = call.operands, call.arguments["repeats"]
    own = (ONE,) * (len(repeats) - len(x.axes)) + x.axes
    pairs = list(zip(own, repeats, strict=True))
    sizes = [size_of(TIME) if is_steps(call, count) else call.size(count) for count in repeats]
    axes = tuple(
        shaping.broadcast_axis(axis, size if axis == ONE else 1, x)
        for axis, size in zip(own, sizes, strict=True)
    )
    value = shaping.broadcast_to(at_extent(x, extent_of(axes)), axes).value
    for dim, (axis, count) in enumerate(pairs):
        if axis != ONE and count != 1:
            if not is_feature(axis) or is_size(count):
                raise axis_error(max(symbols_in((axis,)), default=SEQUENCES), axes)
            value = tiled(value, first_feature(value) + len(features_of(axes[:dim])), count)
            axes = (*axes[:dim], (prod(features_of((axis,))) * count,), *axes[dim + 1 :])
    return Placed(value, axes)


def concatenated(call: ReplayedNode) -> Placed:
    """Evaluates a `cat` node of a PyTorch graph: concatenates tensors, along the axis `dim`, in the dtype of
    the result.

    Tensors of shape [0], which PyTorch allows among others, are left out. Other tensors are repeated at each
    row or step, where one of them has these.
    """
    dtype = torch_name(call.tensors[0])
    operands = [x.with_value(x.value.astype(dtype)) for x in call.operands if x.axes != ((0,),)]
    dim = int(call.arguments["dim"])
    if any(is_time(x.axes[dim]) for x in operands) and any(is_feature(x.axes[dim]) for x in operands):
        return concatenate(operands, dim)
    extent = deepest([x.value for x in operands])
    return concatenate([at_extent(x, extent) for x in operands], dim)


# ---- along axes --------------------------------------------------------------------------------------------


def reduced(how: str) -> Rule:
    """Makes the function that evaluates a reduction node of PyTorch. how: its name, such as "max"."""

    def rule(call: ReplayedNode) -> Placed:
        """Reduces the operand over the axes `dim` of the node; all axes if it has none."""
        x = operand(call)
        return reduce(x, dims_of(x, call.arguments.get("dim")), how, bool(call.arguments.get("keepdim")))

    return rule


def any_true(call: ReplayedNode) -> Placed:
    """Evaluates an `any` node of a PyTorch graph: tells whether any number along the axes is not zero."""
    (x,) = call.operands
    x = x.with_value(rules.as_bool(x.value))
    return reduce(x, dims_of(x, call.arguments.get("dim")), "max", bool(call.arguments.get("keepdim")))


def along(function: Callable[[Placed, int], Placed]) -> Rule:
    """Makes the function that evaluates a node of a PyTorch graph whose operation is along one axis.
    function: computes the result from a value and the axis.
    """

    def rule(call: ReplayedNode) -> Placed:
        """Applies the function to the operand and the axis `dim` of the node."""
        x = operand(call)
        return function(x, x.axis(call.arguments["dim"]))

    return rule


# ---- steps and sequences that are picked -------------------------------------------------------------------


NO_END = 2**62
"""The least number that as the end of a slice stands for none: PyTorch writes the largest of 64 bits."""


def selected(call: ReplayedNode) -> Any:
    """Evaluates a `select` node of a PyTorch graph: the first or last step of each sequence. Returns None for
    an axis of features, for which `places.along` is called instead.
    """
    (x,), dim = call.operands, int(call.arguments["dim"])
    return end_step(call, x, dim, call.arguments["index"], keep=False) if is_time(x.axes[dim]) else None


def sliced(call: ReplayedNode) -> Any:
    """Evaluates a `slice` node of a PyTorch graph: takes all sequences, all steps, or the first or last step
    of a value. Returns None for features, and for a part of the sequences: `places.sliced` is called instead,
    which slices features and refuses sequences.

    In a file of torch.export, an end that is a plain number cuts steps off, although it may be the number of
    steps of the example that was exported.
    """
    x, dim = call.operands[0], int(call.arguments["dim"])
    start, end, step = (call.arguments[name] for name in ("start", "end", "step"))
    axis, is_open = x.axes[dim], end is None or not isinstance(end, int) or end >= NO_END
    if is_feature(axis):
        return None
    if call.replay.stated is not None and is_time(axis):
        end_ = None if is_open and not is_size(end) else end
        cuts = cuts_of(call, x, dim % len(x.axes), start or 0, end_)
        if cuts is not None:
            return x if (*cuts, step) == (0, 0, 1) else cut(x, dim % len(x.axes), *cuts, step)
    size = call.size(call.tensors[0].shape[dim])
    if (start or 0, step) == (0, 1) and is_open and size == size_of(axis, call.replay.stated):
        return x
    if not is_time(axis):
        return None
    is_end = step == 1 and (is_open if start not in (None, 0) else end == 1)
    return end_step(call, x, dim, (start or 0) if is_end else None, keep=True)


def end_step(call: ReplayedNode, x: Placed, dim: int, index: Any, keep: bool) -> Placed:
    """Takes the first or last step of each sequence of x; raises `StepError` for other steps, as lengths
    differ.

    call: the graph node, whose graph names the symbolic sizes.
    dim: the axis of the steps in x.
    index: the step that the user's code asks for, such as 0, -1 or x.size(1) - 1; None is neither.
    keep: whether an axis of size one takes the place of the steps.
    """
    how = "last" if call.text(index) in ("-1", "steps - 1") else "first" if index == 0 else None
    if how is None:
        raise refuse(
            "of each sequence, a model can take all steps, the first, x[:, 0], or the last, x[:, "
            "-1]: the lengths of sequences differ"
        )
    return step_at(x, dim % len(x.axes), how, keep)


OF_A_FILE = (
    "it takes steps at numbers of an input, and no input of a file of torch.export is the lengths of the "
    "sequences: for the step at lengths - 1 trace the module, stepnet.torch.graph(model, (x, lengths))"
)


def is_last(call: ReplayedNode, index: Any) -> bool:
    """Tells whether integers (`index`) are computed as `lengths - 1` in the net, perhaps limited to at least
    0: the positions of the last steps. call: the graph node, whose graph has the lengths.
    """
    if not isinstance(index, Placed):
        return False
    builder, number = index.value.builder, source_of(index.value)
    node = builder.nodes[number]
    if node.operation == "maximum":  # at least 0, for empty sequences
        node = builder.nodes[source_of(Traced(builder, node.inputs[0]))]
    if node.operation not in ("subtract", "add"):
        return False
    count, change = (builder.nodes[source_of(Traced(builder, n))] for n in node.inputs)
    lengths = builder.nodes[source_of(call.replay.lengths)]
    literal = change.attributes["value"].value if change.operation == "constant" else 0
    return count is lengths and bool(literal == (1 if node.operation == "subtract" else -1))


def indexed(call: ReplayedNode) -> Any:
    """Evaluates an `index` node of a PyTorch graph: reorders sequences by an order, as x[order], or takes
    their last steps, as x[torch.arange(n), lengths - 1]. Returns None for other indices: `places.indexed` is
    called instead, which takes features and refuses the rest.
    """
    x, indices = call.arguments["self"], call.arguments["indices"]
    used = {dim: index for dim, index in enumerate(indices) if index is not None}
    if len(used) == 1 and isinstance(order := next(iter(used.values())), SequenceOrder):
        return ordered(x, next(iter(used)), order)
    rows = [dim for dim, index in used.items() if index == SequenceOrder()]
    steps = [dim for dim, index in used.items() if is_last(call, index)]
    if len(used) == 2 and rows and steps and x.axes[rows[0]] == BATCH and x.axes[steps[0]] == TIME:
        return step_at(x, steps[0], "last", keep=False)
    if len(used) == 2 and call.replay.stated is not None and any(x.axes[dim] == TIME for dim in used):
        raise refuse(OF_A_FILE)
    return None


def index_selected(call: ReplayedNode) -> Any:
    """Evaluates an `index_select` node of a PyTorch graph whose index is an order of the sequences, as a sort
    returns it: reorders the operand's sequences. Returns None for other indices: then `places.index_selected`
    is called, which takes features.
    """
    x, dim, index = call.arguments["self"], call.arguments["dim"], call.arguments["index"]
    return ordered(x, dim, index) if isinstance(index, SequenceOrder) else None


def gathered(call: ReplayedNode) -> Any:
    """Evaluates a `gather` node of a PyTorch graph: takes the last step of each sequence. Returns None for an
    axis of features, for which `places.gathered` is called instead.
    """
    x, dim, index = (call.arguments[name] for name in ("self", "dim", "index"))
    if x.axes[dim] != TIME:
        return None
    if not is_last(call, index):
        raise refuse(
            OF_A_FILE
            if call.replay.stated is not None
            else "in a model, gather over steps can only take the last step of each sequence, at lengths - 1"
        )
    return step_at(x, dim % len(x.axes), "last", keep=True)


def replaced(call: ReplayedNode) -> Any:
    """Evaluates a `slice_scatter` node of a PyTorch graph that replaces all sequences or all steps of a
    tensor: returns the new values, broadcast to the tensor's axes. Returns None for other axes: then
    `places.slice_replaced` is called, which replaces features.
    """
    x, source, dim = (call.arguments[name] for name in ("self", "src", "dim"))
    whole = not is_feature(x.axes[dim]) and source.axes[dim] == x.axes[dim]
    return shaping.broadcast_to(at_extent(source, extent_of(x.axes)), x.axes) if whole else None


def unchanged_order(call: ReplayedNode) -> Any:
    """Evaluates a cast or copy node of a PyTorch graph whose operand is an order of sequences (a
    permutation): returns it unchanged. Returns None for other values, so that the operation's rule for
    features is called.
    """
    x = call.arguments["self"]
    return x if isinstance(x, SequenceOrder) else None


def aliased(call: ReplayedNode) -> Any:
    """Evaluates an `alias` node of a PyTorch graph; raises `StepError` for one of sequences or steps whose
    number a file fixes: torch.export writes a slice as an alias where it takes all of the example's.
    """
    x, fixed = call.arguments["self"], call.replay.stated or {}
    axes = x.axes if isinstance(x, Placed) else ()
    if any(len(axis) == 1 and axis[0] in fixed for axis in axes):
        raise refuse(
            "torch.export writes so a slice as long as the sequences of the example, or longer: leave the "
            "slice out, or export with dynamic shapes"
        )
    return unchanged_order(call)


def arange(call: ReplayedNode) -> Any:
    """Evaluates an `arange` node of a PyTorch graph: returns the number of each step for a range over the
    steps, or for one over the sequences the `SequenceOrder` that leaves their order unchanged. Returns None
    if the end is a plain number: then `places.arange` is called, which makes a constant.
    """
    end_ = call.arguments["end"]
    if is_steps(call, end_) and (call.arguments["start"], call.arguments["step"]) == (0, 1):
        return shaping.step_numbers(call.replay.like, torch_name(call.tensors[0]))
    bounds = [call.arguments[name] for name in ("start", "end", "step")]
    if not any(map(is_size, bounds)):
        return None
    axes = call.axes(call.tensors[0], [])
    if (bounds[0], bounds[2]) != (0, 1) or not is_size(end_):
        raise refuse(
            "a range over steps or sequences starts at 0, ends at their number and counts by 1, as "
            "torch.arange(x.size(1)): compute other numbers of it"
        )
    if axes not in ((TIME,), (BATCH,)):
        raise refuse(
            "a range is over the steps of an input: number them ahead of a convolution or pooling that gives "
            "another number of steps"
        )
    if axes == (BATCH,):
        return SequenceOrder()
    return shaping.step_numbers(call.replay.like, torch_name(call.tensors[0]))


def filled_with_steps(call: ReplayedNode) -> Placed | None:
    """Evaluates a `full` node of a PyTorch graph that makes one number for each sequence, the number of its
    steps, as torch.full((x.size(0),), x.size(1)) does; returns None for other numbers.
    """
    number = call.arguments["fill_value"]
    if not is_size(number):
        return None
    axes = call.axes(call.tensors[0], call.operands)
    if axes != (BATCH,):
        raise refuse(
            "a number of steps fills a tensor of one number for each sequence, as torch.full((x.size(0),), n)"
        )
    value = scalar(call, number).value
    return Placed(value.astype(torch_name(call.tensors[0])), axes)


# ---- products ----------------------------------------------------------------------------------------------


def matrix_product(a: Placed, b: Placed) -> Placed:
    """Multiplies the matrices in the last two axes of a and b. If one of them has a matrix for each row or
    step, the other is repeated to as many, unless it is a parameter, or the product sums over the steps (the
    last axis of a).
    """
    if not is_time(a.axes[-1]) and not is_keys(a.axes[-1]):
        extent = deepest([a.value, b.value])
        a, b = at_extent(a, extent), at_extent(b, extent)
    return product(a, b, rules.product)


def attention(call: ReplayedNode) -> Placed:
    """Evaluates a scaled dot-product attention node of a PyTorch graph; raises `StepError` for dropout."""
    if call.arguments.get("dropout_p"):
        raise refuse("dropout draws random numbers: call .eval() on the module")
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    settings = call.arguments.get("is_causal", False), call.arguments.get("scale")
    return attended(query, key, value, call.arguments.get("attn_mask"), *settings)


def multiplied(call: ReplayedNode) -> Placed:
    """Evaluates an `mm`, `bmm` or `mv` node of a PyTorch graph: a product of matrices, or with a vector."""
    a, b = call.operands
    if len(b.axes) > 1:
        return matrix_product(a, b)
    column = matrix_product(a, b.shaped((*b.axes, ONE)))
    return column.shaped(column.axes[:-1])


def scaled_sum(call: ReplayedNode) -> Placed:
    """Evaluates an `addmm` node of a PyTorch graph: beta x + alpha (a b), with a product of matrices a b.

    Where beta is 0, x is not read, as in PyTorch.
    """
    x, a, b = call.operands
    result = matrix_product(a, b)
    beta, alpha = call.arguments["beta"], call.arguments["alpha"]
    value = result.value if alpha == 1 else result.value * alpha
    if beta == 0:
        return Placed(value, result.axes)
    other = aligned(call, x, result.axes)
    return Placed((other if beta == 1 else other * beta) + value, result.axes)
