"""Evaluates a graph of ATen operations, of a step or of a whole module, on values of a net.

Each tensor becomes a value of the net with named axes (`importers.placed`). The rule of each operation is an
entry of the table `aten.ATEN`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepnet.compiler.net.types import CONST
from stepnet.compiler.trace import draws
from stepnet.compiler.trace.feature_axes import listed
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.dtypes import COMPUTED
from stepnet.compiler.values.once import computed_once
from stepnet.errors import ModelError, StepError
from stepnet.importers.axes import (
    BATCH,
    Axes,
    Axis,
    extent_of,
    features_of,
    is_feature,
    is_steps,
    size_of,
)
from stepnet.importers.placed import Placed, order_error
from stepnet.importers.sizes import SEQUENCES, Size
from stepnet.model.counting import length_of
from stepnet.torch.aten_graph import AtenGraph
from stepnet.torch.pytorch import pytorch
from stepnet.torch.rules import InferredResult

torch: Any = pytorch("torch")
ADVICE: dict[str, str] = {
    "_local_scalar_dense": "a step cannot read a value as a number: every row may differ; use torch.where",
    "_native_batch_norm_legit": "it takes means over rows: call .eval() on the module, or use a LayerNorm",
    "index_put": "use torch.where, or x[:, a:b] = y with a and b numbers",
    "pow": "for a base above 0 write torch.exp(b * torch.log(a))",
}
"""Advice for refused operations, by their names; of those that draw random numbers it is `draws.ADVICE`."""
READ: Any = torch.ops.aten._local_scalar_dense.default
"""The operation that reads a value as a number."""


@dataclass(frozen=True)
class SequenceOrder:
    """Permutation of the sequences, which stands for a tensor of their indices, as a sort returns it.
    source, target: the names of the axis of sequences before and after it. Equal names are the integers 0, 1,
    ..., which change nothing.
    """

    source: str = SEQUENCES
    target: str = SEQUENCES


@dataclass(frozen=True)
class NoValue:
    """Placeholder for a result that no net computes and no operation may read. what: its name in messages."""

    what: str


@dataclass
class GraphReplay:
    """Evaluation of a traced graph of ATen operations on values of a net.

    kind: "step" or "model", for messages.
    graph: the graph.
    builds: how to build each recurrent layer, by the number in its node.
    like: any value of the net, to which constants are added; in a model one that has one entry per step.
    rules: the function that evaluates each operation, by name.
    values: the value of each node that is evaluated so far.
    """

    kind: str
    graph: AtenGraph
    builds: Sequence[Any]
    like: Traced
    rules: "Mapping[str, Rule]"
    values: dict[Any, Any] = field(default_factory=dict[Any, Any])

    @classmethod
    def of(
        cls,
        kind: str,
        graph: AtenGraph,
        arguments: "Sequence[Placed | None]",
        rules: "Mapping[str, Rule]",
        builds: Sequence[Any] = (),
    ) -> "GraphReplay":
        """Prepares the evaluation of a graph of PyTorch's operations on values of a net.

        kind: "step" or "model". arguments: the graph's arguments; None stands for the lengths of the
        sequences.
        rules: the function that evaluates each operation, by name.
        builds: how to build each recurrent layer, by the number in its node.
        """
        like = next(argument.value for argument in arguments if argument is not None)
        made = cls(kind, graph, builds, like, rules)
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        for node, argument in zip(nodes, arguments, strict=True):
            made.values[node] = Placed(made.lengths, (BATCH,)) if argument is None else argument
        return made

    @property
    def symbols(self) -> dict[Any, str]:
        """Maps each symbolic size of the graph to what it counts: `SEQUENCES`, or an axis of steps; rows of a
        step are sequences.
        """
        return {symbol: name if is_steps(name) else SEQUENCES for symbol, name in self.graph.names.items()}

    @computed_once
    def lengths(self) -> Traced:
        """The lengths of the sequences over which the graph is evaluated, as a value of the net."""
        return length_of(self.like)

    def results(self, place: str) -> list[Any]:
        """Evaluates the graph, node by node in order, and returns its results.

        place: the line where the step or module is defined, for messages about nodes without a line.
        """
        self.check_known(place)
        for node in self.graph.nodes:
            with written_at(node.stack_trace or place):
                if node.op == "get_attr":
                    held = self.graph.constant_tensor(node)
                    self.values[node] = Placed(constant(held, self.like), tuple((n,) for n in held.shape))
                elif node.op == "output":
                    return [self.values[part] for part in node.args[0]]
                elif node.op != "placeholder":
                    self.values[node] = self.evaluated(node)
        raise StepError("the graph has no output")

    def check_known(self, place: str) -> None:
        """Raises a `StepError` that lists all operations of the graph without a rule, with their lines.

        place: the line where the step or module is defined, for operations whose line is not known. Nodes
            that compute sizes, or take one result of several, need no rule.
        """
        unknown = [
            node
            for node in self.graph.nodes
            if node.op == "call_function"
            and (node.target is READ or not is_size(node.meta.get("val")))
            and node.target is not operator.getitem
            and name_of(node) not in self.rules
        ]
        if unknown:
            first, *others = unknown
            lines = "".join(f"\n  {node.target}\n  at {node.stack_trace or place}" for node in others)
            rest = (
                "; neither are the operations below, and all others are" if others else ", and all others are"
            )
            raise StepError(
                f"{first.target} is not an operation of a {self.kind}{rest}{advice(first.target)}"
                f"\n  at {first.stack_trace or place}{lines}"
            )

    def evaluated(self, node: Any) -> Any:
        """Evaluates one node of the graph by its operation's rule; returns its result or list of results.

        A node that computes a size gives the symbolic size itself; `getitem` takes one result of several.
        """
        if is_size(node.meta.get("val")):
            return node.meta["val"]
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]
        call = ReplayedNode.of(self, node)
        try:
            return self.rules[call.name](call)
        except StepError as error:
            raise StepError(f"{call.title}: {error}") from None
        except ModelError as error:
            raise refuse(f"{call.title}: {error}") from None

    def evaluated_argument(self, argument: Any) -> Any:
        """Replaces nodes in an argument of a node, also in nested lists, by the values computed for them."""
        if isinstance(argument, list | tuple):
            return [self.evaluated_argument(part) for part in cast("Sequence[Any]", argument)]
        return self.values[argument] if hasattr(argument, "meta") else argument


def name_of(node: Any) -> str:
    """Returns the name of a graph node's operation in the table of rules, such as "add.Tensor"."""
    return str(node.target).removeprefix("aten.")


@dataclass(frozen=True)
class ReplayedNode:
    """One node of a PyTorch graph (the call of an operation) with its evaluated arguments, as rules take it.

    replay: the evaluation of the graph. node: the node.
    name: the operation's name in the table of rules.
    arguments: its arguments by the names in the operation's schema, with values in place of nodes.
    """

    replay: GraphReplay
    node: Any
    name: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, replay: GraphReplay, node: Any) -> "ReplayedNode":
        """Makes the record of a node, with its arguments evaluated and the schema's defaults for others.
        replay: the evaluation of the node's graph, with the values of earlier nodes.
        """
        formal = node.target._schema.arguments
        given = dict(zip((argument.name for argument in formal), node.args, strict=False)) | node.kwargs
        arguments = {
            argument.name: replay.evaluated_argument(given[argument.name])
            if argument.name in given
            else argument.default_value
            for argument in formal
            if argument.name in given or argument.has_default_value()
        }
        return cls(replay, node, name_of(node), arguments)

    @property
    def title(self) -> str:
        """Name of the node's operation for messages, such as "aten.add.Tensor"."""
        return str(self.node.target)

    @property
    def tensors(self) -> list[Any]:
        """The node's results as PyTorch inferred them: tensors with shapes and dtypes but without numbers."""
        return listed(self.node.meta["val"])

    @property
    def operands(self) -> list[Placed]:
        """The arguments that are values with named axes. Raises `StepError` if one is an order of sequences,
        or a result that no net computes, as only a few operations can read these.
        """
        every: list[Any] = [part for value in self.arguments.values() for part in listed(value)]
        for part in every:
            if isinstance(part, SequenceOrder):
                raise refuse("a value depends on the indices of sequences in their batch, or on their order")
            if isinstance(part, NoValue):
                raise refuse(f"{part.what} is not known in a model")
        return [part for part in every if isinstance(part, Placed)]

    def size(self, size: Any) -> Any:
        """Translates a size that PyTorch inferred to an integer, or to a `Size` of sequences and steps.

        Raises `StepError` for a size that depends on values, or that is another expression.
        """
        symbols = self.replay.symbols
        known = size_named(size, symbols)
        if known is None and size.node.expr.free_symbols - symbols.keys():
            raise refuse(
                "the number of elements depends on values, which may differ between rows; use torch.where"
            )
        if known is None:
            raise refuse(
                f"a tensor has {self.text(size)} elements along an axis: a model keeps the numbers of "
                "sequences and of steps"
            )
        return known

    def sizes(self, sizes: Sequence[Any]) -> list[Any]:
        """Translates each size that PyTorch inferred to an integer, or to a `Size` of sequences and steps."""
        return [self.size(size) for size in sizes]

    def text(self, size: Any) -> str:
        """Writes a size as text for messages, with words such as "steps" for the graph's symbols."""
        text = str(size)
        for symbol, name in self.replay.graph.names.items():
            text = text.replace(str(symbol), name)
        return text

    def axes(self, tensor: Any, operands: Sequence[Placed]) -> Axes:
        """Determines for each axis of a result whether it is sequences, steps or features.

        tensor: the result, with the sizes that PyTorch inferred.
        operands: values with named axes. If one of them has an axis of sequences or steps of the size of an
            axis of the result, the result has this axis.

        Raises `ModelError` if operands have two different axes of one size, such as sequences in two orders.
        """
        known = dict[Any, Axis]()
        for axis in (axis for operand in operands for axis in operand.axes if not is_feature(axis)):
            if known.setdefault(size_of(axis), axis) != axis:
                raise order_error(known[size_of(axis)], axis)
        return tuple(axis_of(self.size(size), known) for size in tensor.shape)

    def result(self, axes: Axes) -> InferredResult:
        """Describes the node's result for rules that compute on features alone: its features, its dtype, the
        common dtype of the first two arguments, and whether it has one entry per row. axes: its named axes.
        """
        dtype = torch_name(self.tensors[0])
        given = [
            argument.meta["val"] if hasattr(argument, "meta") else argument for argument in self.node.args[:2]
        ]
        given = [1 if is_size(operand) else operand for operand in given]
        fits = len(given) == 2 and all(isinstance(operand, torch.Tensor | int | float) for operand in given)
        common = str(torch.result_type(*given)).removeprefix("torch.") if fits else dtype
        return InferredResult(features_of(axes), dtype, common, extent_of(axes) != CONST, self.replay.like)


Rule = Callable[[ReplayedNode], Any]
"""Computes the result of an operation, or the list of its results."""


def size_named(size: Any, names: Mapping[Any, str]) -> Any:
    """Translates a symbolic size of PyTorch to an integer or a `Size`, by the names of its symbols.

    Returns None unless it is a product of an integer and of different symbols in `names`.
    """
    if isinstance(size, int):
        return size
    count, factors = size.node.expr.as_coeff_Mul()
    powers = factors.as_powers_dict()
    if not count.is_Integer or any(symbol not in names or power != 1 for symbol, power in powers.items()):
        return None
    return Size(tuple(sorted(names[symbol] for symbol in powers)), int(count))


def axis_of(size: Any, known: Mapping[Any, Axis]) -> Axis:
    """Makes the named axis of a size: an integer gives an axis of features, a `Size` one of sequences or
    steps.

    known: the axes of the operands by size. If one has this size, it is returned, as its name may say how the
    sequences are sorted.
    """
    if not isinstance(size, Size):
        return (size,)
    return known.get(size) or (*size.symbols, *([size.times] * (size.times != 1)))


# ---- PyTorch's values --------------------------------------------------------------------------------------


def is_size(value: Any) -> bool:
    """Tells whether a value is a symbolic number of PyTorch, which is computed from the sizes of axes."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def constant(tensor: Any, like: Traced) -> Traced:
    """Adds a tensor that a graph contains to the net as a constant. like: any value of that net."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in COMPUTED:
        raise refuse(f"a constant of dtype {dtype} cannot enter a step; use one of {', '.join(COMPUTED)}")
    return Traced(like.builder, like.builder.constant(tensor.detach().cpu().numpy()))


def advice(operation: Any) -> str:
    """Returns what to write instead of an unsupported operation, after a colon; "" if it is not known."""
    if torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ()):
        return f": {draws.ADVICE}"
    known = ADVICE.get(getattr(operation, "__name__", "").split(".")[0])
    return f": {known}" if known else ""


def torch_name(tensor: Any) -> str:
    """Returns the name of a tensor's dtype; raises `StepError` for a dtype that nets do not have."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in COMPUTED:
        raise refuse(f"a value of dtype {name} is not one of a step; use one of {', '.join(COMPUTED)}")
    return name
