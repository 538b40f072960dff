"""The plans that have no kernels for a GPU, and the reasons."""

from collections.abc import Sequence

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.pointwise import POINTWISE

KINDS = {"view", "reduce", "scan", "matmul", "source", "gather"}
STRUCTURE = {"result", "expand", "recur"}


def accepts(plan: Plan) -> bool:
    """Tells whether there are kernels for a plan."""
    return refuse(plan) is None


def refuse(plan: Plan) -> str | None:
    """Returns why there are no kernels for a plan, with its first unsupported operation; or None."""
    outside = {*plan.reduced, *plan.total, *plan.once}
    nodes = [node for number, node in enumerate(plan.net.nodes) if number not in outside]
    return refusal(nodes) or refusal(plan.body.nodes, inside=True)


def refusal(nodes: Sequence[Node], inside: bool = False) -> str | None:
    """Returns the message for the first node that has no kernel; None if all have.

    inside: whether the nodes are those of a step.
    """
    for node in nodes:
        where = f"\n    at {node.source}" if node.source else ""
        written = node.kind in KINDS or node.operation in STRUCTURE or node.operation in POINTWISE
        if not written or (inside and node.operation == "recur"):
            return f"it has no kernel for `{node.operation}`{where}"
        if node.attributes.get("weights") == "stored_int8":
            return f"it has no kernel for products whose weights alone are int8{where}"
        if inside and any(type_.extent not in (CONST, ROWS) for type_ in node.types):
            return f"it has no kernel for sequences inside a step, which `{node.operation}` has{where}"
    return None
