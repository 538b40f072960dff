"""A call on machine code: lanes shared out between threads, memory, and the words that describe the call."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.engines.base import Array, Call, Results
from stepnet.engines.llvm.build import NativeFunction
from stepnet.engines.llvm.compiled import Compiled
from stepnet.engines.llvm.constants import constant_values
from stepnet.engines.llvm.finish import Finish
from stepnet.engines.llvm.form import Arrays, Form
from stepnet.engines.llvm.memory import POOL, pointer, view
from stepnet.engines.llvm.refill import Refill
from stepnet.engines.llvm.system import clock
from stepnet.engines.llvm.target import Target
from stepnet.engines.llvm.words import ARRAYS
from stepnet.engines.llvm.workers import CREW, Orders
from stepnet.engines.llvm.workspace import SLACK, WORD, Workspace, shared_out
from stepnet.engines.threads import threads
from stepnet.errors import InputError
from stepnet.plan.plan import Plan

SPARE = 8
# Steps that follow one another within so many seconds are worth waking a thread for; but to wake one costs
# about as much as several steps, so it is not tried again at once.
CLOSELY, SELDOM = 100e-6, 2e-3
# Machine code runs for so many seconds at a time, so that an interrupt arrives; and over so many sequences.
SLICE, SEQUENCES = 0.05, 256
# The most memory that a frozen call keeps to work in.
FROZEN_BYTES = 2 * 2**20
OUTSIDE = "an integer is outside the rows of the parameter that it indexes"
# What a call changes of the words, besides the pointers of the user's arrays.
CALL_WORDS = (
    "steps",
    "slice",
    "last_only",
    "reverse",
    "sequence",
    "order",
    "first",
    "lane_steps",
    "starts",
    "lengths",
    "step_offsets",
    "begun",
)


class Runner:
    """A kernel with its parameters: runs calls, from any number of threads at once."""

    def __init__(
        self, plan: Plan, compiled: Compiled, constants: Array, finish: Finish | None, target: Target
    ) -> None:
        self.plan, self.compiled, self.finish, self.target = plan, compiled, finish, target
        self.refill: Refill | None = None
        self.constants, self.reverse = constants, plan.reverse
        self.spare: list[Workspace] = []
        words = compiled.words
        self.array_words = [word for kind in ARRAYS for word in words[kind]]
        self.places = [WORD[name] for name in CALL_WORDS] + self.array_words
        types = [plan.net.type_of(result) for result in plan.net.results]
        self.outputs, self.rows, self.totals = (
            [types[place] for place in places]
            for places in (plan.ends.steps, plan.ends.rows, plan.ends.totals)
        )
        wanted = [finish is not None or word in compiled.wanted for word in words["initial"]]
        memories = [plan.net.type_of(plan.net.inputs[place]) for place in plan.ends.memories]
        self.filled = {place: memories[place] for place, want in enumerate(wanted) if want}

    def __call__(self, call: Call) -> Results:
        """The results of a call; raises `InputError` where an integer does not fit a table."""
        form = self.form(call)
        arrays = form.arrays(call.sequences, call.initial, call.statics, form.results())
        spaces, held = self.prepared(call, arrays, SLICE)
        Again(self.compiled.run, spaces, held, pauses=True)()
        self.end(form, arrays)
        self.give_back(spaces)
        arrays.give_back()
        form.release()
        return arrays.results

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Takes other parameters in place of its own; False where they do not lie as C-contiguous arrays."""
        if not all(array.flags.c_contiguous for array in parameters):
            return False
        if self.refill is None:
            like = [array.copy() for array in parameters]  # those of tied weights are one array
            values = constant_values(self.plan, like)
            wanted = () if self.finish is None else tuple(self.finish.constants)
            entries = self.compiled.constants
            self.refill = Refill(self.plan, entries, self.constants, like, values, wanted, self.target)
        known = self.refill(parameters)
        if self.finish is not None:
            self.finish.constants.update({number: array.copy() for number, array in known.items()})
        return True

    def release(self) -> None:
        """Gives back its memory: it is not called any more."""
        POOL.give_back(self.constants, *(space.memory for space in self.spare))
        self.spare = []

    def again(self, call: Call, results: Results, whole: bool = False) -> Callable[[], None]:
        """A function that runs this call on the present contents of its arrays, prepared once."""
        form = self.form(call)
        arrays = form.arrays(call.sequences, call.initial, call.statics, results)
        spaces, held = self.prepared(call, arrays, 0 if whole else SLICE)
        step = call.lengths.max(initial=0) <= 1
        together = step and bool(spaces) and spaces[0].together > 1
        kind = Together if together else Again
        run = kind(self.compiled.run, spaces, [call, results, arrays, held], pauses=not whole)
        if form.finish is None and self.compiled.sequences is None and np.all(call.lengths):
            return run
        seen = self.made_of(arrays)

        def run_whole() -> None:
            nonlocal seen
            now = self.made_of(arrays)
            if self.compiled.sequences is not None and now != seen:
                self.for_each_sequence(self.compiled.sequences, arrays)
            seen = now
            self.keep_idle(call, arrays)
            run()
            self.end(form, arrays)

        return run_whole

    def frozen(self, call: Call) -> "Frozen | None":
        """A function that runs calls like this one; None where a call cannot be frozen.

        That is so where values are computed once per sequence, where a sequence is empty, and where much
        memory would be kept: such a call takes so long that preparing it costs little.
        """
        by_sequence = self.compiled.sequences is not None or self.compiled.ended is not None
        if by_sequence or not len(call.lengths) or not np.all(call.lengths):
            return None
        form = self.form(call)
        frozen = Frozen(self, call, form)
        if frozen.bytes <= FROZEN_BYTES:
            return frozen
        self.give_back(frozen.spaces)
        return None

    def prepared(self, call: Call, arrays: Arrays, seconds: float) -> "tuple[list[Workspace], list[Any]]":
        """The workspaces of a call, with all its words written; and the arrays that must stay alive.

        seconds: the time after which the machine code returns before it is done; 0 for never.
        """
        weights, other_weights = self.compiled.weights, self.compiled.other_weights
        share = shared_out(call.lengths, weights, other_weights, threads())
        if self.compiled.sequences is not None:
            self.for_each_sequence(self.compiled.sequences, arrays)
        self.keep_idle(call, arrays)
        pointers = list(map(pointer, arrays.in_order))
        begun = call.begun
        if begun is None and self.compiled.counts:
            begun = np.zeros(len(call.lengths), np.int64)
        steps = call.steps
        spaces: list[Workspace] = []
        for lanes in share.lanes:
            if lanes.count:
                longest = int(lanes.steps[0])
                steps = np.arange(longest) if steps is None else steps
                space = self.workspace(lanes.count, share.together)
                space.begin()
                tables = [arrays.record, lanes.order, lanes.first, lanes.steps]
                tables += [call.starts, call.lengths, steps, begun]
                numbers = [
                    longest,
                    int(seconds * clock().per_second),
                    int(call.last_only),
                    int(self.reverse),
                ]
                space.words[:, self.places] = [*numbers, *map(pointer, tables), *pointers]
                spaces.append(space)
        return spaces, [share, arrays.record, call.starts, call.lengths, steps, begun]

    # ---- arrays and memory

    def form(self, call: Call) -> Form:
        """What makes the arrays of calls like this one."""
        by_sequence = self.compiled.sequences is not None or self.compiled.ended is not None
        record = (call.rows + SLACK) * self.compiled.strides["sequence"] if by_sequence else 0
        return Form(call, self.outputs, self.rows, self.totals, self.filled, self.finish, record)

    def made_of(self, arrays: Arrays) -> list[bytes]:
        """The bytes of the arrays from which values are computed once per sequence."""
        by_word = dict(zip(self.array_words, arrays.in_order, strict=True))
        read = (by_word[word] for word in self.compiled.sequence_words)
        return [array.tobytes() for array in read if array is not None]

    def keep_idle(self, call: Call, arrays: Arrays) -> None:
        """Copies the initial memories of empty sequences to their last ones."""
        if np.all(call.lengths):
            return
        idle = np.flatnonzero(call.lengths == 0)
        begins = [(begin, field) for begin, word, field in self.compiled.memories if word >= 0]
        by_word = dict(zip(self.array_words, arrays.in_order, strict=True))
        for final, (begin, field) in zip(arrays.final, begins, strict=True):
            if begin.field is not None and arrays.record is not None:
                records = arrays.record[: arrays.batch * self.compiled.strides["sequence"]]
                own = records.reshape(arrays.batch, -1)[idle, begin.field.offset :][:, : begin.bytes]
                final[idle] = np.ascontiguousarray(own).view(field.dtype).reshape(final[idle].shape)
            else:
                initial = by_word.get(begin.word)
                final[idle] = 0 if initial is None else initial[idle]

    def for_each_sequence(self, function: NativeFunction, arrays: Arrays) -> None:
        """Computes values once per sequence, a few sequences at a time, so that an interrupt can arrive."""
        status = np.zeros(1, np.int64)
        words = np.zeros(self.compiled.word_count, np.int64)
        words[self.array_words] = list(map(pointer, arrays.in_order))
        for name, array in {"constants": self.constants, "sequence": arrays.record, "status": status}.items():
            words[WORD[name]] = pointer(array)
        for first in range(0, arrays.batch, SEQUENCES):
            words[WORD["first"]], words[WORD["lanes"]] = first, min(SEQUENCES, arrays.batch - first)
            function.call(pointer(words))
        if status[0]:
            raise InputError(OUTSIDE)

    def end(self, form: Form, arrays: Arrays) -> None:
        """Does the work after the loop: values of each sequence, and totals."""
        if form.finish is None:
            return
        values = form.finish.values(arrays.kinds)
        form.finish.reduce(values, arrays.kinds)
        if self.compiled.ended is not None:
            self.for_each_sequence(self.compiled.ended, arrays)
        form.finish.total(values, arrays.results)

    def give_back(self, spaces: list[Workspace]) -> None:
        """Keeps memory for a later call."""
        # Each of these is done at once, whatever other threads do to the list, and needs no lock.
        self.spare.extend(spaces)
        del self.spare[:-SPARE]

    def workspace(self, lanes: int, together: int) -> Workspace:
        """A workspace, from an earlier call where one fits."""
        for space in reversed(tuple(self.spare)):
            if space.lanes == lanes and space.together == together and taken_from(self.spare, space):
                return space
        return Workspace(self.compiled, self.constants, lanes, together)


def taken_from(spaces: list[Workspace], space: Workspace) -> bool:
    """Whether a workspace was still in a list, from which it is removed: another thread may have taken it."""
    try:
        spaces.remove(space)
    except ValueError:
        return False
    return True


class Again:
    """A prepared call that can be run many times; `held` is memory that the machine code reads."""

    def __init__(self, run: NativeFunction, spaces: list[Workspace], held: list[Any], pauses: bool) -> None:
        self.run, self.held = run, (spaces, held)
        self.pausing = spaces if pauses else []
        self.statuses = [view(space.status) for space in spaces]
        tasks = [address for space in spaces for address in space.addresses]
        self.only = tasks[0] if len(tasks) == 1 else None
        if len(tasks) > 1:
            self.orders = self.orders_for(tasks, spaces[0].progress if len(spaces) == 1 else None)

    def orders_for(self, tasks: list[int], progress: Array | None) -> Orders:
        """The orders for more than one task."""
        return Orders(CREW, self.run, tasks, progress)

    def __call__(self) -> None:
        """Runs it; raises `InputError` where an integer does not fit a table."""
        for space in self.pausing:  # what an interrupted call left is forgotten
            space.begin()
        for status in self.statuses:
            status[0] = 0
        if self.only is not None:
            while self.run.call(self.only):
                pass
        elif self.statuses:
            self.share()
        for status in self.statuses:
            if status[0]:
                raise InputError(OUTSIDE)

    def share(self) -> None:
        """Does all tasks, by several threads."""
        CREW.run(self.orders)


class Together(Again):
    """A prepared step that threads share, as far as they are awake.

    A thread that sleeps, or whose processor another process has, takes longer to come than the step takes. So
    a step is shared with threads that are awake. It wakes the others if steps follow one another closely.
    """

    ended = roused = 0.0

    def orders_for(self, tasks: list[int], progress: Array | None) -> Orders:
        """Orders that wake nobody."""
        return Orders(CREW, self.run, tasks, progress, wake=False)

    def share(self) -> None:
        """Does all tasks, by the threads that are awake."""
        begun = time.perf_counter()
        while self.orders.lead():
            pass
        if self.orders.came < self.orders.count:
            if begun - self.ended < CLOSELY and begun - self.roused > SELDOM:
                self.roused = begun
                CREW.rouse(self.orders.count - 1)
            self.ended = time.perf_counter()


class Frozen:
    """A prepared call for other arrays of the same shapes, into new arrays."""

    def __init__(self, runner: Runner, call: Call, form: Form) -> None:
        self.runner, self.form = runner, form
        arrays = form.arrays(call.sequences, call.initial, call.statics, form.results())
        spaces, held = runner.prepared(call, arrays, SLICE)
        arrays.give_back()
        # The runner has the constants. Not the call itself, whose sequences are the caller's.
        held.append(runner)
        self.run = Again(runner.compiled.run, spaces, held, pauses=True)
        self.spaces = spaces
        self.bytes = sum(space.memory.nbytes for space in spaces)
        self.places = runner.array_words
        self.words = [(view(space.words), range(space.together)) for space in spaces]

    def __call__(
        self,
        sequences: Sequence[Array],
        initial: Sequence[Array | None],
        statics: Sequence[Array] = (),
    ) -> Results:
        """The results."""
        arrays = self.form.arrays(sequences, initial, statics, self.form.results())
        for place, array in zip(self.places, arrays.in_order, strict=True):
            address = pointer(array)
            for words, threads_ in self.words:
                for thread in threads_:
                    words[thread, place] = address
        self.run()
        self.runner.end(self.form, arrays)
        arrays.give_back()
        return arrays.results
