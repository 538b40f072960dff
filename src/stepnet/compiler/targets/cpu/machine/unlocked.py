"""LLVM's code generation, called without the lock that llvmlite holds during each call of its library.

    llvmlite     emit_object(module)    one module after the other
    here         emit_object(module)    modules of different LLVM contexts in parallel, each with a target
                                        machine of its own

LLVM supports this, and uses it for link-time optimisation. All other functions of LLVM are called through
llvmlite with the lock; they take a tenth of the time.
"""

import ctypes
import os
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi


@cache
def library() -> Any:
    """Returns LLVM's library through ctypes, so that calls do not take the lock of llvmlite, with the types
    of the functions that generate code declared.
    """
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
    """Compiles a parsed LLVM module to the bytes of an object file, without llvmlite's lock. No other thread
    may use the module or the machine (code generator) meanwhile. Raises `RuntimeError` with LLVM's message if
    it refuses the module.
    """
    functions, message = library(), ctypes.c_void_p()
    buffer = functions.TargetMachineEmitToMemory(machine, module, 1, ctypes.byref(message))
    if not buffer:
        text = ctypes.string_at(message.value or b"").decode()
        functions.DisposeString(message)
        raise RuntimeError(text)
    try:
        return ctypes.string_at(functions.GetBufferStart(buffer), functions.GetBufferSize(buffer))
    finally:
        functions.DisposeMemoryBuffer(buffer)
