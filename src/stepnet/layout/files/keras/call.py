"""A call of a Keras layer, as the rules of the layers' classes take it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.placed import Placed
from stepnet.layout.files.keras.nodes import Config

Array = np.ndarray

KINDS: Mapping[type, tuple[Any, str]] = {
    bool: (int, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a text"),
}
"""For the type of a setting's default: the types that the setting may have, and their name in messages."""


@dataclass(frozen=True)
class KerasCall:
    """Call of a Keras layer, as the rule of its class takes it.

    config: the layer's configuration.
    operands: the values that it is called on, and constants for numbers among them.
    stored: its arrays by name, or by number in files of Keras 3.
    keys: arguments that are neither tensors nor numbers, such as an index.
    version: the major version of Keras that wrote the file, "2" or "3".
    masks: for each operand its mask, a bool per step; None for one without a mask.
    steps: the number of steps that the file states, on which its numbers may depend; None for no such number.
    """

    config: Config
    operands: tuple[Placed, ...]
    stored: Mapping[str, Array]
    keys: tuple[Any, ...] = ()
    version: str = "3"
    masks: tuple[Placed | None, ...] = ()
    steps: int | None = None

    @property
    def mask(self) -> Placed | None:
        """The mask of the first operand; None for none."""
        return self.masks[0] if self.masks else None

    @property
    def x(self) -> Placed:
        """The only operand of the layer; raises `ModelError` if it has none or several."""
        if len(self.operands) != 1:
            raise ModelError(f"it is called on {len(self.operands)} tensors, where one is expected")
        return self.operands[0]

    @property
    def several(self) -> tuple[Placed, ...]:
        """All operands of the layer, at least two; raises `ModelError` for fewer."""
        if len(self.operands) < 2:
            raise ModelError(f"it is called on {len(self.operands)} tensors, where several are expected")
        return self.operands

    def setting(self, name: str, default: Any) -> Any:
        """Returns a setting of the layer, or `default` if the file does not have it, or has null.

        Raises `ModelError` for a value of another type than the default.
        """
        value: Any = self.config.get(name)
        value = default if value is None else value
        types, kind = KINDS[type(default)]
        if not isinstance(value, types):
            raise ModelError(f"its {name} is {short_repr(value)}, and should be {kind}")
        return value

    def wholes(self, name: str, count: int, default: int | None = None) -> list[int]:
        """Returns a setting that is `count` whole numbers, or one number for all; raises `ModelError` for
        others. default: the number if the file does not have the setting.
        """
        value: Any = self.config.get(name, default)
        numbers = cast("list[Any]", value) if isinstance(value, list) else [value] * count
        if len(numbers) != count or not all(type(number) is int for number in numbers):
            raise ModelError(f"its {name} is {short_repr(value)}, and should be {count} whole numbers")
        return numbers

    def only(self, name: str, *values: Any) -> None:
        """Raises `ModelError` if a setting is not among `values`; the first stands for a missing one."""
        if self.config.get(name, values[0]) not in values:
            said = " or ".join(map(repr, values))
            raise ModelError(f"its {name} is {short_repr(self.config[name])}: only {said} is supported")

    def arrays(self, shapes: "Shapes") -> list[Array]:
        """Returns the layer's arrays by the names in `shapes`, or all in order if the file numbers them;
        raises `ModelError` for other names, other shapes and dtypes that are not floating-point.

        shapes: for each array's name, the shape that follows from the configuration and the operand.
        """
        numbered = all(name.isdecimal() for name in self.stored)
        expected = [str(number) for number in range(len(shapes))] if numbered else [*shapes]
        if {*expected} != {*self.stored}:
            raise ModelError(f"its arrays are {', '.join(self.stored) or 'none'}, not {', '.join(shapes)}")
        arrays = [self.stored[name] for name in expected]
        for (name, shape), array in zip(shapes.items(), arrays, strict=True):
            check_array(name, array, shape)
        return arrays

    def width(self, axis: int = -1) -> int:
        """Returns the size of an axis of features of the operand; raises `AxesError` for another axis."""
        place = self.x.axis(axis)
        self.x.feature(place)
        return self.x.sizes[place]

    def axis(self, default: int = -1) -> int:
        """Returns the axis of the operand that the setting "axis" states, a number or a list of one."""
        return self.x.axis(self.wholes("axis", 1, default)[0])


Rule = Callable[[KerasCall], Placed]
Shapes = Mapping[str, tuple[int, ...]]


def check_array(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raises `ModelError` unless an array of a layer has the shape that its configuration and operand state,
    and numbers that are floats.
    """
    if array.shape != shape:
        raise ModelError(
            f"its {name} has the shape {array.shape}, and its configuration and operand say {shape}"
        )
    if array.dtype.kind != "f":
        raise ModelError(f"its {name} is of {array.dtype} numbers, where floats are expected")
