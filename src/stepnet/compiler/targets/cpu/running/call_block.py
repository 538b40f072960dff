"""Call blocks: a prepared call as one block of 64-bit words, and one function of machine code that runs it.

    list       array objects x, h, y, final h
    copies     the address of x  ->  an argument word of kernel 1, and so on
    tasks      kernel 1, mean over the steps, kernels 2 and 3 on two threads     run one after the other

Python calls the function once with the list of the arrays of a call, however many tasks there are: as a
built-in function, in half the time of a call by ctypes. Machine code reads the array objects from the list,
and the addresses of the elements from the objects, in a tenth of the time. It is called again only after a
pause, in which signals are handled. A task that several threads run is their handover
(`threads/handover.py`): the calling thread gives tasks to workers, and waits for them.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.watching import watching
from stepnet.compiler.net.meanings import OUTSIDE
from stepnet.compiler.targets.base import AtTensors
from stepnet.compiler.targets.cpu.machine.machine_code import BuiltIn, NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import data_offset, items_offset, pointer, view
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.new_arrays import NOTHING_NEW, NewTable
from stepnet.compiler.targets.cpu.running.prepared_tasks import Reach
from stepnet.compiler.targets.cpu.running.tensors import TensorReader, reader_of
from stepnet.compiler.targets.cpu.running.workspace import Workspace
from stepnet.compiler.targets.cpu.threads.workers import (
    LATE_SECONDS,
    WORKER_POOL,
    Lateness,
    ParallelCalls,
    TaskGroup,
)
from stepnet.errors import IndexOutsideError

Array = np.ndarray
HEAD = (
    *("copies", "copy_count", "tasks", "task_count", "spaces", "space_count"),
    *("array_type", "data_offset", "items_offset", "next", "list"),
)
"""The first words of a block. In a library the addresses of a call's arrays follow them, else `ALLOCATED`.

copies, copy_count: the pointer to the table of copies, and its number of entries.
tasks, task_count: the pointer to the table of tasks, and its number of entries.
spaces, space_count: the pointer to the table of workspaces, and its number of entries.
array_type: the address of the type `numpy.ndarray`, which all objects have.
data_offset: the offset in an array object of the pointer to its elements (`data_offset`).
items_offset: the offset in a list of the pointer to its items (`items_offset`).
next: the index of the task to run; FRESH for a new call, which first makes the copies.
list: the address of the list of the call's array objects (its `id`).
"""
ALLOCATED = ("new", "new_count", "given")
"""The words of the arrays that machine code allocates: the pointer to their table (`NEW`), their number, and
that of the objects in a list of arrays behind which it adds them. It adds none to a longer list.
"""
COPY = ("source", "word")
"""The words of a copy: the index of an array object in the list, and the pointer to the word that receives
the address of its elements.
"""
TASK = ("function", "task")
"""The words of a task: the addresses of its function and of its argument."""
SPACE = ("progress", "status")
"""The words of a workspace: the pointers to its progress and its status, which a new call resets."""
FRESH = -1
DONE, PAUSED, INDEX_OUTSIDE, NO_ARRAY, FAILED = range(5)
"""The results of the function: the call is done; it is to be called again; an index is outside its table; an
object is no array, or a new array too large, and nothing was run; Python has raised an exception.
"""
NEXT, LIST, TYPE = HEAD.index("next"), HEAD.index("list"), HEAD.index("array_type")


class Turn(NamedTuple):
    """A task of a call: a wave of kernels, or what runs between or after kernels, such as a reduction over
    steps or a contract.

    function: its machine code; that of the handover (`TaskGroup.function`) if several threads run it.
    task: the address of its argument.
    copies: for each argument word to set in a call, the index of its value among the call's, and the address
        of the word.
    wave: the number of the wave of kernels that it belongs to.
    spaces: the workspaces of its kernels.
    group: the tasks of its threads; None for one thread.
    """

    function: NativeFunction
    task: int
    copies: Sequence[tuple[int, int]]
    wave: int
    spaces: Sequence[Workspace] = ()
    group: TaskGroup | None = None


def turn_of(task: ParallelCalls, wave: int) -> Turn:
    """Makes the entry of a call block (the words that describe a prepared call) for a task (on one thread, or
    on several) that one call of machine code does and that reports no progress, such as a reduction over
    steps.

    wave: the position of the wave (compiled parts that run at the same time) that the task belongs to, for
        progress reports.
    """
    begin, group = pointer(task.arguments), task.task_group
    copies = [(source, begin + 8 * word) for word, source in task.sources]
    run = (task.function, task.tasks[0]) if group is None else (group.function, group.address)
    return Turn(*run, copies, wave, group=group)


class CallBlock:
    """A prepared call, which runs again on other arrays, and whose tasks run one after the other in the
    calling thread. One thread at a time may run it.
    """

    def __init__(
        self, turns: Sequence[Turn], reach: Reach, processor: Processor, new: NewTable = NOTHING_NEW
    ) -> None:
        """Lays out the call block (words by which machine code runs the call), and its tables: of addresses
        to copy, of tasks, and of workspaces (scratch memory).

        turns: the tasks in the order in which they run.
        reach: reads, during pauses, how far the call has come.
        processor: the processor that the code is for.
        new: the arrays that machine code allocates.
        """
        self.turns, self.reach, self.processor = turns, reach, processor
        spaces = [space for turn in turns for space in turn.spaces]
        self.tables = [
            np.array([copy for turn in turns for copy in turn.copies], np.int64).reshape(-1, len(COPY)),
            np.array([(turn.function.address, turn.task) for turn in turns], np.int64),
            np.array([(pointer(space.progress), pointer(space.status)) for space in spaces], np.int64),
        ]
        tables = [number for table in self.tables for number in (pointer(table), len(table))]
        self.new, allocated = new, (pointer(new.words), len(new.words), new.given)
        head = *tables, id(np.ndarray), data_offset(), items_offset(), FRESH, 0
        words = np.array([*head, *allocated], np.int64)
        self.address, self.words = pointer(words), view(words)
        self.function, self.start = run_block(processor), run_list(processor).bound(self.address)

    def run(self, arrays: list[Any]) -> bool:
        """Runs the call on these arrays, to which it adds the new ones, and reports its progress at every
        pause to the user's function, if there is one. Returns False, and runs nothing, if one is not exactly
        of the type `numpy.ndarray`, or a new one is too large.

        Raises `IndexOutsideError` if an index is outside its table.
        """
        self.reach.begun = perf_counter()
        result = self.start(arrays)
        return result == DONE or self.go_on(result)

    def at(
        self, places: AtTensors, values: "Sequence[int | Array | None]", extra: int, first: Sequence[Turn]
    ) -> "TensorBlock":
        """Returns the call on the memory of tensors, as `run` does it on arrays.

        places: the tensors of a call, and the values in them.
        values: for each array of the list, and for each address that only `first` reads, the number of the
            value among those of the tensors and `extra` others, or an array for all calls.
        first: tasks that run ahead of the others.

        In place of array objects machine code reads records of a type, which is 0, and an address.
        """
        count = len(places.tensors.places) + extra
        fixed = [value for value in values if not isinstance(value, int)]
        records = np.zeros((count + len(fixed), 2), np.int64)
        records[count:, 1] = [*map(pointer, fixed)]
        own = iter(range(count, len(records)))
        order = [value if isinstance(value, int) else next(own) for value in values]
        items = pointer(records) + records[0].nbytes * np.array(order, np.int64)
        listed = np.array([pointer(items)])
        block = block_of([*first, *self.turns], self.reach, self.processor)
        block.words[TYPE], block.words[TYPE + 1], block.words[TYPE + 2] = 0, records.itemsize, 0
        begins = block.address, block.function.address, pointer(listed)
        reader = reader_of(places.tensors, records, begins, self.processor)
        block.start = reader.run
        block.tables += [items, listed, *fixed, *reader.held]
        return TensorBlock(block, reader, records, len(places.tensors.places))

    def go_on(self, result: int) -> bool:
        """Runs the rest of a call after a pause, and reports its progress. Returns False if nothing was run;
        raises `IndexOutsideError` if an index is outside its table. result: that of the machine code so far.
        """
        if result == NO_ARRAY:
            return False
        watch = watching()
        while result == PAUSED:
            if watch is not None:
                watch(self.reach.progress(self.turns[self.words[NEXT]].wave, False))
            result = self.resume()
        if result == INDEX_OUTSIDE:
            raise IndexOutsideError(OUTSIDE)
        if watch is not None:
            watch(self.reach.progress(len(self.reach.waves) - 1, True))
        return True

    def resume(self) -> int:
        """Calls the machine code again after a pause; returns its result."""
        return self.function.call(self.address)


class ThreadedBlock(CallBlock):
    """A prepared call of which several threads run some tasks. Workers are ready before the first one."""

    def __init__(
        self, turns: Sequence[Turn], reach: Reach, processor: Processor, new: NewTable = NOTHING_NEW
    ) -> None:
        """Lays out the call block (words by which machine code runs the call), and finds the tasks that
        several threads run. The arguments are as of `CallBlock`.
        """
        super().__init__(turns, reach, processor, new)
        self.groups = [turn.group for turn in turns if turn.group is not None]
        self.workers = max(group.max_threads for group in self.groups) - 1
        self.shares = any(group.progress is not None for group in self.groups)

    def run(self, arrays: list[Any]) -> bool:
        """Runs the call on these arrays, as that of one thread, with fewer threads soon after some were late;
        afterwards it notes threads that were late. Returns False, and runs nothing, if an array is not
        exactly of the type `numpy.ndarray`.
        """
        self.begin()
        return super().run(arrays) and self.has_noted()

    def begin(self) -> None:
        """Readies the workers for a call, and limits the threads of its tasks if any were ever late."""
        WORKER_POOL.make_ready(self.workers)
        if Lateness.ever:
            for group in self.groups:
                group.begin()

    def has_noted(self) -> bool:
        """Notes threads that were late, so that later calls use fewer threads; returns True. In a short call
        no thread that had tasks of its own can have been.
        """
        if self.shares or perf_counter() - self.reach.begun > LATE_SECONDS:
            for group in self.groups:
                group.note()
                group.begin()
        return True

    def resume(self) -> int:
        """Lets all threads go on with the task at which the call has paused; returns the result of the
        machine code. If several threads run the task, it first notes those that were late, and lets fewer
        threads go on if some were.
        """
        turn = self.turns[self.words[NEXT]]
        for space in turn.spaces:
            space.go_on()
        if turn.group is not None:
            turn.group.note()
            turn.group.limit()
        return super().resume()


class TensorBlock(NamedTuple):
    """A prepared call on the memory of tensors.

    block: the call. reader: reads the tensors. records: the records of all values. own: the number of the
    values that lie in tensors; others follow them.
    """

    block: CallBlock
    reader: TensorReader
    records: Array
    own: int

    def run(self, tensors: list[Any], others: Sequence[Array]) -> bool:
        """Runs the call on these tensors, and on arrays, `others`, for the values that do not lie in them.
        Returns False, and runs nothing, if a tensor lends no memory.
        """
        self.records[self.own : self.own + len(others), 1] = [*map(pointer, others)]
        return self.block.run(tensors)

    def addresses(self, tensors: list[Any], places: Sequence[int]) -> list[int] | None:
        """Returns the addresses of some of the values in these tensors; None if a tensor lends no memory."""
        return self.records[places, 1].tolist() if self.reader.read(tensors) == DONE else None


def block_of(
    turns: Sequence[Turn], reach: Reach, processor: Processor, new: NewTable = NOTHING_NEW
) -> CallBlock:
    """Makes the block of a prepared call, of one thread or several; the arguments are as of `CallBlock`."""
    kind = CallBlock if all(turn.group is None for turn in turns) else ThreadedBlock
    return kind(turns, reach, processor, new)


@cache
def run_block(processor: Processor) -> NativeFunction:
    """Returns the machine code that runs a call block (the tasks and array addresses of a prepared call), and
    returns `DONE`, `PAUSED`, `INDEX_OUTSIDE` (an index is outside its table) or `NO_ARRAY` (an object is no
    array).
    """
    return machine_code("running.call_block", processor).function("run_block", ctypes.c_int64)


@cache
def run_list(processor: Processor) -> BuiltIn:
    """Returns the function of Python, to be bound to the address of a call block, that runs the block (the
    tasks of a prepared call) on a list of arrays; its results are those of `run_block`.
    """
    return machine_code("running.call_block", processor).built_in("run_list")
