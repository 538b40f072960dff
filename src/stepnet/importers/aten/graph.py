"""A graph of ATen operations as a value: of a trace of PyTorch, and of a file of torch.export.

x         argument                              [steps, 8] float32
linear    linear.default(x, p_weight)           [steps, 4] float32
tanh      tanh.default(linear)                  [steps, 4] float32
outputs   tanh
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.importers.sizes import Size

ARGUMENT, CONSTANT, CALL, ITEM = "argument", "constant", "call", "item"
"""The kinds of nodes: an argument of the graph, an array in it, a call of an operation, and one result of a
call that has several.
"""


@dataclass(frozen=True)
class SymbolicSize:
    """Size of a tensor, or a number computed from sizes, that is known only when the graph runs.

    text: the expression, in words for sequences and steps, for messages.
    size: the size as a product of an integer and of numbers of sequences and steps; None for others.
    linear: (factor, name, constant) for a number factor x + constant, where x has the name; None for others.
    of_values: whether it depends on the numbers in tensors.
    """

    text: str
    size: Size | None = None
    linear: tuple[int, str, int] | None = None
    of_values: bool = False


@dataclass(frozen=True)
class InferredTensor:
    """Result of an operation as PyTorch inferred it: the sizes of its axes, and the name of its dtype."""

    shape: tuple[Any, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class AtenNode:
    """Node of a graph of ATen operations.

    kind: one of the constants of this module.
    operation: the name of a call's operation in the table, such as "add.Tensor".
    title: that name for messages, such as "aten.add.Tensor".
    arguments: the arguments of a call by name, defaults included; nodes stand for values. positions, options:
        the names of arguments given by position, and by name.
    results: the results of a call, or the tensor of an argument or a constant.
    common: the common dtype of the first two arguments of a call.
    value: the array of a constant; for an item the call and the place of the result.
    place: where it stands in the user's code, or in a file; "" if that is not known.
    advice: the text to write in its place, if the table has no such operation.
    """

    kind: str
    operation: str = ""
    title: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    positions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    results: tuple[InferredTensor, ...] = ()
    common: str = ""
    value: Any = None
    place: str = ""
    advice: str = ""


@dataclass(frozen=True)
class AtenGraph:
    """Graph of ATen operations.

    nodes: in the order in which they are computed; the arguments come first.
    outputs: the nodes of its results; a `SymbolicSize` for a result that is a number of steps.
    """

    nodes: tuple[AtenNode, ...]
    outputs: tuple[Any, ...]
