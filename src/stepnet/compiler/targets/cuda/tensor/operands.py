"""Operands of the tensor cores: the numbers that a product multiplies of registers of weights and of values.

weights     16 bytes for each thread: numbers of float32 or tf32, or pairs of 16 bits    -> `weights_of`
values      a number of float32, or two of them                                          -> `values_of`
"""

from llvmlite import ir

from stepnet.compiler.targets.cuda.functions import F32
from stepnet.compiler.targets.cuda.tensor.numbers import FACTS, Numbers
from stepnet.compiler.targets.cuda.writer import KernelWriter, Value

PAIR = ir.LiteralStructType([F32] * 2)
ROUNDED = ("tf32", "tf32-float16")
"""The numbers of which each is one of tf32, and not two."""


def halves(code: KernelWriter, x: Value, count: int) -> list[Value]:
    """Writes x as a sum of one or two numbers of tf32."""
    high = code.function_call("tf32", F32, [x])
    return [high] if count == 1 else [high, code.function_call("tf32", F32, [code.fsub(x, high)])]


def thirds(code: KernelWriter, pair: list[Value], count: int) -> list[Value]:
    """Writes two numbers as sums of two or three bfloat16 numbers, largest first, each truncated. Three have
    all bits of float32. A register holds the bfloat16 numbers of both.
    """
    found: list[Value] = [code.function_call("pack_cut", F32, pair)]
    for _ in range(count - 1):
        pair = [code.fsub(x, code.function_call("cut", F32, [x])) for x in pair]
        found.append(code.function_call("pack_cut", F32, pair))
    return found


def values_of(code: KernelWriter, values: list[Value], numbers: Numbers, is_packed: bool) -> list[Value]:
    """Writes the operands of the tensor cores for one register of values: a number, or two where weights have
    16 bits. is_packed: whether the register has two numbers of bfloat16 already.
    """
    if numbers == "bfloat16":
        return values if is_packed else [code.function_call("pack", F32, values)]
    if FACTS[numbers].instruction == 16:
        return thirds(code, values, len(FACTS[numbers].terms))
    count = 1 if numbers in ROUNDED else 2
    return [half for x in values for half in halves(code, x, count)]


def weights_of(code: KernelWriter, register: Value, numbers: Numbers) -> list[Value]:
    """Writes the operands of the tensor cores for one register of weights, which `packed` has made."""
    if FACTS[numbers].instruction == 16:
        return [register]
    if FACTS[numbers].depth == 16:
        pair = code.function_call("unpack_half", PAIR, [register])
        return [code.extract_value(pair, n) for n in range(2)]
    return halves(code, register, 1 if numbers in ROUNDED else 2)


def packed(code: KernelWriter, weights: list[Value], numbers: Numbers) -> Value:
    """Writes one register of weights: a number, or two of 16 bits, the first in the lower half."""
    if len(weights) == 1:
        return weights[0]
    return code.function_call("pack" if FACTS[numbers].instruction == 16 else "pack_half", F32, weights)
