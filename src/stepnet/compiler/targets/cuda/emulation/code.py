"""The machine code of a kernel in emulation, compiled for this processor and kept in memory and on disk.

kernel, with the short functions that it calls      run                     compiled for each kernel
the other functions, and the scheduler              barrier, ..., run_all   compiled once
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

import llvmlite.binding as llvm

from stepnet.compiler.targets.cpu.machine.image import ObjectCode
from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode
from stepnet.compiler.targets.cpu.machine.processor import Processor, host_processor
from stepnet.compiler.targets.cpu.machine.room import BASE_BYTES, load_llvm, reserve
from stepnet.compiler.targets.cpu.machine.stored_code import KERNEL, keep, read
from stepnet.compiler.targets.cpu.machine.unlocked import emit_object
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.emulation.functions import called, linked_with_each
from stepnet.compiler.targets.cuda.emulation.views import through_views
from stepnet.compiler.targets.cuda.linking import linked
from stepnet.compiler.values.fork_guard import run_in_thread

KEPT = 512
"""The number of kernels that are kept in memory."""
Level = Literal[0, 1, 2, 3]
OFTEN: Level = 2
ONCE: Level = 0
"""The levels of optimisation: of the functions of the device, which all kernels call, and of a
kernel, which is compiled for one launch or a few.
"""
Linked = tuple[str, Sequence[bytes], frozenset[str]]
"""A module as text, others in LLVM's binary form, and the functions that are called from outside."""


@lru_cache(maxsize=KEPT)
def emulated_kernel(code: DeviceCode, has_views: bool = False) -> MachineCode:
    """Returns a kernel's machine code, from disk or compiled now; `run` takes the address of its words.

    has_views: whether its blocks see main memory through views of their own.
    """
    text = checked(code.text)
    text = (through_views(text) if has_views else text) + started(code.words)
    public = frozenset(["run"])
    name = f"{code.key} through views" if has_views else code.key
    return machine_code(name, lambda: (text, [linked_with_each()], public), ONCE, device_functions())


ACCESS = re.compile(
    r"^ *(?P<access>%\S+ = load .*?, |store .*, )ptr (?P<at>%\S+), align (?P<bytes>8|16)$", re.MULTILINE
)
"""A load or a store of what must lie at a multiple of 8 or 16 bytes."""
OF_NUMBERS = "misaligned8", "misaligned16"


def checked(text: str) -> str:
    """Returns the text of a kernel that tells the bits of addresses which are not as aligned as its loads and
    stores say. A GPU stops at such an access, and a processor that needs no alignment does not.

    Bits of all addresses are put together, without branches, until the kernel ends. What is accessed is the
    address without them: half of one number and half of the next may be an index far outside of all memory.
    Single numbers of 4 bytes and less are not looked at, nor functions that a kernel has beside it.
    """
    begun = "".join(f"\n  %{name} = alloca i64 store i64 0, ptr %{name}" for name in OF_NUMBERS)
    count = iter(range(len(text)))

    def with_bits(found: re.Match[str]) -> str:
        """Returns an access behind the code that notes the bits of its address."""
        n, name = next(count), f"%misaligned{found['bytes']}"
        return (
            f"  %a{n}. = ptrtoint ptr {found['at']} to i64 %b{n}. = load i64, ptr {name}\n"
            f"  %c{n}. = or i64 %a{n}., %b{n}. store i64 %c{n}., ptr {name}\n"
            f"  %d{n}. = and i64 %a{n}., -{found['bytes']} %e{n}. = inttoptr i64 %d{n}. to ptr\n"
            f"  {found['access']}ptr %e{n}., align 4"
        )

    before, name, after = text.partition('define void @"kernel"(')
    kernel, end, others = after.partition("\n}\n")
    kernel = ACCESS.sub(with_bits, kernel).replace("entry:", f"entry:{begun}", 1)
    kernel = re.sub(r"^ *ret void$", TOLD, kernel, flags=re.MULTILINE)
    return "".join((before, name, kernel, end, others, MISALIGNED))


TOLD = "  call void @told(ptr %misaligned8, ptr %misaligned16) ret void"
MISALIGNED = """
declare void @misaligned(i64)
define void @told(ptr %a, ptr %b) { %e = load i64, ptr %a %f = and i64 %e, 7
  %g = load i64, ptr %b %h = and i64 %g, 15 %i = or i64 %f, %h call void @misaligned(i64 %i) ret void }
"""
"""The end of a kernel, which tells the bits, and the function that it calls."""


@cache
def device_functions() -> MachineCode:
    """Returns the machine code of the functions that kernels call, and of the scheduler `run_all`."""
    return machine_code("device functions", called, OFTEN)


def machine_code(
    name: str, write: Callable[[], Linked], level: Level, functions: MachineCode | None = None
) -> MachineCode:
    """Returns machine code for this processor, read from disk, or compiled now and stored.

    name: what it is, for the key on disk. write: returns what is compiled. level: of the optimisation.
    functions: those that it calls.
    """
    processor = host_processor()
    stored = read("emulated", KERNEL, (name, processor))
    if stored is None:
        stored = run_in_thread(lambda: compiled(write, processor, level))
        keep("emulated", KERNEL, (name, processor), stored)
    return MachineCode(stored, functions)


def compiled(write: Callable[[], Linked], processor: Processor, level: Level) -> ObjectCode:
    """Compiles modules in a thread that may call LLVM. write: returns the modules. level: optimisation."""
    machine, triple = code_generator(processor, level)
    text, libraries, public = write()
    with linked(text, libraries, machine, triple, public, level) as module:
        return ObjectCode(emit_object(machine, module), tuple(sorted(public)))


def started(words: int) -> str:
    """Returns the function that a fiber runs: it calls the kernel with the words at an address."""
    loads = "".join(
        f"%p{n} = getelementptr i64, ptr %a, i64 {n} %w{n} = load i64, ptr %p{n} " for n in range(words)
    )
    values = ", ".join(f"i64 %w{n}" for n in range(words))
    return f"\ndefine void @run(ptr %a) {{ {loads} call void @kernel({values}) ret void }}\n"


@cache
def code_generator(processor: Processor, level: Level) -> tuple[Any, str]:
    """Returns LLVM's code generator, made once, and its target's name. level: of the optimisation."""
    load_llvm()
    with reserve(BASE_BYTES):
        for part in ("target", "asmprinter", "asmparser"):  # the parser is for the change of stacks
            getattr(llvm, f"initialize_native_{part}")()
        target = llvm.Target.from_default_triple()
        made = target.create_target_machine(cpu=processor.cpu, features=processor.features, opt=level)
        return made, llvm.get_process_triple()
