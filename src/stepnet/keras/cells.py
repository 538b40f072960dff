"""Keras' own cells as step functions: their equations by settings, with weights in Keras' layout.

    GRUCell(4) -> step(x, (h,), {"0": kernel, "1": recurrent_kernel, "2": bias}, masks)

These cells need no trace of Keras' operations. They compute in the dtype of their inputs; Keras computes
products of float64 cells in float32. Stacked cells are one step. All other cells are traced.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.keras.installed import installed
from stepnet.layout.equations import ACTIVATIONS as FUNCTIONS

keras: Any = installed()
numpy: Any = np  # NumPy's stubs do not know that its functions map traced values to traced values
MASKS = ("_dropout_mask", "_recurrent_dropout_mask")
"""The attributes in which Keras' cells hold the dropout masks of a call: for the inputs, and for h."""

ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {
    keras.activations.get(name): function
    for name, function in FUNCTIONS.items()
    if name != "hard_sigmoid_fifth"
}
"""NumPy functions for Keras' activations."""


@dataclass(frozen=True)
class CellWeights:
    """The weights of one of Keras' cells, and the dropout masks of its input (x_masks) and state (h_masks).

    There is no mask, one, or one per gate. kernel, recurrent: the matrices for the input and for the state.
    bias: for all gates side by side; of a GRU that resets after the product two of these; or None.
    """

    cell: Any
    kernel: Any
    recurrent: Any
    bias: Any
    x_masks: Sequence[Any]
    h_masks: Sequence[Any]

    def from_x(self, x: Any) -> Any:
        """Multiplies x with the kernel, under dropout masks; returns the parts of all gates side by side."""
        return product(x, self.kernel, self.x_masks)

    def from_h(self, h: Any) -> Any:
        """Multiplies h with its kernel, under dropout masks; returns the parts of all gates side by side."""
        return product(h, self.recurrent, self.h_masks)

    def activated(self, a: Any) -> Any:
        """Applies the cell's `activation`, that of candidates and outputs, to a."""
        return ACTIVATIONS[self.cell.activation](a)

    def gate(self, a: Any) -> Any:
        """Applies the cell's `recurrent_activation`, that of gates, to a."""
        return ACTIVATIONS[self.cell.recurrent_activation](a)


def product(x: Any, kernel: Any, masks: Sequence[Any]) -> Any:
    """Multiplies x with a kernel, under dropout masks: none, one, or one for each gate's columns of the
    kernel. Returns the products of all gates, concatenated along the last axis.
    """
    if len(masks) < 2:
        return (x * masks[0] if masks else x) @ kernel
    kernels = np.split(kernel, len(masks), axis=-1)
    return numpy.concatenate(
        [(x * mask) @ kernel_of_gate for mask, kernel_of_gate in zip(masks, kernels, strict=True)], axis=-1
    )


def biased(a: Any, bias: Any) -> Any:
    """Adds a bias to a; None adds nothing."""
    return a if bias is None else a + bias


def simple_rnn(x: Any, states: Sequence[Any], w: CellWeights) -> Sequence[Any]:
    """Computes a step of a SimpleRNNCell: the next [h] from states [h]. w: its weights."""
    return [w.activated(biased(w.from_x(x), w.bias) + w.from_h(states[0]))]


def gru(x: Any, states: Sequence[Any], w: CellWeights) -> Sequence[Any]:
    """Computes a step of a GRUCell: the next [h] from states [h]. w: the weights, gates in order z r h.

    The reset gate r multiplies h, or, if the cell has `reset_after`, the product of h with its kernel.
    """
    (h,) = states
    after = w.cell.reset_after
    input_bias, recurrent_bias = (w.bias[0], w.bias[1]) if after and w.bias is not None else (w.bias, None)
    x_z, x_r, x_n = numpy.split(biased(w.from_x(x), input_bias), 3, axis=-1)
    if after:
        h_z, h_r, h_n = numpy.split(biased(w.from_h(h), recurrent_bias), 3, axis=-1)
        z, r = w.gate(x_z + h_z), w.gate(x_r + h_r)
        n = w.activated(x_n + r * h_n)
    else:
        units = w.cell.units
        h_z, h_r = numpy.split(product(h, w.recurrent[:, : 2 * units], w.h_masks[:2]), 2, axis=-1)
        z, r = w.gate(x_z + h_z), w.gate(x_r + h_r)
        n = w.activated(x_n + product(r * h, w.recurrent[:, 2 * units :], w.h_masks[2:]))
    return [z * h + (1 - z) * n]


def lstm(x: Any, states: Sequence[Any], w: CellWeights) -> Sequence[Any]:
    """Computes a step of an LSTMCell: the next [h, c]. w: its weights, in the gate order i f c o."""
    h, c = states
    i, f, g, o = numpy.split(biased(w.from_x(x) + w.from_h(h), w.bias), 4, axis=-1)
    c = w.gate(f) * c + w.gate(i) * w.activated(g)
    return [w.gate(o) * w.activated(c), c]


@dataclass(frozen=True)
class Named:
    """Equations of one of Keras' own cells, the number of its states, and its attributes with activations."""

    step: Callable[[Any, Sequence[Any], CellWeights], Sequence[Any]]
    states: int
    activations: Sequence[str] = ("activation", "recurrent_activation")


NAMED: dict[Any, Named] = {
    keras.layers.SimpleRNNCell: Named(simple_rnn, 1, ("activation",)),
    keras.layers.GRUCell: Named(gru, 1),
    keras.layers.LSTMCell: Named(lstm, 2),
}
"""Keras' own cells, by class."""


def cells_in(cell: Any) -> list[Any]:
    """Lists the cells in a (nested) stack of cells; a single cell is a list of one."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        return [inner for inner_stack in cell.cells for inner in cells_in(inner_stack)]
    return [cell]


def is_named(cell: Any) -> bool:
    """Tells if a cell, or each cell of a stack, is one of Keras' own with equations and activations in this
    file.

    >>> is_named(keras.layers.GRUCell(4)), is_named(keras.layers.GRUCell(4, activation=lambda x: x * 2))
    (True, False)
    """
    return all(
        type(part) in NAMED
        and part.activity_regularizer is None  # it would add a loss at every step
        and all(getattr(part, name) in ACTIVATIONS for name in NAMED[type(part)].activations)
        for part in cells_in(cell)
    )


@dataclass(frozen=True)
class NamedStep:
    """Step function for a stack of Keras' own cells. Each cell takes the output of the one before."""

    cells: Sequence[Any]

    @property
    def __name__(self) -> str:
        """The class names of the cells, as the name of the step in messages."""
        return " and ".join(type(cell).__name__ for cell in self.cells)

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """Computes one step of a stack of Keras' own cells, each of which reads the output of the cell
        before; returns the output of the last cell and the next states of all cells.

        params: the weights of all cells in order. statics: dropout masks by name.
        """
        states, weights = iter(memory), iter(params.values())
        known_masks: dict[str, Any] = statics or {}
        next_states = list[Any]()
        for index, cell in enumerate(self.cells):
            equations = NAMED[type(cell)]
            masks = [known_masks.get(f"{index}{name}", ()) for name in MASKS]
            kernel, recurrent = next(weights), next(weights)
            w = CellWeights(cell, kernel, recurrent, next(weights) if cell.use_bias else None, *masks)
            after = equations.step(x, [next(states) for _ in range(equations.states)], w)
            next_states.extend(after)
            x = after[0]
        return x, tuple(next_states)
