"""A call on machine code: lanes shared out between threads, memory, and the words that describe it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.driver import WORDS
from stepnet.engines.llvm.memory import aligned
from stepnet.engines.llvm.records import LINE
from stepnet.engines.llvm.workers import CREW, Orders, give_way_address
from stepnet.errors import InputError
from stepnet.lanes import Lanes, lanes_for
from stepnet.threads import threads

if TYPE_CHECKING:
    from stepnet.engines.llvm.engine import LlvmKernel

SLACK = 16
SPARE = 8
LANES = 64
BLOCK_BYTES = 384 * 1024
BLOCK_ROWS = 256
# Threads share a step only if the parameters it reads are worth a barrier, or do not fit one core's cache.
SHARED_BYTES = 384 * 1024
CACHE_BYTES = 1536 * 1024
# And only if a call reads more than what could be read while a thread is handed its part, some microseconds.
HANDOVER_BYTES = 768 * 1024
# Steps that follow one another within so many seconds are worth waking a thread for; but to wake one costs
# about as much as several steps, so it is not tried again at once.
CLOSELY, SELDOM = 100e-6, 2e-3
WORD = {name: place for place, name in enumerate(WORDS)}
# What a call changes of the words, besides the pointers of the user's arrays.
CALL_WORDS = ("steps", "last_only", "sequence", "order", "first", "lane_steps", "starts", "lengths", "begun")


@dataclass(frozen=True)
class Share:
    """How a call is shared out: the lanes of each thread, or one set of lanes for all of them."""

    lanes: tuple[Lanes, ...]
    together: int


def shared_out(lengths: Array, weights: int, other_weights: int, most: int) -> Share:
    """Lanes per thread where there are enough; all threads on one set where the parameters are what costs."""
    filled = int(np.count_nonzero(lengths))
    if most == 1 or filled == 0:
        return Share((lanes_for(lengths, LANES),), 1)
    few = filled < 8 * most
    worth = weights * int(lengths.max()) + other_weights >= HANDOVER_BYTES
    if worth and (weights >= CACHE_BYTES or (few and weights >= SHARED_BYTES)):
        return Share((lanes_for(lengths, LANES),), most)
    if filled == 1:
        return Share((lanes_for(lengths, LANES),), 1)
    all_lanes = lanes_for(lengths, LANES * most)
    count = min(most, all_lanes.count)
    return Share(tuple(all_lanes.part(thread, count) for thread in range(count)), 1)


def pointer(array: Array | None) -> int:
    """Where an array's numbers lie; 0 for none."""
    return 0 if array is None else array.__array_interface__["data"][0]


class Workspace:
    """The memory that one set of lanes works in, and a row of words for each thread that works there."""

    def __init__(self, runner: "Runner", lanes: int, together: int) -> None:
        strides = runner.program.strides
        rows = max(min(BLOCK_ROWS, BLOCK_BYTES // strides["block"]), 32)
        self.lanes, self.together = lanes, together
        block_steps = max(1, rows // lanes)
        rows, slots = block_steps * lanes + SLACK, lanes + SLACK
        parts = {
            "now": slots * strides["now"],
            "next": slots * strides["now"],
            "lane": slots * strides["lane"],
            "block": rows * strides["block"],
        }
        parts |= dict.fromkeys(("cursor", "left", "position", "current", "count"), 8 * slots)
        parts |= dict.fromkeys(("where", "owner", "fresh", "done"), 8 * rows)
        parts |= dict.fromkeys(("step_base", "step_rows", "step_fresh"), 8 * block_steps)
        parts |= {"barrier": LINE, "status": LINE}
        sizes = [-(-size // LINE) * LINE for size in parts.values()]
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.memory = aligned(sum(sizes))
        self.barrier, self.status = (self.memory[begin : begin + 8].view(np.int64) for begin in begins[-2:])
        self.words = np.zeros((together, runner.word_count), np.int64)
        self.words[:, [WORD[name] for name in parts]] = begins + pointer(self.memory)
        self.words[:, WORD["thread"]] = range(together)
        fixed = {"threads": together, "yield": give_way_address(), "constants": pointer(runner.constants)}
        for name, value in (fixed | {"lanes": lanes, "block_steps": block_steps}).items():
            self.words[:, WORD[name]] = value
        self.addresses = [pointer(row) for row in self.words]


class Runner:
    """A kernel with its parameters: runs calls, from any number of threads at once."""

    def __init__(self, kernel: "LlvmKernel", constants: Array) -> None:
        self.kernel = kernel
        self.constants = constants
        self.program = kernel.lowered.program
        self.spare: list[Workspace] = []
        self.lock = threading.Lock()
        words = kernel.lowered.words
        self.word_count = len(WORDS) + sum(map(len, words.values()))
        self.places = [WORD[name] for name in CALL_WORDS]
        self.places += [
            place for kind in ("inputs", "initial", "final", "statics", "outputs") for place in words[kind]
        ]
        net = kernel.plan.net
        memories = kernel.plan.recurrence.attributes["memories"]
        results = [net.type_of(result) for result in net.results]
        self.outputs = results[: len(results) - memories]
        self.finals = results[len(results) - memories :]

    def __call__(self, call: Call) -> Results:
        """The results of a call; raises `InputError` where an integer does not fit a table."""
        results = Results(self.new_outputs(call), self.new_finals(call))
        spaces, _ = self.laid_out(call, results)
        tasks = [address for space in spaces for address in space.addresses]
        if len(tasks) == 1:
            self.kernel.run.call(tasks[0])
        elif tasks:
            CREW.run(self.kernel.run, tasks)
        if not self.put_back(spaces):
            raise outside()
        return results

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """What runs this call whenever it is called, with everything about it laid out once."""
        spaces, held = self.laid_out(call, results)
        again = Again(self.kernel, spaces, call, results, held)
        if len(again.tasks) == 1 or call.lengths.max(initial=0) > 1 or spaces[0].together == 1:
            return again
        spaces, held = self.laid_out(call, results, most=1)
        return Shared(again, Again(self.kernel, spaces, call, results, held))

    def laid_out(
        self, call: Call, results: Results, most: int | None = None
    ) -> "tuple[list[Workspace], list[Any]]":
        """The memory that the lanes of a call work in, which says all of it; and what has to stay alive."""
        lowered = self.kernel.lowered
        share = shared_out(call.lengths, lowered.weights, lowered.other_weights, most or threads())
        groups = (call.sequences, call.initial, results.final, call.statics, results.outputs)
        arrays = [pointer(array) for group in groups for array in group]
        sequence = self.sequence_record(call, arrays)
        begun = call.begun
        if begun is None and self.program.index is not None:
            begun = np.zeros(len(call.lengths), np.int64)
        spaces: list[Workspace] = []
        for lanes in share.lanes:
            if lanes.count:
                space = self.workspace(lanes.count, share.together)
                tables = (sequence, lanes.order, lanes.first, lanes.steps, call.starts, call.lengths, begun)
                told = [int(lanes.steps[0]), int(call.last_only), *map(pointer, tables), *arrays]
                space.words[:, self.places] = told
                spaces.append(space)
        return spaces, [share, sequence, begun]

    # ---- arrays and memory

    def new_outputs(self, call: Call) -> list[Array]:
        """Arrays for the outputs; zeroed where there are places that no step fills."""
        if call.last_only:
            batch = len(call.lengths)
            make = np.empty if np.all(call.lengths) else np.zeros
            return [make((batch, *type_.shape), type_.dtype) for type_ in self.outputs]
        make = np.empty if int(call.lengths.sum()) == call.total else np.zeros
        return [make((call.total, *type_.shape), type_.dtype) for type_ in self.outputs]

    def new_finals(self, call: Call) -> list[Array]:
        """Arrays for the last memories: a sequence of no steps keeps its initial one."""
        finals = [np.empty((len(call.lengths), *type_.shape), type_.dtype) for type_ in self.finals]
        if not np.all(call.lengths):
            idle = np.flatnonzero(call.lengths == 0)
            for final, initial in zip(finals, call.initial, strict=True):
                final[idle] = 0 if initial is None else initial[idle]
        return finals

    def sequence_record(self, call: Call, arrays: list[int]) -> Array | None:
        """What is computed once per sequence."""
        batch = len(call.lengths)
        if not self.kernel.lowered.sequence or not batch:
            return None
        memory = aligned((batch + SLACK) * self.program.strides["sequence"])
        status = np.zeros(1, np.int64)
        words = np.zeros(self.word_count, np.int64)
        words[self.places[len(CALL_WORDS) :]] = arrays
        told = {"constants": self.constants, "sequence": memory, "status": status}
        for name, array in told.items():
            words[WORD[name]] = pointer(array)
        words[WORD["lanes"]] = batch
        self.kernel.sequences.call(pointer(words))
        if status[0]:
            raise outside()
        return memory

    def workspace(self, lanes: int, together: int) -> Workspace:
        """Memory to work in, from an earlier call where there is some."""
        with self.lock:
            for place, space in enumerate(self.spare):
                if space.lanes == lanes and space.together == together:
                    return self.spare.pop(place)
        return Workspace(self, lanes, together)

    def put_back(self, spaces: list[Workspace]) -> bool:
        """Keeps the memory for later calls; gives whether all integers were inside their tables."""
        inside = all(not space.status[0] for space in spaces)
        for space in spaces:
            space.status[0] = 0
            space.barrier[0] = 0
        with self.lock:
            self.spare = (spaces + self.spare)[:SPARE]
        return inside


class Again:
    """A call laid out, to be run again and again; `held` is the memory that the machine code reads."""

    def __init__(self, kernel: "LlvmKernel", spaces: list[Workspace], *held: Any) -> None:
        self.run, self.held = kernel.run, (spaces, held)
        self.tasks = [address for space in spaces for address in space.addresses]
        self.only = self.tasks[0] if len(self.tasks) == 1 else None
        self.statuses = [space.status for space in spaces]

    def __call__(self) -> None:
        """Runs it; raises `InputError` where an integer does not fit a table."""
        if self.only is not None:
            self.run.call(self.only)
        elif self.tasks:
            CREW.run(self.run, self.tasks)
        self.check()

    def check(self) -> None:
        """Raises `InputError` where an integer did not fit a table."""
        for status in self.statuses:
            if status[0]:
                status[0] = 0
                raise outside()


class Shared:
    """A step laid out twice: for threads that share it, and for one alone.

    A thread that sleeps, or whose processor another process has, takes longer to come than the step does.
    So a step is shared with those that are there; it is run alone otherwise, and wakes the others if steps
    follow one another closely.
    """

    def __init__(self, shared: Again, alone: Again) -> None:
        self.shared, self.alone = shared, alone
        self.orders = Orders(shared.run, shared.tasks)
        self.ended = self.roused = 0.0

    def __call__(self) -> None:
        """Runs it; raises `InputError` where an integer does not fit a table."""
        if CREW.run_if_awake(self.orders):
            self.shared.check()
            return
        now = time.perf_counter()
        if now - self.ended < CLOSELY and now - self.roused > SELDOM:
            self.roused = now
            CREW.rouse(len(self.orders.told) - 1)
        self.alone()
        self.ended = time.perf_counter()


def outside() -> InputError:
    """The error for an integer that the machine code met outside a table."""
    return InputError("an integer is outside the rows of the parameter that it indexes")
