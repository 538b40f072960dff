"""The machine code that ends a call ahead of its last step, where many of its sequences have ended.

    lanes at work   a b c d      at least half have ended   ->   all last memories are stored, the call ends
    ended?          1 0 1 0      fewer have                 ->   on with the next block

A sequence ends where a memory of its own, a bool, becomes True: `Call.until` is its place. The caller leaves
the ended sequences out, and goes on with the others from their last memories. Each of them has a lane alone.
"""

from llvmlite import ir

from stepnet.engines.llvm.emit.call_code import CallCode
from stepnet.engines.llvm.emit.transfers import end
from stepnet.engines.llvm.writing.code import I8, I64


def end_early(call: CallCode, stop: ir.Value, now: ir.Value) -> None:
    """Ends the call behind a block of steps if at least half of the lanes at work have ended.

    stop: the steps so far. now: the memories behind them.
    """
    code, until = call.code, call.word["until"]
    zero, lanes = code.number(0), call.word["lanes"]
    with code.when(code.icmp_signed(">=", until, zero)):
        code.store(zero, call.count_cell)
        code.store(zero, call.row_cell)
        with code.loop(zero, lanes) as lane, code.when(is_at_work(call, lane, stop)):
            memory = code.at(now, code.mul(lane, code.number(call.program.strides["now"])))
            ended = code.zext(code.read(I8, code.at(memory, until), 1), I64)
            code.store(code.add(code.load(call.count_cell), code.number(1)), call.count_cell)
            code.store(code.add(code.load(call.row_cell), ended), call.row_cell)
        ended, working = code.load(call.row_cell), code.load(call.count_cell)
        half = code.icmp_signed(">=", code.add(ended, ended), working)
        with code.when(code.and_(half, code.icmp_signed(">", ended, zero))):
            with code.loop(zero, lanes) as lane, code.when(is_at_work(call, lane, stop)):
                end(call, lane, call.read("current", lane), now)
            call.set_progress("over", code.number(1))


def is_at_work(call: CallCode, lane: ir.Value, stop: ir.Value) -> ir.Value:
    """Whether a lane has steps behind these."""
    return call.code.icmp_signed(">", call.read("lane_steps", lane), stop)
