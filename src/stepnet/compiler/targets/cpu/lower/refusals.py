"""The plans that the engine llvm refuses, and the reasons."""

from collections.abc import Sequence

from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.pointwise import POINTWISE

KINDS = {"view", "reduce", "scan", "matmul", "source", "gather"}
STRUCTURE = {"result", "expand", "recur"}
WORDS = {"reduce"}
"""The operations along an axis of inner sequences that have machine code in a step."""


def plan_refusal(plan: Plan) -> str | None:
    """Returns why there is no machine code for a plan, with its first unsupported operation; or None."""
    in_numpy = {*plan.reduced, *plan.total}
    compiled = [node for number, node in enumerate(plan.net.nodes) if number not in in_numpy]
    return refusal(compiled) or refusal(plan.body.nodes, inside=True)


def refusal(nodes: Sequence[Node], inside: bool = False) -> str | None:
    """Returns the message for the first node whose operation has no machine code; None if all have.

    inside: whether the nodes are those of a step.
    """
    for node in nodes:
        if node.operation == "recur" and inside and (reason := refusal(node.recur.body.nodes)):
            return reason
        compiled = node.kind in KINDS or node.operation in STRUCTURE or node.operation in POINTWISE
        compiled = compiled or (inside and node.operation in WORDS)
        if not compiled:
            where = f"\n    at {node.source}" if node.source else ""
            return f"it has no machine code for `{node.operation}`{where}"
    return None
