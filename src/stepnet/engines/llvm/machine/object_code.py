"""LLVM text to object code; and object code loaded by LLVM, where nothing else can load it.

LLVM is called apart (see `apart`): its library has a lock around each call, and objects that are to be freed
once.
"""

from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from stepnet.engines.apart import apart
from stepnet.engines.llvm.machine.image import ObjectCode
from stepnet.engines.llvm.machine.system import symbols
from stepnet.engines.llvm.machine.target import Target

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def object_code(module: ir.Module, target: Target) -> ObjectCode:
    """What LLVM makes of a module for a target."""
    text, names = str(module), tuple(f.name for f in module.functions if is_public(f))
    return ObjectCode(apart(lambda: emitted(text, target)), names)


def is_public(function: ir.Function) -> bool:
    """Whether a function is called from outside its module."""
    return not function.is_declaration and function.linkage != "internal"


def emitted(text: str, target: Target) -> bytes:
    """The object file of a module's text."""
    parsed = llvm.parse_assembly(text, llvm.create_context())
    # LLVM's optimiser is left out: the code is written as it should run. On a GRU it took 40% of the
    # compile time and changed the speed by less than its spread.
    parsed.verify()
    data: bytes = emitter(target).emit_object(parsed)
    # What LLVM knows of a module is a hundred times as large as its code, and goes here.
    parsed.close()
    return data


@cache
def emitter(target: Target) -> llvm.TargetMachine:
    """The machine that writes code for a target: one for all, for it keeps half a megabyte once it has."""
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
    return apart(lambda: loaded(code))


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
