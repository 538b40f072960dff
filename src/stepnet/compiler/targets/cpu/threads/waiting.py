"""Synchronization of threads that share a step, in machine code: a barrier, and waiting for progress."""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.call_words import PROGRESS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.system_code import write_rest, write_ticks

# Some 400 microseconds: longer than a rest (up to 150), or threads would rest one after the other.
SPINS = 10000


def internal(code: Code, name: str) -> tuple[ir.Function, Code | None]:
    """Returns the function `name` of the module, of a pointer and three integers, and the builder of its
    body; None instead of the builder if it was written before.
    """
    known = code.module.globals.get(name)
    if known is not None:
        return known, None
    function = ir.Function(code.module, ir.FunctionType(I64, [POINTER, I64, I64, I64]), name)
    function.linkage = "internal"
    return function, Code(function.append_basic_block("entry"), code.target)


def barrier(code: Code) -> ir.Function:
    """Writes the function `barrier(words, threads, rest, clock)` at its first use: it returns when all
    threads have called it.

    It returns the time spent resting, as `wait_while` does. words: the pointer to the number of threads that
    have arrived, and to the number of completed barriers. rest, clock: the addresses of the system's
    functions.
    """
    function, here = internal(code, "barrier")
    if here is None:
        return function
    count, threads, rest, clock = function.args
    turn = here.at(count, 8)
    word = here.word_pointer(turn)
    turns = here.load_atomic(word, "acquire", 8)
    before = here.atomic_rmw("add", here.word_pointer(count), here.number(1), "acq_rel")
    last, waits = here.append_basic_block("last"), here.append_basic_block("waits")
    here.cbranch(here.icmp_signed("==", here.add(before, here.number(1)), threads), last, waits)
    here.position_at_end(last)
    here.write(here.number(0), count, 8)
    following = here.add(turns, here.number(1))
    here.store_atomic(following, word, "release", 8)
    here.ret(here.number(0))
    here.position_at_end(waits)
    here.ret(here.call(wait_while(code), [turn, turns, rest, clock]))
    return function


def wait_while(code: Code) -> ir.Function:
    """Writes the function `wait_while(word, value, rest, clock)` at its first use: it returns when the word
    at a pointer differs from `value`. It returns the time spent resting, in ticks of the clock: 0 if spinning
    was enough. rest, clock: the addresses of the system's functions.
    """
    function, here = internal(code, "wait_while")
    if here is None:
        return function
    pointer, value, rest, clock = function.args
    word, scratch = here.word_pointer(pointer), here.alloca(I64, here.number(2))

    def same() -> ir.Value:
        """Writes the test whether the word that is waited for still has the value."""
        return here.icmp_signed("==", here.load_atomic(word, "acquire", 8), value)

    here.return_when(spin(here, same), here.number(0))
    began = write_ticks(here, clock, scratch)
    with here.loop_while(same):
        write_rest(here, rest)
    here.ret(here.sub(write_ticks(here, clock, scratch), began))
    return function


def spin(code: Code, waits: Callable[[], ir.Value]) -> ir.Value:
    """Writes a loop that polls a condition for a limited time, as long as it is true; returns whether it has
    become false. Other threads are usually about to arrive. If they are not, they may need a processor, so a
    thread that waits longer rests between polls. waits: writes the condition.
    """
    spins, most = code.alloca(I64), code.number(SPINS)
    code.store(code.number(0), spins)
    with code.loop_while(lambda: code.and_(waits(), code.icmp_signed("<", code.load(spins), most))):
        code.pause()
        code.store(code.add(code.load(spins), code.number(1)), spins)
    return code.icmp_signed("<", code.load(spins), most)


def wait_for_steps(code: Code) -> ir.Function:
    """Writes the function `wait_for_steps(progress, steps, rest, clock)` at its first use: it waits for steps
    of another call, whose outputs this one reads while both run. It returns 1 when that call has written the
    outputs of `steps` steps, and 0 if it pauses before that.
    """
    function, here = internal(code, "wait_for_steps")
    if here is None:
        return function
    progress, steps, rest, _ = function.args

    def word(name: str) -> ir.Value:
        """Writes an atomic load of the word `name` of the other call's progress."""
        place = here.at(progress, 8 * PROGRESS.index(name))
        return here.load_atomic(here.word_pointer(place), "acquire", 8)

    def are_missing() -> ir.Value:
        """Writes the test whether the other call has not written all of the steps yet."""
        return here.icmp_signed("<", word("reached"), steps)

    def waits() -> ir.Value:
        """Writes the test whether to wait on: steps are missing, and the other call does not pause."""
        return here.and_(are_missing(), here.icmp_signed("==", word("pause"), here.number(0)))

    spin(here, waits)
    with here.loop_while(waits):
        write_rest(here, rest)
    here.ret(here.select(are_missing(), here.number(0), here.number(1)))
    return function
