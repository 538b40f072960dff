"""The kernels of loops, as they were chosen: kept in memory and on disk by the facts of the choice.

    plan, sequences, device, options  ->  ChosenLoop    read, or chosen and written by `choice.py`

The key is known before anything is chosen or written, so a process that finds a loop imports no writers.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import DeviceCode, DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.options import DEFAULT, CudaOptions
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.targets.cuda.written import written
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class ChosenLoop:
    """The kernel of a loop.

    groups: the most groups of sequences that are launched at once; 0 for any number.
    reason: why this kernel was chosen, with an estimate of its time, for people.
    microseconds: the estimate of a step's time; 0.0 if there is none.
    registers: the estimate of the registers of a thread; 0 if there is none.
    pace: how many groups of blocks run at once, and how fast; None if there is no estimate.
    by_steps: whether the host gives the steps one by one instead (`step_runs.py`).
    """

    loop: LoopCode
    groups: int
    reason: str
    microseconds: float = 0.0
    registers: int = 0
    pace: LanePace | None = None
    by_steps: bool = False


FORM = Serializer(DeviceCode, LoopCode, ChosenLoop, LanePace)
LOOPS = OrderedDict[Hashable, ChosenLoop]()
"""The loops that were chosen last, by the facts of the choice; both directions have the same ones."""
MOST_LOOPS = 256
"""The largest number of choices that are kept."""


def loop_of(
    plan: Plan,
    rows: int,
    facts: DeviceFacts,
    options: CudaOptions = DEFAULT,
    share: int = 1,
    flag: int | None = None,
) -> ChosenLoop:
    """Returns the kernel for the loop of a plan, for some sequences on a device.

    options: the precision of products, and whether sums over units have one order for all numbers of
    sequences, so that a sequence has the same bits in every batch. Without that they have another order where
    it is faster by a factor of `FASTER`.
    share: how many loops run on the device at the same time; with any number a loop has the same bits.
    flag: the position of the bool memory that ends a sequence early; None if sequences run all their steps.
        All blocks of a group of sequences leave the loop when these have ended.
    """
    chosen_by = rows, facts, options, share, flag
    key = plan.key, *chosen_by

    def find() -> Any:
        """Reads the loop from disk, or chooses and writes it."""
        return written("loops.choice.new_loop", FORM, (*key, facts_of(facts)), plan, *chosen_by)

    found: ChosenLoop = entry_of(LOOPS, key, find, MOST_LOOPS)
    return found
