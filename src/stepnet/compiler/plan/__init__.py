"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.plan.apart import unit_fibers as unit_fibers
    from stepnet.compiler.plan.load import BlockCosts as BlockCosts
    from stepnet.compiler.plan.load import CallSize as CallSize
    from stepnet.compiler.plan.load import CostModel as CostModel
    from stepnet.compiler.plan.load import FiberCosts as FiberCosts
    from stepnet.compiler.plan.load import Load as Load
    from stepnet.compiler.plan.load import Machine as Machine
    from stepnet.compiler.plan.load import MatrixSizes as MatrixSizes
    from stepnet.compiler.plan.partition import CallPartition as CallPartition
    from stepnet.compiler.plan.partition import Partition as Partition
    from stepnet.compiler.plan.partition import Wavefront as Wavefront
    from stepnet.compiler.plan.passes import PIPELINE as PIPELINE
    from stepnet.compiler.plan.passes import Pipeline as Pipeline
    from stepnet.compiler.plan.passes import optimised as optimised
    from stepnet.compiler.plan.passes.read_before import with_early_reads as with_early_reads
    from stepnet.compiler.plan.plan import Plan as Plan
    from stepnet.compiler.plan.plan import Planning as Planning
    from stepnet.compiler.plan.plan import planned as planned
    from stepnet.compiler.plan.schedule import Part as Part
    from stepnet.compiler.plan.schedule import Schedule as Schedule
    from stepnet.compiler.plan.waves import Across as Across
    from stepnet.compiler.plan.waves import lines_of as lines_of
    from stepnet.compiler.plan.waves import order_of as order_of
    from stepnet.compiler.plan.waves import runs_of as runs_of
    from stepnet.compiler.plan.waves import waves_of as waves_of

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
