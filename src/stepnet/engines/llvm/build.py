"""LLVM text to machine code.

LLVM is called apart (see `apart`): its library has a lock around each call, and objects that are to be freed
once.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from stepnet.engines.apart import apart
from stepnet.engines.llvm.target import Target

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def target_machine(target: Target) -> llvm.TargetMachine:
    """A new machine of LLVM's for a target."""
    triple = llvm.Target.from_default_triple()
    return triple.create_target_machine(cpu=target.cpu, features=target.features, opt=3)


@cache
def emitter(target: Target) -> llvm.TargetMachine:
    """The machine that writes code for a target: one for all, for it keeps half a megabyte once it has."""
    return target_machine(target)


@dataclass(frozen=True)
class NativeFunction:
    """A function of machine code, which stays loaded as long as this does.

    `call(pointer)` runs it without the interpreter's lock.
    """

    address: int
    call: Callable[[int], Any]
    code: "MachineCode"


DISCARDED: list[Any] = []


class MachineCode:
    """A compiled module; it stays loaded as long as this object lives. bytes: those of its instructions."""

    def __init__(self, module: ir.Module, target: Target) -> None:
        text, names = str(module), [f.name for f in module.functions if is_public(f)]
        self.engine, self.addresses, self.bytes = apart(lambda: loaded(text, names, target))

    def __del__(self, discarded: list[Any] = DISCARDED) -> None:
        # Any thread may be here, in the midst of anything: the next one that compiles frees it. (At the end
        # of the process the names of this module may be gone.)
        discarded.append(self.__dict__.pop("engine", None))

    def function(self, name: str, result: Any = None) -> "NativeFunction":
        """A function that takes one pointer."""
        address = self.addresses[name]
        return NativeFunction(address, ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address), self)


def is_public(function: ir.Function) -> bool:
    """Whether a function is called from outside its module."""
    return not function.is_declaration and function.linkage != "internal"


def loaded(text: str, names: list[str], target: Target) -> tuple[llvm.ExecutionEngine, dict[str, int], int]:
    """A module as machine code: what keeps it loaded, the addresses of functions, and the bytes of all."""
    DISCARDED.clear()
    parsed = llvm.parse_assembly(text, llvm.create_context())
    # LLVM's optimiser is left out: the code is written as it should run. On a GRU it took 40% of the
    # compile time and changed the speed by less than its spread.
    parsed.verify()
    compiled = emitter(target).emit_object(parsed)
    # What LLVM knows of a module is a hundred times as large as its code, and goes here.
    parsed.close()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(target))
    file = llvm.ObjectFileRef.from_data(compiled)
    size = sum(section.size() for section in file.sections() if section.is_text())
    engine.add_object_file(file)
    engine.finalize_object()
    return engine, {name: engine.get_function_address(name) for name in names}, size
