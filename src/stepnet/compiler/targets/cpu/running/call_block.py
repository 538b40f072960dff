"""Call blocks: a prepared call as one block of 64-bit words, and one function of machine code that runs it.

    words      next | array objects x, h, y, final h
    copies     the address of x  ->  an argument word of kernel 1, and so on
    tasks      kernel 1, mean over the steps, kernel 2     run one after the other in the calling thread

Python writes the addresses of the array objects (their `id`) of a call and calls the function once, however
many tasks there are. Machine code reads the addresses of the elements from the objects, in a tenth of the
time. It is called again only after a pause, in which signals are handled.
"""

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.targets.cpu.machine.call_words import PROGRESS
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import data_offset, pointer, view
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.targets.cpu.running.prepared_tasks import OUTSIDE, Reach
from stepnet.compiler.targets.cpu.threads.workers import ParallelCalls
from stepnet.compiler.targets.watching import watching
from stepnet.errors import InputError

Array = np.ndarray
HEAD = ("copies", "copy_count", "tasks", "task_count", "array_type", "data_offset", "next")
"""The first words of a block, which the addresses of the call's array objects follow.

copies, copy_count: the pointer to the table of copies, and its number of entries.
tasks, task_count: the pointer to the table of tasks, and its number of entries.
array_type: the address of the type `numpy.ndarray`, which all objects have.
data_offset: the offset in an array object of the pointer to its elements (`data_offset`).
next: the index of the task to run; FRESH for a new call, which first makes the copies.
"""
COPY = ("source", "word")
"""The words of a copy: the index of an array object in the block, and the pointer to the word that receives
the address of its elements.
"""
TASK = ("function", "task", "progress", "status")
"""The words of a task: the addresses of its function and its argument, and the pointers to the progress and
the status of its workspace, which a new call resets.
"""
FRESH = -1
DONE, PAUSED, INDEX_OUTSIDE, NO_ARRAY = range(4)
"""The results of the function: the call is done; it is to be called again; an index is outside its table; an
object is no array, and nothing was run.
"""
NEXT = HEAD.index("next")


UNUSED = np.zeros(len(PROGRESS) + 1, np.int64)
"""The words of the progress and the status of all tasks that do not use them."""


class Turn(NamedTuple):
    """A task of a call, which runs in one thread: a kernel, or what runs between or after kernels, such as a
    reduction over steps or a contract.

    function: its machine code.
    task: the address of its argument words.
    progress, status: the addresses of those of its workspace.
    sources: for each argument word to set in a call, its index, and the index of its value among the call's.
    wave: the number of the wave of kernels that it belongs to.
    """

    function: NativeFunction
    task: int
    progress: int
    status: int
    sources: Sequence[tuple[int, int]]
    wave: int


def turn_of(task: ParallelCalls, wave: int) -> Turn:
    """Makes the entry of a call block for a task that one call of machine code does and that reports no
    progress, such as a reduction over steps.

    wave: the position of the wave of kernels that the task belongs to, for progress reports.
    """
    unused = pointer(UNUSED), pointer(UNUSED) + 8 * len(PROGRESS)
    return Turn(task.function, task.tasks[0], *unused, task.sources, wave)


class CallBlock:
    """A prepared call, which runs again on other arrays, and whose tasks run one after the other in the
    calling thread. One thread at a time may run it.
    """

    def __init__(self, turns: Sequence[Turn], count: int, reach: Reach, processor: Processor) -> None:
        """Lays out the call block (words by which machine code runs the call), and its tables of copies and
        tasks.

        turns: the tasks in the order in which they run. count: the number of arrays of a call.
        reach: reads the progress of the call.
        processor: the processor that the code is for.
        """
        self.turns, self.reach = turns, reach
        copies = [(source, turn.task + 8 * word) for turn in turns for word, source in turn.sources]
        tasks = [(turn.function.address, turn.task, turn.progress, turn.status) for turn in turns]
        self.copies = np.array(copies, np.int64).reshape(-1, len(COPY))
        self.tasks = np.array(tasks, np.int64)
        words = np.zeros(len(HEAD) + count, np.int64)
        tables = pointer(self.copies), len(copies), pointer(self.tasks), len(tasks)
        words[:NEXT] = *tables, id(np.ndarray), data_offset()
        self.address, self.words = pointer(words), view(words)
        self.pack = Struct(f"{1 + count}q").pack_into
        self.function = run_block(processor)

    def run(self, arrays: Sequence[Any]) -> bool:
        """Runs the call on these arrays, and reports its progress at every pause to the user's function, if
        there is one. Returns False, and runs nothing, if one is not exactly of the type `numpy.ndarray`.

        Raises `InputError` if an index is outside its table.
        """
        self.pack(self.words, 8 * NEXT, FRESH, *map(id, arrays))
        self.reach.begun = time.perf_counter()
        result = self.function.call(self.address)
        if result == DONE:
            return True
        if result == NO_ARRAY:
            return False
        watch = watching()
        while result == PAUSED:
            if watch is not None:
                watch(self.reach.progress(self.turns[self.words[NEXT]].wave, False))
            result = self.function.call(self.address)
        if result == INDEX_OUTSIDE:
            raise InputError(OUTSIDE)
        if watch is not None:
            watch(self.reach.progress(len(self.reach.waves) - 1, True))
        return True


@cache
def run_block(processor: Processor) -> NativeFunction:
    """Returns the machine code that runs a call block (the tasks and array addresses of a prepared call), and
    returns DONE, PAUSED, INDEX_OUTSIDE or NO_ARRAY.
    """
    return machine_code("running.call_block", processor).function("run_block", ctypes.c_int64)
