"""Groups of nodes that run together, and the waves in which they run: where a schedule is cut into parts."""

from collections.abc import Callable, Mapping

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.type_rules import BETWEEN_STEPS, TOTALS
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.inner import flat_recurrences, has_inner
from stepnet.compiler.plan.passes.when import is_constant, known_once
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.totals import totals_by_recurrence
from stepnet.compiler.values.records import dataclass

ADDRESS_BYTES = 8
"""The size in bytes of the address of a step. Steps that are no larger are copied."""


@dataclass(frozen=True)
class PairsGroup:
    """Group of nodes at pairs of steps that run as one part of a schedule (`pairs.py`).

    result: the node whose value other parts read.
    members: all nodes that the part computes.
    reads: the nodes that it reads, in the order of the inputs of its body.
    body: the net of the members, with one result.
    """

    result: int
    members: frozenset[int]
    reads: tuple[int, ...]
    body: Net


FindPairs = Callable[[Net], Mapping[int, PairsGroup]]
"""Finds the groups of nodes at pairs of steps that run as one part, by the node of their result."""


@dataclass(frozen=True)
class Groups:
    """Nodes of a net that need no part of their own in a schedule, because the parts of other nodes compute
    them or because they are constant.

    once: constants that are known when parameters are bound.
    through: expansions whose readers read the unexpanded value, so that no array is written.
    sums: reductions over steps that are accumulated step by step where the values are computed.
    zeros: initial memories that are zeros.
    ends: for recurrences of which only the last outputs are read: for each output, the node of its last
        value.
    totals: for each recurrence, the totals of its results that its part computes.
    pairs: the groups of operations at pairs of steps that run as one part, by the node of their result.
    """

    once: set[int]
    through: set[int]
    sums: set[int]
    zeros: set[int]
    ends: dict[int, dict[int, int]]
    totals: dict[int, tuple[int, ...]]
    pairs: Mapping[int, PairsGroup]

    @classmethod
    def of(cls, net: Net, find_pairs: FindPairs | None = None, accumulates: bool = True) -> "Groups":
        """Finds the nodes of a net that need no part of their own in a schedule (a net run part by part).

        find_pairs: finds operations on pairs of steps, as in attention, that run as one part; None if each is
            a part. accumulates: as of `CostModel`.
        """
        once, ends, flat = known_once(net), read_at_last_step(net), flat_recurrences(net)
        totals = totals_by_recurrence(net, once, flat - ends.keys())
        pairs = dict[int, PairsGroup]() if find_pairs is None else find_pairs(net)
        sums = accumulated_sums(net) if accumulates else set[int]()
        return cls(once, repeated(net), sums, zeros(net, flat), ends, totals, pairs)

    @property
    def at_pairs(self) -> set[int]:
        """All nodes of groups of operations at pairs of steps."""
        return {number for group in self.pairs.values() for number in group.members}

    @property
    def without_part(self) -> set[int]:
        """All nodes that need no part of their own in a schedule (a net run part by part): the part of
        another node computes them, or nothing has to be computed.
        """
        members = {number for numbers in self.totals.values() for number in numbers}
        members |= {number for pairs in self.ends.values() for number in pairs.values()}
        members |= self.at_pairs - self.pairs.keys()
        return self.once | self.through | self.sums | self.zeros | members


def is_plain(node: Node) -> bool:
    """Tells whether a node computes each entry of its value, such as that of one step, from the same entry of
    its operands alone, so that it can run together with other such nodes: it is no recurrence, repeats or
    reduces no values along steps, and reads no other steps.
    """
    return node.operation not in ("recur", "expand", *BETWEEN_STEPS, *TOTALS)


def results_of(net: Net, number: int) -> tuple[int, ...]:
    """Returns the `result` node that reads each result of the recurrence `number`; -1 for unread results.
    They are in the order of the recurrence's results.
    """
    pickers = [-1] * len(net.nodes[number].types)
    for picker, node in enumerate(net.nodes):
        if node.operation == "result" and node.inputs[0] == number:
            pickers[node.attributes["of"]] = picker
    return tuple(pickers)


def repeated(net: Net) -> set[int]:
    """Finds the expansions that repeat a value of each sequence at its steps and need no array, as all their
    readers can read the value per sequence. Returns the numbers of their nodes.

    Each such reader has another operand that changes from step to step, so that it is computed at each step
    anyway. An expansion with `how` does not repeat the value: it puts it at the first or last step, and zeros
    elsewhere.
    """
    users = net.users()

    def beside(number: int, user: int) -> bool:
        """Tells whether `user` combines the value `number`, equal at each step, with one that changes."""
        node = net.nodes[user]
        others = (net.nodes[operand] for operand in node.inputs if operand != number)
        varies = any(other.operation != "expand" and not is_constant(other) for other in others)
        return is_plain(node) and node.operation != "result" and varies

    return {
        number
        for number, node in enumerate(net.nodes)
        if node.operation == "expand"
        and "how" not in node.attributes
        and len(node.type.extent) == len(net.type_of(node.inputs[0]).extent) + 1 > 1
        and net.type_of(node.inputs[0]).extent != CONST
        and users[number]
        and number not in net.results
        and all(beside(number, user) for user in users[number])
    }


def accumulated_sums(net: Net) -> set[int]:
    """Finds the sums over the steps of each sequence that can be accumulated while the summed values are
    computed, so that these values need no array. They are sums of values that one node computes step by step,
    such as a product; not of inputs or of results of recurrences.
    """
    return {
        number
        for number, node in enumerate(net.nodes)
        if node.operation == "reduce"
        and node.attributes["how"] == "sum"
        and not is_constant(node)
        and is_plain(operand := net.nodes[node.inputs[0]])
        and operand.operation not in ("input", "index", "result")
        and not is_constant(operand)
    }


def zeros(net: Net, flat: set[int]) -> set[int]:
    """Finds the zeros per row that are read only as initial memories of the recurrences `flat`, those whose
    steps have no sequences inside, so that no array of zeros has to be made. Returns the numbers of their
    nodes.
    """

    def is_memory(number: int, user: int) -> bool:
        """Tells whether node `user` reads `number` only as initial memories of recurrences in `flat`."""
        inputs = net.nodes[user].inputs
        begins = net.nodes[user].recur.operands_by_kind(inputs).memories if user in flat else []
        return inputs.count(number) == begins.count(number)

    users = net.users()
    return {
        number
        for number, node in enumerate(net.nodes)
        if node.operation == "expand"
        and (filled := net.nodes[node.inputs[0]]).operation == "constant"
        and not filled.attributes["value"].value.any()
        and number not in net.results
        and all(is_memory(number, user) for user in users[number])
    }


def read_at_last_step(net: Net) -> dict[int, dict[int, int]]:
    """Finds the recurrences whose outputs are read only at the last step, so that the others need no storage.

    Returns, for each such recurrence, a dict from each output to the node that reduces it to its last value.
    The last step is the one that runs last: for a reverse recurrence, the first step of a sequence.
    """
    users = net.users()
    needed: dict[int, dict[int, int]] = {}
    for number, node in enumerate(net.nodes):
        if node.operation != "recur" or has_inner(node.recur.body):
            continue
        how = "first" if node.recur.reverse else "last"
        every: list[int] = node.recur.results_by_kind(results_of(net, number)).outputs
        outputs = [output for output in every if output >= 0]
        ends: dict[int, int] = {
            output: users[output][0]
            for output in outputs
            if len(users[output]) == 1
            and output not in net.results
            and net.nodes[users[output][0]].operation == "reduce"
            and net.nodes[users[output][0]].attributes["how"] == how
        }
        if outputs and len(ends) == len(outputs):
            needed[number] = ends
    return needed


def waves(net: Net, groups: Groups) -> list[int]:
    """Returns the wave of each node: a number from 0. Waves run in the order of their numbers, and nodes of
    one wave do not depend on each other, unless they run together in one part of the schedule.

    Nodes without loops that work on values of one extent (such as one per step) run together, all others
    alone. A recurrence whose part computes totals (sums of its results) also waits for the other operands of
    the totals.

    groups: the nodes that need no part of their own.
    """
    levels, at_pairs = list[int](), groups.at_pairs
    for number, node in enumerate(net.nodes):
        level = 0
        read = {operand for total in groups.totals.get(number, ()) for operand in net.nodes[total].inputs}
        for operand in (*node.inputs, *(other for other in read if other < number)):
            other = net.nodes[operand]
            if operand in groups.once:
                continue
            together = is_plain(node) and is_plain(other) and node.operation != "result"
            together = together and at_pairs.isdisjoint((number, operand))
            together = together and other.operation not in ("input", "index", "result")
            same = together and node.types[0].extent == other.types[0].extent
            level = max(level, levels[operand] + (0 if same or node.operation == "result" else 1))
        levels.append(level)
    return levels


# ---- windows of steps that products read in place ----------------------------------------------------------


def windows_in_place(net: Net, reads: tuple[int, ...], plan: Plan) -> tuple[int, ...]:
    """Returns the nodes `windows` (at each step, a copy of neighbouring steps) of which a part needs no copy:
    only products with matrices that are not quantized read them, and take each step where it lies, by its
    address. Steps that are no larger than an address are copied all the same.

    net: the net of the schedule. reads: the nodes that the part reads, those with a value per step first.
    plan: that of the part (its operations in their order).
    """
    return tuple(
        number
        for number, place in zip(reads, plan.ends.sequences, strict=False)
        if net.nodes[number].operation == "windows"
        and has_large_steps(plan.net, plan.net.inputs[place])
        and is_multiplied_alone(plan.net, plan.net.inputs[place])
    )


def has_large_steps(net: Net, number: int) -> bool:
    """Tells whether one step takes more bytes than an address (8) in the value of node `number`, windows
    [size, features] (some neighbours of each step). Smaller steps are copied, as their addresses would take
    as many bytes. Only floats with one axis of features count.
    """
    type_ = net.type_of(number)
    is_row = len(type_.shape) == 2 and type_.dtype in ("float32", "float64")
    return is_row and type_.shape[1] * type_.itemsize > ADDRESS_BYTES


def is_multiplied_alone(net: Net, number: int) -> bool:
    """Tells whether only products with matrices that are not quantized read a node, as the vectors that they
    multiply; it may be reshaped to one axis in between.
    """
    users = net.users()

    def is_left(user: int, operand: int) -> bool:
        """Tells whether node `user` multiplies `operand` by matrices that are not quantized, or reshapes it
        for nodes that do so.
        """
        node = net.nodes[user]
        if node.operation == "reshape":
            return user not in net.results and all(is_left(reader, user) for reader in users[user])
        lefts, rights = node.sides
        is_plain = node.kind == "matmul" and node.attributes.get("weights") is None
        return is_plain and operand in lefts and operand not in rights

    return number not in net.results and all(is_left(user, number) for user in users[number])
