"""Worker threads. They run machine code without the interpreter's lock, and so in parallel."""

import _thread
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np

from stepnet.compiler.native.system import BYTES as SEMAPHORE
from stepnet.compiler.native.system import clock, semaphores
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
from stepnet.compiler.targets.cpu.machine.memory import aligned, view
from stepnet.compiler.targets.cpu.threads.handover import (
    ASLEEP,
    BEGIN,
    BYTES,
    END,
    GROUP_FIELDS,
    HANDLE,
    NEXT,
    SEMAPHORES,
    TASK_FIELDS,
    handover_functions,
)
from stepnet.compiler.targets.limits import limit, processors
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
PATIENT, WAKES, MOST, ASKED, CAME, WORKED, WAITED = map(
    GROUP_FIELDS.index, ("patience", "wake", "most", "asked", "came", "worked", "waited")
)
# The polls of a shared task before its worker is given up: in a call (a sleeping thread needs 50 microseconds
# to wake, and several times that if its processor sleeps), and in a single step.
PATIENCE, STEP_PATIENCE = 20000, 40
# Seconds for which late threads are not used: the first time, and at most.
LEFT_OUT, LONGEST_LEFT_OUT = 0.01, 0.32
# A thread with an independent task is late if the first thread waits for it longer than LATE_SECONDS, and
# longer than LATE_TIMES the time of its own tasks: tasks may differ in length. Both times are those of a
# whole run: in the last part of a run that pauses, the first thread may have little left to do.
LATE_SECONDS, LATE_TIMES = 1e-3, 3
# REFUSED: the seconds without new threads after the system refused one. BEGINS: the longest wait for a new
# thread to begin.
REFUSED, BEGINS = 1.0, 1.0


@cache
def current_processor() -> Callable[[], int] | None:
    """Returns the function that gives the number of the caller's processor; None outside of Linux."""
    if sys.platform != "linux":
        return None
    return ctypes.CDLL(None)["sched_getcpu"]


class Worker:
    """Thread that waits for tasks in machine code. Once it runs, it adds itself to its pool of workers."""

    def __init__(self) -> None:
        """Allocates the worker's memory, with two semaphores: the worker sleeps on one for a task, the
        leading thread on the other for its completion. The thread is started later.
        """
        self._signals = handover_functions()
        self._memory = aligned(BYTES)
        self._words = self._memory.view(np.int64)
        self._state = view(self._words)
        self.address: int = self._memory.ctypes.data
        for number, mailbox in enumerate((BEGIN, END)):
            handle = semaphores().make(self.address + SEMAPHORES + number * SEMAPHORE)
            self._words[(mailbox + HANDLE) // 8] = handle
        # Released once the thread has joined. A plain lock: an exception in `Event.wait` would leave the
        # event broken.
        self.has_joined = _thread.allocate_lock()
        self.has_joined.acquire()
        self._apart_from: int | None = None

    def exclude_current_processor(self) -> None:
        """Keeps the sleeping thread from waking on the caller's processor: sets its affinity to all others,
        unless an earlier call has. Linux wakes a thread on the processor that it last ran on, and
        with few processors does not look for an idle one. Then the leading thread and its worker would take
        turns on one processor.
        """
        if (get := current_processor()) is None or (current := get()) == self._apart_from:
            return
        self.keep_on(os.sched_getaffinity(0) - {current})
        self._apart_from = current

    def keep_on(self, processors: set[int]) -> None:
        """Limits the thread to these processors, if there are any and the system does not refuse."""
        self._apart_from = None
        if processors:
            with suppress(OSError):  # as in a container, or where the thread has ended
                os.sched_setaffinity(self.thread, processors)

    def start(self, pool: "WorkerPool") -> None:
        """Starts the worker's thread, which joins the workers of `pool`; may raise `RuntimeError`."""
        # `threading.Thread.start` waits until the thread runs: for ever, if a signal handler raises or forks
        # meanwhile.
        _thread.start_new_thread(self._work, (pool,))

    def _work(self, pool: "WorkerPool") -> None:
        """Runs in the new thread: joins the pool of workers, and then runs tasks for ever, without Python."""
        # `self` keeps the worker's memory alive as long as the thread polls it.
        self.thread = threading.get_native_id()
        pool.join(self)
        self.has_joined.release()
        self._signals.serve.call(self.address)

    def set_next(self, next_address: int) -> None:
        """Sets the address of the next worker in the pool's linked list, which machine code follows."""
        self._words[NEXT // 8] = next_address

    @property
    def is_asleep(self) -> bool:
        """Tells whether the worker's thread sleeps, so that it would begin a task late."""
        return self._state[BEGIN // 8] == ASLEEP

    def wake(self) -> None:
        """Wakes the worker, if possible on another processor than the caller's; it then spins for a while."""
        self.exclude_current_processor()
        self._signals.wake.call(self.address + BEGIN)


Task = tuple[NativeFunction, int]
"""A function of machine code and its argument, a pointer."""


class TaskGroup:
    """Tasks of machine code that threads run at the same time; they may be run repeatedly.

    function, address: the machine code that runs all tasks, and its argument.
    """

    def __init__(
        self,
        pool: "WorkerPool",
        tasks: Sequence[Task],
        progress: Array | None = None,
        wake: bool = True,
        max_threads: int | None = None,
    ) -> None:
        """Writes tasks (functions of machine code and their arguments) into memory that machine code reads.

        pool: the workers.
        tasks: a function and its argument per task.
        progress: the words that shared tasks have in common (see `driver`); None for independent tasks.
        wake: whether sleeping threads are woken.
        max_threads: the largest number of threads; None for one per task.
        """
        self.pool, self.tasks, self.progress = pool, tasks, progress
        self.count = len(tasks)
        self.max_threads = self.count if max_threads is None else min(max_threads, self.count)
        self.fields = np.zeros(len(GROUP_FIELDS) + len(TASK_FIELDS) * self.count, np.int64)
        by_task = self.fields[len(GROUP_FIELDS) :].reshape(self.count, len(TASK_FIELDS))
        by_task[:, :2] = [(function.address, pointer) for function, pointer in tasks]
        gate_address = 0 if progress is None else progress.ctypes.data
        header = pool.list_head.ctypes.data, gate_address, 0, 0, self.count, self.max_threads
        self.fields[: len(header)] = header
        self.address: int = self.fields.ctypes.data
        # Reading an element of a NumPy array takes twice as long, and a step takes only some microseconds.
        self._view = view(self.fields)
        self._progress_view = None if progress is None else view(progress)
        self.function = handover_functions().lead
        self._late = int(LATE_SECONDS * clock().per_second)
        self._worked = self._waited = 0
        self.set_wake(wake)

    def set_wake(self, wake: bool) -> None:
        """Sets whether later runs wake threads that sleep, and wait longer for them."""
        self.wake = wake
        self._view[PATIENT], self._view[WAKES] = (PATIENCE if wake else STEP_PATIENCE), int(wake)

    def begin(self) -> None:
        """Begins a run of the tasks: sets the first thread's times to 0, and limits the threads."""
        self._worked = self._waited = 0
        self.limit()

    def limit(self) -> None:
        """Sets the number of threads of the next run: fewer soon after some were late."""
        lateness, most = self.pool.lateness, self.max_threads
        self._view[MOST] = lateness.thread_limit(most) if lateness.was_late else most

    def lead(self) -> bool:
        """Runs every task on the available threads; returns whether tasks have paused and must go on. Notes
        threads that were late, so that later runs use fewer.
        """
        self.limit()
        is_paused = bool(self.function.call(self.address))
        self.note()
        return is_paused

    def note(self) -> None:
        """Records which threads were late in the latest run of the machine code (began late, or let others
        wait), so that later runs use fewer threads.
        """
        lateness, fields = self.pool.lateness, self._view
        if self._progress_view is None:
            self._worked += fields[WORKED]
            self._waited += fields[WAITED]
            if self._waited > max(self._late, LATE_TIMES * self._worked):
                lateness.limit_threads(1)
            return
        in_time, thread_count = self._progress_view[0], fields[CAME]
        if in_time < thread_count or (self.wake and thread_count < fields[ASKED]):
            lateness.limit_threads(min(in_time, thread_count))

    @property
    def thread_count(self) -> int:
        """The number of threads that ran the shared tasks in the latest run."""
        return self._view[CAME]


class Lateness:
    """Limit on the threads of calls after some were late, because another process uses a processor.

    Late threads are not used for a while, and for twice as long if they are late again soon afterwards.
    ever: whether any thread of this process was late.
    """

    ever = False

    def __init__(self) -> None:
        """Begins without a limit on threads, as none was late."""
        self._until = self._seconds = 0.0
        self._limit = 1
        self.was_late = False  # whether any thread was ever late

    def thread_limit(self, count: int) -> int:
        """Returns the number of threads, at most `count`, for a call: fewer soon after some were late."""
        return count if time.monotonic() >= self._until else min(count, self._limit)

    def limit_threads(self, limit: int) -> None:
        """Limits calls to `limit` threads for a while, as others were late; twice as long if just limited
        before.
        """
        self.was_late = Lateness.ever = True
        now = time.monotonic()
        is_repeated = now < self._until + self._seconds
        self._seconds = min(2 * self._seconds, LONGEST_LEFT_OUT) if is_repeated else LEFT_OUT
        self._until, self._limit = now + self._seconds, limit


class WorkerPool:
    """Pool of worker threads. Any thread may use it; machine code claims free workers.

    The workers are a linked list in memory: `list_head` has the address of the first worker and the number of
    leading threads, and each worker has the address of the next.
    """

    def __init__(self) -> None:
        """Makes an empty pool of worker threads."""
        self.list_head = np.zeros(2, np.int64)
        self.workers: list[Worker] = []
        self.forget()

    def forget(self) -> None:
        """Resets the pool to no workers, as needed after a fork: threads do not survive it.

        Existing task groups refer to `list_head`, which is cleared in place, so they remain valid.
        """
        self.list_head[:] = 0
        self.workers.clear()
        self._joining = threading.Lock()
        self._starting: list[float] = []
        self._refused = -REFUSED
        self.lateness = Lateness()

    def join(self, worker: Worker) -> None:
        """Adds a worker at the front of the list of the pool's workers, from which tasks take them. It is
        called in the worker's own thread.
        """
        with self._joining:
            del self._starting[:1]
            worker.set_next(int(self.list_head[0]))
            self.workers.append(worker)
            self.list_head[0] = worker.address

    def run(self, task_group: TaskGroup, on_pause: Callable[[], None] = lambda: None) -> None:
        """Runs a group of tasks to their end on this thread and workers, which are started or woken if
        needed. on_pause: is called whenever all tasks pause; it may raise.
        """
        task_group.begin()
        self.make_ready(task_group.max_threads - 1)
        while task_group.lead():
            on_pause()

    @contextmanager
    def apart(self) -> Generator[None]:
        """Context for measurements, in which the calling thread stays on its processor, and the workers on
        others: if the system moved it to that of a worker, they would take turns. Does nothing where the
        system cannot keep them there.
        """
        # Both are read once per process: before the affinity of this thread changes.
        limit()
        processors()
        current, count = current_processor(), threads()
        allowed = set[int]() if current is None else os.sched_getaffinity(0)
        if current is None or min(count, len(allowed)) < 2:
            yield
            return
        self.make_ready(count - 1)
        own = {current()}
        try:
            self.keep_on(own, allowed - own)
            yield
        finally:
            self.keep_on(allowed, allowed)

    def keep_on(self, own: set[int], others: set[int]) -> None:
        """Limits the calling thread to processors `own`, and the workers to `others`, if possible."""
        with suppress(OSError):  # as in a container
            os.sched_setaffinity(0, own)
        for worker in self.workers:
            worker.keep_on(others)

    def timed(self, call: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> float | None:
        """Times a call, with all its threads, also if some were late before. Returns its seconds; None if a
        thread was late again, so that the call had fewer. now: the clock.
        """
        lateness = self.lateness = Lateness()
        begun = now()
        call()
        seconds = now() - begun
        return None if lateness.was_late else seconds

    def make_ready(self, count: int) -> None:
        """Starts threads until there are `count` workers (threads that wait for tasks), and lets those that
        sleep wake on other processors than the caller's.
        """
        if len(self.workers) < count:
            self.grow(count)
        for worker in self.workers[-count:]:
            if worker.is_asleep:
                worker.exclude_current_processor()

    def grow(self, count: int) -> None:
        """Starts threads until there are `count` workers. If the system refuses, calls run with fewer, and
        no other is started for a while.
        """
        now = time.monotonic()
        if now - self._refused < REFUSED:
            return
        # Workers that other threads have started and that have not joined yet.
        self._starting = [started for started in self._starting if now - started < BEGINS]
        for _ in range(count - len(self.workers) - len(self._starting)):
            self._starting.append(now)
            worker = Worker()
            try:
                worker.start(self)
            except RuntimeError:
                self._refused = now
                return
            worker.has_joined.acquire(timeout=BEGINS)

    def wake(self, count: int) -> None:
        """Wakes `count` workers, as calls are expected soon; starts those that are missing."""
        if len(self.workers) < count:
            self.grow(count)
        for worker in self.workers[-count:]:
            worker.wake()


WORKER_POOL = WorkerPool()


class ParallelCalls:
    """Calls of a machine code function with different arguments, divided among threads; may be run
    repeatedly.

    arguments: rows of arguments of 64 bits, which may be changed between runs. Where some are arrays, their
        addresses are together in each row, those that change first.
    first_array: the index of the first of them in a row.
    sources: the arguments that change in a prepared call, by their index in the rows laid end to end, and the
        index of the address of each among those of the call.
    arrayed: the number of rows of each task that have arrays of their own.
    """

    first_array, arrayed = 0, 1
    sources: Sequence[tuple[int, int]] = ()

    def __init__(
        self, function: NativeFunction, arguments: Array, first_rows: Iterable[int] | None = None
    ) -> None:
        """Makes the tasks: one for each row of `arguments`, or one for each index in `first_rows`, of several
        rows from that one on.
        function: the machine code that each calls with the pointer to its first row.
        """
        self.function, self.arguments = function, arguments
        rows = range(len(arguments)) if first_rows is None else first_rows
        self.tasks = [arguments[row:].ctypes.data for row in rows]
        pairs = [(function, task) for task in self.tasks]
        self.task_group = TaskGroup(WORKER_POOL, pairs) if len(pairs) > 1 else None

    @property
    def is_one_run(self) -> bool:
        """Tells whether one run of the machine code, on one thread or several, does all the work."""
        return True

    def point(self, *addresses: int) -> None:
        """Writes the addresses of arrays to the arguments of each task: those of its first row, and so on."""
        rows, first, count = self.arrayed, self.first_array, len(addresses) // self.arrayed
        by_task = self.arguments.reshape(-1, rows, self.arguments.shape[1])
        by_task[:, :, first : first + count] = np.reshape(addresses, (rows, count))

    def change(
        self, keys: Sequence[Hashable], fixed: Mapping[Hashable, int], order: Mapping[Hashable, int]
    ) -> None:
        """Prepares these calls to be run again and again on other arrays: writes the addresses that stay, and
        stores in `sources` which arguments change.

        keys: the keys of the arrays, in the order of the arguments.
        fixed: the addresses of the arrays that all runs share, by key.
        order: for each array that changes from run to run, the index of its address among those of a run.
        """
        self.point(*(fixed.get(key, 0) for key in keys))
        count, width = len(keys) // self.arrayed, self.arguments.shape[1]
        words = [place // count * width + place % count for place in range(len(keys))]
        changing = [(word, order[key]) for word, key in zip(words, keys, strict=True) if key in order]
        begins = range(self.first_array, self.arguments.size, width * self.arrayed)
        self.sources = [(begin + word, source) for begin in begins for word, source in changing]

    def __call__(self) -> None:
        """Calls the function for each task, on several threads if there are several tasks."""
        if self.task_group is None:
            self.function.call(self.tasks[0])
        else:
            WORKER_POOL.run(self.task_group)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER_POOL.forget)
