"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from stepnet.compiler.plan.apart import unit_fibers
from stepnet.compiler.plan.load import BlockCosts, CallSize, CostModel, FiberCosts, Load, Machine, MatrixSizes
from stepnet.compiler.plan.partition import CallPartition, Partition, Wavefront
from stepnet.compiler.plan.passes import PIPELINE, Pipeline, optimised
from stepnet.compiler.plan.passes.read_before import with_early_reads
from stepnet.compiler.plan.plan import Plan, Planning, plan
from stepnet.compiler.plan.schedule import Part, Schedule, schedule
from stepnet.compiler.plan.waves import Across, lines_of, order_of, runs_of, waves_of

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
