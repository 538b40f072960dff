"""The machine code that measures how fast a processor reads, and how long it waits; see `reads`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.reads import ABREAST, WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code, load_vector


def write_reads(processor: Processor) -> ir.Module:
    """Generates the LLVM module of two functions. `reads(words)` adds up all vectors of a buffer, as products
    of one row read parameters. `waits(words)` computes as many multiply-adds as it is told bytes, each of the
    result of the one before. words: the pointer to their arguments, `WORDS`.
    """
    module = ir.Module("reads")
    module.triple = ""
    write_waits(module, processor)
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "reads")
    code, size = Code(function.append_basic_block("entry"), processor), processor.vector_bytes
    begin = code.inttoptr(code.read(I64, code.at(function.args[0], 8 * WORDS.index("buffer")), 8), POINTER)
    count = code.read(I64, code.at(function.args[0], 8 * WORDS.index("bytes")), 8)

    def added(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Writes additions of the next vectors to the sums."""
        places = (code.at(code.at(begin, at), number * size) for number in range(ABREAST))
        vectors = (load_vector(code, "float32", size // 4, place, size) for place in places)
        return [code.fadd(total, vector) for total, vector in zip(sums, vectors, strict=True)]

    zero = code.splat(ir.VectorType(ir.FloatType(), size // 4), 0.0)
    total, *sums = code.carry(0, count, [zero] * ABREAST, added, step=ABREAST * size)
    for other in sums:
        total = code.fadd(total, other)
    # The sum is stored, so that LLVM keeps the reads.
    write_first(code, total, function.args[0])
    return module


def write_waits(module: ir.Module, processor: Processor) -> None:
    """Generates the function `waits(words)` of the module."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "waits")
    code = Code(function.append_basic_block("entry"), processor)
    count = code.read(I64, code.at(function.args[0], 8 * WORDS.index("bytes")), 8)
    half = code.splat(ir.VectorType(ir.FloatType(), 4), 0.5)

    def next_value(_at: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        """Writes the multiply-adds of an iteration: each stays near 1."""
        (value,) = values
        for _ in range(ABREAST):
            value = code.fused(value, half, half)
        return [value]

    (total,) = code.carry(0, count, [half], next_value, step=ABREAST)
    write_first(code, total, function.args[0])


def write_first(code: Code, total: ir.Value, words: ir.Value) -> None:
    """Writes the first number of a vector to the word `sum`, and the end of the function."""
    first = code.extract_element(total, ir.Constant(ir.IntType(32), 0))
    code.write(first, code.at(words, 8 * WORDS.index("sum")), 4)
    code.ret(code.number(0))
