"""The adjoint of a recurrence: a recurrence the other way.

    forward    y, h' = step(x, h, s, W)        backward    dx, dh, ds = step'(x, h, s, W, dy, dh', ds')

sequences   the inputs and saved values that the transposed step reads, such as the memory before each step;
            the cotangents of the outputs
memories    the cotangent of the memory, beginning with that of the last one; for each static the sum so far
outputs     the cotangents of the inputs; the operands of the sums for parameters, which are computed outside
"""

from dataclasses import field, replace

import numpy as np

from stepnet.compiler.grad.extents import Total
from stepnet.compiler.grad.forward import Forward
from stepnet.compiler.grad.sweep import Sweep
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Recur, ancestors, with_inputs
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.values.records import dataclass


def transpose(sweep: Sweep, number: int) -> None:
    """Adds the adjoint of a recurrence to the gradient net, and its results to the cotangents of the
    recurrence's operands. Does nothing if no result of the recurrence has a cotangent.

    sweep: the reverse sweep over the net with the recurrence. number: the node of the recurrence in that net.
    """
    cotangents = sweep.of_results(number)
    if cotangents:
        Transposed(sweep, number, cotangents).run()


@dataclass
class Transposed:
    """Construction of the adjoint of one recurrence: a recurrence in the opposite direction.

    cotangents: the cotangents of the recurrence's results, by position.
    builder: builds the adjoint's body.
    sequences, memories, others: the inputs of that body, each with the value of the outer net that it reads.
    """

    sweep: Sweep
    number: int
    cotangents: dict[int, Value]
    builder: Builder = field(default_factory=Builder)
    sequences: dict[int, int] = field(default_factory=dict[int, int])
    memories: dict[int, int] = field(default_factory=dict[int, int])
    others: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        """Reads the recurrence, its operands and the extent of its steps from the net."""
        node = self.sweep.net.nodes[self.number]
        self.recur, self.body, self.types = node.recur, node.recur.body, node.types
        self.operands = dict(zip(self.body.inputs, node.inputs, strict=True))
        self.deep = recur_extent([self.sweep.net.type_of(node.inputs[0])], node.attributes)

    def run(self) -> None:
        """Builds the adjoint of a recurrence, a recurrence that runs from the last step to the first, and
        adds its results to the cotangents of the operands of the original. Its memories are the cotangents of
        the original's memories, and for each static (a value that all steps share) the sum of its cotangents
        so far.
        """
        recur, body, count = self.recur, self.body, len(self.recur.outputs)
        inner = Sweep(self.builder, body, self.forward(), self.sweep.transpose, inside=True)
        for index, number in enumerate(recur.outputs):
            if index in self.cotangents:
                inner.add(number, self.cotangent(self.sequences, number, self.cotangents[index].number))
        carried: dict[int, Value] = {}
        for index, (memory, after) in enumerate(zip(recur.memories, recur.following, strict=True), count):
            if body.type_of(memory).is_float:
                initial = (
                    self.cotangents[index].number
                    if index in self.cotangents
                    else self.zeros(self.types[index])
                )
                carried[memory] = self.cotangent(self.memories, memory, initial)
                inner.add(after, carried[memory])
        sums: dict[int, Value] = {}
        for static in recur.others:
            if body.type_of(static).is_float and body.type_of(static).extent != CONST:
                initial = self.zeros(self.sweep.net.type_of(self.operands[static]).computed)
                sums[static] = self.cotangent(self.memories, static, initial)
        inner.run()
        after = [
            inner.cotangents.get(number, value.zeros(*value.type.shape)) for number, value in carried.items()
        ]
        after += [plus(value, inner.cotangents.get(number)) for number, value in sums.items()]
        self.give(inner, [*carried, *sums], after)

    def give(self, inner: Sweep, remembered: list[int], after: list[Value]) -> None:
        """Adds the adjoint recurrence to the outer net (the gradient net around it), and its results to the
        cotangents of the operands of the original recurrence.

        inner: the reverse sweep over the body, the net of a step.
        remembered: the nodes of the original body whose cotangents are the adjoint's memories.
        after: these cotangents after a step.
        """
        sequences = [number for number in self.recur.sequences if number in inner.cotangents]
        handed = [inner.cotangents[number] for number in sequences]
        handed += [operand for _, total in inner.totals for operand in total.operands]
        outside = self.gradients_of_inputs(handed, after)
        for number in sequences:
            self.sweep.add(self.operands[number], outside[inner.cotangents[number].number])
        for number, value in zip(remembered, self.final, strict=True):
            self.sweep.add(self.operands[number], value)
        for number, total in inner.totals:
            operands = tuple(outside[operand.number] for operand in total.operands)
            encoded = total.weights or self.encoding(total)
            self.sweep.add(self.operands[number], replace(total, operands=operands, weights=encoded))

    def encoding(self, total: Total) -> str | None:
        """Returns the encoding, such as "bfloat16", in which `total`, a sum over all rows, multiplies its
        factors, if the recurrence computes products in low precision; else None.
        """
        precision = self.recur.precision
        if precision is None or not precision.is_low or total.operation != "contract":
            return None
        return precision.dtype if {value.type.dtype for value in total.operands} == {"float32"} else None

    def gradients_of_inputs(self, handed: list[Value], after: list[Value]) -> dict[int, Value]:
        """Adds the adjoint recurrence to the outer net, and sets `final` to its final memories. Returns a
        dict from the number of each value in `handed` to the value of the outer net that contains it for all
        steps.

        handed: the values of the adjoint's body (the net of its step) that the outer net reads.
        after: the memories of the adjoint after a step.
        """
        around = self.sweep.builder
        outside = {value.number: self.known(value.number) for value in handed}
        outputs = [number for number, known in outside.items() if known is None]
        results = [*outputs, *(value.number for value in after)]
        read = ancestors(self.builder.nodes, results)
        first = self.recur.sequences[0]
        sequences = {number: outer for number, outer in self.sequences.items() if number in read}
        if not sequences:
            sequences = {self.copy_of[first]: self.sequences[self.copy_of[first]]}
        others = {number: outer for number, outer in self.others.items() if number in read}
        body = with_inputs(self.builder, [*sequences, *self.memories, *others], results)
        recur = Recur(
            body,
            len(sequences),
            len(self.memories),
            reverse=not self.recur.reverse,
            precision=self.recur.precision,
        )
        results = recur.add_results(around, [*sequences.values(), *self.memories.values(), *others.values()])
        self.final = [Value(around, number) for number in results.memories]
        result_of = dict(zip(outputs, results.outputs, strict=True))
        return {
            number: Value(around, result_of[number]) if known is None else known
            for number, known in outside.items()
        }

    def known(self, number: int) -> Value | None:
        """Returns the value of the outer net, one per step, that a node of the adjoint's body (the net of its
        step) is if it only reads an operand: a sequence as it is, another operand repeated at each step. None
        for other nodes, which the body computes.
        """
        around = self.sweep.builder
        if number in self.sequences:
            return Value(around, self.sequences[number])
        if number in self.others:
            return Value(around, self.others[number]).at(self.deep)
        return None

    # ---- the inputs of the body

    def forward(self) -> Forward:
        """Adds the values of the original step to the adjoint's body (the net of its step), whose nodes read
        them: saved values and operands as inputs, the others as copies of the nodes that compute them.
        Returns these copies.
        """
        here, saved = self.sweep.forward, self.sweep.forward.saved[self.number]
        copy_of: dict[int, int] = {}
        for number in self.recur.sequences:
            copy_of[number] = self.input(self.sequences, number, here.copy_of[self.operands[number]])
        for number in self.recur.others:
            copy_of[number] = self.input(self.others, number, here.copy_of[self.operands[number]])
        for number, outer in saved.items():
            copy_of[number] = self.input(self.sequences, number, outer)
        for number in self.recur.memories:
            if number not in copy_of:  # never read: the gradient of a sum does not depend on the sum
                copy_of[number] = self.builder.input(self.body.type_of(number), self.body.nodes[number].name)
        self.copy_of = copy_of
        return Forward(dict(copy_of)).copy(self.builder, self.body)

    def input(self, inputs: dict[int, int], number: int, outer: int) -> int:
        """Adds an input for a value of the original step (the body of the recurrence that is differentiated)
        to the adjoint's body (the net of its step); returns its number.

        inputs: the inputs of the same kind (all sequences, or all others) so far, to which it is added.
        number: the value in the original body.
        outer: the value of the outer net that the input reads.
        """
        node = self.body.nodes[number]
        input_number = self.builder.input(node.type, node.name or f"{node.operation}{number}")
        inputs[input_number] = outer
        return input_number

    def cotangent(self, inputs: dict[int, int], number: int, outer: int) -> Value:
        """Adds an input for the cotangent of a value of the original step (the body of the recurrence that is
        differentiated) to the adjoint's body (the net of its step); returns it.

        inputs: the inputs of the same kind (all sequences, or all memories) so far, to which it is added.
        number: the value in the original body.
        outer: the value of the outer net that the input reads.
        """
        node = self.body.nodes[number]
        input_number = self.builder.input(node.type.computed, f"d_{node.name or number}")
        inputs[input_number] = outer
        return Value(self.builder, input_number)

    def zeros(self, type_: Type) -> int:
        """Adds zeros of this type to the net around the adjoint's body; returns the number of their node."""
        around = self.sweep.builder
        number = around.constant(np.zeros(type_.shape, type_.dtype))
        return around.add("expand", number, extent=type_.extent)


def plus(value: Value, other: Value | None) -> Value:
    """Adds a step's contribution to the sum so far; returns the sum itself if the contribution is None."""
    return value if other is None else value + other
