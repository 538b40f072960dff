"""How one thread hands work to another, in machine code and without the interpreter's lock.

To sleep and be woken takes a thread 50 microseconds and more, as long as a small recurrence takes,
and the lock has to change hands each time. So a worker that has nothing to do looks for work for a
while, takes it, and says that it is done, all in machine code; only when there is none does it go
back to sleep.

A *word* of memory says what is at it: NOTHING; THERE, once somebody said so; ASLEEP, once who waits sleeps.
"""

import ctypes
from dataclasses import dataclass
from functools import cache

from llvmlite import ir

from stepnet.engines.llvm.build import MachineCode, NativeFunction
from stepnet.engines.llvm.code import I64, POINTER, Code
from stepnet.engines.llvm.target import host_target

NOTHING, THERE, ASLEEP = range(3)
LOOKS = 4000

# Where things lie in a worker's memory: the word for work, its function and what that is told; in a line of
# its own, the word for work done.
BEGIN, FUNCTION, TOLD, END, BYTES = 0, 8, 16, 64, 128


@dataclass(frozen=True)
class Signals:
    """The functions of this module, each of one pointer.

    look(word): waits a while, and gives THERE or ASLEEP. say(word): makes it THERE, and gives what it was.
    serve(memory): waits for work and does it, until none comes for a while, which gives ASLEEP, or until who
    waits for it has fallen asleep, which gives THERE.
    """

    look: NativeFunction
    say: NativeFunction
    serve: NativeFunction


@cache
def signals() -> Signals:
    """The compiled functions."""
    module = ir.Module("handover")
    look, say = write_look(module), write_say(module)
    write_serve(module, look, say)
    compiled = MachineCode(module, host_target())
    return Signals(*(compiled.function(name, ctypes.c_int64) for name in ("look", "say", "serve")))


def entered(module: ir.Module, name: str) -> tuple[ir.Function, Code]:
    """A new function of one pointer."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), name)
    return function, Code(function.append_basic_block("entry"), host_target())


def write_say(module: ir.Module) -> ir.Function:
    """say: the word becomes THERE."""
    function, code = entered(module, "say")
    word = code.bitcast(function.args[0], I64.as_pointer())
    code.ret(code.atomic_rmw("xchg", word, code.number(THERE), "acq_rel"))
    return function


def write_look(module: ir.Module) -> ir.Function:
    """look: reads the word again and again; if it is THERE, it becomes NOTHING; in the end, ASLEEP."""
    function, code = entered(module, "look")
    word = code.bitcast(function.args[0], I64.as_pointer())
    entry = code.block
    look, again, tired, there, late = (
        code.append_basic_block(name) for name in ("look", "again", "tired", "there", "late")
    )
    code.branch(look)
    code.position_at_end(look)
    looks = code.phi(I64)
    looks.add_incoming(code.number(0), entry)
    found = code.load_atomic(word, "acquire", 8)
    code.cbranch(code.icmp_signed("==", found, code.number(THERE)), there, again)
    code.position_at_end(again)
    more = code.add(looks, code.number(1))
    looks.add_incoming(more, again)
    code.pause()
    code.cbranch(code.icmp_signed("<", more, code.number(LOOKS)), look, tired)
    code.position_at_end(tired)
    swapped = code.cmpxchg(word, code.number(NOTHING), code.number(ASLEEP), "acq_rel", "acquire")
    code.cbranch(code.extract_value(swapped, 1), late, there)
    code.position_at_end(late)
    code.ret(code.number(ASLEEP))
    code.position_at_end(there)
    code.store_atomic(code.number(NOTHING), word, "release", 8)
    code.ret(code.number(THERE))
    return function


def write_serve(module: ir.Module, look: ir.Function, say: ir.Function) -> None:
    """serve: look, work, say; again."""
    function, code = entered(module, "serve")
    memory = function.args[0]
    again, work, tired, wake = (code.append_basic_block(name) for name in ("again", "work", "tired", "wake"))
    code.branch(again)
    code.position_at_end(again)
    found = code.call(look, [code.at(memory, BEGIN)])
    code.cbranch(code.icmp_signed("==", found, code.number(THERE)), work, tired)
    code.position_at_end(work)
    address, told = (code.read(I64, code.at(memory, place), 8) for place in (FUNCTION, TOLD))
    kind = ir.FunctionType(ir.VoidType(), [POINTER]).as_pointer()
    called = code.inttoptr(address, kind)
    assert isinstance(called, ir.NamedValue)
    code.call(called, [code.inttoptr(told, POINTER)])
    before = code.call(say, [code.at(memory, END)])
    code.cbranch(code.icmp_signed("==", before, code.number(ASLEEP)), wake, again)
    code.position_at_end(wake)
    code.ret(code.number(THERE))
    code.position_at_end(tired)
    code.ret(code.number(ASLEEP))
