"""Programs of recurrences and layers: a net, its schedule, and the kernels of the engines used so far.

    step --trace--> net --schedule--> parts --engine--> kernel --parameters--> bound

Every way to run one, a call, a stream, generation or a search, runs what `Program.bound` gives.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.precision import Precision
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.plan.stored_schedule import KeptSchedule
from stepnet.compiler.targets import Bound, Kernel, Order, Results, choose
from stepnet.compiler.trace.step import Spec, TracedStep
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.structure import leaves, rebuilder
from stepnet.errors import InputError
from stepnet.model.executables import Runs

Array = np.ndarray
Asked = str | Sequence[str]


class NetProgram:
    """A net, its schedule, and that made ready to run by the engine choices so far."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.kernels = dict[Order, Kernel]()
        self._runs = dict[Order, Runs]()

    @computed_once
    def schedule(self) -> Schedule:
        """The schedule of the net."""
        return KeptSchedule(self.net)

    @computed_once
    def ends(self) -> Ends:
        """The inputs and results of the net by kind."""
        return Ends.of(self.net)

    def schedule_for(self, asked: Order) -> Schedule:
        """The schedule for the requested engines; that of a plain net is one and the same."""
        return self.schedule

    def kernel(self, asked: Order) -> Kernel:
        """The schedule made ready to run by the engine asked for."""
        if asked not in self.kernels:
            with paused_collector():
                parts = self.schedule_for(asked)
                engine, _ = choose(parts, asked)
                self.kernels[asked] = engine.compile(parts)
        return self.kernels[asked]

    def runs(self, asked: Order) -> Runs:
        """A kernel for the requested engine whose parameters change at every call."""
        if asked not in self._runs:
            self._runs[asked] = Runs(self.kernel(asked))
        return self._runs[asked]


class Program(NetProgram):
    """A net that takes one kind of input, with what was made of it so far.

    The net's inputs are sequences, memories, statics and parameters, its results the outputs and then the
    last memories. output, memory: the structures that these have for the caller; there may be more of them
    behind those, which are nobody else's. last: the `Spec`s that last memories are given back as.
    """

    def __init__(
        self, net: Net, output: Any, memory: Any, last: Any, memories: int, params: list[Array]
    ) -> None:
        super().__init__(net)
        self.output, self.memory = output, memory
        self.memories, self.params = memories, params
        carried, given = ([spec.dtype for spec in leaves(specs)] for specs in (memory, last))
        self.rounded = None if carried == given else given
        self._bound = dict[Order, Bound]()

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
        """How many levels of sequences each output has: 1 for a value at each step, 0 for one per row."""
        outputs = self.net.results[: len(self.net.results) - self.memories]
        return tuple(len(self.net.type_of(number).extent) - 1 for number in outputs)

    def split(self, results: Results) -> Results:
        """The same with outputs that there is one of per row among the outputs, in the order of the net."""
        if 0 not in self.levels:
            return results
        steps, rows = iter(results.outputs), iter(results.final)
        outputs = [next(steps if levels else rows) for levels in self.levels]
        return Results(outputs, list(rows))

    def final(self, memories: list[Array]) -> Any:
        """The last memories as a call gives them back."""
        if self.rounded is not None:
            pairs = zip(memories, self.rounded, strict=False)
            memories = [array.astype(dtype, copy=False) for array, dtype in pairs]
        return memories[0] if isinstance(self.memory, Spec) else self._made_memory(memories)

    @cached_property
    def _made_memory(self) -> Callable[[Iterable[Any]], Any]:
        """A function that builds the structure of the memory."""
        return rebuilder(self.memory)

    def is_bound(self, asked: Order) -> bool:
        """Whether a kernel for the requested engine is bound already."""
        return asked in self._bound

    def bound(self, asked: Order) -> Bound:
        """The kernel with its parameters for the requested engine."""
        if asked not in self._bound:
            self._bound[asked] = self.kernel(asked).bind(self.params)
        return self._bound[asked]

    def with_params(self, params: Any) -> Self:
        """The same with other parameters of the same shapes and dtypes: plans and machine code stay."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.params, made._bound = leaves(params), {}
        return made


class Beginning(Protocol):
    """The initial memories that a model computes of its statics and parameters."""

    def memories(self, statics: Sequence[Array], count: int, engine: Order) -> dict[int, Array]:
        """The memories of `count` rows with these statics, by their places among all memories."""
        ...


class StepProgram(Program):
    """The program of one step, traced.

    controlled: the programs of the same step under control, by their masks.
    begin: the initial memories that the model computes; None where they are zeros.
    """

    begin: Beginning | None = None

    def __init__(self, traced: TracedStep, reverse: bool, unroll: int) -> None:
        net = traced.net(reverse, unroll)
        params = leaves(traced.params)
        super().__init__(net, traced.output, traced.memory, traced.last, traced.counts[1], params)
        self.traced, self.reverse, self.unroll = traced, reverse, unroll
        self.controlled = dict[str | None, StepProgram]()

    def with_params(self, params: Any) -> Self:
        """The same with other parameters of the same shapes and dtypes: plans and machine code stay."""
        made = super().with_params(params)
        made.traced = replace(self.traced, params=params)
        made.controlled = {name: program.with_params(params) for name, program in self.controlled.items()}
        return made

    def in_precision(self, precision: Precision) -> "StepProgram":
        """The same step in a precision, with other plans and other machine code."""
        return StepProgram(replace(self.traced, precision=precision), self.reverse, self.unroll)
