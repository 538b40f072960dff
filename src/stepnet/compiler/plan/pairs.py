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
    """Finds the groups of nodes at pairs of steps that run as one part; returns them by their result."""
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
    """Makes the group of these nodes, whose body reads all other values but single numbers as inputs."""
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
    """Adds an operand of members to the net of their group: a constant with one number, or an input."""
    if is_number(node):
        return builder.constant(node.attributes["value"].value)
    return builder.input(node.type, f"value{place}")


def is_number(node: Node) -> bool:
    """Tells whether a node is a constant with one number."""
    return node.operation == "constant" and node.type.size == 1


class PairsMembers:
    """Nodes of a net that may run as one part, to which others are added until one value leaves the part.

    net, users: the net, and the nodes that read each node.
    pairs: the extent of the pairs.
    taken: the nodes of other groups, which are read as they are.
    """

    def __init__(self, net: Net, users: list[list[int]], pairs: Extent, taken: set[int]) -> None:
        """Begins without nodes."""
        self.net, self.users, self.pairs, self.taken = net, users, pairs, taken
        self.queries, self.returned = queries_of(pairs), {*net.results}
        self.numbers = set[int]()
        self.reaching = dict[int, bool]()

    def grown(self, number: int) -> int | None:
        """Adds a node, and further ones until the others are read by none outside; returns the node that is.

        None if there are always several, or if a value at pairs has to be stored.
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
        """Returns the node to add next, of those that read `leaving`; None if no other may be added. Readers
        of values at pairs come first, as these have to stay inside.
        """
        if not self.returned.isdisjoint(leaving):
            return None
        stored = [n for n in leaving if is_pairs(self.net.type_of(n).extent)]
        readers = sorted({user for n in stored or leaving for user in self.readers(n)})
        if stored and not all(map(self.fits, readers)):
            return None
        return next(filter(self.fits, readers), None)

    def fits(self, number: int) -> bool:
        """Tells whether a node may be computed with the members: it is elementwise, or reduces values at
        pairs, for the same pairs or their queries.
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
        """Adds a node and those at pairs, or between pairs, that it is computed from; returns False if there
        is one that does not fit.
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
        """Yields the operands of a member that have to be members: those at pairs, and those at queries that
        are computed from reductions over pairs.
        """
        node = self.net.nodes[number]
        for operand in node.inputs:
            extent = self.net.type_of(operand).extent
            between = extent == self.queries and node.operation != "scores" and self.reaches(operand)
            if is_pairs(extent) or between:
                yield operand

    def reaches(self, number: int) -> bool:
        """Tells whether a value at queries is computed elementwise from a reduction over the pairs."""
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
    """Tells whether the sizes of members fit one computation for each head: values have one number for all
    heads or one for each head, and weighted sums have as many features for each.
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
    """Returns the nodes, of these in order, with features of weighted sums, at each head as many."""
    mixed = set[int]()
    for number in numbers:
        node = net.nodes[number]
        if node.operation == "mix" or (is_elementwise(node) and not mixed.isdisjoint(node.inputs)):
            mixed.add(number)
    return mixed


def numbers_fit(net: Net, number: int, heads: int, mixed: set[int]) -> bool:
    """Tells whether a node has one number for all heads or one for each, and its operands have too. mixed:
    the nodes with features.
    """
    node = net.nodes[number]
    if not mixed.isdisjoint(node.inputs) or node.type.size not in (1, heads):
        return False
    sizes = (net.type_of(operand).size for operand in node.inputs)
    return node.operation == "scores" or all(size in (1, node.type.size) for size in sizes)


def features_fit(net: Net, number: int, heads: int, size: int, mixed: set[int]) -> bool:
    """Tells whether a node has `size` features for each head, and its operands as many or one for each head.

    mixed: the nodes with features.
    """
    node = net.nodes[number]
    if node.operation == "mix":
        return net.type_of(node.inputs[0]).size == heads
    own = node.type

    def fits(operand: int) -> bool:
        """Tells whether an operand has as many features, or numbers that are repeated for those of a head."""
        type_ = net.type_of(operand)
        if type_.size == 1 or operand in mixed:
            return True
        is_repeated = (
            len(type_.shape) == len(own.shape) > 0 and type_.shape[-1] == 1 and own.shape[-1] == size
        )
        return type_.size == heads and is_repeated and type_.extent in (CONST, own.extent)

    return own.size == heads * size and all(map(fits, node.inputs))
