"""Work that neither a fork nor an interrupt may catch half done: imports on first use, and LLVM's.

A forked child has the one thread that forked. What others held at that moment, a lock or a module that is
being imported, it has for ever: so a fork waits for such work to end.

An exception out of a signal's handler may come between any two steps of the main thread: in the midst of a
library that gives a lock back in the next. So such work is done in a thread of its own, where no handler
runs, and the main one waits.
"""

import _thread
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

FORKS = threading.RLock()
"""Who holds it is in the midst of something: a fork waits for it."""
HOOKED = (logging,)
"""What registers hooks for forks when it is imported. While a fork waits, only half of them would run."""
LOOK = 0.1  # seconds between looks at whether this is still the process that began to wait


def undivided(work: Callable[[], Value]) -> Value:
    """What some work gives, which no fork divides."""
    with FORKS:
        return work()


def apart(work: Callable[[], Value]) -> Value:
    """What some work gives, which no fork divides and no signal's handler interrupts.

    An interrupt of the main thread ends its waiting, and the work goes on to its end.
    """
    if threading.current_thread() is not threading.main_thread():
        return undivided(work)
    # A bare lock: an exception in the midst of an `Event`'s wait leaves that broken.
    done, results, process = _thread.allocate_lock(), list[Any](), os.getpid()
    done.acquire()

    def run() -> None:
        try:
            results.append((undivided(work), None))
        except BaseException as error:  # for whoever waits
            results.append((None, error))
        done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the system has no thread to spare
        return undivided(work)
    while not done.acquire(timeout=LOOK):
        if os.getpid() != process:  # forked by a signal's handler: the thread is the parent's
            return undivided(work)
    value, error = results[0]
    if error is not None:
        raise error
    return value


if hasattr(os, "register_at_fork"):
    interrupts: list[BaseException] = []

    def hold() -> None:
        """Waits for work to end; what a signal's handler raises meanwhile is kept for after the fork."""
        while True:
            try:
                FORKS.acquire()
            except BaseException as error:  # Python would print it, and fork in the midst of the work
                interrupts.append(error)
            else:
                return

    def go_on() -> None:
        """Ends the wait of others; an interrupt that came meanwhile arrives now."""
        FORKS.release()
        if any(isinstance(error, KeyboardInterrupt) for error in interrupts):
            _thread.interrupt_main()
        interrupts.clear()

    os.register_at_fork(before=hold, after_in_parent=go_on, after_in_child=FORKS.release)
