"""General operations rewritten in the few forms that engines run.

    x[m, k] @ W            ->   the m products x[0] @ W, x[1] @ W, ... side by side
    int x @ float W        ->   float(x) @ W
    bool x @ bool W        ->   int(x) @ int(W) != 0
    sum(x, axes in the middle)  ->  sum(transpose(x), last axes)

An engine then needs only one kind of product (a vector with a matrix of the same dtype) and two kinds of
reductions (over the first or the last feature axes).
"""

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.rewrite import rewritten


def legalise(net: Net) -> Net:
    """Rewrites products and reductions of a net in the few forms that engines can run."""
    return rewritten(net, legal)


def legal(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: adds a product or reduction in one of the forms that engines run, and returns its number;
    None for other nodes, which are copied. operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation == "matmul" and node.type.extent != CONST:
        return product(builder, node, operands[0], operands[1], node.type.dtype)
    if node.kind == "reduce" and node.type.extent != CONST:
        return reduction(builder, operands[0], node.operation, node.attributes["axes"])
    return None


def product(builder: Builder, node: Node, left: int, right: int, dtype: str) -> int:
    """Adds left @ right as products of vectors with a matrix, all in `dtype`; returns the number of the
    result. Products of booleans are computed with integers. node: the product, whose attributes are kept.
    """
    if dtype == "bool":
        return builder.add("cast", product(builder, node, left, right, "int32"), dtype=dtype)
    if builder.type_of(left).dtype != dtype:
        left = builder.add("cast", left, dtype=dtype)
    if builder.type_of(right).dtype != dtype:
        right = builder.add("cast", right, dtype=dtype)
    shape = builder.type_of(left).shape
    if len(shape) == 1:
        return builder.add("matmul", left, right, source=node.source, **node.attributes)
    width = builder.type_of(right).shape[1]
    count = builder.type_of(left).size // shape[-1] if shape[-1] else 0
    flat = builder.add("reshape", left, rank=len(shape), shape=(count, shape[-1]))
    pieces: list[int] = []
    for row_index in range(count):
        row = builder.add("slice", flat, slices=((row_index, row_index + 1, 1), (0, shape[-1], 1)))
        vector = builder.add("reshape", row, rank=2, shape=(shape[-1],))
        pieces.append(builder.add("matmul", vector, right, source=node.source, **node.attributes))
    joined = builder.add("concatenate", *pieces, axis=-1) if len(pieces) > 1 else pieces[0]
    return builder.add("reshape", joined, rank=1, shape=(*shape[:-1], width))


def reduction(builder: Builder, number: int, operation: str, axes: tuple[int, ...]) -> int:
    """Adds a reduction of node `number` over any axes. It is written as a reduction of a matrix over its
    first or last axis, the forms that engines run, with transpositions where necessary. Returns the number
    of the result.

    operation: "sum", "max" or another reduction.
    """
    shape = builder.type_of(number).shape
    rank = len(shape)
    over = sorted(axis % rank for axis in axes)
    rest = [axis for axis in range(rank) if axis not in over]
    kept_shape = tuple(shape[axis] for axis in rest)
    count, size = 1, 1
    for axis in over:
        count *= shape[axis]
    for axis_size in kept_shape:
        size *= axis_size
    leading = over == list(range(len(over))) and bool(rest)
    if not leading and rest + over != list(range(rank)):
        number = builder.add("transpose", number, order=tuple(rest + over))
    flat_shape = (count, size) if leading else (size, count)
    flat = builder.add("reshape", number, rank=rank, shape=flat_shape)
    reduced = builder.add(operation, flat, axes=(-2,) if leading else (-1,))
    return builder.add("reshape", reduced, rank=1, shape=kept_shape)
