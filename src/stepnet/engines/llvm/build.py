"""LLVM text to machine code."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from stepnet.engines.llvm.target import Target

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


@dataclass(frozen=True)
class NativeFunction:
    """A function of machine code, which stays loaded as long as this does.

    `call(pointer)` runs it without the interpreter's lock.
    """

    address: int
    call: Callable[[int], Any]
    code: "MachineCode"


class MachineCode:
    """A compiled module; it stays loaded as long as this object lives."""

    def __init__(self, module: ir.Module, target: Target) -> None:
        parsed = llvm.parse_assembly(str(module))
        triple = llvm.Target.from_default_triple()
        machine = triple.create_target_machine(cpu=target.cpu, features=target.features, opt=3)
        # LLVM's optimiser is left out: the code is written as it should run. On a GRU it took 40% of the
        # compile time and changed the speed by less than its spread.
        parsed.verify()
        self.module = parsed
        self.machine = machine
        self.engine = llvm.create_mcjit_compiler(parsed, machine)
        self.engine.finalize_object()

    def function(self, name: str, result: Any = None) -> "NativeFunction":
        """A function that takes one pointer."""
        address = self.engine.get_function_address(name)
        return NativeFunction(address, ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address), self)

    def assembly(self) -> str:
        """The machine code as text."""
        return self.machine.emit_assembly(self.module)
