"""Calls of the system: the clock, resting (a short sleep), and yielding the processor."""

import sys

from llvmlite import ir

from stepnet.compiler.native.system import REST, clock
from stepnet.compiler.targets.cpu.writing.code import I32, I64, Code


def write_ticks(code: Code, address: ir.Value, scratch: ir.Value) -> ir.Value:
    """Writes a read of the clock, and returns the time in ticks. address: of the system's clock function.
    scratch: a buffer of 16 bytes.
    """
    number = clock().number
    if number is None:
        code.call_at(address, ir.VoidType(), [scratch])
        return code.read(I64, scratch, 8)
    code.call_at(address, ir.VoidType(), [code.number(number), scratch])
    return code.add(
        code.mul(code.read(I64, scratch, 8), code.number(10**9)), code.read(I64, code.at(scratch, 8), 8)
    )


def write_rest(code: Code, address: ir.Value) -> None:
    """Writes a short sleep of the thread. address: of the system's function that sleeps."""
    code.call_at(address, ir.VoidType(), [code.number(0 if sys.platform == "win32" else REST)])


def write_yield(code: Code) -> None:
    """Writes a call of the system that yields the processor to other threads."""
    code.function_call("system_yield", I32, [])
