"""The recurrent layers of torch.nn as nets, whose parameters have PyTorch's layout.

    torch.nn.GRU(8, 16, num_layers=2, bidirectional=True)
        ->   Stack([Bidirectional(gru, gru), Bidirectional(gru, gru)])   ->   one net

    weight_ih [gates x hidden, inputs]    weight_hh [gates x hidden, output]    weight_hr [projected, hidden]

So a net uses a module's tensors without conversion, and gradients have the layout of the tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.cells.gated import CELLS, Cell
from stepnet.compiler.values.records import dataclass
from stepnet.model.compose import Bidirectional, Stack
from stepnet.model.layers import Layer
from stepnet.model.recurrence import RNN

NAMES = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih", "d": "bias_hh", "P": "weight_hr"}
"""PyTorch's names of a cell's parameters, in the order in which its modules have them."""

MODES = {"GRU": "gru", "LSTM": "lstm", "RNN_TANH": "simple_rnn", "RNN_RELU": "simple_rnn_relu"}
"""For each `mode` of torch.nn.RNNBase, the cell that it computes; their gates are in the same order."""


@dataclass(frozen=True, init=True)  # written at once, as torch.compile traces calls of the class
class CellSizes:
    """Sizes and settings of a recurrent module of torch.nn, which determine its net.

    mode: its attribute `mode`, a key of `MODES`. projected: the size of an LSTM's projection; 0 for none.

    >>> CellSizes("LSTM", 3, 4, projected=2).shapes
    {'weight_ih': (16, 3), 'weight_hh': (16, 2), 'bias_ih': (16,), 'bias_hh': (16,), 'weight_hr': (2, 4)}
    """

    mode: str
    inputs: int
    hidden: int
    layers: int = 1
    bias: bool = True
    bidirectional: bool = False
    projected: int = 0
    dtype: str = "float32"

    @property
    def key(self) -> str:
        """Text of the sizes and settings, which stands for the module in a graph of PyTorch; `of_key` reads
        it.

        >>> CellSizes("GRU", 3, 4, bias=False).key
        'GRU 3 4 1 0 0 0 float32'
        """
        numbers = f"{self.inputs} {self.hidden} {self.layers} {int(self.bias)} {int(self.bidirectional)}"
        return f"{self.mode} {numbers} {self.projected} {self.dtype}"

    @classmethod
    def of_key(cls, key: str) -> "CellSizes":
        """Reads sizes from the text that the property `key` returned."""
        mode, *numbers, dtype = key.split()
        inputs, hidden, layers, bias, bidirectional, projected = map(int, numbers)
        return cls(mode, inputs, hidden, layers, bool(bias), bool(bidirectional), projected, dtype)

    @property
    def cell(self) -> Cell:
        """The cell of `sn.cells` that computes the module of torch.nn which has these sizes and this mode."""
        return CELLS["lstm_projection" if self.projected else MODES[self.mode]]

    @property
    def directions(self) -> int:
        """Number of directions in which a module of these sizes runs: 2 if it is bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def output(self) -> int:
        """Number of output features per direction."""
        return self.projected or self.hidden

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of the first layer, by PyTorch's name such as "weight_ih".

        PyTorch's matrices are stepnet's transposed. Without `bias` there are no biases b and d.
        """
        known = self.cell.shapes(self.inputs, self.hidden, self.projected or None)
        return {
            theirs: known[ours][::-1]
            for ours, theirs in NAMES.items()
            if ours in known and (self.bias or ours not in "bd")
        }

    def single_layer(self, layer: int) -> "CellSizes":
        """Returns the sizes of layer number `layer` of several, as those of a module with this layer alone.
        Later layers take the outputs of all directions of the layer before.
        """
        inputs = self.output * self.directions if layer else self.inputs
        return replace(self, inputs=inputs, layers=1)

    @property
    def recurrences(self) -> Layer:
        """Layers of these sizes with zeros as parameters, to compile their net. Parameters are inputs of the
        net, so the zeros are not read.

        The inputs of the net are the sequences, h (and c) of each recurrence, and the parameters of each. Its
        results are the outputs, and the final h (and c) of each recurrence.
        """
        every = [self.single_layer(layer).shapes.values() for layer in range(self.layers)]
        return self.of(
            [np.zeros(shape, self.dtype) for shapes in every for shape in [*shapes] * self.directions]
        )

    @property
    def memories(self) -> Any:
        """Structure of the memory of layers of these sizes, into which a list of states is arranged."""
        return memory_of(self.recurrences)

    def of(self, weights: Sequence[Any], reverse: bool = False) -> Layer:
        """Makes stepnet's layers for a torch.nn module of these sizes: a `Stack`, or the only layer.

        weights: the module's parameters in PyTorch's order. reverse: whether a module of one direction runs
            from the last step of each sequence.
        """
        remaining = iter(weights)
        layers = [self.single_layer(layer).directed(remaining, reverse) for layer in range(self.layers)]
        return layers[0] if self.layers == 1 else Stack(layers)

    def directed(self, weights: Iterator[Any], reverse: bool) -> Layer:
        """Makes one layer of these sizes, in one or both directions, with the next parameters of the iterator
        `weights`. reverse: whether one direction runs from the last step of each sequence.
        """
        first = self.recurrence(weights, reverse)
        return Bidirectional(first, self.recurrence(weights, True)) if self.bidirectional else first

    def recurrence(self, weights: Iterator[Any], reverse: bool) -> RNN:
        """Makes the recurrence of one layer of a torch.nn module in one direction, with the next parameters
        of the iterator `weights`. reverse: whether it runs from the last step of each sequence.
        """
        params = {name: next(weights) for name in self.shapes}
        memory = self.cell.memory(self.hidden, self.projected or None)
        return RNN(in_their_layout(self.cell), params, memory=memory, inputs=self.inputs, reverse=reverse)


def memory_of(layer: Layer) -> Any:
    """Returns the structure of a layer's memory, into which a list of initial states is arranged."""
    if isinstance(layer, RNN):
        return layer.memory
    assert isinstance(layer, Stack | Bidirectional)
    return layer.joined([memory_of(part) for part in layer.layers])


def in_their_layout(cell: Cell) -> Callable[[Any, Any, Any], Any]:
    """Wraps a cell's step so that it takes parameters as PyTorch has them: its names, matrices transposed."""

    def step(x: Any, memory: Any, params: Any) -> Any:
        """Converts the parameters to the cell's names and layout, and calls the cell's step."""
        own = {ours: params[theirs] for ours, theirs in NAMES.items() if theirs in params}
        return cell.step(x, memory, {name: p.T if p.ndim == 2 else p for name, p in own.items()})

    return step
