"""Chains: several kernels run as one call. All memory and arguments are set up first, then only machine code
runs.

    kernels    1 forward   2 reverse   3 merge               waves    (1, 2)  (3)
    add        allocate the arrays of each call; the results of one are inputs of the next
    run        write the argument words of all calls, then run wave after wave on the threads; operations
               across extents, such as sums over the steps, run between the waves

Everything that does not depend on lengths is prepared once (`PreparedChain`). A call with other lengths
computes its tables (`SequenceLayout`), once for all kernels over the same sequences, and writes its words. No
Python runs between kernels: the interpreter would have to be loaded into the cache again.

The kernels of a wave do not depend on each other, such as both directions of a layer. They run at the same
time on separate threads if that is estimated to be faster (`compiler/plan/partition.py`). Layers of a stack
run as one wave, a wavefront, if that is faster: each layer waits, block by block, for the outputs of the
layer below.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepnet.compiler.net.types import ROWS, STEPS, Extent, is_derived
from stepnet.compiler.net.windows import derived_offsets
from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import (
    Array,
    BetweenKernels,
    Call,
    Links,
    PreparedCall,
    Results,
    TableLayout,
)
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cpu.machine.memory import WORKSPACES
from stepnet.compiler.targets.cpu.running.arrangement import Arranger
from stepnet.compiler.targets.cpu.running.form import CallArrays, CallForm
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, Shape
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout, Sets
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.ragged.positions import Positions

if TYPE_CHECKING:  # few models need these modules
    from stepnet.compiler.native.frozen import FrozenCall
    from stepnet.compiler.targets.cpu.running.across import BetweenTask

SPARE = 8
# The largest scratch memory that a prepared call keeps per kernel. For calls of single steps the limit is
# higher: they are always shorter than their preparation.
PREPARED_BYTES = 2 * 2**20
PREPARED_STEP_BYTES = 32 * 2**20


class HasSets(Protocol):
    """Protocol of a class that divides a call's sequences into sets of lanes (slots), one for each thread."""

    def sets(self, count: int, seconds: float, fewest: int) -> Sets:
        """Divides the sequences of a call into at most `count` sets of lanes (slots that run one sequence
        after another), one for each thread: returns, for each set, the number of lanes and the arguments that
        describe it to machine code. seconds, fewest: the estimated time of the whole call, and the number of
        lanes from which more gain little; on both the number of lanes may depend.
        """
        ...


class KernelChain:
    """Kernels that run as one call. Several Python threads may run a chain at the same time."""

    def __init__(
        self,
        natives: Sequence[Native],
        waves: Waves,
        lines: Waves = (),
        between: Sequence[BetweenKernels] = (),
    ) -> None:
        """Takes kernels (compiled parts) that run as one call, and groups of their positions: in `waves`
        those that do not depend on each other, in the order in which these groups run; in `lines` the layers
        of each stack. between: the operations across extents (repeats and reductions over steps) that run
        between the kernels.
        """
        self.between = between
        self.task: Any = late_import("running.across").task_of if between else None
        self.natives, self.arranger = natives, Arranger(natives, waves, lines)
        self.defers = all(native.defers for native in natives)
        self.spare: list[PreparedChain] = []

    def started(self) -> "Started":
        """Begins a run of the chain, to which the caller adds the call of each kernel."""
        return Started(self)

    def prepared(
        self, calls: Sequence[Call], arrays: Sequence[CallArrays], ending: "HasSets | None" = None
    ) -> PreparedChain:
        """Returns the workspaces (scratch memory) of the calls of all kernels (compiled parts), with all
        arguments written: those that an earlier run of the same shape (numbers of threads, and of lanes, the
        slots for sequences) has left, or new ones.

        calls, arrays: for each kernel, its call and the arrays of the call.
        ending: divides the sequences of a single call among threads if these may end early; None for other
            calls.
        """
        shape, sets = self.shape(calls, ending)
        prepared = self.take_spare(shape) or PreparedChain(self.natives, shape)
        prepared.write(calls, arrays, sets)
        return prepared

    def shape(self, calls: Sequence[Call], ending: "HasSets | None" = None) -> tuple[Shape, list[Sets]]:
        """Decides how the calls of all kernels (compiled parts) run. Returns the shape of their workspaces
        (numbers of lanes and threads), and for each kernel the sets of lanes, the slots that run one sequence
        after another.

        calls: the call of each kernel.
        ending: divides the sequences of a single call among threads if these may end early; None for other
        calls.
        """
        layouts = [SequenceLayout.of(call.positions) for call in calls]
        arranged = self.arranger.arranged(calls, layouts)
        makers: Sequence[HasSets] = layouts if ending is None else (ending,)
        # The time of all kernels together: the layers of a wavefront need the same lanes.
        seconds = sum(way.seconds for way in arranged.ways)
        fewest = max(
            native.fewest_lanes(way.threads_per_step)
            for native, way in zip(self.natives, arranged.ways, strict=True)
        )
        parts = tuple(way.parts if ending is None else 1 for way in arranged.ways)
        alone = [
            native.rows_are_alone and way.sets == 1 and ending is None
            for native, way in zip(self.natives, arranged.ways, strict=True)
        ]
        sets = [
            (laid.in_one_lane if in_one else own.sets(way.sets, seconds, fewest)) * count
            for laid, own, in_one, way, count in zip(
                layouts, makers, alone, arranged.ways, parts, strict=True
            )
        ]
        lanes = tuple(tuple(count for count, _ in own) for own in sets)
        rooms = tuple(native.room(call) for native, call in zip(self.natives, calls, strict=True))
        together = tuple(way.threads_per_step for way in arranged.ways)
        blocks, ends = tuple(arranged.blocks), ending is not None
        return Shape(arranged.waves, lanes, together, blocks, rooms, ends, parts), sets

    def suits(
        self, shape: Shape, calls: Sequence[Call], follow: Sequence[str]
    ) -> Callable[[Positions], bool]:
        """Returns a function that tells, given the positions of sequences, whether calls with such sequences
        would run in the same workspaces (scratch memory): in those of a shape (numbers of threads, and of
        lanes, the slots that run sequences in turn). The function holds no arrays of the calls.

        calls: a call of each kernel (compiled part). follow: for each, the axis of its steps, "" where its
            lengths are fixed.
        """
        empty = [call.with_arrays((), ()) for call in calls]

        def fits(positions: Positions) -> bool:
            """Tells whether calls with sequences at these positions have workspaces of the shape."""
            along = {axis: along_axis(axis, positions) for axis in {*follow} if axis}
            others = [
                replace(call, positions=along.get(axis, call.positions))
                for call, axis in zip(empty, follow, strict=True)
            ]
            return self.shape(others)[0] == shape

        return fits

    def frozen(
        self, add: Callable[["Started"], None], fixed: Sequence[Any], given: Array, made: Callable[[], Any]
    ) -> "FrozenCall | None":
        """Freezes a call, so that other processes can run it; None if it cannot be frozen. The arguments are
        as of `frozen_call`.
        """
        own: FrozenCall | None = late_import("running.freezing").frozen_call(self, add, fixed, given, made)
        return own

    def end(self, forms: Sequence[CallForm], arrays: Sequence[CallArrays]) -> None:
        """Does the work that follows the machine code, such as totals (values over all rows) by NumPy, and
        returns temporary buffers to the pool of memory. Does nothing if all kernels (compiled parts) run
        machine code only.

        forms, arrays: for the call of each kernel, what remains to be done after its loop, and its arrays.
        """
        if not self.defers:
            for native, form, own in zip(self.natives, forms, arrays, strict=True):
                native.end(form, own)
                own.give_back()

    def take_spare(self, shape: Shape) -> PreparedChain | None:
        """Takes the workspaces (scratch memory) that an earlier run of this shape (numbers of threads, and of
        lanes, the slots for sequences) has left; returns None if there are none. Other threads may take from
        the same list.
        """
        for prepared in reversed(tuple(self.spare)):
            if prepared.shape == shape and remove_if_present(self.spare, prepared):
                return prepared
        return None

    def give_back(self, prepared: PreparedChain) -> None:
        """Keeps a finished run's scratch memory for later runs of its shape, at most `SPARE` of them."""
        # Each of these operations on a list is atomic, so no lock is needed.
        self.spare.append(prepared)
        del self.spare[:-SPARE]

    def release(self) -> None:
        """Gives the scratch memory that finished runs have kept back to the pool of memory."""
        spaces = [space for prepared in self.spare for spaces in prepared.spaces for space in spaces]
        WORKSPACES.give_back(*(space.memory for space in spaces))
        self.spare = []


def idle_memories(native: Native, positions: Positions, arrays: CallArrays) -> ParallelCalls | None:
    """Makes the task that copies the initial memories (recurrent states) of sequences without steps to their
    final ones, behind the steps of a call; None if there are none.

    native, positions, arrays: the kernel (compiled part), and the places and the arrays of the call.
    """
    if not arrays.final or SequenceLayout.of(positions).filled == positions.rows:
        return None
    made: ParallelCalls = late_import("running.idle").IdleMemories.of(native, positions, arrays)
    return made


def with_idle(
    behind: Mapping[int, Sequence[ParallelCalls]], waves: Waves, idle: Sequence[ParallelCalls | None]
) -> dict[int, list[ParallelCalls]]:
    """Returns the tasks that run behind each wave (compiled parts that run at the same time), with those
    ahead of them that copy the memories of empty sequences.

    behind: the other tasks, by the index of the wave, -1 ahead of the first one. idle: for each part, what
    copies its memories, if anything does.
    """
    made = {number: [*tasks] for number, tasks in behind.items()}
    for number, wave in enumerate(waves):
        copies = [task for task in map(idle.__getitem__, wave) if task is not None]
        if copies:
            made[number] = copies + made.get(number, [])
    return made


def along_axis(axis: str, positions: Positions) -> Positions:
    """Returns the positions of sequences along an axis of steps, from those along the axis of the inputs; of
    the sequences themselves along the axis that goes through them.
    """
    if (axis,) == ROWS:
        return Positions.end_to_end(np.array([0, positions.rows]))
    if not is_derived((axis,)):
        return positions
    return Positions.end_to_end(derived_offsets(axis, positions.offsets))


def remove_if_present(spare: list[PreparedChain], prepared: PreparedChain) -> bool:
    """Removes scratch memory from the list `spare`, which threads share, to use it; returns False if another
    thread has taken it already.
    """
    try:
        spare.remove(prepared)
    except ValueError:
        return False
    return True


class Started:
    """Run of a chain of kernels (several in a call): takes the call of each, in order, and then runs all."""

    def __init__(self, chain: KernelChain) -> None:
        """Begins a run of a chain, of kernels that run as one call; none of their calls is added yet."""
        self.chain = chain
        self.calls: list[Call] = []
        self.forms: list[CallForm] = []
        self.arrays: list[CallArrays] = []
        self.across = list["BetweenTask"]()
        self.copied = list[Call]()  # calls with windows whose addresses are valid for this run alone

    def add(self, call: Call) -> Results:
        """Adds the call of the next kernel of the chain (compiled parts, called kernels, that run in one go);
        returns its result arrays, which `run` fills. Windows of steps that products read in place become
        addresses of their steps. call: its arrays and the places of its sequences.
        """
        native = self.chain.natives[len(self.calls)]
        given, call = call, native.with_places(call)
        if call is not given:
            self.copied.append(given)
        form = CallForm(native.kind, call)
        arrays = form.arrays(call.sequences, call.initial, call.statics, form.results())
        self.calls.append(call)
        self.forms.append(form)
        self.arrays.append(arrays)
        return arrays.results

    def add_across(self, values: Sequence[Array], positions: Callable[[Extent], Positions]) -> Array:
        """Adds the task of the next operation across extents (a repeat or a reduction between sequences and
        steps) of the chain, whose compiled parts and operations run in one go, on these values; returns its
        result array, which `run` fills. positions: where the steps of the sequences along an extent lie.
        """
        across, processor = self.chain.between[len(self.across)].across, self.chain.natives[0].processor
        self.across.append(self.chain.task(across, [*map(positions, across.extents)], processor))
        return self.across[-1].result_of(*values)

    def behind(self, waves: Waves) -> dict[int, list[ParallelCalls]]:
        """Groups the operations between compiled parts (repeats and reductions over steps) by the wave after
        which they run: its index in `waves` (parts that run at the same time), or -1 ahead of the first one.
        Each is in the group of the last wave that it needs a result of.
        """
        groups = dict[int, list[ParallelCalls]]()
        for task, (_, needs) in zip(self.across, self.chain.between, strict=True):
            last = max((n for n, wave in enumerate(waves) if not needs.isdisjoint(wave)), default=-1)
            groups.setdefault(last, []).append(task)
        return groups

    def idle(self) -> list[ParallelCalls | None]:
        """Makes, for each kernel (compiled part), the task that copies the memories of empty sequences; None
        for one without any.
        """
        calls = zip(self.chain.natives, self.calls, self.arrays, strict=True)
        return [idle_memories(native, call.positions, own) for native, call, own in calls]

    def run(self) -> None:
        """Runs the kernels (compiled parts) of the chain, which fills the result arrays of all calls. Raises
        `InputError` if an index is outside its table.
        """
        chain = self.chain
        for native, call, own in zip(chain.natives, self.calls, self.arrays, strict=True):
            native.begin(call, own)
        prepared = chain.prepared(self.calls, self.arrays)
        idle, waves = self.idle(), prepared.shape.waves
        prepared.run(with_idle(self.behind(waves), waves, idle))
        chain.end(self.forms, self.arrays)
        self.release()
        chain.give_back(prepared)

    def close(self) -> None:
        """Does nothing: a run that was left before `run` has begun nothing."""

    def release(self) -> None:
        """Frees the memory kept for values that are computed after the loops over steps: reductions of each
        sequence, and totals of all rows. Afterwards the calls that were added here cannot run again.
        """
        for form in self.forms:
            form.release()

    def prepared_chain(self) -> PreparedChain | None:
        """Prepares further calls of the same shapes, with other arrays; None if one of the calls cannot be
        prepared.

        Calls that compute values once per sequence, or have inner sequences, cannot. Nor can calls for which
        `add` made addresses of windows (steps that a convolution reads) that NumPy copied: these are valid
        for one run. Calls that would keep much memory are not prepared, since they take so long that
        preparing each one costs little.
        """
        chain = self.chain
        if self.copied:
            return None
        if any(native.by_sequence or native.compiled.axes for native in chain.natives):
            return None
        prepared = chain.prepared(self.calls, self.arrays)
        for own in self.arrays:
            own.give_back()
        single = all(call.positions.lengths.max(initial=0) <= 1 for call in self.calls)
        if prepared.bytes <= (PREPARED_STEP_BYTES if single else PREPARED_BYTES) * len(self.calls):
            return prepared
        chain.give_back(prepared)
        return None

    def prepare(
        self,
        links: Links,
        positions: Mapping[str, Positions] | None = None,
        layout: TableLayout | None = None,
    ) -> PreparedCall | None:
        """Prepares further calls of the chain (compiled parts, called kernels, that run in one go) on other
        arrays; None if that would not be faster.

        links: the values that each kernel reads and computes, and those that a call is given and returns.
        positions: the positions of the sequences whose lengths are arguments of later calls, by the axis of
            their steps, that of the inputs and those derived from it; None if all are fixed. The positions of
            other calls never change.
        layout: how these sequences lie along the axis of the inputs.
        """
        prepared = self.prepared_chain()
        if prepared is None:
            self.release()
            return None
        chain_call = late_import("running.chain_call")  # first calls need it not
        made = chain_call.PreparedChainCall.of(prepared, self, links, positions or {}, layout)
        if made is None:
            return None
        suits = self.chain.suits(prepared.shape, self.calls, self.follow(positions or {}))
        arrays = made.arrays if made.ends[0] == 1 else None
        return PreparedCall(made.run, made.bytes, *made.limits, suits=suits, at=made.at, arrays=arrays)

    def prepare_kernel(self, layout: TableLayout | None) -> PreparedCall | None:
        """Prepares later calls, on other arrays, of a chain (compiled parts that one call runs in turn) that
        has one part; None if that cannot be done, or would not be faster.

        layout: how their sequences lie, which may have other lengths than those of this first call; None if
            they have the same.
        """
        (form,), (call,) = self.forms, self.calls
        if layout is not None and not (call.step_offset is None and call.until is None and self.is_chain):
            return None
        links = late_import("running.chain_call").links_of_kernel(call, form)
        return self.prepare(links, {STEPS[-1]: call.positions} if layout is not None else None, layout)

    def follow(self, positions: Mapping[str, Positions]) -> list[str]:
        """Returns, for each call of the chain (compiled parts that run in one go), the axis of its steps if
        the lengths of its sequences change in later runs, so that its tables must be filled anew; "" for
        other calls.

        positions: the positions of those sequences, by the axis of their steps.
        """
        return [
            next((axis for axis, own in positions.items() if call.positions is own), "")
            for call in self.calls
        ]

    @property
    def is_chain(self) -> bool:
        """Tells whether the machine code of the only kernel (compiled part) of the chain does all work of a
        call, and each output has a buffer of its own. Only then can a prepared call (one that runs again on
        other arrays) take sequences of other lengths.
        """
        (form,) = self.forms
        return form.kind.is_plain and len(form.separate) == len(form.kind.outputs)

    @property
    def tables(self) -> list[SequenceLayout]:
        """The layouts of the sequences of all calls: their lengths, and the lanes (slots) that run them.
        Prepared calls must keep them, as the arguments of the machine code point to their tables.
        """
        return [SequenceLayout.of(call.positions) for call in self.calls]
