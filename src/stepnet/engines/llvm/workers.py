"""Threads that wait for work: the machine code runs without the interpreter's lock, so they run at once."""

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache

import numpy as np

from stepnet.engines.llvm.build import NativeFunction
from stepnet.engines.llvm.handover import (
    ASLEEP,
    BEGIN,
    BYTES,
    END,
    FUNCTION,
    HANDLE,
    SEMAPHORES,
    TOLD,
    signals,
)
from stepnet.engines.llvm.memory import aligned
from stepnet.engines.llvm.semaphores import BYTES as SEMAPHORE
from stepnet.engines.llvm.semaphores import address_of, semaphores


@cache
def give_way_address() -> int:
    """The address of the system's function that gives the processor to another thread."""
    library = ctypes.CDLL("kernel32" if sys.platform == "win32" else None)
    return address_of(library, "SwitchToThread" if sys.platform == "win32" else "sched_yield")


@cache
def current_processor() -> Callable[[], int] | None:
    """What says which processor the caller runs on; None where the system is another than Linux."""
    if sys.platform != "linux":
        return None
    return ctypes.CDLL(None)["sched_getcpu"]


def keep_away(thread: threading.Thread) -> None:
    """Keeps a thread that is about to wake away from the processor that the caller runs on.

    Linux wakes it on the one that it ran on before, and where there are few does not look for an idle one: so
    the thread that hands out work, and cannot wait, and the one that is to help it would take turns.
    """
    current = current_processor()
    if current is not None and thread.native_id is not None:
        others = os.sched_getaffinity(0) - {current()}
        if others:
            os.sched_setaffinity(thread.native_id, others)


class Worker:
    """One thread that runs a function of machine code at a time."""

    def __init__(self) -> None:
        self._signals = signals()
        self._memory = aligned(BYTES)
        self._memory[:] = 0
        self._words = self._memory.view(np.int64)
        self.address: int = self._memory.ctypes.data
        for number, place in enumerate((BEGIN, END)):
            handle = semaphores().make(self.address + SEMAPHORES + number * SEMAPHORE)
            self._words[(place + HANDLE) // 8] = handle
        self._thread = threading.Thread(target=self._work, daemon=True, name="stepnet")
        self._thread.start()

    def _work(self) -> None:
        # A method, so that the memory lives as long as the thread that looks at it.
        self._signals.serve.call(self.address)

    def start(self, function: NativeFunction, told: int) -> None:
        """Begins to run a function."""
        self._words[FUNCTION // 8] = function.address
        self._words[TOLD // 8] = told
        if self.is_asleep:
            keep_away(self._thread)
        self._signals.say.call(self.address + BEGIN)

    @property
    def is_asleep(self) -> bool:
        """Whether it takes a while until this thread begins anything."""
        return self._words[BEGIN // 8] == ASLEEP

    def rouse(self) -> None:
        """Wakes this thread, if it sleeps, to look for work for a while."""
        keep_away(self._thread)
        self._signals.rouse.call(self.address + BEGIN)

    def finish(self) -> None:
        """Waits until the function is done."""
        self._signals.look.call(self.address + END)


class Orders:
    """A function that is to run again and again, once for each pointer at the same time."""

    def __init__(self, function: NativeFunction, told: list[int]) -> None:
        self.function, self.told = function, told
        self._words = np.array([function.address, told[0], 0, told[1]], np.int64)
        self._address: int = self._words.ctypes.data
        self._lead = signals().lead.call
        self._worker = 0

    def lead(self, worker: Worker) -> bool:
        """Runs it in this thread and one worker, if that takes it at once; gives whether it was run."""
        if worker.address != self._worker:
            self._words[2] = self._worker = worker.address
        return bool(self._lead(self._address))


class Crew:
    """Workers that are kept between calls; calls from several threads each take their own.

    A list gives and takes one worker at a time to whoever asks, without a lock of ours.
    """

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def run(self, function: NativeFunction, told: list[int]) -> None:
        """Runs a function once for each pointer, all at the same time, the first one in this thread."""
        workers: list[Worker] = []
        for one in told[1:]:
            worker = self._taken()
            workers.append(worker)
            worker.start(function, one)
        self._lead(function, told[0], workers)

    def run_if_awake(self, orders: "Orders") -> bool:
        """The same, unless a worker sleeps, or a single one has lost its processor to another process: then
        nothing is run. Gives whether it was.
        """
        if len(orders.told) == 2:
            worker = self._taken()
            begun = orders.lead(worker)
            self._idle.append(worker)
            return begun
        workers = [self._taken() for _ in orders.told[1:]]
        if any(worker.is_asleep for worker in workers):
            self._idle += workers
            return False
        for worker, one in zip(workers, orders.told[1:], strict=True):
            worker.start(orders.function, one)
        self._lead(orders.function, orders.told[0], workers)
        return True

    def rouse(self, count: int) -> None:
        """Wakes so many workers, for work that is about to come."""
        workers = [self._taken() for _ in range(count)]
        for worker in workers:
            worker.rouse()
        self._idle += workers

    def _lead(self, function: NativeFunction, told: int, workers: list[Worker]) -> None:
        """Runs this thread's part, and waits for the others."""
        try:
            function.call(told)
        finally:
            # An interrupt ends this thread's part: the others still work in memory that is the caller's.
            for worker in workers:
                worker.finish()
        self._idle += workers

    def _taken(self) -> Worker:
        try:
            return self._idle.pop()
        except IndexError:
            return Worker()


CREW = Crew()
if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child begins with none.
    os.register_at_fork(after_in_child=CREW.__init__)
