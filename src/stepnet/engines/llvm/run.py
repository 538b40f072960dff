"""A call on machine code: lanes shared out between threads, memory to work in, and the words that describe it."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.constants import aligned
from stepnet.engines.llvm.driver import WORDS
from stepnet.engines.llvm.workers import CREW, give_way_address, threads
from stepnet.errors import InputError
from stepnet.lanes import Lanes, lanes_for
from stepnet.types import STEPS

if TYPE_CHECKING:
    from stepnet.engines.llvm.engine import LlvmKernel

SLACK = 16
SPARE = 8
LANES = 64
BLOCK_BYTES = 768 * 1024
BLOCK_ROWS = 256
# Threads share a step only if the parameters it reads are worth a barrier, or do not fit one core's cache.
SHARED_BYTES = 384 * 1024
CACHE_BYTES = 1536 * 1024
WORD = {name: place for place, name in enumerate(WORDS)}


@dataclass(frozen=True)
class Share:
    """How a call is shared out: the lanes of each thread, or one set of lanes for all of them."""

    lanes: tuple[Lanes, ...]
    together: int


def shared_out(lengths: Array, weights: int, most: int) -> Share:
    """Lanes per thread where there are enough; all threads on one set where the parameters are what costs."""
    filled = int(np.count_nonzero(lengths))
    if most == 1 or filled == 0:
        return Share((lanes_for(lengths, LANES),), 1)
    few = filled < 8 * most
    if weights >= CACHE_BYTES or (few and weights >= SHARED_BYTES):
        return Share((lanes_for(lengths, LANES),), most)
    if filled == 1:
        return Share((lanes_for(lengths, LANES),), 1)
    all_lanes = lanes_for(lengths, LANES * most)
    count = min(most, all_lanes.count)
    return Share(tuple(all_lanes.part(thread, count) for thread in range(count)), 1)


class Workspace:
    """The memory that one set of lanes works in, and the pointers to its parts."""

    def __init__(self, strides: dict[str, int], lanes: int, block_steps: int) -> None:
        self.lanes = lanes
        self.block_steps = block_steps
        rows = block_steps * lanes + SLACK
        slots = lanes + SLACK
        parts = {
            "now": slots * strides["now"],
            "next": slots * strides["now"],
            "lane": slots * strides["lane"],
            "block": rows * strides["block"],
        }
        parts |= dict.fromkeys(("cursor", "left", "position", "current", "count"), 8 * slots)
        parts |= dict.fromkeys(("where", "owner", "fresh", "done"), 8 * rows)
        parts |= dict.fromkeys(("step_base", "step_rows", "step_fresh"), 8 * block_steps)
        parts |= {"barrier": 64, "status": 64}
        self.memory = aligned(sum(-(-size // 64) * 64 for size in parts.values()))
        sizes = [-(-size // 64) * 64 for size in parts.values()]
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.places = np.array([WORD[name] for name in parts])
        self.pointers = begins + self.memory.ctypes.data
        self.barrier, self.status = (self.memory[begin : begin + 8].view(np.int64) for begin in begins[-2:])


class Runner:
    """A kernel with its parameters: runs calls, from any number of threads at once."""

    def __init__(self, kernel: "LlvmKernel", constants: Array) -> None:
        self.kernel = kernel
        self.constants = constants
        self.program = kernel.lowered.program
        self.spare: list[Workspace] = []
        self.lock = threading.Lock()
        net = kernel.plan.net
        memories = kernel.plan.recurrence.attributes["memories"]
        results = [net.type_of(result) for result in net.results]
        self.outputs = results[: len(results) - memories]
        self.finals = results[len(results) - memories :]
        assert all(type_.extent == STEPS for type_ in self.outputs)

    def __call__(self, call: Call) -> Results:
        """The results of a call; raises `InputError` where an integer does not fit a table."""
        batch = len(call.lengths)
        share = shared_out(call.lengths, self.kernel.lowered.weights, threads())
        outputs = self.new_outputs(call, batch)
        finals = self.new_finals(call, batch)
        arrays = self.array_words(call, outputs, finals)
        kept: list[Array] = [call.starts, call.lengths]
        sequence = self.sequence_record(call, arrays, batch)
        spaces: list[Workspace] = []
        tasks: list[Array] = []
        for lanes in share.lanes:
            if lanes.count == 0:
                continue
            space = self.workspace(lanes)
            spaces.append(space)
            for thread in range(share.together):
                words = arrays.copy()
                words[space.places] = space.pointers
                self.describe(words, call, lanes, space, thread, share.together, sequence)
                tasks.append(words)
            kept += [lanes.order, lanes.first, lanes.steps]
        self.run(tasks)
        inside = self.put_back(spaces)
        del kept
        if not inside:
            raise outside()
        return Results(outputs, finals)

    # ---- what the words say

    def array_words(self, call: Call, outputs: list[Array], finals: list[Array]) -> Array:
        """The words of a call with the pointers of the user's arrays."""
        words = self.kernel.lowered.words
        total = len(WORDS) + sum(map(len, words.values()))
        found = np.zeros(total, np.int64)
        groups = (
            ("inputs", call.sequences),
            ("initial", call.initial),
            ("final", finals),
            ("statics", call.statics),
            ("outputs", outputs),
        )
        for kind, arrays in groups:
            for place, array in zip(words[kind], arrays, strict=True):
                found[place] = 0 if array is None else array.ctypes.data
        return found

    def describe(
        self, words: Array, call: Call, lanes: Lanes, space: Workspace, thread: int, together: int, sequence: Array | None
    ) -> None:
        """Fills the words that say what to do."""
        words[WORD["thread"]] = thread
        words[WORD["threads"]] = together
        words[WORD["yield"]] = give_way_address()
        words[WORD["constants"]] = self.constants.ctypes.data
        words[WORD["sequence"]] = 0 if sequence is None else sequence.ctypes.data
        words[WORD["lanes"]] = lanes.count
        words[WORD["steps"]] = lanes.steps[0]
        words[WORD["block_steps"]] = space.block_steps
        words[WORD["order"]] = lanes.order.ctypes.data
        words[WORD["first"]] = lanes.first.ctypes.data
        words[WORD["lane_steps"]] = lanes.steps.ctypes.data
        words[WORD["starts"]] = call.starts.ctypes.data
        words[WORD["lengths"]] = call.lengths.ctypes.data
        words[WORD["last_only"]] = int(call.last_only)

    def run(self, tasks: list[Array]) -> None:
        """All tasks at the same time."""
        if len(tasks) == 1:
            self.kernel.run(tasks[0].ctypes.data)
        elif tasks:
            CREW.run([lambda words=words: self.kernel.run(words.ctypes.data) for words in tasks])

    # ---- arrays and memory

    def new_outputs(self, call: Call, batch: int) -> list[Array]:
        """Arrays for the outputs; zeroed where there are places that no step fills."""
        rows = batch if call.last_only else call.total
        filled = not call.last_only and int(call.lengths.sum()) == call.total
        make = np.empty if filled else np.zeros
        return [make((rows, *type_.shape), type_.dtype) for type_ in self.outputs]

    def new_finals(self, call: Call, batch: int) -> list[Array]:
        """Arrays for the last memories: a sequence of no steps keeps its initial one."""
        finals = [np.empty((batch, *type_.shape), type_.dtype) for type_ in self.finals]
        idle = np.flatnonzero(call.lengths == 0)
        for final, initial in zip(finals, call.initial, strict=True):
            if len(idle):
                final[idle] = 0 if initial is None else initial[idle]
        return finals

    def sequence_record(self, call: Call, arrays: Array, batch: int) -> Array | None:
        """What is computed once per sequence."""
        if not self.kernel.lowered.sequence or not batch:
            return None
        memory = aligned((batch + SLACK) * self.program.strides["sequence"])
        status = np.zeros(1, np.int64)
        words = arrays.copy()
        words[WORD["constants"]] = self.constants.ctypes.data
        words[WORD["sequence"]] = memory.ctypes.data
        words[WORD["lanes"]] = batch
        words[WORD["status"]] = status.ctypes.data
        self.kernel.sequences(words.ctypes.data)
        if status[0]:
            raise outside()
        return memory

    def block_steps(self, lanes: Lanes) -> int:
        """How many steps a block has: as many as stay in the cache."""
        rows = max(min(BLOCK_ROWS, BLOCK_BYTES // self.program.strides["block"]), 32)
        return int(max(1, rows // lanes.count))

    def workspace(self, lanes: Lanes) -> Workspace:
        """Memory to work in, from an earlier call where there is some."""
        with self.lock:
            for place, space in enumerate(self.spare):
                if space.lanes == lanes.count:
                    return self.spare.pop(place)
        return Workspace(self.program.strides, lanes.count, self.block_steps(lanes))

    def put_back(self, spaces: list[Workspace]) -> bool:
        """Keeps the memory for later calls; gives whether all integers were inside their tables."""
        inside = all(space.status[0] == 0 for space in spaces)
        for space in spaces:
            space.status[0] = 0
            space.barrier[0] = 0
        with self.lock:
            self.spare = (spaces + self.spare)[:SPARE]
        return inside


def outside() -> InputError:
    """The error for an integer that the machine code met outside a table."""
    return InputError("an integer is outside the rows of the parameter that it indexes")
