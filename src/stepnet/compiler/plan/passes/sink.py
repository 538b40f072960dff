"""Work that no memory depends on moved after the loop.

    recur(x, h): h' = f(x, h); y = h' @ V   ->   recur(x, h): h' = f(x, h); output h'
                                                 y = h' @ V

An output projection is then one large product over all steps. Only work that contains a product, a reduction
or a scan moves: anything smaller is cheaper in the loop, in registers. An output that equals an input is
replaced by the input.
"""

from collections.abc import Callable
from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Recur, ancestors
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.inner import is_inner
from stepnet.compiler.plan.passes.outward import Outward

UNITS, LARGER = 8, 2
"""A read-out with at least UNITS units stays in the loop if the memory that it reads is more than LARGER
times as large: there it is summed fiber by fiber (`compiler/plan/fibers.py`).
"""
MUCH_LARGER, LARGE = 8, 1024
"""A read-out with fewer units stays in the loop if its memory is more than MUCH_LARGER times as large as its
result, and has at least LARGE elements.
"""


Leaving = Callable[[Recur], set[int]]
"""A function that returns the nodes of a recurrence's body that run after the loop."""


def sink(net: Net) -> Net:
    """Moves work that no memory depends on behind its loop, where many steps are one large product."""
    return sunk_by(net, leaving)


def sunk_by(net: Net, leave: Leaving) -> Net:
    """Moves the nodes that `leave` finds out of the loops of recurrences, to after them."""
    builder = Builder()
    copy_of: list[int] = []
    results: dict[int, list[int]] = {}
    for number, node in enumerate(net.nodes):
        operands = [copy_of[operand] for operand in node.inputs]
        if node.operation == "recur":
            results[number] = sunk(builder, net, number, operands, leave)
            copy_of.append(-1)
        elif node.operation == "result" and node.inputs[0] in results:
            of: int = node.attributes["of"]
            copy_of.append(results[node.inputs[0]][of])
        else:
            copy_of.append(builder.copy(node, operands))
    return builder.net(copy_of[result] for result in net.results)


def sunk(builder: Builder, net: Net, number: int, operands: list[int], leave: Leaving) -> list[int]:
    """Rebuilds a recurrence without the work that can run after it, and adds this work after it. Returns the
    new numbers of the recurrence's results.

    builder: makes the new net. operands: the recurrence's operands in it. leave: finds that work.
    """
    node = net.nodes[number]
    recur = node.recur
    staying, frontier = without(recur, leave(recur))
    results = staying.add_results(builder, operands, node.source)
    outside = dict(zip((*recur.body.inputs, *frontier), (*operands, *results.outputs), strict=True))
    deep = recur_extent([builder.type_of(operands[0])], node.attributes)
    outward = Outward(builder, recur.body, deep, set(), outside)
    return [outward.number(output) for output in recur.outputs] + results.memories


def without(recur: Recur, late: set[int]) -> tuple[Recur, list[int]]:
    """Returns a recurrence without the nodes `late` of its body, and the nodes that it then outputs."""
    body = recur.body
    frontier = [value for value in loop_outputs(body, late, recur.outputs) if value not in recur.sequences]
    inner = Builder()
    copy_of: dict[int, int] = {}
    for value, body_node in enumerate(body.nodes):
        if value not in late:
            copy_of[value] = inner.copy(body_node, [copy_of[operand] for operand in body_node.inputs])
    results = inner.net(copy_of[value] for value in (*frontier, *recur.following))
    return replace(recur, body=results), frontier


def leaving(recur: Recur, with_read_outs: bool = False) -> set[int]:
    """Returns the nodes of the net of a step that can run after the loop: those that only outputs need, if
    they contain a product, a reduction or a scan. The others stay, as do nodes that read sequences inside a
    step or the step index, or, without `with_read_outs`, that reduce a large memory to a small result.
    """
    body, outputs = recur.body, recur.outputs
    needed = ancestors(body.nodes, recur.following)
    late, kept = set[int](), set[int]()
    for output in outputs:
        only = {
            number
            for number in ancestors(body.nodes, (output,)) - needed
            if any(type_.extent != CONST for type_ in body.nodes[number].types)
        }
        only -= set(body.inputs)
        if any(is_inner(body.nodes[number]) for number in only):
            continue  # outside, this would need an array of the inner sequences of all steps
        if any(body.nodes[number].kind in ("matmul", "reduce", "scan") for number in only) and not any(
            body.nodes[number].operation == "index" for number in only
        ):
            if with_read_outs:
                late |= only
            elif not is_read_out(body, only, output):
                kept |= (own := read_outs(body, only))
                late |= only - own
    late -= joined(body, late)
    # A node that another output, or a sum that stays, needs in the loop stays, with all that it depends on.
    staying = ancestors(body.nodes, [*kept, *(output for output in outputs if output not in late)])
    return late - staying


def joined(body: Net, late: set[int]) -> set[int]:
    """Returns those of the nodes `late`, which could run after the loop, that only join vectors which
    elementwise work of the loop computes: it stores them side by side, where they would be copied later.
    """
    return {
        number
        for number in late
        if body.nodes[number].operation == "concatenate"
        and len(body.type_of(number).shape) == 1
        and all(
            operand not in late and body.nodes[operand].kind == "pointwise"
            for operand in body.nodes[number].inputs
        )
    }


def read_outs(body: Net, numbers: set[int]) -> set[int]:
    """Returns those of the nodes `numbers`, which could run after the loop, that compute a sum over a large
    memory: these stay in the loop, as the memory would have to be stored at every step. Large is more than
    LARGER times the size of the sum, and more than LARGE elements.

    Only the work after such a sum leaves the loop, as in (q @ memory) @ V.
    """
    stay = set[int]()
    for number in sorted(numbers):
        units = body.type_of(number).size
        if body.nodes[number].kind != "reduce" or units < UNITS:
            continue
        inside = (ancestors(body.nodes, (number,)) & numbers) - stay
        if any(body.nodes[inner_number].kind == "matmul" for inner_number in inside):
            continue
        read = {operand for inner_number in inside for operand in body.nodes[inner_number].inputs} - inside
        sizes = [body.type_of(operand).size for operand in read if body.type_of(operand).extent != CONST]
        if max(sizes, default=0) > max(LARGER * units, LARGE):
            stay |= inside
    return stay


def is_read_out(body: Net, numbers: set[int], output: int) -> bool:
    """Tells whether `numbers`, the nodes that could leave for an output, reduce a large memory to a small
    result without parameters, as q @ memory does.

    After the loop they would need the memory of every step, which would have to be stored. Large is more than
    LARGER times the result; for fewer than UNITS results, more than MUCH_LARGER times it and LARGE elements.
    """
    if any(body.nodes[number].kind == "matmul" for number in numbers):
        return False
    read = {operand for number in numbers for operand in body.nodes[number].inputs} - numbers
    size = sum(body.type_of(operand).size for operand in read if body.type_of(operand).extent != CONST)
    units = body.type_of(output).size
    return size > LARGER * units if units >= UNITS else size > max(MUCH_LARGER * units, LARGE)


def loop_outputs(body: Net, late: set[int], outputs: list[int]) -> list[int]:
    """Lists the outputs that a body (the net of a step) needs once the nodes `late` run after the loop: the
    values that these nodes read, and its outputs that are still computed in the loop.
    """
    values = {operand for number in late for operand in body.nodes[number].inputs if operand not in late}
    values |= {output for output in outputs if output not in late}
    return sorted(number for number in values if body.type_of(number).extent != CONST)
