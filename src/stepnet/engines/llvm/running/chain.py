"""Calls of several kernels in one go: all memory and words first, then machine code alone.

    kernels    1 forward   2 reverse   3 merge               waves    (1, 2)  (3)
    add        arrays of each call, the results of one being inputs of the next
    run        words of all calls, wave after wave on the threads

What does not depend on lengths is prepared once (`Prepared`): workspaces, a row of words for each thread,
and orders. A call of other lengths makes its tables (`Laid`), once for all kernels over the same sequences,
and writes its words. No Python runs between two kernels, for which it would have to come back into the cache.

The kernels of a wave do not depend on each other, as both directions of a layer. They run at the same time,
each on threads of its own, where that is estimated to take less time (`plan/partition.py`). Layers of a stack
make a wave of their own where that takes less time: each waits, block by block, for the outputs of the one
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.machine.memory import POOL
from stepnet.engines.llvm.machine.system import clock
from stepnet.engines.llvm.running.again import Again
from stepnet.engines.llvm.running.arrangement import Arranger
from stepnet.engines.llvm.running.form import Arrays, Form
from stepnet.engines.llvm.running.laid import Laid, Sets
from stepnet.engines.llvm.running.native import CALL, POINTERS, Native
from stepnet.engines.llvm.running.reach import Reach
from stepnet.engines.threads import threads
from stepnet.engines.watching import watching
from stepnet.plan.waves import Waves

SPARE = 8
# Machine code runs for so many seconds at a time, so that an interrupt arrives.
SLICE = 0.05
# The most memory that a kernel of a frozen call keeps to work in; and that of a call of single steps, which
# take less time than preparing them, however much memory they have.
FROZEN_BYTES = 2 * 2**20
FROZEN_STEP_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Shape:
    """What memory is prepared for: the waves of kernels, and of each kernel the lanes of each set, how many
    threads share its steps, how many steps its blocks have where it is part of a wavefront (0 where not), and
    how many words of inner sequences it has room for. ends: whether sequences may end early.
    """

    waves: Waves
    lanes: tuple[tuple[int, ...], ...]
    together: tuple[int, ...]
    blocks: tuple[int, ...]
    rooms: tuple[int, ...]
    ends: bool


class HasSets(Protocol):
    """What makes the sets of lanes of a call."""

    def sets(self, count: int, seconds: float) -> Sets:
        """So many sets of lanes at most. seconds: how long the whole call is estimated to take."""
        ...


class Prepared:
    """Workspaces for calls of one shape, and what runs them, wave by wave."""

    def __init__(
        self, natives: Sequence[Native], shape: Shape, kind: type[Again] = Again, pauses: bool = True
    ) -> None:
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

    def run_of(self, wave: tuple[int, ...], kind: type[Again]) -> Again:
        """What runs the kernels of a wave."""
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
        """Runs all waves; raises `InputError` where an integer does not fit a table."""
        for run in self.runs:
            run()
        told = [run for run in self.runs if run.told]
        for run in told:
            run.told = False
        if told and (watch := watching()) is not None:
            watch(self.reach.progress(len(self.runs) - 1, True))

    def write(self, calls: Sequence[Call], arrays: Sequence[Arrays], sets: Sequence[Sets]) -> None:
        """Writes all words of calls."""
        ticks = int(SLICE * clock().per_second) if self.pauses else 0
        parts = zip(self.natives, self.spaces, calls, arrays, sets, strict=True)
        for native, spaces, call, own, lanes in parts:
            for space, (_, words) in zip(spaces, lanes, strict=True):
                space.write(native.pack, CALL, native.words(call, own, ticks, words))

    def point(self, arrays: Sequence[Arrays]) -> None:
        """Writes the pointers of other arrays."""
        for native, spaces, own in zip(self.natives, self.spaces, arrays, strict=True):
            pointers = native.pointers(own)
            for space in spaces:
                space.write(native.pack_pointers, POINTERS, pointers)


class Chain:
    """Kernels that run in one go, from any number of threads of Python at once."""

    def __init__(self, natives: Sequence[Native], waves: Waves, lines: Waves = ()) -> None:
        self.natives, self.arranger = natives, Arranger(natives, waves, lines)
        self.defers = all(native.defers for native in natives)
        self.spare: list[Prepared] = []

    def started(self) -> "Started":
        """What takes the calls of all kernels, and then runs them."""
        return Started(self)

    def prepared(
        self, calls: Sequence[Call], arrays: Sequence[Arrays], ending: "HasSets | None" = None
    ) -> Prepared:
        """Memory for calls, with all words written. ending: what makes the sets of lanes of a single call
        whose sequences may end early.
        """
        laid = list(map(Laid.of, calls))
        arranged = self.arranger.arranged(calls, laid)
        makers: Sequence[HasSets] = laid if ending is None else (ending,)
        # Of all, since the layers of a wavefront have the same lanes.
        seconds = sum(way.seconds for way in arranged.ways)
        sets = [own.sets(way.sets, seconds) for own, way in zip(makers, arranged.ways, strict=True)]
        lanes = tuple(tuple(count for count, _ in own) for own in sets)
        rooms = tuple(native.room(call) for native, call in zip(self.natives, calls, strict=True))
        together = tuple(way.together for way in arranged.ways)
        shape = Shape(arranged.waves, lanes, together, tuple(arranged.blocks), rooms, ending is not None)
        prepared = self.taken(shape) or Prepared(self.natives, shape)
        prepared.write(calls, arrays, sets)
        return prepared

    def end(self, forms: Sequence[Form], arrays: Sequence[Arrays]) -> None:
        """Does the work behind the machine code, where there is some."""
        if not self.defers:
            for native, form, own in zip(self.natives, forms, arrays, strict=True):
                native.end(form, own)
                own.give_back()

    def taken(self, shape: Shape) -> Prepared | None:
        """What an earlier call left for calls of a shape."""
        for prepared in reversed(tuple(self.spare)):
            if prepared.shape == shape and removed(self.spare, prepared):
                return prepared
        return None

    def give_back(self, prepared: Prepared) -> None:
        """Keeps memory for a later call."""
        # Each of these is done at once, whatever other threads do to the list, and needs no lock.
        self.spare.append(prepared)
        del self.spare[:-SPARE]

    def release(self) -> None:
        """Gives back its memory."""
        spaces = [space for prepared in self.spare for spaces in prepared.spaces for space in spaces]
        POOL.give_back(*(space.memory for space in spaces))
        self.spare = []


def removed(spare: list[Prepared], prepared: Prepared) -> bool:
    """Whether something was still in a list, from which it is removed: another thread may have taken it."""
    try:
        spare.remove(prepared)
    except ValueError:
        return False
    return True


class Started:
    """Calls of all kernels of a chain, added one by one in the order of the kernels."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.calls: list[Call] = []
        self.forms: list[Form] = []
        self.arrays: list[Arrays] = []

    def add(self, call: Call) -> Results:
        """The arrays of the results of the next kernel's call, which `run` fills."""
        form = Form(self.chain.natives[len(self.calls)].kind, call)
        arrays = form.arrays(call.sequences, call.initial, call.statics, form.results())
        self.calls.append(call)
        self.forms.append(form)
        self.arrays.append(arrays)
        return arrays.results

    def run(self) -> None:
        """Computes all results; raises `InputError` where an integer does not fit a table."""
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
        """What runs calls like these; None where a call cannot be frozen.

        That is so where values are computed once per sequence, where a sequence is empty, and where much
        memory would be kept: such a call takes so long that preparing it costs little.
        """
        chain = self.chain
        for native, call in zip(chain.natives, self.calls, strict=True):
            if (
                native.by_sequence
                or native.compiled.axes
                or not call.rows
                or Laid.of(call).filled < call.rows
            ):
                return None
        prepared = chain.prepared(self.calls, self.arrays)
        for own in self.arrays:
            own.give_back()
        single = all(call.lengths.max(initial=0) <= 1 for call in self.calls)
        if prepared.bytes <= (FROZEN_STEP_BYTES if single else FROZEN_BYTES) * len(self.calls):
            # Not the calls, whose sequences are the caller's: the tables that the words point to.
            return Frozen(chain, self.forms, prepared, [Laid.of(call) for call in self.calls])
        chain.give_back(prepared)
        return None


@dataclass(frozen=True)
class Frozen:
    """Prepared calls for other arrays of the same shapes, into new arrays."""

    chain: Chain
    forms: Sequence[Form]
    prepared: Prepared
    held: Sequence[Laid]

    def started(self) -> "StartedFrozen":
        """What takes the arrays of all calls, and then runs them."""
        return StartedFrozen(self)


class StartedFrozen:
    """Arrays for all kernels of frozen calls, added one by one in the order of the kernels."""

    def __init__(self, frozen: Frozen) -> None:
        self.frozen = frozen
        self.arrays: list[Arrays] = []

    def add(
        self, sequences: Sequence[Array], initial: Sequence[Array | None], statics: Sequence[Array] = ()
    ) -> Results:
        """The arrays of the results of the next kernel's call, which `run` fills."""
        form = self.frozen.forms[len(self.arrays)]
        arrays = form.arrays(sequences, initial, statics, form.results())
        self.arrays.append(arrays)
        return arrays.results

    def run(self) -> None:
        """Computes all results; raises `InputError` where an integer does not fit a table."""
        frozen = self.frozen
        frozen.prepared.point(self.arrays)
        frozen.prepared.run()
        frozen.chain.end(frozen.forms, self.arrays)
