"""The tangent of a net, as a net: the derivative of its results in a direction of its inputs.

    net(x, W):                            jvp(net)(x, W, dx, dW):
      y = tanh(x @ W)        ->             y = tanh(x @ W)
      return y                              dy = (dx @ W + x @ dW) * (1 - y * y)
                                            return y, dy

The tangent of a recurrence is a recurrence over the same steps, whose memories are those of the original and
their tangents. It is a net like any other: passes, engines and gradients take it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace

import numpy as np

from stepnet.compiler.grad.tangents import TANGENTS
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Net, Node, Recur, with_inputs
from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.passes.fold import fold
from stepnet.compiler.plan.passes.narrow import any_low
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError


def jvp(net: Net, argnums: Sequence[int] | None = None) -> Net:
    """Makes the net that computes a net's results and their tangents, which are derivatives in a direction.

    Its inputs are the inputs of the net, then the tangent of each chosen input: the direction. Its results
    are those of the net, then the tangents of the floating-point results. Tangents have the dtype in which
    their value is computed.

    argnums: positions of the floating-point inputs that have tangents, by default all of them. The tangents
        of the others are zeros.

    Raises `RefusedError` for a recurrence in int8, which has no derivatives.

    >>> from stepnet.compiler.net.types import CONST, STEPS
    >>> builder = Builder()
    >>> x = builder.input(Type(STEPS, (2,), "float32"), "x")
    >>> W = builder.input(Type(CONST, (2, 3), "float32"), "W")
    >>> print(jvp(builder.net([builder.add("matmul", x, W)])))
    net(
        x: rows/steps f32[2],
        W: const f32[2, 3],
        d_x: rows/steps f32[2],
        d_W: const f32[2, 3],
    ):
      %4 = matmul x W : rows/steps f32[3]
      %5 = matmul d_x W : rows/steps f32[3]
      %6 = matmul x d_W : rows/steps f32[3]
      %7 = add %5 %6 : rows/steps f32[3]
      return %4, %7
    """
    if any_low(net, ("int8",)):
        raise RefusedError(
            "a recurrence in int8 has no derivatives: differentiate the one that `quantize` was given, in "
            "float32 or bfloat16"
        )
    with paused_collector():
        return with_tangents(prune(net), argnums)


def with_tangents(net: Net, argnums: Sequence[int] | None) -> Net:
    """Makes the net that `jvp` documents, without its checks: the results of a net, and their tangents.

    argnums: positions of the inputs that have tangents; None for all floating-point inputs.
    """
    if argnums is None:
        argnums = [place for place, number in enumerate(net.inputs) if net.type_of(number).is_float]
    builder = Builder()
    sweep = ForwardSweep.of(builder, net, [net.inputs[place] for place in argnums])
    sweep.run()
    tangents = [sweep.of_result(number).number for number in net.results if net.type_of(number).is_float]
    made = builder.net([*(sweep.copy_of[number] for number in net.results), *tangents])
    return prune(fold(made))


@dataclass
class ForwardSweep:
    """Sweep over a net from its first node to its last, which copies it with the tangents of its values.

    builder: the builder of the net with tangents.
    net: the net to be differentiated.
    copy_of: for each node, its copy.
    tangents: the tangents of the nodes that depend on a chosen input; those of the others are zeros.
    """

    builder: Builder
    net: Net
    copy_of: dict[int, int] = field(default_factory=dict[int, int])
    tangents: dict[int, Value] = field(default_factory=dict[int, Value])

    @classmethod
    def of(cls, builder: Builder, net: Net, chosen: Iterable[int]) -> "ForwardSweep":
        """Begins a sweep with the inputs of the net, and with a further input for the tangent of each input
        `chosen`, which are nodes of the net.
        """
        sweep = cls(builder, net)
        for number in net.inputs:
            sweep.copy_of[number] = builder.input(net.type_of(number), net.nodes[number].name)
        for number in chosen:
            node = net.nodes[number]
            tangent = builder.input(node.type.computed, f"d_{node.name or number}")
            sweep.tangents[number] = Value(builder, tangent)
        return sweep

    def run(self) -> None:
        """Copies all nodes that are not copied yet, and adds the tangents of those that have one."""
        for number, node in enumerate(self.net.nodes):
            if number in self.copy_of:
                continue
            if node.operation == "recur":
                self.recur(number)
            else:
                operands = [self.copy_of[operand] for operand in node.inputs]
                self.copy_of[number] = self.builder.copy(node, operands)
                self.step(node, number)

    def step(self, node: Node, number: int) -> None:
        """Adds the tangent of a node's result, by the rule for its operation in the table `TANGENTS`. There
        is none for results that are no floats, and for operations without a derivative.
        """
        row = TANGENTS[node.operation]
        given = [self.tangents.get(operand) for operand in node.inputs]
        if isinstance(row, str) or not node.type.is_float or not any(given):
            return
        values = [Value(self.builder, self.copy_of[operand]) for operand in node.inputs]
        terms = row(node, given, Value(self.builder, self.copy_of[number]), values)
        if terms:
            first, *rest = terms
            self.tangents[number] = fitted(sum(rest, start=first), node.type.computed)

    def of_result(self, number: int) -> Value:
        """Returns the tangent of a node, zeros if it depends on no chosen input."""
        if number in self.tangents:
            return self.tangents[number]
        return zeros(self.builder, self.net.type_of(number).computed)

    # ---- recurrences

    def recur(self, number: int) -> None:
        """Adds a recurrence that computes the results of one of the net, and their tangents."""
        node, recur = self.net.nodes[number], self.net.nodes[number].recur
        operands = dict(zip(recur.body.inputs, node.inputs, strict=True))
        moving = [inside for inside, operand in operands.items() if operand in self.tangents]
        inner = body_with_tangents(recur, moving)
        made = recur_with_tangents(recur, inner)

        def of_kind(kind: Sequence[int]) -> list[int]:
            """Lists the values of the outer net for the inputs of one kind, then those of their tangents."""
            tangents = [self.of_result(operands[inside]) for inside in kind if inside in inner.moving]
            values = [self.copy_of[operands[inside]] for inside in kind]
            return [*values, *(tangent.number for tangent in tangents)]

        kinds = (recur.sequences, recur.memories, recur.others)
        results = made.add_results(
            self.builder, [one for kind in kinds for one in of_kind(kind)], source=node.source
        )
        count, steps = len(recur.outputs), iter(results.outputs[len(recur.outputs) :])
        last = iter(results.memories[recur.memory_count :])
        values = [*results.outputs[:count], *results.memories[: recur.memory_count]]
        tangents = [next(steps) if one in inner.sweep.tangents else None for one in recur.outputs]
        tangents += [next(last) if one in inner.moving else None for one in recur.memories]
        self.results(number, values, tangents)

    def results(self, number: int, values: Sequence[int], tangents: Sequence[int | None]) -> None:
        """Notes the results of a recurrence, and their tangents, for the nodes that pick a result.

        number: the recurrence. values, tangents: by position among its results, None without a tangent.
        """
        for position, node in enumerate(self.net.nodes):
            if node.operation == "result" and node.inputs[0] == number:
                index: int = node.attributes["of"]
                self.copy_of[position] = values[index]
                if (tangent := tangents[index]) is not None:
                    self.tangents[position] = Value(self.builder, tangent)


@dataclass(frozen=True)
class MovingBody:
    """A body with the tangents of its values, under construction.

    sweep: the sweep over the body.
    moving: the inputs of the body that have tangents, each with the input for its tangent.
    """

    sweep: ForwardSweep
    moving: dict[int, int]


def body_with_tangents(recur: Recur, moving: Iterable[int]) -> MovingBody:
    """Copies the body of a recurrence with the tangents of its values.

    A memory has a tangent if its first value has one, or if a step gives it one. So the sweep is repeated
    until no step gives a tangent to a further memory.

    moving: the inputs of the body whose operands have tangents.
    """
    chosen = set(moving)
    while True:
        order = [number for number in recur.body.inputs if number in chosen]
        sweep = ForwardSweep.of(Builder(), recur.body, order)
        inputs = {number: sweep.tangents[number].number for number in order}
        sweep.run()
        pairs = zip(recur.memories, recur.following, strict=True)
        further = {memory for memory, after in pairs if after in sweep.tangents} - chosen
        if not further:
            return MovingBody(sweep, inputs)
        chosen |= further


def recur_with_tangents(recur: Recur, inner: MovingBody) -> Recur:
    """Makes the recurrence whose step is a body with tangents. In its operands and in its results the
    tangents of each kind, such as memories, follow the values of the kind.
    """
    sweep, moving = inner.sweep, inner.moving

    def of_kind(kind: Sequence[int]) -> list[int]:
        """Lists the inputs of the new body for inputs of one kind, then those for their tangents."""
        return [*(sweep.copy_of[one] for one in kind), *(moving[one] for one in kind if one in moving)]

    sequences, memories, others = map(of_kind, (recur.sequences, recur.memories, recur.others))
    outputs = [sweep.copy_of[one] for one in recur.outputs]
    outputs += [sweep.tangents[one].number for one in recur.outputs if one in sweep.tangents]
    following = [sweep.copy_of[one] for one in recur.following]
    pairs = zip(recur.memories, recur.following, strict=True)
    following += [sweep.of_result(after).number for memory, after in pairs if memory in moving]
    body = with_inputs(sweep.builder, [*sequences, *memories, *others], [*outputs, *following])
    return replace(recur, body=body, sequence_count=len(sequences), memory_count=len(memories))


def fitted(value: Value, type_: Type) -> Value:
    """Brings a tangent to the type of its value: broadcasts a term of one operand, and repeats a constant."""
    return value.cast(type_.dtype).broadcast(*type_.shape).like(type_.extent)


def zeros(builder: Builder, type_: Type) -> Value:
    """Adds zeros of this type to a net."""
    return Value(builder, builder.constant(np.zeros(type_.shape, type_.dtype))).like(type_.extent)
