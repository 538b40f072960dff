"""Threads that wait for work: the machine code runs without the interpreter's lock, so they run at once."""

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache


@cache
def give_way_address() -> int:
    """The address of the system's function that gives the processor to another thread."""
    library = ctypes.CDLL("kernel32" if sys.platform == "win32" else None)
    function = library.SwitchToThread if sys.platform == "win32" else library.sched_yield
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


class Worker:
    """One thread that runs a task at a time."""

    def __init__(self) -> None:
        # A plain lock that one thread takes and another gives back wakes in a third of a semaphore's time.
        self._begin, self._end = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._end.acquire()
        self._task: Callable[[], None] = lambda: None
        threading.Thread(target=self._work, daemon=True, name="stepnet").start()

    def _work(self) -> None:
        while True:
            self._begin.acquire()
            self._task()
            self._end.release()

    def start(self, task: Callable[[], None]) -> None:
        """Begins a task."""
        self._task = task
        self._begin.release()

    def finish(self) -> None:
        """Waits until the task is done."""
        self._end.acquire()


class Crew:
    """Workers that are kept between calls; calls from several threads each take their own."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def run(self, tasks: list[Callable[[], None]]) -> None:
        """Runs all tasks at the same time, the first one in this thread."""
        with self._lock:
            workers = [self._idle.pop() if self._idle else Worker() for _ in tasks[1:]]
        for worker, task in zip(workers, tasks[1:], strict=True):
            worker.start(task)
        tasks[0]()
        for worker in workers:
            worker.finish()
        with self._lock:
            self._idle += workers


CREW = Crew()
if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child begins with none.
    os.register_at_fork(after_in_child=CREW.__init__)
