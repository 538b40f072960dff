"""Threads that wait for work: the machine code runs without the interpreter's lock, so they run at once."""

import ctypes
import os
import sys
import threading
from functools import cache

import numpy as np

from stepnet.engines.llvm.build import NativeFunction
from stepnet.engines.llvm.handover import ASLEEP, BEGIN, BYTES, END, FUNCTION, TOLD, signals
from stepnet.engines.llvm.memory import aligned


@cache
def give_way_address() -> int:
    """The address of the system's function that gives the processor to another thread."""
    library = ctypes.CDLL("kernel32" if sys.platform == "win32" else None)
    function = library.SwitchToThread if sys.platform == "win32" else library.sched_yield
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


class Worker:
    """One thread that runs a function of machine code at a time."""

    def __init__(self) -> None:
        self._signals = signals()
        self._memory = aligned(BYTES)
        self._words = self._memory.view(np.int64)
        self._address: int = self._memory.ctypes.data
        self._begin, self._end = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._end.acquire()
        threading.Thread(target=self._work, daemon=True, name="stepnet").start()

    def _work(self) -> None:
        serve, address = self._signals.serve.call, self._address
        while True:
            if serve(address) == ASLEEP:
                self._begin.acquire()
            else:
                self._end.release()

    def start(self, function: NativeFunction, told: int) -> None:
        """Begins to run a function."""
        self._words[FUNCTION // 8], self._words[TOLD // 8] = function.address, told
        if self._signals.say.call(self._address + BEGIN) == ASLEEP:
            self._begin.release()

    def finish(self) -> None:
        """Waits until the function is done."""
        while self._signals.look.call(self._address + END) == ASLEEP:
            self._end.acquire()


class Crew:
    """Workers that are kept between calls; calls from several threads each take their own."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def run(self, function: NativeFunction, told: list[int]) -> None:
        """Runs a function once for each pointer, all at the same time, the first one in this thread."""
        with self._lock:
            workers = [self._idle.pop() if self._idle else Worker() for _ in told[1:]]
        for worker, one in zip(workers, told[1:], strict=True):
            worker.start(function, one)
        try:
            function.call(told[0])
        finally:
            # An interrupt ends this thread's part: the others still work in memory that is the caller's.
            for worker in workers:
                worker.finish()
        with self._lock:
            self._idle += workers


CREW = Crew()
if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child begins with none.
    os.register_at_fork(after_in_child=CREW.__init__)
