"""The machine code that measures how fast threads exchange values; see `exchanges`."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.threads.exchanges import WORDS
from stepnet.compiler.targets.cpu.threads.waiting import barrier, wait_while
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code


def write_exchanges(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the function `exchanges(words)`, which each of two threads runs: round by
    round it writes its own lines of a buffer, waits for the other thread at a barrier, and reads the lines of
    that one. Two buffers take turns, as the memories before and after a step do. words: the pointer to the
    arguments of the thread, `WORDS`.
    """
    module = ir.Module("exchanges")
    module.triple = ""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), "exchanges")
    code, words = Code(function.append_basic_block("entry"), processor), function.args[0]

    def number(name: str) -> ir.Value:
        """Writes a load of the argument word `name`."""
        return code.read(I64, code.at(words, 8 * WORDS.index(name)), 8)

    def pointer(name: str) -> ir.Value:
        """Writes a load of the argument word `name` as a pointer."""
        return code.inttoptr(number(name), POINTER)

    system, progress, zero = (number("rest"), number("clock")), pointer("progress"), code.number(0)
    code.call(wait_while(code), [progress, zero, *system])
    threads = code.read(I64, progress, 8)
    bytes_ = code.mul(number("lines"), code.number(LINE))
    own = code.mul(number("thread"), bytes_)
    others = code.sub(code.mul(code.sub(threads, code.number(1)), bytes_), own)
    first, second, meeting = map(pointer, ("first", "second", "barrier"))
    with code.loop(zero, number("rounds")) as turn:
        is_odd = code.icmp_signed("!=", code.and_(turn, code.number(1)), zero)
        buffer = code.select(is_odd, second, first)
        with code.loop(zero, bytes_, LINE) as offset:
            code.write(turn, code.at(code.at(buffer, own), offset), 8)
        code.call(barrier(code), [meeting, threads, *system])
        there = code.at(buffer, others)
        # The sum is stored, so that LLVM keeps the reads.
        sums = code.carry(
            0, bytes_, [zero], lambda at, now: [code.add(now[0], number_at(code, there, at))], step=LINE
        )
        code.write(sums[0], code.at(words, 8 * WORDS.index("sum")), 8)
    code.ret(zero)
    return module


def number_at(code: Code, pointer: ir.Value, offset: ir.Value) -> ir.Value:
    """Writes a load of the 64-bit integer `offset` bytes behind a pointer."""
    return code.read(I64, code.at(pointer, offset), 8)
