"""Entries of the table of ATen operations: rules on features, applied to values with named axes.

AtenOperation(rule)               softmax(x, dim=-1)     rule on the features of each row (sequence)
AtenOperation(rule, steps=...)    x.var(1)               along the steps of each sequence
AtenOperation(on_axes=...)        x.transpose(0, 1)      rule on the axes
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from stepnet.compiler.net.types import Extent
from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.traced import refuse
from stepnet.compiler.values.records import dataclass
from stepnet.importers.aten.graph import SymbolicSize
from stepnet.importers.aten.replay import NoValue, ReplayedNode, Rule, is_size
from stepnet.importers.aten.rules import InferredResult
from stepnet.importers.axes import Axes, axis_error, extent_of, features_of, is_feature, is_time, symbols_in
from stepnet.importers.broadcasting import at_pairs, broadcastable
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import SEQUENCES, STEPS
from stepnet.importers.values import reshaped, to_extent


@dataclass(frozen=True)
class AtenOperation:
    """Entry of the table of ATen operations that a step or a model may use: how to compute one operation.

    rule: computes the result from the result that PyTorch infers and the operation's arguments, as values
        that have features but no axes of rows or steps. None for an operation on axes.
    folded: whether the operation is elementwise: operands are first broadcast to the axes of the result,
        which may join rows and steps.
    steps: computes the operation along the steps of sequences, in a model; None if that is not supported.
    on_axes: computes the operation from its graph node, whose operands have named axes. If it is None or
        returns None, `rule` computes it.
    """

    rule: Callable[..., Any] | None = None
    folded: bool = False
    steps: Callable[..., Any] | None = None
    on_axes: Rule | None = None

    def __call__(self, call: ReplayedNode) -> Any:
        """Evaluates a graph node of this operation; returns its result, or the list of its results."""
        result = self.on_axes(call) if self.on_axes else None
        return on_features(call, self) if result is None else result


def on_features(call: ReplayedNode, entry: AtenOperation) -> Any:
    """Evaluates a node of a PyTorch graph whose operation is on features, or over the steps of each sequence.

    If the axes `dim` of the node are steps, `steps` of the operation's table entry computes the result, else
    its `rule`, on the features of each row. Returns values with named axes: the result, or the list of
    results. Raises `StepError` if the operation would go over sequences.
    """
    if entry.folded:
        call = with_keys(call)
    operands = call.operands
    axes = [call.axes(tensor, operands) for tensor in call.tensors]
    dims = next((name for name in ("dim", "dims") if name in call.arguments), None)
    if dims is not None and operands:
        steps = along_steps(call, entry, operands[0], call.arguments[dims])
        if steps is not None:
            return steps
    check_axes_kept(operands, axes)
    translated = {} if dims is None or not operands else {dims: features(operands[0], call.arguments[dims])}
    if entry.folded:
        values = {name: aligned(call, value, axes[0]) for name, value in call.arguments.items()}
    else:
        values = {name: without_axes(value) for name, value in call.arguments.items()}
    return with_axes(call_rule(call, entry, call.result(axes[0]), values | translated), axes)


def with_keys(call: ReplayedNode) -> ReplayedNode:
    """Returns the graph node of an elementwise operation, where an operand has a value for each pair of steps
    (a query and one of its keys): operands with a value per key are repeated at the pairs.
    """
    operands = [value for value in call.arguments.values() if isinstance(value, Placed)]
    made = {id(old): new for old, new in zip(operands, at_pairs(operands), strict=True)}
    return replace(call, arguments={name: made.get(id(x), x) for name, x in call.arguments.items()})


def call_rule(
    call: ReplayedNode, entry: AtenOperation, result: InferredResult, values: Mapping[str, Any]
) -> Any:
    """Calls the rule of an operation's table entry with values in place of the arguments of a graph node;
    returns its result. The rule computes on features alone, without axes of sequences and steps.

    result: the features and dtype of the result as PyTorch infers it, for the rule.
    values: all arguments of the node by name.
    """
    assert entry.rule is not None, call.name
    options = {name: values[name] for name in call.node.options}
    return entry.rule(result, *(values[name] for name in call.node.positions), **options)


def with_axes(outputs: Any, axes: Sequence[Axes]) -> Any:
    """Adds named axes (sequences, steps, features) to the outputs of a rule that computes on features alone.

    Returns a value with axes for one output, a list for several. An output None, the position of a maximum
    over steps, becomes a `NoValue`. axes: the axes of each output.
    """
    many = [
        NoValue("the place of a step")
        if value is None
        else Placed(reshaped(to_extent(value, extent_of(own)), features_of(own)), own)
        for value, own in zip(listed(outputs), axes, strict=True)
    ]
    return many if isinstance(outputs, list | tuple) else many[0]


def without_axes(argument: Any) -> Any:
    """Replaces values with axes in an argument or its lists by the net's values, for rules on features."""
    if isinstance(argument, list):
        return [without_axes(part) for part in cast("list[Any]", argument)]
    return argument.value if isinstance(argument, Placed) else argument


def aligned(call: ReplayedNode, argument: Any, axes: Axes) -> Any:
    """Repeats an argument of an elementwise operation to the extent (one entry per row or step) and the axes
    of the result.

    call: the graph node. argument: a value with axes, a symbolic size, or a number, which stays.
    axes: the named axes of the result.
    """
    x = scalar(call, argument) if is_size(argument) else argument
    if not isinstance(x, Placed):
        return x
    return broadcastable(at_extent(x, extent_of(axes)), axes)


def at_extent(x: Placed, extent: Extent) -> Placed:
    """Repeats a value so that it has one entry per row or per step, as `extent` says. A parameter, and a
    value that has this extent or a deeper one already, is returned unchanged.
    """
    return x if x.value.is_constant else x.with_value(to_extent(x.value, extent))


def scalar(call: ReplayedNode, number: SymbolicSize) -> Placed:
    """Converts a symbolic size with which the user's code computes, such as x.size(1), to a value of the net:
    the number of steps, times a factor and plus a constant, is computed from the length of each sequence.

    number: the symbolic size. Raises `StepError` for other sizes, which a step or a model does not know.
    """
    if call.replay.kind == "step":
        raise refuse("a value depends on the number of rows, which a step does not know")
    factor, name, constant = number.linear or (0, "", 0)
    if name != STEPS:
        raise refuse(
            f"a value depends on the number {number.text}, and a model knows the number of "
            "steps alone, x.size(1)"
        )
    lengths = call.replay.lengths
    return Placed(lengths if (factor, constant) == (1, 0) else lengths * factor + constant, ())


def check_axes_kept(operands: Sequence[Placed], axes: Sequence[Axes]) -> None:
    """Raises `StepError` if an operation on features would drop an axis of sequences or steps, or if its
    operands have different numbers of steps.

    axes: the axes of each result.
    """
    times = {axis[0] for operand in operands for axis in operand.axes if is_time(axis)}
    if len(times) > 1:
        raise refuse(
            f"it combines values with different numbers of steps: {' and '.join(map(str, sorted(times)))}"
        )
    before = {symbol for operand in operands for symbol in symbols_in(operand.axes)}
    for own in axes:
        lost = before - set(symbols_in(own))
        if lost:
            raise axis_error(min(lost), operands[0].axes)


def dims_of(x: Placed, dims: Any) -> list[int]:
    """Returns an operation's argument `dim` on x as numbers from 0 on; None and [] are all axes."""
    rank = len(x.axes)
    return [*range(rank)] if dims is None or dims == [] else [dim % rank for dim in listed(dims)]


def features(x: Placed, dims: Any) -> Any:
    """Translates axes `dims` of x to negative numbers among its features (-1 is the last), as rules that
    compute on features alone take them.

    dims: one number, a list, or None for all axes. Raises `StepError` for an axis of sequences or steps.
    """
    found = list[int]()
    for dim in dims_of(x, dims):
        if not is_feature(x.axes[dim]):
            raise axis_error(max(symbols_in((x.axes[dim],))), x.axes)
        found.append(x.feature(dim))
    return found if isinstance(dims, list) or dims is None else found[0]


def along_steps(call: ReplayedNode, entry: AtenOperation, x: Placed, dims: Any) -> Any:
    """Evaluates a graph node along the steps of each sequence; returns None if it is along features only.

    call: the graph node.
    entry: the operation's table entry; its `steps` computes the operation along steps, or is None.
    x: the first operand, with the meaning of each axis: sequences, steps or features.
    dims: the axes that the operation is along; None for all.

    Raises `StepError` if these are sequences, or steps and features, or if the entry's `steps` is None.
    """
    every = dims_of(x, dims)
    if not any(symbols_in((x.axes[dim],)) for dim in every):
        return None
    for dim in every:
        if SEQUENCES in symbols_in((x.axes[dim],)):
            raise axis_error(SEQUENCES, x.axes)
    if entry.steps is None:
        raise axis_error(STEPS, x.axes)
    if not all(is_time(x.axes[dim]) for dim in every):
        raise refuse("it goes over steps and features at once: apply it to one after the other")
    options = {name: part for name, part in call.arguments.items() if name in ("correction", "ord")}
    axes = [call.axes(tensor, [x]) for tensor in call.tensors]
    return with_axes(entry.steps(x.value.astype(call.result(()).dtype), **options), axes)
