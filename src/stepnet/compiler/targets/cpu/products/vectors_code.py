"""The machine code of sums of vectors of parameters; see `pack`."""

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.pack import VECTOR_WORD, VECTOR_WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code, load_vector, store_vector


def write_vectors(processor: Processor, dtype: str) -> ir.Module:
    """Generates the LLVM module of the function `vectors`, which copies and adds vectors of a dtype: a loop
    over the rows of its argument.
    """
    module = ir.Module("vectors")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "vectors")
    code, rows = Code(function.append_basic_block("entry"), processor), function.args[0]
    with code.loop(code.number(0), code.read(I64, rows, 8)) as row:
        write_row(code, code.at(rows, code.mul(row, code.number(8 * len(VECTOR_WORDS)))), dtype)
    code.ret(code.number(0))
    return module


def write_row(code: Code, row: ir.Value, dtype: str) -> None:
    """Writes the copy or the addition of one vector, by its words at the pointer `row`."""
    itemsize = np.dtype(dtype).itemsize
    words = {name: code.read(I64, code.at(row, 8 * place), 8) for name, place in VECTOR_WORD.items()}
    into = code.inttoptr(words["into"], POINTER)
    source = code.inttoptr(code.add(words["source"], words["offset"]), POINTER)
    adds = code.icmp_signed("!=", words["adds"], code.number(0))
    with code.when(code.not_(adds)):
        code.copy_bytes(into, source, words["bytes"])
    with code.when(adds):
        size = code.number(code.processor.vector_bytes)
        whole = code.mul(code.sdiv(words["bytes"], size), size)
        for begin, end, bytes_ in (
            (code.number(0), whole, code.processor.vector_bytes),
            (whole, words["bytes"], itemsize),
        ):
            with code.loop(begin, end, bytes_) as start:
                there, here, width = code.at(into, start), code.at(source, start), bytes_ // itemsize
                both = [load_vector(code, dtype, width, each, itemsize) for each in (there, here)]
                store_vector(code, dtype, code.fadd(*both), there, itemsize)
