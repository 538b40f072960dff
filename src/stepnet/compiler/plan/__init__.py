"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.plan.apart import unit_fibers
    from stepnet.compiler.plan.load import (
        BlockCosts,
        CallSize,
        CostModel,
        FiberCosts,
        Load,
        Machine,
        MatrixSizes,
    )
    from stepnet.compiler.plan.partition import CallPartition, Partition, Wavefront
    from stepnet.compiler.plan.passes import PIPELINE, Pipeline, optimised
    from stepnet.compiler.plan.passes.read_before import with_early_reads
    from stepnet.compiler.plan.plan import Plan, Planning, planned
    from stepnet.compiler.plan.schedule import Part, Schedule
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
    "planned",
    "runs_of",
    "unit_fibers",
    "waves_of",
    "with_early_reads",
]

__getattr__ = late_names(
    __name__,
    ("apart", "unit_fibers"),
    ("load", "BlockCosts CallSize CostModel FiberCosts Load Machine MatrixSizes"),
    ("partition", "CallPartition Partition Wavefront"),
    ("passes", "PIPELINE Pipeline optimised"),
    ("passes.read_before", "with_early_reads"),
    ("plan", "Plan Planning planned"),
    ("schedule", "Part Schedule"),
    ("waves", "Across lines_of order_of runs_of waves_of"),
)
