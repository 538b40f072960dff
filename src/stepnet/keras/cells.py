"""Keras' own cells as steps on arrays: equations from their settings, in Keras' layout of weights.

    GRUCell(4) -> step(x, (h,), {"0": kernel, "1": recurrent_kernel, "2": bias}, masks)

Their steps need no tracing of Keras' operations, and compute in the dtype of their inputs, where products of
Keras' cells in float64 are in float32. Cells that are stacked are one step. What is not in these tables is
traced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.keras.installed import installed
from stepnet.layout.equations import ACTIVATIONS as FUNCTIONS

keras: Any = installed()
numpy: Any = np  # its functions give traced values for traced values, which its stubs do not know
MASKS = ("_dropout_mask", "_recurrent_dropout_mask")
"""Where Keras' cells keep the dropout masks of a call: of their inputs, and of h."""

ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {
    keras.activations.get(name): function
    for name, function in FUNCTIONS.items()
    if name != "hard_sigmoid_fifth"
}
"""What Keras' activations compute."""


@dataclass(frozen=True)
class Weights:
    """A cell's weights, and the dropout masks of a call: none, one, or one for each gate."""

    cell: Any
    kernel: Any
    recurrent: Any
    bias: Any
    of_x: Sequence[Any]
    of_h: Sequence[Any]

    def from_x(self, x: Any) -> Any:
        """The products with the input, all gates side by side."""
        return product(x, self.kernel, self.of_x)

    def from_h(self, h: Any) -> Any:
        """The products with the state, all gates side by side."""
        return product(h, self.recurrent, self.of_h)

    def activated(self, a: Any) -> Any:
        """The activation of a candidate or an output."""
        return ACTIVATIONS[self.cell.activation](a)

    def gate(self, a: Any) -> Any:
        """The activation of a gate."""
        return ACTIVATIONS[self.cell.recurrent_activation](a)


def product(x: Any, kernel: Any, masks: Sequence[Any]) -> Any:
    """The product of x with a kernel; with several masks, of x under each with its gate's part."""
    if len(masks) < 2:
        return (x * masks[0] if masks else x) @ kernel
    parts = np.split(kernel, len(masks), axis=-1)
    return numpy.concatenate([(x * mask) @ part for mask, part in zip(masks, parts, strict=True)], axis=-1)


def biased(a: Any, bias: Any) -> Any:
    """A sum with a bias, if there is one."""
    return a if bias is None else a + bias


def simple_rnn(x: Any, states: Sequence[Any], w: Weights) -> Sequence[Any]:
    """The next h of a SimpleRNNCell."""
    return [w.activated(biased(w.from_x(x), w.bias) + w.from_h(states[0]))]


def gru(x: Any, states: Sequence[Any], w: Weights) -> Sequence[Any]:
    """The next h of a GRUCell, with gates z r h."""
    (h,) = states
    after = w.cell.reset_after
    first, second = (w.bias[0], w.bias[1]) if after and w.bias is not None else (w.bias, None)
    x_z, x_r, x_n = numpy.split(biased(w.from_x(x), first), 3, axis=-1)
    if after:
        h_z, h_r, h_n = numpy.split(biased(w.from_h(h), second), 3, axis=-1)
        z, r = w.gate(x_z + h_z), w.gate(x_r + h_r)
        n = w.activated(x_n + r * h_n)
    else:
        units = w.cell.units
        h_z, h_r = numpy.split(product(h, w.recurrent[:, : 2 * units], w.of_h[:2]), 2, axis=-1)
        z, r = w.gate(x_z + h_z), w.gate(x_r + h_r)
        n = w.activated(x_n + product(r * h, w.recurrent[:, 2 * units :], w.of_h[2:]))
    return [z * h + (1 - z) * n]


def lstm(x: Any, states: Sequence[Any], w: Weights) -> Sequence[Any]:
    """The next h and c of an LSTMCell, with gates i f c o."""
    h, c = states
    i, f, g, o = numpy.split(biased(w.from_x(x) + w.from_h(h), w.bias), 4, axis=-1)
    c = w.gate(f) * c + w.gate(i) * w.activated(g)
    return [w.gate(o) * w.activated(c), c]


@dataclass(frozen=True)
class Named:
    """One of Keras' cells: its equations, how many states it has, and its gates' activation if it has one."""

    step: Callable[[Any, Sequence[Any], Weights], Sequence[Any]]
    states: int
    activations: Sequence[str] = ("activation", "recurrent_activation")


NAMED: dict[Any, Named] = {
    keras.layers.SimpleRNNCell: Named(simple_rnn, 1, ("activation",)),
    keras.layers.GRUCell: Named(gru, 1),
    keras.layers.LSTMCell: Named(lstm, 2),
}


def cells_in(cell: Any) -> list[Any]:
    """A cell, or the cells that it stacks."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        return [inner for part in cell.cells for inner in cells_in(part)]
    return [cell]


def is_named(cell: Any) -> bool:
    """Whether the equations of a cell, and of each one that it stacks, are known here.

    >>> is_named(keras.layers.GRUCell(4)), is_named(keras.layers.GRUCell(4, activation=lambda x: x * 2))
    (True, False)
    """
    return all(
        type(part) in NAMED
        and part.activity_regularizer is None  # which adds a loss at every step
        and all(getattr(part, name) in ACTIVATIONS for name in NAMED[type(part)].activations)
        for part in cells_in(cell)
    )


@dataclass(frozen=True)
class NamedStep:
    """The step of cells, each over the output of the one before."""

    cells: Sequence[Any]

    @property
    def __name__(self) -> str:
        return " and ".join(type(cell).__name__ for cell in self.cells)

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """The output and the next states."""
        states, weights = iter(memory), iter(params.values())
        known_masks: dict[str, Any] = statics or {}
        following = list[Any]()
        for place, cell in enumerate(self.cells):
            known = NAMED[type(cell)]
            masks = [known_masks.get(f"{place}{name}", ()) for name in MASKS]
            kernel, recurrent = next(weights), next(weights)
            w = Weights(cell, kernel, recurrent, next(weights) if cell.use_bias else None, *masks)
            after = known.step(x, [next(states) for _ in range(known.states)], w)
            following.extend(after)
            x = after[0]
        return x, tuple(following)
