"""Rows of the table of ATen operations: rules on features, applied to values with axes.

AtenOperation(rule)               softmax(x, dim=-1)     rule on the features of each row
AtenOperation(rule, steps=...)    x.var(1)               along the steps of each sequence
AtenOperation(on_axes=...)        x.transpose(0, 1)      rule on the axes
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stepnet.compiler.net.types import Extent
from stepnet.compiler.trace.feature_axes import listed
from stepnet.compiler.trace.traced import refuse
from stepnet.importers.axes import TIME, Axes, extent_of, features_of, is_feature, mixes, symbols_in
from stepnet.importers.placed import Placed, beside
from stepnet.importers.sizes import SEQUENCES, STEPS
from stepnet.importers.values import reshaped, to_extent
from stepnet.torch.replay import NoValue, ReplayedNode, Rule, is_size
from stepnet.torch.rules import InferredResult


@dataclass(frozen=True)
class AtenOperation:
    """Row of the table of ATen operations that a step or a model may use.

    rule: computes the result from the one that PyTorch infers and the operation's arguments, which have
        features alone. None for an operation on axes.
    folded: whether the operation accepts values whose first axis is rows and positions joined.
    steps: computes the operation along the steps of sequences, in a model; None if it has no such meaning.
    on_axes: computes the operation from its call, whose operands have axes; None is left to `rule`.
    """

    rule: Callable[..., Any] | None = None
    folded: bool = False
    steps: Callable[..., Any] | None = None
    on_axes: Rule | None = None

    def __call__(self, call: ReplayedNode) -> Any:
        """Computes the result of a call, or the list of its results."""
        made = self.on_axes(call) if self.on_axes else None
        return on_features(call, self) if made is None else made


def on_features(call: ReplayedNode, row: AtenOperation) -> Any:
    """Computes an operation by its rule on features."""
    operands = call.operands
    axes = [call.axes(tensor, operands) for tensor in call.tensors]
    dims = next((name for name in ("dim", "dims") if name in call.arguments), None)
    if dims is not None and operands:
        steps = along_steps(call, row, operands[0], call.arguments[dims])
        if steps is not None:
            return steps
    check_kept(call, operands, axes)
    translated = {} if dims is None or not operands else {dims: features(operands[0], call.arguments[dims])}
    if row.folded:
        values = {name: aligned(call, value, axes[0]) for name, value in call.arguments.items()}
    else:
        values = {name: unplaced(value) for name, value in call.arguments.items()}
    return placed(called(call, row, call.result(axes[0]), values | translated), axes)


def called(call: ReplayedNode, row: AtenOperation, result: InferredResult, values: Mapping[str, Any]) -> Any:
    """Calls the rule of a row with values in place of the node's arguments, by position and by name."""
    assert row.rule is not None, call.name
    names = [argument.name for argument in call.node.target._schema.arguments]
    positions = names[: len(call.node.args)]
    options = {name: values[name] for name in call.node.kwargs}
    return row.rule(result, *(values[name] for name in positions), **options)


def placed(outputs: Any, axes: Sequence[Axes]) -> Any:
    """Gives the outputs of a rule their axes: one placed value for one output, a list for several."""
    many = [
        NoValue("the place of a step")
        if value is None
        else Placed(reshaped(to_extent(value, extent_of(own)), features_of(own)), own)
        for value, own in zip(listed(outputs), axes, strict=True)
    ]
    return many if isinstance(outputs, list | tuple) else many[0]


def unplaced(argument: Any) -> Any:
    """Replaces placed values in an argument, also in lists, by the bare values of the net."""
    if isinstance(argument, list):
        return [unplaced(part) for part in cast("list[Any]", argument)]
    return argument.value if isinstance(argument, Placed) else argument


def aligned(call: ReplayedNode, argument: Any, axes: Axes) -> Any:
    """Brings an argument of an elementwise operation to the extent and the axes of the result."""
    x = scalar(call, argument) if is_size(argument) else argument
    if not isinstance(x, Placed):
        return x
    return beside(at_extent(x, extent_of(axes)), axes)


def at_extent(x: Placed, extent: Extent) -> Placed:
    """Repeats a value to an extent, unless its extent is deeper; a parameter stays a parameter."""
    return x if x.value.is_constant else x.with_value(to_extent(x.value, extent))


def scalar(call: ReplayedNode, number: Any) -> Placed:
    """Makes a value of a symbolic size, such as the number of steps: each sequence's own length."""
    constant, product = number.node.expr.as_coeff_Add()
    factor, symbol = product.as_coeff_Mul()
    if call.replay.kind == "step":
        raise refuse("a value depends on the number of rows, which a step does not know")
    if call.replay.graph.names.get(symbol) != STEPS or not (constant.is_Integer and factor.is_Integer):
        raise refuse(
            f"a value depends on the number {call.text(number)}, and a model knows the number of "
            "steps alone, x.size(1)"
        )
    lengths = call.replay.lengths
    return Placed(lengths if (factor, constant) == (1, 0) else lengths * int(factor) + int(constant), ())


def check_kept(call: ReplayedNode, operands: Sequence[Placed], axes: Sequence[Axes]) -> None:
    """Raises `StepError` if an operation without a `dim` argument would drop the axis of sequences or
    steps.
    """
    before = {symbol for operand in operands for symbol in symbols_in(operand.axes)}
    for own in axes:
        lost = before - set(symbols_in(own))
        if lost:
            raise mixes(min(lost), operands[0].axes)


def dims_of(x: Placed, dims: Any) -> list[int]:
    """Returns the axes of an operation as non-negative numbers; None and an empty list are all axes."""
    rank = len(x.axes)
    return [*range(rank)] if dims is None or dims == [] else [dim % rank for dim in listed(dims)]


def features(x: Placed, dims: Any) -> Any:
    """Translates axes for the rules of features, which count from the last axis; refuses sequences and
    steps.
    """
    found = list[int]()
    for dim in dims_of(x, dims):
        if not is_feature(x.axes[dim]):
            raise mixes(max(symbols_in((x.axes[dim],))), x.axes)
        found.append(x.feature(dim))
    return found if isinstance(dims, list) or dims is None else found[0]


def along_steps(call: ReplayedNode, row: AtenOperation, x: Placed, dims: Any) -> Any:
    """Computes an operation along the steps of each sequence; returns None if it goes along features."""
    every = dims_of(x, dims)
    if not any(symbols_in((x.axes[dim],)) for dim in every):
        return None
    for dim in every:
        if SEQUENCES in symbols_in((x.axes[dim],)):
            raise mixes(SEQUENCES, x.axes)
    if row.steps is None:
        raise mixes(STEPS, x.axes)
    if any(x.axes[dim] != TIME for dim in every):
        raise refuse("it goes over steps and features at once: apply it to one after the other")
    options = {name: part for name, part in call.arguments.items() if name in ("correction", "ord")}
    axes = [call.axes(tensor, [x]) for tensor in call.tensors]
    return placed(row.steps(x.value.astype(call.result(()).dtype), **options), axes)
