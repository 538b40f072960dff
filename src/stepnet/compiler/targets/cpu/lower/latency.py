"""The latency of a step: the longest chain of operations that wait for each other, from a memory to its next
value.

    h --load--> k multiply-adds --> sigmoid --> multiply --> tanh --> ... --store--> h of the next step

However few operations a step has, and however many sequences run beside each other, it takes no less time.
Cycles are those of current x86-64 processors: Intel of the Golden Cove generation and AMD Zen 4 and 5 agree
within a cycle for multiply-adds (4), and within three for the others (uops.info; AMD's Software Optimization
Guide for family 19h, appendix A).
"""

from collections.abc import Sequence

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.plan.passes.rewrite import view_chain

OPERATION = 4
"""The cycles of a multiply-add, and of most operations on floats."""
MEMORY = 9
"""The cycles from a number in a register over a store and a load to a number in a register."""
ENCODED_WORD = 4
"""The most elements that one instruction multiplies and adds, of weights in fewer bits."""
LATENCIES = {
    "divide": 11,
    "sqrt": 12,
    "exp": 56,
    "expm1": 56,
    "sigmoid": 44,
    "tanh": 42,
    "where": 2,
    "detach": 0,
}
"""The cycles of operations in float32 that are no multiples of their flops. Those of elementary functions are
sums over the longest chain of their code with AVX-512 (`writing/maths.py`), of which a division is 11; with
AVX2 sigmoid takes 8 more and tanh 4.
"""


def chain_cycles(body: Net, memories: Sequence[int], following: Sequence[int]) -> int:
    """Counts the cycles of the longest chain of operations from a memory of a step to its next value; 0 if no
    memory is computed from itself. Chains over two memories and two steps are not looked for.

    body: the net of the step. memories, following: the nodes of the memories, and those of their next values.
    """
    # For each node, the cycles after which it is known, by the memory that it is computed from.
    known = list[dict[int, int]]()
    for number, node in enumerate(body.nodes):
        after = {number: MEMORY} if number in memories else dict[int, int]()
        for operand, own in zip(node.inputs, operand_cycles(body, node, memories), strict=True):
            for memory, cycles in known[operand].items():
                after[memory] = max(after.get(memory, 0), cycles + own)
        known.append(after)
    pairs = zip(memories, following, strict=True)
    return max((known[after].get(memory, 0) for memory, after in pairs if after != memory), default=0)


def operand_cycles(body: Net, node: Node, memories: Sequence[int]) -> list[int]:
    """Counts the cycles from each operand of an operation to its result. What passes over all units, such as
    a sum, counts with its way through memory alone.
    """
    if node.kind != "matmul":
        pointwise = LATENCIES.get(node.operation, OPERATION * node.row.flops)
        is_free = node.kind in ("view", "source") or node.operation == "result"
        own = pointwise if node.kind == "pointwise" else 0 if is_free else MEMORY
        return [own] * len(node.inputs)
    # Products are added up operand by operand. Their sums pass through memory, as do computed operands.
    lefts, rights = node.sides
    terms = 1 if node.attributes.get("weights") is None else ENCODED_WORD
    words = [-(-body.type_of(left).size // terms) for left in lefts]
    computed = [view_chain(body, left)[0] not in memories for left in lefts]
    own = [OPERATION * sum(words[at:]) + MEMORY * (1 + far) for at, far in enumerate(computed)]
    return own + [0] * len(rights)
