"""The tasks of a schedule whose sequences keep their lengths, in the order in which they run.

    part 0   kernel                     its words, and the memory that it writes
    part 1   mean over the steps        the words of the operation across extents
    part 2   loop     step 0            moves: the rows of the step -> the body's arrays
                                        the tasks of the body, for as many rows
                                        moves: its results -> memories and outputs
                      step 1 ...

All steps of a loop share the arrays of its body, and the scratch memory of the body's kernels. What depends
on lengths (which rows a step has, and where) is in tables, so a run computes none of it.
"""

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.call_words import PROGRESS
from stepnet.compiler.net.interpreter import COPIED, LevelSizes, StepEntries, entry_indices, steps_of
from stepnet.compiler.net.ir import Recur
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Array, Call, Results
from stepnet.compiler.targets.cpu.lower.needs import is_task
from stepnet.compiler.targets.cpu.machine.memory import POOL, aligned, pointer
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.products.tiles import power_of_two
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.targets.cpu.running.arrangement import Arranger
from stepnet.compiler.targets.cpu.running.block_arrays import BlockArrays
from stepnet.compiler.targets.cpu.running.call_block import Turn, turn_of
from stepnet.compiler.targets.cpu.running.chain import idle_memories
from stepnet.compiler.targets.cpu.running.finish_tasks import total_task
from stepnet.compiler.targets.cpu.running.form import CallArrays, CallForm
from stepnet.compiler.targets.cpu.running.moves import pieces_of
from stepnet.compiler.targets.cpu.running.native import Native
from stepnet.compiler.targets.cpu.running.prepared_chain import PreparedChain, Shape
from stepnet.compiler.targets.cpu.running.run import Runner
from stepnet.compiler.targets.cpu.running.sequence_layout import SequenceLayout, Sets
from stepnet.compiler.targets.cpu.running.workspace import WORD
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL, ParallelCalls, TaskGroup
from stepnet.compiler.targets.part_execution import Frame, call_of
from stepnet.compiler.targets.schedule_kernel import BoundParts
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions

Values = dict[int, Array | None]
"""The arrays of the values so far, by node of the net."""
LINES = 2 * LINE
"""The bytes of the progress and the status of a kernel's run."""
MOST_TASKS = 2**14
"""The largest number of tasks of a block."""
MOST_BYTES = 2**25
"""The largest size of the arrays and tables of a block. Larger calls run part by part: Python is then a small
part of their time.
"""


class RunProgress(NamedTuple):
    """The progress and the status of one run of a kernel, as those of a `Workspace`."""

    progress: Array
    status: Array

    def go_on(self) -> None:
        """Clears the word that pauses the machine code, so that its next call goes on with the steps."""
        self.progress[PROGRESS.index("pause")] = 0


@dataclass
class BlockWriter(BlockArrays):
    """Writer of the tasks of a block.

    after, late: functions that compute totals by NumPy after a run, and the arrays of these.
    expected: the number of tasks of the longest loop, by that of its first step.
    arrangers, scratch: for each kernel, how threads share its calls, and its scratch memory by their shape.
    lines: the memory of progress and status that is not in use yet.
    """

    after: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    late: list[Array] = field(default_factory=list[Array])
    expected: int = 0
    arrangers: dict[Hashable, Arranger] = field(default_factory=dict[Hashable, Arranger])
    scratch: dict[Hashable, PreparedChain] = field(default_factory=dict[Hashable, PreparedChain])
    lines: Array = field(default_factory=lambda: aligned(0))

    @property
    def is_full(self) -> bool:
        """Tells whether there are too many tasks for a block, or too much memory."""
        return max(self.expected, len(self.turns)) > MOST_TASKS or self.bytes > MOST_BYTES

    # ---- parts

    def parts(self, bound: BoundParts, values: Values, frame: Frame, key: tuple[Hashable, ...]) -> None:
        """Adds the tasks of all parts of a schedule (a net divided into parts) to the block of tasks, and
        their results to `values`.

        bound: the schedule with its parameters. values: the arrays of the values so far, by node. frame: the
            numbers and places of the sequences. key: names the schedule, so that its arrays have names of
            their own.
        """
        writers = {"across": self.across, "loop": self.loop, "total": self.total}
        for place, (part, own) in enumerate(zip(bound.schedule.parts, bound.bound, strict=True)):
            if part.kind in ("across", "recurrence", "plain"):
                for number in part.reads:
                    if number >= 0 and number not in values:
                        values[number] = self.constant(bound, number)
            writer: Any = writers.get(part.kind, self.kernel)
            writer(bound, part, own, values, frame, (*key, place))

    def kernel(
        self, bound: BoundParts, part: Part, own: Runner, values: Values, frame: Frame, key: Hashable
    ) -> None:
        """Adds the tasks (calls of machine code) of a compiled part to the block of tasks: the work before
        its loop, the loop, and the work after it.

        bound: the schedule (a net divided into parts) with its parameters. part, own: the part, and its
            kernel. values: the arrays so far, by node, to which its results are added. frame: the numbers and
            places of the sequences. key: names the arrays of the part.
        """
        native, call = own.native, call_of(part, dict(values), frame)
        form = CallForm(native.kind, call)
        results = Results(
            [self.rows((key, "output", n), form.count, rows) for n, rows in enumerate(native.kind.outputs)],
            [self.rows((key, "final", n), form.batch, rows) for n, rows in enumerate(native.kind.rows)],
            [
                self.array((key, "total", n), shape, dtype)
                for n, (shape, dtype, _) in enumerate(native.kind.totals.array_specs)
            ],
        )
        for output in results.outputs if not form.whole else ():
            self.clear(output)
        arrays = form.arrays(call.sequences, call.initial, call.statics, results)
        if arrays.record is not None:
            POOL.give_back(arrays.record)
            arrays = arrays._replace(record=self.array((key, "record"), (form.record,), np.uint8))
        self.held += [call, form, arrays]
        self.pad(native, call, arrays)
        self.by_row(native, native.compiled.sequences, arrays)
        if SequenceLayout.of(call.positions).filled:
            self.run(native, call, arrays, key)
        if (idle := idle_memories(native, call.positions, arrays)) is not None:
            self.held.append(idle)
            self.turns.append(turn_of(idle, self.wave))
        self.finish(native, form, arrays)
        made = results.outputs if part.kind == "plain" else results.arrays
        values.update({n: array for n, array in zip(part.results, made, strict=True) if n >= 0})

    def run(self, native: Native, call: Call, arrays: CallArrays, key: Hashable) -> None:
        """Adds the task that runs the steps of a kernel (compiled part of a net), on one thread or several.
        The task gets copies of the kernel's argument words, with words of its own for its progress: the
        originals are in scratch memory that later tasks share, and change.

        call, arrays: the call, and all its arrays. key: names the kernel's scratch memory.
        """
        spaces, tasks = list[Any](), list[tuple[Any, int]]()
        prepared, sets = self.prepared(native, call, key)
        prepared.write((call,), (arrays,), (sets,))
        for space, (lanes, _) in zip(prepared.spaces[0], sets, strict=True):
            if len(self.lines) < LINES:
                self.lines = aligned(2**16)
            line, self.lines = self.lines[:LINES].view(np.int64), self.lines[LINES:]
            own = RunProgress(line[: LINE // 8], line[LINE // 8 :])
            words = space.words.copy()
            words[:, WORD["lanes"]] = lanes
            words[:, WORD["progress"]], words[:, WORD["status"]] = map(pointer, own)
            self.held += [words, line]
            spaces.append(own)
            tasks += [(native.compiled.run, pointer(row)) for row in words]
        if len(tasks) == 1:
            self.turns.append(Turn(*tasks[0], (), self.wave, spaces))
            return
        progress = spaces[0].progress if len(spaces) == 1 else None
        group = TaskGroup(WORKER_POOL, tasks, progress, max_threads=threads())
        self.turns.append(Turn(group.function, group.address, (), self.wave, spaces, group))

    def prepared(self, native: Native, call: Call, key: Hashable) -> tuple[PreparedChain, Sets]:
        """Returns the scratch memory of a kernel (compiled part of a net) for a call, and the sets of lanes
        in which its sequences run. There is memory for a power of two of lanes (slots that run sequences), so
        that steps with about as many rows share it.

        key: names the memory of the kernel, which later calls of this function find.
        """
        arranger = self.arrangers.setdefault(key, Arranger((native,), ((0,),)))
        laid = SequenceLayout.of(call.positions)
        (way,) = arranger.arranged((call,), (laid,)).ways
        sets = laid.sets(way.sets * way.parts, way.seconds, native.fewest_lanes(way.threads_per_step))
        lanes = tuple(power_of_two(2 * count - 1) for count, _ in sets)
        shape = Shape(((0,),), (lanes,), (way.threads_per_step,), (0,), (native.room(call),), False, (1,))
        prepared = self.scratch.get((key, shape))
        if prepared is None:
            prepared = self.scratch[key, shape] = PreparedChain((native,), shape)
            self.bytes += prepared.bytes
        return prepared, sets

    def by_row(self, native: Native, function: Any, arrays: CallArrays) -> None:
        """Adds the task that computes the values that each sequence has once, if there is one. function: its
        machine code. arrays: all arrays of the call.
        """
        if function is not None and arrays.batch:
            status = np.zeros(LINE // 8, np.int64)
            words = native.row_words(arrays, status)
            words[WORD["lanes"]] = arrays.batch
            self.held += [words, status]
            spaces: list[Any] = [RunProgress(np.zeros(LINE // 8, np.int64), status)]
            self.held += spaces
            self.turns.append(Turn(function, pointer(words), (), self.wave, spaces))

    def pad(self, native: Native, call: Call, arrays: CallArrays) -> None:
        """Adds tasks that copy arrays of inner sequences (those within a step) to arrays whose rows are
        padded to whole vectors, as the machine code reads them. native: the kernel (compiled part of a net).
        arrays: all arrays of its call.
        """
        first = {"inputs": 0, "statics": len(call.sequences) + len(call.initial) + len(arrays.final)}
        given = {"inputs": call.sequences, "statics": call.statics}
        for (kind, place), (type_, _) in native.kind.padded.items():
            source, padded = given[kind][place], arrays.in_order[first[kind] + place]
            if padded is not None and len(source):
                rows, size = np.arange(len(source)), type_.size * type_.itemsize
                self.move(source, padded, pieces_of(rows, rows, size, stride=padded.nbytes // len(source)))

    def finish(self, native: Native, form: CallForm, arrays: CallArrays) -> None:
        """Adds the tasks of the work after a kernel's loop, such as sums over steps. Work without machine
        code is added to a list, for NumPy to do after the run.

        native: the kernel (compiled part of a net). form: knows the work that remains after the loop. arrays:
            all arrays of the call.
        """
        finish = form.finish
        if finish is None:
            return
        for numbers, task in finish.tasks.items():
            self.task(task, *(arrays.nodes[n] for n in finish.arrays_of(numbers)))
        self.by_row(native, native.compiled.ended, arrays)
        if finish.functions is not None:
            self.task(finish.functions, *arrays.of_functions)
        if not finish.rest and not finish.copied:
            return

        def rest() -> None:
            """Computes, by NumPy, the totals that have no machine code, after the run of the block of tasks,
            and copies those that a call returns to their arrays. Totals are values over all rows.
            """
            values = {**finish.constants, **arrays.nodes}
            finish.run_rest(finish.rest, values)
            finish.copy(values, arrays.results.totals)

        self.after.append(rest)
        self.late += arrays.results.totals

    def task(self, task: ParallelCalls, *arrays: Array) -> None:
        """Adds a task on these arrays to the block: one call of machine code on one thread or several."""
        task.point(*map(pointer, arrays))
        self.held += [task, arrays]
        self.turns.append(turn_of(task, self.wave))

    def across(
        self, bound: BoundParts, part: Part, own: None, values: Values, frame: Frame, key: Hashable
    ) -> None:
        """Adds the task of an operation across extents, such as a sum over the steps of each sequence, to the
        block of tasks, and its result to `values`.

        bound: the schedule with its parameters. part: the part of it that is the operation; `own`, its
            compiled code, is None.
        values: the arrays so far, by node. frame: the numbers and places of the sequences. key: names the
        array of the result.
        """
        across, value = Across.of(bound.net, part), values[part.reads[0]]
        assert value is not None
        assert part.node is not None
        if across.operation in COPIED:
            indices = COPIED[across.operation](bound.net, part.node, frame.segments)
            values[part.results[0]] = self.taken(key, value, indices)
            return
        if max(map(len, (across.source.extent, across.result.extent))) == 1:
            read = made = Positions.end_to_end(np.arange(frame.segments.rows + 1))
        else:
            read, made = (frame.sequences(extent).positions for extent in across.extents)
        task = AcrossTask(across, read, made, self.processor)
        result = self.rows(key, task.count, across.result)
        self.task(task, value, result)
        values[part.results[0]] = result

    def total(
        self, bound: BoundParts, part: Part, own: None, values: Values, frame: Frame, key: Hashable
    ) -> None:
        """Adds the task of a total (a part of a net that combines all rows to one value, such as the gradient
        of a weight) to the block of tasks, and its result to `values`. A total without machine code is noted,
        for NumPy to compute after the run.

        bound: the schedule with its parameters. part: the part that is the total; `own`, its compiled code,
            is None.
        values: the arrays so far, by node. frame: the places of the sequences, not used. key: names the array
            of the result.
        """
        node, type_ = part.node, bound.net.type_of(part.results[0])
        assert node is not None
        types = [bound.net.type_of(number) for number in node.inputs]
        result = values[part.results[0]] = self.array(key, type_.shape, type_.dtype)
        operands = [values.get(number) for number in node.inputs]
        given = [array for array in operands if array is not None]
        if all(type_.extent != CONST for type_ in types) and is_task(node, types):
            self.task(total_task(node, types, np.arange(len(given[0])), self.processor), *given, result)
            return

        def rest() -> None:
            """Computes the total by NumPy, after the run of the block of tasks, into `result`."""
            pairs = zip(node.inputs, operands, strict=True)
            read: list[Any] = [bound.constants[n] if array is None else array for n, array in pairs]
            result[...] = total_of(node, read)

        self.after.append(rest)
        self.late.append(result)

    # ---- loops

    def loop(
        self,
        bound: BoundParts,
        part: Part,
        own: BoundParts,
        values: Values,
        frame: Frame,
        key: tuple[Hashable, ...],
    ) -> None:
        """Adds the tasks of a recurrence whose step is a schedule of several parts: for each step, copies of
        its rows, and the tasks of these parts. Stops early if there are too many tasks.

        bound: the schedule around the recurrence, with its parameters. part, own: the part of it that is the
        recurrence, and the schedule of a step.
        values: the arrays so far, by node, to which the results are added. frame: the numbers and places of
        the sequences. key: names the arrays of the recurrence.
        """
        assert part.node is not None
        recur, segments, body = part.node.recur, frame.segments, own.net
        deep = recur_extent([bound.net.type_of(part.reads[0])], part.node.attributes)
        by_kind = recur.operands_by_kind([values.get(number) for number in part.reads])
        outputs = [
            self.rows((key, "output", n), segments.count(type_.extent), type_)
            for n, type_ in enumerate(part.node.types[: len(recur.outputs)])
        ]
        state = list[Array]()
        for n, initial in enumerate(by_kind.memories):
            array = self.array((key, "memory", n), initial.shape, initial.dtype)
            self.copy(initial, array, initial.nbytes)
            state.append(array)
        types = [body.type_of(number) for number in body.inputs]
        step = LoopStep(own, recur, types, by_kind, outputs, state, segments.count(deep[:-1]))
        is_outermost = len(key) == 1
        first, longest = len(self.turns), int(np.diff(segments.into(deep)).max(initial=0))
        for entries in steps_of(recur.reverse, deep, segments):
            if self.is_full:
                break
            self.step(step, entries, segments, key)
            self.expected = max(self.expected, (len(self.turns) - first) * longest if step.is_new else 0)
            step.is_new = False
            if is_outermost:
                self.steps.append(len(entries.alive))
        made = [*outputs, *state]
        values.update({n: array for n, array in zip(part.results, made, strict=True) if n >= 0})

    def step(self, loop: "LoopStep", entries: StepEntries, segments: LevelSizes, key: Hashable) -> None:
        """Adds the tasks of one step of a recurrence whose step is a schedule of several parts.

        loop: the recurrence with its arrays and memories (recurrent states). entries: which sequences take
            the step, and which entries of arrays it reads. segments: the numbers of all rows and entries.
            key: names the arrays of the recurrence.
        """
        recur, body, alive = loop.recur, loop.bound.net, entries.alive
        types = recur.operands_by_kind(loop.types)
        inner: list[Any] = [
            self.taken((key, "in", n), array, entries.indices[len(type_.extent) - 1])
            for n, (array, type_) in enumerate(zip(loop.operands.sequences, types.sequences, strict=True))
        ]
        inner += [
            self.taken((key, "now", n), array, entry_indices(type_, segments, alive))
            for n, (array, type_) in enumerate(zip(loop.state, types.memories, strict=True))
        ]
        if loop.alive is None or len(loop.alive) != len(alive):
            loop.others = [
                array
                if type_.extent == CONST or loop.has_all(alive)
                else self.taken((key, "static", n), array, entry_indices(type_, segments, alive))
                for n, (array, type_) in enumerate(zip(loop.operands.others, types.others, strict=True))
            ]
            loop.alive = alive
        inner += loop.others
        values: Values = {
            number: array
            for number, array in zip(body.inputs, inner, strict=True)
            if body.type_of(number).extent != CONST
        }
        index = np.ascontiguousarray(entries.index)
        values |= {number: index for number, node in enumerate(body.nodes) if node.operation == "index"}
        frame = Frame(entries.sizes)
        self.held += [index, frame]
        self.parts(loop.bound, values, frame, (key, "body"))
        results = recur.results_by_kind([self.value(loop.bound, values, n) for n in body.results])
        outputs = [body.type_of(number) for number in recur.outputs]
        for output, type_, array in zip(loop.outputs, outputs, results.outputs, strict=True):
            self.put(array, output, entries.indices[len(type_.extent) - 1])
        for memory, type_, array in zip(loop.state, types.memories, results.memories, strict=True):
            self.put(array, memory, entry_indices(type_, segments, alive))

    def value(self, bound: BoundParts, values: Values, number: int) -> Array:
        """Returns the array of the value of a node, which may be a constant of the schedule."""
        array = values.get(number)
        return self.constant(bound, number) if array is None else array


@dataclass
class LoopStep:
    """A loop while its steps are written.

    bound: the schedule of a step. recur: the recurrence. types: the types of the step's inputs.
    operands: the arrays of the loop's operands, by kind. outputs, state: those of its results.
    rows: the number of all rows.
    is_new: whether no step is written yet.
    alive, others: the rows of the step before, and the arrays of its statics, which the same rows have in the
        next step too.
    """

    bound: BoundParts
    recur: Recur
    types: list[Type]
    operands: Any
    outputs: list[Array]
    state: list[Array]
    rows: int
    is_new: bool = True
    alive: Array | None = None
    others: list[Array] = field(default_factory=list[Array])

    def has_all(self, alive: Array) -> bool:
        """Tells whether these rows are all rows of the loop."""
        return len(alive) == self.rows
