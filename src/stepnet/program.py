"""A step as what runs it: traced for one kind of input, scheduled, compiled by the engines used so far.

    step --trace--> net --schedule--> parts --engine--> kernel --parameters--> bound

Every way to run a recurrence, a call, a stream, generation or a search, runs what `Program.bound` gives.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepnet.engines import Bound, Kernel, Order, choose
from stepnet.errors import InputError
from stepnet.ir import Net
from stepnet.once import computed_once
from stepnet.plan import Plan
from stepnet.schedule import Schedule, schedule
from stepnet.step import TracedStep
from stepnet.structure import leaves

Asked = str | Sequence[str]
SHARED = ("net", "schedule", "levels")
"""What is computed once of a trace, and the same for all parameters."""


class Program:
    """A step traced for one kind of input, with what was made of it so far.

    kernels: the schedule made ready to run, by the engine choice; it is the same for all parameters.
    """

    def __init__(
        self, traced: TracedStep, reverse: bool, unroll: int, kernels: dict[Order, Kernel] | None = None
    ) -> None:
        self.traced, self.reverse, self.unroll = traced, reverse, unroll
        self.kernels = dict[Order, Kernel]() if kernels is None else kernels
        self.controlled = dict[str | None, Program]()
        self._bound = dict[Order, Bound]()

    @computed_once
    def net(self) -> Net:
        """The net of the whole recurrence, as traced."""
        return self.traced.net(self.reverse, self.unroll)

    @computed_once
    def schedule(self) -> Schedule:
        """What runs, part by part."""
        return schedule(self.net)

    @property
    def plan(self) -> Plan:
        """The plan, where it is a single one; raises `InputError` where recurrences are nested."""
        whole = self.schedule.whole
        if whole is None:
            raise InputError(
                "a recurrence with another one inside, or with statics that are sequences, has a plan for "
                "each of its parts: print(rnn.explain()), or look at rnn.schedule.parts"
            )
        return whole

    @computed_once
    def levels(self) -> tuple[int, ...]:
        """How many levels of sequences each output has: 1 for a value at each step."""
        recur = self.traced.recur()
        return tuple(len(self.net.type_of(n).extent) - 1 for n in recur.gives(self.net.results).outputs)

    def bound(self, asked: Order) -> Bound:
        """What runs a call on the engine asked for."""
        if asked not in self._bound:
            if asked not in self.kernels:
                engine, _ = choose(self.schedule, asked)
                self.kernels[asked] = engine.compile(self.schedule)
            self._bound[asked] = self.kernels[asked].bind(leaves(self.traced.params))
        return self._bound[asked]

    def with_params(self, params: Any) -> "Program":
        """The same with other parameters of the same shapes and dtypes: plans and machine code stay."""
        made = Program(replace(self.traced, params=params), self.reverse, self.unroll, self.kernels)
        made.controlled = {name: program.with_params(params) for name, program in self.controlled.items()}
        made.__dict__.update({name: vars(self)[name] for name in SHARED if name in vars(self)})
        return made
