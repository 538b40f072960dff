"""The choice of the recurrences that are trained in blocks of steps, and of the size of these blocks.

    recur(x; S' = a * S + k * v)     ->     recur(4 steps of x; S' = a4 * S + k1 * v1 + ... + k4 * v4)

The forward pass saves the memory before each step, a matrix, and the backward pass reads it. If a block of
steps becomes one step (`block_steps.py`), one matrix is saved for each block. The matrices between the steps
of a block are not computed (`distribute.py`), so these steps share the passes over one matrix.

A memory fits if it is linear in the memory before the step, and if all other nodes read it only in sums. A
body may have further memories, which are computed step by step inside a block.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepnet.compiler.grad.matrix_adjoint import core_in_chunks
from stepnet.compiler.net.ir import Net, Node, Recur
from stepnet.compiler.net.types import CONST, ROWS, STEPS
from stepnet.compiler.plan.load import BlockCosts
from stepnet.compiler.plan.passes.block_steps import with_joined_steps
from stepnet.compiler.plan.passes.distribute import distribute, linear_values
from stepnet.compiler.plan.schedule import is_nested
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class BlockChoice:
    """Choice of how many steps of a recurrence are trained at a time.

    size: the number of steps.
    recur: the recurrence, one step of which is `size` of the original.
    reason: why `size` is 1; empty otherwise.
    in_chunks: whether kernels of the engine run its gradient in chunks of steps. refused: why they do not,
        for a matrix; empty where the engine has none.

    >>> print(BlockChoice(1, Recur(Net((), (), ()), 0, 0), "no memory is a matrix"))
    1 step: no memory is a matrix
    """

    size: int
    recur: Recur
    reason: str = ""
    in_chunks: bool = False
    refused: str = ""

    def __str__(self) -> str:
        """Writes the number of steps, with the reason if it is one."""
        if self.in_chunks:
            return "chunks of steps, by products of matrices"
        said = f"{self.size} steps" if self.size > 1 else f"1 step: {self.reason}"
        return f"{said}; not in chunks: {self.refused}" if self.refused else said


def block_choices(net: Net, costs: BlockCosts, alone: str = "") -> dict[int, BlockChoice]:
    """Chooses how the gradient of each recurrence of a net is computed: in chunks of steps, or with how many
    steps joined to one, to save fewer matrices. Returns a dict from the node number of each recurrence to the
    choice. No steps are joined if the net has sequences inside sequences, or if a recurrence runs over other
    sequences than those of the call.

    costs: the estimated costs, those of the engine that trains.
    alone: why no steps are joined to one; "" if they may be.
    """
    recurrences = {number: node.recur for number, node in enumerate(net.nodes) if node.operation == "recur"}
    alone = alone or ("a sequence has sequences inside" if is_nested(net) else "")
    return {
        number: choice_of(net, number, costs, alone)
        if net.type_of(net.nodes[number].inputs[0]).extent == STEPS
        else BlockChoice(1, recur, alone or "its sequences are not those of the call")
        for number, recur in recurrences.items()
    }


def choice_of(net: Net, number: int, costs: BlockCosts, alone: str = "") -> BlockChoice:
    """Chooses how a recurrence of a net is trained: in chunks, if the engine has kernels for them; else in
    blocks of steps, or step by step. A reason why a matrix has no chunks is given with that.
    """
    recur = net.nodes[number].recur
    core = "" if costs.chunks is None else core_in_chunks(net, number, costs.chunks)
    if not isinstance(core, str):
        return BlockChoice(1, recur, in_chunks=True)
    choice = BlockChoice(1, recur, alone) if alone else block_choice(recur, costs)
    is_of_matrices = any(is_matrix(recur.body.nodes[number]) for number in recur.memories)
    return replace(choice, refused=core) if is_of_matrices else choice


def block_choice(recur: Recur, costs: BlockCosts) -> BlockChoice:
    """Chooses how many steps of a recurrence are joined to one (a block) when its gradient is computed: the
    number of `costs.sizes` with the lowest estimated cost per step, if this is below `costs.worth` times that
    of single steps; else 1, with the reason.
    """
    fitting = matrices(recur)
    if isinstance(fitting, str):
        return BlockChoice(1, recur, fitting)
    blocks = {count: in_blocks(recur, fitting, count) for count in costs.sizes}
    single = cost(recur, fitting, recur.body, costs)
    shares = {
        count: cost(recur, fitting, blocked.body, costs) / count / single for count, blocked in blocks.items()
    }
    best = min(costs.sizes, key=shares.__getitem__)
    if shares[best] < costs.worth:
        return BlockChoice(best, blocks[best])
    reason = f"blocks of {best} would cost {shares[best]:.2f} of single steps, and pay below {costs.worth}"
    return BlockChoice(1, recur, reason)


def in_blocks(recur: Recur, fitting: Sequence[int], count: int) -> Recur:
    """Makes the recurrence of which one step does `count` steps of the given one, to save fewer matrices.

    fitting: the memories that are matrices, by their numbers in the body (the net of a step). Sums over
        values that are linear in them are written as sums over these memories, so that the matrices between
        the steps are not computed.
    """
    blocked = with_joined_steps(recur, count)
    indices = [recur.memories.index(memory) for memory in fitting]
    body = distribute(blocked.body, [blocked.memories[index] for index in indices], blocked.memories)
    return replace(blocked, body=body)


# ---- the memories that fit ---------------------------------------------------------------------------------


def matrices(recur: Recur) -> tuple[int, ...] | str:
    """Returns the memories that are matrices and fit training in blocks (several steps computed as one, so
    that fewer matrices are saved), as node numbers of the body (the net of a step); a text with the reason if
    none fits.

    None fits if products are in low precision, or if a step reads its index or runs over sequences itself.
    """
    body = recur.body
    if recur.precision is not None and recur.precision.is_low:
        return f"its products are in {recur.precision.dtype}"
    if any(node.operation == "index" for node in body.nodes):
        return "a step reads its index"
    if any(type_.extent not in (CONST, ROWS) for type_ in body.types):
        return "a step has sequences inside"
    found = [number for number in recur.memories if is_matrix(body.nodes[number])]
    if not found:
        return "no memory is a matrix"
    reasons = {number: unfit(recur, number) for number in found}
    fitting = tuple(number for number, reason in reasons.items() if reason is None)
    return fitting or next(reason for reason in reasons.values() if reason is not None)


def is_matrix(node: Node) -> bool:
    """Tells whether a node's value is a floating-point matrix: at least two axes are larger than one."""
    return node.type.is_float and sum(size > 1 for size in node.type.shape) > 1


def unfit(recur: Recur, memory: int) -> str | None:
    """Returns why a memory of a recurrence, a matrix, cannot be trained in blocks of steps, several steps
    computed as one; None if it can.

    It can if the next memory is linear in it, with factors smaller than the matrix, and if all other nodes
    read it only in sums.
    """
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
            return f"{name} itself is a result{where(node)}"
    if after not in linear:
        return f"the next {name} is not linear in {name}{where(body.nodes[after])}"
    return None


def where(node: Node) -> str:
    """Returns the user's line of a node, to be added to a message; empty if it is not known."""
    return f", at {node.source}" if node.source else ""


# ---- the size of blocks ------------------------------------------------------------------------------------


def cost(recur: Recur, fitting: Sequence[int], body: Net, costs: BlockCosts) -> float:
    """Estimates the cost of a step or a block (several steps joined to one) in training, in units of an
    operation on one number of a matrix.

    Counted are operations on numbers, bytes of saved memories, and matrices that do not fit in registers.

    fitting: the memories that are matrices.
    body: the body of the recurrence (the net of a step), or that of its blocks.
    costs: those of the engine that trains.
    """
    large = min(recur.body.type_of(number).size for number in fitting)
    memory_bytes = sum(
        recur.body.type_of(number).size * recur.body.type_of(number).itemsize for number in fitting
    )
    total, streams, widest = costs.byte * memory_bytes, 0, large
    summed = {node.inputs[0] for node in body.nodes if node.operation == "sum"}
    for number, node in enumerate(body.nodes):
        if node.kind not in ("pointwise", "reduce") or len(node.types) != 1:
            continue
        size = max([node.type.size, *(body.type_of(operand).size for operand in node.inputs)])
        total += size * (costs.operation if size >= large else costs.small)
        if size >= large and (
            node.kind == "reduce" or (node.operation == "multiply" and number not in summed)
        ):
            streams, widest = streams + 1, max(widest, size)
    return total + costs.stream * widest * max(0, streams - costs.streams)
