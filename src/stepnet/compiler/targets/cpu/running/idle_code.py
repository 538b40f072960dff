"""The machine code that copies the initial memories of empty sequences to their final ones; see `idle`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.idle import PAIR, SIZES, WORDS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER
from stepnet.compiler.targets.cpu.writing.word_code import WordCode


def write_idle(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `idle`, which copies the initial memories (recurrent states)
    of sequences without steps to their final memories. Its argument points to the words of the task, and its
    result is 0: the task is done.
    """
    module = ir.Module("idle")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "idle")
    code, (words,) = WordCode(function.append_basic_block("entry"), processor), function.args
    rows, lengths, count = (code.word(words, 8 * WORDS.index(name)) for name in WORDS)
    pairs = code.at(words, 8 * len(WORDS))
    sizes = code.at(pairs, code.mul(count, code.number(8 * len(PAIR))))
    zero, table = code.number(0), code.inttoptr(lengths, POINTER)
    with (
        code.loop(zero, rows) as row,
        code.when(code.icmp_signed("==", code.read_number(table, row), zero)),
        code.loop(zero, count) as memory,
    ):
        own, size = (
            code.at(side, code.mul(memory, code.number(8 * len(names))))
            for side, names in ((pairs, PAIR), (sizes, SIZES))
        )
        source, result = (code.word(own, 8 * PAIR.index(name)) for name in PAIR)
        stride, bytes_ = (code.word(size, 8 * SIZES.index(name)) for name in SIZES)
        target = code.at(code.inttoptr(result, POINTER), code.mul(row, bytes_))
        is_zeros = code.icmp_signed("==", source, zero)
        with code.when(is_zeros):
            code.zero_bytes(target, bytes_)
        with code.when(code.not_(is_zeros)):
            code.copy_bytes(target, code.at(code.inttoptr(source, POINTER), code.mul(row, stride)), bytes_)
    code.ret(zero)
    return module
