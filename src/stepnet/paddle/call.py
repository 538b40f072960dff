"""Operation of a program with its operands: the argument of the rules of operators."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.placed import Placed
from stepnet.layout.files.paddle.program import PaddleOperation

KINDS: Mapping[type, tuple[Any, str]] = {
    bool: (int, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a text"),
    list: (int | float, "numbers"),
}
"""For the type of an attribute's default: the types that the attribute may have, and their name in messages.
"""


def is_list(value: Any) -> bool:
    """Tells whether a value is a list, without narrowing its type for type checkers."""
    return isinstance(value, list)


@dataclass(frozen=True)
class PaddleCall:
    """Operation of a Paddle program with its operands, as the rule of its operator takes it.

    operation: the operation of the program. operands: the values of its inputs, by slot. padded: whether the
    program has an input of lengths, so that sequences are padded.
    """

    operation: PaddleOperation
    operands: Mapping[str, tuple[Placed, ...]]
    padded: bool

    def operands_of(self, slot: str) -> tuple[Placed, ...]:
        """Returns all operands of an input slot of the operation; an empty tuple if it has none."""
        return self.operands.get(slot, ())

    def optional(self, slot: str) -> Placed | None:
        """Returns the operand of an input slot of the operation, or None if it has none."""
        return next(iter(self.operands_of(slot)), None)

    def operand(self, slot: str = "X") -> Placed:
        """Returns the operand of an input slot of the operation; raises `ModelError` if it is missing."""
        value = self.optional(slot)
        if value is None:
            raise ModelError(f"its input {slot} is missing")
        return value

    def attribute(self, name: str, default: Any) -> Any:
        """Returns an attribute of the operation, or `default` if the file does not have it.

        Raises `ModelError` for a value of another type than the default.
        """
        value: Any = self.operation.attributes.get(name, default)
        types, kind = KINDS[type(default)]
        items: list[Any] = value if is_list(default) and is_list(value) else [value]
        if not all(isinstance(item, types) for item in items):
            raise ModelError(f"its attribute {name} is {short_repr(value)}, and should be {kind}")
        return value

    def numbers(self, name: str, tensor: str, several: str = "") -> list[Any] | None:
        """Returns constant numbers from tensors with one number each, else from one tensor, else from an
        attribute, whichever the operation has; None if it has none. Symbolic sizes may be among them.

        name: the attribute. tensor: the name of the input that is one tensor with all numbers. several: the
        name of the input that is tensors with one number each.
        """
        if self.operands_of(several):
            return [number for value in self.operands_of(several) for number in np.ravel(value.array)]
        value = self.optional(tensor)
        if value is not None:
            return list(np.ravel(value.array))
        if self.operation.attributes.get(name) is None:
            return None
        stated: Any = self.attribute(name, list[float]())
        return cast("list[Any]", stated) if isinstance(stated, list) else [stated]

    def wholes(self, name: str, tensor: str = "", several: str = "") -> list[int]:
        """Returns constant whole numbers from an attribute or tensors, whichever the file has; an empty list
        for none.

        name: the attribute. tensor: the name of the input that is a tensor with all numbers. several: the
        name of the input that is tensors with one each.
        """
        numbers = self.numbers(name, tensor, several) or []
        if not all(isinstance(number, int | np.integer) for number in numbers):
            raise ModelError(f"its {name} is {short_repr(numbers)}, and should be constant whole numbers")
        return [int(number) for number in numbers]

    def whole(self, name: str, tensor: str, default: int) -> int:
        """Returns a constant whole number: of the input slot `tensor`, the attribute `name`, or `default`."""
        return (self.wholes(name, tensor) or [default])[0]
