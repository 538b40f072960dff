"""The interface of an engine: it refuses a schedule with a reason, or compiles it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from stepnet.compiler.native.frozen import FrozenCall
from stepnet.compiler.net.memory import AnyMemory
from stepnet.compiler.net.types import Extent
from stepnet.compiler.plan.load import CostModel
from stepnet.compiler.plan.passes import Pipeline
from stepnet.compiler.plan.plan import Plan, Planning
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.values.lending import Spec, TensorList
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions

Array = np.ndarray


@dataclass(frozen=True)
class EarlyEnds:
    """Condition by which sequences end before their last step.

    flag: the position of a bool memory that is False at first, and True from the step at which the sequence
        ends. Later steps do not change any memory.
    beyond: whether later steps may be computed and discarded. They may not if they could index a table out of
        bounds.
    counted: the position of an int64 memory that counts the steps up to the end; None if nothing but the loop
        has results per step.
    """

    flag: int
    beyond: bool
    counted: int | None = None


@dataclass(frozen=True)
class Call:
    """Checked arrays of one call: C-contiguous, with the dtypes and features of the net's inputs, in their
    order. The kernel of a part, on a target with memory of its own, gets buffers of that memory instead; a
    call may also give them, and then gets its results as such.

    positions: where the steps of the sequences lie in their arrays. Outputs lie at the same positions.
    sequences: for each sequence an array [total, features...]. For inner sequences, the array has the values
        of all of them end to end.
    initial: for each initial memory [batch, features...]; None for zeros.
    statics: for each static [batch, features...]. A static with a sequence per row has the values of all
        rows end to end.
    last_only: whether outputs are those of the last step of each sequence, [batch, features...], or of every
        step, [total, features...].
    step_offset: int64 [batch], the number of steps of each sequence that ran before this call; None for
        zeros.
    separate_outputs: the number of outputs, from the first on, that need buffers of their own. The others
        have the same lifetime and may share a buffer. None for all outputs.
    until: the condition by which sequences end before their last step; None for never.
    """

    positions: Positions
    sequences: Sequence[Array] = ()
    initial: Sequence[Array | None] = ()
    statics: Sequence[Array] = ()
    last_only: bool = False
    step_offset: Array | None = None
    separate_outputs: int | None = None
    until: EarlyEnds | None = None

    @property
    def given(self) -> "OptionalArrays":
        """All arrays of the call in one list: the sequences, the initial memories and the statics."""
        return [*self.sequences, *self.initial, *self.statics]

    def with_arrays(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
        last_only: bool = False,
        separate_outputs: int | None = None,
    ) -> "Call":
        """Makes a call like this one with other arrays, for sequences at the same positions that have done as
        many steps in earlier calls (`step_offset`). Its sequences do not end early. The parameters are the
        fields of the new call.
        """
        return Call(
            self.positions, sequences, initial, statics, last_only, self.step_offset, separate_outputs
        )


class Results(NamedTuple):
    """The results of a call, by kind, each kind in the order of the net's results.

    outputs: results per step, [total, features...], or [batch, features...] with `last_only`.
    final: results per row, [batch, features...], such as the final value of a memory.
    totals: results over all rows, [features...].
    """

    outputs: list[Array]
    final: list[Array]
    totals: Sequence[Array] = ()

    @property
    def arrays(self) -> list[Array]:
        """All result arrays in one list: outputs, then final values, then totals."""
        return [*self.outputs, *self.final, *self.totals]


OptionalArrays = Sequence[Array | None]


class TableLayout(NamedTuple):
    """A way in which the sequences of a call lie in its arrays, and the table of numbers that says where.

    name: "ends": end to end, and the table has their offsets, from 0 on. "batch", "time": in arrays [batch,
        time, ...] and [time, batch, ...] with padding, and the table has their lengths. "packed": step by
        step, without padding, the longest sequence first; the table has the number of sequences of each step.
    has_gaps: whether there is padding, where outputs are zeros.
    """

    name: str
    has_gaps: bool


LAYOUTS = {name: TableLayout(name, name in ("batch", "time")) for name in ("ends", "batch", "time", "packed")}


Places = tuple[Array, int, int]
"""Where the sequences of one call lie, for a call that is prepared for sequences of any lengths: the table
that its `TableLayout` has, int64 and contiguous, which is checked when the call runs; the number of rows;
and that of the entries in the arrays, padding included. It is a plain tuple, as each call makes one.
"""


@dataclass(frozen=True)
class PreparedCall:
    """Prepared call of a kernel, to be run on other arrays by one thread at a time.

    run: runs it on the arrays that a call gives: sequences, initial memories (None for zeros) and statics.
        Returns its results in new arrays; both are buffers where those of the call are. The second argument
        says where the sequences lie; None if their lengths are fixed. Raises `InputError` if an index is
        outside its table, and, ahead of all work, if the places are none for which the call is prepared, as
        those of an empty sequence.
    bytes: the number of bytes of memory that the prepared call holds.
    shortest, longest: the smallest and the largest length of a sequence, if lengths are arguments of `run`; 0
        if they are fixed, as are then the shapes of the arrays.
    suits: tells whether a call with sequences at these positions, as many as in this one, would be prepared
        in the same way if lengths are arguments: with as many threads and as much scratch memory.
    at: makes the function that runs it on the memory of tensors, given which values lie in them, tasks that
        pack parameters ahead of it, and what replaces parameters where tasks do not; None if it does not run
        so.
    arrays: runs the call as `run` does, and returns its only output and then the results per row in one list,
        which other arrays may follow, in less time; None where there is no such function.
    """

    run: "Callable[[OptionalArrays, Places | None], Results]"
    bytes: int
    shortest: int = 0
    longest: int = 0
    suits: "Callable[[Positions], bool]" = lambda _: False
    at: "Callable[[AtTensors, Sequence[Any], Rebind | None], RunOn | None]" = lambda _, __, ___: None
    arrays: "Callable[[OptionalArrays, Places | None], list[Array]] | None" = None


RunOn = Callable[[list[Any]], bool]
"""A function that runs a prepared call on tensors; it returns False, having run nothing, if it cannot."""
Rebind = Callable[[Sequence[int]], bool]
"""A function that replaces parameters by those at addresses; it returns False if it cannot."""


class AtTensors(NamedTuple):
    """The values of a call on the memory of tensors, by their number among all.

    tensors: the tensors of the call, and the values that lie in them.
    parameters, results: the numbers of the parameters and of the results.
    given: likewise of the arrays that a call gives; None for an initial memory of zeros, and an array for
        an input that is always the same.
    """

    tensors: TensorList
    parameters: Sequence[int]
    given: "Sequence[int | Array | None]"
    results: Sequence[int]


class KernelLinks(NamedTuple):
    """The numbers of the values that a kernel of a chain reads and computes.

    sequences, statics: the numbers of the values that it reads.
    memories: the numbers of its initial memories; -1 for zeros.
    results: the numbers of its results: outputs, then results per row; -1 for one that nobody reads.
    """

    sequences: tuple[int, ...]
    memories: tuple[int, ...]
    statics: tuple[int, ...]
    results: tuple[int, ...]


class Links(NamedTuple):
    """The values of a chain by number. All others are computed and read by its kernels alone.

    kernels: the numbers that each kernel reads and computes.
    inputs: the numbers of the values that a call gives.
    results: the numbers of the values that a call returns: outputs, results per row and totals.
    outputs, rows: the positions among the results at which the outputs and the results per row end.
    across: the numbers that each operation across extents reads and computes.
    """

    kernels: tuple[KernelLinks, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    outputs: int
    rows: int
    across: tuple[tuple[int, ...], ...] = ()


class BetweenKernels(NamedTuple):
    """Operation across extents that runs between the kernels of a chain.

    needs: the positions in the chain of the kernels that must have run before it.
    """

    across: Across
    needs: frozenset[int]


class StartedRun(Protocol):
    """Run of a chain of kernels: takes the call of each kernel, in order, and then runs all of them."""

    def add(self, call: Call, /) -> Results:
        """Adds the call of the chain's next kernel; returns its result arrays, which `run` fills."""
        ...

    def add_across(self, values: Sequence[Array], positions: Callable[[Extent], Positions], /) -> Array:
        """Adds the values that the next operation across extents, such as a sum over steps, of the chain
        (compiled parts and operations that run in one go) reads; returns the array of its result, which `run`
        fills. positions: where the steps of the sequences along an extent lie.
        """
        ...

    def run(self) -> None:
        """Runs the kernels, one after the other, on the calls added for each, which fills all results."""
        ...

    def close(self) -> None:
        """Ends the run, also one that an error or an interrupt has left before `run`."""
        ...

    def prepare(
        self,
        links: Links,
        positions: Mapping[str, Positions] | None = None,
        layout: TableLayout | None = None,
        /,
    ) -> PreparedCall | None:
        """Prepares the chain (compiled parts, called kernels, that run in one go) for later runs on other
        arrays; None if they would not be faster.

        links: the values that each kernel reads and computes, and those that a run is given and returns.
        positions: the positions of the sequences whose lengths are arguments of later runs, by the axis of
            their steps, that of the inputs and those derived from it; None if all are fixed. The positions of
            other kernels' sequences never change.
        """
        ...


class Chain(Protocol):
    """Chain: several bound kernels that run as one. Several threads may run a chain at the same time."""

    def started(self) -> StartedRun:
        """Begins one run of a chain of kernels. The caller then adds the call of each kernel, and runs it."""
        ...

    def release(self) -> None:
        """Frees the memory of the kernels that run as one. They may not be run afterwards."""
        ...


@runtime_checkable
class FreezingChain(Chain, Protocol):
    """Chain whose calls other processes can run without it."""

    def frozen(
        self, add: Callable[[Any], None], fixed: Sequence[Any], given: Array, made: Callable[[], Any]
    ) -> FrozenCall | None:
        """Freezes a call, which it runs once; None if it cannot be frozen.

        add: adds the call of each kernel to a run of the chain.
        fixed: the arrays that every such call has, such as zeros for omitted memories.
        given: the array that each call is given.
        made: returns the results in the structure and the shapes in which the caller of the model has them.
        """
        ...


class Steps(Protocol):
    """Runs single steps of some rows of a call.

    Memories, statics and `step_offset` have an entry for each possible row. Index i of sequences and outputs
    is the i-th row that takes the step. The memories of other rows are not changed.
    """

    def of(self, rows: Array) -> Callable[[], None]:
        """Returns a function that runs one step of some rows (sequences of the call). It is valid until the
        next call of `of`.

        rows: the indices of the rows.
        """
        ...

    def block(self, count: int) -> Callable[[list[Any]], bool] | None:
        """Returns a function that runs one step of `count` rows on a list: the arrays of the inputs, which
        are contiguous, and the rows, int64. It adds the outputs, in new arrays, and returns whether it has
        run. None if there is no such function.
        """
        ...

    def renew(self, rows: Array) -> None:
        """Marks the statics (constant inputs) of these rows as changed: their next step reads them."""
        ...


class Bound(Protocol):
    """Kernel (compiled schedule of a net) bound to parameters, which can be called with arrays."""

    @property
    def ends_early(self) -> bool:
        """Tells whether the kernel (compiled code with parameters) can run calls whose sequences end early,
        by a condition (`Call.until`). The results of such a call have only the steps that ran.
        """
        ...

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the kernel's parameters, also in prepared calls; returns False if that is not possible."""
        ...

    def rebind_at(self, addresses: Sequence[int], specs: Sequence[Spec]) -> bool:
        """Replaces the kernel's parameters by those at addresses, as `rebind` does; returns False if that is
        not possible, or if no parameters were replaced before. specs: their shapes and dtypes.
        """
        ...

    def packing_tasks(self) -> Sequence[Any] | None:
        """Returns tasks of machine code that do what `rebind_at` does, for prepared calls; None if it does
        more than such tasks can.
        """
        ...

    def release(self) -> None:
        """Frees the kernel's memory. Neither the kernel nor its prepared calls may be called afterwards."""
        ...

    def __call__(self, call: Call) -> Results:
        """Runs the kernel on the arrays of a call, and returns its results in new arrays."""
        ...

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """Returns a function that runs a call on its arrays' present contents, into `results`."""
        ...

    def steps(self, call: Call, results: Results) -> "Steps":
        """Prepares single steps of some rows of a call, whose results are written into `results`."""
        ...

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        """Prepares later calls with other arrays, which are then faster; None if they would not be faster.

        call: a call like those to come.
        layout: how the sequences of later calls lie, which may have other lengths than those of this call;
            None if they have the same. Their number is the same in any case.
        """
        ...


@runtime_checkable
class FreezingBound(Bound, Protocol):
    """Bound kernel whose calls other processes can run without it."""

    def frozen(self, call: Call, given: Array, structured: Callable[[Results], Any]) -> FrozenCall | None:
        """Freezes a call, which it runs once; None if it cannot be frozen.

        call: a call whose only sequences are the array `given`.
        structured: returns the results in the structure and the shapes in which the caller has them.
        """
        ...


class CalledKernel:
    """Bound kernel that does everything by calls: `base.Bound` for engines that write `__call__` alone."""

    ends_early = False

    def __call__(self, call: Call) -> Results:
        """Runs the kernel on the arrays of a call, and returns its results in new arrays."""
        raise NotImplementedError

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Returns False: the parameters (weights) cannot be replaced, and the kernel must be bound anew."""
        return False

    def rebind_at(self, addresses: Sequence[int], specs: Sequence[Spec]) -> bool:
        """Returns False: the parameters (weights) cannot be replaced by those at some addresses."""
        return False

    def packing_tasks(self) -> Sequence[Any] | None:
        """Returns None: there are no tasks that replace the parameters (weights)."""
        return None

    def release(self) -> None:
        """Does nothing: the kernel has no memory that must be freed."""

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        """Returns None: a prepared call would not be faster than others."""
        return None

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """Returns a function that runs this call on the current contents of its arrays, into `results`."""
        return called_again(self, call, results)

    def steps(self, call: Call, results: Results) -> Steps:
        """Prepares single steps of some rows (sequences) of this call, each run as a separate call."""
        return CalledSteps(self, call, results)


class RepeatedCall:
    """Runs calls of a kernel at the same positions. The second is prepared, if the kernel can prepare it."""

    def __init__(self, bound: Bound) -> None:
        """Takes a kernel with its parameters, which has not been called yet."""
        self.bound, self.calls = bound, 0
        self.prepared: PreparedCall | None = None

    def __call__(self, call: Call) -> Results:
        """Runs a call of the kernel (compiled code with parameters), whose arrays have the shapes of those of
        earlier calls; returns its results. The second call is prepared, if the kernel can, and later ones run
        the prepared call.
        """
        self.calls += 1
        if self.calls == 2 and call.step_offset is None and call.until is None:
            self.prepared = self.bound.prepare(call)
        return self.bound(call) if self.prepared is None else self.prepared.run(call.given, None)


def called_again(bound: Bound, call: Call, results: Results) -> Callable[[], None]:
    """Makes a function that runs a call of a kernel (compiled code) anew and copies its results into
    `results`. It works for every kernel. bound: the kernel with its parameters.
    """
    repeated = RepeatedCall(bound)

    def once() -> None:
        """Runs the call on the current contents of its arrays, and copies its results."""
        for target, value in zip(results.arrays, repeated(call).arrays, strict=True):
            target[...] = value

    return once


class CalledSteps:
    """Single steps of some rows of a call, each run as a call of its own: `base.Steps` for every kernel.

    Memories and statics of the rows are gathered before, and final memories scattered after each step.
    """

    def __init__(self, bound: Bound, call: Call, results: Results) -> None:
        """Takes a bound kernel, a call with all rows, and the arrays for its results."""
        self.bound, self.call, self.results = bound, call, results

    def of(self, rows: Array) -> Callable[[], None]:
        """Makes a function that runs one step of some rows (sequences), given by index, on the current
        contents of the call's arrays. The first `len(rows)` entries of inputs and outputs belong to them;
        memories, statics (values that every step reads) and step offsets (the numbers of steps that the
        sequences have done in earlier calls) are read, and final memories (recurrent states) written, at the
        indices `rows`.
        """
        count, call, results, repeated = len(rows), self.call, self.results, RepeatedCall(self.bound)
        positions = Positions.end_to_end(np.arange(count + 1))
        step = Call(positions, [array[:count] for array in call.sequences])

        def once() -> None:
            """Runs one step of the chosen rows (sequences) by a call of the kernel (compiled code), and
            copies its outputs and final memories (recurrent states) into `results`.
            """
            initial = [None if array is None else array[rows] for array in call.initial]
            statics = [array[rows] for array in call.statics]
            before = None if call.step_offset is None else call.step_offset[rows]
            new_results = repeated(replace(step, initial=initial, statics=statics, step_offset=before))
            for target, value in zip(results.outputs, new_results.outputs, strict=True):
                target[:count] = value
            for target, value in zip(results.final, new_results.final, strict=True):
                target[rows] = value

        return once

    def block(self, count: int) -> None:
        """Returns None, as the memories of each step are gathered. count: the number of rows."""

    def renew(self, rows: Array) -> None:
        """Does nothing: each step reads all statics again, so changed rows need no notice."""


class Kernel(Protocol):
    """Compiled schedule of a net, which is bound to parameters and then called."""

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """Binds the kernel to parameters (weights), given in the net's order; the result can be called."""
        ...


class Engine(Protocol):
    """Engine that runs schedules, on any device and in any number of kernels."""

    @property
    def name(self) -> str:
        """The name of the engine in the user's argument `engine=`."""
        ...

    @property
    def pipeline(self) -> Pipeline:
        """The passes that nets for this engine go through, in order; those of the CPU are `PIPELINE`."""
        ...

    @property
    def costs(self) -> CostModel:
        """The costs by which nets are planned for this engine; those of the CPU are `cpu.costs.COSTS`."""
        ...

    @property
    def memory(self) -> AnyMemory:
        """The memory in which values between the parts of a schedule lie; `HOST` for arrays of NumPy."""
        ...

    @property
    def runs_gradients(self) -> bool:
        """Tells whether the engine runs nets of gradients, whose recurrences also return saved values."""
        ...

    @property
    def has_same_bits(self) -> bool:
        """Tells whether sums have one order in every net, so that a step has the same bits in any of them."""
        ...

    def refuse(self, schedule: Schedule) -> str | None:
        """Returns the reason why this engine cannot run a schedule (a net cut into parts); None if it can."""
        ...

    def compile(self, schedule: Schedule) -> Kernel:
        """Compiles a schedule (a net cut into parts) that `refuse` accepts."""
        ...

    def refuse_plan(self, plan: Plan) -> str | None:
        """Returns the reason why this engine cannot run the plan of one part; None if it can."""
        ...

    def compile_plan(self, plan: Plan) -> Kernel:
        """Compiles the plan of one part of a schedule, which `refuse_plan` must accept."""
        ...


def planning_of(engine: Engine) -> Planning:
    """Returns the passes and costs of an engine, by which nets are planned for it."""
    return Planning(engine.pipeline, engine.costs)


def first_refusal(engine: Engine, schedule: Schedule) -> str | None:
    """Returns why an engine cannot run a schedule, for the first part that it refuses; None if it can."""
    return next((reason for plan in schedule.plans if (reason := engine.refuse_plan(plan))), None)


class OwnedMemory(Protocol):
    """Memory on a device, which is allocated as long as something refers to this object."""

    @property
    def address(self) -> int:
        """The address of its first byte, a multiple of 256."""
        ...
