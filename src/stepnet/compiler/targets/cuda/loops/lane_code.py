"""Writes the work of a lane of a loop in a turn: the steps of a sequence, as the table of lanes says."""

from llvmlite import ir

from stepnet.compiler.targets.cuda.codes import LANE_WORDS
from stepnet.compiler.targets.cuda.writer import KernelWriter, Value
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class LaneTurn:
    """The steps of a sequence that a lane runs in a turn of its group.

    row: the number of the sequence, of any one in a lane that is idle.
    start: the entry from which its steps are found. time: the first of these steps, 0 if there is none.
    before: the steps of the sequence in earlier turns. count: the steps in this turn.
    begins, ends: whether the sequence begins with this turn, and whether it ends in it.
    steps: the most steps of a lane in this turn, the same for all of the group.
    """

    row: Value
    start: Value
    time: Value
    before: Value
    count: Value
    begins: Value
    ends: Value
    steps: Value


def turns_of(code: KernelWriter, group: Value) -> tuple[Value, Value]:
    """Writes loads of the first turn of a group of blocks, and of the number of its turns."""
    first, last = (
        code.read_number(code.pointer("turns"), code.add(group, code.number(place))) for place in (0, 1)
    )
    return first, code.sub(last, first)


def lane_at(code: KernelWriter, turn: Value, lane: Value, lanes: int) -> LaneTurn:
    """Writes loads of a lane's entry for a turn: its sequence and its steps. lanes: the lanes of a group."""
    at = code.add(code.mul(turn, code.number(lanes)), lane)
    first = code.mul(at, code.number(len(LANE_WORDS)))
    row, start, time, before, count, ends, steps = (
        code.read_number(code.pointer("lanes"), code.add(first, code.number(place)))
        for place in range(len(LANE_WORDS))
    )
    zero = code.number(0)
    begins: ir.Value = code.icmp_signed("==", before, zero)
    return LaneTurn(row, start, time, before, count, begins, code.icmp_signed("!=", ends, zero), steps)
