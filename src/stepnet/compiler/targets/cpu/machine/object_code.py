"""Compilation of LLVM modules to object code, and LLVM's loader for object code that `image` cannot load.

LLVM is called through `compiler/values/fork_guard.py`, so that neither a fork nor a signal interrupts it:
its objects must be freed exactly once. Several modules are compiled in parallel.
"""

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from heapq import heappop, heappush
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.image import ObjectCode
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.room import BASE_BYTES, TEXT_FACTOR, THREAD_BYTES, reserve
from stepnet.compiler.targets.cpu.machine.unlocked import emit_object
from stepnet.compiler.targets.limits import processors
from stepnet.compiler.values.fork_guard import large_stacks, run_in_thread

SWITCH_INTERVAL = 5e-4  # seconds
LEFT_OUT = ("lsr", "post-ra")
"""The passes of LLVM's code generator that do not run: loop strength reduction, and the scheduling of
instructions after registers are assigned. They take a third of LLVM's time, and the code is no faster for
them: the loops already count in units that the processor can address, and it reorders instructions itself.
"""

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def object_code(module: ir.Module, processor: Processor) -> ObjectCode:
    """Compiles one LLVM module to object code for a processor."""
    return object_codes([module], processor)[0]


def object_codes(modules: Iterable[ir.Module], processor: Processor) -> list[ObjectCode]:
    """Compiles LLVM modules to object code for a processor, in parallel; returns the codes in order.

    modules: may be a generator: the first modules are then compiled while later ones are still written.
    """
    names = list[tuple[str, ...]]()

    def texts() -> Iterator[str]:
        """Yields the LLVM text of each module, and records the names of its public functions."""
        for module in modules:
            names.append(
                tuple(f.name for f in module.functions if not f.is_declaration and f.linkage != "internal")
            )
            yield str(module)

    return list(map(ObjectCode, run_in_thread(lambda: emit_all(texts(), processor)), names))


@contextmanager
def shorter_pipeline() -> Generator[None]:
    """Context in which LLVM generates code without the passes in `LEFT_OUT`, which saves a third of its time.
    The options are global to LLVM, so they are reset at the end: other packages may use the same LLVM. The
    block must run in `run_in_thread` or `run_without_fork`, which admit one thread at a time.
    """
    for name in LEFT_OUT:
        llvm.set_option("stepnet", f"-disable-{name}")
    try:
        yield
    finally:
        for name in LEFT_OUT:
            llvm.set_option("stepnet", f"-disable-{name}=false")


@shorter_pipeline()
def emit_all(texts: Iterable[str], processor: Processor) -> list[bytes]:
    """Compiles modules, given as LLVM texts, to object files on all processors; returns their bytes in order.
    Other threads compile the longest text that is available, until there are none. Returns when all threads
    have ended. A text that failed in another thread is compiled again in this one, which raises the error.
    """
    received, waiting, done = list[str](), list[tuple[int, int]](), dict[int, bytes]()

    def work(thread: int) -> None:
        """Runs in one of several threads: compiles LLVM texts, the longest that waits first, until none
        waits. thread: the number of this thread.
        """
        # A text that LLVM refuses is left to the calling thread, which meets the same error and raises it.
        # So is a text for which memory is short: the calling thread compiles it after all others.
        with suppress(IndexError, RuntimeError, MemoryError):
            while True:
                index = heappop(waiting)[1]
                done[index] = emit(received[index], target_machine(processor, thread))

    threads = dict[int, threading.Thread]()
    try:
        with frequent_switches():
            for index, text in enumerate(texts):
                received.append(text)
                heappush(waiting, (-len(text), index))
                others = (n for n in range(1, processors()) if n not in threads or not threads[n].is_alive())
                if (number := next(others, None)) is not None:
                    thread = threading.Thread(target=work, args=(number,))
                    if try_to_start(thread):
                        threads[number] = thread
        work(0)
    finally:
        waiting.clear()
        for thread in threads.values():
            thread.join()
    machine = partial(target_machine, processor, 0)
    return [done[n] if n in done else emit(text, machine()) for n, text in enumerate(received)]


@contextmanager
def frequent_switches() -> Generator[None]:
    """Context in which Python's interpreter switches threads every `SWITCH_INTERVAL` seconds. A thread that
    returns from LLVM waits until the thread that writes text releases the interpreter: by default up to 5 ms,
    after each of some ten calls per module.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH_INTERVAL, interval))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def try_to_start(thread: threading.Thread) -> bool:
    """Starts a thread; returns False if the system has no more threads, or no memory for one."""
    try:
        with reserve(THREAD_BYTES), large_stacks():
            thread.start()
    except (RuntimeError, MemoryError):
        return False
    return True


def emit(
    text: str, machine: llvm.TargetMachine, change: Callable[[llvm.ModuleRef], None] = lambda module: None
) -> bytes:
    """Compiles an LLVM module, given as text, to the bytes of an object file. machine: LLVM's code generator,
    which no other thread may use meanwhile. change: modifies the parsed module before its code is generated.
    Raises `MemoryError` if there is too little memory, and `RuntimeError` for a text that LLVM refuses.
    """
    # A parsed module takes a hundred times as much memory as its code, and is freed at the end of the block.
    with (
        reserve(BASE_BYTES + TEXT_FACTOR * len(text)),
        llvm.parse_assembly(text, llvm.create_context()) as parsed,
    ):
        # LLVM's optimiser is not run: our text is already in the form that should run. On a GRU the optimiser
        # took 40% of the compile time and changed the speed by less than the measurement noise.
        change(parsed)
        parsed.verify()
        return emit_object(machine, parsed)


@cache
def target_machine(processor: Processor, thread: int) -> llvm.TargetMachine:
    """Returns LLVM's code generator for a processor and a thread's number, made once: it is large."""
    with reserve(BASE_BYTES):
        triple = llvm.Target.from_default_triple()
        return triple.create_target_machine(cpu=processor.cpu, features=processor.features, opt=3)


# ---- loading -----------------------------------------------------------------------------------------------

DISCARDED: list[Any] = []


class LoadedCode:
    """Owner of code loaded by LLVM.

    It may be deleted in any thread, at any moment, so deletion only marks the engine: the next call of
    `loaded` frees it.
    """

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        """Takes LLVM's execution engine, which keeps the code loaded."""
        self.engine = engine

    def __del__(self, discarded: list[Any] = DISCARDED) -> None:
        """Moves LLVM's engine to `discarded`, which the next call of `loaded` frees."""
        # At exit the globals of this module may already be deleted; the default argument is not.
        discarded.append(self.__dict__.pop("engine", None))


def loaded_by_llvm(code: ObjectCode, functions: Mapping[str, int]) -> tuple[LoadedCode, dict[str, int], int]:
    """Loads object code by LLVM, in a thread that signals do not interrupt.

    functions: the addresses of the functions that the code calls, by name, other than the C library's.

    Returns the object that keeps the code in memory, the addresses of the code's functions by name, and the
    number of bytes of its instructions.
    """
    return run_in_thread(lambda: loaded(code, functions))


def loaded(code: ObjectCode, functions: Mapping[str, int]) -> tuple[LoadedCode, dict[str, int], int]:
    """Loads object code by LLVM, in the current thread, which `run_in_thread` must have started. First frees
    code that was discarded.

    functions: the addresses of the functions that the code calls, by name, other than the C library's.

    Returns the object that keeps the code in memory, the addresses of the code's functions by name, and the
    number of bytes of its instructions.
    """
    DISCARDED.clear()
    for name, address in functions.items():
        llvm.add_symbol(name, address)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    file = llvm.ObjectFileRef.from_data(code.data)
    size = sum(section.size() for section in file.sections() if section.is_text())
    engine.add_object_file(file)
    engine.finalize_object()
    return LoadedCode(engine), {name: engine.get_function_address(name) for name in code.names}, size
