"""The machine code of moves of rows between arrays; see `moves`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.moves import PIECE, WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code


def write_moves(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `moves`, which copies pieces of one array to another. Its
    argument points to the words of the move, and its result is 0: a task of a call is done.
    """
    module = ir.Module("moves")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "moves")
    code, (words,) = Code(function.append_basic_block("entry"), processor), function.args
    source, result, count, pieces = (code.read_number(words, code.number(n)) for n in range(len(WORDS)))
    source, result, pieces = (code.inttoptr(number, POINTER) for number in (source, result, pieces))
    with code.loop(code.number(0), count) as piece:
        first = code.mul(piece, code.number(len(PIECE)))
        read, written, size = (
            code.read_number(pieces, code.add(first, code.number(n))) for n in range(len(PIECE))
        )
        code.copy_bytes(code.at(result, written), code.at(source, read), size)
    code.ret(code.number(0))
    return module
