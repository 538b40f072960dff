"""The nodes of a graph of ATen operations that PyTorch made, as a value."""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from stepnet.compiler.trace import draws
from stepnet.compiler.trace.advice import INSTEAD
from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.traced import refuse
from stepnet.compiler.values.dtypes import COMPUTED
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError
from stepnet.importers.aten.graph import (
    ARGUMENT,
    CALL,
    CONSTANT,
    ITEM,
    AtenGraph,
    AtenNode,
    InferredTensor,
    SymbolicSize,
)
from stepnet.importers.axes import is_steps
from stepnet.importers.sizes import SEQUENCES, Size
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")

SORTS = "a step written with NumPy has np.sort and np.argsort, and stepnet.torch.Scan runs it on tensors"
PLACES = "write torch.where with torch.nn.functional.one_hot(index, n), or a product with that and a sum"
ADVICE: dict[str, str] = {
    **dict.fromkeys(("sort", "argsort", "topk", "median", "kthvalue"), SORTS),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), PLACES),
    **dict.fromkeys(("bucketize", "searchsorted"), "write (x[..., None] > bounds).sum(-1)"),
    **dict.fromkeys(("view_as_complex", "complex"), "the values of a step are real numbers"),
    "logcumsumexp": "write x.exp().cumsum(-1).log(), of x less a bound where exp(x) overflows",
    "_local_scalar_dense": "a step cannot read a value as a number: every row may differ; use torch.where",
    "_native_batch_norm_legit": "it takes means over rows: call .eval() on the module, or use a LayerNorm",
    "index_put": "use torch.where, or x[:, a:b] = y with a and b numbers",
}
"""Advice for refused operations, by their names; of those that draw random numbers it is `draws.ADVICE`."""
READ: Any = torch.ops.aten._local_scalar_dense.default
"""The operation that reads a value as a number."""


@dataclass
class Converted:
    """Conversion of a `torch.fx.GraphModule` to a graph as a value.

    names: the words for the symbols that occur in its sizes.
    nodes: the node for each of PyTorch's that is converted so far; a `SymbolicSize` for a computed size.
    """

    module: Any
    names: Mapping[Any, str]
    nodes: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def graph(self) -> AtenGraph:
        """Converts all nodes of PyTorch's graph in order; returns the ATen graph that stepnet replays."""
        for node in self.module.graph.nodes:
            if node.op == "output":
                made = tuple(part for part in self.nodes.values() if isinstance(part, AtenNode))
                return AtenGraph(made, tuple(self.argument(list(node.args[0]))))
            self.nodes[node] = self.node(node)
        raise StepError("the graph has no output")

    def node(self, node: Any) -> Any:
        """Converts one node of PyTorch's graph to an `AtenNode`: an argument, a constant, an element of a
        result, or the call of an operation; or to a `SymbolicSize`, if its value is a symbolic size.
        """
        if node.op == "placeholder":
            return AtenNode(ARGUMENT)
        place: str = node.stack_trace or ""
        if node.op == "get_attr":
            return self.constant(node, place)
        if is_symbol(node.meta.get("val")) and node.target is not READ:
            return self.size(node.meta["val"])
        if node.target is operator.getitem:
            return AtenNode(ITEM, value=(self.nodes[node.args[0]], node.args[1]), place=place)
        formal = node.target._schema.arguments
        given = dict(zip((argument.name for argument in formal), node.args, strict=False)) | node.kwargs
        arguments = {
            argument.name: self.argument(given[argument.name])
            if argument.name in given
            else argument.default_value
            for argument in formal
            if argument.name in given or argument.has_default_value()
        }
        return AtenNode(
            CALL,
            str(node.target).removeprefix("aten."),
            str(node.target),
            arguments,
            tuple(argument.name for argument in formal[: len(node.args)]),
            tuple(node.kwargs),
            tuple(
                self.tensor(value) for value in listed(node.meta["val"]) if isinstance(value, torch.Tensor)
            ),
            common_dtype(node.args[:2]),
            place=place,
            advice=advice(node.target),
        )

    def constant(self, node: Any, place: str) -> AtenNode:
        """Converts a node that stands for a tensor stored in the graph. A tensor of an unsupported dtype gets
        no array. place: the user's lines, for messages.

        Raises `StepError` if it is a random generator: an operation draws random numbers.
        """
        tensor = getattr(self.module, node.target)
        if isinstance(tensor, torch.Generator):
            drawing = next(iter(node.users))
            raise refuse(
                f"{drawing.target} is not an operation of a step: {draws.ADVICE}", drawing.stack_trace
            )
        inferred = self.tensor(tensor)
        array = tensor.detach().cpu().numpy() if inferred.dtype in COMPUTED else None
        return AtenNode(CONSTANT, results=(inferred,), value=array, place=place)

    def argument(self, value: Any) -> Any:
        """Replaces PyTorch's nodes and symbolic sizes in an argument of an operation by their conversions,
        also in nested lists.
        """
        if isinstance(value, list | tuple):
            return [self.argument(part) for part in cast("Sequence[Any]", value)]
        if is_symbol(value):
            return self.size(value)
        return self.nodes[value] if isinstance(value, torch.fx.Node) else value

    def tensor(self, tensor: Any) -> InferredTensor:
        """Describes a tensor by its sizes and its dtype."""
        sizes = tuple(self.size(size) if is_symbol(size) else size for size in tensor.shape)
        return InferredTensor(sizes, str(tensor.dtype).removeprefix("torch."))

    def size(self, number: Any) -> SymbolicSize:
        """Returns a symbolic size of PyTorch as a `SymbolicSize`: its text, with the names of its symbols,
        and its value, if that is a product or a linear function of the numbers of sequences and steps.
        """
        expression = number.node.expr
        known = {symbol: name if is_steps(name) else SEQUENCES for symbol, name in self.names.items()}
        return SymbolicSize(
            in_words(number, self.names),
            product_of(expression, known),
            linear_in(expression, self.names),
            bool(expression.free_symbols - known.keys()),
        )


def is_symbol(value: Any) -> bool:
    """Tells whether a value is a symbolic number of PyTorch, which is computed from the sizes of axes."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def product_of(expression: Any, names: Mapping[Any, str]) -> Size | None:
    """Translates an expression to a `Size` by the names of its symbols; None unless it is a product of an
    integer and of different symbols in `names`.
    """
    count, factors = expression.as_coeff_Mul()
    powers = factors.as_powers_dict()
    if not count.is_Integer or any(symbol not in names or power != 1 for symbol, power in powers.items()):
        return None
    return Size(tuple(sorted(names[symbol] for symbol in powers)), int(count))


def linear_in(expression: Any, names: Mapping[Any, str]) -> tuple[int, str, int] | None:
    """Returns (factor, name, constant) of a symbolic size that is factor x + constant, where x is a size with
    a name, such as the number of steps; None for any other expression.
    """
    constant, product = expression.as_coeff_Add()
    factor, symbol = product.as_coeff_Mul()
    if symbol not in names or not (constant.is_Integer and factor.is_Integer):
        return None
    return int(factor), names[symbol], int(constant)


def common_dtype(operands: Sequence[Any]) -> str:
    """Returns the name of the common dtype of the first two arguments of an operation; "" if there are not
    two, or they are no tensors or numbers.
    """
    given = [operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand for operand in operands]
    given = [1 if is_symbol(operand) else operand for operand in given]
    fits = len(given) == 2 and all(isinstance(operand, torch.Tensor | int | float) for operand in given)
    return str(torch.result_type(*given)).removeprefix("torch.") if fits else ""


def advice(operation: Any) -> str:
    """Returns the text to write instead of an unsupported operation; "" if it is not known."""
    if torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ()):
        return draws.ADVICE
    name = getattr(operation, "__name__", "").split(".")[0]
    return INSTEAD["np.linalg."] if "linalg_" in name else ADVICE.get(name, "")


def in_words(text: Any, names: Mapping[Any, str]) -> str:
    """Returns a text or a size of PyTorch with words in place of the symbols of sizes.

    >>> in_words("s4 + s42", {"s4": "rows", "s42": "steps"})
    'rows + steps'
    """
    words = {str(symbol): name for symbol, name in names.items()}
    return re.sub(r"\bs\d+\b", lambda found: words.get(found[0], found[0]), str(text))
