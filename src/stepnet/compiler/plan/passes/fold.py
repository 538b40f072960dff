"""Constant folding, common subexpressions and operations without effect.

    0.5 * sqrt(2) * x   ->  0.7071 * x        constants are computed once, while compiling
    f(a) + f(a)         ->  b + b, b = f(a)   the same operation on the same operands is one node
    cast(x, its dtype)  ->  x                 operations without effect are removed
    W.T.T               ->  W                 views of views are one view
    contract(a, b).T    ->  contract(b, a)    a view of a contract is a contract
    x[:, :0] @ W[:0]    ->  0, 0, ...         empty values and empty sums are not computed

A net is small and its recurrence runs millions of times: anything removed from it pays at every step.
"""

import numpy as np

from stepnet.compiler.net.interpreter import within
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.rewrite import rewritten

LARGEST = 4096


def fold(net: Net) -> Net:
    """Folds constants, merges equal operations, and removes operations without effect, throughout a net."""
    return rewritten(net, folded)


def folded(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: returns a simpler node that equals a node: its operand, one view for two, zeros if it is
    empty, or a constant of at most `LARGEST` elements; None if there is none. It leaves inputs, recurrences
    and sums over rows or steps as they are.

    operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if is_identity(builder, node, operands):
        return operands[0]
    if (viewed := merged_view(builder, node, operands)) is not None:
        return viewed
    if node.kind in ("source", "extent", "total") or len(node.types) != 1:
        return None
    if node.type.extent != CONST and is_empty(builder, node, operands):
        zeros = builder.constant(np.zeros(node.type.shape, node.type.dtype))
        return builder.add("expand", zeros, extent=node.type.extent)
    if node.type.extent != CONST or node.type.size > LARGEST:
        return None
    known = [builder.nodes[operand] for operand in operands]
    if any(constant.operation != "constant" for constant in known):
        return None
    with np.errstate(all="ignore"):
        return builder.constant(within(node, [constant.attributes["value"].value for constant in known]))


def merged_view(builder: Builder, node: Node, operands: list[int]) -> int | None:
    """Adds a reshape of a reshape, a transpose of a transpose, or a transposed contract (sum of outer
    products) as one operation; returns its number, None for other nodes. operands: the node's operands in the
    new net.
    """
    if node.operation not in ("reshape", "transpose"):
        return None
    source = builder.nodes[operands[0]]
    if node.operation == "reshape" and source.operation == "reshape":
        inner = source.inputs[0]
        rank = len(builder.type_of(inner).shape)
        same = builder.type_of(inner).shape == node.type.shape
        return inner if same else builder.add("reshape", inner, rank=rank, shape=node.type.shape)
    if node.operation == "transpose" and source.operation == "transpose":
        order = tuple(source.attributes["order"][axis] for axis in node.attributes["order"])
        same = order == tuple(range(len(order)))
        return source.inputs[0] if same else builder.add("transpose", source.inputs[0], order=order)
    if node.operation == "transpose" and source.operation == "contract":
        left, right = source.inputs
        is_transposed = node.attributes["order"] == (1, 0)
        return builder.add("contract", right, left, **source.attributes) if is_transposed else None
    return None


def is_empty(builder: Builder, node: Node, operands: list[int]) -> bool:
    """Tells whether a node's value has no elements, or is a sum over none, so that it is empty or zero."""
    sums = node.kind == "matmul" or node.operation == "sum"
    return not node.type.size or (sums and not builder.type_of(operands[0]).size)


def is_identity(builder: Builder, node: Node, operands: list[int]) -> bool:
    """Tells whether a node returns its first operand unchanged, so that it can be removed."""
    if node.operation == "cast":
        return builder.type_of(operands[0]).dtype == node.type.dtype
    if node.operation in ("reshape", "broadcast"):
        return builder.type_of(operands[0]).shape == node.type.shape
    if node.operation == "concatenate":
        return len(operands) == 1
    return False
