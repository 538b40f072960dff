"""Estimates of the time of a loop whose units have fibers, a thread for each unit (`units.py`).

Instructions are counted by the elements of a unit, and wait for main memory only where less than that is done
meanwhile. Nothing of it was measured.
"""

from collections.abc import Collection
from math import ceil

from stepnet.compiler.plan.apart import UnitFibers
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.tensor.costs import (
    EXACT,
    SCHEDULERS,
    TURN_READS,
    instructions,
)
from stepnet.compiler.targets.cuda.tensor.facts import facts_of

EXPONENTIAL = 8
"""The instructions of an exponential by the GPU's power of 2."""
READ, STEP = 2, 20
"""The instructions that read an element of main memory, and those of a step besides."""
REGISTERS = 255
"""The registers of a thread; those that memories leave are for inputs of steps ahead."""


def unit_instructions(fibers: UnitFibers, sequences: Collection[int]) -> float:
    """Returns the instructions of a thread for a step of a unit. sequences: the inputs that steps read."""
    body, longest, total = fibers.body, max(fibers.lengths), float(STEP)
    for number, node in enumerate(body.nodes):
        if len(node.types) == 1:
            size = node.type.size
            own = size // fibers.count if size >= fibers.count else min(size, longest)
            if node.kind == "pointwise":
                is_exp = node.operation == "exp" and node.type.dtype == "float32"
                total += own * (EXPONENTIAL if is_exp else instructions(node.operation, EXACT))
            elif node.kind == "reduce":
                total += own * body.type_of(node.inputs[0]).size / max(1, size)
            elif node.operation == "input" and number in sequences:
                total += READ * own
    return total


def unit_pace(
    code: LoopCode, fibers: UnitFibers, sequences: Collection[int], rows: int, device: DeviceFacts
) -> tuple[float, LanePace]:
    """Estimates the microseconds of a step of some sequences, and the pace of groups of blocks.

    sequences: the inputs that steps read.
    """
    facts, threads, group = facts_of(device), code.code.threads, code.code.group
    together = max(1, device.registers // (REGISTERS * threads))
    blocks = ceil(rows / code.group_rows) * group
    used = min(together, ceil(blocks / device.multiprocessors))
    at_once = used * device.multiprocessors
    warps = used * threads / LANES / SCHEDULERS
    instruction = facts.warp + facts.scheduler * max(1.0, warps)
    step = instruction * unit_instructions(fibers, sequences)
    pace = LanePace(max(1, at_once // group), step * max(1.0, group / at_once), TURN_READS * facts.read)
    return ceil(blocks / at_once) * step, pace
