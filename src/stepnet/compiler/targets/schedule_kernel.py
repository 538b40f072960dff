"""The kernel of a schedule of several parts, which run one after the other.

part 0 recurrence   values 0 1 2   -> 5 6        machine code, on the caller's sequences in place
part 1 plain        values 5 3     -> 8          machine code, each value a sequence of one step
part 2 across       value 8        -> 9          machine code, or NumPy
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import numpy as np

from stepnet.compiler.native.frozen import FrozenCall
from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.memory import HOST, AnyMemory, Buffer
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.when import known_once
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.plan.waves import Across, Waves, order_of, read_in_place, runs_of
from stepnet.compiler.targets.base import (
    BetweenKernels,
    Bound,
    Call,
    CalledKernel,
    Chain,
    FreezingChain,
    Kernel,
    PreparedCall,
    Results,
    Spec,
    StartedRun,
    TableLayout,
)
from stepnet.compiler.targets.packed import (
    CallPacking,
    NetForm,
    has_buffers,
    parameters_of,
    unchanged,
    varying_of,
)
from stepnet.compiler.targets.part_execution import (
    KINDS,
    Frame,
    PartRun,
    RunPairs,
    Values,
    add_part,
    lent_indices,
    own_results,
    run_chain,
    sequence_call,
    takes_gaps,
)
from stepnet.compiler.targets.prepared_parts import is_nested, prepared_parts
from stepnet.compiler.targets.taken_steps import TakenSteps
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Arrays = dict[int, Array]
"""Constants of a net on the host, by node."""
Compile = Callable[[Plan], Kernel]
Total = Callable[[Node, Sequence[Array]], Array]
"""Computes a total: the value of a node over all rows, from its operands."""
Evaluated = Callable[[Mapping[int, Any]], dict[int, Any]]
"""Computes constants from the parameters of a net, by node; returns both."""
Constants = Callable[[Net, tuple[int, ...], frozenset[int]], Evaluated]
"""Makes the function that computes constants: of a net, its constants, and those that something reads."""
Chained = Callable[[Sequence[Any], Waves, Waves, Sequence[BetweenKernels]], Chain | None]
"""Makes a chain that runs several bound kernels as one, from the waves and lines of their parts, and with the
operations across extents between them; None if the parts must run one by one.
"""


def by_interpreter(net: Net, numbers: tuple[int, ...], read: frozenset[int]) -> Evaluated:
    """Makes the function that computes constants of a net on the host, by the interpreter, so that they have
    the same bits on all targets. numbers: the constants. read: those that something reads; all are computed.
    """
    return lambda parameters: evaluated(net, parameters, numbers)


class WholeCalls(Protocol):
    """Runner of a schedule with its parameters as a whole, for calls with inner or static sequences."""

    def __call__(self, call: Call, /) -> Results:
        """Runs a call: as a whole from the second of the same lengths on, else part by part."""
        ...

    def prepare(self, call: Call, /) -> PreparedCall | None:
        """Prepares calls like this one, of the same lengths; None if the parts must run one by one."""
        ...


@dataclass(frozen=True)
class Means:
    """Functions by which an engine runs the parts of a schedule.

    compile: compiles a plan (which operation of a net runs when).
    total: computes the value of a node that combines all rows.
    memory: the memory that values between parts lie in.
    chained: makes a chain of several bound kernels; None for an engine whose kernels cannot run as one.
    whole: makes the runner of a schedule as a whole; None for an engine that cannot run parts as one.
    paired: computes an operation at pairs of steps that runs alone, with the bits that it has in a chain;
        None for an engine that leaves these to its memory.
    constants: makes the function that computes constants from parameters.
    """

    compile: Compile
    total: Total
    chained: Chained | None = None
    memory: AnyMemory = HOST
    whole: 'Callable[["BoundParts"], WholeCalls | None] | None' = None
    paired: RunPairs | None = None
    constants: Constants = by_interpreter


def in_parts(schedule: Schedule, means: Means) -> Kernel:
    """Makes the kernel (compiled code that can be bound to parameters) of a schedule, a net cut into one or
    several parts. means: the functions by which an engine compiles and runs the parts.
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
        """Compiles each part of a schedule; returns the kernel (compiled code that can be bound to
        parameters) of all parts.

        means: the functions by which an engine compiles and runs the parts.
        """

        def kernel(part: Part) -> "Kernel | PartsKernel | None":
            """Compiles one part of a schedule (a net cut into parts), a loop with the parts in it; returns
            None for a part without operations for an engine, which NumPy runs.
            """
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

    def constant_values(self, parameters: Arrays) -> Arrays:
        """Computes the values that depend on parameters alone; returns them and the parameters by node of the
        net. Kernels (compiled parts) are bound to these, and they are computed once for all calls. They are
        arrays of the host, unless the parameters are buffers of the target.
        """
        return self.constants(parameters)

    @computed_once
    def constants(self) -> Evaluated:
        """The function that computes the constants of the net from its parameters."""
        net, read = self.schedule.net, set(self.schedule.net.results)
        for part in self.schedule.parts:
            inside = () if part.inner is None or part.node is None else part.node.inputs
            read |= {*part.parameters, *part.reads, *inside}
        return self.means.constants(net, tuple(self.known), frozenset(read.intersection(self.known)))

    def put(self, constants: Arrays) -> Values:
        """Puts constants, by node of the net, into the memory of the target. Constants that are repeated or
        reduced over steps become contiguous there.
        """
        memory = self.means.memory
        read = {number for part in self.schedule.parts if part.kind == "across" for number in part.reads}
        values = {number: memory.put_constant(array) for number, array in constants.items()}
        return values | {number: memory.contiguous(values[number]) for number in read & values.keys()}

    def bound_to(self, parameters: Arrays) -> "BoundParts":
        """Makes a kernel that can be called, with parameters given by node of the net."""
        constants = self.constant_values(parameters)
        pairs = zip(self.schedule.parts, self.kernels, strict=True)
        bound = (
            None if part.is_bound_per_call else bound_part(part, kernel, constants) for part, kernel in pairs
        )
        return BoundParts(self, self.put(constants), tuple(bound))


def ending_part(schedule: Schedule) -> Part | None:
    """Returns the part of a schedule whose loop a flag may end early, while the parts ahead of it run for all
    steps: the last one, if it is a recurrence that gives all results but outputs. Else None.
    """
    part, steps = schedule.parts[-1], NetForm(schedule.traced).ends.steps
    of_loop = {number for place, number in enumerate(schedule.net.results) if place not in steps}
    is_loop = part.kind == "recurrence" and not part.last_only and not part.is_bound_per_call
    return part if is_loop and of_loop <= {*part.results} else None


def flag_of(schedule: Schedule, part: Part, flag: int) -> int:
    """Returns the position of a flag of the net among the memories of the part whose loop it ends early."""
    number = schedule.net.results[NetForm(schedule.traced).ends.rows[flag]]
    return part.results.index(number) - len(part.results) + part.memories


def bound_part(
    part: Part, kernel: "Kernel | PartsKernel | None", values: Arrays
) -> "Bound | BoundParts | None":
    """Binds the kernel of one part (its compiled code) to the parameters that it reads; returns None for a
    part that NumPy runs.

    kernel: the part's kernel; a `PartsKernel` for a loop, whose step is a schedule of its own.
    values: the constants of the schedule's net, by node.
    """
    if isinstance(kernel, PartsKernel):
        return kernel.bound_to(inside_of(part, values))
    return None if kernel is None else kernel.bind([values[number] for number in part.parameters])


def inside_of(part: Part, values: Arrays) -> Arrays:
    """Returns the parameters of a loop's step, which is a schedule (a net divided into parts) of its own, by
    node of that net.

    part: the loop. values: the constants of the net around it, by node.
    """
    assert part.inner is not None
    assert part.node is not None
    net = part.inner.net
    inside = zip(net.inputs, part.node.inputs, strict=True)
    return {n: values[outer] for n, outer in inside if net.type_of(n).extent == CONST}


def constants_of(net: Net, part: Part, values: Values, frame: Frame, is_host: bool) -> Arrays:
    """Returns the constants that a part of a schedule reads, by node, to bind the part in this call.

    values: the values computed so far, by node of the net. frame: has the memory that they lie in.
    is_host: whether the part takes arrays of the host, not buffers.
    """
    inside = () if part.inner is None or part.node is None else part.node.inputs
    numbers = (number for number in (*part.parameters, *inside) if net.type_of(number).extent == CONST)
    get = frame.memory.get if is_host else unchanged
    return {number: get(values[number]) for number in numbers}


@dataclass(frozen=True)
class BoundParts(CalledKernel):
    """Kernel of a schedule with its parameters.

    constants: the values that do not depend on the call, by node of the net, in the engine's memory.
    bound: for each part, its bound kernel; None for parts that NumPy runs, and for those that are bound to
        totals in each call.
    """

    kernel: PartsKernel
    constants: Values
    bound: "tuple[Bound | BoundParts | None, ...]"

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
    def given(self) -> tuple[int, ...]:
        """The inputs that differ by call, as nodes, in the order in which a call gives their arrays."""
        places = sorted(self.traced_form.given)
        return tuple(self.varying[places.index(place)] for place in self.traced_form.given)

    @computed_once
    def takes_gaps(self) -> bool:
        """Tells whether padded sequences are read in place; if not, they are packed without gaps."""
        return takes_gaps(self.schedule)

    @computed_once
    def clean(self) -> set[int]:
        """The positions of results with zeros in gaps between sequences, which need no clearing."""
        recurrent = {n for part in self.schedule.parts if part.kind == "recurrence" for n in part.results}
        return {index for index, number in enumerate(self.net.results) if number in recurrent}

    @property
    def ends_early(self) -> bool:
        """Tells whether calls whose sequences end early can run: the last part is the recurrence, which
        checks the condition. What is ahead of it is computed for all steps, with outputs that need no memory.

        On the host several parts, whose calls take little time, run a few steps after another instead.
        """
        last, is_alone = self.bound[-1], self.schedule.single_plan is not None
        if last is None or not (is_alone or self.kernel.means.memory is not HOST):
            return False
        return last.ends_early and ending_part(self.schedule) is not None

    def __call__(self, call: Call) -> Results:
        """Runs all parts of the schedule on the arrays of a call, and returns the results in new arrays.
        Calls with inner sequences (within a step) or static ones (which every step reads whole) run as
        prepared calls from the second of the same lengths on, where the engine can.
        """
        if call.until is not None:
            return self.until(call)
        if is_nested(call) and self.whole is not None:
            return self.whole(call)
        return self.in_turn(call)

    def until(self, call: Call) -> Results:
        """Runs a call whose sequences may end early, as the last part checks, see `ends_early`."""
        packing, part, last = self.packing(call), self.schedule.parts[-1], self.bound[-1]
        assert last is not None
        assert call.until is not None
        inputs = packing.inputs(self.traced_form, call.given)
        values, frame = {**self.constants, **dict(zip(self.varying, inputs, strict=True))}, Frame.of(packing)
        for index in range(len(self.bound) - 1):
            values.update(self.part_results(index, values, frame))
        ends = self.traced_form.ends
        until = replace(call.until, flag=flag_of(self.schedule, part, call.until.flag))
        given, memory = sequence_call(part, values, frame), packing.memory
        found = last(replace(given, until=until, last_only=call.last_only))
        named = dict[int, Buffer](zip(part.results, found.arrays, strict=True))
        others = {self.net.results[place] for place in ends.steps}.difference(named)
        if others:
            assert call.until.counted is not None
            assert part.plan is not None
            taken = memory.get(named[self.net.results[ends.rows[call.until.counted]]])
            steps = TakenSteps(given.positions, taken, part.plan.reverse)
            for n in others:
                named[n] = steps.values(memory, values[n], self.net.type_of(n), call.last_only)
        get = unchanged if has_buffers(call.given) else memory.get
        outputs, final = (
            [get(named[self.net.results[place]]) for place in places] for places in (ends.steps, ends.rows)
        )
        return Results(outputs, final)

    @computed_once
    def whole(self) -> WholeCalls | None:
        """The runner of calls with inner or static sequences; None if all parts run one by one."""
        make = self.kernel.means.whole
        return None if make is None else make(self)

    def in_turn(self, call: Call) -> Results:
        """Runs the parts of the schedule, one by one or in chains (several parts by one call of machine
        code), on the arrays of a call; returns the results.
        """
        packing = self.packing(call)
        # The traced net's kinds of inputs: if a pass has removed a recurrence, this net lacks its memory.
        inputs = packing.inputs(self.traced_form, call.given)
        values = self.values(dict(zip(self.varying, inputs, strict=True)), Frame.of(packing))
        results = own_results(self.net, values, self.lent, packing.memory)
        return packing.results(self.traced_form, results, call.given, self.clean)

    def frozen(self, call: Call, given: Array, structured: Callable[[Results], Any]) -> FrozenCall | None:
        """Freezes a call, if all parts run as one chain, so that other processes can run it; None if it
        cannot be frozen. See `FreezingBound`.
        """
        (run, *others), packing = self.runs, self.packing(call)
        frame = Frame.of(packing)
        if others or not isinstance(run.chain, FreezingChain) or not run.fits(frame):
            return None
        inputs = dict(zip(self.varying, packing.inputs(self.traced_form, call.given), strict=True))
        values = {**self.constants, **inputs}
        fixed = [inputs[n] for n, array in zip(self.given, call.given, strict=True) if array is None]

        def add(started: StartedRun) -> None:
            """Adds the calls of all parts to a run of the chain."""
            for part in run.parts:
                values.update(add_part(started, part, values, frame))

        def made() -> Any:
            """Returns the results of the run as the caller of the model has them."""
            results = own_results(self.net, values, self.lent, packing.memory)
            return structured(packing.results(self.traced_form, results, call.given, self.clean))

        return run.chain.frozen(add, fixed, given, made)

    def packing(self, call: Call, at_steps: bool = False) -> CallPacking:
        """Describes the moves of a call's arrays into the memory of the engine, and of its results back.
        at_steps: whether no part will run over the gaps between sequences, so that more parts take these.
        """
        pack = not (takes_gaps(self.schedule, at_steps) if at_steps else self.takes_gaps)
        return CallPacking.of(call, self.kernel.means.memory, pack)

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the parameters in place, for later calls. Returns False if the kernel (compiled code) of a
        part cannot do this; the caller must then bind the kernel anew.
        """
        return self.rebind_to(dict(zip(self.kernel.parameters, parameters, strict=True)))

    def rebind_at(self, addresses: Sequence[int], specs: Sequence[Spec]) -> bool:
        """Replaces the parameters by those at addresses, as `rebind` does. specs: their shapes and dtypes."""
        sizes = (prod(shape) * np.dtype(dtype).itemsize for shape, dtype in specs)
        buffers: list[Any] = [
            (c_char * size).from_address(address) for address, size in zip(addresses, sizes, strict=True)
        ]
        return self.rebind([np.ndarray(*spec, own) for spec, own in zip(specs, buffers, strict=True)])

    def packing_tasks(self) -> None:
        """Returns None: constants of the net are evaluated between parameters and the parts."""

    def rebind_to(self, parameters: Arrays) -> bool:
        """Replaces the parameters of all parts, given by node of the net, in place, for later calls; returns
        False if a kernel (the compiled code of a part) cannot replace its own.
        """
        constants = self.kernel.constant_values(parameters)
        self.constants.update(self.kernel.put(constants))
        return all(
            bound.rebind_to(inside_of(part, constants))
            if isinstance(bound, BoundParts)
            else bound.rebind([constants[n] for n in part.parameters])
            for part, bound in zip(self.schedule.parts, self.bound, strict=True)
            if bound is not None
        )

    def release(self) -> None:
        """Frees the memory of the kernels, and of the chains, which run several of them in one go."""
        for run in (*self.bound, *(run.chain for run in self.runs)):
            if run is not None:
                run.release()

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        """Prepares calls of this schedule (parts of a model, with parameters) with other arrays; None if that
        would not be faster.

        layout: how their sequences lie, which may have other lengths than those of this call; None if they
            have the same.
        """
        if is_nested(call):
            return None if layout is not None or self.whole is None else self.whole.prepare(call)
        if layout is not None and layout.name != "ends" and not takes_gaps(self.schedule, at_steps=True):
            return None  # some part needs sequences end to end
        net, parts = (self.schedule, self.traced_form, self.given), (self.bound, self.runs, self.part_results)
        packing = self.packing(call, layout is not None)
        return prepared_parts(*net, self.constants, *parts, packing, self.clean, layout)

    def results(self, inputs: Values, frame: Frame) -> list[Buffer | None]:
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
        """The parts of the schedule in groups: consecutive parts that run as one chain, and single parts."""
        parts, chained = self.schedule.parts, self.kernel.means.chained

        def fits(index: int) -> bool:
            """Tells whether the part at a position of the schedule can be in a chain, whose compiled parts
            run in one go: whether the engine can make a chain of it alone.
            """
            part = parts[index]
            if chained is None:
                return False
            if part.kind == "across":
                between = BetweenKernels(Across.of(self.net, part), frozenset())
                return chained((), (), (), [between]) is not None
            by_engine = part.kind in ("recurrence", "plain") and not part.is_bound_per_call
            return by_engine and chained([self.bound[index]], ((0,),), (), ()) is not None

        def run(indices: tuple[int, ...]) -> PartRun:
            """Makes the group of the parts of a net at these positions, which run together, with a chain of
            their kernels (one call of their compiled code) if there are several.
            """
            members = [parts[index] for index in indices]
            bound = [self.bound[index] for index in indices if parts[index].kind != "across"]
            if len(indices) == 1 or not bound or chained is None:
                return PartRun(indices, members, None)
            order = order_of(members)
            in_place = read_in_place(parts, members)
            across = (Across.of(self.net, part, in_place) for part in members if part.kind == "across")
            between = list(map(BetweenKernels, across, order.needs))
            return PartRun(indices, members, chained(bound, order.waves, order.lines, between))

        return tuple(map(run, runs_of(parts, fits)))

    @computed_once
    def lent(self) -> tuple[int, ...]:
        """The positions of the net's results that share memory with other arrays, and so must be copied."""
        return lent_indices(self.net, self.constants)

    def part_results(self, index: int, values: Values, frame: Frame) -> Values:
        """Runs the part at the position `index` of the schedule; returns its results by node of the net. If
        the part reads totals (values over all rows) as parameters, its kernel (compiled code) is bound to
        them first.

        values: the values computed so far, by node of the net. frame: the positions of the values.
        """
        part, means = self.schedule.parts[index], self.kernel.means
        runs: Any = self.bound[index]
        if part.is_bound_per_call:
            is_host = means.constants is by_interpreter
            constants = constants_of(self.net, part, values, frame, is_host)
            runs = bound_part(part, self.kernel.kernels[index], constants)
        runs = {"total": means.total, "across": means.paired}.get(part.kind, runs)
        results = KINDS[part.kind](self.net, part, runs, values, frame)
        if part.is_bound_per_call and runs is not None:
            runs.release()
        return results
