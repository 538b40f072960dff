"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.plan.partition import CallPartition, Partition, Wavefront
from stepnet.compiler.plan.passes import PIPELINE, optimised
from stepnet.compiler.plan.plan import Plan, plan
from stepnet.compiler.plan.schedule import Schedule, schedule

__all__ = [
    "PIPELINE",
    "CallPartition",
    "CallSize",
    "Load",
    "Machine",
    "Partition",
    "Plan",
    "Schedule",
    "Wavefront",
    "optimised",
    "plan",
    "schedule",
]
