"""A graph of ATen operations of a step or of a whole module, replayed on the values of a net.

Each tensor is a value of the net with its axes (`importers.placed`). `module_rules` maps the operations that
move axes, or go along them, to the operators of `importers`. All others act on features alone, by their rows
of the table in `aten`, which steps share.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepnet.compiler.net.types import CONST, Extent
from stepnet.compiler.trace import draws
from stepnet.compiler.trace.feature_axes import listed
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.dtypes import COMPUTED
from stepnet.compiler.values.once import computed_once
from stepnet.errors import ModelError, StepError
from stepnet.importers.axes import (
    BATCH,
    TIME,
    Axes,
    Axis,
    extent_of,
    features_of,
    is_feature,
    mixes,
    size_of,
    symbols_in,
)
from stepnet.importers.placed import Placed, beside, two_orders
from stepnet.importers.sizes import SEQUENCES, STEPS, Size
from stepnet.importers.values import reshaped, to_extent
from stepnet.model.counting import length_of
from stepnet.torch.aten import ADVICE, TABLE, AtenOperation
from stepnet.torch.aten_graph import AtenGraph
from stepnet.torch.pytorch import pytorch
from stepnet.torch.rules import InferredResult

torch: Any = pytorch("torch")
READ: Any = torch.ops.aten._local_scalar_dense.default
"""The operation that reads a value as a number."""


@dataclass(frozen=True)
class SequenceOrder:
    """Reordering of the sequences, from the order `source` to the order `target`, both names of axes.

    The integers 0, 1, ... that number the sequences are an order from an axis to itself.
    """

    source: str = SEQUENCES
    target: str = SEQUENCES


@dataclass(frozen=True)
class NoValue:
    """Result that has no value in a model, and that no operation may read. what: its name in messages."""

    what: str


@dataclass
class GraphReplay:
    """Replay of a traced graph of ATen operations on values of a net.

    kind: "step" or "model", for messages. builds: the recipe of each recurrent layer, by the number in its
    node. like: any value of the net; in a model one that has one entry per step. rules: a rule for each
    operation on axes, by name. values: the values of the nodes so far.
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
        """Starts a replay with the graph's arguments; an argument None stands for the lengths of the
        sequences.
        """
        like = next(argument.value for argument in arguments if argument is not None)
        made = cls(kind, graph, builds, like, rules)
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        for node, argument in zip(nodes, arguments, strict=True):
            made.values[node] = Placed(made.lengths, (BATCH,)) if argument is None else argument
        return made

    @property
    def symbols(self) -> dict[Any, str]:
        """The size, sequences or steps, of each symbol of the graph; a step's rows are sequences."""
        return {symbol: STEPS if name == STEPS else SEQUENCES for symbol, name in self.graph.names.items()}

    @computed_once
    def lengths(self) -> Traced:
        """The lengths of the sequences, as a value of the net."""
        return length_of(self.like)

    def results(self, place: str) -> list[Any]:
        """Evaluates the graph and returns its results. place: the line where the module is defined, for
        messages.
        """
        self.check_known(place)
        for node in self.graph.nodes:
            with written_at(node.stack_trace or place):
                if node.op == "get_attr":
                    held = self.graph.held(node)
                    self.values[node] = Placed(constant(held, self.like), tuple((n,) for n in held.shape))
                elif node.op == "output":
                    return [self.values[part] for part in node.args[0]]
                elif node.op != "placeholder":
                    self.values[node] = self.evaluated(node)
        raise StepError("the graph has no output")

    def check_known(self, place: str) -> None:
        """Raises `StepError` that lists all operations of the graph that are in no table, with the line of
        each.
        """
        unknown = [
            node
            for node in self.graph.nodes
            if node.op == "call_function"
            and (node.target is READ or not is_size(node.meta.get("val")))
            and node.target is not operator.getitem
            and name_of(node) not in TABLE
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
        """Evaluates one node, and returns its result or list of results."""
        if is_size(node.meta.get("val")):
            return node.meta["val"]
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]
        call = ReplayedNode.of(self, node)
        try:
            return (self.rules.get(call.name) or by_table)(call)
        except StepError as error:
            raise StepError(f"{call.title}: {error}") from None
        except ModelError as error:
            raise refuse(f"{call.title}: {error}") from None

    def valued(self, argument: Any) -> Any:
        """Replaces nodes in an argument of a node, also in nested lists, by their values."""
        if isinstance(argument, list | tuple):
            return [self.valued(part) for part in cast("Sequence[Any]", argument)]
        return self.values[argument] if hasattr(argument, "meta") else argument


def name_of(node: Any) -> str:
    """Returns the name under which the tables have a node's operation."""
    return str(node.target).removeprefix("aten.")


@dataclass(frozen=True)
class ReplayedNode:
    """One node of the graph with its evaluated arguments, as rules receive it.

    name: the operation's name in the tables. arguments: its arguments by the names in the operation's schema,
    with values in place of nodes.
    """

    replay: GraphReplay
    node: Any
    name: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, replay: GraphReplay, node: Any) -> "ReplayedNode":
        """The call of a node."""
        formal = node.target._schema.arguments
        given = dict(zip((argument.name for argument in formal), node.args, strict=False)) | node.kwargs
        arguments = {
            argument.name: replay.valued(given[argument.name])
            if argument.name in given
            else argument.default_value
            for argument in formal
            if argument.name in given or argument.has_default_value()
        }
        return cls(replay, node, name_of(node), arguments)

    @property
    def title(self) -> str:
        """Name of the operation in messages."""
        return str(self.node.target)

    @property
    def tensors(self) -> list[Any]:
        """Results as PyTorch inferred them: tensors with shapes and dtypes but without numbers."""
        return listed(self.node.meta["val"])

    @property
    def operands(self) -> list[Placed]:
        """Arguments that are placed values; raises `StepError` for orders and for unknown values."""
        every: list[Any] = [part for value in self.arguments.values() for part in listed(value)]
        for part in every:
            if isinstance(part, SequenceOrder):
                raise refuse("the numbers of sequences in their batch, or their order, enter a value")
            if isinstance(part, NoValue):
                raise refuse(f"{part.what} is not known in a model")
        return [part for part in every if isinstance(part, Placed)]

    def size(self, size: Any) -> Any:
        """Translates a size that PyTorch inferred to an integer or a `Size`; refuses sizes that depend on
        values.
        """
        symbols = self.replay.symbols
        known = size_named(size, symbols)
        if known is None and size.node.expr.free_symbols - symbols.keys():
            raise refuse(
                "how many numbers there are depends on values: every row may differ; use torch.where"
            )
        if known is None:
            raise refuse(
                f"a tensor has {self.text(size)} numbers along an axis: sequences and steps are left as many "
                "as they are"
            )
        return known

    def sizes(self, sizes: Sequence[Any]) -> list[Any]:
        """Translates each size that PyTorch inferred to an integer or a `Size`."""
        return [self.size(size) for size in sizes]

    def text(self, size: Any) -> str:
        """Writes a size as text, with names for the graph's symbols."""
        text = str(size)
        for symbol, name in self.replay.graph.names.items():
            text = text.replace(str(symbol), name)
        return text

    def axes(self, tensor: Any, operands: Sequence[Placed]) -> Axes:
        """Determines the axes of a result. Sequences and steps are joined as in the operand that has an axis
        of that size.
        """
        known = dict[Any, Axis]()
        for axis in (axis for operand in operands for axis in operand.axes if not is_feature(axis)):
            if known.setdefault(size_of(axis), axis) != axis:
                raise two_orders(known[size_of(axis)], axis)
        return tuple(axis_of(self.size(size), known) for size in tensor.shape)

    def result(self, axes: Axes) -> InferredResult:
        """Describes the result with these axes, features and dtypes, for the rules of the table of
        operations.
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


def size_named(size: Any, names: Mapping[Any, str]) -> Any:
    """Translates a symbolic size to an integer or a `Size`; None unless it is a product of symbols in
    `names`.
    """
    if isinstance(size, int):
        return size
    count, factors = size.node.expr.as_coeff_Mul()
    powers = factors.as_powers_dict()
    if not count.is_Integer or any(symbol not in names or power != 1 for symbol, power in powers.items()):
        return None
    return Size(tuple(sorted(names[symbol] for symbol in powers)), int(count))


def axis_of(size: Any, known: Mapping[Any, Axis]) -> Axis:
    """Makes the axis of a size. known: axes of the operands by size, which are preferred."""
    if not isinstance(size, Size):
        return (size,)
    return known.get(size) or (*size.symbols, *([size.times] * (size.times != 1)))


def by_table(call: ReplayedNode) -> Any:
    """Computes an operation by its row of the table of operations, which knows features only."""
    row, operands = TABLE[call.name], call.operands
    axes = [call.axes(tensor, operands) for tensor in call.tensors]
    dims = next((name for name in ("dim", "dims") if name in call.arguments), None)
    if dims is not None and operands:
        steps = along_steps(call, row, operands[0], call.arguments[dims])
        if steps is not None:
            return steps
    check_kept(call, operands, axes)
    translated = {} if dims is None or not operands else {dims: features(operands[0], call.arguments[dims])}
    if row.folded:
        values = {name: aligned(call, value, axes[0]) for name, value in call.arguments.items()}
    else:
        values = {name: unplaced(value) for name, value in call.arguments.items()}
    return placed(called(call, row, call.result(axes[0]), values | translated), axes)


def called(call: ReplayedNode, row: AtenOperation, result: InferredResult, values: Mapping[str, Any]) -> Any:
    """Calls the rule of a row with values in place of the node's arguments, by position and by name."""
    names = [argument.name for argument in call.node.target._schema.arguments]
    positions = names[: len(call.node.args)]
    options = {name: values[name] for name in call.node.kwargs}
    return row.rule(result, *(values[name] for name in positions), **options)


def placed(outputs: Any, axes: Sequence[Axes]) -> Any:
    """Gives the outputs of a rule their axes: one placed value for one output, a list for several."""
    many = [
        NoValue("the place of a step")
        if value is None
        else Placed(reshaped(to_extent(value, extent_of(own)), features_of(own)), own)
        for value, own in zip(listed(outputs), axes, strict=True)
    ]
    return many if isinstance(outputs, list | tuple) else many[0]


def unplaced(argument: Any) -> Any:
    """Replaces placed values in an argument, also in lists, by the bare values of the net."""
    if isinstance(argument, list):
        return [unplaced(part) for part in cast("list[Any]", argument)]
    return argument.value if isinstance(argument, Placed) else argument


def aligned(call: ReplayedNode, argument: Any, axes: Axes) -> Any:
    """Brings an argument of an elementwise operation to the extent and the axes of the result."""
    x = scalar(call, argument) if is_size(argument) else argument
    if not isinstance(x, Placed):
        return x
    return beside(at_extent(x, extent_of(axes)), axes)


def at_extent(x: Placed, extent: Extent) -> Placed:
    """Repeats a value to an extent, unless its extent is deeper; a parameter stays a parameter."""
    return x if x.value.is_constant else x.with_value(to_extent(x.value, extent))


def scalar(call: ReplayedNode, number: Any) -> Placed:
    """Makes a value of a symbolic size, such as the number of steps: each sequence's own length."""
    constant, product = number.node.expr.as_coeff_Add()
    factor, symbol = product.as_coeff_Mul()
    if call.replay.kind == "step":
        raise refuse("the number of rows enters a value, and a step does not know it")
    if call.replay.graph.names.get(symbol) != STEPS or not (constant.is_Integer and factor.is_Integer):
        raise refuse(
            f"the number {call.text(number)} enters a value, and a model knows the number of steps alone, "
            "x.size(1)"
        )
    lengths = call.replay.lengths
    return Placed(lengths if (factor, constant) == (1, 0) else lengths * int(factor) + int(constant), ())


def check_kept(call: ReplayedNode, operands: Sequence[Placed], axes: Sequence[Axes]) -> None:
    """Raises `StepError` if an operation without a `dim` argument would drop the axis of sequences or
    steps.
    """
    before = {symbol for operand in operands for symbol in symbols_in(operand.axes)}
    for own in axes:
        lost = before - set(symbols_in(own))
        if lost:
            raise mixes(min(lost), operands[0].axes)


def dims_of(x: Placed, dims: Any) -> list[int]:
    """Returns the axes of an operation as non-negative numbers; None and an empty list are all axes."""
    rank = len(x.axes)
    return [*range(rank)] if dims is None or dims == [] else [dim % rank for dim in listed(dims)]


def features(x: Placed, dims: Any) -> Any:
    """Translates axes for the rules of features, which count from the last axis; refuses sequences and
    steps.
    """
    found = list[int]()
    for dim in dims_of(x, dims):
        if not is_feature(x.axes[dim]):
            raise mixes(max(symbols_in((x.axes[dim],))), x.axes)
        found.append(x.feature(dim))
    return found if isinstance(dims, list) or dims is None else found[0]


def along_steps(call: ReplayedNode, row: AtenOperation, x: Placed, dims: Any) -> Any:
    """Computes an operation along the steps of each sequence; returns None if it goes along features."""
    every = dims_of(x, dims)
    if not any(symbols_in((x.axes[dim],)) for dim in every):
        return None
    for dim in every:
        if SEQUENCES in symbols_in((x.axes[dim],)):
            raise mixes(SEQUENCES, x.axes)
    if row.steps is None:
        raise mixes(STEPS, x.axes)
    if any(x.axes[dim] != TIME for dim in every):
        raise refuse("it goes along steps and features at once: go along one after the other")
    options = {name: part for name, part in call.arguments.items() if name in ("correction", "ord")}
    axes = [call.axes(tensor, [x]) for tensor in call.tensors]
    return placed(row.steps(x.value.astype(call.result(()).dtype), **options), axes)


# ---- PyTorch's values --------------------------------------------------------------------------------------


def is_size(value: Any) -> bool:
    """Tells whether a value is a symbolic number, computed from the sizes of axes."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def constant(tensor: Any, like: Traced) -> Traced:
    """Makes a tensor that a graph holds a constant of the net. like: any value of that net."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in COMPUTED:
        raise refuse(f"a constant of dtype {dtype} cannot enter a step; use one of {', '.join(COMPUTED)}")
    return Traced(like.builder, like.builder.constant(tensor.detach().cpu().numpy()))


def advice(operation: Any) -> str:
    """Returns advice for an unknown operation, preceded by a colon; empty if there is none."""
    if torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ()):
        return f": {draws.ADVICE}"
    known = ADVICE.get(getattr(operation, "__name__", "").split(".")[0])
    return f": {known}" if known else ""


def torch_name(tensor: Any) -> str:
    """The name of a tensor's dtype; raises `StepError` if stepnet does not know it."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in COMPUTED:
        raise refuse(f"a value of dtype {name} is not one of a step; use one of {', '.join(COMPUTED)}")
    return name
