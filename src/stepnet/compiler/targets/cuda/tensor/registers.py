"""Estimates of the registers of a thread, by which a loop's operands are kept in registers or shared memory.

What the compiler of a GPU's code needs is known only after it has run. The estimate is larger than what it
needed for the loops of `tests/compiler/targets/cuda/test_tensor_registers.py`, so that nothing is spilled.
"""

from dataclasses import replace

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.tensor.shape import TensorSchedule, TensorShape
from stepnet.compiler.targets.cuda.tensor.step import TensorStep

MOST = 255
"""The most registers of a thread."""
TIGHT = 128
"""Up to this limit, code for few operands is written so that it needs fewer registers."""
OTHERS = {"float32": (12, 44), "tf32": (44, 68), "bfloat16": (44, 68)}
"""Registers for addresses, places in the loop and temporary numbers: within a tight limit, and elsewhere."""
READ = {"float32": 2, "tf32": 1, "bfloat16": 1}
"""Registers for each operand of weights, as values are read for several of them at a time."""
MOST_READ = 48
"""The most registers for this."""
AHEAD = 24
"""Registers by which steps that are written one after another need more than one."""
TWICE = {"float32": 8, "tf32": 4, "bfloat16": 4}
"""The registers of an operand of weights: of its halves, in float32."""


def limit(shape: TensorShape, device: DeviceFacts) -> int:
    """Returns the most registers that a thread of a loop can have."""
    return min(MOST, device.registers // shape.threads // 8 * 8)


def without_operands(shape: TensorShape, device: DeviceFacts) -> int:
    """Estimates the registers that a thread needs for all but operands of weights."""
    step, schedule = shape.step, shape.schedule
    sums = max((each.results for each in step.sums.values()), default=0)
    values = len(step.memories) + len(step.vectors) + schedule.ahead * len(step.read_sequences)
    ahead = AHEAD if schedule.ahead > 1 and sums else 0
    others = OTHERS[schedule.numbers][limit(shape, device) > TIGHT]
    read = min(MOST_READ, READ[schedule.numbers] * shape.operands)
    return others + read + ahead + 4 * schedule.chains * sums + shape.elements * values


def fitted(step: TensorStep, schedule: TensorSchedule, device: DeviceFacts) -> TensorShape:
    """Returns the shape of a loop with as many operands in registers as are estimated to fit."""
    shape = TensorShape(step, schedule)
    room = limit(shape, device) - without_operands(shape, device)
    resident = min(shape.operands, max(0, room // TWICE[schedule.numbers]))
    return TensorShape(step, replace(schedule, resident=resident))


def registers(shape: TensorShape, device: DeviceFacts) -> int:
    """Estimates the registers of a thread of a loop."""
    kept = min(shape.operands, shape.schedule.resident)
    needed = without_operands(shape, device) + TWICE[shape.schedule.numbers] * kept
    return min(limit(shape, device), -(-needed // 8) * 8)
