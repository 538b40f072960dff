"""Inner recurrences that do not depend on the outer memory moved out of a nested recurrence.

    recur(words, h):                                      final = recur(words, c): c' = g(words, c)
        final = recur(words, c): c' = g(words, c)    ->   recur(final, h): h' = f(final, h)
        h' = f(final, h)

In the loop, the inner recurrence runs for the few rows of one outer step. Outside, it runs over the inner
sequences of all steps of all rows at once, which fills the vector lanes. The outer recurrence becomes flat.
"""

from dataclasses import field, replace
from functools import partial

from stepnet.compiler.net.ir import Builder, Net, Node, Recur, ancestors
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import is_static_extent
from stepnet.compiler.plan.inner import is_inner
from stepnet.compiler.plan.passes.outward import Outward
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.compiler.plan.passes.when import When, is_constant, when_inside
from stepnet.compiler.values.records import dataclass

# For each recurrence and each of its results: whether it was lifted, and its number outside or its new
# position among the results.
Results = dict[int, list[tuple[bool, int]]]


def lift(net: Net) -> Net:
    """Moves inner recurrences that need no outer memory out of the loop, to run for all steps at once."""
    return rewritten(net, partial(lifted, {}))


def lifted(results: Results, builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: rebuilds a recurrence without those of its inner recurrences (those inside its step) that
    do not depend on its memory, and the `result` nodes that read it. Returns the node's number in the new
    net; None for a node that is copied as it is.

    results: filled with a pair for each result of a rebuilt recurrence, read when its `result` nodes follow:
        whether the result left the loop, and its number in the new net; or else its position among the
        results of the new recurrence.
    builder: the new net. net: the old one.
    number: the node in the old net.
    operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation == "result" and node.inputs[0] in results:
        of: int = node.attributes["of"]
        is_outside, index = results[node.inputs[0]][of]
        return index if is_outside else builder.add("result", operands[0], of=index)
    if node.operation != "recur":
        return None
    recur = replace(node.recur, body=lift(node.recur.body))
    body = recur.body
    known = when_inside(recur)
    fixed = {n for n, time in enumerate(known) if time <= When.PER_SEQUENCE}
    leaving = {n for n, time in enumerate(known) if time < When.IN}
    # A value of a static sequence that also depends on the step stays: outside, it would exist once per step.
    leaving -= free_of(
        body, leaving, {number for number in leaving - fixed if is_row_sequence(body.nodes[number])}
    )
    roots = {number for number in leaving if is_inner(body.nodes[number])}
    if not roots:
        return None if body == node.attributes["body"] else builder.copy(node, operands, body=body)
    leaving = ancestors(body.nodes, roots)
    leaving |= {
        n for n, node in enumerate(body.nodes) if node.operation == "result" and node.inputs[0] in leaving
    }
    outside = dict(zip(body.inputs, operands, strict=True))
    deep = recur_extent([builder.type_of(operands[0])], {"body": body})
    work = Lift(recur, leaving, Outward(builder, body, deep, fixed, outside))
    new = work.run()
    results[number] = work.results
    return new


def is_row_sequence(node: Node) -> bool:
    """Tells whether a node's value is a static sequence, such as the keys of attention: one per row."""
    return any(is_static_extent(type_.extent) for type_ in node.types)


def free_of(body: Net, among: set[int], roots: set[int]) -> set[int]:
    """Returns the nodes of `among` that are in `roots` or depend on a node of `roots`: if these stay in a
    loop, so must they.
    """
    reached = set(roots)
    for number, node in enumerate(body.nodes):
        if reached & set(node.inputs):
            reached.add(number)
    return reached & among


@dataclass
class Lift:
    """The pass `lift`, which moves inner recurrences out of the outer loop, applied to one recurrence.

    leaving: the nodes of the body that leave it.
    outward: copies them into the outer net.
    results: for each result of the recurrence, whether it was lifted, and its number outside or its new
        position.
    """

    recur: Recur
    leaving: set[int]
    outward: Outward
    results: list[tuple[bool, int]] = field(default_factory=list[tuple[bool, int]])

    @property
    def body(self) -> Net:
        """The body (the net of one step) of the old recurrence, from which work is moved out."""
        return self.recur.body

    def run(self) -> int:
        """Moves inner recurrences (those inside a step), and other work, that depend on no memory out of a
        recurrence; returns the number of the new recurrence. The nodes that leave the step (`leaving`) are
        added to the outer net, to be computed before the loop for all steps at once, then the recurrence
        without them. Fills `results` with the new place of each of its results.

        Values of these nodes that the recurrence reads become sequences of it, or statics if they are the
        same at every step. The new recurrence has at least one sequence.
        """
        body, fixed = self.body, self.outward.fixed
        stays = [n for n in range(len(body.nodes)) if n not in self.leaving]
        stays = [n for n in stays if body.nodes[n].operation != "input"]
        outputs, following = self.recur.outputs, self.recur.following
        inputs, memory, others = self.recur.sequences, self.recur.memories, self.recur.others
        within = [n for n in outputs if n not in inputs and not (n in self.leaving and self.is_made(n))]
        read = {operand for n in stays for operand in body.nodes[n].inputs} | {*within, *following}
        computed = sorted(n for n in read & self.leaving if self.is_made(n))
        sequences = [n for n in inputs if n in read] + [n for n in computed if n not in fixed]
        sequences = sequences or inputs[:1]
        static_values = [n for n in computed if n in fixed]
        inner = Builder()
        copy_of: dict[int, int] = {}
        for n in (*sequences, *memory, *static_values, *others):
            copy_of[n] = inner.input(body.type_of(n), body.nodes[n].name or f"lifted{n}")
        for n, node in enumerate(body.nodes):
            if n not in copy_of and node.operation != "input" and (n in stays or is_constant(node)):
                copy_of[n] = inner.copy(node, [copy_of[operand] for operand in node.inputs])
        new = inner.net(copy_of[result] for result in (*within, *following))
        outer = [self.outward.number(n) for n in (*sequences, *memory, *static_values, *others)]
        for n in outputs:
            self.results.append((False, within.index(n)) if n in within else (True, self.outward.at_steps(n)))
        self.results += [(False, len(within) + index) for index in range(len(memory))]
        return replace(self.recur, body=new, sequence_count=len(sequences)).add(self.outward.builder, outer)

    def is_made(self, number: int) -> bool:
        """Tells whether a node that moves out of a recurrence's body (the net of its step) has one value that
        the new body can read as an input. Not so inputs, which are read already, recurrences, which `result`
        nodes alone read, and constants.
        """
        node = self.body.nodes[number]
        return node.operation not in ("input", "recur") and not is_constant(node)
