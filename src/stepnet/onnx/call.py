"""A node of an ONNX model with its operands: the argument of the rules of operators."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.placed import Placed


@dataclass(frozen=True)
class OnnxCall:
    """Node of an ONNX model with its operands: the argument of the rules of operators.

    op: the name of its operator.
    operands: its inputs; None for one that is left out.
    attributes: the attributes that the file states.
    outputs: the number of its outputs.
    opset: the version of the operators.
    bodies: for each attribute that is a graph, an object that runs this graph.
    padded: whether the model has the lengths of its sequences, so that steps after their ends are padding.
    like: a value per step, from which others get their extent; None in a body.
    """

    op: str
    operands: tuple[Placed | None, ...]
    attributes: dict[str, Any]
    outputs: int
    opset: int
    bodies: dict[str, Any] = field(default_factory=dict[str, Any])
    padded: bool = False
    like: Any = None

    def operand(self, index: int) -> Placed:
        """Returns the operand of an ONNX node at a position; raises `ModelError` if it is left out."""
        value = self.optional(index)
        if value is None:
            raise ModelError(f"its input {index} is missing")
        return value

    def optional(self, index: int) -> Placed | None:
        """Returns the node's operand at a position; None if it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    @property
    def body(self) -> Any:
        """Object that runs the body of a Scan or Loop node, its graph `body`; `ModelError` if it has none."""
        return self.graph("body")

    def graph(self, name: str) -> Any:
        """Returns the object that runs the graph in attribute `name`, or raises `ModelError`."""
        if name not in self.bodies:
            raise ModelError(f"its attribute {name} is missing, or is not one graph")
        return self.bodies[name]

    @property
    def x(self) -> Placed:
        """First operand of the ONNX node; raises `ModelError` if it is left out."""
        return self.operand(0)

    @property
    def present(self) -> list[Placed]:
        """Operands of the node that are not left out, in order."""
        return [value for value in self.operands if value is not None]

    def numbers(self, index: int, name: str, default: Any = None) -> Any:
        """Returns a list of numbers from a constant operand or, in models of older opsets, from an attribute.

        index: the index of the operand. name: the attribute. default: the value if there is neither.
        """
        value = self.optional(index)
        if value is None:
            attribute = self.attributes.get(name, default)
            return [attribute] if isinstance(attribute, int | float) else attribute
        return list(np.ravel(value.array))

    def integers(self, index: int, name: str, default: Any = None) -> list[int] | None:
        """Returns integers of the constant operand at index `index`, else of the attribute, or `default`."""
        numbers = self.numbers(index, name, default)
        return None if numbers is None else [int(number) for number in numbers]

    def integer(self, name: str, default: int) -> int:
        """Returns the first number of an attribute with an entry for each axis, or `default`."""
        return int((self.attributes.get(name) or [default])[0])

    def axis(self, default: int) -> int:
        """Returns the node's attribute `axis` as an axis of the first operand, counted from the front."""
        return self.x.axis(int(self.attributes.get("axis", default)))

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns an attribute of the node that is 0 or 1 as a bool; `default` if it is not stated."""
        return bool(self.attributes.get(name, default))

    def number(self, index: int, name: str, default: Any = None) -> Any:
        """Returns a number of the constant operand at index `index`, else of the attribute, or `default`."""
        numbers = self.numbers(index, name, None)
        return numbers[0] if numbers else default


Rule = Callable[[OnnxCall], Placed | Sequence[Placed]]
"""The rule of an operator: its results for a node."""
