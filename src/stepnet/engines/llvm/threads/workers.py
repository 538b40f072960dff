"""Threads that wait for work: the machine code runs without the interpreter's lock, so they run at once."""

import _thread
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

import numpy as np

from stepnet.engines.llvm.machine.build import NativeFunction
from stepnet.engines.llvm.machine.memory import aligned, view
from stepnet.engines.llvm.machine.system import BYTES as SEMAPHORE
from stepnet.engines.llvm.machine.system import clock, semaphores
from stepnet.engines.llvm.threads.handover import (
    ASLEEP,
    BEGIN,
    BYTES,
    END,
    HANDLE,
    NEXT,
    ORDERS,
    SEMAPHORES,
    TASK_WORDS,
    signals,
)

Array = np.ndarray
MOST, ASKED, CAME, WORKED, WAITED = map(ORDERS.index, ("most", "asked", "came", "worked", "waited"))
# How often a shared task is looked at before its thread is left out: of a call (a thread that sleeps needs
# 50 microseconds to come, and several times that where processors sleep too), and of a single step.
PATIENCE, STEP_PATIENCE = 20000, 40
# Seconds for which threads that were late are left out, the first time and at most.
LEFT_OUT, LONGEST_LEFT_OUT = 0.01, 0.32
# A thread with tasks of its own is late if the first one waits for it longer than so many seconds, and so
# many times as long as it worked: tasks may differ, and then it would do the others no sooner. Both are
# counted for all parts of a run that pauses: in the last part the first thread may have little left to do.
LATE_SECONDS, LATE_TIMES = 1e-3, 3
# Seconds until another thread is asked for after the system refused one, and to wait for one to begin.
REFUSED, BEGINS = 1.0, 1.0


@cache
def current_processor() -> Callable[[], int] | None:
    """What says which processor the caller runs on; None where the system is another than Linux."""
    if sys.platform != "linux":
        return None
    return ctypes.CDLL(None)["sched_getcpu"]


def keep_away(thread: int) -> None:
    """Keeps a thread that is about to wake away from the processor that the caller runs on.

    Linux wakes it on the one that it ran on before, and where there are few does not look for an idle one: so
    the thread that hands out work, and cannot wait, and the one that is to help it would take turns.
    """
    current = current_processor()
    others = set[int]() if current is None else os.sched_getaffinity(0) - {current()}
    if others:
        with suppress(OSError):  # a hint, which a system may forbid
            os.sched_setaffinity(thread, others)


class Worker:
    """One thread that waits in machine code for work; it joins its crew itself, once it runs."""

    def __init__(self) -> None:
        self._signals = signals()
        self._memory = aligned(BYTES)
        self._words = self._memory.view(np.int64)
        self.address: int = self._memory.ctypes.data
        for number, place in enumerate((BEGIN, END)):
            handle = semaphores().make(self.address + SEMAPHORES + number * SEMAPHORE)
            self._words[(place + HANDLE) // 8] = handle
        # Released once it has joined. A bare lock: an exception in an `Event`'s wait leaves that broken.
        self.joined = _thread.allocate_lock()
        self.joined.acquire()

    def start(self, crew: "Crew") -> None:
        """Starts the thread; raises `RuntimeError` where the system has no more of them."""
        # Not by `threading`, whose start waits until the thread runs: for ever, if an exception or a fork out
        # of a signal's handler comes in between.
        _thread.start_new_thread(self._work, (crew,))

    def _work(self, crew: "Crew") -> None:
        # A method, so that the memory lives as long as the thread that looks at it.
        self.thread = threading.get_native_id()
        crew.join(self)
        self.joined.release()
        self._signals.serve.call(self.address)

    def follow(self, following: int) -> None:
        """Says which worker comes next in the crew."""
        self._words[NEXT // 8] = following

    @property
    def is_asleep(self) -> bool:
        """Whether it takes a while until this thread begins anything."""
        return self._words[BEGIN // 8] == ASLEEP

    def rouse(self) -> None:
        """Wakes this thread, if it sleeps, to look for work for a while."""
        keep_away(self.thread)
        self._signals.rouse.call(self.address + BEGIN)


Task = tuple[NativeFunction, int]
"""A function of machine code and the pointer that it is called with."""


class Orders:
    """Tasks for machine code, to be done at the same time, as often as is wanted.

    progress: the words that shared tasks have in common (see `driver`); None for tasks that have nothing to
    do with one another. wake: whether threads that sleep are woken for it. most: how many threads there may
    be; None for one for each task.
    """

    def __init__(
        self,
        crew: "Crew",
        tasks: Sequence[Task],
        progress: Array | None = None,
        wake: bool = True,
        most: int | None = None,
    ) -> None:
        self.crew, self.tasks, self.progress, self.wake = crew, tasks, progress, wake
        self.count = len(tasks)
        self.most = self.count if most is None else min(most, self.count)
        self.words = np.zeros(len(ORDERS) + len(TASK_WORDS) * self.count, np.int64)
        by_task = self.words[len(ORDERS) :].reshape(self.count, len(TASK_WORDS))
        by_task[:, :2] = [(function.address, pointer) for function, pointer in tasks]
        gate = 0 if progress is None else progress.ctypes.data
        patience = PATIENCE if wake else STEP_PATIENCE
        known = crew.first.ctypes.data, gate, patience, wake, self.count, self.most
        self.words[: len(known)] = known
        self.address: int = self.words.ctypes.data
        # To read a word of NumPy's takes twice as long, and a step is some microseconds.
        self._view = view(self.words)
        self._stayed = None if progress is None else view(progress)
        self._lead = signals().lead
        self._late = int(LATE_SECONDS * clock().per_second)
        self._worked = self._waited = 0

    def begin(self) -> None:
        """Begins a run: the time that the first thread works and waits is counted anew."""
        self._worked = self._waited = 0

    def lead(self) -> bool:
        """Does every task, by as many threads as there are; gives whether there is more to do."""
        lateness, words = self.crew.lateness, self._view
        words[MOST] = lateness.allowed(self.most) if lateness.noted else self.most
        more = bool(self._lead.call(self.address))
        if self._stayed is None:
            self._worked += words[WORKED]
            self._waited += words[WAITED]
            if self._waited > max(self._late, LATE_TIMES * self._worked):
                lateness.note(1)
            return more
        stayed, came = self._stayed[0], words[CAME]
        if stayed < came or (self.wake and came < words[ASKED]):
            lateness.note(min(stayed, came))
        return more

    @property
    def came(self) -> int:
        """How many threads there were for shared tasks."""
        return self._view[CAME]


class Lateness:
    """Threads that were late, because another process has a processor, are left out for a while: twice as
    long if they are late again before they have been back for as long as they were left out.
    """

    def __init__(self) -> None:
        self._until = self._seconds = 0.0
        self._left = 1
        self.noted = False  # whether any was late at all

    def allowed(self, count: int) -> int:
        """How many of so many threads may share a call now."""
        return count if time.monotonic() >= self._until else min(count, self._left)

    def note(self, left: int) -> None:
        """Leaves out all but so many threads."""
        self.noted = True
        now = time.monotonic()
        again = now < self._until + self._seconds
        self._seconds = min(2 * self._seconds, LONGEST_LEFT_OUT) if again else LEFT_OUT
        self._until, self._left = now + self._seconds, left


class Crew:
    """Workers that are kept between calls. Machine code claims those that are free, whichever thread calls.

    The workers are a list in memory: the address of the first, and in each that of the next. Behind the first
    is how many threads lead at the moment.
    """

    def __init__(self) -> None:
        self.first = np.zeros(2, np.int64)
        self.workers: list[Worker] = []
        self.forget()

    def forget(self) -> None:
        """Begins anew without workers, as a process must after a fork: threads do not survive one.

        Orders that were laid out before go on to look for workers here.
        """
        self.first[:] = 0
        self.workers.clear()
        self._joining = threading.Lock()
        self._starting: list[float] = []
        self._refused = -REFUSED
        self.lateness = Lateness()

    def join(self, worker: Worker) -> None:
        """Puts a worker first, in its own thread."""
        with self._joining:
            del self._starting[:1]
            worker.follow(int(self.first[0]))
            self.workers.append(worker)
            self.first[0] = worker.address

    def run(self, orders: Orders, between: Callable[[], None] = lambda: None) -> None:
        """Does every task until nothing is left to do; in between Python may raise, and nothing runs then."""
        orders.begin()
        wanted = orders.most - 1
        if len(self.workers) < wanted:
            self.grow(wanted)
        for worker in self.workers[-wanted:]:
            if worker.is_asleep:
                keep_away(worker.thread)
        while orders.lead():
            between()

    def grow(self, wanted: int) -> None:
        """Starts the threads that are missing, as far as the system has them: the work is done with fewer."""
        now = time.monotonic()
        if now - self._refused < REFUSED:
            return
        # Those that another thread has started, and that have not joined yet.
        self._starting = [begun for begun in self._starting if now - begun < BEGINS]
        for _ in range(wanted - len(self.workers) - len(self._starting)):
            self._starting.append(now)
            worker = Worker()
            try:
                worker.start(self)
            except RuntimeError:
                self._refused = now
                return
            worker.joined.acquire(timeout=BEGINS)

    def rouse(self, count: int) -> None:
        """Wakes so many workers, for work that is about to come."""
        if len(self.workers) < count:
            self.grow(count)
        for worker in self.workers[-count:]:
            worker.rouse()


CREW = Crew()


class Work:
    """Work of a function of machine code on rows of words: a task each for threads, or a single call.

    words: the rows, which may be set to other numbers between calls. firsts: at which of them a task begins;
    None for all.
    """

    def __init__(self, function: NativeFunction, words: Array, firsts: Array | None = None) -> None:
        self.function, self.words = function, words
        rows = range(len(words)) if firsts is None else firsts
        self.tasks = [words[row:].ctypes.data for row in rows]
        pairs = [(function, task) for task in self.tasks]
        self.orders = Orders(CREW, pairs) if len(pairs) > 1 else None

    def __call__(self) -> None:
        """Does all of it."""
        if self.orders is None:
            self.function.call(self.tasks[0])
        else:
            CREW.run(self.orders)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CREW.forget)
