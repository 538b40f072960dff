"""Per-step work moved into the recurrence before or after it.

    a = gather table words                      a, y = recur words h0 table W V; body:
    b = matmul a W                   ->             h' = f(matmul(gather table words, W), h)
    h = recur b h0; body: h' = f(b, h)              y  = matmul(h', V)
    y = matmul h V

Each part of a schedule passes over all steps, and a value that one part hands to another is an array of all
steps. Inside a recurrence the same work is done in blocks of steps that stay in cache: `hoist` and `sink`
take it out of the loop again, and the plan runs it before and after the loop of the same part.

So the projections of Paddle's `fc_gru`, `mul_gru`, `fc_lstm` and `mul_lstm` become the input projection of
the recurrence, whatever its cell is, and a bias stays where it is shared.

Nodes at rows/steps that compute each step from that step alone can move. A node before a recurrence moves
into it if nothing else reads the node; a cheap node is copied into each recurrence that reads it. A node
after recurrences moves into the last one that it reads, and its other operands become inputs of that
recurrence. A node stays if the move would make one recurrence wait for another: both directions of a layer
run at the same time, and the node that merges them runs after both.

A recurrence with a precision absorbs no products and no concatenations, so that the surrounding net does not
change which products are computed in fewer bits.

Which engine can run a recurrence may depend on its body. So the caller that places recurrences decides on
each move by `accepts`: it may accept the move, a part of it, or nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import field, replace
from graphlib import TopologicalSorter

from stepnet.compiler.net.ir import Builder, Net, Node, Recur, ancestors
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.groups import is_plain, results_of
from stepnet.compiler.plan.inner import flat_recurrences
from stepnet.compiler.values.records import dataclass

CHEAP = ("view", "gather")
"""The kinds of nodes cheap enough to be copied into several recurrences."""


Accepts = Callable[["Absorbed", Net], bool]
"""Decides if a recurrence may absorb nodes; the second argument is the net after the move."""


def absorb(net: Net, accepts: Accepts = lambda _, __: True) -> Net:
    """Moves work that is done for each step, before or after a recurrence of the net, into the body of the
    recurrence (the net of its step), so that its operands and results need no arrays of all steps. accepts:
    decides on each move; by default all are made.
    """
    while (after := next_net(net, nodes_ahead, accepts) or next_net(net, nodes_behind, accepts)) is not None:
        net = after
    return net


def next_net(net: Net, find: "Find", accepts: Accepts) -> Net | None:
    """Makes one more move of nodes into a recurrence, and returns the net; None if no move is left.

    find: lists the nodes that a recurrence can absorb: `nodes_ahead` of it or `nodes_behind` it.
    accepts: decides on each move. If it refuses one, the move is tried without the node that is farthest from
        the recurrence.
    """
    flat = flat_recurrences(net)
    for recurrence in sorted(flat, reverse=True):
        numbers = find(net, recurrence, flat)
        while numbers:
            absorbed = Absorbed(net, recurrence, tuple(numbers))
            after = absorbed.run()
            if accepts(absorbed, after):
                return after
            numbers = numbers[1:] if find is nodes_ahead else numbers[:-1]
    return None


def moves_in(node: Node, recur: Recur) -> bool:
    """Tells whether a node computes each step from that step alone, so that it may move into the step of the
    recurrence `recur`. Products and concatenations do not move into one whose precision is chosen, as its
    products may be in fewer bits.
    """
    sources = ("input", "index", "result", "constant")
    others = () if recur.precision is None else ("matmul", "concatenate")
    return is_plain(node) and node.operation not in (*sources, *others) and node.types[0].extent == STEPS


def nodes_ahead(net: Net, recurrence: int, flat: set[int]) -> list[int]:
    """Lists the nodes before a recurrence that it can absorb, in order: nodes that only it or absorbed nodes
    read, and views and gathers that other recurrences of `flat` read too.

    flat: all recurrences without sequences inside a step, each of which may get a copy of a cheap node.
    """
    users, results, absorbed = net.users(), set(net.results), set[int]()
    sequences = net.nodes[recurrence].recur.operands_by_kind(net.nodes[recurrence].inputs).sequences
    for number in range(recurrence - 1, -1, -1):
        node = net.nodes[number]
        is_read = number in sequences or absorbed.intersection(users[number])
        if not is_read or not moves_in(node, net.nodes[recurrence].recur) or number in results:
            continue
        others = [user for user in users[number] if user != recurrence and user not in absorbed]
        shared = all(is_steps_operand(net, number, user) and user in flat for user in others)
        if not others or (shared and node.kind in CHEAP):
            absorbed.add(number)
    return sorted(absorbed)


def is_steps_operand(net: Net, number: int, user: int) -> bool:
    """Tells whether node `user` is a recurrence that reads node `number` as a sequence that it runs over."""
    node = net.nodes[user]
    return node.operation == "recur" and number in node.recur.operands_by_kind(node.inputs).sequences


def nodes_behind(net: Net, recurrence: int, flat: set[int]) -> list[int]:
    """Lists the nodes after a recurrence that it can absorb, in order: nodes that read its outputs or
    absorbed nodes, and no final memory.

    flat: all recurrences without sequences inside a step; a node that waits for another recurrence does not
    move, unless that recurrence runs before this one in any case.
    """
    own = {number for number in results_of(net, recurrence) if number >= 0}
    outputs = {number for number in own if net.type_of(number).extent == STEPS}
    reached, absorbed = {recurrence, *own}, set[int]()
    waits = with_dependents(net, flat - {recurrence} - ancestors(net.nodes, net.nodes[recurrence].inputs))
    for number in range(recurrence + 1, len(net.nodes)):
        node = net.nodes[number]
        if not reached.intersection(node.inputs) or number in own:
            continue
        reached.add(number)
        inside = [operand for operand in node.inputs if operand in reached]
        known = all(operand in outputs or operand in absorbed for operand in inside)
        if moves_in(node, net.nodes[recurrence].recur) and known and number not in waits:
            absorbed.add(number)
    return sorted(absorbed)


def with_dependents(net: Net, numbers: set[int]) -> set[int]:
    """Returns the given nodes and all that depend on them, so that they can only run after these nodes."""
    reached = set(numbers)
    for number, node in enumerate(net.nodes):
        if reached.intersection(node.inputs):
            reached.add(number)
    return reached


def unique(numbers: Iterable[int]) -> list[int]:
    """Returns the numbers without repetitions, in order."""
    return list(dict.fromkeys(numbers))


@dataclass
class Absorbed:
    """Move of nodes into a recurrence, and the construction of the net after it.

    recurrence: the number of the recurrence.
    moves: the nodes that move, in order.
    inner: the builder of the new body.
    inside: for values of the net, their numbers in the new body.
    body: the new body, once it is built.
    """

    net: Net
    recurrence: int
    moves: tuple[int, ...]
    inner: Builder = field(default_factory=Builder)
    inside: dict[int, int] = field(default_factory=dict[int, int])
    body: Net = field(init=False)

    @property
    def node(self) -> Node:
        """The node of the recurrence into which other nodes of the net move."""
        return self.net.nodes[self.recurrence]

    def run(self) -> Net:
        """Moves the nodes `self.moves`, which work step by step, into the body of the adjacent recurrence
        (the net of its step); returns the whole net after the move.
        """
        net, node = self.net, self.node
        kinds, own = node.recur.operands_by_kind(node.inputs), results_of(net, self.recurrence)
        remaining = [number for number in kinds.sequences if number not in self.moves]
        read = self.read({*self.moves, *own}, bool(remaining))
        by_extent = {
            extent: [number for number in read if net.type_of(number).extent == extent]
            for extent in (STEPS, ROWS, CONST)
        }
        sequences = unique([*remaining, *by_extent[STEPS]])
        others = [*by_extent[ROWS], *by_extent[CONST]]
        outputs = self.fill(sequences, others)
        self.body = self.inner.net(
            [*outputs.values(), *(self.old[number] for number in node.recur.following)]
        )
        operands = [*sequences, *kinds.memories, *kinds.others, *others]
        return self.rebuilt(
            replace(node.recur, body=self.body, sequence_count=len(sequences)), operands, [*outputs]
        )

    def read(self, inside: set[int], has_sequences: bool) -> list[int]:
        """Lists the values that nodes which move into a recurrence read from outside it. Instead of a value
        that is expanded to all steps, the value before the expansion is listed.

        inside: nodes that are in the recurrence. has_sequences: whether the recurrence keeps a sequence; as
            it needs one, an expanded value stays expanded if there is no other.
        """
        net = self.net
        operands = unique(operand for number in self.moves for operand in net.nodes[number].inputs)
        outside = [n for n in operands if n not in inside and net.nodes[n].operation != "constant"]
        read = [self.repeated(number) for number in outside]
        if not has_sequences and all(net.type_of(number).extent != STEPS for number in read):
            index = next(p for p, number in enumerate(outside) if net.type_of(number).extent == STEPS)
            read[index] = outside[index]
        return unique(read)

    def repeated(self, number: int) -> int:
        """Returns the node of the value that an expansion repeats at all steps, as the step of a recurrence
        can read the value itself; for any other node its own number.
        """
        node = self.net.nodes[number]
        is_repeated = node.operation == "expand" and "how" not in node.attributes
        return node.inputs[0] if is_repeated and node.type.extent == STEPS else number

    def fill(self, sequences: list[int], others: list[int]) -> dict[int, int]:
        """Builds the new body of the recurrence (the net of its step), which contains the nodes that move
        into it. Returns the outputs of the new body, as a dict from the number of each value in the net to
        its number in the body. Sets `old`, the new number of each node of the old body, and fills `inside`,
        the number in the body of each value of the net.

        sequences, others: the values of the net that the new body reads: one per step; one per row or
            constant.
        """
        net, recur, inner, inside = self.net, self.node.recur, self.inner, self.inside
        kinds, own = recur.operands_by_kind(self.node.inputs), results_of(net, self.recurrence)
        for number in sequences:
            inside[number] = inner.input(
                net.type_of(number).at(ROWS), net.nodes[number].name or f"value{number}"
            )
        self.old = {
            number: inner.input(recur.body.type_of(number), recur.body.nodes[number].name)
            for number in (*recur.memories, *recur.others)
        }
        for number in others:
            inside[number] = inner.input(net.type_of(number), net.nodes[number].name or f"value{number}")
        self.copy(number for number in self.moves if number < self.recurrence)
        self.old |= {n: inside[outer] for n, outer in zip(recur.sequences, kinds.sequences, strict=True)}
        for number, node in enumerate(recur.body.nodes):
            if number not in self.old:
                self.old[number] = inner.copy(node, [self.old[operand] for operand in node.inputs])
        outputs = recur.results_by_kind(own).outputs
        inside |= {n: self.old[output] for n, output in zip(outputs, recur.outputs, strict=True) if n >= 0}
        self.copy(number for number in self.moves if number > self.recurrence)
        users = net.users()
        new_results = [n for n in (*outputs, *self.moves) if n > self.recurrence]
        return {n: inside[n] for n in new_results if n in net.results or not set(users[n]) <= {*self.moves}}

    def copy(self, numbers: Iterable[int]) -> None:
        """Copies nodes of the net that move into the recurrence into its new body, the net of its step, in
        order.

        numbers: the nodes in the net. Operands that are constants are copied too, and expanded to rows where
            the operation does not broadcast.
        """
        for number in numbers:
            node = self.net.nodes[number]
            operands = [self.at(operand) for operand in node.inputs]
            if node.kind != "pointwise":  # pointwise operations broadcast constants
                operands = [self.of_rows(*pair) for pair in zip(node.inputs, operands, strict=True)]
            self.inside[number] = self.inner.copy(node, operands)

    def of_rows(self, number: int, inside: int) -> int:
        """Returns an operand for a node that moves into the body (the net of a step) and does not broadcast
        constants: `inside`, expanded to rows if it is a constant there but has a value per step or row
        outside.

        number, inside: the node number of the operand in the outer net, and in the new body.
        """
        is_repeated = self.net.type_of(number).extent != CONST and self.inner.type_of(inside).extent == CONST
        return self.inner.add("expand", inside, extent=ROWS) if is_repeated else inside

    def at(self, number: int) -> int:
        """Returns the number in the new body (the net of one step) of a node of the outer net.

        A value repeated at every step has the number of the value itself, one per sequence. A constant that
        is not in the body yet is copied into it. number: the node in the outer net.
        """
        if number not in self.inside:
            number = self.repeated(number)
        if number not in self.inside and self.net.nodes[number].operation == "constant":
            self.inside[number] = self.inner.copy(self.net.nodes[number], ())
        return self.inside[number]

    def rebuilt(self, recur: Recur, operands: list[int], outputs: list[int]) -> Net:
        """Makes the net in which the new recurrence is in place of the old one and of the nodes that it has
        absorbed.

        recur, operands: the new recurrence, and what it reads. outputs: the old nodes that its outputs
            replace.
        Nodes are put in a new order, as the recurrence now reads operands of nodes that came after it.
        """
        net, builder, copy_of = self.net, Builder(), dict[int, int]()
        final = self.node.recur.results_by_kind(results_of(net, self.recurrence)).memories
        new_results = {*outputs, *final, *(n for n in self.moves if n > self.recurrence)}
        reads = {
            number: [self.recurrence if operand in new_results else operand for operand in node.inputs]
            for number, node in enumerate(net.nodes)
            if number not in new_results
        } | {self.recurrence: operands}
        sorter = TopologicalSorter(reads)
        sorter.prepare()
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            sorter.done(*ready)
            for number in ready:
                node = net.nodes[number]
                if number == self.recurrence:
                    results = recur.add_results(builder, [copy_of[operand] for operand in operands])
                    pairs = zip((*outputs, *final), (*results.outputs, *results.memories), strict=True)
                    copy_of |= {n: new for n, new in pairs if n >= 0}
                elif node.operation == "result" and node.inputs[0] == self.recurrence:
                    continue  # an output that is not read any more
                else:
                    copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
        return builder.net(copy_of[result] for result in net.results)


Find = Callable[[Net, int, set[int]], list[int]]
"""Finds the nodes that a recurrence can absorb. Arguments: the net, the recurrence, all flat recurrences."""
