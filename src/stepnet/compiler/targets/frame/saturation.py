"""Where numbers of a frame in integers saturate: a run that counts them.

narrowed to int8 or int16    minimum(maximum(x, low), high) is another number than x
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.targets.frame.arrays import FrameBuffer
from stepnet.compiler.targets.frame.numpy_run import FrameRun
from stepnet.compiler.targets.frame.program import PointwiseLoop
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass
class SaturatingRun(FrameRun):
    """A run of frames that counts what saturates. saturated, numbers: how many numbers did so, and how many
    there were, by the name of the array, or by what a loop computes for values in registers.
    """

    saturated: Counter[str] = field(default_factory=Counter[str])
    numbers: Counter[str] = field(default_factory=Counter[str])

    def pointwise(self, loop: PointwiseLoop) -> list[Any]:
        """Runs an elementwise loop, and counts the numbers that are narrowed in it."""
        registers, first = super().pointwise(loop), len(loop.reads)
        for number, each in enumerate(loop.body, first):
            if each.operation == "convert" and each.dtype in ("int8", "int16"):
                given = exact_of(loop, each.operands[0])
                if given is not None:
                    away = np.abs(np.subtract(registers[given], registers[number], dtype=np.int64))
                    name = self.name_of(loop, number)
                    self.saturated[name] += int((away > 1).sum())  # a sigmoid of 1 is 1 - 2^-15
                    self.numbers[name] += away.size
        return registers

    def name_of(self, loop: PointwiseLoop, register: int) -> str:
        """Returns the name of the output or memory that gets a register, or what the loop computes."""
        buffers = [self.program.by_name[view.buffer] for view, own in loop.writes if own == register]
        ends = [title(each) for each in buffers if each.kind in ("output", "memory")]
        return ends[0] if ends else loop.about or "copies"


def exact_of(loop: PointwiseLoop, register: int) -> int | None:
    """Returns the register of a number of a loop before it is bounded; None for one without bounds."""
    for operation in ("minimum", "maximum"):
        place = register - len(loop.reads)
        if place < 0 or loop.body[place].operation != operation:
            return None
        register = loop.body[place].operands[0]
    return register


def title(buffer: FrameBuffer) -> str:
    """Returns the name of an array, that of the model if it has one."""
    return buffer.title or buffer.name


def saturated_inputs(buffers: Sequence[FrameBuffer], given: Sequence[Array]) -> Mapping[str, tuple[int, int]]:
    """Returns for each input how many of its numbers saturate, and how many there are."""
    found = dict[str, tuple[int, int]]()
    for buffer, numbers in zip(buffers, given, strict=True):
        if buffer.scale is not None:
            most = (np.iinfo(buffer.dtype).max + 0.5) * buffer.scale
            found[title(buffer)] = int((np.abs(numbers.astype(np.float64)) > most).sum()), numbers.size
    return found
