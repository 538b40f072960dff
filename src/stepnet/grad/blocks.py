"""Recurrences that are trained in blocks of steps: which are, and of how many.

    recur(x; S' = a * S + k * v)     ->     recur(4 steps of x; S' = a4 * S + k1 * v1 + ... + k4 * v4)

A gradient keeps the memory ahead of each step, a matrix, and reads it again. For blocks of steps that are one
step (`together.py`) it keeps one for each block; and as no step has a matrix of its own then
(`distribute.py`), the steps of a block share the passes over it.
"""

from dataclasses import replace
import os
from stepnet.net.ir import Net, Recur
from stepnet.net.types import ROWS, STEPS
from stepnet.plan.passes.distribute import distribute, linear_values
from stepnet.plan.passes.together import together

SIZES = (1, 2, 4, 8)
"""Of how many steps blocks may be."""


def block_sizes(net: Net) -> dict[int, int]:
    """How many steps blocks have that pay, by the numbers of a net's recurrences; without others."""
    C = int(os.environ.get('BLOCK', '4'))
    return {n: C for n, node in enumerate(net.nodes) if node.operation == "recur" and any(is_matrix(node.recur, m) for m in node.recur.memories)} if C > 1 else {}


def in_blocks(recur: Recur, count: int) -> Recur:
    """The recurrence of blocks of so many steps; `refusal` gives no reason against them."""
    made = together(recur, count)
    pairs = zip(recur.memories, made.memories, strict=True)
    matrices = [after for before, after in pairs if is_matrix(recur, before)]
    if os.environ.get('PLAIN'): return made
    return replace(made, body=distribute(made.body, matrices, made.memories))


def is_matrix(recur: Recur, memory: int) -> bool:
    """Whether a memory has two axes or more, of floating-point numbers."""
    type_ = recur.body.type_of(memory)
    return type_.is_float and sum(size > 1 for size in type_.shape) > 1
