"""A machine with 32 vectors of 512 bits, on which the tests of what threads share weigh calls, whichever
machine they run on.
"""

from planned import CPU

from stepnet import cells
from stepnet.compiler.plan import CallSize, Load
from stepnet.compiler.targets.cpu import LlvmEngine, Processor

PROCESSOR, MACHINE = Processor("avx512", "znver4", "", 64, 32), CPU.costs.machine


def load(cell: str, hidden: int) -> Load:
    """The work of a recurrence at each step."""
    rnn = cells.rnn(cell, cells.CELLS[cell].parameters(hidden, hidden))
    assert rnn.schedule.single_plan is not None
    return LlvmEngine(PROCESSOR).load(rnn.schedule.single_plan)


def call(rows: int, steps: int = 100) -> CallSize:
    """The size of a call of sequences that are equally long."""
    return CallSize(rows, steps, rows * steps)
