"""A gradient net split into a forward half, which runs before the cotangents are known, and a backward half.

    y, dx, dW of x, W, dy   ->   forward   y, saved...  of x, W
                                 backward  dx, dW       of x, W, dy, saved...

The saved values are those of the forward half that the backward half reads. Constants and their expansions
are recomputed, and so are windows of steps, values in half precision that are cast to float32, and values in
another shape or order: the values that they are made of are saved.
"""

from stepnet.compiler.net.ir import Builder, Net, ancestors, with_inputs
from stepnet.compiler.plan.passes.when import is_constant, known_once
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Halves:
    """Gradient net split in two halves.

    forward: runs before the cotangents are known.
    backward: takes them.
    saved: the number of saved values: the last results of the forward net, and the last inputs of the
        backward net.
    """

    forward: Net
    backward: Net
    saved: int


def halves(net: Net, inputs: int, results: int) -> Halves:
    """Splits a gradient net into a half that runs before the cotangents are known, and a half that runs then.

    Values of the forward half that the backward half reads are saved, or computed again if that is cheap.

    inputs, results: how many inputs and results the original net has; they come first in the gradient net.
    """
    cotangents = net.inputs[inputs:]
    late = set(cotangents)
    for number, node in enumerate(net.nodes):
        if late & set(node.inputs):
            late.add(number)
    once = known_once(net)

    gradient_results = net.results[results:]
    needed = ancestors(net.nodes, gradient_results)
    read = {operand for number in needed & late for operand in net.nodes[number].inputs} | set(
        gradient_results
    )
    again = windows_among(net, read - late) | widened_among(net, read - late) | views_among(net, read - late)
    read |= {operand for number in again for operand in net.nodes[number].inputs}

    def is_made_again(number: int) -> bool:
        """Tells whether both halves have a value without saving it: inputs, constants, and windows of steps
        and widened values, which each half makes for itself.
        """
        node = net.nodes[number]
        repeats = node.operation == "expand" and node.inputs[0] in once
        made = repeats or number in again or (is_constant(node) and number in once)
        return node.operation == "input" or made

    saved = sorted(number for number in read - late if not is_made_again(number))
    forward, backward = Builder(), Builder()
    copy_of = {n: forward.input(net.type_of(n), net.nodes[n].name) for n in net.inputs[:inputs]}
    first = [*net.results[:results], *saved]
    for number in sorted(ancestors(net.nodes, first) - copy_of.keys()):
        copy_of[number] = forward.copy(
            net.nodes[number], [copy_of[operand] for operand in net.nodes[number].inputs]
        )
    forward_net = with_inputs(forward, [copy_of[n] for n in net.inputs[:inputs]], [copy_of[n] for n in first])
    copy_of = {n: backward.input(net.type_of(n), net.nodes[n].name) for n in net.inputs}
    copy_of |= {n: backward.input(net.type_of(n), f"saved{n}") for n in saved}
    order = list(copy_of.values())
    for number in sorted(needed):
        node = net.nodes[number]
        if number not in copy_of and (number in late or is_made_again(number)):
            copy_of[number] = backward.copy(node, [copy_of[operand] for operand in node.inputs])
    return Halves(
        forward_net, with_inputs(backward, order, [copy_of[n] for n in gradient_results]), len(saved)
    )


def windows_among(net: Net, numbers: set[int]) -> set[int]:
    """Returns the nodes among `numbers` that are windows of steps (neighbouring steps as features) or
    reshaped windows, and the windows that these reshape. The half of a gradient net that runs later can make
    them again, so that they need not be saved.
    """

    def source(number: int) -> set[int]:
        """Returns the number of a node, and those of the nodes behind it that it reshapes, if the last of
        these is `windows` (neighbouring steps as features); an empty set for any other node.
        """
        node = net.nodes[number]
        if node.operation == "windows":
            return {number}
        below = source(node.inputs[0]) if node.operation == "reshape" else set[int]()
        return {number, *below} if below else below

    return {found for number in numbers for found in source(number)}


def views_among(net: Net, numbers: set[int]) -> set[int]:
    """Returns the nodes among `numbers` that show all elements of a value in another shape or order, and
    those behind them that do: the value is saved, unless it is an input, and so it is saved once.
    """
    found, waiting = set[int](), [*numbers]
    while waiting:
        number = waiting.pop()
        node = net.nodes[number]
        if node.operation in ("reshape", "transpose") and number not in found:
            found.add(number)
            waiting += node.inputs
    return found


def widened_among(net: Net, numbers: set[int]) -> set[int]:
    """Returns the nodes among `numbers` that cast values of a dtype which is only stored, such as bfloat16,
    to the one in which they are computed: the narrow values take half the bytes.
    """
    nodes = ((number, net.nodes[number]) for number in numbers)
    return {
        n
        for n, node in nodes
        if node.operation == "cast" and DTYPES[net.type_of(node.inputs[0]).dtype].is_stored
    }
