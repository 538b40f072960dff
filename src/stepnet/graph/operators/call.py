"""A node of an ONNX model with its operands, as the rules of operators take it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.placed import Placed

Array = np.ndarray
MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What NumPy raises for operands that do not fit, and a rule for an attribute that is missing."""


@dataclass(frozen=True)
class Call:
    """A node with its operands.

    op: its operator. operands: None for one that is left out. attributes: those that it states. outputs: how
    many it has. opset: the version of the operators. bodies: what runs its bodies, by attribute. padded:
    whether sequences have lengths, so that steps behind their ends are none. like: a value of each step; None
    in a body.
    """

    op: str
    operands: tuple[Placed | None, ...]
    attributes: dict[str, Any]
    outputs: int
    opset: int
    bodies: dict[str, Any] = field(default_factory=dict[str, Any])
    padded: bool = False
    like: Any = None

    def operand(self, place: int) -> Placed:
        """An operand; raises `ModelError` where there is none."""
        value = self.optional(place)
        if value is None:
            raise ModelError(f"its input {place} is missing")
        return value

    def optional(self, place: int) -> Placed | None:
        """An operand, or None."""
        return self.operands[place] if place < len(self.operands) else None

    @property
    def x(self) -> Placed:
        """The first operand."""
        return self.operand(0)

    @property
    def present(self) -> list[Placed]:
        """The operands that are not left out."""
        return [value for value in self.operands if value is not None]

    def numbers(self, place: int, name: str, default: Any = None) -> Any:
        """A list of numbers: an operand, which is a constant, or an attribute in older models."""
        value = self.optional(place)
        if value is None:
            found = self.attributes.get(name, default)
            return [found] if isinstance(found, int | float) else found
        return list(np.ravel(value.array))

    def whole(self, place: int, name: str, default: Any = None) -> list[int] | None:
        """A list of whole numbers, likewise."""
        numbers = self.numbers(place, name, default)
        return None if numbers is None else [int(number) for number in numbers]

    def number(self, place: int, name: str, default: Any = None) -> Any:
        """One number, likewise."""
        numbers = self.numbers(place, name, None)
        return numbers[0] if numbers else default


Rule = Callable[[Call], Placed]
"""The rule of an operator: its result for a node."""
Rules = Callable[[Call], Placed | Sequence[Placed]]
"""The rule of an operator that may have several results."""
