"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.plan.partition import CallPartition, Partition, Wavefront
from stepnet.compiler.plan.passes import PIPELINE, optimised
from stepnet.compiler.plan.plan import Plan, plan
from stepnet.compiler.plan.schedule import Schedule, schedule
from stepnet.compiler.plan.waves import Across, lines_of, order_of, runs_of, waves_of

__all__ = [
    "PIPELINE",
    "Across",
    "CallPartition",
    "CallSize",
    "Load",
    "Machine",
    "Partition",
    "Plan",
    "Schedule",
    "Wavefront",
    "lines_of",
    "optimised",
    "order_of",
    "plan",
    "runs_of",
    "schedule",
    "waves_of",
]
