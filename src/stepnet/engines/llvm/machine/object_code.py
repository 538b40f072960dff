"""LLVM text to object code; and object code loaded by LLVM, where nothing else can load it.

LLVM is called apart (see `apart`): it has objects that are to be freed once. There several modules become
object code side by side.
"""

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from heapq import heappop, heappush
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from stepnet.engines.apart import run_in_thread
from stepnet.engines.limits import processors
from stepnet.engines.llvm.machine.image import ObjectCode
from stepnet.engines.llvm.machine.room import ALONE, FOR_BYTE, THREAD, room
from stepnet.engines.llvm.machine.system import symbols
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.machine.unlocked import emit_object

TURN = 5e-4  # seconds

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def object_code(module: ir.Module, target: Target) -> ObjectCode:
    """What LLVM makes of a module for a target."""
    return object_codes([module], target)[0]


def object_codes(modules: Iterable[ir.Module], target: Target) -> list[ObjectCode]:
    """What LLVM makes of modules for a target, side by side on the processors: of the first ones while others
    are still written, where the modules come from a generator.
    """
    names = list[tuple[str, ...]]()

    def texts() -> Iterator[str]:
        for module in modules:
            names.append(tuple(f.name for f in module.functions if is_public(f)))
            yield str(module)

    return list(map(ObjectCode, run_in_thread(lambda: all_emitted(texts(), target)), names))


def is_public(function: ir.Function) -> bool:
    """Whether a function is called from outside its module."""
    return not function.is_declaration and function.linkage != "internal"


def all_emitted(texts: Iterable[str], target: Target) -> list[bytes]:
    """The object files of modules' texts. Other threads take the longest of those that are there. Ends when
    all threads have.
    """
    known, waiting, done = list[str](), list[tuple[int, int]](), dict[int, bytes]()

    def work(thread: int) -> None:
        # What LLVM refuses is left to the caller, who then meets the same refusal. So is a text for which
        # there is no memory beside others: the caller then compiles it alone.
        with suppress(IndexError, RuntimeError, MemoryError):
            while True:
                place = heappop(waiting)[1]
                done[place] = emitted(known[place], emitter(target, thread))

    threads = dict[int, threading.Thread]()
    try:
        with short_turns():
            for place, text in enumerate(texts):
                known.append(text)
                heappush(waiting, (-len(text), place))
                others = (n for n in range(1, processors()) if n not in threads or not threads[n].is_alive())
                if (number := next(others, None)) is not None:
                    thread = threading.Thread(target=work, args=(number,))
                    if begins(thread):
                        threads[number] = thread
        work(0)
    finally:
        waiting.clear()
        for thread in threads.values():
            thread.join()
    return [done[n] if n in done else emitted(text, emitter(target, 0)) for n, text in enumerate(known)]


@contextmanager
def short_turns() -> Generator[None]:
    """The interpreter goes from thread to thread after a turn of `TURN`.

    A thread that comes back from LLVM waits for a turn of the one that writes text to end: by default 5 ms,
    at each of some ten calls for a module.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, interval))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def begins(thread: threading.Thread) -> bool:
    """Begins a thread; False where the system has none to spare, or no memory for it."""
    try:
        with room(THREAD):
            thread.start()
    except (RuntimeError, MemoryError):
        return False
    return True


def emitted(
    text: str, machine: llvm.TargetMachine, change: Callable[[llvm.ModuleRef], None] = lambda module: None
) -> bytes:
    """The object file of a module's text. change: what is done to the module before code is written.

    Raises `MemoryError` where there is too little, and `RuntimeError` for a text that LLVM refuses.
    """
    # What LLVM knows of a module is a hundred times as large as its code, and goes with the block.
    with room(ALONE + FOR_BYTE * len(text)), llvm.parse_assembly(text, llvm.create_context()) as parsed:
        # LLVM's optimiser is left out: the code is written as it should run. On a GRU it took 40% of the
        # compile time and changed the speed by less than its spread.
        change(parsed)
        parsed.verify()
        return emit_object(machine, parsed)


@cache
def emitter(target: Target, thread: int) -> llvm.TargetMachine:
    """The machine that writes code for a target: one for each thread, and kept, with its half a megabyte."""
    with room(ALONE):
        triple = llvm.Target.from_default_triple()
        return triple.create_target_machine(cpu=target.cpu, features=target.features, opt=3)


# ---- loading -----------------------------------------------------------------------------------------------

DISCARDED: list[Any] = []


class Held:
    """What keeps code loaded. Any thread may let go of it, in the midst of anything: so the next one that
    loads frees it.
    """

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self.engine = engine

    def __del__(self, discarded: list[Any] = DISCARDED) -> None:
        # At the end of the process the names of this module may be gone.
        discarded.append(self.__dict__.pop("engine", None))


def loaded_by_llvm(code: ObjectCode) -> tuple[Held, dict[str, int], int]:
    """Object code in memory: what keeps it there, the addresses of functions, and the bytes of all."""
    return run_in_thread(lambda: loaded(code))


def loaded(code: ObjectCode) -> tuple[Held, dict[str, int], int]:
    """The same, where LLVM may be called."""
    DISCARDED.clear()
    for name, address in symbols().items():
        llvm.add_symbol(name, address)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    file = llvm.ObjectFileRef.from_data(code.data)
    size = sum(section.size() for section in file.sections() if section.is_text())
    engine.add_object_file(file)
    engine.finalize_object()
    return Held(engine), {name: engine.get_function_address(name) for name in code.names}, size
