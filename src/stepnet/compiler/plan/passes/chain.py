"""Two consecutive products with parameters merged into one product.

    a = x @ P                              r = x @ (P @ R) + c @ R
    r = (a + c) @ R                  ->    z = x @ (P @ Z) + c @ Z
    z = (a + c) @ Z

The product of the parameters is computed once, when they are bound, and each row needs one product less. So a
projection before a cell becomes part of the cell's input weights, and the cell is recognised.

It pays if one product is smaller than two. Projecting k features to m and then to n in total, this is so if k
n < m (k + n). A bottleneck, where m is much smaller than k and n, is left alone. Binding the parameters costs
another k m n multiply-adds.

It is valid if only products with parameters read the intermediate value, and it is not a result. The gradient
of the merged product reaches both parameters through their product. Results differ by rounding, as for any
reordering of a sum: by no more than the tolerance of k + m terms.
"""

from collections.abc import Iterator

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.rewrite import at_every_level
from stepnet.compiler.plan.passes.when import known_once
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class ProductChain:
    """Product with a parameter that only other products read: x @ P, or x @ P + c.

    first: the node of x @ P.
    shift: the node of c; None if there is none.
    end: the node of the intermediate value: that of x @ P, or of the sum with c.
    readers: the products that read the intermediate value.
    """

    first: int
    shift: int | None
    end: int
    readers: tuple[int, ...]

    @property
    def nodes(self) -> set[int]:
        """The numbers of all nodes that merging this chain of two products replaces."""
        return {self.first, self.end, *self.readers}

    def pays(self, net: Net) -> bool:
        """Tells whether merging two consecutive products with parameters, (x @ P) @ R, into x @ (P @ R) saves
        floating-point operations for each row.
        """
        k, m = net.type_of(net.nodes[self.first].inputs[1]).shape
        n = sum(net.type_of(reader).shape[-1] for reader in self.readers)
        added = (0, 0) if self.shift is None else (m, n)
        return 2 * k * n + added[1] < 2 * m * (k + n) + added[0]


def chain(net: Net) -> Net:
    """Merges consecutive products with parameters, (x @ P) @ R, in a net and its bodies, to save flops."""
    return at_every_level(net, lambda inner, _: chained(inner))


def chained(net: Net) -> Net:
    """Merges consecutive products with parameters, (x @ P) @ R to x @ (P @ R), where that saves
    floating-point operations; returns the new net. The steps of recurrences are left as they are.
    """
    while chains := disjoint_chains(net):
        net = with_merged_chains(net, chains)
    return net


def disjoint_chains(net: Net) -> list[ProductChain]:
    """Lists chains of two consecutive products, (x @ P) @ R, that save floating-point operations when merged.
    No two chains in the list share a node: of chains that do, only the first is listed.
    """
    chains, used_nodes = list[ProductChain](), set[int]()
    for product_chain in candidates(net):
        if product_chain.pays(net) and not used_nodes & product_chain.nodes:
            chains.append(product_chain)
            used_nodes |= product_chain.nodes
    return chains


def candidates(net: Net) -> Iterator[ProductChain]:
    """Yields all chains of two products with parameters, (x @ P) @ R, that can be merged: only products with
    parameters read the first, or the sum of it and a parameter, and neither is a result of the net.
    """
    users, results, parameters = net.users(), {*net.results}, known_once(net)
    products = {number for number in range(len(net.nodes)) if is_product(net, number, parameters)}
    for first in sorted(products):
        shift, end = None, first
        if len(users[first]) == 1 and net.nodes[users[first][0]].operation == "add":
            (sum_,) = users[first]
            (other,) = {*net.nodes[sum_].inputs} - {first}
            row = net.type_of(first).shape[-1:], net.type_of(first).dtype
            if other in parameters and (net.type_of(other).shape, net.type_of(other).dtype) == row:
                shift, end = other, sum_
        readers = tuple(dict.fromkeys(users[end]))
        between = {first, end}
        if readers and not between & results and products.issuperset(readers):
            yield ProductChain(first, shift, end, readers)


def is_product(net: Net, number: int, parameters: set[int]) -> bool:
    """Tells whether a node is a product of a value with a parameter, both of the same floating dtype."""
    node = net.nodes[number]
    if node.operation != "matmul" or number in parameters or node.inputs[1] not in parameters:
        return False
    return node.type.is_float and {net.type_of(operand).dtype for operand in node.inputs} == {node.type.dtype}


def with_merged_chains(net: Net, chains: list[ProductChain]) -> Net:
    """Merges the two products x @ P and (x @ P) @ R of each of these chains; returns the new net."""
    by_reader = {reader: product_chain for product_chain in chains for reader in product_chain.readers}
    between = {number for product_chain in chains for number in (product_chain.first, product_chain.end)}
    builder, copy_of = Builder(), dict[int, int]()
    for number, node in enumerate(net.nodes):
        if number in by_reader:
            copy_of[number] = product(builder, net, copy_of, by_reader[number], number)
        elif number not in between:
            copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    return builder.net(copy_of[result] for result in net.results)


def product(builder: Builder, net: Net, copy_of: dict[int, int], chain_: ProductChain, reader: int) -> int:
    """Adds to the new net the product x @ (P @ R), which replaces (x @ P) @ R for one of the second products
    of a chain, two products in a row; returns its number.

    net: the old net. copy_of: for each old node, its number in the new net.
    reader: the old node of the second product.
    """
    node = net.nodes[reader]
    x, P = (copy_of[operand] for operand in net.nodes[chain_.first].inputs)
    weight = copy_of[node.inputs[1]]
    new_product = builder.add("matmul", x, builder.add("matmul", P, weight), source=node.source)
    if chain_.shift is None:
        return new_product
    (m,) = net.type_of(chain_.shift).shape
    row = builder.add("reshape", copy_of[chain_.shift], rank=1, shape=(1, m))
    n = node.type.shape[-1]
    shift = builder.add("reshape", builder.add("matmul", row, weight), rank=2, shape=(n,))
    return builder.add("add", new_product, shift, source=node.source)
