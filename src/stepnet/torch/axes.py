"""Which axes of a tensor in a module are its sequences, which its steps, and which features.

    x                      [batch, time, 8]     (sequences) (steps) (8)
    x.reshape(-1, 8)       [batch * time, 8]    (sequences steps) (8)
    h_n                    [2, batch, 4]        (2) (sequences) (4)

An axis is what it was joined of, in order. A net has none of the axes of sequences and steps: it has the
extent of a value instead, and the features in their order. So a transpose of sequences and steps is nothing
in a net, and a tensor that was flattened is only given its shape again in the order in which it was joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from stepnet.errors import StepError
from stepnet.net.types import CONST, ROWS, STEPS, Extent
from stepnet.trace.numpy_shapes import broadcast_to_features
from stepnet.trace.traced import Traced, apply, refuse, reshaped, transposed

SEQUENCES, TIME, PACKED = "sequences", "steps", "packed steps"
"""The parts of axes that are no features.

Where the sequences were sorted, their part has another name, in brackets: `sequences (sorted 1)`, and
`packed steps (sorted 1)` for the steps of a `PackedSequence` that was made of them.
"""


def is_rows(part: int | str) -> bool:
    """Whether a part of an axis is the sequences, in any order."""
    return isinstance(part, str) and part.startswith(SEQUENCES)


def is_packed(part: int | str) -> bool:
    """Whether a part of an axis is the steps of a `PackedSequence`."""
    return isinstance(part, str) and part.startswith(PACKED)


def symbols_of(part: str) -> tuple[str, ...]:
    """The symbols whose product is the size of a part."""
    return (TIME,) if part == TIME else (SEQUENCES, TIME) if is_packed(part) else (SEQUENCES,)


Axis = tuple[int | str, ...]
Axes = tuple[Axis, ...]


def features_of(axes: Axes) -> tuple[int, ...]:
    """The sizes that are features."""
    return tuple(part for axis in axes for part in axis if isinstance(part, int))


def extent_of(axes: Axes) -> Extent:
    """The extent of a value that has these axes."""
    symbols = symbols_in(axes)
    return STEPS if TIME in symbols else ROWS if symbols else CONST


def symbols_in(axes: Axes) -> list[str]:
    """The symbols that the sizes of axes are made of."""
    return [name for axis in axes for part in axis if isinstance(part, str) for name in symbols_of(part)]


def text_of(axes: Axes) -> str:
    """Axes as text for messages."""
    return f"[{', '.join(' x '.join(map(str, axis)) for axis in axes)}]"


@dataclass(frozen=True)
class Placed:
    """A value of a net that stands for a tensor with these axes.

    A number that is none of the tensor's axes, as the length of a sequence, may have a deeper extent.
    """

    value: Traced
    axes: Axes

    def __post_init__(self) -> None:
        symbols = symbols_in(self.axes)
        for part in (SEQUENCES, TIME):
            if symbols.count(part) > 1:
                raise refuse(
                    f"a tensor {text_of(self.axes)} pairs each of the {part} with each other one, which no "
                    "value of a model does"
                )
        assert self.value.type.shape == features_of(self.axes), (self.value.type, self.axes)

    def shaped(self, axes: Axes) -> "Placed":
        """The same numbers with other axes of as many features."""
        return Placed(reshaped(self.value, features_of(axes)), axes)

    def permuted(self, order: Sequence[int]) -> "Placed":
        """The axes in another order."""
        counts = [len(features_of((axis,))) for axis in self.axes]
        features = [sum(counts[:dim]) + place for dim in order for place in range(counts[dim])]
        return Placed(transposed(self.value, tuple(features)), tuple(self.axes[dim] for dim in order))

    def feature(self, dim: int) -> int | None:
        """The place of an axis among the features; None for an axis of sequences or steps."""
        axis = self.axes[dim]
        return len(features_of(self.axes[:dim])) if features_of((axis,)) == axis else None

    def beside(self, axes: Axes) -> Traced:
        """The value for an operation whose result has these axes: at their extent, unless it is a parameter,
        with as many axes of features, of which those of size one stay so.
        """
        own = ((1,),) * (len(axes) - len(self.axes)) + self.axes
        features = list[int]()
        for mine, wanted in zip(own, axes, strict=True):
            if mine == (1,):
                features += [1] * len(features_of((wanted,)))
            elif features_of((mine,)) == mine or mine == wanted:
                features += features_of((mine,))
            else:
                raise two_orders(mine, wanted)
        value = self.value if self.value.is_constant else to_extent(self.value, extent_of(axes))
        return reshaped(value, tuple(features))

    def broadcast(self, axes: Axes) -> "Placed":
        """The value repeated until it has these axes."""
        value = broadcast_to_features(self.beside(axes), features_of(axes))
        return Placed(to_extent(value, extent_of(axes)), axes)


def to_extent(value: Traced, extent: Extent) -> Traced:
    """The value at an extent, unless it is at a deeper one."""
    return value if len(value.type.extent) >= len(extent) else apply("expand", value, extent=extent)


def two_orders(first: Axis, second: Axis) -> StepError:
    """The error for axes that are joined in different orders."""
    return refuse(
        f"tensors meet whose sequences and steps lie in two orders: {text_of((first,))} and "
        f"{text_of((second,))}"
    )


# ---- sizes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """The size of an axis: a number times numbers that have names."""

    count: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, size: Any, names: Mapping[Any, str]) -> "Size | None":
        """The size that PyTorch says; None for one that is no such product."""
        if isinstance(size, int):
            return cls(size)
        count, product = size.node.expr.as_coeff_Mul()
        powers = product.as_powers_dict()
        if not count.is_Integer or any(symbol not in names or power != 1 for symbol, power in powers.items()):
            return None
        return cls(int(count), tuple(sorted(names[symbol] for symbol in powers)))

    @classmethod
    def of_axis(cls, axis: Axis) -> "Size":
        """The size of an axis."""
        return cls(prod(features_of((axis,))), tuple(sorted(symbols_in((axis,)))))


def regrouped(axes: Axes, sizes: Sequence[Size]) -> Axes:
    """The axes of a tensor whose numbers are given other sizes, in the same order.

    >>> regrouped((("sequences",), ("steps",), (6,)), [Size(1, ("sequences", "steps")), Size(2), Size(3)])
    (('sequences', 'steps'), (2,), (3,))
    """
    parts = [part for axis in axes for part in axis if part != 1]
    made = list[Axis]()
    for size in sizes:
        axis, count, names = list[int | str](), size.count, [*size.names]
        while (count != 1 or names) and parts:
            part = parts.pop(0)
            if isinstance(part, str):
                if not set(symbols_of(part)) <= set(names):
                    raise reordered(axes, sizes)
                names = [name for name in names if name not in symbols_of(part)]
            else:
                shared = gcd(part, count)
                if shared == 1:
                    raise reordered(axes, sizes)
                count //= shared
                if part != shared:
                    parts.insert(0, part // shared)
                part = shared
            joins = isinstance(part, int) and axis and isinstance(axis[-1], int)
            axis[-1:] = [prod([axis[-1], part])] if joins else [*axis[-1:], part]
        if count != 1 or names:
            raise reordered(axes, sizes)
        made.append(tuple(axis) or (1,))
    if parts:
        raise reordered(axes, sizes)
    return tuple(made)


def reordered(axes: Axes, sizes: Sequence[Size]) -> StepError:
    """The error for a view that takes numbers of several sequences or steps together."""
    wanted = ", ".join(
        " x ".join([*size.names, *([str(size.count)] * (size.count != 1))]) or "1" for size in sizes
    )
    return refuse(
        f"a tensor {text_of(axes)} is read as [{wanted}], which mixes sequences or steps: transpose it first"
    )
