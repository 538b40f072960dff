"""One step of a model as a frame program is made of it: a net, and what its inputs and results are."""

from collections.abc import Mapping

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.calibration import FrameSamples
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
KEEPING = ("detach", "expand")
"""Operations whose result is their operand, of one sequence."""


@dataclass(frozen=True)
class StepMemory:
    """A memory of a step. before, after: the numbers of its values in the net. name, title: its names, in C
    and in the model. begin: what it begins with; None for zeros.
    """

    before: int
    after: int
    name: str
    title: str = ""
    begin: Array | None = None


@dataclass(frozen=True)
class StepEnd:
    """An input or output of a step. number: that of its value in the net. name, title: its names, in C and in
    the model.
    """

    number: int
    name: str
    title: str = ""


@dataclass(frozen=True)
class ModelStep:
    """One step of a model: what a frame program is made of.

    net: with a value per row for inputs, memories and results. constants: the parameters, by their numbers.
    samples: those that the scales of integers come from; None for a step in the dtypes of the net.
    """

    net: Net
    inputs: tuple[StepEnd, ...]
    memories: tuple[StepMemory, ...]
    outputs: tuple[StepEnd, ...]
    constants: Mapping[int, Array]
    samples: FrameSamples | None = None
