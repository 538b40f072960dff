"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late

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
HOMES = {
    "PIPELINE": "passes",
    "Across": "waves",
    "BlockCosts": "load",
    "CallPartition": "partition",
    "CallSize": "load",
    "CostModel": "load",
    "FiberCosts": "load",
    "Load": "load",
    "Machine": "load",
    "MatrixSizes": "load",
    "Part": "schedule",
    "Partition": "partition",
    "Pipeline": "passes",
    "Plan": "plan",
    "Planning": "plan",
    "Schedule": "schedule",
    "Wavefront": "partition",
    "lines_of": "waves",
    "optimised": "passes",
    "order_of": "waves",
    "planned": "plan",
    "runs_of": "waves",
    "unit_fibers": "apart",
    "waves_of": "waves",
    "with_early_reads": "passes.read_before",
}
"""The modules of names, which are imported at their first use: a package whose import imports its modules can
wait for a thread that imports one of them, and the thread for the package.
"""


def __getattr__(name: str) -> object:
    """Imports a name at its first use."""
    return imported_late(__name__, name, HOMES.get(name))
