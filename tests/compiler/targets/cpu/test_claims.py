"""Threads that share steps claim parts of each other's work: each part is computed once, whoever is late."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain

import numpy as np
import pytest
from llvmlite import ir

from stepnet.compiler.native.call_words import FRAME, WORDS
from stepnet.compiler.targets.cpu import I64, POINTER, Claims, Code, MachineCode, ThreadCode, host_processor
from stepnet.compiler.targets.cpu.machine.object_code import object_code

Array = np.ndarray
RUNS, LOOPS, PARTS = 3, 2, 5
"""Two loops, one after the other, run three times; in each the range of a thread has so many parts."""


def wait_for(code: Code, word: ir.Value, least: ir.Value) -> None:
    """Writes a wait until a word is at least some number, or for some seconds if it never is."""
    polls, most = code.alloca(I64), code.number(10**8)
    code.store(code.number(0), polls)

    def goes_on() -> ir.Value:
        """Writes the test whether to wait on."""
        is_less = code.icmp_signed("<", code.load_atomic(word, "acquire", 8), least)
        return code.and_(is_less, code.icmp_signed("<", code.load(polls), most))

    with code.loop_while(goes_on):
        code.pause()
        code.store(code.add(code.load(polls), code.number(1)), polls)


@cache
def machine_code() -> MachineCode:
    """The function `run(words, frame, log, done, helps)` of a thread.

    log [run, loop, place]: the parts that it claims, as owner * PARTS + index, from place 1 on; 0 has their
        number. done [run, loop]: the number of threads that have a part, and that of the computed parts;
        then a word for barriers.

    Each thread waits at its first part until all have one. The last thread is late: it then waits for all
    parts that others compute.
    """
    module, processor = ir.Module(), host_processor()
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] * 4 + [I64]), "run")
    code = Code(function.append_basic_block("entry"), processor)
    words, frame, log, done, number = function.args
    call = ThreadCode(code, words, frame)
    claims, zero, parts = Claims(call), code.number(0), code.number(PARTS)
    helps = code.icmp_signed("!=", number, zero)
    left = code.select(code.and_(helps, call.shared), code.number(PARTS - 1), zero)
    least = code.add(code.mul(code.sub(call.threads, code.number(1)), parts), left)
    is_late = code.icmp_signed("==", code.add(call.argument["thread"], code.number(1)), call.threads)
    _ = claims.lines

    def meet(number: ir.Value) -> None:
        """Writes a barrier; `number` is that of those before."""
        arrived = code.word_pointer(code.at(done, 16 * RUNS * LOOPS))
        code.atomic_rmw("add", arrived, code.number(1), "acq_rel")
        wait_for(code, arrived, code.mul(code.add(number, code.number(1)), call.threads))

    meet(zero)
    turn = code.alloca(ir.IntType(1))
    code.store(ir.Constant(ir.IntType(1), 0), turn)
    with code.loop(zero, code.number(RUNS)) as run:
        now = code.load(turn)
        code.store(code.not_(now), turn)
        for loop in range(LOOPS):
            place = code.add(code.mul(run, code.number(LOOPS)), code.number(loop))
            begun = code.word_pointer(code.at(done, code.mul(place, code.number(16))))
            counter = code.word_pointer(code.at(begun, 8))
            own = code.at(log, code.mul(place, code.number(8 * 64)))
            with claims.each(now, helps, lambda _: parts) as claim:
                count = code.add(code.read_number(own, zero), code.number(1))
                code.write_number(count, own, zero)
                code.write_number(code.add(code.mul(claim.owner, parts), claim.index), own, count)
                with code.when(code.icmp_signed("==", count, code.number(1))):
                    code.atomic_rmw("add", begun, code.number(1), "acq_rel")
                    wait_for(code, begun, call.threads)
                    with code.when(is_late):
                        wait_for(code, counter, least)
                code.atomic_rmw("add", counter, code.number(1), "acq_rel")
        meet(code.add(run, code.number(1)))
    code.ret(zero)
    return MachineCode(object_code(module, processor))


@pytest.mark.alone
@pytest.mark.parametrize(("threads", "helps"), [(1, True), (2, False), (2, True), (3, True)])
def test_every_part_is_computed_once_also_if_a_thread_is_late(threads: int, helps: bool) -> None:
    """Others take the parts of the late one from the end, if they help."""
    code = machine_code()
    run = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64)(
        code.function("run").address
    )
    shared, words = np.full((threads + 1, 16), 99), np.zeros((threads, len(WORDS)), np.int64)
    frames, logs = np.zeros((threads, len(FRAME)), np.int64), np.zeros((threads, RUNS, LOOPS, 64), np.int64)
    done = np.zeros((RUNS * LOOPS + 1, 2), np.int64)
    words[:, WORDS.index("claims")] = shared.ctypes.data
    words[:, WORDS.index("thread")] = range(threads)
    frames[:, FRAME.index("threads")] = threads
    with ThreadPoolExecutor(threads) as pool:
        arrays = zip(words, frames, logs, strict=True)
        list(pool.map(lambda own: run(*(each.ctypes.data for each in own), done.ctypes.data, helps), arrays))
    assert (done[:-1] == [threads, threads * PARTS]).all()
    for of_threads in logs.reshape(threads, -1, 64).swapaxes(0, 1):
        claimed = [own[1 : 1 + own[0]].tolist() for own in of_threads]
        assert sorted(chain(*claimed)) == [*range(threads * PARTS)]
        late = range((threads - 1) * PARTS, threads * PARTS)
        if threads == 1 or not helps:
            assert claimed[-1] == [*late]
        else:
            assert claimed[-1] == [late[0]]
            taken = [part for own in claimed for part in own if part in late[1:]]
            assert threads > 2 or taken == [*late[:0:-1]]
        for thread, own in enumerate(claimed[:-1]):
            assert own[0] == thread * PARTS
