"""Code that asks the system for the time, and for a rest."""

import sys

from llvmlite import ir

from stepnet.engines.llvm.machine.system import REST, clock
from stepnet.engines.llvm.writing.code import I32, I64, Code


def write_ticks(code: Code, address: ir.Value, scratch: ir.Value) -> ir.Value:
    """Code that reads the clock whose function is at an address; scratch: 16 bytes for its answer."""
    number = clock().number
    if number is None:
        code.call_at(address, ir.VoidType(), [scratch])
        return code.read(I64, scratch, 8)
    code.call_at(address, ir.VoidType(), [code.number(number), scratch])
    return code.add(
        code.mul(code.read(I64, scratch, 8), code.number(10**9)), code.read(I64, code.at(scratch, 8), 8)
    )


def write_rest(code: Code, address: ir.Value) -> None:
    """Code that rests by the function at an address."""
    code.call_at(address, ir.VoidType(), [code.number(0 if sys.platform == "win32" else REST)])


def write_yield(code: Code) -> None:
    """Code that lets other threads have the processor, if any wait for it."""
    code.function_call("system_yield", I32, [])
