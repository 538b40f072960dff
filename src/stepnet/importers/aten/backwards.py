"""Values whose steps are in reverse order, as x.flip(1) makes them.

    flip(x)   ->   a recurrent layer   ->   flip          the layer from the last step to the first
    flip(x)   ->   linear, tanh ...    ->   flip          operations of single steps, in any order
    flip(x)   ->   [:, -1]                                the first step

No net has such values. The value in order stands for them, in a placeholder, which only these operations
read.
"""

from dataclasses import replace
from typing import Any, cast

from stepnet.compiler.trace.feature_axes import listed
from stepnet.compiler.trace.traced import refuse
from stepnet.importers.aten import places
from stepnet.importers.aten.replay import ReplayedNode, Rule
from stepnet.importers.aten.rows import AtenOperation, dims_of
from stepnet.importers.axes import axis_error, is_feature, is_steps, is_time, symbols_in, time_of
from stepnet.importers.placed import Placed, ReversedSteps, reversed_steps

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
    """Evaluates a `flip` node: features in reverse order, or the placeholder for steps in reverse order."""
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
    """Evaluates a node that reads steps in reverse order, from the values in order; raises `StepError` for an
    operation that depends on the order, or that also reads steps in order.
    """
    values = [part for value in call.arguments.values() for part in listed(value)]
    ordered = [x for x in values if isinstance(x, Placed) and time_of(x.axes)]
    if any(not isinstance(x.value, ReversedSteps) for x in ordered):
        raise refuse("it combines steps in reverse order, as flip gives them, with steps in order")
    inner = replace(call, arguments={name: in_order(value) for name, value in call.arguments.items()})
    if call.name == "flip.default":
        return reversed_steps(rule(inner))
    if call.name in PARTS and is_time(ordered[0].axes[int(call.arguments["dim"])]):
        return rule(at_other_end(inner))
    if not (call.name in KEEPING or call.name in PARTS or (isinstance(rule, AtenOperation) and rule.folded)):
        raise refuse(ordered[0].value.reason)
    made = rule(inner)
    return [reversed_again(each) for each in listed(made)] if isinstance(made, list) else reversed_again(made)


def at_other_end(call: ReplayedNode) -> ReplayedNode:
    """Returns a `select` node of the first or last step with the other as its index; raises `StepError` for
    other steps.
    """
    index = call.arguments.get("index")
    if index not in ENDS:
        raise refuse("of steps in reverse order, as flip gives them, a model takes the first or the last")
    return replace(call, arguments={**call.arguments, "index": ENDS[index]})


def in_order(argument: Any) -> Any:
    """Replaces placeholders for steps in reverse order in an argument, also in lists, by their sources."""
    if isinstance(argument, list):
        return [in_order(part) for part in cast("list[Any]", argument)]
    is_reversed = isinstance(argument, Placed) and isinstance(argument.value, ReversedSteps)
    return argument.value.source if is_reversed else argument


def reversed_again(value: Any) -> Any:
    """Returns the placeholder for a result with steps; another result stays."""
    has_steps = isinstance(value, Placed) and any(map(is_steps, symbols_in(value.axes)))
    return reversed_steps(value) if has_steps else value
