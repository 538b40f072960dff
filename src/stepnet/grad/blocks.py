"""Recurrences that are trained in blocks of steps: which are, and of how many.

    recur(x; S' = a * S + k * v)     ->     recur(4 steps of x; S' = a4 * S + k1 * v1 + ... + k4 * v4)

A gradient keeps the memory ahead of each step, a matrix, and reads it again. For blocks of steps that are one
step (`together.py`) it keeps one for each block; and as no step has a matrix of its own then
(`distribute.py`), the steps of a block share the passes over it.

A matrix fits if it is linear in the one before it, and if all else reads it in sums. A body may have other
memories besides, which are computed step by step inside a block.
"""

from dataclasses import replace

from stepnet.net.ir import Net, Node, Recur
from stepnet.net.types import CONST, ROWS, STEPS
from stepnet.plan.passes.distribute import distribute, linear_values
from stepnet.plan.passes.together import together
from stepnet.plan.schedule import is_nested

SIZES = (1, 2, 4, 8)
"""Of how many steps blocks may be."""
OPERATION, SMALL, BYTE, STREAM = 1.0, 9.0, 2.5, 1.7
"""What an operation on a number of a matrix costs, one on a number of a vector, a byte of a memory that is
kept and read again, and for each number of a matrix a sum over it, or a term of it, that registers do not
hold. As measured for outputs and gradients (docs/benchmarks.md, "Steps in blocks")."""
STREAMS = 10
"""How many sums over a matrix and terms of it registers hold: a gradient has twice as many."""


def block_sizes(net: Net) -> dict[int, int]:
    """How many steps blocks have, by the numbers of those recurrences of a net for which blocks pay."""
    if is_nested(net):
        return {}
    sizes = {
        number: block_size(node.recur)
        for number, node in enumerate(net.nodes)
        if node.operation == "recur" and net.type_of(node.inputs[0]).extent == STEPS
    }
    return {number: size for number, size in sizes.items() if size > 1}


def block_size(recur: Recur) -> int:
    """How many steps a block of a recurrence has; 1 where blocks would not pay, or where there are none."""
    return 1 if isinstance(matrices(recur), str) else min(SIZES, key=lambda count: cost(recur, count))


def in_blocks(recur: Recur, count: int) -> Recur:
    """The recurrence of blocks of so many steps, for one that `matrices` finds some in."""
    fitting = matrices(recur)
    assert not isinstance(fitting, str)
    made = together(recur, count)
    places = [recur.memories.index(memory) for memory in fitting]
    body = distribute(made.body, [made.memories[place] for place in places], made.memories)
    return replace(made, body=body)


# ---- which -------------------------------------------------------------------------------------------------


def matrices(recur: Recur) -> tuple[int, ...] | str:
    """The memories that are matrices and fit; a reason where none does."""
    body = recur.body
    if recur.precision is not None and recur.precision.is_low:
        return f"its products are in {recur.precision.dtype}"
    if any(node.operation == "index" for node in body.nodes):
        return "a step asks how many were before"
    if any(type_.extent not in (CONST, ROWS) for node in body.nodes for type_ in node.types):
        return "a step has sequences inside"
    found = [number for number in recur.memories if is_matrix(body.nodes[number])]
    if not found:
        return "no memory is a matrix"
    reasons = {number: unfit(recur, number) for number in found}
    fitting = tuple(number for number, reason in reasons.items() if reason is None)
    return fitting or next(reason for reason in reasons.values() if reason is not None)


def is_matrix(node: Node) -> bool:
    """Whether a value has two axes or more, of floating-point numbers."""
    return node.type.is_float and sum(size > 1 for size in node.type.shape) > 1


def unfit(recur: Recur, memory: int) -> str | None:
    """The reason why a memory does not fit; None if it does."""
    body, users = recur.body, recur.body.users()
    name, linear = body.nodes[memory].name or "memory", linear_values(body, memory)
    after = recur.following[recur.memories.index(memory)]
    for number in sorted(linear):
        node = body.nodes[number]
        others = [body.type_of(n).size for n in node.inputs if n not in linear]
        if node.operation == "multiply" and max(others) == node.type.size:
            return f"{name} is multiplied by a value that is as large{where(node)}"
        for user in users[number]:
            reader = body.nodes[user]
            if user not in linear and reader.operation != "sum":
                return f"{name} is read by {reader.operation}, not by a sum{where(reader)}"
        if number in recur.outputs or (number != after and number in recur.following):
            return f"{name} is a result as a whole{where(node)}"
    if after not in linear:
        return f"the next {name} is not linear in {name}{where(body.nodes[after])}"
    return None


def where(node: Node) -> str:
    """The user's line, where it is known."""
    return f", at {node.source}" if node.source else ""


# ---- how many ----------------------------------------------------------------------------------------------


def cost(recur: Recur, count: int) -> float:
    """About what a step costs in training, in blocks of so many: operations on one number of a matrix."""
    fitting = matrices(recur)
    assert not isinstance(fitting, str)
    body = in_blocks(recur, count).body if count > 1 else recur.body
    large = min(recur.body.type_of(number).size for number in fitting)
    kept = sum(recur.body.type_of(number).size * recur.body.type_of(number).itemsize for number in fitting)
    total, streams, widest = BYTE * kept, 0, large
    summed = {node.inputs[0] for node in body.nodes if node.operation == "sum"}
    for number, node in enumerate(body.nodes):
        if node.kind not in ("pointwise", "reduce") or len(node.types) != 1:
            continue
        size = max([node.type.size, *(body.type_of(operand).size for operand in node.inputs)])
        total += size * (OPERATION if size >= large else SMALL)
        if size >= large and (
            node.kind == "reduce" or (node.operation == "multiply" and number not in summed)
        ):
            streams, widest = streams + 1, max(widest, size)
    return (total + STREAM * widest * max(0, streams - STREAMS)) / count
