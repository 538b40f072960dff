"""Prepared chains: the workspaces of calls of one shape, and the tasks that run them wave by wave."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from stepnet.compiler.native.system import clock
from stepnet.compiler.native.watching import watching
from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.cpu.running.form import CallArrays
from stepnet.compiler.targets.cpu.running.native import CALL, Native
from stepnet.compiler.targets.cpu.running.prepared_tasks import PreparedTasks, Reach
from stepnet.compiler.targets.cpu.running.sequence_layout import Sets
from stepnet.compiler.targets.cpu.running.workspace import Workspace
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass

# Machine code returns to Python after this many seconds, so that interrupts are handled.
SLICE = 0.05


@dataclass(frozen=True)
class Shape:
    """Shape of the calls of a chain of kernels. Calls of the same shape use the same prepared memory.

    waves: the kernels that run at the same time, by position.
    lanes: for each kernel, the number of lanes (slots for sequences) of each set.
    together: for each kernel, the number of threads that share its steps.
    blocks: for each kernel of a wavefront, the steps of a block; 0 for other kernels.
    rooms: for each kernel, the number of words (steps of inner sequences) that scratch memory holds.
    ends: whether sequences may end early.
    parts: for each kernel, the number of threads that have rows of their own in every lane.
    """

    waves: Waves
    lanes: tuple[tuple[int, ...], ...]
    together: tuple[int, ...]
    blocks: tuple[int, ...]
    rooms: tuple[int, ...]
    ends: bool
    parts: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """Tells whether several threads run the calls."""
        return max(*map(len, (*self.waves, *self.lanes)), *self.together, *self.parts) > 1


def write_words(space: Workspace, pack: Callable[..., None], offset: int, numbers: Sequence[int]) -> None:
    """Writes numbers to the arguments of machine code, for each thread that a workspace (scratch memory and
    arguments) is for.

    pack: the `pack_into` of a `Struct` that has the format of the numbers. offset: the byte offset of the
        first one among the arguments.
    """
    for row in space.rows:
        pack(row, offset, *numbers)


class PreparedChain:
    """Scratch memory of a chain of kernels for calls of one shape, and the tasks that run them in waves.

    in_one_lane: for each kernel, whether one lane has all sequences, as no step depends on another one.
    """

    def __init__(
        self,
        natives: Sequence[Native],
        shape: Shape,
        kind: type[PreparedTasks] = PreparedTasks,
        pauses: bool = True,
    ) -> None:
        """Allocates scratch memory for each kernel (compiled part) and thread, and prepares the tasks that
        run kernels. natives: the kernels. shape: the shape of the calls. kind: the class of the tasks.
        pauses: whether the machine code returns to Python from time to time. In a wavefront, where each layer
        of a stack runs some steps behind the one below, each kernel is told to wait for the one before it.
        """
        self.shape, self.natives, self.pauses = shape, natives, pauses
        self.spaces = [
            [
                native.workspace(lanes, together, room, shape.ends, block, (place % parts, parts))
                for place, lanes in enumerate(sets)
            ]
            for native, sets, together, block, room, parts in zip(
                natives, shape.lanes, shape.together, shape.blocks, shape.rooms, shape.parts, strict=True
            )
        ]
        for ahead, place in (pair for wave in shape.waves for pair in pairwise(wave)):
            if shape.blocks[place]:
                for space, followed in zip(self.spaces[place], self.spaces[ahead], strict=True):
                    space.follow(followed)
        self.runs = [self.run_of(wave, kind) for wave in shape.waves]
        # All parts of the rows have the same steps.
        self.reach = Reach(shape.waves, [own[:: shape.parts[place]] for place, own in enumerate(self.spaces)])
        for place, run in enumerate(self.runs):
            run.reach, run.place = self.reach, place
        self.bytes = sum(space.memory.nbytes for spaces in self.spaces for space in spaces)
        self.in_one_lane = tuple(
            native.rows_are_alone and lanes == (1,) * parts
            for native, lanes, parts in zip(natives, shape.lanes, shape.parts, strict=True)
        )

    def run_of(self, wave: tuple[int, ...], kind: type[PreparedTasks]) -> PreparedTasks:
        """Prepares the tasks that run a wave (compiled parts that run at the same time): one for each thread
        of each workspace (scratch memory and arguments). wave: the positions of the kernels. kind: the class
        of the tasks.
        """
        spaces = [space for place in wave for space in self.spaces[place]]
        tasks = [
            (self.natives[place].compiled.run, address)
            for place in wave
            for space in self.spaces[place]
            for address in space.addresses
        ]
        progress = spaces[0].progress if len(spaces) == 1 else None
        return kind(tasks, spaces, progress, threads(), self.pauses)

    def run(self, behind: Mapping[int, Sequence[ParallelCalls]]) -> None:
        """Runs the machine code of all kernels (compiled parts), one wave (those that run at the same time)
        after the other, and reports the final progress. Raises `InputError` if an index is outside its table.

        behind: the other tasks, such as reductions over steps, that run behind each wave, by its position;
            under -1 those ahead of the first.
        """
        for place in range(-1, len(self.runs)):
            if place >= 0:
                self.runs[place]()
            for task in behind.get(place, ()):
                task()
        reported = [run for run in self.runs if run.has_reported]
        for run in reported:
            run.has_reported = False
        if reported and (watch := watching()) is not None:
            watch(self.reach.progress(len(self.runs) - 1, True))

    def write(self, calls: Sequence[Call], arrays: Sequence[CallArrays], sets: Sequence[Sets]) -> None:
        """Writes the arguments of the calls of all kernels (compiled parts of a net), a call for each, into
        the workspaces (scratch memory). arrays: the arrays of each call. sets: for each call, the arguments
        of each thread's lanes (slots that run sequences).
        """
        ticks = int(SLICE * clock().per_second) if self.pauses else 0
        parts = zip(self.natives, self.spaces, calls, arrays, sets, strict=True)
        for native, spaces, call, own, lanes in parts:
            for space, (_, words) in zip(spaces, lanes, strict=True):
                write_words(space, native.pack, CALL, native.words(call, own, ticks, words))
