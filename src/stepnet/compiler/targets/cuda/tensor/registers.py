"""Estimates of the registers of a thread, by which a loop's operands are kept in registers or shared memory.

What the compiler of a GPU's code needs is known only after it has run. The estimate is larger than what it
needed for the loops of `tests/compiler/targets/cuda/test_tensor_registers.py`, so that nothing is spilled.
"""

from dataclasses import replace
from typing import Literal

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.tensor.shape import TensorSchedule, TensorShape
from stepnet.compiler.targets.cuda.tensor.step import TensorStep

MOST = 255
"""The most registers of a thread."""
TIGHT = 128
"""Up to this limit, code for few operands is written so that it needs fewer registers."""
OTHERS = {"float32": (24, 44), "tf32": (44, 68), "bfloat16": (48, 72)}
"""Registers for addresses, places in the loop and temporary numbers, by the format in which float32 is
multiplied: within a tight limit, and elsewhere.
"""
PLAIN_OTHERS = {1: (54, 88), 2: (72, 110), 4: (92, 124)}
"""The same where plain units multiply, by the sequences of a block, with what is read of these ahead: where a
block has more than 8 warps, and elsewhere.
"""
PLAIN_AWAY = 32
"""Registers for weights that plain units read from shared memory, where not all stay in registers."""
SPLIT = 12
"""Registers within a tight limit for each number beyond two that one of float32 is made of."""
READ = {"float32": 2, "tf32": 1, "bfloat16": 1}
"""Registers for each operand of weights, as values are read for several of them at a time."""
MOST_READ = 48
"""The most registers for this."""
ABREAST = 5
"""Registers for each further operand of values that an operand of weights is multiplied with."""
AHEAD = 24
"""Registers by which steps that are written one after another need more than one."""


def limit(shape: TensorShape, device: DeviceFacts) -> int:
    """Returns the most registers that a thread of a loop can have."""
    return min(MOST, device.registers // shape.threads // 8 * 8)


def without_operands(shape: TensorShape, device: DeviceFacts) -> int:
    """Estimates the registers that a thread needs for all but operands of weights."""
    step, schedule = shape.step, shape.schedule
    sums = max((each.results for each in step.sums.values()), default=0)
    values = len(step.memories) + len(step.vectors) + schedule.ahead * len(step.read_sequences)
    if shape.is_plain:
        values += 2 * (schedule.ahead + len(step.outputs)) + 4 * (len(step.lefts) - 1)
        values += schedule.rows * schedule.chains * sums
        return PLAIN_OTHERS[schedule.rows][limit(shape, device) == MOST] + values
    ahead = AHEAD if schedule.ahead > 1 and sums else 0
    is_tight = limit(shape, device) <= TIGHT
    most = max((len({j for _, j in facts.terms}) for facts in shape.multiplied), default=0)
    others = OTHERS[schedule.numbers][not is_tight] + (SPLIT * max(0, most - 2) if is_tight else 0)
    read = min(MOST_READ, READ[schedule.numbers] * shape.operands)
    read += read_directly(shape) + ABREAST * (shape.abreast - 1)
    return others + read + ahead + 4 * shape.abreast * schedule.chains * sums + shape.elements * values


def read_directly(shape: TensorShape) -> int:
    """Returns the registers for values that are read from the second cache: for those that are multiplied,
    and for those that are read meanwhile.
    """
    numbers = [
        shape.read_at_once(each) * shape.fragment(left) // 4
        for each in shape.step.sums.values()
        for left in each.lefts
        if left in shape.direct
    ]
    return 2 * shape.abreast * max(numbers, default=0)


def operand_registers(shape: TensorShape, column: Literal["resident", "unsplit"]) -> int:
    """Returns the registers of an operand of weights, the most of all products; 4 on plain units."""
    if shape.is_plain:
        return 4
    return max((getattr(facts, column) for facts in shape.multiplied), default=4)


def room(shape: TensorShape, device: DeviceFacts) -> int:
    """Estimates the registers of a thread that there are for operands of weights."""
    free = limit(shape, device) - without_operands(shape, device)
    is_short = shape.is_plain and operand_registers(shape, "resident") * shape.operands > free
    return max(0, free - PLAIN_AWAY * is_short)


def fitted(step: TensorStep, schedule: TensorSchedule, device: DeviceFacts) -> TensorShape:
    """Returns the shape of a loop with as many operands in registers as are estimated to fit.

    Where the others are too many for shared memory, left operands have one place there. If that is not
    enough, some operands stay in registers as they are stored, where these are fewer, and values
    are read one step ahead, which takes fewer registers.
    """
    shape = TensorShape(step, schedule)
    resident = min(shape.operands, room(shape, device) // operand_registers(shape, "resident"))
    whole = TensorShape(step, replace(schedule, resident=resident))
    if (
        whole.shared_bytes <= device.shared
        or schedule.parts == 1
        or schedule.exchange in ("cluster", "plain")
    ):
        return whole
    single = TensorShape(step, replace(whole.schedule, places=min(1, schedule.places)))
    is_tight = limit(single, device) <= TIGHT
    if single.shared_bytes <= device.shared or is_tight or not any(f.is_split for f in shape.multiplied):
        return single
    close = TensorShape(step, replace(single.schedule, ahead=1))
    away = (device.shared - close.states_bytes - close.sums_bytes) // close.operand_bytes
    split, unsplit = operand_registers(close, "resident"), operand_registers(close, "unsplit")
    kept = close.operands - max(0, away)
    left = room(close, device) - unsplit * kept
    if away < 0 or left < 0:
        return single
    resident = min(kept, left // (split - unsplit))
    return TensorShape(step, replace(close.schedule, resident=resident, unsplit=kept - resident))


def registers(shape: TensorShape, device: DeviceFacts) -> int:
    """Estimates the registers of a thread of a loop."""
    kept = min(shape.operands, shape.schedule.resident)
    needed = without_operands(shape, device) + operand_registers(shape, "resident") * kept
    needed += operand_registers(shape, "unsplit") * shape.schedule.unsplit
    needed += PLAIN_AWAY * (shape.is_plain and shape.away > 0)
    return min(limit(shape, device), -(-needed // 8) * 8)
