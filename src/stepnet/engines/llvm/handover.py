"""How one thread hands work to another, in machine code and without the interpreter's lock.

To sleep and be woken takes a thread 50 microseconds and more, as long as a small recurrence takes. So a
worker that has nothing to do looks for work for a while, takes it, and says that it is done; only when none
comes does it go to sleep, and that too in machine code.

A *place* is where one thread waits for another: a word, and the semaphore that it sleeps on. The word says
NOTHING; THERE, once somebody said so; ASLEEP, once who waits sleeps.
"""

import ctypes
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from llvmlite import ir

from stepnet.engines.llvm.build import MachineCode, NativeFunction
from stepnet.engines.llvm.code import I64, POINTER, Code
from stepnet.engines.llvm.semaphores import BYTES as SEMAPHORE
from stepnet.engines.llvm.semaphores import semaphores
from stepnet.engines.llvm.target import host_target

NOTHING, THERE, ASLEEP = range(3)
LOOKS = 10000
TAKES = 40

# Where things lie in a worker's memory: the place for work, its function and what that is told; in lines of
# their own, the place for work done, and the semaphores of both.
BEGIN, FUNCTION, TOLD, END, SEMAPHORES = 0, 16, 24, 64, 128
HANDLE = 8
ORDERS = 4
"""The words that tell `lead` its function, its own pointer, the worker's memory and the worker's pointer."""
BYTES = SEMAPHORES + 2 * SEMAPHORE


@dataclass(frozen=True)
class Signals:
    """The functions of this module, each of one pointer.

    look(place): waits until the word is THERE, and takes it. say(place): makes it THERE. rouse(place): wakes
    who sleeps there, to look for a while. serve(memory): waits for work and does it, for ever. lead(orders):
    runs a function in two threads, this one and a worker, if that takes it at once; gives whether it did.
    """

    look: NativeFunction
    say: NativeFunction
    rouse: NativeFunction
    serve: NativeFunction
    lead: NativeFunction


@cache
def signals() -> Signals:
    """The compiled functions."""
    module = ir.Module("handover")
    look, say = write_look(module), write_say(module)
    write_rouse(module)
    write_serve(module, look, say)
    write_lead(module, look, write_taken(module))
    compiled = MachineCode(module, host_target())
    names = [one.name for one in fields(Signals)]
    return Signals(*(compiled.function(name, ctypes.c_int64) for name in names))


def entered(module: ir.Module, name: str) -> tuple[ir.Function, Code, ir.Value]:
    """A new function of one pointer, and the word there."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), name)
    code = Code(function.append_basic_block("entry"), host_target())
    return function, code, code.bitcast(function.args[0], I64.as_pointer())


def system(code: Code, address: int, place: ir.Value, *told: int) -> None:
    """Calls one of the system's functions on the semaphore of a place."""
    kind = ir.FunctionType(I64, [I64] * (1 + len(told))).as_pointer()
    called = code.inttoptr(code.number(address), kind)
    assert isinstance(called, ir.NamedValue)
    handle = code.read(I64, code.at(place, HANDLE), 8)
    code.call(called, [handle, *map(code.number, told)])


def wake(code: Code, place: ir.Value) -> None:
    """Wakes who sleeps at a place."""
    system(code, semaphores().post, place, 1, 0)


def write_say(module: ir.Module) -> ir.Function:
    """say: the word becomes THERE; who sleeps there is woken."""
    function, code, word = entered(module, "say")
    before = code.atomic_rmw("xchg", word, code.number(THERE), "acq_rel")
    with code.when(code.icmp_signed("==", before, code.number(ASLEEP))):
        wake(code, function.args[0])
    code.ret(before)
    return function


def read_until(code: Code, word: ir.Value, how: Literal["==", "!="], seen: ir.Block, most: int) -> Any:
    """Reads a word up to so many times, and goes to `seen` once it is, or is not, THERE; else goes on here.

    Gives the count of reads, whose block begins them anew.
    """
    entry = code.block
    look, again, tired = (code.append_basic_block(name) for name in ("look", "again", "tired"))
    code.branch(look)
    code.position_at_end(look)
    looks = code.phi(I64)
    looks.add_incoming(code.number(0), entry)
    found = code.load_atomic(word, "acquire", 8)
    code.cbranch(code.icmp_signed(how, found, code.number(THERE)), seen, again)
    code.position_at_end(again)
    more = code.add(looks, code.number(1))
    looks.add_incoming(more, again)
    code.pause()
    code.cbranch(code.icmp_signed("<", more, code.number(most)), look, tired)
    code.position_at_end(tired)
    return looks


def write_look(module: ir.Module) -> ir.Function:
    """look: reads the word again and again; if it is THERE, it becomes NOTHING; after a while ASLEEP."""
    function, code, word = entered(module, "look")
    sleep, there, taken = (code.append_basic_block(name) for name in ("sleep", "there", "taken"))
    looks = read_until(code, word, "==", there, LOOKS)
    look, tired = looks.parent, code.block
    swapped = code.cmpxchg(word, code.number(NOTHING), code.number(ASLEEP), "acq_rel", "acquire")
    looks.add_incoming(code.number(0), tired)
    code.cbranch(code.extract_value(swapped, 1), sleep, look)
    # A signal may wake it too, while the word is still ASLEEP.
    code.position_at_end(sleep)
    system(code, semaphores().wait, function.args[0], -1)
    woken = code.load_atomic(word, "acquire", 8)
    looks.add_incoming(code.number(0), sleep)
    code.cbranch(code.icmp_signed("==", woken, code.number(ASLEEP)), sleep, look)
    # Who said it may take it back.
    code.position_at_end(there)
    took = code.cmpxchg(word, code.number(THERE), code.number(NOTHING), "acq_rel", "acquire")
    looks.add_incoming(code.number(0), there)
    code.cbranch(code.extract_value(took, 1), taken, look)
    code.position_at_end(taken)
    code.ret(code.number(THERE))
    return function


def write_taken(module: ir.Module) -> ir.Function:
    """taken: reads the word again and again until it is no longer THERE; in the end takes it back.

    Gives NOTHING if who looks there took it, THERE if nobody did.
    """
    function, code, word = entered(module, "taken")
    taken = code.append_basic_block("taken")
    read_until(code, word, "!=", taken, TAKES)
    swapped = code.cmpxchg(word, code.number(THERE), code.number(NOTHING), "acq_rel", "acquire")
    back = code.extract_value(swapped, 1)
    code.ret(code.select(back, code.number(THERE), code.number(NOTHING)))
    code.position_at_end(taken)
    code.ret(code.number(NOTHING))
    return function


def write_rouse(module: ir.Module) -> None:
    """rouse: from ASLEEP to NOTHING."""
    function, code, word = entered(module, "rouse")
    swapped = code.cmpxchg(word, code.number(ASLEEP), code.number(NOTHING), "acq_rel", "acquire")
    with code.when(code.extract_value(swapped, 1)):
        wake(code, function.args[0])
    code.ret(code.number(NOTHING))


def write_serve(module: ir.Module, look: ir.Function, say: ir.Function) -> None:
    """serve: look, work, say; again."""
    function, code, _ = entered(module, "serve")
    memory = function.args[0]
    again = code.append_basic_block("again")
    code.branch(again)
    code.position_at_end(again)
    code.call(look, [code.at(memory, BEGIN)])
    call(code, *(code.read(I64, code.at(memory, place), 8) for place in (FUNCTION, TOLD)))
    code.call(say, [code.at(memory, END)])
    code.branch(again)


def write_lead(module: ir.Module, look: ir.Function, taken: ir.Function) -> None:
    """lead: nothing if the worker sleeps, or does not take its part; else this thread's part, and a wait."""
    function, code, _ = entered(module, "lead")
    orders = function.args[0]
    address, own, memory, told = (code.read(I64, code.at(orders, 8 * place), 8) for place in range(ORDERS))
    worker = code.inttoptr(memory, POINTER)
    code.write_number(address, code.at(worker, FUNCTION), code.number(0))
    code.write_number(told, code.at(worker, TOLD), code.number(0))
    away, said, both = (code.append_basic_block(name) for name in ("away", "said", "both"))
    begin = code.bitcast(code.at(worker, BEGIN), I64.as_pointer())
    awake = code.cmpxchg(begin, code.number(NOTHING), code.number(THERE), "acq_rel", "acquire")
    code.cbranch(code.extract_value(awake, 1), said, away)
    code.position_at_end(said)
    refused = code.call(taken, [code.at(worker, BEGIN)])
    code.cbranch(code.icmp_signed("==", refused, code.number(THERE)), away, both)
    code.position_at_end(both)
    call(code, address, own)
    code.call(look, [code.at(worker, END)])
    code.ret(code.number(1))
    code.position_at_end(away)
    code.ret(code.number(0))


def call(code: Code, address: ir.Value, told: ir.Value) -> None:
    """Calls a function of one pointer."""
    called = code.inttoptr(address, ir.FunctionType(ir.VoidType(), [POINTER]).as_pointer())
    assert isinstance(called, ir.NamedValue)
    code.call(called, [code.inttoptr(told, POINTER)])
