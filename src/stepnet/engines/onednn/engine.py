"""The engine onednn: known cells run on oneDNN's primitives, everything between them on the engine llvm.

The order "auto" does not include it: stepnet's own machine code needs no padding. It is for comparisons on
the same net, and for processors on which oneDNN is faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepnet.engines.base import Cell, Kernel
from stepnet.engines.llvm.engine import LlvmEngine
from stepnet.engines.onednn.bound import OneDnnKernel
from stepnet.engines.onednn.known import Known, known_plan
from stepnet.engines.onednn.library import library
from stepnet.engines.parts import Means, in_parts
from stepnet.errors import LibraryError
from stepnet.net.ir import Node
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Part, Schedule

Array = np.ndarray
LLVM = LlvmEngine()


@dataclass(frozen=True)
class OneDnnEngine:
    """The engine on the library that STEPNET_ONEDNN names, or on the installed one."""

    name: str = "onednn"

    def refuse(self, schedule: Schedule) -> str | None:
        """The reason why a recurrence does not run on oneDNN, or another part on llvm; None if all
        parts run.
        """
        if reason := missing():
            return reason
        known = 0
        for part in parts_of(schedule):
            if part.plan is None:
                continue
            made = known_plan(part.plan)
            known += isinstance(made, Known)
            if isinstance(made, str) and (part.node is not None or schedule.whole is not None):
                return made
            if isinstance(made, str) and (reason := LLVM.refuse_plan(part.plan)) is not None:
                return reason
        return None if known else "there is no recurrence that oneDNN has"

    def refuse_plan(self, plan: Plan) -> str | None:
        """The reason why a plan does not run on oneDNN itself; None for a recurrence that does."""
        made = self.cell(plan)
        return made if isinstance(made, str) else None

    def cell(self, plan: Plan) -> Cell | str:
        """oneDNN's cell for the recurrence of a plan, or the reason why there is none."""
        if reason := missing():
            return reason
        made = known_plan(plan)
        return made if isinstance(made, str) else Cell(made.reads, str(made.recurrence))

    def compile(self, schedule: Schedule) -> Kernel:
        """The kernel of a schedule: its parts run one after the other, on oneDNN or llvm."""
        return in_parts(schedule, Means(self.compile_plan, self.total))

    def compile_plan(self, plan: Plan) -> Kernel:
        """The kernel of a plan: on oneDNN if it has the recurrence, else on llvm."""
        known = known_plan(plan)
        return LLVM.compile_plan(plan) if isinstance(known, str) else OneDnnKernel(known)

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """A total, as the engine llvm computes it."""
        return LLVM.total(node, operands)


def missing() -> str | None:
    """The reason why oneDNN is not available; None if it is."""
    try:
        library()
    except LibraryError as error:
        return str(error)
    return None


def parts_of(schedule: Schedule) -> Iterator[Part]:
    """All parts of a schedule, including those inside loops."""
    for part in schedule.parts:
        yield part
        if part.inner is not None:
            yield from parts_of(part.inner)
