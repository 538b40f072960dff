"""An operation of a program with its operands, as the rules of operators take it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.errors import ModelError
from stepnet.files.paddle.program import Operation
from stepnet.graph.operators.call import Call
from stepnet.graph.operators.placed import Placed
from stepnet.graph.operators.table import OPERATORS
from stepnet.values.arguments import shown

OPSET = 17
MEANINGS: Mapping[str, Any] = OPERATORS
"""The meanings of operators, by ONNX's names."""
KINDS: Mapping[type, tuple[Any, str]] = {
    bool: (int, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a text"),
    list: (int | float, "numbers"),
}
"""What a value may be where the default is of a type."""


def is_list(value: Any) -> bool:
    """Whether a value is a list."""
    return isinstance(value, list)


@dataclass(frozen=True)
class PaddleCall:
    """An operation with its operands by slot. padded: whether sequences have lengths."""

    operation: Operation
    operands: Mapping[str, tuple[Placed, ...]]
    padded: bool

    def every(self, slot: str) -> tuple[Placed, ...]:
        """All operands of a slot."""
        return self.operands.get(slot, ())

    def optional(self, slot: str) -> Placed | None:
        """The operand of a slot, or None."""
        return next(iter(self.every(slot)), None)

    def operand(self, slot: str = "X") -> Placed:
        """The operand of a slot; raises `ModelError` where there is none."""
        value = self.optional(slot)
        if value is None:
            raise ModelError(f"its input {slot} is missing")
        return value

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or what it is where the file does not state it; raises `ModelError` for one of
        another kind than the default.
        """
        value: Any = self.operation.attributes.get(name, default)
        known, what = KINDS[type(default)]
        items: list[Any] = value if is_list(default) and is_list(value) else [value]
        if not all(isinstance(item, known) for item in items):
            raise ModelError(f"its attribute {name} is {shown(value)}, and should be {what}")
        return value

    def numbers(self, name: str, tensor: str, several: str = "") -> list[Any] | None:
        """Numbers of an attribute, of a tensor, or of several tensors; None where there are none."""
        if self.every(several):
            return [number for value in self.every(several) for number in np.ravel(value.array)]
        value = self.optional(tensor)
        if value is not None:
            return list(np.ravel(value.array))
        if self.operation.attributes.get(name) is None:
            return None
        stated: Any = self.attribute(name, list[float]())
        return cast("list[Any]", stated) if isinstance(stated, list) else [stated]

    def wholes(self, name: str, tensor: str = "", several: str = "") -> list[int]:
        """Whole numbers that are known now, likewise; none where there are none."""
        numbers = self.numbers(name, tensor, several) or []
        if not all(isinstance(number, int | np.integer) for number in numbers):
            raise ModelError(f"its {name} is {shown(numbers)}, which are no known whole numbers")
        return [int(number) for number in numbers]

    def whole(self, name: str, tensor: str, default: int) -> int:
        """One whole number that is known now, likewise."""
        return (self.wholes(name, tensor) or [default])[0]

    def meaning(self, operator: str, operands: Sequence[Placed | None], **attributes: Any) -> Any:
        """What an operator of ONNX makes of operands."""
        call = Call(operator, tuple(operands), attributes, 1, OPSET, padded=self.padded)
        return MEANINGS[operator](call)
