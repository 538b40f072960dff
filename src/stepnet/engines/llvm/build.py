"""LLVM text to machine code.

A process may fork while another of its threads compiles. The child has what that thread left half done, and
the lock that llvmlite takes around each call of LLVM for ever taken. So a fork waits for the call to end.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from llvmlite.binding import ffi

from stepnet.engines.llvm.target import Target

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

if hasattr(os, "register_at_fork"):
    lock = ffi.lib._lock  # pyright: ignore[reportPrivateUsage] - it has no public name

    def release() -> None:
        """Lets LLVM be called again."""
        lock.__exit__(None, None, None)

    os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)


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


class MachineCode:
    """A compiled module; it stays loaded as long as this object lives. bytes: those of its instructions."""

    def __init__(self, module: ir.Module, target: Target) -> None:
        parsed = llvm.parse_assembly(str(module), llvm.create_context())
        # LLVM's optimiser is left out: the code is written as it should run. On a GRU it took 40% of the
        # compile time and changed the speed by less than its spread.
        parsed.verify()
        compiled = emitter(target).emit_object(parsed)
        # What LLVM knows of a module is a hundred times as large as its code, and goes here.
        parsed.close()
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(target))
        file = llvm.ObjectFileRef.from_data(compiled)
        self.bytes = sum(section.size() for section in file.sections() if section.is_text())
        self.engine.add_object_file(file)
        self.engine.finalize_object()

    def function(self, name: str, result: Any = None) -> "NativeFunction":
        """A function that takes one pointer."""
        address = self.engine.get_function_address(name)
        return NativeFunction(address, ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address), self)
