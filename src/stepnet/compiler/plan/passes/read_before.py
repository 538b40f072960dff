"""Steps that change a matrix by outer products read it as it was before the step.

    S = a * S + k * w                          r = a * sum(S * q) + sum(k * q) * w
    r = sum(S * q)                    ->       S = a * S + k * w

So all reads of a step go to one matrix, and several steps can be computed together, as products of matrices
(`plan/matrix_rule.py`). Only steps of that form are changed.
"""

from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Recur
from stepnet.compiler.plan.matrix_rule import matrix_rule
from stepnet.compiler.plan.passes.distribute import distribute, linear_values
from stepnet.compiler.plan.passes.rewrite import rewritten


def read_before(net: Net) -> Net:
    """Rewrites the recurrences of a net whose only memory is a matrix that is changed by outer products, so
    that they read it as it was before the step; returns the new net.
    """
    return rewritten(net, changed)


def changed(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: replaces a recurrence of the form; returns its number. None for any other node."""
    node = net.nodes[number]
    if node.operation != "recur" or isinstance(recur := with_early_reads(node.recur), str):
        return None
    return recur.add(builder, operands, name=node.name, source=node.source)


def with_early_reads(recur: Recur) -> Recur | str:
    """Returns a recurrence that reads its only memory, a matrix, before the step; for one of another form why
    this pass does not rewrite it, as text.
    """
    if len(recur.memories) != 1:
        return "it has several memories"
    (memory,) = recur.memories
    if recur.following[0] not in linear_values(recur.body, memory):
        return "the next memory is not linear in the one before"
    made = replace(recur, body=distribute(recur.body, [memory], recur.memories))
    rule = matrix_rule(made)
    return rule if isinstance(rule, str) else made
