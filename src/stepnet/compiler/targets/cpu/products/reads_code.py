"""The machine code that measures how fast a processor reads; see `reads`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.reads import ABREAST, WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code, load_vector


def write_reads(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `reads(words)`, which adds up all vectors of a buffer, as
    products of one row read parameters. words: the pointer to its arguments, `WORDS`.
    """
    module = ir.Module("reads")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "reads")
    code, size = Code(function.append_basic_block("entry"), processor), processor.vector_bytes
    buffer, count, _ = (code.read(I64, code.at(function.args[0], 8 * place), 8) for place in range(3))
    begin = code.inttoptr(buffer, POINTER)

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
    first = code.extract_element(total, ir.Constant(ir.IntType(32), 0))
    code.write(first, code.at(function.args[0], 8 * WORDS.index("sum")), 4)
    code.ret(code.number(0))
    return module
