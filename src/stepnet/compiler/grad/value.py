"""Values of a net under construction, with operators, so that a derivative reads like its formula."""

from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Builder
from stepnet.compiler.net.types import CONST, Extent, Type
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Value:
    """A value of a net under construction. A number combined with it becomes a constant of its dtype.

    >>> from stepnet.compiler.net.types import ROWS
    >>> builder = Builder()
    >>> x = Value(builder, builder.input(Type(ROWS, (2,), "float32"), "x"))
    >>> print(builder.net([(1 - x * x).number]))
    net(
        x: rows f32[2],
    ):
      %1 = multiply x x : rows f32[2]
      %2 = constant value=1.0 : const f32[]
      %3 = subtract %2 %1 : rows f32[2]
      return %3
    """

    builder: Builder
    number: int

    @property
    def type(self) -> Type:
        """The type (extent, feature shape and dtype) of the value in the net under construction."""
        return self.builder.type_of(self.number)

    @property
    def rank(self) -> int:
        """The number of feature axes of the value."""
        return len(self.type.shape)

    def constant(self, value: Any) -> "Value":
        """Makes a constant with the dtype of this value."""
        return Value(self.builder, self.builder.constant(np.asarray(value, self.type.dtype)))

    def apply(self, operation: str, *others: "Value | float", **attributes: Any) -> "Value":
        """Adds a node to the net under construction, which applies an operation to this value and others
        (numbers become constants); returns its result. attributes: the attributes of the node.
        """
        values = (other if isinstance(other, Value) else self.constant(other) for other in others)
        numbers = (value.number for value in values)
        return Value(self.builder, self.builder.add(operation, self.number, *numbers, **attributes))

    # ---- arithmetic

    def __add__(self, other: "Value | float") -> "Value":
        """Adds the sum of two values to the net under construction."""
        return self.apply("add", other)

    def __radd__(self, other: float) -> "Value":
        """Adds the sum of a number and this value to the net."""
        return self.constant(other) + self

    def __sub__(self, other: "Value | float") -> "Value":
        """Adds the difference of two values to the net under construction."""
        return self.apply("subtract", other)

    def __rsub__(self, other: float) -> "Value":
        """Adds the difference of a number and this value to the net."""
        return self.constant(other) - self

    def __mul__(self, other: "Value | float") -> "Value":
        """Adds the elementwise product of two values to the net under construction."""
        return self.apply("multiply", other)

    def __truediv__(self, other: "Value | float") -> "Value":
        """Adds the elementwise quotient of two values to the net under construction."""
        return self.apply("divide", other)

    def __neg__(self) -> "Value":
        """Adds the negative of the value to the net under construction."""
        return self.apply("negative")

    def where(self, chosen: "Value", other: "Value | float") -> "Value":
        """Adds the selection of `chosen` where this condition is true, and of `other` elsewhere."""
        return self.apply("where", chosen, other if isinstance(other, Value) else chosen.constant(other))

    # ---- dtypes, shapes and extents

    def cast(self, dtype: str) -> "Value":
        """Casts the value to another dtype; returns the value itself if it has that one."""
        return self if self.type.dtype == dtype else self.apply("cast", dtype=dtype)

    def reshape(self, *shape: int) -> "Value":
        """Reshapes the features to this shape; returns the value itself if they have it."""
        return self if self.type.shape == shape else self.apply("reshape", rank=self.rank, shape=shape)

    def broadcast(self, *shape: int) -> "Value":
        """Broadcasts the features to this shape; returns the value itself if they have it."""
        return self if self.type.shape == shape else self.apply("broadcast", rank=self.rank, shape=shape)

    def at(self, extent: Extent) -> "Value":
        """Expands the value to a deeper extent, such as from rows to rows/steps, by repeating it; returns the
        value itself if it has that extent.
        """
        return self if self.type.extent == extent else self.apply("expand", extent=extent)

    def like(self, extent: Extent) -> "Value":
        """Repeats a constant for each entry of an extent, such as each row; others are returned as is."""
        return self.at(extent) if self.type.extent == CONST else self

    @property
    def transposed(self) -> "Value":
        """The value with its last two feature axes exchanged, such as a transposed matrix."""
        axes = range(self.rank)
        return self.apply("transpose", order=(*axes[:-2], axes[-1], axes[-2]))

    def sum(self, *axes: int) -> "Value":
        """Sums the value over feature axes, counted from the end; returns the value itself for no axes."""
        return self.apply("sum", axes=axes) if axes else self

    def slice(self, axis: int, start: int, stop: int, stride: int = 1) -> "Value":
        """Takes every `stride`-th feature along one axis, from `start` to before `stop`; a stop of -1 means
        before index 0, so that a negative stride can reach the first feature.
        """
        cuts = [(0, size, 1) for size in self.type.shape]
        cuts[axis] = (start, stop, stride)
        return self.apply("slice", slices=tuple(cuts))

    def take(self, axis: int, indices: tuple[int, ...]) -> "Value":
        """Takes the features at constant indices along one axis, counted from the end."""
        return self.apply("take", axis=axis, indices=indices)

    def zeros(self, *shape: int) -> "Value":
        """Makes zeros of this feature shape, with the dtype and extent of this value."""
        return self.constant(np.zeros(shape)).like(self.type.extent)

    # ---- across extents

    def reduced(self, extent: Extent, how: str = "sum") -> "Value":
        """Reduces the value along its last axes of steps to an outer extent, as from per step (rows/steps) to
        per sequence (rows). how: "sum", "last" or another reduction.
        """
        value = self
        while value.type.extent != extent:
            value = value.apply("reduce", how=how)
        return value


def concatenated(axis: int, *values: Value) -> Value:
    """Concatenates values along a feature axis, counted from the end; returns a single value itself."""
    if len(values) == 1:
        return values[0]
    return values[0].apply("concatenate", *values[1:], axis=axis)
