"""The CPU engine: machine code generated for the processor at hand."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepnet.engines.base import Array, Cell, Kernel, narrow_cell
from stepnet.engines.llvm.compiled import MOST_BYTES, Compiled, Kept, compiled
from stepnet.engines.llvm.constants import constant_values
from stepnet.engines.llvm.finish import Finish, Rows, total
from stepnet.engines.llvm.pointwise import POINTWISE
from stepnet.engines.llvm.run import Runner
from stepnet.engines.llvm.target import Target, host_target
from stepnet.engines.parts import in_parts
from stepnet.net.digest import digest
from stepnet.net.ir import Node
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Schedule

KINDS = {"view", "reduce", "scan", "matmul", "source", "gather"}
STRUCTURE = {"result", "expand", "recur"}


@dataclass(frozen=True)
class LlvmEngine:
    """The engine for one target; the machine's own by default."""

    target: Target | None = None
    name: str = "llvm"

    def refuse(self, schedule: Schedule) -> str | None:
        """The first operation without machine code, as a reason; None if there is none."""
        return next((reason for plan in schedule.plans if (reason := plan_refusal(plan))), None)

    def refuse_plan(self, plan: Plan) -> str | None:
        """The first operation without machine code."""
        return plan_refusal(plan)

    def compile(self, schedule: Schedule) -> Kernel:
        """Every part as machine code, to be run one after the other."""
        return in_parts(schedule, self.compile_plan, self.total)

    def cell(self, plan: Plan) -> Cell | str:
        """What it has for a recurrence in fewer bits."""
        return narrow_cell(plan)

    def compile_plan(self, plan: Plan) -> "LlvmKernel":
        """One plan as machine code; plans that are equal but for their direction are compiled once."""
        target = self.target or host_target()
        stages = (plan.once, plan.sequence, plan.before, plan.loop, plan.after, plan.ended, plan.total)
        key = digest(target, plan.forward_net, plan.ends, plan.recur, *stages)
        return LlvmKernel(plan, KEPT.get(key, lambda: compiled(plan, target)), target)

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """A value over all rows, computed by NumPy or the contract kernel."""
        return total(node, list(map(Rows, operands)), self.target or host_target())


KEPT = Kept(MOST_BYTES)


def plan_refusal(plan: Plan) -> str | None:
    """The first operation of a plan without machine code. NumPy does the work after the loop, which needs
    none.
    """
    in_numpy = {*plan.reduced, *plan.total}
    rest = [node for number, node in enumerate(plan.net.nodes) if number not in in_numpy]
    return refusal(rest) or refusal(plan.body.nodes, inside=True)


def refusal(nodes: Sequence[Node], inside: bool = False) -> str | None:
    """The first operation of a net's nodes that has no machine code."""
    for node in nodes:
        if node.operation == "recur" and inside:
            return "a recurrence inside a recurrence is not compiled yet"
        compiled = node.kind in KINDS or node.operation in STRUCTURE or node.operation in POINTWISE
        if not compiled:
            where = f"\n    at {node.source}" if node.source else ""
            return f"it has no machine code for `{node.operation}`{where}"
    return None


@dataclass(frozen=True)
class LlvmKernel:
    """A plan and its machine code."""

    plan: Plan
    compiled: Compiled
    target: Target

    def bind(self, parameters: Sequence[Array]) -> Runner:
        """What runs a call with these parameters, which are packed now."""
        values = constant_values(self.plan, parameters)
        constants = self.compiled.constants.filled(values, self.target)
        finish = Finish.of(self.plan, self.compiled.needs, values, self.target)
        return Runner(self.plan, self.compiled, constants, finish, self.target)
