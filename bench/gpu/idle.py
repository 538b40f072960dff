"""A CUDA driver that does nothing, to measure what Python does around it.

Its functions are machine code that returns at once, so that the conversion of arguments is measured too. For
what a process does before its first result they are functions of Python: LLVM is then imported by nothing but
what is measured.
"""

import ctypes
import os
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.targets.cuda.driver.library import FUNCTIONS, LOADED, CudaLibrary

CONTEXT, MEMORY = 77, 1 << 40
"""The context of every thread, and the address of all memory."""
ATTRIBUTES = {16: 132, 75: 9, 76: 0, 82: 65536, 97: 232448, 115: 1, 120: 1}
"""The attributes of an H100 by their numbers."""
MODULE = f"""
define i32 @nothing() {{ ret i32 0 }}
define i32 @context(i64* %found) {{
  store i64 {CONTEXT}, i64* %found
  ret i32 0
}}
define i32 @memory(i64* %found) {{
  store i64 {MEMORY}, i64* %found
  ret i32 0
}}
"""
KINDS = {
    "cuCtxGetCurrent": "context",
    "cuDevicePrimaryCtxRetain": "context",
    "cuMemAllocFromPoolAsync": "memory",
}
"""The functions that write a number, by the code that does."""
WRITTEN = {"context": CONTEXT, "memory": MEMORY}
"""These numbers."""


KEPT = list[Any]()
"""The driver, whose machine code must stay, and its memory."""


class IdleDriver:
    """A CUDA driver whose functions return at once, as attributes."""

    def __init__(self, compiled: bool = True) -> None:
        """Makes the functions. compiled: whether they are machine code, else functions of Python."""
        self.code = machine_code() if compiled else None

    def __getattr__(self, name: str) -> Any:
        """Returns a function of the driver by its name."""
        if name not in FUNCTIONS:
            raise AttributeError(name)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *FUNCTIONS[name])
        does = getattr(type(self), f"do_{name}", None)
        if does is not None:
            made: Any = kind(does)
        elif self.code is not None:
            made = kind(self.code.get_function_address(KINDS.get(name, "nothing")))
        else:
            made = kind(partial(found, WRITTEN.get(KINDS.get(name, ""))))
        setattr(self, name, made)
        return made

    @staticmethod
    def do_cuMemHostAlloc(address: int, count: int, flags: int) -> int:  # noqa: N802
        """Allocates memory of the host."""
        KEPT.append(np.empty(count, np.uint8))
        ctypes.c_void_p.from_address(address).value = KEPT[-1].ctypes.data
        return 0

    @staticmethod
    def do_cuDriverGetVersion(version: int) -> int:  # noqa: N802
        """Gives the version of the driver."""
        ctypes.c_int.from_address(version).value = 12080
        return 0

    @staticmethod
    def do_cuDeviceGetCount(count: int) -> int:  # noqa: N802
        """Gives the number of GPUs."""
        ctypes.c_int.from_address(count).value = 1
        return 0

    @staticmethod
    def do_cuDeviceGetAttribute(value: int, attribute: int, device: int) -> int:  # noqa: N802
        """Gives an attribute of the GPU."""
        ctypes.c_int.from_address(value).value = ATTRIBUTES[attribute]
        return 0


def machine_code() -> Any:
    """Compiles `MODULE`, whose functions lie in memory as long as the result exists."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    code = llvm.create_mcjit_compiler(llvm.parse_assembly(MODULE), machine)
    code.finalize_object()
    return code


def found(number: int | None, *arguments: Any) -> int:
    """Does nothing but write a number, if there is one, to the first address; returns 0."""
    if number is not None:
        ctypes.c_int64.from_address(arguments[0]).value = number
    return 0


def begin(compiled: bool = True) -> None:
    """Puts the idle driver in the place of the driver, for this process. compiled: see `IdleDriver`."""
    KEPT.append(IdleDriver(compiled))
    LOADED[os.getpid()] = CudaLibrary(KEPT[0])
