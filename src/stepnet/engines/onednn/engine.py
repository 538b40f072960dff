"""The engine: recurrences that compute a cell of oneDNN's by its primitives, and what lies between by llvm.

It is not in "auto": stepnet's own machine code needs no padding. It is for a comparison on the same net, and
for machines that oneDNN knows best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepnet.engines.base import Cell, Joins, Kernel
from stepnet.engines.llvm.engine import LlvmEngine
from stepnet.engines.onednn.bound import OneDnnKernel
from stepnet.engines.onednn.joined import OneDnnJoins
from stepnet.engines.onednn.known import Known, known_plan
from stepnet.engines.onednn.library import library
from stepnet.engines.parts import Means, in_parts
from stepnet.errors import LibraryError
from stepnet.net.ir import Node
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Part, Schedule

Array = np.ndarray
LLVM, JOINS = LlvmEngine(), OneDnnJoins()


@dataclass(frozen=True)
class OneDnnEngine:
    """The engine on the library of STEPNET_ONEDNN, or on the one that is installed."""

    name: str = "onednn"
    joins: Joins = JOINS

    def refuse(self, schedule: Schedule) -> str | None:
        """Why a recurrence does not run on oneDNN, or a part between them on llvm; None if all of it runs."""
        if reason := missing():
            return reason
        known = 0
        for part in parts_of(schedule):
            known += bool(part.members)
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
        """Why a part does not run on oneDNN itself; None for a recurrence that does."""
        made = self.cell(plan)
        return made if isinstance(made, str) else None

    def cell(self, plan: Plan) -> Cell | str:
        """What oneDNN has for a recurrence; a reason where it has nothing."""
        if reason := missing():
            return reason
        made = known_plan(plan)
        return made if isinstance(made, str) else Cell(made.reads, str(made.recurrence))

    def compile(self, schedule: Schedule) -> Kernel:
        """Every part on oneDNN or llvm, to be run one after the other."""
        return in_parts(schedule, Means(self.compile_plan, self.total, self.joins.compile))

    def compile_plan(self, plan: Plan) -> Kernel:
        """One plan: a recurrence on oneDNN, anything else on llvm."""
        known = known_plan(plan)
        return LLVM.compile_plan(plan) if isinstance(known, str) else OneDnnKernel(known)

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """A value over all rows, as llvm computes it."""
        return LLVM.total(node, operands)


def missing() -> str | None:
    """Why there is no library; None where there is one."""
    try:
        library()
    except LibraryError as error:
        return str(error)
    return None


def parts_of(schedule: Schedule) -> Iterator[Part]:
    """All parts, those inside loops included."""
    for part in schedule.parts:
        yield part
        if part.inner is not None:
            yield from parts_of(part.inner)
