"""Values whose steps are in reverse order, as x.flip(1) makes them.

    flip(x)   ->   a recurrent layer   ->   flip          the layer from the last step to the first
    flip(x)   ->   linear, tanh ...    ->   flip          operations of single steps, in any order
    flip(x)   ->   [:, -1]                                the first step

The value in order stands for such values, in a placeholder, which these operations read. For others it is
turned around.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from stepnet.compiler.trace.indexing import listed
from stepnet.importers.aten import places
from stepnet.importers.aten.replay import ReplayedNode, Rule
from stepnet.importers.aten.rows import AtenOperation, dims_of
from stepnet.importers.axes import axis_error, is_feature, is_steps, is_time, symbols_in, time_of
from stepnet.importers.placed import Placed, ReversedSteps, reversed_steps
from stepnet.importers.shaping import as_turned

KEEPING = frozenset({
    "cat.default", "dropout.default", "embedding.default", "expand.default", "glu.default",
    "layer_norm.default", "linear.default", "matmul.default", "mm.default", "permute.default",
    "reshape.default", "split.Tensor", "chunk.default", "squeeze.dim", "stack.default", "t.default",
    "transpose.int", "unsqueeze.default", "view.default", "sum.dim_IntList", "mean.dim", "amax.default",
    "amin.default", "softmax.int", "batch_norm.default", "prelu.default",
})  # fmt: skip
"""Operations besides the elementwise ones whose results do not depend on the order of the steps."""
PARTS = ("select.int", "slice.Tensor")
ENDS = {0: -1, -1: 0}
"""The step that lies where another one does in reverse order."""


def flipped(call: ReplayedNode) -> Placed:
    """Evaluates a `flip` node of a PyTorch graph: features in reverse order, or a placeholder for steps in
    reverse order, which only some operations may read.
    """
    x = call.operands[0]
    dims = dims_of(x, call.arguments["dims"])
    steps = [dim for dim in dims if is_time(x.axes[dim])]
    for dim in dims:
        if dim not in steps and not is_feature(x.axes[dim]):
            raise axis_error(max(symbols_in((x.axes[dim],))), x.axes)
    features = [x.feature(dim) for dim in dims if dim not in steps]
    made = x.with_value(places.flipped(x.value, features)) if features else x
    return reversed_steps(made) if steps else made


def in_any_order(rule: Rule, call: ReplayedNode) -> Any:
    """Evaluates a node of a PyTorch graph that reads steps in reverse order. If its result does not depend on
    the order, it is evaluated on the values in order, and the result is marked as reversed; else on values
    that are really turned around.

    rule: the function that evaluates the node on ordinary values.
    """
    values = [part for value in call.arguments.values() for part in listed(value)]
    ordered = [x for x in values if isinstance(x, Placed) and time_of(x.axes)]
    inner = replace(call, arguments={name: in_order(value) for name, value in call.arguments.items()})
    if not all(isinstance(x.value, ReversedSteps) for x in ordered):
        return rule(turned(call))
    if call.name == "flip.default":
        return reversed_steps(rule(inner))
    if call.name in PARTS and is_time(ordered[0].axes[int(call.arguments["dim"])]):
        other = at_other_end(inner)
        return rule(turned(call) if other is None else other)
    if not (call.name in KEEPING or call.name in PARTS or (isinstance(rule, AtenOperation) and rule.folded)):
        return rule(turned(call))
    made = rule(inner)
    return [reversed_again(each) for each in listed(made)] if isinstance(made, list) else reversed_again(made)


def at_other_end(call: ReplayedNode) -> ReplayedNode | None:
    """Returns a `select` node for the last step in place of the first, or back; None for other steps."""
    index = call.arguments.get("index")
    if index not in ENDS:
        return None
    return replace(call, arguments={**call.arguments, "index": ENDS[index]})


def turned(call: ReplayedNode) -> ReplayedNode:
    """Returns a node that reads values for which placeholders stand, with their steps in reverse order."""
    return replace(call, arguments={name: mapped(as_turned, value) for name, value in call.arguments.items()})


def in_order(argument: Any) -> Any:
    """Replaces placeholders for steps in reverse order in an argument, also in lists, by their sources."""
    return mapped(lambda x: x.value.source if isinstance(x.value, ReversedSteps) else x, argument)


def mapped(function: Callable[[Placed], Placed], argument: Any) -> Any:
    """Applies a function to the values with axes in an argument, also in lists."""
    if isinstance(argument, list):
        return [mapped(function, part) for part in cast("list[Any]", argument)]
    return function(argument) if isinstance(argument, Placed) else argument


def reversed_again(value: Any) -> Any:
    """Returns the placeholder for a result with steps; another result stays."""
    has_steps = isinstance(value, Placed) and any(map(is_steps, symbols_in(value.axes)))
    return reversed_steps(value) if has_steps else value
