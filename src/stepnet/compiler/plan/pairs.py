"""Operations at pairs of steps that run as one part of a schedule, so that no value at pairs is stored.

    scores ->  exp(. - expand(max))  ->  sum, mix  ->  mix / sum         several nodes at pairs
                                                                     ->  one part: its body is a net of these

A part takes all nodes at pairs that lead to a weighted sum over keys, and the nodes at queries between them,
if only one value of all of these is read elsewhere. That one, at queries, is its result: the weighted sum, or
what is computed elementwise from it and from reductions, such as its quotient by the sum of the weights. An
engine computes a few queries at a time, whose pairs stay in the cache.

Which functions stand between the products makes no difference, as long as they are elementwise.
"""

from collections.abc import Iterable, Iterator

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.pairs import queries_of
from stepnet.compiler.net.types import CONST, Extent, is_pairs
from stepnet.compiler.plan.groups import PairsGroup

REDUCED = ("sum", "max", "mean")
"""The reductions over the keys of a query that such a part computes."""
VIEWS = ("reshape", "broadcast")
"""The views of values whose numbers stay in order."""
FLOATS = ("float32", "float64")
COMPUTED = (*FLOATS, "int32", "int64", "bool")
"""The dtypes of the values that such a part reads and computes."""


def pairs_groups(net: Net) -> dict[int, PairsGroup]:
    """Finds the groups of operations on pairs of steps (a query with each of its keys, as in attention) that
    run as one part of a schedule, so that no value of the pairs is stored. Returns a dict from the node whose
    value other parts read, the result of a group, to the group.
    """
    groups, taken = dict[int, PairsGroup](), set[int]()
    users = net.users()
    for number, node in enumerate(net.nodes):
        if node.operation == "mix" and node.attributes["over"] == "keys" and number not in taken:
            members = PairsMembers(net, users, net.type_of(net.nodes[number].inputs[0]).extent, taken)
            result = members.grown(number)
            if result is not None and is_supported(members):
                groups[result] = group_of(net, result, members.numbers)
                taken |= members.numbers
    return groups


def group_of(net: Net, result: int, members: Iterable[int]) -> PairsGroup:
    """Makes the group of the nodes `members`, which run as one part of a schedule: a net of them, its body,
    with `result` as the only result. Values of other nodes that they read are inputs of the body; constants
    with a single number are copied into it.
    """
    own, builder, copy_of, reads = frozenset(members), Builder(), dict[int, int](), list[int]()
    for number in sorted(own):
        node = net.nodes[number]
        for operand in node.inputs:
            if operand not in own and operand not in copy_of:
                copy_of[operand] = body_operand(net.nodes[operand], builder, len(reads))
                if builder.nodes[copy_of[operand]].operation == "input":
                    reads.append(operand)
        operands = [copy_of[operand] for operand in node.inputs]
        copy_of[number] = builder.add(node.operation, *operands, **node.attributes)
    return PairsGroup(result, own, tuple(reads), builder.net([copy_of[result]]))


def body_operand(node: Node, builder: Builder, place: int) -> int:
    """Adds to the body of a group (a net of nodes that run as one part) a value that the group reads: a
    constant if it is a single number, else input number `place`. Returns its number in the body.
    """
    if node.operation == "constant" and node.type.size == 1:
        return builder.constant(node.attributes["value"].value)
    return builder.input(node.type, f"value{place}")


class PairsMembers:
    """Nodes of a net that may run as one part, to which others are added until one value leaves the part.

    net, users: the net, and the nodes that read each node.
    pairs: the extent of the pairs.
    taken: the nodes of other groups, which are read as they are.
    """

    def __init__(self, net: Net, users: list[list[int]], pairs: Extent, taken: set[int]) -> None:
        """Begins a group of nodes that run as one part of a schedule (a net run part by part), without nodes
        yet.

        net, users: the net, and for each node those that read it. pairs: the extent (axes) of the pairs of a
            query and a key that the group works on. taken: the nodes of other groups.
        """
        self.net, self.users, self.pairs, self.taken = net, users, pairs, taken
        self.queries, self.returned = queries_of(pairs), {*net.results}
        self.numbers = set[int]()
        self.reaching = dict[int, bool]()

    def grown(self, number: int) -> int | None:
        """Adds node `number` to the group (nodes that run as one part of a net), then nodes that read the
        group's values, until only one of its values is read outside of it. Returns the node of that value;
        None if a node does not fit the group, or if there is no other to add.
        """
        following: int | None = number
        while following is not None:
            if not self.add(following):
                return None
            leaving = sorted(n for n in self.numbers if n in self.returned or self.readers(n))
            if len(leaving) == 1:
                return leaving[0]
            following = self.next_of(leaving)
        return None

    def readers(self, number: int) -> list[int]:
        """Lists the nodes outside that read a member."""
        return [user for user in self.users[number] if user not in self.numbers]

    def next_of(self, leaving: list[int]) -> int | None:
        """Returns the node to add next to the group (nodes that run as one part of a net); None if no further
        one may be added. It is one that reads a value of `leaving`, the members that are read outside of the
        group. Readers of values at pairs (one per query and key) come first, as these values are not stored
        and have to stay inside.
        """
        if not self.returned.isdisjoint(leaving):
            return None
        stored = [n for n in leaving if is_pairs(self.net.type_of(n).extent)]
        readers = sorted({user for n in stored or leaving for user in self.readers(n)})
        if stored and not all(map(self.fits, readers)):
            return None
        return next(filter(self.fits, readers), None)

    def fits(self, number: int) -> bool:
        """Tells whether a node may be computed as a member of the group (nodes that run as one part of a
        net): it has one value per pair of a query and a key, or one per query; and it is elementwise, makes
        values of pairs from those of steps, or reduces them over the keys of each query. Nodes of other
        groups do not fit.
        """
        node = self.net.nodes[number]
        if number in self.taken or len(node.types) != 1:
            return False
        if node.operation in ("scores", "expand"):
            return node.type.extent == self.pairs and "how" not in node.attributes
        if node.operation in ("reduce", "mix"):
            own = self.net.type_of(node.inputs[0]).extent == self.pairs
            return own and (node.attributes.get("how") in REDUCED or node.attributes.get("over") == "keys")
        return node.type.extent in (self.pairs, self.queries) and is_elementwise(node)

    def add(self, number: int) -> bool:
        """Adds a node to the group (nodes that run as one part of a net), and all nodes that it is computed
        from which have to be members too (`inside`). Returns False if one of these does not fit the group;
        the others may have been added by then.
        """
        pending = [number]
        while pending:
            current = pending.pop()
            if current in self.numbers:
                continue
            if not self.fits(current):
                return False
            self.numbers.add(current)
            pending += self.inside(current)
        return True

    def inside(self, number: int) -> Iterator[int]:
        """Yields the operands of a member that have to be members of the group (nodes that run as one part of
        a net) too: values at pairs (one per query and key), and values at queries that are computed from a
        reduction over the keys.
        """
        node = self.net.nodes[number]
        for operand in node.inputs:
            extent = self.net.type_of(operand).extent
            between = extent == self.queries and node.operation != "scores" and self.reaches(operand)
            if is_pairs(extent) or between:
                yield operand

    def reaches(self, number: int) -> bool:
        """Tells whether a value at queries is computed, by elementwise operations, from a reduction of pairs
        over the keys of each query. The answers for all nodes on the way are noted in `reaching`.
        """
        pending = [number]
        while pending:
            current = pending[-1]
            node = self.net.nodes[current]
            unknown = [operand for operand in node.inputs if operand not in self.reaching]
            if not self.fits(current) or node.type.extent != self.queries:
                self.reaching[current] = False
            elif node.operation in ("reduce", "mix"):
                self.reaching[current] = True
            elif unknown:
                pending += unknown
                continue
            else:
                self.reaching[current] = any(self.reaching[operand] for operand in node.inputs)
            pending.pop()
        return self.reaching[number]


def is_elementwise(node: Node) -> bool:
    """Tells whether a node computes each number from one of each operand, or only changes shapes."""
    return node.kind == "pointwise" or node.operation in VIEWS


# ---- sizes -------------------------------------------------------------------------------------------------


def is_supported(members: PairsMembers) -> bool:
    """Tells whether the sizes and dtypes of a group's members (operations on pairs of queries and keys) allow
    one computation for each head of the attention: values have one number for all heads or one for each head,
    and weighted sums have the same number of features for each.
    """
    net, numbers = members.net, sorted(members.numbers)
    nodes = [net.nodes[number] for number in numbers]
    products = [node for node in nodes if node.operation in ("scores", "mix")]
    read = {net.type_of(operand).dtype for node in nodes for operand in node.inputs}
    if len({node.type.dtype for node in products}) != 1 or products[0].type.dtype not in FLOATS:
        return False
    if not read.union(node.type.dtype for node in nodes) <= {*COMPUTED}:
        return False
    if any(not net.type_of(product.inputs[0]).size for product in products):
        return False
    sizes = {product.type.shape[-1] for product in products if product.operation == "mix"}
    heads = max(node.type.size for node in nodes if node.type.extent == members.pairs)
    mixed, size = mixed_of(net, numbers), max(sizes)
    if len(sizes) != 1 or not size:
        return False
    return all(
        features_fit(net, number, heads, size, mixed)
        if number in mixed
        else numbers_fit(net, number, heads, mixed)
        for number in numbers
    )


def mixed_of(net: Net, numbers: Iterable[int]) -> set[int]:
    """Returns the nodes among `numbers` whose values have several features per head of the attention:
    weighted sums of values (`mix`), and elementwise operations on these. numbers: in the order of the net.
    """
    mixed = set[int]()
    for number in numbers:
        node = net.nodes[number]
        if node.operation == "mix" or (is_elementwise(node) and not mixed.isdisjoint(node.inputs)):
            mixed.add(number)
    return mixed


def numbers_fit(net: Net, number: int, heads: int, mixed: set[int]) -> bool:
    """Tells whether a node has one number for all heads of the attention or one for each head, and its
    operands too.

    mixed: the nodes with several features for each head, which it may not read.
    """
    node = net.nodes[number]
    if not mixed.isdisjoint(node.inputs) or node.type.size not in (1, heads):
        return False
    sizes = (net.type_of(operand).size for operand in node.inputs)
    return node.operation == "scores" or all(size in (1, node.type.size) for size in sizes)


def features_fit(net: Net, number: int, heads: int, size: int, mixed: set[int]) -> bool:
    """Tells whether a node has `size` features for each head of the attention, and its operands as many, or
    one number for each head.

    mixed: the nodes with several features for each head.
    """
    node = net.nodes[number]
    if node.operation == "mix":
        return net.type_of(node.inputs[0]).size == heads
    own = node.type

    def fits(operand: int) -> bool:
        """Tells whether an operand has as many features as the node, or one number per head, which is
        repeated for its features.
        """
        type_ = net.type_of(operand)
        if type_.size == 1 or operand in mixed:
            return True
        is_repeated = (
            len(type_.shape) == len(own.shape) > 0 and type_.shape[-1] == 1 and own.shape[-1] == size
        )
        return type_.size == heads and is_repeated and type_.extent in (CONST, own.extent)

    return own.size == heads * size and all(map(fits, node.inputs))
