"""Synchronization of threads that share a step, in machine code: a barrier, and waiting for progress."""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.native.call_words import PROGRESS
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.system_code import write_rest, write_ticks

# Some 400 microseconds: longer than a rest (up to 150), or threads would rest one after the other.
SPINS = 10000


def internal_function(code: Code, name: str) -> tuple[ir.Function, Code | None]:
    """Returns the function `name` of the module that `code` writes, of a pointer and three integers, and the
    builder of its body; None instead of the builder if it was written before.
    """
    known = code.module.globals.get(name)
    if known is not None:
        return known, None
    function = ir.Function(code.module, ir.FunctionType(I64, [POINTER, I64, I64, I64]), name)
    function.linkage = "internal"
    return function, Code(function.append_basic_block("entry"), code.processor)


def barrier(code: Code) -> ir.Function:
    """Writes the function `barrier(words, threads, rest, clock)` at its first use, and returns it. At run
    time it returns when all threads have called it, with the time spent resting, as `wait_while` does.

    words: the pointer to the number of threads that have arrived, and to the number of completed barriers.
    rest, clock: the addresses of the system's functions.
    """
    function, body = internal_function(code, "barrier")
    if body is None:
        return function
    count, threads, rest, clock = function.args
    generation_pointer = body.at(count, 8)
    progress_word = body.word_pointer(generation_pointer)
    generation = body.load_atomic(progress_word, "acquire", 8)
    before = body.atomic_rmw("add", body.word_pointer(count), body.number(1), "acq_rel")
    last, waits = body.append_basic_block("last"), body.append_basic_block("waits")
    body.cbranch(body.icmp_signed("==", body.add(before, body.number(1)), threads), last, waits)
    body.position_at_end(last)
    body.write(body.number(0), count, 8)
    following = body.add(generation, body.number(1))
    body.store_atomic(following, progress_word, "release", 8)
    body.ret(body.number(0))
    body.position_at_end(waits)
    body.ret(body.call(wait_while(code), [generation_pointer, generation, rest, clock]))
    return function


def wait_while(code: Code) -> ir.Function:
    """Writes the function `wait_while(word, value, rest, clock)` at its first use, and returns it. At run
    time it returns when the word at a pointer differs from `value`, with the time spent resting, in ticks of
    the clock: 0 if spinning was enough. rest, clock: the addresses of the system's functions.
    """
    function, body = internal_function(code, "wait_while")
    if body is None:
        return function
    pointer, value, rest, clock = function.args
    progress_word, scratch = body.word_pointer(pointer), body.alloca(I64, body.number(2))

    def same() -> ir.Value:
        """Writes the test whether the word that is waited for still has the value."""
        return body.icmp_signed("==", body.load_atomic(progress_word, "acquire", 8), value)

    body.return_when(spin(body, same), body.number(0))
    began = write_ticks(body, clock, scratch)
    with body.loop_while(same):
        write_rest(body, rest)
    body.ret(body.sub(write_ticks(body, clock, scratch), began))
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
    """Writes the function `wait_for_steps(progress, steps, rest, clock)` at its first use, and returns it. At
    run time it waits for steps of another call, whose outputs this one reads while both run. It returns 1
    when the other call has written the outputs of `steps` steps, 0 if that call pauses before.

    progress: the pointer to the progress of the other call.
    rest: the address of the system's function by which a thread rests. clock: not used.
    """
    function, body = internal_function(code, "wait_for_steps")
    if body is None:
        return function
    progress, steps, rest, _ = function.args

    def word(name: str) -> ir.Value:
        """Writes an atomic load of the word `name` of the other call's progress."""
        pointer = body.at(progress, 8 * PROGRESS.index(name))
        return body.load_atomic(body.word_pointer(pointer), "acquire", 8)

    def are_missing() -> ir.Value:
        """Writes the test whether the other call has not written all of the steps yet."""
        return body.icmp_signed("<", word("reached"), steps)

    def waits() -> ir.Value:
        """Writes the test whether to wait on: steps are missing, and the other call does not pause."""
        return body.and_(are_missing(), body.icmp_signed("==", word("pause"), body.number(0)))

    spin(body, waits)
    with body.loop_while(waits):
        write_rest(body, rest)
    body.ret(body.select(are_missing(), body.number(0), body.number(1)))
    return function
