"""Work moved out of the inner recurrences of a step, into the step around them.

    recur(words, h):                             recur(words, h):
        recur(words, h):                  ->         a = words @ W               all words of a row
            c' = f(x @ W + c @ R)                    recur(a, h): c' = f(a + c @ R)

An inner recurrence whose memory the outer one enters stays in the step. Its own step has no more than what
needs its memory: a product of all words of a row reads the weights once for several words, one of a single
word reads them again at each. Arrays that are part of the inner step become parameters of it, so all that
machine code packs are parameters of the outer step.
"""

from stepnet.net.ir import Builder, Net
from stepnet.plan.passes.hoist import hoist
from stepnet.plan.passes.rewrite import rewritten, with_constants_outside
from stepnet.plan.passes.sink import sink
from stepnet.values.dtypes import DTYPES


def inside(net: Net) -> Net:
    """The net in which the recurrences inside steps do what needs their memory alone."""
    return rewritten(net, moved)


def moved(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """A recurrence around others with less work in those; None for any other node."""
    node = net.nodes[number]
    if node.operation != "recur" or all(inner.operation != "recur" for inner in node.recur.body.nodes):
        return None
    body = sink(hoist(node.recur.body))
    return builder.copy(node, operands, body=rewritten(body, with_arrays_outside, inside=False))


def with_arrays_outside(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """A recurrence whose arrays are operands; None where it has none."""
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    arrays = arrays_in(node.recur.body)
    return with_constants_outside(builder, node, node.recur.body, arrays, operands) if arrays else None


def arrays_in(body: Net) -> set[int]:
    """The constants of a body that are more than a number, or read as a matrix or table."""
    users = body.users()

    def is_array(number: int) -> bool:
        type_ = body.type_of(number)
        read = {body.nodes[user].kind for user in users[number]}
        return type_.size != 1 or DTYPES[type_.dtype].is_stored or bool(read & {"matmul", "gather"})

    constants = (number for number, node in enumerate(body.nodes) if node.operation == "constant")
    return set(filter(is_array, constants))
