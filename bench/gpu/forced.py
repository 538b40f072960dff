"""Calls of a model on a device whose loops are kernels of one's choice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import stepnet as sn
from bench.gpu.place import Place
from bench.gpu.schedules import loop_by, schedule
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.base import Bound
from stepnet.compiler.targets.cuda import (
    ChosenLoop,
    CudaEngine,
    CudaKernel,
    DeviceFacts,
    grid_code,
    grid_form,
    loop_code,
    units_code,
)

LoopMaker = Callable[[Plan, DeviceFacts, int | None], ChosenLoop]
"""Makes the kernel of a plan's loop for a device. The last argument is the position of the bool memory that
ends a sequence early, None for none.
"""


@dataclass(frozen=True)
class ForcedKernel(CudaKernel):
    """A plan with its codes, and with loops that a function makes."""

    make: LoopMaker | None = None

    def chosen_loop(self, rows: int, place: int | None) -> ChosenLoop:
        """Makes the kernel of the loop, for any number of rows. place: of the flag that ends a sequence."""
        assert self.make is not None
        return self.make(self.plan, self.memory.device.facts, place)


@dataclass(frozen=True)
class ForcedEngine(CudaEngine):
    """An engine whose loops a function makes."""

    make: LoopMaker | None = None

    def compile_plan(self, plan: Plan) -> ForcedKernel:
        """Makes the kernel of the plan of one part."""
        return ForcedKernel(plan, self.memory, self.options, make=self.make)


def forced(
    rnn: sn.RNN, place: Place, make: LoopMaker, x: Any, initial: Any, lengths: Any, last_only: bool = False
) -> Any:
    """Calls a recurrence with a loop of one's choice; returns outputs and final memories. The further
    arguments are those of a call.
    """
    reading = rnn.read(x, initial, None, lengths, last_only)
    engine = ForcedEngine(place.device, name=place.name, make=make)
    schedule_ = reading.running.schedule_for(place.name)
    bound: Bound = engine.compile(schedule_).bind(reading.running.params)
    return reading.answer(bound)


def by_schedule(word: str) -> LoopMaker:
    """Returns the maker of loops on tensor cores by a schedule, such as "tagged2.parts2"."""
    return lambda plan, facts, flag: loop_by(plan, schedule(word), facts, 1, flag)[1]


def by_groups(plan: Plan, facts: DeviceFacts, flag: int | None) -> ChosenLoop:
    """Makes a loop of groups of blocks, each of which has 5 units."""
    form = grid_form(plan, 2, facts, 32, 5, flag)
    assert form is not None
    return ChosenLoop(grid_code(form), 1, "groups of blocks")


def by_block(plan: Plan, facts: DeviceFacts, flag: int | None) -> ChosenLoop:
    """Makes a loop of single blocks."""
    return ChosenLoop(loop_code(plan, 4, 64, flag=flag), 0, "a block")


def by_units(plan: Plan, facts: DeviceFacts, flag: int | None) -> ChosenLoop:
    """Makes a loop with a thread for each unit."""
    code = units_code(plan)
    assert code is not None
    return ChosenLoop(code, 0, "a thread for each unit")
