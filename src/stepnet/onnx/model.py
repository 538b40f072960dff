"""An ONNX model as a function of sequences, for `sn.Graph`.

    x [time, batch, 3]                     def model(x):
      -> GRU -> Squeeze -> MatMul    -->       y, _ = gru(x)
      -> [time, batch, 2]                      return y @ W

Its nodes are run one after the other on placed values, in the order of the file, those of functions where
they are called. What no output needs is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepnet.errors import ModelError, StepnetError
from stepnet.files.onnx.graph import (
    DOMAINS,
    Constant,
    Key,
    Node,
    Output,
    Scope,
    Walk,
    find,
    value_of,
)
from stepnet.files.onnx.tensor import array_of, text
from stepnet.files.store import Store
from stepnet.graph.operators.call import MISFITS, Call
from stepnet.graph.operators.counts import COMPUTING, with_counts
from stepnet.graph.operators.facts import LENGTH
from stepnet.graph.operators.inputs import ArrayModel, ModelInput
from stepnet.graph.operators.padding import with_facts
from stepnet.graph.operators.placed import AxesError, Placed, Unusable, constant, repeated_at
from stepnet.graph.operators.recurrent import RECURRENT
from stepnet.graph.operators.sizes import SEQUENCES, STEPS
from stepnet.graph.operators.table import OPERATORS
from stepnet.net.types import ROWS
from stepnet.onnx.scans import loop, scan
from stepnet.rnn.counting import length_of
from stepnet.rnn.nested import expand
from stepnet.trace.traced import Traced

Array = np.ndarray
Values = dict[Key, Placed]
RULES: Mapping[str, Any] = {**OPERATORS, **RECURRENT, "Scan": scan, "Loop": loop}
"""The rule of every operator of ONNX that models may have."""


@dataclass(frozen=True)
class OnnxModel(ArrayModel):
    """A model, its inputs with their axes, and constants for those of its inputs that have no sequences.

    ends: the value of each output, known when it has been traced.
    """

    walk: Walk
    store: Store
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
    ends: dict[str, Placed] = field(default_factory=dict[str, Placed])

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """The outputs."""
        main, inputs = self.walk.main, self.placed(x, statics)
        like = inputs[self.sequences[0].name].value
        inputs |= {input_.name: lengths(input_, like) for input_ in self.inputs if input_.is_lengths}
        env: Values = {(main, name): value for name, value in inputs.items()}
        env |= {(main, name): constant(array) for name, array in self.constants.items()}
        outputs = self.outputs
        made = Run(self, env, like).values(main, outputs)
        for name, value in zip(outputs, made, strict=True):
            if isinstance(value.value, Unusable):
                raise ModelError(f"{self.path}: output {name!r} cannot be computed: {value.value.reason}")
        self.ends.update(zip(outputs, made, strict=True))
        results = {name: result(name, value, like) for name, value in zip(outputs, made, strict=True)}
        return results[outputs[0]] if len(outputs) == 1 else results

    @property
    def outputs(self) -> list[str]:
        """The names of its outputs."""
        return [name for scope, name in self.walk.ends if scope is self.walk.main]


def lengths(input_: ModelInput, like: Traced) -> Placed:
    """The input that is the lengths of the sequences. like: a value of each step."""
    return Placed(length_of(like).astype(input_.dtype), SEQUENCES, fact=LENGTH)


def result(name: str, value: Placed, like: Traced) -> Any:
    """An output; a constant is repeated at the steps that it has. like: a value of each step."""
    if not value.is_constant:
        return value.value
    if value.value.dtype.kind == "O":
        raise ModelError(f"output {name!r} is the number of sequences or of steps, and no value of them")
    return repeated_at(value.value, like) if STEPS in value.axes else value.value


@dataclass
class Run:
    """The nodes of a scope run on values. env: the values so far. like: see `Call`."""

    model: OnnxModel
    env: Values
    like: Traced | None = None

    def values(self, scope: Scope, names: Sequence[str]) -> list[Placed]:
        """Values by name, with all that they need."""
        for node in needed(self.model.walk, scope, names, self.env):
            self.run(node)
        return [self.value(scope, name) for name in names]

    def value(self, scope: Scope, name: str) -> Placed:
        """A value that is known by now."""
        scope, name, source = find(scope, name)
        key = scope, name
        if key not in self.env and isinstance(source, Constant):
            self.env[key] = constant(array_of(source.tensor, self.model.store))
        if key not in self.env:
            raise ModelError(f"{self.model.path}: {name!r} is none of its values, or depends on itself")
        return self.env[key]

    def run(self, node: Node) -> None:
        """Runs a node."""
        with located(self.model.path, node):
            results = with_facts(RULES[node.op], self.call(node))
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    self.env[node.scope, name] = self.at_steps(value)

    def at_steps(self, value: Placed) -> Placed:
        """A value with an axis of steps as one of each step, where it is the same at all of them."""
        traced = value.value
        if STEPS not in value.axes or not isinstance(traced, Traced) or traced.type.extent != ROWS:
            return value
        return replace(value, value=expand(traced, self.like))

    def call(self, node: Node) -> Call:
        """A node with its operands."""
        graphs = self.model.walk.bodies.get(node, {})
        operands = tuple(self.value(node.scope, name) if name else None for name in node.inputs)
        for operand in operands if node.op != "Cast" else ():
            if operand is not None and isinstance(operand.value, Unusable):
                raise ModelError(operand.value.reason)
        if node.op in COMPUTING and self.like is not None and not self.model.has_lengths:
            operands = with_counts(operands, self.like)
        attributes = {
            name: value_of(attribute, self.model.store)
            for name, attribute in node.attributes.items()
            if name not in graphs
        }
        bodies = {name: ScopedBody(self, node.op, graph, scope) for name, (graph, scope) in graphs.items()}
        counts = len(node.outputs), node.scope.opset
        return Call(node.op, operands, attributes, *counts, bodies, self.model.has_lengths, self.like)


class located:  # noqa: N801 - it is read as a sentence
    """A context in which errors name the node."""

    def __init__(self, path: str, node: Node) -> None:
        self.path, self.node = path, node

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, MISFITS):
            reason = f"its operands or attributes do not fit: {error}"
            raise ModelError(
                f"{reason}\n  at node {self.node.name!r} ({self.node.op}) of {self.path}"
            ) from error
        if isinstance(error, StepnetError) and "\n  at node " not in str(error):
            reason = str(error).partition("\n  at ")[0]
            kind = AxesError if isinstance(error, AxesError) else ModelError
            raise kind(f"{reason}\n  at node {self.node.name!r} ({self.node.op}) of {self.path}") from error


@dataclass(frozen=True)
class ScopedBody:
    """A body of a node; see `scans.Body`."""

    run_: Run
    op: str
    graph: Any
    scope: Scope

    @property
    def name(self) -> str:
        """What it is called."""
        return text(self.graph.name) or self.op.lower()

    def outside(self) -> Values:
        """The values around it that it reads."""
        walk, keys = self.run_.model.walk, set[Key]()
        for node in needed(walk, self.scope, self.outputs, {}, inside=self.scope):
            keys |= {find(node.scope, name)[:2] for name in node.inputs if name}
        return {key: self.run_.env[key] for key in sorted(keys, key=str_of) if key in self.run_.env}

    def gathered(self, iteration: int) -> dict[Key, tuple[Key, int]]:
        """The values that are slices of outer ones at the number of its iteration."""
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
        """The names of its outputs."""
        return [text(value.name) for value in self.graph.output]

    def run(self, operands: Sequence[Placed | None], outside: Values) -> list[Placed]:
        """Its outputs for these inputs."""
        names = [text(value.name) for value in self.graph.input]
        around = self.run_.env.items()
        env = {key: value for key, value in around if value.is_constant and STEPS not in value.axes}
        env |= outside
        for name, value in zip(names, operands, strict=False):
            if value is not None:
                env[self.scope, name] = value
        return Run(self.run_.model, env).values(self.scope, self.outputs)


def str_of(key: Key) -> str:
    """A text to sort by."""
    return key[1]


def needed(
    walk: Walk, scope: Scope, names: Iterable[str], known: Mapping[Key, Any], inside: Scope | None = None
) -> list[Node]:
    """The nodes that values need which are not known yet, in the order of the file, which is one to run in.

    inside: a body, of which alone nodes are wanted.
    """
    wanted, pending = set[Node](), [find(scope, name) for name in names]
    seen = set[Key]()
    while pending:
        where, name, source = pending.pop()
        if (where, name) in known or (where, name) in seen:
            continue
        seen.add((where, name))
        if isinstance(source, Output) and (inside is None or within(where, inside)):
            wanted.add(source.node)
            pending += [find(source.node.scope, operand) for operand in source.node.inputs if operand]
            for graph, body in walk.bodies.get(source.node, {}).values():
                pending += outer_reads(walk, graph, body)
    return [node for node in walk.nodes if node in wanted]


def within(scope: Scope | None, body: Scope) -> bool:
    """Whether a scope is a body, or lies in it."""
    while scope is not None and scope is not body:
        scope = scope.outer
    return scope is body


def outer_reads(walk: Walk, graph: Any, body: Scope) -> list[Any]:
    """The values around a body that its nodes read."""
    nodes = needed(walk, body, [text(value.name) for value in graph.output], {}, inside=body)
    ends = [find(body, text(value.name)) for value in graph.output]
    found = [find(node.scope, name) for node in nodes for name in node.inputs if name]
    return [entry for entry in (*found, *ends) if not within(entry[0], body)]


def unsupported(walk: Walk, names: Iterable[str]) -> list[Node]:
    """The nodes that outputs need whose operators have no rule."""
    every = set(needed(walk, walk.main, names, {}))
    for owner, bodies in walk.bodies.items():  # outer ones first
        for graph, body in bodies.values() if owner in every else ():
            every |= set(needed(walk, body, [text(value.name) for value in graph.output], {}, inside=body))
    known = {node for node in walk.nodes if node.op in RULES and node.domain in DOMAINS}
    return [node for node in walk.nodes if node in every - known]
