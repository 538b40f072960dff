"""The machine code that writes the tables of a step's rows; see `steps`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.steps import WORDS, WRITE
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode


def write_steps(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `place_rows`, which writes the tables of the rows (sequences)
    that take a step, and the argument words that depend on their number. Its argument points to the words of
    the task, and its result is 0: the task is done.
    """
    module = ir.Module("steps")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "place_rows")
    code, (words,) = WordCode(function.append_basic_block("entry"), processor), function.args
    word = {name: code.word(words, 8 * place) for place, name in enumerate(WORDS)}
    rows, own, order, starts, writes = (
        code.inttoptr(word[name], POINTER) for name in ("rows", "own", "order", "starts", "writes")
    )
    with code.loop(code.number(0), word["count"]) as place:
        code.write_number(code.read_number(rows, code.read_number(own, place)), order, place)
        code.write_number(place, starts, code.read_number(rows, place))
    with code.loop(code.number(0), word["write_count"]) as number:
        entry = code.at(writes, code.mul(number, code.number(8 * len(WRITE))))
        code.set_word(
            code.pointer_at(entry, 8 * WRITE.index("word")), 0, code.word(entry, 8 * WRITE.index("value"))
        )
    code.ret(code.number(0))
    return module
