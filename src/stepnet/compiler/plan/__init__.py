"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from typing import TYPE_CHECKING

from stepnet.compiler.plan.load import BlockCosts, CallSize, CostModel, FiberCosts, Load, Machine, MatrixSizes
from stepnet.compiler.plan.partition import CallPartition, Partition, Wavefront
from stepnet.compiler.plan.passes import PIPELINE, Pipeline, optimised
from stepnet.compiler.plan.plan import Plan, Planning, plan
from stepnet.compiler.plan.schedule import Part, Schedule, schedule
from stepnet.compiler.plan.waves import Across, lines_of, order_of, runs_of, waves_of
from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.compiler.plan.apart import unit_fibers
    from stepnet.compiler.plan.passes.read_before import with_early_reads

__all__ = [
    "PIPELINE",
    "Across",
    "BlockCosts",
    "CallPartition",
    "CallSize",
    "CostModel",
    "FiberCosts",
    "Load",
    "Machine",
    "MatrixSizes",
    "Part",
    "Partition",
    "Pipeline",
    "Plan",
    "Planning",
    "Schedule",
    "Wavefront",
    "lines_of",
    "optimised",
    "order_of",
    "plan",
    "runs_of",
    "schedule",
    "unit_fibers",
    "waves_of",
    "with_early_reads",
]


HOMES = {"unit_fibers": "apart", "with_early_reads": "passes.read_before"}
"""The modules of names that are imported at their first use: a plan that is stored needs none of them."""


def __getattr__(name: str) -> object:
    """Returns one of `HOMES`, imported at the first access; raises `AttributeError` for any other name."""
    return imported_late(__name__, name, HOMES.get(name))
