"""Cotangents of parts of one value concatenated instead of padded and added.

    d_a = [da | 0  | 0 ]      the cotangent of each part, padded with zeros
    d_b = [0  | db | 0 ]
    d_a + d_b                 ->   [da | db | 0]

Otherwise a value that is read in parts, such as the joined gates of a cell, would get a sum of padded
cotangents.
"""

from collections.abc import Iterator

from stepnet.compiler.grad.value import Value, concatenated
from stepnet.compiler.net.ir import Builder
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class FeatureRange:
    """Consecutive features along one axis: those of a node, or zeros if `number` is None."""

    number: int | None
    size: int


def added(left: Value, right: Value) -> Value:
    """Adds two cotangents of one value; returns the sum. If both are concatenations along one axis, and at
    most one of them is nonzero at each feature, their operands are concatenated instead of added.
    """
    builder = left.builder
    axes = [axis_of(builder, value.number) for value in (left, right)]
    if axes[0] is None or axes[0] != axes[1] or left.type != right.type:
        return left + right
    merged = alternating(stretches(builder, left.number, axes[0]), stretches(builder, right.number, axes[0]))
    if merged is None:
        return left + right
    shape = list(left.type.shape)

    def made(feature_range: FeatureRange) -> Value:
        """Makes the value of one range of features of the sum: its node, or zeros."""
        shape[axes[0] or 0] = feature_range.size
        return left.zeros(*shape) if feature_range.number is None else Value(builder, feature_range.number)

    return concatenated(axes[0] - left.rank, *map(made, merged))


def axis_of(builder: Builder, number: int) -> int | None:
    """Returns the feature axis, counted from 0, along which a node concatenates; None for any other node."""
    node = builder.nodes[number]
    return node.attributes["axis"] % len(node.type.shape) if node.operation == "concatenate" else None


def stretches(builder: Builder, number: int, axis: int) -> list[FeatureRange]:
    """Lists the operands of a concatenation, with their sizes along its axis. They are ranges of features. An
    operand that is all zeros has None as its node.
    """
    operands = builder.nodes[number].inputs
    return [
        FeatureRange(None if is_zeros(builder, operand) else operand, builder.type_of(operand).shape[axis])
        for operand in operands
    ]


def is_zeros(builder: Builder, number: int) -> bool:
    """Tells whether a node is a constant of zeros, possibly expanded, so that a sum need not add it."""
    node = builder.nodes[number]
    if node.operation == "expand":
        return is_zeros(builder, node.inputs[0])
    return node.operation == "constant" and not node.attributes["value"].value.any()


def alternating(left: list[FeatureRange], right: list[FeatureRange]) -> list[FeatureRange] | None:
    """Returns the ranges of features that, concatenated, are the sum of two concatenations, if at each
    feature one of the two is zero; else None. Adjacent ranges of zeros are merged.

    left, right: the ranges of features of the two concatenations.

    >>> right = [FeatureRange(None, 2), FeatureRange(8, 1), FeatureRange(None, 2)]
    >>> for feature_range in alternating([FeatureRange(7, 2), FeatureRange(None, 3)], right):
    ...     print(feature_range)
    FeatureRange(number=7, size=2)
    FeatureRange(number=8, size=1)
    FeatureRange(number=None, size=2)
    """
    merged: list[FeatureRange] = []
    for feature_range in pieces(left, right):
        if feature_range is None:
            return None
        if merged and merged[-1].number is None and feature_range.number is None:
            merged[-1] = FeatureRange(None, merged[-1].size + feature_range.size)
        else:
            merged.append(feature_range)
    return merged


def pieces(left: list[FeatureRange], right: list[FeatureRange]) -> Iterator[FeatureRange | None]:
    """Yields the ranges of features that, concatenated, are the sum of two concatenations, from left to
    right. Yields None for a range that is nonzero in both, or in which a node would have to be cut.

    left, right: the ranges of features of the two concatenations.
    """
    left, right = left[::-1], right[::-1]
    while left and right:
        a, b = left.pop(), right.pop()
        size = min(a.size, b.size)
        longer = next(
            (feature_range for feature_range in (a, b) if feature_range.number is not None),
            FeatureRange(None, size),
        )
        cut = longer.number is not None and longer.size > size
        yield None if cut or (a.number is not None and b.number is not None) else longer
        left += [FeatureRange(None, a.size - size)] if a.size > size else []
        right += [FeatureRange(None, b.size - size)] if b.size > size else []
