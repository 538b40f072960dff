"""Runs an ONNX model as a function of sequences, which `sn.Graph` traces."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import BATCH, extent_of, time_of
from stepnet.importers.counts import with_counts
from stepnet.importers.facts import LENGTH
from stepnet.importers.padding import as_list, with_facts
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.importers.sizes import SEQUENCES
from stepnet.importers.values import repeated_at, to_extent
from stepnet.layout.files.onnx.graph import (
    DEPTH,
    Constant,
    ConstantFolder,
    GraphNode,
    GraphScope,
    Key,
    Output,
    Walk,
    find,
    value_of,
)
from stepnet.layout.files.onnx.node import GATES
from stepnet.layout.files.onnx.tensor import array_of, text
from stepnet.layout.files.store import Store
from stepnet.model.counting import length_of
from stepnet.model.graph.array_model import EXPORT, ArrayModel, ModelInput, located
from stepnet.onnx.call import OnnxCall
from stepnet.onnx.dependencies import needed, outer_reads, unsupported, within
from stepnet.onnx.names import COMPARING, OnnxOperator, row_of
from stepnet.onnx.orders import check_batch_order, in_batch_order, may_read, named, order_in, reordered
from stepnet.onnx.sequences import READERS, Listed
from stepnet.onnx.written_numbers import numbers_of

Array = np.ndarray
Values = dict[Key, Placed]


@dataclass(frozen=True)
class OnnxModel(ArrayModel):
    """ONNX model as a function of its inputs, which `sn.Graph` traces.

    walk: the nodes of the model.
    store: the limit on memory.
    constants: the arrays of inputs that are constants.
    ends: the value of each output; filled in when the model is traced.
    alone: the nodes that compute each sequence as a batch of one; filled in when the model is traced.
    """

    has_dtypes: ClassVar[bool] = True
    open_steps: ClassVar[str] = EXPORT
    walk: Walk
    store: Store
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
    ends: dict[str, Placed] = field(default_factory=dict[str, Placed])
    alone: list[str] = field(default_factory=list[str])

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Any]) -> dict[str, Placed]:
        """Computes the outputs of the model by name, from its inputs by name, while it is traced. Notes each
        output's axes in `ends`. params: not used.
        """
        main, like, outputs = self.walk.main, self.like(inputs), self.outputs
        env: Values = {(main, name): value for name, value in inputs.items()}
        env |= {(main, input_.name): lengths(input_, like) for input_ in self.inputs if input_.is_lengths}
        env |= {(main, name): constant(array) for name, array in self.constants.items()}
        values = NodeRun(self, env, like).values(main, outputs)
        self.ends.update(zip(outputs, values, strict=True))
        return {name: result(name, self.ends[name], like) for name in outputs}

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs, in order."""
        return [name for scope, name in self.walk.ends if scope is self.walk.main]


def lengths(input_: ModelInput, like: Traced) -> Placed:
    """Makes the value of an input of lengths in a trace. like: a value per step of the same sequences."""
    return Placed(length_of(like).astype(input_.dtype), (BATCH,), fact=LENGTH)


def result(name: str, value: Placed, like: Traced) -> Placed:
    """Returns an output of the model after checking that its sequences are in the order of the inputs; a
    constant with an axis of steps is repeated at each step. A placeholder for an unusable value is returned
    as it is.

    name: the name of the output. like: a value per step, whose steps are used.
    """
    if isinstance(value.value, Unusable):
        return value
    check_batch_order(name, value)
    if not value.is_constant or time_of(value.axes) is None:
        return value
    return value.with_value(repeated_at(value.value, like, extent_of(value.axes)))


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
        """Returns the values with these names in a scope; first runs all nodes on which they depend."""
        for node in needed(self.model.walk, scope, names, self.env):
            self.run(node)
        return [self.value(scope, name) for name in names]

    def value(self, scope: GraphScope, name: str) -> Placed:
        """Returns a value that was computed before, or an initializer; raises `ModelError` for others."""
        scope, name, source = find(scope, name)
        key = scope, name
        if key not in self.env and isinstance(source, Constant):
            self.env[key] = constant(array_of(source.tensor, self.model.store))
        if key not in self.env and self.like is None:
            raise ModelError(
                f"it reads {name!r} in the body of a loop, which reads of a sequence the entry at its own "
                "step alone: x[:, t], with no condition around it"
            )
        if key not in self.env:
            raise ModelError(f"{self.model.path}: {name!r} is not a value of the model, or depends on itself")
        return self.env[key]

    def run(self, node: GraphNode) -> None:
        """Computes the results of a node and stores them by name. Adds the node and the file to errors; notes
        nodes that need a batch of one sequence, and numbers in the node that may depend on the number of
        steps.
        """
        with located(node_name(node, self.model.path), "node "):
            row = row_of(node.domain, node.op)
            if row is None:
                raise ModelError(f"{node.op} is not supported")
            if row.alone:
                self.model.alone.append(node_name(node, self.model.path))
            call = self.call(node, row)
            results = results_of(row, call)
            self.model.note(node_name(node, self.model.path), lambda: numbers_of(call, results))
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    self.env[node.scope, name] = self.at_steps(value)

    def at_steps(self, value: Placed) -> Placed:
        """Repeats a value that is computed once per sequence at each step, if its axes have steps."""
        traced = value.value
        if time_of(value.axes) is None or not isinstance(traced, Traced) or traced.type.extent != ROWS:
            return value
        return replace(value, value=to_extent(traced, extent_of(value.axes)))

    def call(self, node: GraphNode, row: OnnxOperator) -> OnnxCall:
        """Makes the argument of an operator's rule for a node: its operands, attributes and bodies (graphs as
        attributes, of an If, Scan or Loop). row: the entry of its operator in the table of supported
        operators.

        In a model without lengths, the number of steps becomes each sequence's length where the operator may
        compute with it. Raises `ModelError` for an operand that is a placeholder for a value that stepnet
        does not have; only a Cast and a Shape may read any, and a Conv some of them.
        """
        graphs = self.model.walk.bodies.get(node, {})
        operands = tuple(self.value(node.scope, name) if name else None for name in node.inputs)
        for operand in operands if node.op not in ("Cast", "Conv", "Shape") else ():
            if operand is None or not isinstance(operand.value, Unusable):
                continue
            reads_list = isinstance(operand.value, Listed) and node.op in READERS
            if not reads_list and not may_read(node.op, operand):
                raise ModelError(operand.value.reason)
        if row.counts and self.like is not None and not self.model.has_lengths:
            operands = with_counts(operands, self.like, node.op in COMPARING)
        attributes = {
            name: value_of(attribute, self.model.store)
            for name, attribute in node.attributes.items()
            if name not in graphs
        }
        bodies = {name: ScopedBody(self, node.op, graph, scope) for name, (graph, scope) in graphs.items()}
        counts = len(node.outputs), node.scope.opset
        return OnnxCall(node.op, operands, attributes, *counts, bodies, self.model.has_lengths, self.like)


def results_of(row: OnnxOperator, call: OnnxCall) -> list[Placed]:
    """Computes the results of a node while a model is traced, by its operator's entry (`row`) in the table of
    supported operators.

    A node that sorts or reorders the sequences of a batch only renames the axis of the sequences; recurrences
    of reordered sequences are computed in the order of the batch. In a model with padding (steps after a
    sequence's end), the results also say what numbers are known to be there.
    """
    moved = reordered(call)
    if moved is not None:
        return moved
    order = order_in(call.operands) if call.op in GATES else SEQUENCES
    if order != SEQUENCES:
        made = results_of(row, in_batch_order(call, order))
        return [replace(value, axes=named(value.axes, SEQUENCES, order)) for value in made]
    if not call.padded:
        return as_list(row.rule(call))

    def rule(operands: Sequence[Placed | None], padded: bool) -> Placed | Sequence[Placed]:
        """Runs the operator's rule with other operands, to find facts about the padding."""
        return row.rule(replace(call, operands=tuple(operands), padded=padded))

    return with_facts(rule, call.operands, row.fact)


def node_name(node: GraphNode, path: str) -> str:
    """Returns the name and operator of a node, and the file, for messages."""
    return f"node {node.name!r} ({node.op}) of {path}"


@dataclass(frozen=True)
class ScopedBody:
    """Body of a Scan or Loop node (the graph of one step), which runs once per step in the recurrence that is
    made of it.

    run_: the run of the nodes around it. op: the operator of the node. graph, scope: the body, and its scope
    of names. still: the values of the body that are computed once, outside of it.
    """

    run_: NodeRun
    op: str
    graph: Any
    scope: GraphScope
    still: set[Key] = field(default_factory=set[Key])

    @property
    def name(self) -> str:
        """Name of the Scan's or Loop's body (the graph of one step), for messages."""
        return text(self.graph.name) or self.op.lower()

    def outside(self) -> Values:
        """Returns the outer values that a body reads, and those `hoist` moved out of it, by (scope, name)."""
        reads = outer_reads(self.run_.model.walk, self.graph, self.scope)
        keys = {*self.still, *(entry[:2] for entry in reads)}
        return {key: self.run_.env[key] for key in sorted(keys, key=name_of_key) if key in self.run_.env}

    def hoist(self) -> None:
        """Computes the body's nodes that depend on no input of the body, once and outside of it; notes their
        results in `still`.
        """
        walk = self.run_.model.walk
        for node in needed(walk, self.scope, self.outputs, {}, inside=self.scope):
            sources = [find(node.scope, name) for name in node.inputs if name]
            is_still = all(
                isinstance(source, Constant) or not within(scope, self.scope) or (scope, name) in self.still
                for scope, name, source in sources
            )
            if is_still and node not in walk.bodies:
                self.run_.run(node)
                self.still.update((node.scope, name) for name in node.outputs if name)

    def inlined(self, operands: Sequence[Placed | None] = ()) -> list[Placed]:
        """Computes the outputs of the body, a branch of an If or one iteration of a Loop, as a part of the
        graph around it.

        operands: the values of its inputs. Raises `ModelError` for operators that are not supported.
        """
        model, env = self.run_.model, self.run_.env
        missing = unsupported(model.walk, self.scope, self.outputs)
        if missing:
            raise ModelError(f"{', '.join(dict.fromkeys(node.op for node in missing))} not supported")
        if operands:
            names = [text(value.name) for value in self.graph.input]
            given = zip(names, operands, strict=False)
            env = env | {(self.scope, name): value for name, value in given if value is not None}
        return NodeRun(model, env, self.run_.like).values(self.scope, self.outputs)

    def gathered(self, iteration: int) -> dict[Key, tuple[Key, int]]:
        """Finds the slices by which a Loop's body reads a sequence step by step: values of the body that are
        slices of values outside of it, at the index of the iteration.

        iteration: the position of the body's input that is this index. Returns {key of the slice: (key of the
        value outside, axis)}; a key is (scope, name).
        """
        walk, count = self.run_.model.walk, text(self.graph.input[iteration].name)
        slices = dict[Key, tuple[Key, int]]()
        for node in needed(walk, self.scope, self.outputs, {}, inside=self.scope):
            if node.op != "Gather" or find(node.scope, node.inputs[1])[:2] != (self.scope, count):
                continue
            axis = node.attributes["axis"].i if "axis" in node.attributes else 0
            slices[node.scope, node.outputs[0]] = find(node.scope, node.inputs[0])[:2], axis
        return slices

    def reads(self, position: int, besides: Sequence[Key]) -> bool:
        """Tells whether the body of a Loop reads its input at a position, other than to compute the values
        `besides`, given by key (scope, name).
        """
        walk, key = self.run_.model.walk, (self.scope, text(self.graph.input[position].name))
        keys = {find(self.scope, name)[:2] for name in self.outputs}
        for node in needed(walk, self.scope, self.outputs, {}, inside=self.scope):
            if not any((node.scope, name) in besides for name in node.outputs):
                keys |= {find(node.scope, name)[:2] for name in node.inputs if name}
                inner = walk.bodies.get(node, {}).values()
                keys |= {entry[:2] for graph, body in inner for entry in outer_reads(walk, graph, body)}
        return key in keys

    def appends(self, output: int, position: int) -> int | None:
        """Returns the axis along which an output of a Loop's body is the input at `position` with another
        value appended by a Concat, if nothing else reads this input; None for another output.

        output: the index of the output.
        """
        key = (self.scope, text(self.graph.input[position].name))
        scope, name, source = find(self.scope, self.outputs[output])
        if not isinstance(source, Output) or source.node.op != "Concat":
            return None
        first = find(source.node.scope, source.node.inputs[0])[:2]
        if first != key or self.reads(position, [(scope, name)]):
            return None
        return source.node.attributes["axis"].i

    def passes_on(self, output: int, position: int) -> bool:
        """Tells whether an output of a Loop's body is an input of it unchanged, or the constant true; an
        output that is the Loop's condition then never ends it. output, position: the indices of the output
        and the input.
        """
        key = (self.scope, text(self.graph.input[position].name))
        scope, name, source = find(self.scope, self.outputs[output])
        known = ConstantFolder(self.run_.model.store).value(scope, name)
        if known is not None:
            return known.size == 1 and bool(known.all())
        for _ in range(DEPTH):
            if not isinstance(source, Output) or source.node.op not in ("Cast", "Identity"):
                break
            scope, name, source = find(source.node.scope, source.node.inputs[0])
        return (scope, name) == key

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
