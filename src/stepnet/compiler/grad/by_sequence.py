"""A net whose totals are those of each sequence, in place of those of the batch.

    contract x d : const [k, n]         ->    contract x d extent=rows : rows [k, n]
    reduce (reduce d) : const [n]       ->    reduce d : rows [n]
    transpose (contract x d) : const    ->    transpose (contract x d extent=rows) : rows

The gradient of a parameter is a total. This makes of it the gradient for each sequence alone, in one run of
the batch, as the sum over sequences is the last thing that happens.
"""

from math import prod

from stepnet.compiler.grad.extents import outer, times
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.type_rules import TOTALS
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.errors import RefusedError


def per_sequence(net: Net) -> Net:
    """Makes the net that computes for each sequence what a net computes for all together: a result that is
    one value for the batch, such as the gradient of a parameter, has one for each sequence instead.

    Its inputs are those of the net, parameters too. Results that have a value for each sequence or step
    already are the same. Raises `RefusedError` for a net that sums over sequences inside a step, or at
    indices, and for one that reads a total at indices, or in a recurrence.

    >>> from stepnet.compiler.net.types import Type
    >>> builder = Builder()
    >>> x, d = (builder.input(Type(STEPS, (size,), "float32"), name) for name, size in (("x", 2), ("d", 3)))
    >>> total = builder.add("contract", x, d)
    >>> print(per_sequence(builder.net([builder.add("transpose", total, order=(1, 0))])))
    net(
        x: rows/steps f32[2],
        d: rows/steps f32[3],
    ):
      %2 = contract x d extent=('rows',) : rows f32[2, 3]
      %3 = transpose %2 order=(1,0) : rows f32[3, 2]
      return %3
    """
    builder, copy_of = Builder(), list[int]()
    for node in net.nodes:
        operands = [Value(builder, copy_of[operand]) for operand in node.inputs]
        moved = any(builder.nodes[copy_of[n]].types != net.nodes[n].types for n in node.inputs)
        if len(node.types) == 1 and node.operation in TOTALS and node.type.extent == CONST:
            copy_of.append(own_total(node, operands).number)
        elif moved:
            copy_of.append(of_own(builder, node, operands).number)
        else:
            copy_of.append(builder.copy(node, [copy_of[operand] for operand in node.inputs]))
    results = [Value(builder, copy_of[number]).like(ROWS).number for number in net.results]
    return builder.net(results)


def own_total(node: Node, operands: list[Value]) -> Value:
    """Returns the total of each sequence, from a node that sums over all and its operands in the new net."""
    first = operands[0].type.extent
    if node.operation == "reduce" and first == ROWS:
        return operands[0]
    if node.operation == "contract" and first == ROWS:
        return outer(*operands)
    if node.operation == "scatter":
        raise RefusedError(
            "a parameter that is read at indices has no gradient per sequence: leave it out of wrt=, or take "
            "vjp of one sequence at a time"
        )
    if node.operation != "contract" or len(first) != len(STEPS):
        raise RefusedError(
            "a model with sequences inside a step has no gradients per sequence: take vjp of one at a time"
        )
    return Value(operands[0].builder, operands[0].builder.copy(node, numbers(operands), extent=ROWS))


def of_own(builder: Builder, node: Node, operands: list[Value]) -> Value:
    """Returns the value of a node, some of whose operands are one value for each sequence, where they were
    one for all. Raises `RefusedError` for operations that need parameters.
    """
    if node.operation == "expand" and node.type.extent == ROWS:
        return operands[0]
    if node.operation in ("gather", "recur"):
        raise RefusedError(
            f"{node.operation} would take a parameter of its own for each sequence: take vjp of one sequence "
            "at a time"
        )
    if node.operation == "matmul" and operands[1].type.extent != CONST:
        left, right = operands
        if left.type.extent != CONST:
            return times(left, right.at(left.type.extent))
        rows = left.reshape(prod(left.type.shape[:-1]), left.type.shape[-1])
        made = right.transposed.apply("matmul", rows.transposed).transposed
        return made.reshape(*left.type.shape[:-1], right.type.shape[-1])
    if node.kind not in ("pointwise", "matmul", "extent"):
        operands = [operand.like(ROWS) for operand in operands]
    return Value(builder, builder.copy(node, numbers(operands)))


def numbers(values: list[Value]) -> list[int]:
    """Returns the numbers of values in the net that is made."""
    return [value.number for value in values]
