"""Generates a check whether an x86-64 processor and its system have the instructions that a library uses.

On a processor without them, the first such instruction would end the process.
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.library.library_code import function
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I32

BITS: dict[tuple[int, int, int], dict[str, int]] = {
    (1, 0, 2): {
        "sse3": 0,
        "pclmul": 1,
        "ssse3": 9,
        "fma": 12,
        "cx16": 13,
        "sse4.1": 19,
        "sse4.2": 20,
        "movbe": 22,
        "popcnt": 23,
        "aes": 25,
        "xsave": 26,
        "avx": 28,
        "f16c": 29,
        "rdrnd": 30,
    },
    (7, 0, 1): {
        "fsgsbase": 0,
        "bmi": 3,
        "avx2": 5,
        "bmi2": 8,
        "avx512f": 16,
        "avx512dq": 17,
        "rdseed": 18,
        "adx": 19,
        "avx512ifma": 21,
        "clflushopt": 23,
        "clwb": 24,
        "avx512cd": 28,
        "sha": 29,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    (7, 0, 2): {
        "avx512vbmi": 1,
        "avx512vbmi2": 6,
        "gfni": 8,
        "vaes": 9,
        "vpclmulqdq": 10,
        "avx512vnni": 11,
        "avx512bitalg": 12,
        "avx512vpopcntdq": 14,
        "movdiri": 27,
        "movdir64b": 28,
    },
    (7, 0, 3): {"avx512vp2intersect": 8, "avx512fp16": 23},
    (7, 1, 0): {"sha512": 0, "sm3": 1, "sm4": 2, "avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    (7, 1, 3): {"avxvnniint8": 4, "avxneconvert": 5, "avxvnniint16": 10},
    (0x80000001, 0, 2): {"lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21},
}
"""The bits of features in the answers of `cpuid`: by leaf, subleaf and register (a, b, c, d), by LLVM's names
(Intel's and AMD's manuals). Features that are missing here are never used by generated code: they are not
arithmetic.
"""
INSTRUCTIONS = {
    # push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid; mov [r8], eax; mov [r8+4], ebx;
    # mov [r8+8], ecx; mov [r8+12], edx; pop rbx; ret
    "cpuid": "53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3",
    "xgetbv": "31c9 0f01d0 c3",  # xor ecx, ecx; xgetbv; ret
}
"""Machine code of cpuid(leaf, subleaf, answer) and xgetbv(), which LLVM's text cannot express."""
SAVED = 1, 0, 2, 27
"""The bit that says that xgetbv may be used: leaf, subleaf, register and bit."""
SAVING = "a system that saves its vector registers"
"""The text for a missing feature where the system does not save the registers that the code uses."""
VECTORS, WIDE = 0b110, 0b11100110
"""The bits of xgetbv for registers of 256 and of 512 bits."""


def write_missing(
    module: ir.Module, processor: Processor, name: str, prefix: str, needs: tuple[str, ...]
) -> tuple[ir.Function, tuple[str, ...]]:
    """Generates a function that returns 0 if the processor at run time has all of some features, and the
    system saves its vector registers; else the number of the text for the missing feature, from 1 on.

    name: the name of the function. needs: the features, by LLVM's names; those that are not in `BITS` are
    skipped. prefix: put before the names of the functions in `INSTRUCTIONS`, which it calls. Returns the
    function, and the texts.
    """
    ir_function, code = function(module, processor, name, I32, [], public=False)
    texts, answer = [SAVING], code.alloca(I32, ir.Constant(I32, 4))
    asked = {index: [each for each in bits if each in needs] for index, bits in BITS.items()}
    required = {index: features for index, features in asked.items() if features or index == SAVED[:3]}

    def cpuid_register(leaf: int, subleaf: int, register: int) -> ir.Value:
        """Writes a call of cpuid for a leaf and subleaf; returns register a, b, c or d, numbers 0 to 3."""
        arguments = [ir.Constant(I32, leaf), ir.Constant(I32, subleaf), answer]
        code.function_call(f"{prefix}cpuid", ir.VoidType(), arguments)
        return code.read(I32, code.at(answer, 4 * register), 4)

    def return_without(register: ir.Value, bits: int, number: int) -> None:
        """Writes code that returns the number of a text unless a register has all of some bits."""
        has = code.and_(register, ir.Constant(I32, bits))
        code.return_when(code.icmp_unsigned("!=", has, ir.Constant(I32, bits)), ir.Constant(I32, number))

    for (leaf, subleaf, number), features in required.items():
        # A processor that does not know a leaf answers with that of another one.
        highest = cpuid_register(leaf & 0x80000000, 0, 0)
        unknown = code.icmp_unsigned("<", highest, ir.Constant(I32, leaf))
        register = code.select(unknown, ir.Constant(I32, 0), cpuid_register(leaf, subleaf, number))
        for feature in features:
            texts.append(feature)
            return_without(register, 1 << BITS[leaf, subleaf, number][feature], len(texts))
        if (leaf, subleaf, number) == SAVED[:3]:
            return_without(register, 1 << SAVED[3], 1)
    saved = VECTORS | (WIDE if "avx512f" in needs else 0)
    return_without(code.function_call(f"{prefix}xgetbv", I32, []), saved, 1)
    code.ret(ir.Constant(I32, 0))
    return ir_function, tuple(texts)
