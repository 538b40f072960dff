"""LLVM's code generation, called without the lock that llvmlite has around each call of its library.

    llvmlite     emit_object(module)    one module after the other
    here         emit_object(module)    modules of different contexts side by side, each on its own machine

LLVM itself runs such modules side by side, as in its link-time optimisation. All else is called with the
lock: it takes a tenth of the time.
"""

import ctypes
import os
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi


@cache
def library() -> Any:
    """LLVM's library, which llvmlite has loaded: the same functions, without its lock."""
    folder = os.path.dirname(ffi.__file__)
    loaded = ctypes.CDLL(os.path.join(folder, ffi.get_library_name()))
    signatures = {
        "TargetMachineEmitToMemory": (
            ctypes.c_void_p,
            [ctypes.c_void_p] * 2 + [ctypes.c_int, ctypes.c_void_p],
        ),
        "GetBufferStart": (ctypes.c_void_p, [ctypes.c_void_p]),
        "GetBufferSize": (ctypes.c_size_t, [ctypes.c_void_p]),
        "DisposeMemoryBuffer": (None, [ctypes.c_void_p]),
        "DisposeString": (None, [ctypes.c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = loaded[f"LLVMPY_{name}"]
        function.restype, function.argtypes = result, arguments
        setattr(loaded, name, function)
    return loaded


def emit_object(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """The object file of a module, which no other thread uses meanwhile, nor the machine."""
    called, said = library(), ctypes.c_void_p()
    buffer = called.TargetMachineEmitToMemory(machine, module, 1, ctypes.byref(said))
    if not buffer:
        text = ctypes.string_at(said.value or b"").decode()
        called.DisposeString(said)
        raise RuntimeError(text)
    try:
        return ctypes.string_at(called.GetBufferStart(buffer), called.GetBufferSize(buffer))
    finally:
        called.DisposeMemoryBuffer(buffer)
