"""The kernel of a schedule of several parts, which run one after the other.

part 0 recurrence   values 0 1 2   -> 5 6        machine code, on the caller's sequences in place
part 1 plain        values 5 3     -> 8          machine code, each value a sequence of one step
part 2 across       value 8        -> 9          machine code, or NumPy
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.net.interpret import evaluated
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.memory import HOST, TargetMemory
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.when import known_once
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.plan.waves import Across, Waves, order_of, runs_of
from stepnet.compiler.targets.base import (
    BetweenKernels,
    Bound,
    Call,
    Chain,
    FrozenCall,
    Kernel,
    Results,
    Steps,
)
from stepnet.compiler.targets.frozen_parts import frozen_parts
from stepnet.compiler.targets.packed import (
    CalledSteps,
    NetForm,
    PackedCall,
    called_again,
    parameters_of,
    varying_of,
)
from stepnet.compiler.targets.part_execution import (
    KINDS,
    Frame,
    PartRun,
    Values,
    lent_indices,
    own_results,
    run_chain,
    takes_gaps,
)
from stepnet.compiler.values.once import computed_once

Array = np.ndarray
Compile = Callable[[Plan], Kernel]
Total = Callable[[Node, Sequence[Array]], Array]
"""Computes a total: the value of a node over all rows, from its operands."""
Chained = Callable[[Sequence[Any], Waves, Waves, Sequence[BetweenKernels]], Chain | None]
"""Makes a chain that runs several bound kernels as one, from the waves and lines of their parts, and with the
operations across extents between them; None if the parts must run one by one.
"""


def no_chain(
    bounds: Sequence[Any], waves: Waves, lines: Waves, between: Sequence[BetweenKernels]
) -> Chain | None:
    """Returns None, for no chain: the parts of a schedule run one by one. The default of `Means.chained`, for
    engines whose kernels cannot run as one. No argument is used.
    """
    return None


@dataclass(frozen=True)
class Means:
    """Functions by which an engine runs the parts of a schedule.

    compile: compiles a plan (which operation of a net runs when).
    total: computes the value of a node that combines all rows.
    memory: the memory that values between parts lie in.
    chained: makes a chain of several bound kernels.
    """

    compile: Compile
    total: Total
    chained: Chained = no_chain
    memory: TargetMemory = HOST


def in_parts(schedule: Schedule, means: Means) -> Kernel:
    """Makes the kernel of a schedule (a net cut into parts), which may have one plan or several parts.

    means: the functions by which an engine compiles and runs the parts.
    """
    if schedule.single_plan is not None and means.memory is HOST:
        return means.compile(schedule.single_plan)
    return PartsKernel.of(schedule, means)


@dataclass(frozen=True)
class PartsKernel:
    """Kernel of a schedule of several parts.

    kernels: for each part, its kernel; None if NumPy runs the part.
    means: the functions by which the engine runs the parts.
    """

    schedule: Schedule
    kernels: "tuple[Kernel | PartsKernel | None, ...]"
    means: Means

    @classmethod
    def of(cls, schedule: Schedule, means: Means) -> "PartsKernel":
        """Compiles each part of a schedule; returns the kernel of all parts.

        means: the functions by which an engine compiles and runs the parts.
        """

        def kernel(part: Part) -> "Kernel | PartsKernel | None":
            """Compiles one part of the schedule; returns None for a part that NumPy runs."""
            if part.plan is not None:
                return means.compile(part.plan)
            return None if part.inner is None else cls.of(part.inner, means)

        return cls(schedule, tuple(map(kernel, schedule.parts)), means)

    def bind(self, parameters: Sequence[Array]) -> "BoundParts":
        """Makes a kernel that can be called, from parameters given in the net's order."""
        return self.bound_to(dict(zip(self.parameters, parameters, strict=True)))

    @computed_once
    def parameters(self) -> list[int]:
        """The inputs of the net that are parameters (weights), as nodes in the net's order."""
        return parameters_of(self.schedule.net)

    @computed_once
    def known(self) -> list[int]:
        """The net's nodes computed from parameters and constants alone, in order: once, not per call."""
        net = self.schedule.net
        return sorted(n for n in known_once(net) if net.nodes[n].operation != "input")

    def constant_values(self, parameters: Values) -> Values:
        """Computes the values that depend on parameters alone, once for all calls; returns them and the
        parameters by node of the net. Values that are repeated or reduced over steps are C-contiguous.
        """
        values = evaluated(self.schedule.net, parameters, self.known)
        read = {part.reads[0] for part in self.schedule.parts if part.kind == "across"}
        return values | {n: np.asarray(values[n], order="C") for n in read if n in values}

    def bound_to(self, parameters: Values) -> "BoundParts":
        """Makes a kernel that can be called, with parameters (weights) given by node of the net."""
        constants = self.constant_values(parameters)
        pairs = zip(self.schedule.parts, self.kernels, strict=True)
        bound = (
            None if part.is_bound_per_call else bound_part(part, kernel, constants) for part, kernel in pairs
        )
        put = self.means.memory.put
        return BoundParts(self, {n: put(value) for n, value in constants.items()}, tuple(bound))


def bound_part(
    part: Part, kernel: "Kernel | PartsKernel | None", values: Values
) -> "Bound | BoundParts | None":
    """Binds the kernel of one part to the parameters that it reads; returns None for a part that NumPy runs.

    kernel: the part's kernel; a `PartsKernel` for a loop, whose step is a schedule of its own.
    values: the constants of the schedule's net, by node.
    """
    if isinstance(kernel, PartsKernel) and part.inner is not None and part.node is not None:
        net = part.inner.net
        inside = zip(net.inputs, part.node.inputs, strict=True)
        return kernel.bound_to({n: values[outer] for n, outer in inside if net.type_of(n).extent == CONST})
    return None if kernel is None else kernel.bind([values[number] for number in part.parameters])


def constants_of(net: Net, part: Part, values: Values, frame: Frame) -> Values:
    """Returns the constants that a part reads, by node, as host arrays, to bind the part in this call.

    values: the values computed so far, by node of the net. frame: has the memory that they lie in.
    """
    inside = () if part.inner is None or part.node is None else part.node.inputs
    numbers = (number for number in (*part.parameters, *inside) if net.type_of(number).extent == CONST)
    return {number: frame.memory.get(values[number]) for number in numbers}


@dataclass(frozen=True)
class BoundParts:
    """Kernel of a schedule with its parameters.

    constants: the values that do not depend on the call, by node of the net, in the engine's memory.
    bound: for each part, its bound kernel; None for parts that NumPy runs, and for those that are bound to
        totals in each call.
    """

    kernel: PartsKernel
    constants: Values
    bound: "tuple[Bound | BoundParts | None, ...]"
    ends_early: bool = False

    @property
    def schedule(self) -> Schedule:
        """The schedule (the net's parts in the order they run) that this kernel runs."""
        return self.kernel.schedule

    @property
    def net(self) -> Net:
        """The net whose nodes the parts of the schedule compute."""
        return self.schedule.net

    @computed_once
    def traced_form(self) -> NetForm:
        """The inputs and results, by kind, of the net as traced: calls have their arrays in this order."""
        return NetForm(self.schedule.traced)

    @computed_once
    def varying(self) -> list[int]:
        """The inputs of the net that differ by call, those other than parameters, as nodes."""
        return varying_of(self.net)

    @computed_once
    def takes_gaps(self) -> bool:
        """Tells whether padded sequences are read in place; if not, they are packed without gaps."""
        return takes_gaps(self.schedule)

    @computed_once
    def clean(self) -> set[int]:
        """The positions of the net's results that have zeros in the gaps between sequences (results of
        recurrences), so that these need not be cleared.
        """
        recurrent = {n for part in self.schedule.parts if part.kind == "recurrence" for n in part.results}
        return {index for index, number in enumerate(self.net.results) if number in recurrent}

    def __call__(self, call: Call) -> Results:
        """Runs all parts on the arrays of a call, and returns the results in new arrays."""
        packed = PackedCall.of(call, pack=not self.takes_gaps)
        # The traced net's kinds of inputs: if a pass has removed a recurrence, this net lacks its memory.
        memory = self.kernel.means.memory
        arrays = map(memory.put, packed.arrays(self.traced_form))
        values = self.values(dict(zip(self.varying, arrays, strict=True)), Frame.of(packed, memory))
        results = list(map(memory.get, own_results(self.net, values, self.lent, memory)))
        return packed.results(self.traced_form, results, self.clean)

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the parameters in place, for later calls. Returns False if the kernel of a part cannot do
        this, such as that of a loop; the caller must then bind the kernel anew.
        """
        by_number = dict(zip(self.kernel.parameters, parameters, strict=True))
        constants, put = self.kernel.constant_values(by_number), self.kernel.means.memory.put
        self.constants.update((number, put(value)) for number, value in constants.items())
        return all(
            not isinstance(bound, BoundParts) and bound.rebind([constants[n] for n in part.parameters])
            for part, bound in zip(self.schedule.parts, self.bound, strict=True)
            if bound is not None
        )

    def release(self) -> None:
        """Frees the memory of the kernels and chains of all parts."""
        for run in (*self.bound, *(run.chain for run in self.runs)):
            if run is not None:
                run.release()

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """Returns a function that runs this call on the current contents of its arrays, into `results`."""
        return called_again(self, call, results)

    def steps(self, call: Call, results: Results) -> Steps:
        """Prepares single steps of some rows (sequences) of this call, each run as a separate call."""
        return CalledSteps(self, call, results)

    def frozen(self, call: Call, any_lengths: bool = False) -> FrozenCall | None:
        """Prepares calls with other arrays, of the lengths of this one or of any; None if that would not be
        faster.
        """
        if self.kernel.means.memory is not HOST:
            return None
        arguments = self.schedule, self.constants, self.bound, self.runs, self.part_results, call
        return frozen_parts(*arguments, any_lengths)

    def results(self, inputs: Values, frame: Frame) -> list[Array]:
        """Runs all parts of the schedule; returns the results of the net. If these are computed for a step of
        a loop, they are valid until the next step.

        inputs: the values of all inputs other than parameters, by node. frame: the positions of the values.
        """
        values = self.values(inputs, frame)
        return [values[result] for result in self.net.results]

    def values(self, inputs: Values, frame: Frame) -> Values:
        """Runs all parts of the schedule; returns all values that they read and compute, by node of the net.

        inputs: the values of all inputs other than parameters, by node. frame: the positions of the values.
        """
        values = {**self.constants, **inputs}
        for run in self.runs:
            if run.chain is not None and run.fits(frame):
                run_chain(run.chain, run.parts, values, frame)
            else:
                for index in run.indices:
                    values.update(self.part_results(index, values, frame))
        return values

    @computed_once
    def runs(self) -> tuple[PartRun, ...]:
        """The parts in groups: consecutive ones that run as one chain, and the single ones between them."""
        parts, chained = self.schedule.parts, self.kernel.means.chained

        def fits(index: int) -> bool:
            """Tells whether the part at a position of the schedule can be in a chain of kernels: whether the
            engine can make a chain of it alone.
            """
            part = parts[index]
            if part.kind == "across":
                return (
                    chained((), (), (), [BetweenKernels(Across.of(self.net, part), frozenset())]) is not None
                )
            by_engine = part.kind in ("recurrence", "plain") and not part.is_bound_per_call
            return by_engine and chained([self.bound[index]], ((0,),), (), ()) is not None

        def run(indices: tuple[int, ...]) -> PartRun:
            """Groups the parts at these positions, with a chain of their kernels if there are several."""
            members = [parts[index] for index in indices]
            bound = [self.bound[index] for index in indices if parts[index].kind != "across"]
            if len(indices) == 1 or not bound:
                return PartRun(indices, members, None)
            order = order_of(members)
            across = (Across.of(self.net, part) for part in members if part.kind == "across")
            between = list(map(BetweenKernels, across, order.needs))
            return PartRun(indices, members, chained(bound, order.waves, order.lines, between))

        return tuple(map(run, runs_of(parts, fits)))

    @computed_once
    def lent(self) -> tuple[int, ...]:
        """The positions of the net's results that share memory with other arrays, and so must be copied."""
        return lent_indices(self.net, self.constants)

    def part_results(self, index: int, values: Values, frame: Frame) -> Values:
        """Runs the part at the position `index` of the schedule; returns its results by node of the net. If
        the part reads totals, its kernel is bound to them first.

        values: the values computed so far, by node of the net. frame: the positions of the values.
        """
        part = self.schedule.parts[index]
        runs: Any = self.bound[index]
        if part.is_bound_per_call:
            runs = bound_part(part, self.kernel.kernels[index], constants_of(self.net, part, values, frame))
        results = KINDS[part.kind](
            self.net, part, self.kernel.means.total if part.kind == "total" else runs, values, frame
        )
        if part.is_bound_per_call and runs is not None:
            runs.release()
        return results
