"""Work that threads which share a step claim while they run: each has a range of it, and helps with others'.

    groups of unit blocks    a a a a a a a a | b b b b b b b b      the ranges of two threads
    thread b is slow         a a a a a a a a | b b b b b a a a      those that each has computed

One processor may be slower than another for a while: another process takes some of its time or, in a virtual
machine, some of its core. A thread that has finished its own range goes on with that of another thread, from
the end. So parameters stay in the caches of the thread that has them, as long as all are equally fast.

A word for each thread counts what is claimed of its range: the lower half by the thread itself, the upper one
by others. The runs of a loop take turns with two such words. In a run each thread clears the other one of its
own; a barrier lies between two runs.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property

from llvmlite import ir

from stepnet.compiler.native.spaces import CLAIM_BYTES, LINE
from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode, at_entry
from stepnet.compiler.targets.cpu.writing.code import I64
from stepnet.compiler.values.records import dataclass

WORD, HALF = 8, 32
LOOPS = LINE // (2 * WORD)
"""The most loops of a function whose work is claimed: a thread has a cache line with two words for each."""


@dataclass(frozen=True)
class Claim:
    """A claimed part of a range of work.

    owner: the thread whose range it is. index: its place in the range. following: that of the part which this
    thread probably claims next. count: the number of parts of the range.
    """

    owner: ir.Value
    index: ir.Value
    following: ir.Value
    count: ir.Value


class Claims:
    """Writer of loops whose iterations the threads of a call claim.

    call: the function under construction, in which each loop is run by all threads, between two barriers.
    loops: the number of loops written so far, at most `LOOPS`.
    """

    def __init__(self, call: ThreadCode) -> None:
        """Takes the function under construction. There are no loops yet."""
        self.call, self.loops = call, 0

    @cached_property
    def lines(self) -> ir.Value:
        """The pointer to the cache line of the first thread. Each thread clears its own where the function
        begins, which is ahead of a barrier.
        """
        code, call = self.call.code, self.call
        with at_entry(code):
            lines = code.at(call.pointer["claims"], CLAIM_BYTES)
            code.zero_bytes(code.at(lines, code.mul(call.argument["thread"], code.number(CLAIM_BYTES))), LINE)
            return lines

    @contextmanager
    def each(
        self, turn: ir.Value, helps: ir.Value, count_of: Callable[[ir.Value], ir.Value]
    ) -> Generator[Claim]:
        """Context manager: writes a loop over what this thread claims of its own range, and then of the
        others'; gives the claim. The caller writes the body inside.

        turn: a flag that is false, true, false, ... from run to run of this loop. helps: whether threads
            claim work of others. count_of: computes the number of parts of the range of a thread, from the
            number of the thread.
        """
        code, call = self.call.code, self.call
        thread, threads, zero = call.argument["thread"], call.threads, code.number(0)
        slot = code.at(self.lines, 2 * WORD * self.loops)
        self.loops += 1
        own, now = (
            code.mul(thread, code.number(CLAIM_BYTES)),
            code.mul(code.zext(turn, I64), code.number(WORD)),
        )
        code.write(zero, code.at(code.at(slot, own), code.sub(code.number(WORD), now)), WORD)
        with code.loop(zero, code.select(helps, threads, code.number(1))) as ahead:
            behind = code.add(thread, ahead)
            is_beyond = code.icmp_signed(">=", behind, threads)
            owner = code.sub(behind, code.select(is_beyond, threads, zero))
            word = code.at(code.at(slot, now), code.mul(owner, code.number(CLAIM_BYTES)))
            is_own = code.icmp_signed("==", ahead, zero)
            with self.claimed(word, owner, is_own, count_of(owner)) as claim:
                yield claim

    @contextmanager
    def claimed(self, word: ir.Value, owner: ir.Value, is_own: ir.Value, count: ir.Value) -> Generator[Claim]:
        """Context manager: writes a loop over what this thread claims of the range of a thread, until nothing
        is left of it.

        word: the pointer to the word that counts what is claimed. count: the number of parts.
        """
        code, one = self.call.code, self.call.code.number(1)
        word, step = code.word_pointer(word), code.select(is_own, one, code.number(1 << HALF))
        last = code.sub(count, one)
        with at_entry(code):
            cell = code.alloca(I64)

        def is_left() -> ir.Value:
            """Writes the claim of a part, whose index is stored; returns whether one was left."""
            before = code.atomic_rmw("add", word, step, "acq_rel")
            by_owner, by_others = (
                code.and_(before, code.number(2**HALF - 1)),
                code.lshr(before, code.number(HALF)),
            )
            code.store(code.select(is_own, by_owner, code.sub(last, by_others)), cell)
            return code.icmp_signed("<", code.add(by_owner, by_others), count)

        with code.loop_while(is_left):
            index = code.load(cell)
            before = code.sub(index, code.zext(code.icmp_signed(">", index, code.number(0)), I64))
            following = code.select(is_own, code.smaller(code.add(index, one), last), before)
            yield Claim(owner, index, following, count)
