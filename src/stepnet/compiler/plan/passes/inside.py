"""Work moved out of inner recurrences into the step around them.

    recur(words, h):                             recur(words, h):
        recur(words, h):                  ->         a = words @ W               all words of a row
            c' = f(x @ W + c @ R)                    recur(a, h): c' = f(a + c @ R)

An inner recurrence that needs the outer memory stays in the outer step. Work of the inner step that does not
need the inner memory moves out of it: a product of all words of a row reads the weights once for several
words, a product in the inner step reads them again for each word. Constant arrays of the inner step become
parameters of it, so that every array that the llvm engine packs is a parameter of the outer step.
"""

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.hoist import hoist
from stepnet.compiler.plan.passes.rewrite import rewritten, with_constants_outside
from stepnet.compiler.plan.passes.sink import sink
from stepnet.compiler.values.dtypes import DTYPES


def inside(net: Net) -> Net:
    """Moves work that needs no inner memory out of inner recurrences, so that weights are read less often."""
    return rewritten(net, with_work_moved_out)


def with_work_moved_out(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: moves work out of the inner recurrences of a recurrence, those inside its step, to before
    or after them in the outer step. Returns the number of the new recurrence; None for a node without inner
    recurrences.

    operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation != "recur" or all(inner.operation != "recur" for inner in node.recur.body.nodes):
        return None
    body = sink(hoist(node.recur.body))
    return builder.copy(node, operands, body=rewritten(body, with_arrays_outside, inside=False))


def with_arrays_outside(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: rebuilds a recurrence with the constant arrays of its body (the net of its step) as
    operands, so that each is a parameter of the outer step; None for other nodes. operands: the node's
    operands in the new net.
    """
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    arrays = arrays_in(node.recur.body)
    return with_constants_outside(builder, node, node.recur.body, arrays, operands) if arrays else None


def arrays_in(body: Net) -> set[int]:
    """Finds the constants of a body that are arrays, not single numbers, or are read as a matrix or table."""
    users = body.users()

    def is_array(number: int) -> bool:
        """Tells whether a constant (node `number` of the net of a step) is an array, has a dtype that is only
        stored, such as bfloat16, or is read as a matrix or table.
        """
        type_ = body.type_of(number)
        read = {body.nodes[user].kind for user in users[number]}
        return type_.size != 1 or DTYPES[type_.dtype].is_stored or bool(read & {"matmul", "gather"})

    constants = (number for number, node in enumerate(body.nodes) if node.operation == "constant")
    return set(filter(is_array, constants))
