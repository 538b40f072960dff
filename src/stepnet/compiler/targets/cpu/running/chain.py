"""Chains: several kernels run as one call. All memory and arguments are set up first, then only machine code
runs.

    kernels    1 forward   2 reverse   3 merge               waves    (1, 2)  (3)
    add        allocate the arrays of each call; the results of one are inputs of the next
    run        write the argument words of all calls, then run wave after wave on the threads

Everything that does not depend on lengths is prepared once (`PreparedChain`): workspaces, argument words for
each thread, and orders for the workers. A call with other lengths computes its tables (`SequenceLayout`),
once for all kernels over the same sequences, and writes its words. No Python runs between kernels: the
interpreter would have to be loaded into the cache again.

The kernels of a wave do not depend on each other, such as both directions of a layer. They run at the same
time on separate threads if that is estimated to be faster (`compiler/plan/partition.py`). Layers of a stack
run as one wave, a wavefront, if that is faster: each layer waits, block by block, for the outputs of the
layer below.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.machine.memory import POOL
from stepnet.compiler.targets.cpu.machine.system import clock
from stepnet.compiler.targets.cpu.running.arrangement import Arranger
from stepnet.compiler.targets.cpu.running.form import CallArrays, CallForm
from stepnet.compiler.targets.cpu.running.native import CALL, POINTERS, Native
from stepnet.compiler.targets.cpu.running.prepared_tasks import PreparedTasks
from stepnet.compiler.targets.cpu.running.reach import Reach
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout, Sets
from stepnet.compiler.targets.cpu.running.workspace import Workspace
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.targets.watching import watching

SPARE = 8
# Machine code returns to Python after this many seconds, so that interrupts are handled.
SLICE = 0.05
# The largest scratch memory that a frozen call keeps per kernel. For calls of single steps the limit is
# higher: they are always shorter than their preparation.
FROZEN_BYTES = 2 * 2**20
FROZEN_STEP_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Shape:
    """Shape of the calls of a chain that prepared memory fits.

    waves: the kernels that run at the same time, by position.
    lanes: for each kernel, the number of lanes of each set.
    together: for each kernel, the number of threads that share its steps.
    blocks: for each kernel of a wavefront, the steps of a block; 0 for other kernels.
    rooms: for each kernel, the number of words (steps of inner sequences) that scratch memory holds.
    ends: whether sequences may end early.
    """

    waves: Waves
    lanes: tuple[tuple[int, ...], ...]
    together: tuple[int, ...]
    blocks: tuple[int, ...]
    rooms: tuple[int, ...]
    ends: bool


class HasSets(Protocol):
    """Protocol of an object that divides the sequences of a call into sets of lanes, one for each thread."""

    def sets(self, count: int, seconds: float) -> Sets:
        """Returns at most `count` sets of lanes (slots that run sequences), each with its argument words.

        seconds: the estimated time of the whole call.
        """
        ...


def write_words(space: Workspace, pack: Callable[..., None], offset: int, numbers: Sequence[int]) -> None:
    """Writes arguments of machine code for every thread of a workspace, from a byte offset on.

    pack: the `pack_into` of a `Struct` for these numbers.
    """
    for row in space.rows:
        pack(row, offset, *numbers)


class PreparedChain:
    """Workspaces of a chain of kernels for calls of one shape, and the tasks that run them, wave by wave."""

    def __init__(
        self,
        natives: Sequence[Native],
        shape: Shape,
        kind: type[PreparedTasks] = PreparedTasks,
        pauses: bool = True,
    ) -> None:
        """Allocates scratch memory for each kernel and thread, and prepares the tasks that run kernels."""
        self.shape, self.natives, self.pauses = shape, natives, pauses
        self.spaces = [
            [native.workspace(lanes, together, room, shape.ends, block) for lanes in sets]
            for native, sets, together, block, room in zip(
                natives, shape.lanes, shape.together, shape.blocks, shape.rooms, strict=True
            )
        ]
        for ahead, place in (pair for wave in shape.waves for pair in pairwise(wave)):
            if shape.blocks[place]:
                for space, followed in zip(self.spaces[place], self.spaces[ahead], strict=True):
                    space.follow(followed)
        self.runs = [self.run_of(wave, kind) for wave in shape.waves]
        self.reach = Reach(shape.waves, self.spaces)
        for place, run in enumerate(self.runs):
            run.reach, run.place = self.reach, place
        self.bytes = sum(space.memory.nbytes for spaces in self.spaces for space in spaces)

    def run_of(self, wave: tuple[int, ...], kind: type[PreparedTasks]) -> PreparedTasks:
        """Prepares the tasks that run a wave's kernels at the same time. kind: the class of the tasks."""
        spaces = [space for place in wave for space in self.spaces[place]]
        tasks = [
            (self.natives[place].compiled.run, address)
            for place in wave
            for space in self.spaces[place]
            for address in space.addresses
        ]
        progress = spaces[0].progress if len(spaces) == 1 else None
        return kind(tasks, spaces, progress, threads(), self.pauses)

    def run(self) -> None:
        """Runs the machine code of all kernels, wave by wave, and reports the final progress. Raises
        `InputError` if an index is outside its table.
        """
        for run in self.runs:
            run()
        reported = [run for run in self.runs if run.has_reported]
        for run in reported:
            run.has_reported = False
        if reported and (watch := watching()) is not None:
            watch(self.reach.progress(len(self.runs) - 1, True))

    def write(self, calls: Sequence[Call], arrays: Sequence[CallArrays], sets: Sequence[Sets]) -> None:
        """Writes the arguments of the calls, one for each kernel, into the workspaces (scratch memory).
        arrays: the arrays of each call. sets: for each call, the arguments of each thread's lanes (slots that
        run sequences).
        """
        ticks = int(SLICE * clock().per_second) if self.pauses else 0
        parts = zip(self.natives, self.spaces, calls, arrays, sets, strict=True)
        for native, spaces, call, own, lanes in parts:
            for space, (_, words) in zip(spaces, lanes, strict=True):
                write_words(space, native.pack, CALL, native.words(call, own, ticks, words))

    def point(self, arrays: Sequence[CallArrays]) -> None:
        """Writes the addresses of other arrays into the workspaces, one set of arrays for each kernel. All
        other arguments stay as they are.
        """
        for native, spaces, own in zip(self.natives, self.spaces, arrays, strict=True):
            pointers = own.pointers(native.in_words)
            for space in spaces:
                write_words(space, native.pack_pointers, POINTERS, pointers)


class KernelChain:
    """Kernels that run as one call. Several Python threads may run a chain at the same time."""

    def __init__(self, natives: Sequence[Native], waves: Waves, lines: Waves = ()) -> None:
        """Takes kernels and, by position, those that run at the same time and the layers of stacks."""
        self.natives, self.arranger = natives, Arranger(natives, waves, lines)
        self.defers = all(native.defers for native in natives)
        self.spare: list[PreparedChain] = []

    def started(self) -> "Started":
        """Begins a run of the chain, to which the caller adds the call of each kernel."""
        return Started(self)

    def prepared(
        self, calls: Sequence[Call], arrays: Sequence[CallArrays], ending: "HasSets | None" = None
    ) -> PreparedChain:
        """Returns workspaces (scratch memory) for calls, one for each kernel, with all arguments written.
        They are those of an earlier run of the same shape, or new ones. ending: distributes the sequences of
        a single call if these may end early.
        """
        laid = [SequenceLayout.of(call.positions) for call in calls]
        arranged = self.arranger.arranged(calls, laid)
        makers: Sequence[HasSets] = laid if ending is None else (ending,)
        # The time of all kernels together: the layers of a wavefront need the same lanes.
        seconds = sum(way.seconds for way in arranged.ways)
        sets = [own.sets(way.sets, seconds) for own, way in zip(makers, arranged.ways, strict=True)]
        lanes = tuple(tuple(count for count, _ in own) for own in sets)
        rooms = tuple(native.room(call) for native, call in zip(self.natives, calls, strict=True))
        together = tuple(way.together for way in arranged.ways)
        shape = Shape(arranged.waves, lanes, together, tuple(arranged.blocks), rooms, ending is not None)
        prepared = self.take_spare(shape) or PreparedChain(self.natives, shape)
        prepared.write(calls, arrays, sets)
        return prepared

    def end(self, forms: Sequence[CallForm], arrays: Sequence[CallArrays]) -> None:
        """Does the work that follows the machine code, such as totals by NumPy, and returns temporary
        buffers. forms, arrays: the form and the arrays of each kernel's call.
        """
        if not self.defers:
            for native, form, own in zip(self.natives, forms, arrays, strict=True):
                native.end(form, own)
                own.give_back()

    def take_spare(self, shape: Shape) -> PreparedChain | None:
        """Takes the workspaces (scratch memory) that an earlier run of this shape has left, or None."""
        for prepared in reversed(tuple(self.spare)):
            if prepared.shape == shape and remove_if_present(self.spare, prepared):
                return prepared
        return None

    def give_back(self, prepared: PreparedChain) -> None:
        """Keeps the workspaces of a finished run for a later one. The oldest are dropped beyond `SPARE`."""
        # Each of these operations on a list is atomic, so no lock is needed.
        self.spare.append(prepared)
        del self.spare[:-SPARE]

    def release(self) -> None:
        """Returns the memory of unused workspaces to the pool."""
        spaces = [space for prepared in self.spare for spaces in prepared.spaces for space in spaces]
        POOL.give_back(*(space.memory for space in spaces))
        self.spare = []


def remove_if_present(spare: list[PreparedChain], prepared: PreparedChain) -> bool:
    """Removes an element from a list that threads share; returns False if another thread was faster."""
    try:
        spare.remove(prepared)
    except ValueError:
        return False
    return True


class Started:
    """Run of a chain of kernels: takes the call of each kernel, in order, and then runs all of them."""

    def __init__(self, chain: KernelChain) -> None:
        """Begins a run of a chain of kernels, to which no calls are added yet."""
        self.chain = chain
        self.calls: list[Call] = []
        self.forms: list[CallForm] = []
        self.arrays: list[CallArrays] = []

    def add(self, call: Call) -> Results:
        """Adds the call of the chain's next kernel; returns its result arrays, which `run` fills."""
        form = CallForm(self.chain.natives[len(self.calls)].kind, call)
        arrays = form.arrays(call.sequences, call.initial, call.statics, form.results())
        self.calls.append(call)
        self.forms.append(form)
        self.arrays.append(arrays)
        return arrays.results

    def run(self) -> None:
        """Runs the kernels of the chain, which fills the result arrays of all calls. Raises `InputError` if
        an index is outside its table.
        """
        chain = self.chain
        for native, call, own in zip(chain.natives, self.calls, self.arrays, strict=True):
            native.begin(call, own)
        prepared = chain.prepared(self.calls, self.arrays)
        prepared.run()
        chain.end(self.forms, self.arrays)
        for form in self.forms:
            form.release()
        chain.give_back(prepared)

    def frozen(self) -> "Frozen | None":
        """Prepares the chain for later runs on other arrays of the same shapes; None if a call cannot be
        prepared. Calls that compute values once per sequence, or have empty sequences, cannot. Nor can calls
        that would keep much memory: they take so long that preparing them costs little.
        """
        chain = self.chain
        for native, call in zip(chain.natives, self.calls, strict=True):
            rows = call.positions.rows
            empty = not rows or SequenceLayout.of(call.positions).filled < rows
            if native.by_sequence or native.compiled.axes or empty:
                return None
        prepared = chain.prepared(self.calls, self.arrays)
        for own in self.arrays:
            own.give_back()
        single = all(call.positions.lengths.max(initial=0) <= 1 for call in self.calls)
        if prepared.bytes <= (FROZEN_STEP_BYTES if single else FROZEN_BYTES) * len(self.calls):
            # Keeps alive the tables that the words point to, but not the calls with the caller's arrays.
            return Frozen(
                chain, self.forms, prepared, [SequenceLayout.of(call.positions) for call in self.calls]
            )
        chain.give_back(prepared)
        return None


@dataclass(frozen=True)
class Frozen:
    """Prepared chain of kernels, to be run on other arrays of the same shapes.

    forms: make the arrays of each call.
    prepared: the workspaces, with all arguments but the addresses of arrays.
    held: the tables that these arguments point to, kept alive.
    """

    chain: KernelChain
    forms: Sequence[CallForm]
    prepared: PreparedChain
    held: Sequence[SequenceLayout]

    @property
    def bytes(self) -> int:
        """The size in bytes of the workspaces that the prepared chain holds."""
        return self.prepared.bytes

    def started(self) -> "StartedFrozen":
        """Begins a run of the prepared chain, to which the caller adds the arrays of each kernel."""
        return StartedFrozen(self)

    def call(
        self, sequences: Sequence[Array], initial: Sequence[Array | None], statics: Sequence[Array]
    ) -> Results:
        """Runs a prepared chain of a single kernel on other arrays, initial memories None for zeros; returns
        the results.
        """
        (form,) = self.forms
        results = form.results()
        self.run((form.arrays(sequences, initial, statics, results),))
        return results

    def run(self, arrays: Sequence[CallArrays]) -> None:
        """Runs the prepared chain on arrays, one set for each kernel. Raises `InputError` if an index is
        outside its table.
        """
        self.prepared.point(arrays)
        self.prepared.run()
        self.chain.end(self.forms, arrays)


class StartedFrozen:
    """Run of a prepared chain: takes the arrays of each kernel, in order, and then runs all kernels."""

    def __init__(self, frozen: Frozen) -> None:
        """Begins a run of a prepared chain of kernels, to which no arrays are added yet."""
        self.frozen = frozen
        self.arrays: list[CallArrays] = []

    def add(
        self, sequences: Sequence[Array], initial: Sequence[Array | None], statics: Sequence[Array] = ()
    ) -> Results:
        """Adds the arrays for the chain's next kernel, initial memories None for zeros; returns its result
        arrays, which `run` fills.
        """
        form = self.frozen.forms[len(self.arrays)]
        arrays = form.arrays(sequences, initial, statics, form.results())
        self.arrays.append(arrays)
        return arrays.results

    def run(self) -> None:
        """Runs the kernels of the chain, which fills the result arrays. Raises `InputError` if an index is
        outside its table.
        """
        self.frozen.run(self.arrays)
