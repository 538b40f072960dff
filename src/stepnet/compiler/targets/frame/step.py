"""One step of a model as a frame program is made of it: a net, and what its inputs and results are."""

from collections.abc import Mapping
from math import isfinite

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.calibration import ACTIVATIONS
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

Array = np.ndarray
KEEPING = ("detach", "expand")
"""Operations whose result is their operand, of one sequence."""


@dataclass(frozen=True)
class StepMemory:
    """A memory of a step. before, after: the numbers of its values in the net. name, title: its names, in C
    and in the model. begin: its first value; None for zeros.
    """

    before: int
    after: int
    name: str
    title: str = ""
    begin: Array | None = None


@dataclass(frozen=True)
class StepEnd:
    """An input or output of a step. number: of its value. name, title: its names in C and in the model."""

    number: int
    name: str
    title: str = ""


@dataclass(frozen=True)
class FrameRanges:
    """Largest magnitudes of the values of a step, of which its scales in integers are made.

    activations: "int8" or "int16", the dtype of inputs and of the left sides of products. largest: for each
    value of the step's net, by its number, the largest magnitude in the samples; 0 for values without floats.
    """

    activations: str
    largest: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises `NetError` for another dtype, and for magnitudes that are no numbers from 0 on."""
        if self.activations not in ACTIVATIONS:
            raise NetError(f"activations are {' or '.join(ACTIVATIONS)}, not {self.activations!r}")
        if not all(isfinite(each) and each >= 0 for each in self.largest):
            raise NetError("a largest magnitude of a step is no finite number from 0 on")


@dataclass(frozen=True)
class ModelStep:
    """One step of a model: what a frame program is made of.

    net: with a value per row for inputs, memories and results. constants: the parameters, by their numbers.
    ranges: those that the scales of integers come from; None for a step in the dtypes of the net.
    storage: the dtypes of 16 bits in which matrices and tables lie whose numbers these have.
    """

    net: Net
    inputs: tuple[StepEnd, ...]
    memories: tuple[StepMemory, ...]
    outputs: tuple[StepEnd, ...]
    constants: Mapping[int, Array]
    ranges: FrameRanges | None = None
    storage: tuple[str, ...] = ()
