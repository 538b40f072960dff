"""Rules for operations of a module that move, join or go along the axes of sequences and steps."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from stepnet.rnn.counting import index_of
from stepnet.rnn.nested import reduce
from stepnet.torch import rules
from stepnet.torch.axes import (
    SEQUENCES,
    TIME,
    Axes,
    Axis,
    Placed,
    Size,
    extent_of,
    features_of,
    regrouped,
    symbols_in,
    text_of,
    to_extent,
)
from stepnet.torch.module_replay import (
    Call,
    Order,
    Rule,
    axis_of,
    by_table,
    mixes,
)
from stepnet.torch.module_sequences import (
    layer,
    ordered,
    packed,
    padded,
    scattered,
    sorted_rows,
    source_of,
)
from stepnet.torch.over_steps import total
from stepnet.torch.places import concatenated, times
from stepnet.torch.replay import is_size
from stepnet.trace.traced import Traced, refuse, reshaped

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


# ---- axes --------------------------------------------------------------------------------------------------


def viewed(call: Call) -> Placed:
    """The same numbers in other axes."""
    (x,) = call.operands
    return x.shaped(regrouped(x.axes, [call.size(size) for size in call.tensors[0].shape]))


def permuted(call: Call) -> Placed:
    """The axes in another order."""
    (x,) = call.operands
    return x.permuted([dim % len(x.axes) for dim in call.arguments["dims"]])


def expanded(call: Call) -> Placed:
    """Axes of size one repeated."""
    (x,) = call.operands
    return x.broadcast(widened(call, x, call.tensors[0].shape))


def widened(call: Call, x: Placed, sizes: Sequence[Any]) -> Axes:
    """The axes of x with those of size one in sizes."""
    own = ((1,),) * (len(sizes) - len(x.axes)) + x.axes
    return tuple(
        axis_of(call.size(size), {}) if axis == (1,) else axis for axis, size in zip(own, sizes, strict=True)
    )


def repeated(call: Call) -> Placed:
    """The numbers side by side with themselves."""
    (x,), repeats = call.operands, call.arguments["repeats"]
    own = ((1,),) * (len(repeats) - len(x.axes)) + x.axes
    axes = widened(
        call, x, [repeat if axis == (1,) else 1 for axis, repeat in zip(own, repeats, strict=True)]
    )
    value = x.broadcast(axes).value
    for dim, (axis, repeat) in enumerate(zip(own, repeats, strict=True)):
        if axis != (1,) and repeat != 1:
            place = Placed(value, axes).feature(dim)
            if place is None or is_size(repeat):
                raise mixes(max(symbols_in((axis,)), default=SEQUENCES), axes)
            place += 0 if value.is_constant else 1
            value = times(value, place, repeat)
            axes = (*axes[:dim], (prod(features_of((axis,))) * repeat,), *axes[dim + 1 :])
    return Placed(value, axes)


def joined(call: Call) -> Placed:
    """Tensors side by side along an axis. Along sequences or steps they lie one behind the other, as
    torch.stack has it before a view that takes them apart.
    """
    operands = [x for x in call.operands if x.axes != ((0,),)]
    dim = int(call.arguments["dim"]) % len(operands[0].axes)
    axis: Axis = operands[0].axes[dim]
    if symbols_in((axis,)) and all(x.axes[dim] == axis for x in operands):
        stacked = [x.shaped((*x.axes[:dim], (1,), *x.axes[dim:])) for x in operands]
        whole = (*stacked[0].axes[:dim], (len(stacked),), *stacked[0].axes[dim + 1 :])
        made = side_by_side(call, stacked, whole, dim)
        return made.shaped((*whole[:dim], (len(stacked), *axis), *whole[dim + 2 :]))
    for x in operands:
        if x.feature(dim) is None:
            raise mixes(max(symbols_in((x.axes[dim],))), x.axes)
    return side_by_side(call, operands, call.axes(call.tensors[0], operands), dim)


def side_by_side(call: Call, operands: Sequence[Placed], axes: Axes, dim: int) -> Placed:
    """Tensors side by side along an axis of features."""
    values = [x.broadcast((*axes[:dim], x.axes[dim], *axes[dim + 1 :])).value for x in operands]
    place = len(features_of(axes[:dim])) + (0 if values[0].is_constant else 1)
    return Placed(concatenated(call.result(axes), values, place), axes)


# ---- steps and sequences that are picked -------------------------------------------------------------------


def selected(call: Call) -> Any:
    """One of an axis: of steps the first or the last."""
    (x,) = call.operands
    return ended(call, x, call.arguments["dim"], call.arguments["index"]) or by_table(call)


def sliced(call: Call) -> Any:
    """Part of an axis: of sequences all, of steps all, the first or the last."""
    x, dim = call.operands[0], int(call.arguments["dim"])
    axis, size = x.axes[dim], call.size(call.tensors[0].shape[dim])
    if symbols_in((axis,)) and size == Size.of_axis(axis):
        return x
    start = call.arguments["start"] or 0
    return ended(call, x, dim, start if size == Size(1) else None) or by_table(call)


def ended(call: Call, x: Placed, dim: int, index: Any) -> Placed | None:
    """The first or last step, where an axis is the steps; None for features."""
    axis = x.axes[dim]
    if TIME not in axis:
        return None
    how = "last" if call.text(index) in ("-1", "steps - 1") else "first" if index == 0 else None
    if how is None:
        raise refuse(
            "of the steps of each sequence a model takes all, the first, x[:, 0], or the last, x[:, -1]: the "
            "lengths of sequences differ"
        )
    return end(call, x, how)


def end(call: Call, x: Placed, how: str) -> Placed:
    """A sequence's first or last step, in the axes of the result."""
    axes = call.axes(call.tensors[0], [x])
    return Placed(reshaped(reduce(x.value, how), features_of(axes)), axes)


def is_last(call: Call, index: Any) -> bool:
    """Whether integers are the lengths minus one: the places of the last steps."""
    if not isinstance(index, Placed):
        return False
    builder, number = index.value.builder, source_of(index.value)
    node = builder.nodes[number]
    if node.operation == "maximum":  # an empty sequence has none
        node = builder.nodes[source_of(Traced(builder, node.inputs[0]))]
    if node.operation not in ("subtract", "add"):
        return False
    count, change = (builder.nodes[source_of(Traced(builder, n))] for n in node.inputs)
    lengths = builder.nodes[source_of(call.replay.lengths)]
    literal = change.attributes["value"].value if change.operation == "constant" else 0
    return count is lengths and bool(literal == (1 if node.operation == "subtract" else -1))


def indexed(call: Call) -> Any:
    """Numbers at places: in an order of the sequences, or at the last steps."""
    x, indices = call.arguments["self"], call.arguments["indices"]
    used = {dim: index for dim, index in enumerate(indices) if index is not None}
    if len(used) == 1 and isinstance(order := next(iter(used.values())), Order):
        return ordered(x, next(iter(used)), order)
    rows = [dim for dim, index in used.items() if index == Order()]
    steps = [dim for dim, index in used.items() if is_last(call, index)]
    if len(used) == 2 and rows and steps and x.axes[rows[0]] == (SEQUENCES,) and x.axes[steps[0]] == (TIME,):
        return end(call, x, "last")
    return by_table(call)


def picked(call: Call) -> Any:
    """Numbers at places along one axis."""
    x, dim, index = call.arguments["self"], call.arguments["dim"], call.arguments["index"]
    return ordered(x, dim, index) if isinstance(index, Order) else by_table(call)


def gathered(call: Call) -> Any:
    """Numbers along one axis at places of their own: of steps the last ones."""
    x, dim, index = (call.arguments[name] for name in ("self", "dim", "index"))
    if x.axes[dim] != (TIME,):
        return by_table(call)
    if not is_last(call, index):
        raise refuse("of the steps of each sequence, gather takes the last ones, at lengths - 1")
    return end(call, x, "last")


def replaced(call: Call) -> Any:
    """A tensor of which part along an axis is replaced: of sequences and steps all."""
    x, source, dim = (call.arguments[name] for name in ("self", "src", "dim"))
    whole = symbols_in((x.axes[dim],)) and source.axes[dim] == x.axes[dim]
    return source.broadcast(x.axes) if whole else by_table(call)


def kept(call: Call) -> Any:
    """The value, or order, unchanged; or its numbers in another dtype."""
    x = call.arguments["self"]
    return x if isinstance(x, Order) else by_table(call)


def counted(call: Call) -> Any:
    """The numbers from 0: of the steps, or of the sequences, or known ones."""
    end_ = call.arguments["end"]
    if not is_size(end_):
        return by_table(call)
    axes = call.axes(call.tensors[0], [])
    if (call.arguments["start"], call.arguments["step"]) != (0, 1) or axes not in (
        ((TIME,),),
        ((SEQUENCES,),),
    ):
        raise refuse("steps and sequences are numbered from 0, one by one: torch.arange(x.size(1))")
    if axes == ((SEQUENCES,),):
        return Order()
    return Placed(index_of(call.replay.like).astype(call.result(axes).dtype), axes)


# ---- products ----------------------------------------------------------------------------------------------


def product(a: Placed, b: Placed) -> Placed:
    """The products of matrices [..., m, k] and [..., k, n]."""
    m, k, n = a.axes[-2], a.axes[-1], b.axes[-1]
    if TIME in m and TIME in n:
        raise refuse("it pairs each step of a sequence with each other one, which no value of a model does")
    leads = [x.axes[:-2] for x in (a, b)]
    if leads[0] != leads[1]:
        raise refuse(
            f"matrices {text_of(a.axes)} and {text_of(b.axes)} are multiplied, which lie in two orders"
        )
    lead = leads[0]
    axes = (*lead, m, n)
    heads, inner = features_of(lead), features_of((k,))
    rows, columns = prod(features_of((m,))), prod(features_of((n,)))
    extent = max((extent_of(x.axes) for x in (a, b)), key=len)
    if SEQUENCES in symbols_in((k,)):
        raise mixes(SEQUENCES, a.axes)
    if b.axes[-2] != k:
        raise refuse(f"axes {text_of((k,))} and {text_of((b.axes[-2],))} are not multiplied")
    if k == (TIME,):
        left = reshaped(a.value, (*heads, rows, 1))
        right = reshaped(b.value, (*heads, 1, columns))
        value = total(to_extent(left, extent) * to_extent(right, extent))
    elif b.value.is_constant and not a.value.is_constant:
        value = rules.product(reshaped(a.value, (*heads, *features_of((m,)), *inner)), b.value)
    elif a.value.is_constant and not b.value.is_constant:
        return product(swapped(b), swapped(a)).permuted([*range(len(lead)), len(lead) + 1, len(lead)])
    else:
        left = reshaped(to_extent(a.value, extent), (*heads, rows, *inner))
        right = reshaped(to_extent(b.value, extent), (*heads, *inner, columns))
        value = rules.product(left, right)
    return Placed(reshaped(value, features_of(axes)), axes)


def swapped(x: Placed) -> Placed:
    """Matrices transposed."""
    rank = len(x.axes)
    return x.permuted([*range(rank - 2), rank - 1, rank - 2])


def multiplied(call: Call) -> Placed:
    """The product of matrices."""
    a, b = call.operands
    if len(b.axes) == 1:
        column = product(a, b.shaped((*b.axes, (1,))))
        return column.shaped(column.axes[:-1])
    return product(a, b)


def scaled_sum(call: Call) -> Placed:
    """beta x + alpha a b."""
    x, a, b = call.operands
    result = product(a, b)
    beta, alpha = call.arguments["beta"], call.arguments["alpha"]
    value = result.value if alpha == 1 else result.value * alpha
    if beta == 0:
        return Placed(value, result.axes)
    other = x.beside(result.axes)
    return Placed((other if beta == 1 else other * beta) + value, result.axes)


RULES: dict[str, Rule] = {
    "view.default": viewed,
    "_unsafe_view.default": viewed,
    "unsqueeze.default": viewed,
    "squeeze.dims": viewed,
    "permute.default": permuted,
    "expand.default": expanded,
    "repeat.default": repeated,
    "cat.default": joined,
    "select.int": selected,
    "slice.Tensor": sliced,
    "index.Tensor": indexed,
    "index_select.default": picked,
    "gather.default": gathered,
    "scatter.src": scattered,
    "slice_scatter.default": replaced,
    "arange.start_step": counted,
    "_to_copy.default": kept,
    "alias.default": kept,
    "clone.default": kept,
    "mm.default": multiplied,
    "mv.default": multiplied,
    "bmm.default": multiplied,
    "addmm.default": scaled_sum,
    "stepnet.layer.default": layer,
    "stepnet.packed.default": packed,
    "stepnet.padded.default": padded,
    "stepnet.sorted.default": sorted_rows,
}
"""The rules of operations that know of sequences and steps, by name; others are in the table of `aten`."""
