"""Runs an ONNX model as a function of sequences, which `sn.Graph` traces."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError, StepnetError
from stepnet.importers.axes import BATCH, AxesError, extent_of, time_of
from stepnet.importers.counts import with_counts
from stepnet.importers.facts import LENGTH
from stepnet.importers.padding import MISFITS, as_list, with_facts
from stepnet.importers.placed import Placed, Unusable, check_apart, constant
from stepnet.importers.values import repeated_at, to_extent
from stepnet.layout.files.onnx.graph import (
    DOMAINS,
    Constant,
    GraphNode,
    GraphScope,
    Key,
    Output,
    Walk,
    find,
    value_of,
)
from stepnet.layout.files.onnx.tensor import array_of, text
from stepnet.layout.files.store import Store
from stepnet.model.counting import length_of
from stepnet.model.graph.array_model import ArrayModel, ModelInput
from stepnet.onnx.call import OnnxCall
from stepnet.onnx.names import ONNX

Array = np.ndarray
Values = dict[Key, Placed]


@dataclass(frozen=True)
class OnnxModel(ArrayModel):
    """ONNX model as a function of its inputs, which `sn.Graph` traces.

    walk: the nodes of the model.
    store: the limit on memory.
    constants: the arrays of inputs that are constants.
    ends: the value of each output; filled in when the model is traced.
    """

    walk: Walk
    store: Store
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
    ends: dict[str, Placed] = field(default_factory=dict[str, Placed])

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """Computes the outputs of the model, by name if there are several.

        x: the inputs with steps, by name if there are several.
        params: not used, as the model's weights are constants.
        statics: the inputs without steps, by name if there are several.
        """
        main, inputs = self.walk.main, self.placed(x, statics)
        like = inputs[self.sequences[0].name].value
        inputs |= {input_.name: lengths(input_, like) for input_ in self.inputs if input_.is_lengths}
        env: Values = {(main, name): value for name, value in inputs.items()}
        env |= {(main, name): constant(array) for name, array in self.constants.items()}
        outputs = self.outputs
        values = NodeRun(self, env, like).values(main, outputs)
        for name, value in zip(outputs, values, strict=True):
            if isinstance(value.value, Unusable):
                raise ModelError(f"{self.path}: output {name!r} cannot be computed: {value.value.reason}")
        self.ends.update(zip(outputs, values, strict=True))
        results = {name: result(name, value, like) for name, value in zip(outputs, values, strict=True)}
        return results[outputs[0]] if len(outputs) == 1 else results

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs, in order."""
        return [name for scope, name in self.walk.ends if scope is self.walk.main]


def lengths(input_: ModelInput, like: Traced) -> Placed:
    """Makes the value that stands for a model's input of lengths while the model is traced: the length of
    each sequence. like: a value per step of the same sequences.
    """
    return Placed(length_of(like).astype(input_.dtype), (BATCH,), fact=LENGTH)


def result(name: str, value: Placed, like: Traced) -> Any:
    """Returns the value of a model's output to build the graph from; a constant with an axis of steps is
    repeated at each step.

    Raises `ModelError` for an axis that joins sequences with features, and for an output that is a number of
    sequences or steps. name: that of the output. like: a value per step, whose steps are used.
    """
    check_apart(f"output {name!r}", value.axes)
    if not value.is_constant:
        return value.value
    if value.value.dtype.kind == "O":
        raise ModelError(
            f"output {name!r} is the number of sequences or of steps, and not a value per sequence or step"
        )
    if time_of(value.axes) is None:
        return value.value
    return repeated_at(value.value, like, extent_of(value.axes))


@dataclass
class NodeRun:
    """Run of the nodes of the model itself, or of a body (the graph of a Scan or Loop) in it.

    model: the model. env: the values so far, by (scope, name). like: a value per step, from which others get
    their steps; None in a body.
    """

    model: OnnxModel
    env: Values
    like: Traced | None = None

    def values(self, scope: GraphScope, names: Sequence[str]) -> list[Placed]:
        """Returns the values with these names in a graph's scope; runs all nodes on which they depend."""
        for node in needed(self.model.walk, scope, names, self.env):
            self.run(node)
        return [self.value(scope, name) for name in names]

    def value(self, scope: GraphScope, name: str) -> Placed:
        """Returns a value that was computed before, or an initializer (an array in the file); raises
        `ModelError` for others.
        """
        scope, name, source = find(scope, name)
        key = scope, name
        if key not in self.env and isinstance(source, Constant):
            self.env[key] = constant(array_of(source.tensor, self.model.store))
        if key not in self.env:
            raise ModelError(f"{self.model.path}: {name!r} is not a value of the model, or depends on itself")
        return self.env[key]

    def run(self, node: GraphNode) -> None:
        """Computes the results of a node and stores them by name; adds the node and the file to errors."""
        with located(self.model.path, node), written_at(node_name(node, self.model.path)):
            results = results_of(self.call(node))
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    self.env[node.scope, name] = self.at_steps(value)

    def at_steps(self, value: Placed) -> Placed:
        """Repeats a value at each step if its axes have steps, but it is only one per sequence so far."""
        traced = value.value
        if time_of(value.axes) is None or not isinstance(traced, Traced) or traced.type.extent != ROWS:
            return value
        return replace(value, value=to_extent(traced, extent_of(value.axes)))

    def call(self, node: GraphNode) -> OnnxCall:
        """Makes the argument of an operator's rule for a node: its operands, attributes and bodies (graphs as
        attributes, of a Scan or Loop).

        In a model without lengths, the number of steps becomes each sequence's length where the operator may
        compute with it. Raises `ModelError` for an operand that is a placeholder for a value that stepnet
        does not have; only a Cast may read it, and a Conv, which knows some.
        """
        graphs = self.model.walk.bodies.get(node, {})
        operands = tuple(self.value(node.scope, name) if name else None for name in node.inputs)
        for operand in operands if node.op not in ("Cast", "Conv") else ():
            if operand is not None and isinstance(operand.value, Unusable):
                raise ModelError(operand.value.reason)
        if ONNX[node.op].counts and self.like is not None and not self.model.has_lengths:
            operands = with_counts(operands, self.like)
        attributes = {
            name: value_of(attribute, self.model.store)
            for name, attribute in node.attributes.items()
            if name not in graphs
        }
        bodies = {name: ScopedBody(self, node.op, graph, scope) for name, (graph, scope) in graphs.items()}
        counts = len(node.outputs), node.scope.opset
        return OnnxCall(node.op, operands, attributes, *counts, bodies, self.model.has_lengths, self.like)


def results_of(call: OnnxCall) -> list[Placed]:
    """Computes the results of a node by the rule of its operator, for a model that is being traced.

    In a model with padding (steps after a sequence's end), the results also have what is known of them there.
    """
    row = ONNX[call.op]
    if not call.padded:
        return as_list(row.rule(call))

    def rule(operands: Sequence[Placed | None], padded: bool) -> Placed | Sequence[Placed]:
        """Runs the operator's rule with other operands, to find out what is known of the padding."""
        return row.rule(replace(call, operands=tuple(operands), padded=padded))

    return with_facts(rule, call.operands, row.fact)


def node_name(node: GraphNode, path: str) -> str:
    """Returns the name and operator of a node, and the file, for messages."""
    return f"node {node.name!r} ({node.op}) of {path}"


class located:  # noqa: N801 - it is read as a sentence
    """Context manager that adds the file, and the name and operator of a node, to errors while it runs."""

    def __init__(self, path: str, node: GraphNode) -> None:
        self.path, self.node = path, node

    def __enter__(self) -> None:
        """Does nothing, as errors are changed at the end of the block."""

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        """Raises an error of the node again, with the node and the file in its message."""
        if isinstance(error, MISFITS):
            reason = f"its operands or attributes do not fit: {error}"
            raise ModelError(f"{reason}\n  at {node_name(self.node, self.path)}") from error
        named = isinstance(error, ModelError | AxesError) and "\n  at node " in str(error)
        if isinstance(error, StepnetError) and not named:
            reason = str(error).partition("\n  at ")[0]
            kind = AxesError if isinstance(error, AxesError) else ModelError
            raise kind(f"{reason}\n  at {node_name(self.node, self.path)}") from error


@dataclass(frozen=True)
class ScopedBody:
    """Body of a Scan or Loop node (the graph of one step), which runs once per step in the recurrence that is
    made of it.

    run_: the run of the nodes around it. op: the operator of the node. graph, scope: the body, and its scope
    of names.
    """

    run_: NodeRun
    op: str
    graph: Any
    scope: GraphScope

    @property
    def name(self) -> str:
        """Name of the Scan's or Loop's body (the graph of one step), for messages."""
        return text(self.graph.name) or self.op.lower()

    def outside(self) -> Values:
        """Returns the computed values outside the body that the body reads, by (scope, name)."""
        walk, keys = self.run_.model.walk, set[Key]()
        for node in needed(walk, self.scope, self.outputs, {}, inside=self.scope):
            keys |= {find(node.scope, name)[:2] for name in node.inputs if name}
        return {key: self.run_.env[key] for key in sorted(keys, key=name_of_key) if key in self.run_.env}

    def gathered(self, iteration: int) -> dict[Key, tuple[Key, int]]:
        """Finds values of a Loop's body that are slices of outer values at the index of the iteration.

        iteration: the position of the body's input that is this index. Returns, by the key of the slice, (key
        of the outer value, axis).
        """
        walk, count = self.run_.model.walk, text(self.graph.input[iteration].name)
        slices = dict[Key, tuple[Key, int]]()
        for node in needed(walk, self.scope, self.outputs, {}, inside=self.scope):
            if node.op != "Gather" or find(node.scope, node.inputs[1])[:2] != (self.scope, count):
                continue
            axis = node.attributes["axis"].i if "axis" in node.attributes else 0
            slices[node.scope, node.outputs[0]] = find(node.scope, node.inputs[0])[:2], axis
        return slices

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs of the Scan's or Loop's body (the graph of one step), in order."""
        return [text(value.name) for value in self.graph.output]

    def run(self, operands: Sequence[Placed | None], outside: Values) -> list[Placed]:
        """Runs the nodes of a Scan's or Loop's body (the graph of one step); returns its outputs.

        operands: the values of its inputs; None for one that is not used. outside: the values outside the
        body that it reads, by (scope, name). Constants without steps need not be among them.
        """
        names = [text(value.name) for value in self.graph.input]
        computed = self.run_.env.items()
        env = {key: value for key, value in computed if value.is_constant and time_of(value.axes) is None}
        env |= outside
        for name, value in zip(names, operands, strict=False):
            if value is not None:
                env[self.scope, name] = value
        return NodeRun(self.run_.model, env).values(self.scope, self.outputs)


def name_of_key(key: Key) -> str:
    """Returns the name in the key (scope, name) of a value, to sort values by."""
    return key[1]


def needed(
    walk: Walk,
    scope: GraphScope,
    names: Iterable[str],
    known: Mapping[Key, Any],
    inside: GraphScope | None = None,
) -> list[GraphNode]:
    """Lists the nodes on which values depend, in the order of the file, which is an order of execution.

    walk: all nodes of the model. scope, names: the values, by the graph whose names these are. known: values
    that exist already, whose nodes are not needed, by (scope, name). inside: a body (the graph of a Scan or
    Loop); nodes outside of it are left out. None for all nodes.
    """
    required, pending = set[GraphNode](), [find(scope, name) for name in names]
    seen = set[Key]()
    while pending:
        scope_of_value, name, source = pending.pop()
        if (scope_of_value, name) in known or (scope_of_value, name) in seen:
            continue
        seen.add((scope_of_value, name))
        if isinstance(source, Output) and (inside is None or within(scope_of_value, inside)):
            required.add(source.node)
            pending += [find(source.node.scope, operand) for operand in source.node.inputs if operand]
            for graph, body in walk.bodies.get(source.node, {}).values():
                pending += outer_reads(walk, graph, body)
    return [node for node in walk.nodes if node in required]


def within(scope: GraphScope | None, body: GraphScope) -> bool:
    """Tells whether a scope of names is that of a body (the graph of a Scan or Loop), or nested in it."""
    while scope is not None and scope is not body:
        scope = scope.outer
    return scope is body


def outer_reads(walk: Walk, graph: Any, body: GraphScope) -> list[Any]:
    """Lists the values outside a Scan's or Loop's body that it reads, as (scope, name, source): the graph
    that has the name, and the node output or array behind it. walk: the nodes of the model. graph, body: the
    body, and its scope of names.
    """
    nodes = needed(walk, body, [text(value.name) for value in graph.output], {}, inside=body)
    ends = [find(body, text(value.name)) for value in graph.output]
    sources = [find(node.scope, name) for node in nodes for name in node.inputs if name]
    return [entry for entry in (*sources, *ends) if not within(entry[0], body)]


def unsupported(walk: Walk, names: Iterable[str]) -> list[GraphNode]:
    """Lists the nodes on which outputs depend and whose operators have no rule, to refuse a model with them.

    walk: the nodes of the model. names: the outputs.
    """
    nodes = set(needed(walk, walk.main, names, {}))
    for owner, bodies in walk.bodies.items():  # outer bodies precede their inner ones
        for graph, body in bodies.values() if owner in nodes else ():
            nodes |= set(needed(walk, body, [text(value.name) for value in graph.output], {}, inside=body))
    supported = {node for node in walk.nodes if node.op in ONNX and node.domain in DOMAINS}
    return [node for node in walk.nodes if node in nodes - supported]
