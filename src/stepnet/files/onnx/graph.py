"""The graph of an ONNX model: where each value comes from, and which values are constants.

1. A name means something in its scope alone: a graph, the body of an If, Loop or Scan, a call of a function.
   A scope says of each name what makes it; names it lacks are its outer scope's.
2. Exporters write constants as small graphs, such as Concat(Transpose(weight), ...). Those are computed here
   with NumPy, from a table that only moves numbers, and does arithmetic on whole numbers that are shapes.
3. A file is hostile: a value may be made of itself, and a small file may ask for huge arrays. Walks are
   bounded, and every byte is counted before it is taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepnet.errors import FileError
from stepnet.files.onnx.folds import FOLDS, LISTED, MOVES, REPEATS, Given
from stepnet.files.onnx.tensor import DIMENSIONS, Array, Proto, array_of, text
from stepnet.files.store import Store

DOMAINS = ("", "ai.onnx")
DEPTH = 100  # of constants computed from constants, and of bodies and functions in each other
NODE, NAME = 512, 64  # bytes of a node, and of one of its names, about
NODES = 1 << 18  # of one model, those of a function as often as it is called
WORK = 1 << 26  # labels that are followed into the next node, and for each step from a value to another:
STEP = 64
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, _, GRAPHS = range(1, 11)  # types of attributes


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
    """What makes each value of a graph; None where that is known only when the model runs.

    attributes: of the call, in the body of a function. opset: the version of ONNX's operators.
    """

    sources: dict[str, "Constant | Output | Link | None"]
    outer: "Scope | None" = None
    attributes: dict[str, Proto] = field(default_factory=dict[str, Proto])
    opset: int = 1


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A node, its name led by those of the calls it lies in. A missing input is ''."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Proto]
    scope: Scope
    proto: Proto


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is a tensor of the file."""

    tensor: Proto


@dataclass(frozen=True, slots=True)
class Output:
    """A value that a node makes, its output of that index."""

    node: Node
    index: int


@dataclass(frozen=True, slots=True)
class Link:
    """A value that has another name in another scope."""

    scope: Scope
    name: str


Source = Constant | Output | Link | None
Key = tuple[Scope, str]


class Walk:
    """All nodes of a model in their order, those of bodies and called functions among them.

    main: the scope of the model's graph. types: of values, where the model says them. ends: the outputs of
    all graphs.
    """

    def __init__(self, model: Proto, store: Store) -> None:
        self.store = store
        self.functions = {(text(f.domain), text(f.name)): f for f in model.functions}
        self.nodes: list[Node] = []
        self.types: dict[Key, Proto] = {}
        self.ends: list[Key] = []
        self.main = self.graph(model.graph, Scope({}, opset=opset_of(model, 1)), "", 0)

    def graph(self, graph: Proto, outer: Scope, path: str, depth: int) -> Scope:
        """The scope of a graph, in an outer one."""
        inputs = {text(value.name): None for value in graph.input}
        scope = Scope({**inputs}, outer, outer.attributes, outer.opset)
        scope.sources.update({text(tensor.name): Constant(tensor) for tensor in graph.initializer})
        typed = (*graph.input, *graph.value_info)
        self.types.update({(scope, text(value.name)): value.type for value in typed})
        self.ends += [(scope, text(value.name)) for value in graph.output]
        self.body(graph.node, scope, path, depth)
        return scope

    def sizes(self, scope: Scope, name: str) -> tuple[int, ...]:
        """The shape of a value as far as the model says it, 0 for a size that it leaves open."""
        told = self.types.get((scope, name))
        return tuple(size.dim_value for size in told.tensor_type.shape.dim[:DIMENSIONS]) if told else ()

    def used(self) -> set[Key]:
        """The values that nodes take, or that graphs give, each in the scope of what makes it."""
        taken = [(node.scope, name) for node in self.nodes for name in node.inputs if name]
        return {find(scope, name)[:2] for scope, name in (*taken, *self.ends)}

    def body(self, protos: Iterable[Proto], scope: Scope, path: str, depth: int) -> None:
        """Adds the nodes of a graph or of a function to its scope."""
        if depth > DEPTH:
            raise FileError(f"{self.store.path}: graphs lie in each other {DEPTH} deep at {path[:100]!r}")
        for proto in protos:
            if len(self.nodes) == NODES:
                raise FileError(f"{self.store.path}: the graph has more than {NODES} nodes")
            names = len(proto.input) + len(proto.output) + len(proto.attribute)
            size = NODE + NAME * names + len(path) + len(proto.name)
            self.store.take(size, f"node {text(proto.name)[:100]!r}")  # those of a function are made often
            node = node_of(proto, scope, path)
            self.nodes.append(node)
            scope.sources.update({name: Output(node, i) for i, name in enumerate(node.outputs) if name})
            for attribute in node.attributes.values():
                graphs = {GRAPH: [attribute.g], GRAPHS: attribute.graphs}.get(attribute.type, [])
                for graph in graphs:
                    self.graph(graph, scope, f"{node.name}/", depth + 1)
            function = self.functions.get((node.domain, node.op))
            if function is not None:
                self.call(function, node, depth + 1)

    def call(self, function: Proto, node: Node, depth: int) -> None:
        """Adds the nodes of a function; its inputs and outputs are links to those of the node calling it."""
        names = [text(name) for name in function.input]
        defaults = {text(attribute.name): attribute for attribute in function.attribute_proto}
        opset = opset_of(function, node.scope.opset)
        inner = Scope(dict.fromkeys(names), None, {**defaults, **node.attributes}, opset)
        given = [(name, outside) for name, outside in zip(names, node.inputs, strict=False) if outside]
        inner.sources.update({name: Link(node.scope, outside) for name, outside in given})
        self.body(function.node, inner, f"{node.name}/", depth)
        outputs = zip(node.outputs, map(text, function.output), strict=False)
        node.scope.sources.update({outside: Link(inner, name) for outside, name in outputs if outside})


def opset_of(proto: Proto, usual: int) -> int:
    """The version of the operators that a model or function is made of; the usual one where it says none."""
    return next((one.version for one in proto.opset_import if text(one.domain) in DOMAINS), usual)


def node_of(proto: Proto, scope: Scope, path: str) -> Node:
    """A node in its scope, with those of its attributes that a call gives."""
    attributes: dict[str, Proto] = {}
    for attribute in proto.attribute:
        reference = text(attribute.ref_attr_name)
        found = scope.attributes.get(reference) if reference else attribute
        if found is not None:
            attributes[text(attribute.name)] = found
    inputs, outputs = (tuple(map(text, names)) for names in (proto.input, proto.output))
    name = text(proto.name) or next(filter(None, outputs), "")
    op, domain = text(proto.op_type), text(proto.domain)
    return Node(op, domain, path + name, inputs, outputs, attributes, scope, proto)


def find(scope: Scope, name: str) -> tuple[Scope, str, Source]:
    """What makes a value, with the scope and the name that this is called by there."""
    for _ in range(10 * DEPTH):
        inner: Scope | None = scope
        while inner is not None and name not in inner.sources:
            inner = inner.outer
        source = inner.sources[name] if inner is not None else None
        if not isinstance(source, Link):
            return inner or scope, name, source
        scope, name = source.scope, source.name
    return scope, name, None  # it goes in circles


def value_of(attribute: Proto, store: Store) -> Any:
    """What an attribute says: a number, a text, an array, or a tuple of numbers or texts."""
    lists = {FLOATS: attribute.floats, INTS: attribute.ints, STRINGS: attribute.strings}
    if attribute.type == TENSOR:
        return array_of(attribute.t, store)
    if attribute.type in lists:
        listed = lists[attribute.type]
        if len(listed) > LISTED:
            raise FileError(f"{store.path}: attribute {text(attribute.name)!r} has {len(listed)} numbers")
        return tuple(text(v) if isinstance(v, bytes) else v for v in listed)
    if attribute.type == STRING:
        return text(attribute.s)
    return {FLOAT: attribute.f, INT: attribute.i}.get(attribute.type)


class Folder:
    """The values of a model that are constants, computed when they are asked for.

    known: values to take as given. used: the values that layers are made of, tensors of the file among them.
    nodes: those that make them.
    """

    def __init__(self, store: Store, known: dict[Key, Array] | None = None) -> None:
        self.store = store
        self.values: dict[Key, Array | None] = dict(known or {})
        self.used: set[Key] = set()
        self.nodes: set[Node] = set()
        self.left = WORK

    def work(self, count: int = STEP) -> None:
        """Counts what it takes to follow values; raises `FileError` for far more than a model needs."""
        self.left -= count
        if self.left < 0:
            raise FileError(f"{self.store.path}: its values are made of one another in too many steps")

    def value(self, scope: Scope, name: str, depth: int = 0) -> Array | None:
        """A value as an array; None where it is no constant. Raises `FileError` for what cannot be read."""
        scope, name, source = find(scope, name)
        key = scope, name
        if key not in self.values:
            self.values[key] = None  # a value made of itself is none
            if isinstance(source, Constant):
                self.values[key] = array_of(source.tensor, self.store)
            elif isinstance(source, Output) and depth < DEPTH:
                outputs = self.computed(source.node, depth + 1)
                self.values[key] = outputs[source.index] if source.index < len(outputs) else None
        return self.values[key]

    def computed(self, node: Node, depth: int) -> Sequence[Array]:
        """What a node makes of constants; nothing where its inputs are none, or it is not in the table."""
        if node.op not in FOLDS or node.domain not in DOMAINS or len(node.inputs) > LISTED:
            return ()
        inputs = [self.value(node.scope, name, depth) if name else None for name in node.inputs]
        if any(array is None and name for array, name in zip(inputs, node.inputs, strict=True)):
            return ()
        attributes = {name: value_of(a, self.store) for name, a in node.attributes.items()}
        try:
            given = Given(inputs, attributes, len(node.outputs), self.store, node.scope.opset)
            with np.errstate(all="ignore"):
                outputs = FOLDS[node.op](given)
        except (ValueError, IndexError, KeyError, TypeError, OverflowError):
            return ()  # what the operation cannot do: no constant
        arrays = [array for array in inputs if array is not None]
        for output in outputs:
            if not any(np.may_share_memory(output, array) for array in arrays):
                self.store.take(output.nbytes, f"{node.op} {node.name!r}")
        return outputs

    def use(self, scope: Scope, name: str) -> None:
        """Counts a value, and all that it is computed from here, as what layers are made of.

        Of what Shape is given only the sizes matter: it is not counted.
        """
        pending = [(scope, name)]
        while pending:
            self.work()
            where, called, source = find(*pending.pop())
            if (where, called) in self.used:
                continue
            self.used.add((where, called))
            if isinstance(source, Output) and source.node.op in FOLDS and source.node.domain in DOMAINS:
                self.nodes.add(source.node)
                inputs = () if source.node.op == "Shape" else filter(None, source.node.inputs)
                pending += [(source.node.scope, given) for given in inputs]

    def moved(self, source: Source) -> list[Key]:
        """The values whose numbers a node moves or repeats, in their scope; none for any other source."""
        if not isinstance(source, Output) or source.node.domain not in DOMAINS:
            return []
        node = source.node
        if node.op not in (*MOVES, *REPEATS):
            return []
        return [(node.scope, name) for name in node.inputs[: None if node.op == "Concat" else 1]]

    def filling(self, node: Node) -> Array:
        """What a ConstantOfShape fills its output with, as an array of one number."""
        filling = node.attributes.get("value")
        if filling is None or filling.type != TENSOR:
            return np.zeros(1, np.float32)
        return array_of(filling.t, self.store)

    def is_zero(self, scope: Scope, name: str) -> bool:
        """Whether a value is made of zeros alone, of whatever shape; exporters write initial states so."""
        pending, seen = [(scope, name)], set[Key]()
        while pending:
            self.work()
            where, called, source = find(*pending.pop())
            if (where, called) in seen:
                continue
            seen.add((where, called))
            value = self.value(where, called)
            if value is not None:
                if value.any():
                    return False
            elif isinstance(source, Output) and source.node.op == "ConstantOfShape":
                if self.filling(source.node).any():
                    return False
            else:
                moved = self.moved(source)
                pending += moved
                if not moved:
                    return False
        return True
