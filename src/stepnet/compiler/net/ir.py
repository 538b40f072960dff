"""The net: a graph of operations on typed values. It is checked when it is made, and prints as text.

A net is immutable data: nodes in topological order, and the indices of its inputs and results among them. A
node's index is called its number. A recurrence is a node that holds another net, its body, which computes one
step for all rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from stepnet.compiler.net.encodings import ENCODINGS, Precision
from stepnet.compiler.net.ops import OPERATIONS, Operation
from stepnet.compiler.net.recur import OperandsByKind, Order, ResultsByKind
from stepnet.compiler.net.text import net_lines
from stepnet.compiler.net.types import Literal, Type, is_static_extent
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

Pairs = tuple[tuple[str, Any], ...]
"""The attributes of an operation, sorted by name."""


@dataclass(frozen=True)
class Node:
    """One operation of a net, which reads results of earlier nodes.

    operation: a name in the table `OPERATIONS`.
    inputs: the numbers of the operands.
    types: the types of the results.
    pairs: the attributes, sorted by name.
    name, source: the name of the value and the user's line, only for messages and text.
    """

    operation: str
    inputs: tuple[int, ...]
    types: tuple[Type, ...]
    pairs: Pairs = ()
    name: str = ""
    source: str = field(default="", compare=False)

    @property
    def type(self) -> Type:
        """The type of the node's result; raises `NetError` for several, of which `result` nodes pick one."""
        if len(self.types) != 1:
            raise NetError(f"{self.operation} has {len(self.types)} results; read one of them with `result`")
        return self.types[0]

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The arguments of the node's operation other than operands, by name."""
        return MappingProxyType(dict(self.pairs))

    @property
    def recur(self) -> "Recur":
        """The recurrence (body, counts and settings) of a `recur` node."""
        return Recur.of(self.attributes)

    @property
    def sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The left operands (values) and right operands (matrices) of a product or a sum of products."""
        lefts: int = self.attributes.get("lefts", 1)
        return self.inputs[:lefts], self.inputs[lefts:]

    @property
    def weight_bytes(self) -> int:
        """The bytes of one weight of a product: of its encoding (such as int8), or else of its dtype."""
        weights: str | None = self.attributes.get("weights")
        return self.types[0].itemsize if weights is None else ENCODINGS[weights].bytes

    @property
    def row(self) -> Operation:
        """The row of the node's operation in the table of operations, with its meaning and type rule."""
        return OPERATIONS[self.operation]

    @property
    def kind(self) -> str:
        """The kind of the node's operation, such as "pointwise", "view", "reduce", "matmul" or "source"."""
        return self.row.kind

    @property
    def is_view(self) -> bool:
        """Tells whether the node is a view of one other node, so that nothing is computed for it."""
        return self.kind == "view" and len(self.inputs) == 1


@dataclass(frozen=True)
class Net:
    """Graph of typed operations: nodes in topological order, with the numbers of its inputs and results."""

    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises `NetError` unless every node follows the rules of its operation."""
        check(self)

    def __hash__(self) -> int:
        # A cheap hash: a body is looked up whenever a node that holds it is made, and few nets collide.
        return hash((len(self.nodes), self.inputs, self.results))

    def __str__(self) -> str:
        """Writes the net as text, with a line for each node."""
        return "\n".join(net_lines(self))

    def type_of(self, number: int) -> Type:
        """The type of the node with this number, which must have one result."""
        return self.nodes[number].type

    @property
    def types(self) -> Iterator[Type]:
        """The types of all values of the net, of nodes with several results too."""
        return (type_ for node in self.nodes for type_ in node.types)

    def is_zeros(self, number: int) -> bool:
        """Tells whether a node is a constant of zeros (bytes of 0), or one that is repeated for all rows."""
        node = self.nodes[number]
        constant = self.nodes[node.inputs[0]] if node.operation == "expand" else node
        return constant.operation == "constant" and not any(constant.attributes["value"].value.tobytes())

    def users(self) -> list[list[int]]:
        """Lists, for each node, the numbers of the nodes that read it."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for operand in node.inputs:
                users[operand].append(number)
        return users


def unchecked_net(nodes: tuple[Node, ...], inputs: tuple[int, ...], results: tuple[int, ...]) -> Net:
    """Makes a net from nodes, inputs and results that are known to be valid, without the check, for speed."""
    net = object.__new__(Net)
    vars(net).update(nodes=nodes, inputs=inputs, results=results)
    return net


def check(net: Net) -> None:
    """Raises `NetError` unless every node of a net follows the rules of its operation, the inputs are exactly
    its `input` nodes, and the results are nodes.
    """
    for number, node in enumerate(net.nodes):
        if node.operation not in OPERATIONS:
            raise NetError(f"%{number}: no operation is called {node.operation!r}")
        if any(not 0 <= operand < number for operand in node.inputs):
            raise NetError(f"%{number} = {node.operation} reads a node that does not come before it")
        if node.types != types_of(net.nodes, node.operation, node.inputs, dict(node.pairs)):
            raise NetError(
                f"%{number} = {node.operation} does not have the result types "
                f"{', '.join(map(str, node.types))}"
            )
    declared = tuple(number for number, node in enumerate(net.nodes) if node.operation == "input")
    if sorted(net.inputs) != sorted(declared):
        raise NetError("the inputs of a net must be exactly its `input` nodes")
    if any(not 0 <= result < len(net.nodes) for result in net.results):
        raise NetError("a result of the net is not one of its nodes")


def types_of(
    nodes: Sequence[Node], operation: str, inputs: tuple[int, ...], attributes: Mapping[str, Any]
) -> tuple[Type, ...]:
    """Determines the result types of an operation from its operands; raises `NetError` if they do not fit.

    nodes: the nodes of the net. inputs: the numbers of the operands among them. attributes: further arguments
        of the operation, by name. An operand has one result, except that of `result`, which picks one of
        several.
    """
    if operation == "result":
        operands = list(nodes[inputs[0]].types)
    else:
        operands = [nodes[operand].type for operand in inputs]
    return OPERATIONS[operation].types(operands, attributes)


class Builder:
    """Builder that makes a net node by node. Equal nodes are made once.

    around: the builder of the outer net, if its values may be used in this one. is_model: whether the net is
    a whole model, in which recurrences begin with zeros by default.
    """

    def __init__(self, is_model: bool = False) -> None:
        """Begins an empty net. is_model: whether it is a whole model, whose recurrences begin with zeros."""
        self.around: Builder | None = None
        self.is_model = is_model
        self.nodes: list[Node] = []
        self._known: dict[tuple[str, tuple[int, ...], tuple[Type, ...], Pairs], int] = {}
        self._listed = 0  # number of nodes entered in `_known`, which is done when a node is made

    def add(self, operation: str, *inputs: int, name: str = "", source: str = "", **attributes: Any) -> int:
        """Adds a node that applies `operation` to the nodes `inputs`, and returns its number. name, source:
        the name of the value and the user's line, for messages. attributes: further arguments.
        """
        return self._put(operation, inputs, tuple(sorted(attributes.items())), name, source)

    def _put(self, operation: str, inputs: tuple[int, ...], pairs: Pairs, name: str, source: str) -> int:
        """Returns the number of a node with these properties: an equal one, if there is one and it is no
        input, or a new one, which is added. pairs: the attributes, sorted by name. name, source: the value's
        name and the user's line, for messages.
        """
        types = types_of(self.nodes, operation, inputs, dict(pairs))
        return self._put_typed(Node(operation, inputs, types, pairs, name, source))

    def _put_typed(self, new: Node) -> int:
        """Returns the number of a node that equals `new`, whose types are known to follow its operation's
        rule; adds it if there is none, or if it is an input.
        """
        key = new.operation, new.inputs, new.types, new.pairs
        for node_number in range(self._listed, len(self.nodes)):
            node = self.nodes[node_number]
            self._known.setdefault((node.operation, node.inputs, node.types, node.pairs), node_number)
        number = None if new.operation == "input" else self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.nodes)
            self.nodes.append(new)
        self._listed = len(self.nodes)
        return number

    def input(self, type_: Type, name: str) -> int:
        """Adds an input of the net with this type and name, and returns its number."""
        return self.add("input", name=name, type=type_)

    def constant(self, value: Any, name: str = "") -> int:
        """Adds a constant array, and returns its number. name: its name, if it becomes a parameter later."""
        return self.add("constant", name=name, value=Literal(value))

    def copy(self, node: Node, inputs: Iterable[int], **changed: Any) -> int:
        """Adds a copy of a node on other operands, with some attributes changed, and returns its number."""
        pairs = tuple(sorted({**dict(node.pairs), **changed}.items())) if changed else node.pairs
        return self._put(node.operation, tuple(inputs), pairs, node.name, node.source)

    def move(self, node: Node, inputs: Iterable[int]) -> int:
        """Adds a copy of a node on operands of the same types, so that its own need not be found again."""
        return self._put_typed(
            Node(node.operation, tuple(inputs), node.types, node.pairs, node.name, node.source)
        )

    def keep(self, node: Node) -> int:
        """Adds a node of another net, with equal operand numbers, unchecked; returns its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def type_of(self, number: int) -> Type:
        """The type of the value of a node that has been made already. number: the number of the node."""
        return self.nodes[number].type

    def is_inside(self, other: "Builder") -> bool:
        """Tells whether this builder makes a body inside the net of the other one, at any depth."""
        return self.around is not None and (self.around is other or self.around.is_inside(other))

    def captured(self, other: "Builder", number: int) -> int:
        """Raises `NetError`: a plain net takes no values of outer nets; builders of bodies override this."""
        raise NetError("this net cannot use values of another net")

    def net(self, results: Iterable[int]) -> Net:
        """Makes the net with these results and all inputs made so far, without nodes that no result needs."""
        return without_unused(tuple(self.nodes), tuple(results))


def without_unused(nodes: tuple[Node, ...], results: tuple[int, ...]) -> Net:
    """Makes the net of the nodes that the results need, and of all inputs.

    The nodes come from a checked net or a builder, so their types are not checked again.
    """
    inputs = {number for number, node in enumerate(nodes) if node.operation == "input"}
    needed = ancestors(nodes, results) | inputs
    copy_of = {old: new for new, old in enumerate(sorted(needed))}
    remaining = nodes
    if len(needed) < len(nodes):
        remaining = tuple(
            Node(n.operation, tuple(copy_of[i] for i in n.inputs), n.types, n.pairs, n.name, n.source)
            for n in (nodes[number] for number in sorted(needed))
        )
    return unchecked_net(
        remaining, tuple(copy_of[old] for old in sorted(inputs)), tuple(copy_of[old] for old in results)
    )


def with_inputs(builder: Builder, order: Sequence[int], results: Iterable[int]) -> Net:
    """Makes a net of some results of a builder, with the inputs in the given order.

    order: the numbers of the nodes that become inputs.
    Raises `NetError` if the results need another input.
    """
    new_builder = Builder()
    copy_of = {
        number: new_builder.input(builder.type_of(number), builder.nodes[number].name) for number in order
    }
    result_numbers = tuple(results)
    for number in sorted(ancestors(builder.nodes, result_numbers) - copy_of.keys()):
        node = builder.nodes[number]
        if node.operation == "input":
            raise NetError(f"%{number} = input {node.name} is read, but is not among the inputs of the net")
        copy_of[number] = new_builder.copy(node, [copy_of[operand] for operand in node.inputs])
    return new_builder.net(copy_of[number] for number in result_numbers)


def all_nodes(net: Net) -> Iterator[Node]:
    """Yields the nodes of a net, and those of all bodies in it, the nets of the steps of recurrences."""
    for node in net.nodes:
        yield node
        for _, value in node.pairs:
            if isinstance(value, Net):
                yield from all_nodes(value)


def ancestors(nodes: Sequence[Node], numbers: Iterable[int]) -> set[int]:
    """Returns these nodes and all nodes that they depend on, by number."""
    reached = set(numbers)
    for number in reversed(range(len(nodes))):
        if number in reached:
            reached.update(nodes[number].inputs)
    return reached


# ---- recurrences -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recur:
    """A recurrence: its body, its numbers of sequences and memories, and how it runs.

    body: the net of one step.
    sequence_count, memory_count: how many of the leading operands are sequences and initial memories.
    reverse: whether sequences run from the last step to the first.
    unroll: the number of steps per iteration of the compiled loop.
    precision: the precision of its products; None for the dtype of the values.
    saved: the dtype in which values for its gradient alone are stored; None for their own.

    >>> from stepnet.compiler.net.types import ROWS
    >>> inside = Builder()
    >>> x, h = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xh")
    >>> recur = Recur(inside.net([inside.add("add", x, h)] * 2), sequence_count=1, memory_count=1)
    >>> recur.sequences, recur.memories, recur.outputs, recur.following
    ([0], [1], [2], [2])
    >>> recur.operands_by_kind(["frames", "zeros"])
    OperandsByKind(sequences=['frames'], memories=['zeros'], others=[])
    """

    body: Net
    sequence_count: int
    memory_count: int
    reverse: bool = False
    unroll: int = 1
    precision: Precision | None = None
    saved: str | None = None

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Recur":
        """Makes the recurrence from the attributes of a `recur` node."""
        return cls(
            attributes["body"],
            attributes["sequences"],
            attributes["memories"],
            attributes.get("reverse", False),
            attributes.get("unroll", 1),
            attributes.get("precision"),
            attributes.get("saved"),
        )

    @property
    def order(self) -> Order:
        """The recurrence's numbers of sequences and memories, which divide lists of operands and results."""
        return Order(self.sequence_count, self.memory_count)

    # ---- numbers of the body's nodes

    @property
    def sequences(self) -> list[int]:
        """The inputs of the recurrence's body that are one step of the sequences, by number."""
        return self.operands_by_kind(self.body.inputs).sequences

    @property
    def memories(self) -> list[int]:
        """The inputs of the recurrence's body that are the memories before a step, by number."""
        return self.operands_by_kind(self.body.inputs).memories

    @property
    def others(self) -> list[int]:
        """The inputs of the recurrence's body that all steps share (statics and parameters), by number."""
        return self.operands_by_kind(self.body.inputs).others

    @property
    def outputs(self) -> list[int]:
        """The results of the recurrence's body that are a step's outputs, by number."""
        return self.results_by_kind(self.body.results).outputs

    @property
    def following(self) -> list[int]:
        """The results of the recurrence's body that are the memories after a step, by number."""
        return self.results_by_kind(self.body.results).memories

    # ---- entries in the order of operands or results

    def operands_by_kind(self, operands: Sequence[Any]) -> OperandsByKind:
        """Divides a list with one entry for each operand into sequences, memories and others."""
        return self.order.operands_by_kind(operands)

    def results_by_kind(self, results: Sequence[Any]) -> ResultsByKind:
        """Divides a list with one entry for each result of the recurrence into outputs and memories."""
        return self.order.results_by_kind(results)

    # ---- nodes

    def add(self, builder: Builder, operands: Iterable[int], name: str = "", source: str = "") -> int:
        """Adds a `recur` node with this recurrence to a net, and returns its number.

        operands: the nodes of the sequences, initial memories and other inputs. name, source: for messages.
        """
        further: dict[str, Any] = {"unroll": self.unroll} if self.unroll > 1 else {}
        further |= {"precision": self.precision} if self.precision else {}
        further |= {"saved": self.saved} if self.saved else {}
        return builder.add(
            "recur",
            *operands,
            name=name,
            source=source,
            body=self.body,
            sequences=self.sequence_count,
            memories=self.memory_count,
            reverse=self.reverse,
            **further,
        )

    def add_results(self, builder: Builder, operands: Iterable[int], source: str = "") -> ResultsByKind:
        """Adds a `recur` node and a node for each result; returns the numbers of these: the outputs at all
        steps, and the final memories.

        operands: the nodes of the sequences, initial memories and other inputs. source: the user's line, for
            messages.
        """
        number = self.add(builder, operands, source=source)
        count = len(builder.nodes[number].types)
        return self.results_by_kind([builder.add("result", number, of=index) for index in range(count)])


def without_unread(recur: Recur, operands: Sequence[int]) -> tuple[Recur, list[int]]:
    """Returns a recurrence without the static sequences that its step does not read, and its other operands,
    so that a step which may read a sequence whole, and does not, runs as one without it.
    """
    body = recur.body
    read = {*body.results, *(operand for node in body.nodes for operand in node.inputs)}
    builder, copy_of, kept = Builder(), dict[int, int](), list[int]()
    for number, operand in zip(body.inputs, operands, strict=True):
        if number in read or not is_static_extent(body.type_of(number).extent):
            copy_of[number] = builder.input(body.type_of(number), body.nodes[number].name)
            kept.append(operand)
    if len(kept) == len(operands):
        return recur, [*operands]
    for number, node in enumerate(body.nodes):
        if node.operation != "input":
            copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    return replace(recur, body=builder.net(copy_of[result] for result in body.results)), kept
