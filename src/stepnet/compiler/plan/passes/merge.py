"""Sums of products with different left sides merged into one node.

    a + x @ A + y @ B   ->   a + products(x, y; A, B)

One set of accumulators serves all products of the sum. Separate products would each have their own
accumulators, so fewer fit a register tile, and each multiply-add needs more loads. Gradients are full of such
sums: the cotangent of a memory is a sum over the gates.
"""

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.regroup import terms
from stepnet.compiler.plan.passes.rewrite import at_every_level
from stepnet.compiler.plan.passes.when import When, known_once

ACROSS = ("matmul", "reduce", "scan")
"""Kinds of operations whose results belong to a later phase than their operands."""


def merge(net: Net) -> Net:
    """Merges added products x @ A + y @ B, where possible, into one node, which sums them in registers."""
    return at_every_level(net, merged)


def merged(net: Net, known: list[When]) -> Net:
    """Writes products that are added, as x @ W + h @ R, as one operation, in a net but not in the steps of
    its recurrences. In each sum those are merged whose weights have the same encoding (such as int8) and
    whose left sides have the same number of products ahead of them, so that none waits for another.

    known: the time of each value, which is not used.
    """
    users, parameters, phase = net.users(), known_once(net), phases(net)
    builder = Builder()
    copy_of: list[int] = []
    for number, node in enumerate(net.nodes):
        products: dict[tuple[int, str], list[int]] = {}
        rest: list[int] = []
        is_sum = node.operation == "add" and node.type.is_float and node.type.extent != CONST
        for addend in terms(net, number, users) if is_sum else []:
            term = net.nodes[addend]
            own = term.operation == "matmul" and term.types == node.types and len(users[addend]) == 1
            if own and addend not in net.results and term.inputs[1] in parameters:
                weights = term.attributes.get("weights", "")
                products.setdefault((phase[term.inputs[0]], weights), []).append(addend)
            else:
                rest.append(addend)
        values = [copy_of[addend] for addend in rest]
        for _, group in sorted(products.items()):
            values.append(added(builder, net, group, copy_of))
        if all(len(group) == 1 for group in products.values()):
            copy_of.append(builder.copy(node, [copy_of[operand] for operand in node.inputs]))
            continue
        total = values[0]
        for value in values[1:]:
            total = builder.add("add", total, value, source=node.source)
        copy_of.append(total)
    return builder.net(copy_of[result] for result in net.results)


def added(builder: Builder, net: Net, products: list[int], copy_of: list[int]) -> int:
    """Adds the sum of several products to the new net as one node; returns its number. For a single product
    it returns the product's own number.

    net: the old net. products: the old numbers of the products. copy_of: the new number of each old node.
    """
    if len(products) == 1:
        return copy_of[products[0]]
    operand_pairs = [net.nodes[number].inputs for number in products]
    lefts, rights = (
        [copy_of[left] for left, _ in operand_pairs],
        [copy_of[right] for _, right in operand_pairs],
    )
    first = net.nodes[products[0]]
    sums = builder.add("products", *lefts, *rights, lefts=len(lefts), source=first.source, **encoding(first))
    return builder.add("result", sums, of=0)


def encoding(node: Node) -> dict[str, str]:
    """Returns a product's attribute `weights` (its encoding) as keyword arguments; empty if it has none."""
    return {name: value for name, value in node.pairs if name == "weights"}


def phases(net: Net) -> list[int]:
    """Returns, for each node, the largest number of products, reductions and scans on a path to it. Nodes
    with equal numbers do not have to wait for one another.
    """
    count: list[int] = []
    for node in net.nodes:
        ahead = max((count[operand] for operand in node.inputs), default=0)
        count.append(ahead + (node.kind in ACROSS))
    return count
