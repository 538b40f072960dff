"""The graph of an ONNX model: the source of each value, and the values that are constants.

1. A name belongs to a scope: a graph, the body of an If, Loop or Scan, or a call of a function. A scope has
   the source of each name. Other names are looked up in the outer scope.
2. Exporters write constants as small graphs, such as Concat(Transpose(weight), ...). These are computed with
   NumPy, by a table of operators that move numbers or compute shapes.
3. In a hostile file, a value may depend on itself, and a small file may ask for huge arrays. Walks are
   bounded, and every byte is counted before it is allocated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, StepnetError
from stepnet.layout.files.onnx.folds import FOLDS, LISTED, MOVES, REPEATS, Operands
from stepnet.layout.files.onnx.tensor import DIMENSIONS, Array, Proto, array_of, text
from stepnet.layout.files.store import Store

DOMAINS = ("", "ai.onnx")
DEPTH = 100  # the deepest nesting of computed constants, and of bodies and functions
NODE, NAME = 512, 64  # approximate bytes of a node, and of one of its names
NODES = 1 << 18  # the most nodes of a model; nodes of a function count once per call
WORK = 1 << 26  # the most labels that are traced from node to node
STEP = 64  # labels that a step along the graph counts as
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, _, GRAPHS = range(1, 11)  # types of attributes


@dataclass(frozen=True, eq=False, slots=True)
class GraphScope:
    """A graph, or the body of a function in one of its calls, in which names of values are looked up.

    sources: the source of each value, by name; None for an input of the model.
    outer: the enclosing scope.
    attributes: the attributes of the call of a function.
    opset: the version of ONNX's operators.
    """

    sources: dict[str, "Constant | Output | Link | None"]
    outer: "GraphScope | None" = None
    attributes: dict[str, Proto] = field(default_factory=dict[str, Proto])
    opset: int = 1


@dataclass(frozen=True, eq=False, slots=True)
class GraphNode:
    """Node of an ONNX graph. Its name begins with the names of the calls around it. A missing input is ''."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Proto]
    scope: GraphScope
    proto: Proto


@dataclass(frozen=True, slots=True)
class Constant:
    """The source of a value of an ONNX graph that is a constant tensor of the file."""

    tensor: Proto


@dataclass(frozen=True, slots=True)
class Output:
    """The source of a value of an ONNX graph that is output number `index` of a node."""

    node: GraphNode
    index: int


@dataclass(frozen=True, slots=True)
class Link:
    """The source of a value of an ONNX graph that is an alias of a value in another scope."""

    scope: GraphScope
    name: str


Source = Constant | Output | Link | None
Key = tuple[GraphScope, str]


class Walk:
    """All nodes of an ONNX model in order, with the nodes of bodies and called functions.

    main: the scope of the model's graph.
    types: the types of values, if the model declares them.
    ends: the outputs of all graphs.
    bodies: for nodes with bodies, the graph and the scope of each body, by attribute. An attribute that is a
        list of graphs, which no operator of ONNX has, is left out; the nodes of its graphs are listed.
    reads: for scopes of bodies, the outer values that they read; filled in when first asked for.
    """

    def __init__(self, model: Proto, store: Store) -> None:
        """Lists all nodes of an ONNX model, with those of bodies and called functions, and counts their
        memory. model: the parsed ModelProto. store: the limit on memory.
        """
        self.store = store
        self.functions = {(text(f.domain), text(f.name)): f for f in model.functions}
        self.nodes: list[GraphNode] = []
        self.types: dict[Key, Proto] = {}
        self.ends: list[Key] = []
        self.bodies: dict[GraphNode, dict[str, tuple[Proto, GraphScope]]] = {}
        self.reads: dict[GraphScope, list[tuple[GraphScope, str, Source]]] = {}
        self.main = self.graph(model.graph, GraphScope({}, opset=opset_of(model, 1)), "", 0)

    def graph(self, graph: Proto, outer: GraphScope, path: str, depth: int) -> GraphScope:
        """Adds a graph of an ONNX model, or of a body of an If, Loop or Scan, with its nodes. Returns its
        scope, in which the names of its values are looked up.

        outer: the scope around it. path: the prefix of its nodes' names. depth: the number of graphs and
        functions around it.
        """
        inputs = {text(value.name): None for value in graph.input}
        scope = GraphScope({**inputs}, outer, outer.attributes, outer.opset)
        scope.sources.update({text(tensor.name): Constant(tensor) for tensor in graph.initializer})
        typed = (*graph.input, *graph.value_info)
        self.types.update({(scope, text(value.name)): value.type for value in typed})
        self.ends += [(scope, text(value.name)) for value in graph.output]
        self.body(graph.node, scope, path, depth)
        return scope

    def sizes(self, scope: GraphScope, name: str) -> tuple[int, ...]:
        """Returns the shape that the model declares for a value, with 0 for open sizes; () for none."""
        type_ = self.types.get((scope, name))
        return tuple(size.dim_value for size in type_.tensor_type.shape.dim[:DIMENSIONS]) if type_ else ()

    def used(self) -> set[Key]:
        """Returns the values, as (scope, name), that a node takes or a graph returns; others are unused."""
        reads = [(node.scope, name) for node in self.nodes for name in node.inputs if name]
        return {find(scope, name)[:2] for scope, name in (*reads, *self.ends)}

    def body(self, protos: Iterable[Proto], scope: GraphScope, path: str, depth: int) -> None:
        """Adds the nodes `protos` of an ONNX graph or function, and recursively those of the graphs in their
        attributes and of the functions that they call. Raises `FileError` for too many nodes.

        scope: the scope of their values' names, to which their outputs are added. path: the prefix of the
        nodes' names. depth: the number of graphs and functions around them, which is limited.
        """
        if depth > DEPTH:
            raise FileError(f"{self.store.path}: graphs lie in each other {DEPTH} deep at {path[:100]!r}")
        for proto in protos:
            if len(self.nodes) == NODES:
                raise FileError(f"{self.store.path}: the graph has more than {NODES} nodes")
            names = len(proto.input) + len(proto.output) + len(proto.attribute)
            size = NODE + NAME * names + len(path) + len(proto.name)
            self.store.take(size, f"node {text(proto.name)[:100]!r}")  # a function's nodes are made per call
            node = node_of(proto, scope, path)
            self.nodes.append(node)
            made = {name: Output(node, i) for i, name in enumerate(node.outputs) if name}
            if twice := [name for name in made if isinstance(scope.sources.get(name), Output | Link)]:
                raise FileError(f"{self.store.path}: two nodes make a value {twice[0][:100]!r}")
            scope.sources.update(made)
            for name, attribute in node.attributes.items():
                graphs = {GRAPH: [attribute.g], GRAPHS: attribute.graphs}.get(attribute.type, [])
                inner = [self.graph(graph, scope, f"{node.name}/", depth + 1) for graph in graphs]
                if attribute.type == GRAPH:
                    self.bodies.setdefault(node, {})[name] = attribute.g, inner[0]
            function = self.functions.get((node.domain, node.op))
            if function is not None:
                self.call(function, node, depth + 1)

    def call(self, function: Proto, node: GraphNode, depth: int) -> None:
        """Adds the nodes of a function that an ONNX node calls. They get a scope for this call. The
        function's inputs, and the outputs of the node, become links (aliases) between this scope and the
        node's.

        function: the FunctionProto. node: the calling node. depth: the number of graphs and functions around
        these nodes.
        """
        names = [text(name) for name in function.input]
        defaults = {text(attribute.name): attribute for attribute in function.attribute_proto}
        opset = opset_of(function, node.scope.opset)
        inner = GraphScope(dict.fromkeys(names), None, {**defaults, **node.attributes}, opset)
        links = [(name, outside) for name, outside in zip(names, node.inputs, strict=False) if outside]
        inner.sources.update({name: Link(node.scope, outside) for name, outside in links})
        self.body(function.node, inner, f"{node.name}/", depth)
        outputs = zip(node.outputs, map(text, function.output), strict=False)
        node.scope.sources.update({outside: Link(inner, name) for outside, name in outputs if outside})


def opset_of(proto: Proto, usual: int) -> int:
    """Returns the version of ONNX's operators that a model or function imports; `usual` if it states none."""
    return next((opset.version for opset in proto.opset_import if text(opset.domain) in DOMAINS), usual)


def node_of(proto: Proto, scope: GraphScope, path: str) -> GraphNode:
    """Converts a NodeProto of an ONNX model to a `GraphNode` of the scope `scope`. In the body of a function,
    an attribute may refer to an attribute of the call by its name: it gets the value of this, or is left out
    if the call does not have it. path: the prefix of the node's name.
    """
    attributes: dict[str, Proto] = {}
    for attribute in proto.attribute:
        reference = text(attribute.ref_attr_name)
        value = scope.attributes.get(reference) if reference else attribute
        if value is not None:
            attributes[text(attribute.name)] = value
    inputs, outputs = (tuple(map(text, names)) for names in (proto.input, proto.output))
    name = text(proto.name) or next(filter(None, outputs), "")
    op, domain = text(proto.op_type), text(proto.domain)
    return GraphNode(op, domain, path + name, inputs, outputs, attributes, scope, proto)


def find(scope: GraphScope, name: str) -> tuple[GraphScope, str, Source]:
    """Follows the ONNX value `name` of a scope through links (aliases) and outer scopes to its source.
    Returns the scope and the name that it has there, and the source: a constant or a node's output; None for
    an input of the model, an unknown name, and a cycle of links.
    """
    for _ in range(10 * DEPTH):
        inner: GraphScope | None = scope
        while inner is not None and name not in inner.sources:
            inner = inner.outer
        source = inner.sources[name] if inner is not None else None
        if not isinstance(source, Link):
            return inner or scope, name, source
        scope, name = source.scope, source.name
    return scope, name, None  # the links form a cycle


def value_of(attribute: Proto, store: Store) -> Any:
    """Returns the value of an ONNX attribute: a number, a text, an array, or a tuple; None for other kinds.
    Raises `FileError` for a tuple of more than LISTED entries. store: the limit on memory.
    """
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


class ConstantFolder:
    """The constants of an ONNX model, computed when they are first needed.

    known: values that need not be computed.
    used: the values from which the arrays of layers are computed.
    nodes: the nodes that compute these.
    """

    def __init__(self, store: Store, known: dict[Key, Array] | None = None) -> None:
        """Prepares to compute constants of an ONNX graph. store: the limit on memory. known: arrays of values
        that need not be computed, such as labels in place of a node's output.
        """
        self.store = store
        self.values: dict[Key, Array | None] = dict(known or {})
        self.used: set[Key] = set()
        self.nodes: set[GraphNode] = set()
        self.left = WORK

    def work(self, count: int = STEP) -> None:
        """Counts work on `count` numbers of a file, or a node; raises `FileError` beyond `WORK`."""
        self.left -= count
        if self.left < 0:
            raise FileError(f"{self.store.path}: its values depend on each other through too many nodes")

    def value(self, scope: GraphScope, name: str, depth: int = 0) -> Array | None:
        """Returns the ONNX value `name` of a scope as an array, computed if needed; None if it is no
        constant. Raises `FileError` for a tensor of a type that is not read. depth: of the recursion.
        """
        scope, name, source = find(scope, name)
        key = scope, name
        if key not in self.values:
            self.values[key] = None  # for a value that depends on itself
            if isinstance(source, Constant):
                self.values[key] = array_of(source.tensor, self.store)
            elif isinstance(source, Output) and depth < DEPTH:
                outputs = self.computed(source.node, depth + 1)
                self.values[key] = outputs[source.index] if source.index < len(outputs) else None
        return self.values[key]

    def computed(self, node: GraphNode, depth: int) -> Sequence[Array]:
        """Computes the outputs of an ONNX node whose inputs are constants, and counts the memory of new
        arrays; () if an input is no constant, if the operator is not in the table `FOLDS`, or if the
        operation fails. depth: of the recursion.
        """
        if node.op not in FOLDS or node.domain not in DOMAINS or len(node.inputs) > LISTED:
            return ()
        inputs = [self.value(node.scope, name, depth) if name else None for name in node.inputs]
        if any(array is None and name for array, name in zip(inputs, node.inputs, strict=True)):
            return ()
        attributes = {name: value_of(a, self.store) for name, a in node.attributes.items()}
        try:
            operands = Operands(inputs, attributes, len(node.outputs), self.store, node.scope.opset)
            with np.errstate(all="ignore"):
                outputs = FOLDS[node.op](operands)
        except StepnetError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError):
            return ()  # the operation fails: no constant
        arrays = [array for array in inputs if array is not None]
        for output in outputs:
            if not any(np.may_share_memory(output, array) for array in arrays):
                self.store.take(output.nbytes, f"{node.op} {node.name!r}")
        return outputs

    def use(self, scope: GraphScope, name: str) -> None:
        """Records that recurrent layers use the value `name` of a scope of an ONNX model, and with it all
        values that it is computed from, so that they are not listed among the model's other arrays. The input
        of a Shape is not recorded, because only its sizes are used.
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
                pending += [(source.node.scope, input_) for input_ in inputs]

    def moved_inputs(self, source: Source) -> list[Key]:
        """Returns the inputs of the ONNX node behind `source`, as (scope, name), whose numbers the node only
        moves or repeats: the first input, or all inputs of a Concat; [] if the node does anything else, or if
        `source` is no output of a node.
        """
        if not isinstance(source, Output) or source.node.domain not in DOMAINS:
            return []
        node = source.node
        if node.op not in (*MOVES, *REPEATS):
            return []
        return [(node.scope, name) for name in node.inputs[: None if node.op == "Concat" else 1]]

    def filling(self, node: GraphNode) -> Array:
        """Returns the number that an ONNX ConstantOfShape fills its output with, as an array."""
        filling = node.attributes.get("value")
        if filling is None or filling.type != TENSOR:
            return np.zeros(1, np.float32)
        return array_of(filling.t, self.store)

    def is_zero(self, scope: GraphScope, name: str) -> bool:
        """Returns True if the ONNX value `name` of a scope is all zeros, even if its shape is unknown, as for
        the initial states that exporters write. That is so if all values from which it is computed, by nodes
        that only move or repeat numbers, are zeros.
        """
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
                moved = self.moved_inputs(source)
                pending += moved
                if not moved:
                    return False
        return True
