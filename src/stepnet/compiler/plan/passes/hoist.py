"""Work that does not depend on the memory moved before the loop.

    recur(x, h): h' = tanh(x @ W + h @ R)   ->   a = x @ W
                                                 recur(a, h): h' = tanh(a + h @ R)

One large product over all steps runs near peak throughput, where many small ones are bound by memory
bandwidth. After this pass, work that depends only on parameters is done once, on statics once per sequence,
and on inputs before the loop.

A hoisted value that the loop reads is a stream: written to memory, and read at every step. Products and
expensive functions always leave the loop. Cheap functions leave it only if that does not make the streams
wider: `1 - z * z` and `z` are one stream, not two, and an outer product k[:, None] * v is computed from k and
v in the loop. A view costs nothing in the loop.

A sum over a matrix per sequence stays in the loop, with its readers: before the loop the matrix would be
copied to every step.
"""

from dataclasses import replace

from stepnet.compiler.net.cut import is_expensive, smallest_cut
from stepnet.compiler.net.ir import Builder, Net, Node, Recur, ancestors
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.passes.outward import Outward
from stepnet.compiler.plan.passes.rewrite import rewritten, view_chain
from stepnet.compiler.plan.passes.when import When, when_inside
from stepnet.compiler.values.records import dataclass

LARGER, LARGE = 2, 1024
"""A matrix stays in the loop if it is at least LARGER times as large as the values that it is computed from,
and has at least LARGE elements."""


def hoist(net: Net) -> Net:
    """Moves work that needs no memory out of loops, to before them, where it is done for all steps."""
    return rewritten(net, hoisted)


def hoisted(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: moves work out of the loop of a recurrence; returns the number of the new recurrence,
    None for other nodes. operands: the node's operands in the new net.
    """
    if net.nodes[number].operation != "recur":
        return None
    return Hoist.of(builder, net.nodes[number], operands).run()


@dataclass
class Hoist:
    """The pass `hoist`, which moves work that needs no memory to before the loop, applied to one recurrence.

    stays: for each node of the body, whether it stays.
    outward: copies the other nodes into the outer net.
    """

    recur: Recur
    stays: list[bool]
    outward: Outward

    @classmethod
    def of(cls, builder: Builder, node: Node, operands: list[int]) -> "Hoist":
        """Prepares to move work out of the loop of a recurrence, by deciding which nodes of its body (the net
        of a step) stay in the loop.

        builder: makes the new net. node: the recurrence. operands: its operands in the new net.
        """
        recur = node.recur
        body, known = recur.body, when_inside(recur)
        outside = dict(zip(body.inputs, operands, strict=True))
        fixed = {number for number, time in enumerate(known) if time <= When.PER_SEQUENCE}
        stays = stays_in_loop(recur, known)
        deep = recur_extent([builder.type_of(operands[0])], node.attributes)
        return cls(recur, stays, Outward(builder, body, deep, fixed, outside))

    @property
    def body(self) -> Net:
        """The body (the net of one step) of the old recurrence, from which work is moved out."""
        return self.recur.body

    def run(self) -> int:
        """Applies the pass: adds the work that leaves the loop to the outer net, to be done before the loop,
        then the recurrence without it; returns the number of the new recurrence.

        Values of this work that the loop reads become sequences of the recurrence, or statics, which all
        steps share, if they are the same at every step. It has at least one sequence.
        """
        inner = Builder()
        needed = self.needed()
        copy_of: dict[int, int] = {}
        own = self.recur.sequences
        sequences = [n for n in needed if n in own or self.outward.extent(n) == self.outward.deep] or own[:1]
        others = [n for n in needed if n not in sequences]
        for number in (*sequences, *self.recur.memories, *others):
            type_ = self.body.type_of(number)
            copy_of[number] = inner.input(type_, self.body.nodes[number].name or f"before{number}")
        for number, node in enumerate(self.body.nodes):
            if number not in copy_of and self.is_inside(number):
                copy_of[number] = inner.copy(node, [copy_of[operand] for operand in node.inputs])
        body = inner.net(copy_of[result] for result in self.body.results)
        outer = [self.outward.number(n) for n in (*sequences, *self.recur.memories, *others)]
        return replace(self.recur, body=body, sequence_count=len(sequences)).add(self.outward.builder, outer)

    def is_inside(self, number: int) -> bool:
        """Tells whether node `number` is in the loop's new body: it stays, or is an expand or a constant."""
        return self.stays[number] or self.body.nodes[number].operation in ("expand", "constant")

    def needed(self) -> list[int]:
        """Lists the inputs of the new body (the net of a step) other than memories, in order: nodes of the
        old body that are computed outside of the loop or are inputs, and that the new body reads or returns.
        """
        operands: set[int] = set()
        for number, node in enumerate(self.body.nodes):
            if node.operation != "input" and self.is_inside(number):
                operands.update(operand for operand in node.inputs if not self.is_inside(operand))
        operands.update(result for result in self.body.results if not self.is_inside(result))
        return sorted(operands - set(self.recur.memories))


def stays_in_loop(recur: Recur, known: list[When]) -> list[bool]:
    """Tells for each node of a recurrence's body (the net of a step) whether it is computed in the loop, not
    before it. known: for each node, the earliest time at which its value can be computed.

    Of the work that needs no memory, the cut with the fewest bytes per step decides what leaves the loop:
    expensive nodes always leave, unless they make a matrix of smaller values. Nodes with sequences inside a
    step, and sums over matrices of statics (values that a sequence has once), with their readers, stay.
    """
    body, held = recur.body, of_inner_sequences(recur.body)
    early = {
        n for n, time in enumerate(known) if time == When.BEFORE and body.nodes[n].types[0].extent != CONST
    }
    held |= with_readers(body, sums_of_statics(body, known) & early)
    early -= held
    inside = [n for n, time in enumerate(known) if time == When.IN or n in held]
    read = {operand for number in inside for operand in body.nodes[number].inputs}
    sinks = early & (read | set(recur.following))
    operands = {n: [operand for operand in body.nodes[n].inputs if operand in early] for n in early}
    weights = {n: weight(body, n, recur) for n in early}
    # A view of an input is never a source of the cut, even if it is an output: the input is.
    leaves = {n for n in early if is_expensive(body.nodes[n]) and not is_spread(body, n, early)}
    first = {n for n in early if weights[n] and (n in leaves or n in recur.outputs)}
    first |= early & {*recur.sequences}
    cut = smallest_cut(operands, {n: size for n, size in weights.items() if size}, first, sinks)
    stays = [time == When.IN or number in held for number, time in enumerate(known)]
    waiting = list(sinks - cut)
    while waiting:
        number = waiting.pop()
        if not stays[number]:
            stays[number] = True
            waiting += [operand for operand in operands[number] if operand not in cut]
    return stays


def sums_of_statics(body: Net, known: list[When]) -> set[int]:
    """Finds sums over large matrices that are computed elementwise from a static (a value per sequence that
    all steps read). They stay in the loop, as before it the matrices would be written and read for every
    step. known: the earliest time of each node.
    """
    matrices, sums = set[int](), set[int]()
    for number, node in enumerate(body.nodes):
        is_matrix = node.types and node.types[0].extent == ROWS and node.types[0].size >= LARGE
        if known[number] == When.PER_SEQUENCE and is_matrix:
            matrices.add(number)
        elif not matrices.isdisjoint(node.inputs):
            if node.kind == "reduce" and node.type.size * LARGER < body.type_of(node.inputs[0]).size:
                sums.add(number)
            elif is_matrix and (node.kind == "pointwise" or node.is_view):
                matrices.add(number)
    return sums


def with_readers(body: Net, numbers: set[int]) -> set[int]:
    """Returns the given nodes of a body (the net of a step), which stay in the loop over steps, and all nodes
    that depend on them, which must stay too.
    """
    every = set(numbers)
    for number, node in enumerate(body.nodes):
        if not every.isdisjoint(node.inputs):
            every.add(number)
    return every


def is_spread(body: Net, number: int, early: set[int]) -> bool:
    """Tells whether a node is a matrix that is computed elementwise from much smaller values, which are known
    before the loop, as exp(dt[:, None] * A) is. It is better computed in the loop: before it, that would take
    as long, and the matrix would be written and read besides.

    early: the nodes that are known before the loop.
    """
    node = body.nodes[number]
    if node.kind != "pointwise" or node.type.size < LARGE:
        return False
    before = ancestors(body.nodes, (number,)) & early
    read = sum(body.type_of(n).size for n in before if body.nodes[n].operation == "input")
    return node.type.size > LARGER * read


def of_inner_sequences(body: Net) -> set[int]:
    """Finds the nodes of a step with values of inner sequences (sequences within a step), and the nodes
    computed from them. They stay in the loop, because the pass `lift` has already moved out all that can
    leave.
    """
    inner = set[int]()
    for number, node in enumerate(body.nodes):
        deep = len(node.types[0].extent) > 1 and node.operation != "input"
        if deep or node.operation in ("reduce", "recur") or not inner.isdisjoint(node.inputs):
            inner.add(number)
    return inner


def weight(body: Net, number: int, recur: Recur) -> int:
    """Returns the bytes per step that it takes to hand the value of node `number` to the loop as a stream, an
    array of its values at all steps.

    A value is written and read, so its bytes count twice; an input is only read. The weight is 0 for a view
    of an input, which is read in place, and for products of several results, which are read one by one.
    """
    if len(body.nodes[number].types) > 1:
        return 0
    root, chain = view_chain(body, number)
    type_ = body.type_of(number)
    if root in recur.sequences:
        return 0 if chain else max(1, type_.size * type_.itemsize)
    return max(1, 2 * type_.size * type_.itemsize)
