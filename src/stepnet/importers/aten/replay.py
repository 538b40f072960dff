"""Evaluates a graph of ATen operations, of a step or of a whole module, on values of a net.

Each tensor becomes a value of the net with named axes (`importers.placed`). The rule of each operation is an
entry of the table `table.ATEN`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from math import gcd, prod
from typing import Any, cast

from stepnet.compiler.net.types import CONST
from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.dtypes import COMPUTED
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError, StepError
from stepnet.importers.aten.graph import (
    ARGUMENT,
    CALL,
    CONSTANT,
    AtenGraph,
    AtenNode,
    InferredTensor,
    SymbolicSize,
)
from stepnet.importers.aten.rules import InferredResult
from stepnet.importers.axes import (
    BATCH,
    ONE,
    Axes,
    Axis,
    axis_factors,
    extent_of,
    features_of,
    is_feature,
    is_keys,
    is_time,
    reshape_error,
    size_of,
    symbols_of,
)
from stepnet.importers.broadcasting import joint_axes, order_error
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import SEQUENCES, Size
from stepnet.model.counting import length_of


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
    builds: how to build each recurrent layer, by the number in its node.
    like: any value of the net, to which constants are added; in a model one that has one entry per step.
    rules: the function that evaluates each operation, by name.
    stated: for a graph of a file, which may fix the numbers of sequences and steps, these numbers by the
    names of
        their axes; None for a trace, which fixes none.
    values: the value of each node that is evaluated so far.
    """

    kind: str
    graph: AtenGraph
    builds: Sequence[Any]
    like: Traced
    rules: "Mapping[str, Rule]"
    stated: dict[str, int] | None = None
    values: dict[AtenNode, Any] = field(default_factory=dict[AtenNode, Any])

    @classmethod
    def of(
        cls,
        kind: str,
        graph: AtenGraph,
        arguments: "Sequence[Placed | None]",
        rules: "Mapping[str, Rule]",
        builds: Sequence[Any] = (),
        stated: Mapping[str, int] | None = None,
        like: Traced | None = None,
    ) -> "GraphReplay":
        """Prepares the evaluation of a graph of PyTorch's operations on values of a net.

        kind: "step" or "model". arguments: the graph's arguments; None stands for the lengths of the
        sequences. rules: the function that evaluates each operation, by name. builds: how to build each
        recurrent layer, by the number in its node. stated: the numbers of sequences and steps that the graph
        of a file fixes, by "sequences" and "steps"; None for a graph that was traced here. like: a value of
        the net that has one entry per step; by default the first argument.
        """
        first = next(argument.value for argument in arguments if argument is not None)
        made = cls(
            kind,
            graph,
            builds,
            first if like is None else like,
            rules,
            None if stated is None else dict(stated),
        )
        nodes = [node for node in graph.nodes if node.kind == ARGUMENT]
        for node, argument in zip(nodes, arguments, strict=True):
            made.values[node] = Placed(made.lengths, (BATCH,)) if argument is None else argument
        return made

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
            with written_at(node.place or place):
                if node.kind == CONSTANT:
                    self.values[node] = constant(node, self.like)
                elif node.kind != ARGUMENT:
                    self.values[node] = self.evaluated(node)
        return [self.evaluated_argument(part) for part in self.graph.outputs]

    def check_known(self, place: str) -> None:
        """Raises a `StepError` that lists all operations of the graph that stepnet cannot evaluate (no entry
        in `rules`), with their lines.

        place: the line where the step or module is defined, for operations whose line is not known.
        """
        unknown = [
            node for node in self.graph.nodes if node.kind == CALL and node.operation not in self.rules
        ]
        if unknown:
            first, *others = unknown
            lines = "".join(f"\n  {node.title}\n  at {node.place or place}" for node in others)
            rest = "; neither are the operations below" if others else ""
            advice = f": {first.advice}" if first.advice else ""
            raise StepError(
                f"{first.title} is not an operation of a {self.kind}{rest}{advice}"
                f"\n  at {first.place or place}{lines}"
            )

    def evaluated(self, node: AtenNode) -> Any:
        """Evaluates one node of the graph by its operation's rule; returns its result or list of results. A
        node that picks one of several results returns it.
        """
        if node.kind != CALL:
            source, number = node.value
            return self.values[source][number]
        call = ReplayedNode.of(self, node)
        try:
            result = self.rules[call.name](call)
        except StepError as error:
            raise StepError(f"{call.title}: {error}") from None
        except ModelError as error:
            raise refuse(f"{call.title}: {error}") from None
        if self.stated is not None:
            note_stated(listed(result), node.results, self.stated)
        return result

    def evaluated_argument(self, argument: Any) -> Any:
        """Replaces each node in an argument, also in nested lists, by the value computed for that node."""
        if isinstance(argument, list | tuple):
            return [self.evaluated_argument(part) for part in cast("Sequence[Any]", argument)]
        return self.values[argument] if isinstance(argument, AtenNode) else argument


@dataclass(frozen=True)
class ReplayedNode:
    """One node of a PyTorch graph (the call of an operation) with its evaluated arguments, as rules take it.

    replay: the evaluation of the graph. node: the node.
    name: the operation's name in the table of rules.
    arguments: its arguments by the names in the operation's schema, with values in place of nodes.
    """

    replay: GraphReplay
    node: AtenNode
    name: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, replay: GraphReplay, node: AtenNode) -> "ReplayedNode":
        """Makes a `ReplayedNode`: a node of a PyTorch graph with its arguments as values computed before, for
        the rule that evaluates it.

        replay: the evaluation of the node's graph, with the values of earlier nodes.
        """
        arguments = {name: replay.evaluated_argument(value) for name, value in node.arguments.items()}
        return cls(replay, node, node.operation, arguments)

    @property
    def title(self) -> str:
        """Name of the node's operation for messages, such as "aten.add.Tensor"."""
        return self.node.title

    @property
    def tensors(self) -> list[InferredTensor]:
        """The node's results as PyTorch inferred them: shapes and dtypes without numbers."""
        return list(self.node.results)

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
        if not isinstance(size, SymbolicSize):
            return size
        if size.size is None and size.of_values:
            raise refuse(
                "the number of elements depends on values, which may differ between rows; use torch.where"
            )
        if size.size is None:
            raise refuse(
                f"a tensor has {size.text} elements along an axis: a model keeps the numbers of "
                "sequences and of steps"
            )
        return size.size

    def sizes(self, sizes: Sequence[Any]) -> list[Any]:
        """Translates each size that PyTorch inferred to an integer, or to a `Size` of sequences and steps."""
        return [self.size(size) for size in sizes]

    def text(self, size: Any) -> str:
        """Writes a size as text for messages, with words such as "steps" for the graph's symbols."""
        return size.text if isinstance(size, SymbolicSize) else str(size)

    def axes(self, tensor: Any, operands: Sequence[Placed]) -> Axes:
        """Determines for each axis of a result whether it is sequences, steps or features.

        tensor: the result, with the sizes that PyTorch inferred. operands: values with named axes. An axis of
        the result with the size of an operand's axis of sequences or steps is that axis.

        Raises `ModelError` if operands have two different axes of one size, such as sequences in two orders.
        """
        if any(map(is_keys, (axis for operand in operands for axis in operand.axes))):
            return joint_axes(operands)
        known = dict[Any, Axis]()
        for axis in (axis for operand in operands for axis in operand.axes if not is_feature(axis)):
            if known.setdefault(size_of(axis), axis) != axis:
                raise order_error(known[size_of(axis)], axis)
        if self.replay.stated is not None:
            axes = fixed_axes(tensor.shape, [operand.axes for operand in operands], self.replay.stated)
            return tuple(axis_of(self.size(part), {}) if is_size(part) else part for part in axes)
        return tuple(axis_of(size, known) for size in self.sizes(tensor.shape))

    def result(self, axes: Axes) -> InferredResult:
        """Describes the node's result for rules that compute on features alone: its features, its dtype, the
        common dtype of the first two arguments, and whether it has one entry per row. axes: its named axes.
        """
        dtype = torch_name(self.tensors[0])
        return InferredResult(
            features_of(axes), dtype, self.node.common or dtype, extent_of(axes) != CONST, self.replay.like
        )


Rule = Callable[[ReplayedNode], Any]
"""Computes the result of an operation, or the list of its results."""


def axis_of(size: Any, known: Mapping[Any, Axis]) -> Axis:
    """Makes the named axis of a size: an integer gives an axis of features, a `Size` one of sequences or
    steps.

    known: the axes of the operands by size. If one has this size, it is returned, as its name may say how the
    sequences are sorted.
    """
    if not isinstance(size, Size):
        return (size,)
    return known.get(size) or (*size.symbols, *([size.times] * (size.times != 1)))


# ---- graphs with fixed sizes -------------------------------------------------------------------------------


def note_stated(values: Sequence[Any], tensors: Sequence[InferredTensor], stated: dict[str, int]) -> None:
    """Records in `stated` the fixed sizes of axes of steps that an operation makes, such as a convolution.

    values: its results. tensors: the same as PyTorch inferred them.
    """
    for value, tensor in zip(values, tensors, strict=False):
        axes = value.axes if isinstance(value, Placed) else ()
        for axis, size in zip(axes, tensor.shape, strict=False):
            if is_time(axis) and isinstance(size, int):
                stated.setdefault(str(axis[0]), size)


def fixed_axes(sizes: Sequence[Any], operands: Sequence[Axes], stated: Mapping[str, int]) -> tuple[Any, ...]:
    """Returns the axes of a result in a graph of a file, where a size alone does not say which axis it is.

    sizes: the sizes of the result. operands: the axes of the operands. stated: the numbers of sequences and
    steps that the file fixes, by axis. A symbolic size that no operand has is returned in place of its axis.

    Where an operand has as many axes, these are in the same places. Else the axes of sequences and steps are
    in the operand's order; raises `StepError` if several places have their sizes.
    """
    made: list[Any] = [size if is_size(size) else (size,) for size in sizes]
    if any(len(axes) == len(sizes) for axes in operands):
        for axes in operands:
            column = (ONE,) * (len(sizes) - len(axes)) + axes
            for place, (axis, size) in enumerate(zip(column, sizes, strict=False)):
                if not is_feature(axis) and has_size(axis, size, stated):
                    made[place] = axis
        return tuple(made)
    named = [[axis for axis in axes if not is_feature(axis)] for axes in operands]
    moved = max(named, key=len, default=list[Axis]())
    ways = places_of(moved, sizes, stated)
    ways = ways or places_of([axis for axis in moved if not is_time(axis)], sizes, stated)
    if len(ways) > 1:
        raise refuse(
            f"its result [{', '.join(map(str, sizes))}] has several axes of the size of the sequences or "
            "steps, which the file fixes: export it with other numbers of these"
        )
    for place, axis in ways[0].items() if ways else ():
        made[place] = axis
    return tuple(made)


def has_size(axis: Axis, size: Any, stated: Mapping[str, int]) -> bool:
    """Tells whether an axis of sequences or steps may have this size in the graph of a file, where `stated`
    has the fixed numbers. A size that is not known fits any axis of steps.
    """
    if not is_size(size):
        return bool(size_of(axis, stated) == size)
    return size_of(axis) == size.size if size.size is not None else is_time(axis)


def places_of(axes: Sequence[Axis], sizes: Sequence[Any], stated: Mapping[str, int]) -> list[dict[int, Axis]]:
    """Lists the ways in which axes, in their order, can be among the axes of a result with these sizes. Each
    way is a dict of the axis by its index in the result.

    stated: the numbers of sequences and steps that the file fixes, by axis.
    """
    return [
        dict(zip(places, axes, strict=True))
        for places in combinations(range(len(sizes)), len(axes))
        if all(has_size(axis, sizes[place], stated) for axis, place in zip(axes, places, strict=True))
    ]


def fixed_regrouped(axes: Axes, sizes: Sequence[Any], stated: Mapping[str, int]) -> Axes:
    """Returns the axes of a value after a reshape in a graph of a file, whose sizes may be fixed numbers.
    stated: the numbers of sequences and steps that the file fixes. Raises `ModelError` if an axis of the
    result would mix numbers of several sequences or steps.

    >>> fixed_regrouped((("sequences",), ("steps",), (6,)), [21, 2, 3], {"sequences": 3, "steps": 7})
    (('sequences', 'steps'), (2,), (3,))
    """
    left, made = axis_factors(axes), list[Axis]()
    for size in sizes:
        count, names = (size.times, [*size.symbols]) if isinstance(size, Size) else (int(size), list[str]())
        axis = list[int | str]()
        if (count, names) == (1, []) and left and number_of(left[0], stated) == 1:
            axis.append(left.pop(0))
        while (count != 1 or names) and left:
            part = left.pop(0)
            shared = gcd(part, count) if isinstance(part, int) else 1
            for symbol in symbols_of(part) if isinstance(part, str) else ():
                if symbol in names:
                    names.remove(symbol)
                else:
                    shared *= stated.get(symbol, 0)
            if shared == 0 or count % shared or (shared == 1 and isinstance(part, int) and part != 1):
                raise reshape_error(axes, sizes)
            count //= shared
            if isinstance(part, int) and part != shared:
                left.insert(0, part // shared)
            if part != 1:
                axis.append(part if isinstance(part, str) else shared)
        if count != 1 or names:
            raise reshape_error(axes, sizes)
        made.append(tuple(axis) or ONE)
    if any(number_of(part, stated) != 1 for part in left):
        raise reshape_error(axes, sizes)
    named = tuple(part for part in left if isinstance(part, str))
    if named and not made:
        raise reshape_error(axes, sizes)
    return (*made[:-1], made[-1] + named) if named else tuple(made)


def number_of(part: int | str, stated: Mapping[str, int]) -> int | None:
    """Returns the size of a factor of an axis: the number itself, or, for sequences or steps, the number that
    the file fixes; None if it fixes none.
    """
    if isinstance(part, int):
        return part
    known = [stated.get(symbol) for symbol in symbols_of(part)]
    numbers = [number for number in known if number is not None]
    return prod(numbers) if len(numbers) == len(known) else None


# ---- values of graphs --------------------------------------------------------------------------------------


def is_size(value: Any) -> bool:
    """Tells whether a value is a number that is computed from the sizes of axes."""
    return isinstance(value, SymbolicSize)


def constant(node: AtenNode, like: Traced) -> Placed:
    """Adds an array that a graph contains to the net as a constant. like: any value of that net."""
    (tensor,) = node.results
    if tensor.dtype not in COMPUTED:
        raise refuse(
            f"a constant of dtype {tensor.dtype} cannot enter a step; use one of {', '.join(COMPUTED)}"
        )
    value = Traced(like.builder, like.builder.constant(node.value))
    return Placed(value, tuple((size,) for size in tensor.shape))


def torch_name(tensor: InferredTensor) -> str:
    """Returns the name of a tensor's dtype; raises `StepError` for a dtype that nets do not have."""
    if tensor.dtype not in COMPUTED:
        raise refuse(
            f"a value of dtype {tensor.dtype} is not one of a step; use one of {', '.join(COMPUTED)}"
        )
    return tensor.dtype
