"""An operator of a TensorFlow Lite model, as the rules of operators take it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.placed import Placed
from stepnet.layout.files.recurrent import RecurrentLayer
from stepnet.layout.files.tflite.flatbuffer import Table
from stepnet.layout.files.tflite.names import ACTIVATIONS

FUSED: Mapping[str, str] = {"NONE": "linear", "RELU": "relu", "RELU6": "clip6", "TANH": "tanh"}
"""The operators of `importers.pointwise` for the fused activations that are supported."""


@dataclass(frozen=True)
class TfliteCall:
    """Operator of a TFLite model with its operands, as its rule takes it.

    operands: its operands in order; None for a missing one. options: its options, if it has any.
    dtype: the dtype of its first result. like: a value per step, whose steps are counted.
    recurrent: of a recurrent operator the layer that runs. time_major: whether its first axis is the steps.
    """

    operands: tuple[Placed | None, ...]
    options: Table | None
    dtype: str
    like: Traced
    recurrent: RecurrentLayer | None = None
    time_major: bool = False

    def operand(self, index: int = 0) -> Placed:
        """Returns an operand by index; raises `ModelError` if it is missing."""
        found = self.operands[index] if index < len(self.operands) else None
        if found is None:
            raise ModelError(f"its operand {index} is missing")
        return found

    @property
    def x(self) -> Placed:
        """The first operand."""
        return self.operand()

    def option(self, field: int, kind: str, default: Any = 0) -> Any:
        """Returns an option by the number of its field. kind: its type, as for `struct`."""
        return default if self.options is None else self.options.get(field, kind, default)

    def listed(self) -> list[int]:
        """Returns the first option, a list of whole numbers; an empty one without options."""
        return list[int]() if self.options is None else [int(n) for n in self.options.vector(0, "<i4")]

    def numbers(self, index: int) -> list[int]:
        """Returns the whole numbers of a constant operand."""
        return [int(number) for number in np.ravel(self.operand(index).array)]

    def activated(self, result: Placed, field: int = 0) -> Placed:
        """Applies the activation that a TFLite operator has fused into it to the operator's result. field:
        the number of the field in the operator's options that names the activation. Raises `ModelError` for
        an activation that is not supported.
        """
        code: int = self.option(field, "b")
        name = dict(enumerate(ACTIVATIONS)).get(code, str(code))
        if name not in FUSED:
            raise ModelError(f"its fused activation {name} is not supported")
        return result if name == "NONE" else pointwise.elementwise(FUSED[name], result)


Rule = Callable[[TfliteCall], Placed | Sequence[Placed]]
