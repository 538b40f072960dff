"""The plans that the engine llvm refuses, and the reasons."""

from collections.abc import Sequence

from stepnet.engines.llvm.writing.pointwise import POINTWISE
from stepnet.net.ir import Node
from stepnet.plan.plan import Plan

KINDS = {"view", "reduce", "scan", "matmul", "source", "gather"}
STRUCTURE = {"result", "expand", "recur"}
WORDS = {"reduce"}
"""The operations of extents that a step supports on its inner sequences."""


def plan_refusal(plan: Plan) -> str | None:
    """The reason why a plan has no machine code: its first unsupported operation. Reductions over steps and
    totals run in NumPy, and need none.
    """
    in_numpy = {*plan.reduced, *plan.total}
    rest = [node for number, node in enumerate(plan.net.nodes) if number not in in_numpy]
    return refusal(rest) or refusal(plan.body.nodes, inside=True)


def refusal(nodes: Sequence[Node], inside: bool = False) -> str | None:
    """The first operation of a net's nodes that has no machine code."""
    for node in nodes:
        if node.operation == "recur" and inside and (reason := refusal(node.recur.body.nodes)):
            return reason
        compiled = node.kind in KINDS or node.operation in STRUCTURE or node.operation in POINTWISE
        compiled = compiled or (inside and node.operation in WORDS)
        if not compiled:
            where = f"\n    at {node.source}" if node.source else ""
            return f"it has no machine code for `{node.operation}`{where}"
    return None
