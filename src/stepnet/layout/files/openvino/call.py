"""A layer of an OpenVINO model, as the rules of operators take it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.placed import Placed
from stepnet.layout.files.openvino.ir import OpenVinoLayer
from stepnet.layout.files.recurrent import RecurrentLayer


@dataclass(frozen=True)
class OpenVinoCall:
    """Layer of an OpenVINO model with its operands, as the rule of its operator takes it.

    layer: the layer. operands: its operands, in order.
    like: a value per step, whose steps are counted. recurrent: the layer that runs, of a recurrent operator.
    """

    layer: OpenVinoLayer
    operands: tuple[Placed, ...]
    like: Traced
    recurrent: RecurrentLayer | None = None

    def operand(self, index: int = 0) -> Placed:
        """Returns an operand by index; raises `ModelError` if it is missing."""
        if index >= len(self.operands):
            raise ModelError(f"its operand {index} is missing")
        return self.operands[index]

    @property
    def x(self) -> Placed:
        """The first operand."""
        return self.operand()

    def text(self, name: str, default: str = "") -> str:
        """Returns an attribute as text in lower case, or `default` if the file does not have it."""
        return self.layer.data.get(name, default).strip().lower()

    def number(self, name: str, default: float) -> float:
        """Returns an attribute of the layer that is a number, or `default` if the layer does not have it;
        raises `ModelError` for other text.
        """
        text = self.text(name, str(default))
        try:
            return float(text)
        except ValueError:
            raise ModelError(f"its {name} is {short_repr(text)}, and should be a number") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """Tells whether an attribute is true, as "true" or "1"."""
        return self.text(name, str(default)) in ("true", "1")

    def wholes(self, name: str, default: str = "") -> list[int]:
        """Returns an attribute of the layer that is a list of whole numbers, separated by commas; raises
        `ModelError` for other text. default: the text if the layer does not have the attribute.
        """
        texts = [text.strip() for text in self.text(name, default).split(",") if text.strip()]
        if not all(text.removeprefix("-").isdecimal() and len(text) < 20 for text in texts):
            raise ModelError(f"its {name} is {short_repr(self.text(name))}, and should be whole numbers")
        return [int(text) for text in texts]

    def whole(self, name: str, default: int) -> int:
        """Returns an attribute that is a whole number, else `default`; raises `ModelError` for other text."""
        numbers = self.wholes(name, str(default))
        if len(numbers) != 1:
            raise ModelError(f"its {name} has {len(numbers)} numbers, and should have one")
        return numbers[0]

    def several(self, name: str, count: int, default: int) -> list[int]:
        """Returns an attribute that is a list of `count` whole numbers; `default`, as often, if the layer
        does not have it. Raises `ModelError` for another number of them.
        """
        numbers = self.wholes(name) or [default] * count
        if len(numbers) != count:
            raise ModelError(f"its {name} has {len(numbers)} numbers, and should have {count}")
        return numbers

    def numbers(self, index: int) -> list[Any]:
        """Returns the numbers of a constant operand; symbolic sizes may be among them."""
        return list(np.ravel(self.operand(index).array))

    def constants(self, index: int) -> list[int]:
        """Returns the whole numbers of operand number `index`, which is a constant; raises `ModelError` if
        one of them is a symbolic size or a fraction.
        """
        numbers = self.numbers(index)
        if not all(isinstance(number, int | np.integer) for number in numbers):
            raise ModelError(f"its operand {index} is {short_repr(numbers)}, and should be whole numbers")
        return [int(number) for number in numbers]


Rule = Callable[[OpenVinoCall], Placed | Sequence[Placed]]
