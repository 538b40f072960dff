"""A step ready to run: traced, planned, and compiled by the engines that were asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepnet.engines import Bound, Kernel, Order, choose
from stepnet.ir import Net
from stepnet.once import computed_once
from stepnet.plan import Plan, plan
from stepnet.running import Running
from stepnet.schedule import Schedule, schedule
from stepnet.step import TracedStep

Array = np.ndarray
Asked = str | Sequence[str]
PLANNED = ("net", "plan", "schedule")
"""What is computed once of a trace, and the same for all parameters."""


@dataclass(frozen=True)
class Prepared:
    """A step traced for one kind of input, planned, and compiled by the engines used so far.

    kernels: the plan made ready to run, by what was asked for; runners: the same with the parameters.
    """

    traced: TracedStep
    reverse: bool
    unroll: int
    kernels: dict[Order, Kernel] = field(default_factory=dict[Order, Kernel])
    runners: dict[Order, Bound] = field(default_factory=dict[Order, Bound])
    running: dict[Order, Running] = field(default_factory=dict[Order, Running])
    controlled: "dict[str | None, Prepared]" = field(default_factory=dict[str | None, "Prepared"])

    @computed_once
    def net(self) -> Net:
        """The net of the whole recurrence, as traced."""
        return self.traced.net(self.reverse, self.unroll)

    @computed_once
    def plan(self) -> Plan:
        """What is done once, before, in and after the loop, where there is one loop."""
        return plan(self.net)

    @computed_once
    def schedule(self) -> Schedule:
        """What is run one after the other, where recurrences are nested."""
        return schedule(self.net)

    def runner(self, asked: Order, parameters: list[Array]) -> Bound:
        """What runs a call on the engine asked for."""
        if asked not in self.runners:
            if asked not in self.kernels:
                engine, _ = choose(self.plan, asked)
                self.kernels[asked] = engine.compile(self.plan)
            self.runners[asked] = self.kernels[asked].bind(parameters)
        return self.runners[asked]

    def with_params(self, params: Any) -> "Prepared":
        """The same with other parameters of the same shapes and dtypes: plans and machine code stay."""
        controlled = {masked: prepared.with_params(params) for masked, prepared in self.controlled.items()}
        traced = replace(self.traced, params=params)
        made = Prepared(traced, self.reverse, self.unroll, self.kernels, controlled=controlled)
        made.__dict__.update({name: vars(self)[name] for name in PLANNED if name in vars(self)})
        return made
