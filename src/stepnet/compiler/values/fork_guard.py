"""Work that neither a fork nor a signal may interrupt: imports at first use, and calls of LLVM.

A forked child has only the thread that forked. A lock that another thread held at that moment, such as that
of a module being imported, is never released in the child. So a fork waits for such work to end.

A signal handler may raise an exception between any two bytecodes of the main thread, for instance in a
library that holds a lock. So such work runs in another thread, where no handler runs, and the main thread
waits.

LLVM needs more stack than some threads have: those of a program that sets `threading.stack_size`, and all
threads of some systems. So the other thread has a stack of its own size (`STACK`), and other threads than the
main one wait for such a thread, too.
"""

import _thread
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

Value = TypeVar("Value")

FORKS = threading.RLock()
"""The lock that is held while the process must not fork: a fork waits for it."""
IMPORTS = threading.RLock()
"""The lock that is held during an import at first use, inside a function: a fork waits for it, too. Unlike
`FORKS` it is not held while LLVM compiles. A thread that holds it does not take `FORKS`.
"""
STACKS = threading.RLock()
"""The lock that is held while the size of the stacks of new threads is another than the program's."""
STACK = 8 * 2**20
"""The bytes of the stack of a thread that runs LLVM."""
HOOKED = ("logging",)
"""Modules that register fork hooks when imported. They are imported before a framework that needs them,
without a lock: hooks registered while a fork waits would run only after the fork.
"""
RECORDS = threading.RLock()
"""The lock that is held while a framework records the operations of a function, as `torch.fx` keeps what it
records for the whole process. A fork waits for it first: a thread that holds it may take the other locks.
"""
LOOK = 0.1  # seconds between checks whether a signal handler has forked this process


class Stacks(threading.local):
    """Facts that each thread has of its stack. large: whether it was made with `STACK` bytes."""

    large = False


OWN = Stacks()


@contextmanager
def large_stacks() -> Generator[None]:
    """Context in which threads that are started have stacks of at least `STACK` bytes. What the program has
    set by `threading.stack_size` holds again at the end.
    """
    with STACKS:
        before = threading.stack_size()
        threading.stack_size(max(STACK, before))
        try:
            yield
        finally:
            threading.stack_size(before)


def run_without_fork(work: Callable[[], Value]) -> Value:
    """Calls a function, during which the process does not fork (a fork waits), and returns its result."""
    with FORKS:
        return work()


def run_in_thread(work: Callable[[], Value]) -> Value:
    """Runs a function in another thread with a large stack, so that no signal handler interrupts it; returns
    its result. The process does not fork meanwhile. An interrupt of the main thread ends its waiting; the
    function itself runs to its end. The function runs in this thread if it is such a thread already, or if no
    thread can be started.
    """
    if OWN.large:
        return run_without_fork(work)
    # A plain lock: an exception in the middle of `Event.wait` would leave the event broken.
    done, results, process = _thread.allocate_lock(), list[Any](), os.getpid()
    done.acquire()

    def run() -> None:
        """Runs the function, stores its result or its error for the waiting thread, and wakes that thread."""
        OWN.large = True
        try:
            results.append((run_without_fork(work), None))
        except BaseException as error:  # raised again in the waiting thread
            results.append((None, error))
        done.release()

    try:
        with large_stacks():
            _thread.start_new_thread(run, ())
    except RuntimeError:  # the system has no thread to spare
        return run_without_fork(work)
    while not done.acquire(timeout=LOOK):
        if os.getpid() != process:  # a signal handler forked: only the parent has the thread
            return run_without_fork(work)
    value, error = results[0]
    if error is not None:
        raise error
    return value


if hasattr(os, "register_at_fork"):
    interrupts: list[BaseException] = []

    def before_fork() -> None:
        """Acquires, before a fork, the locks that are held while the process must not fork. An exception that
        a signal handler raises meanwhile is postponed until after the fork.
        """
        waiting = [STACKS, IMPORTS, FORKS, RECORDS]
        while waiting:
            try:
                waiting[-1].acquire()
            except BaseException as error:  # Python would only print it, and fork during the work
                interrupts.append(error)
            else:
                waiting.pop()

    def release() -> None:
        """Releases the locks after a fork."""
        for lock in (STACKS, IMPORTS, FORKS, RECORDS):
            lock.release()

    def after_fork() -> None:
        """Releases the locks in the parent after a fork, and raises an interrupt that came meanwhile."""
        release()
        if any(isinstance(error, KeyboardInterrupt) for error in interrupts):
            _thread.interrupt_main()
        interrupts.clear()

    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=release)


def import_hooked() -> None:
    """Imports the modules that register fork hooks; called before `IMPORTS` is held to import a framework."""
    for name in HOOKED:
        import_module(name)


def module_late(name: str) -> Any:
    """Imports a module at its first use, such as `numpy.random`, which NumPy loads when it is first named."""
    with IMPORTS:
        return import_module(name)


def imported_late(package: str, name: str, home: str) -> Any:
    """Imports a name of a package from its module `home` at its first use (PEP 562)."""
    return getattr(module_late(f"{package}.{home}"), name)


def late_names(package: str, *homes: tuple[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a package, which imports each name at its first use (PEP 562).

    A package whose import imports its modules can wait for a thread that imports one of them, and that
    thread for the package. Besides, a process imports only what it uses.

    homes: modules of the package, each with names that it has, separated by spaces.
    """
    home_of = {name: home for home, names in homes for name in names.split()}

    def imported(name: str) -> Any:
        """Imports a name of the package and returns its value; raises `AttributeError` for other names."""
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported_late(package, name, home_of[name])

    return imported
