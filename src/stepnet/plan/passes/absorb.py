"""Work of single steps moved into the recurrences before or behind it.

    a = gather table words                      a, y = recur words h0 table W V; body:
    b = matmul a W                   ->             h' = f(matmul(gather table words, W), h)
    h = recur b h0; body: h' = f(b, h)              y  = matmul(h', V)
    y = matmul h V

A part of a schedule is one pass over the steps, and what lies between parts is an array of all steps. Inside
a recurrence the same work is done in blocks of steps that stay in cache: `hoist` and `sink` take it out of
the loop again, and the plan runs it before and after the loop of the same part.

So the projections of Paddle's `fc_gru`, `mul_gru`, `fc_lstm` and `mul_lstm` become the input projection of
the recurrence, whatever its cell is, and a bias stays where it is shared.

What moves is a node at rows/steps that works on single steps. Ahead of recurrences it moves if nothing else
reads it, and into several of them if it costs next to nothing. Behind, it moves into the last recurrence that
it reads, with whatever else it reads. It stays where that would make a recurrence wait for another one: both
directions of a layer run at the same time, and what merges them comes after both.

A recurrence with a precision takes in no products and no concatenations: what of a model is in fewer bits
does not depend on what lies around it.

Which engine is to run a recurrence may depend on what is inside. So whoever places recurrences accepts each
move, or a part of it, or none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

from stepnet.net.ir import Builder, Net, Node, Recur, ancestors
from stepnet.net.types import CONST, ROWS, STEPS
from stepnet.plan.groups import flat_recurrences, is_plain, results_of

CHEAP = ("view", "gather")
"""The kinds of nodes that several recurrences each compute for themselves."""


Accepts = Callable[["Absorbed", Net], bool]
"""Whether a recurrence may take in nodes, for the net that this makes."""


def always(absorbed: "Absorbed", after: Net) -> bool:
    """Every move is accepted."""
    return True


def absorb(net: Net, accepts: Accepts = always) -> Net:
    """The net in which work of single steps is inside the recurrences next to it, where it can be.

    accepts: is asked of every move.
    """
    while (after := next_net(net, nodes_ahead, accepts) or next_net(net, nodes_behind, accepts)) is not None:
        net = after
    return net


def next_net(net: Net, find: "Find", accepts: Accepts) -> Net | None:
    """The net in which one more recurrence has taken in what is next to it; None where none does.

    The last ones come first. Where a move is not accepted, one without its outermost node is tried.
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
    """Whether a node works on the values of a single step, and may do so inside a recurrence.

    The products of a recurrence with a precision are those that it was traced with, and so are the left sides
    that have a scale each.
    """
    sources = ("input", "index", "result", "constant")
    others = () if recur.precision is None else ("matmul", "concatenate")
    return is_plain(node) and node.operation not in (*sources, *others) and node.types[0].extent == STEPS


def nodes_ahead(net: Net, recurrence: int, flat: set[int]) -> list[int]:
    """The nodes that a recurrence takes in ahead of its steps, in order."""
    users, results, taken = net.users(), set(net.results), set[int]()
    sequences = net.nodes[recurrence].recur.operands_by_kind(net.nodes[recurrence].inputs).sequences
    for number in range(recurrence - 1, -1, -1):
        node = net.nodes[number]
        wanted = number in sequences or taken.intersection(users[number])
        if not wanted or not moves_in(node, net.nodes[recurrence].recur) or number in results:
            continue
        others = [user for user in users[number] if user != recurrence and user not in taken]
        shared = all(is_steps_operand(net, number, user) and user in flat for user in others)
        if not others or (shared and node.kind in CHEAP):
            taken.add(number)
    return sorted(taken)


def is_steps_operand(net: Net, number: int, user: int) -> bool:
    """Whether a node reads another one as sequences that it runs over."""
    node = net.nodes[user]
    return node.operation == "recur" and number in node.recur.operands_by_kind(node.inputs).sequences


def nodes_behind(net: Net, recurrence: int, flat: set[int]) -> list[int]:
    """The nodes that a recurrence takes in behind its steps, in order."""
    own = {number for number in results_of(net, recurrence) if number >= 0}
    outputs = {number for number in own if net.type_of(number).extent == STEPS}
    reached, taken = {recurrence, *own}, set[int]()
    waits = behind(net, flat - {recurrence} - ancestors(net.nodes, net.nodes[recurrence].inputs))
    for number in range(recurrence + 1, len(net.nodes)):
        node = net.nodes[number]
        if not reached.intersection(node.inputs) or number in own:
            continue
        reached.add(number)
        inside = [operand for operand in node.inputs if operand in reached]
        known = all(operand in outputs or operand in taken for operand in inside)
        if moves_in(node, net.nodes[recurrence].recur) and known and number not in waits:
            taken.add(number)
    return sorted(taken)


def behind(net: Net, numbers: set[int]) -> set[int]:
    """Nodes, and all that is computed from them."""
    reached = set(numbers)
    for number, node in enumerate(net.nodes):
        if reached.intersection(node.inputs):
            reached.add(number)
    return reached


def unique(numbers: Iterable[int]) -> list[int]:
    """Numbers without repetitions, in order."""
    return list(dict.fromkeys(numbers))


@dataclass
class Absorbed:
    """A net in which a recurrence takes in nodes, while it is made.

    inside: the numbers in its new body of values of the net. body: the new body, once it is made.
    """

    net: Net
    recurrence: int
    moves: tuple[int, ...]
    inner: Builder = field(default_factory=Builder)
    inside: dict[int, int] = field(default_factory=dict[int, int])
    body: Net = field(init=False)

    @property
    def node(self) -> Node:
        """The recurrence."""
        return self.net.nodes[self.recurrence]

    def run(self) -> Net:
        """The net."""
        net, node = self.net, self.node
        kinds, own = node.recur.operands_by_kind(node.inputs), results_of(net, self.recurrence)
        kept = [number for number in kinds.sequences if number not in self.moves]
        read = self.read({*self.moves, *own}, bool(kept))
        by_extent = {
            extent: [number for number in read if net.type_of(number).extent == extent]
            for extent in (STEPS, ROWS, CONST)
        }
        sequences = unique([*kept, *by_extent[STEPS]])
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
        """What moved nodes read that is outside; of a value repeated at each step, the value itself.

        A recurrence runs over at least one sequence. If there is no other, a repeated value stays as it is.
        """
        net = self.net
        operands = unique(operand for number in self.moves for operand in net.nodes[number].inputs)
        outside = [n for n in operands if n not in inside and net.nodes[n].operation != "constant"]
        read = [self.repeated(number) for number in outside]
        if not has_sequences and all(net.type_of(number).extent != STEPS for number in read):
            place = next(p for p, number in enumerate(outside) if net.type_of(number).extent == STEPS)
            read[place] = outside[place]
        return unique(read)

    def repeated(self, number: int) -> int:
        """The value of each sequence that a node repeats at its steps; another node itself."""
        node = self.net.nodes[number]
        is_repeated = node.operation == "expand" and "how" not in node.attributes
        return node.inputs[0] if is_repeated and node.type.extent == STEPS else number

    def fill(self, sequences: list[int], others: list[int]) -> dict[int, int]:
        """Makes the nodes of the body; the values that leave it at each step, by their numbers outside."""
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
        inside |= {n: self.old[made] for n, made in zip(outputs, recur.outputs, strict=True) if n >= 0}
        self.copy(number for number in self.moves if number > self.recurrence)
        users = net.users()
        made = [n for n in (*outputs, *self.moves) if n > self.recurrence]
        return {n: inside[n] for n in made if n in net.results or not set(users[n]) <= {*self.moves}}

    def copy(self, numbers: Iterable[int]) -> None:
        """Makes moved nodes in the body."""
        for number in numbers:
            node = self.net.nodes[number]
            operands = [self.at(operand) for operand in node.inputs]
            if node.kind != "pointwise":  # which takes constants as they are
                operands = [self.of_rows(*pair) for pair in zip(node.inputs, operands, strict=True)]
            self.inside[number] = self.inner.copy(node, operands)

    def of_rows(self, number: int, inside: int) -> int:
        """A constant that was repeated at each step as a value of each row; any other value as it is."""
        is_repeated = self.net.type_of(number).extent != CONST and self.inner.type_of(inside).extent == CONST
        return self.inner.add("expand", inside, extent=ROWS) if is_repeated else inside

    def at(self, number: int) -> int:
        """The number in the body of an operand of a moved node."""
        if number not in self.inside:
            number = self.repeated(number)
        if number not in self.inside and self.net.nodes[number].operation == "constant":
            self.inside[number] = self.inner.copy(self.net.nodes[number], ())
        return self.inside[number]

    def rebuilt(self, recur: Recur, operands: list[int], outputs: list[int]) -> Net:
        """The net around the new recurrence. outputs: the values that it gives at each step."""
        net, builder, place = self.net, Builder(), dict[int, int]()
        final = self.node.recur.results_by_kind(results_of(net, self.recurrence)).memories
        made = {*outputs, *final, *(n for n in self.moves if n > self.recurrence)}
        reads = {
            number: [self.recurrence if operand in made else operand for operand in node.inputs]
            for number, node in enumerate(net.nodes)
            if number not in made
        } | {self.recurrence: operands}
        sorter = TopologicalSorter(reads)
        sorter.prepare()
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            sorter.done(*ready)
            for number in ready:
                node = net.nodes[number]
                if number == self.recurrence:
                    results = recur.add_results(builder, [place[operand] for operand in operands])
                    pairs = zip((*outputs, *final), (*results.outputs, *results.memories), strict=True)
                    place |= {n: new for n, new in pairs if n >= 0}
                elif node.operation == "result" and node.inputs[0] == self.recurrence:
                    continue  # an output that nobody reads any more
                else:
                    place[number] = builder.copy(node, [place[operand] for operand in node.inputs])
        return builder.net(place[result] for result in net.results)


Find = Callable[[Net, int, set[int]], list[int]]
"""Finds what a recurrence takes in: of a net, the recurrence, and all flat ones."""
