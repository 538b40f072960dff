"""A step while it is lowered to integers: its values, with the digits behind their points.

    inputs, values, memories    int16, or int8 as the left sides of products
    weights                     int8, with a scale for each column: a unit of a gate
    sums                        int32, and int64 while they are multiplied by their scales

Views share the digits of their arrays.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from math import log2

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame.drafts import FrameValue, Root
from stepnet.compiler.targets.frame.fixed import (
    FRACTIONS,
    LARGEST,
    bounded_fraction,
    factor,
    fraction_of,
    narrowed,
    refitted,
    shifted,
    stored,
    wide,
)
from stepnet.compiler.targets.frame.fixed_functions import BOUNDED, DIGITS
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder
from stepnet.compiler.targets.frame.step import StepMemory
from stepnet.compiler.targets.frame.step_lowering import StepLowering
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
MOST_CODE = 127
"""The largest int8 that activations have."""


@dataclass
class IntegerLowering(StepLowering):
    """A step while it is lowered to integers.

    largest: the largest magnitude of each value. activations: the dtype of the left sides of products.
    encoded: the left sides so far, by the number of their values. parts: the values that are computed in
    parts of their last axis, by number: each part by its first index and its end.
    """

    largest: Sequence[float] = ()
    activations: str = "int16"
    encoded: dict[int, FrameValue] = field(default_factory=dict[int, FrameValue])
    parts: dict[int, dict[tuple[int, int], FrameValue]] = field(
        default_factory=dict[int, dict[tuple[int, int], FrameValue]]
    )

    def end(self, kind: str, number: int, name: str, title: str) -> Root:
        """Returns the array of an input or a memory: an input in the dtype of activations, with its scale."""
        type_ = self.step.net.type_of(number)
        if not type_.is_float:
            return super().end(kind, number, name, title)
        dtype, scale = "int16", 2.0 ** -self.digits(number)
        if kind == "input" and self.activations == "int8":
            dtype, scale = "int8", scale_of_codes(self.largest[number])
        return Root(kind, dtype, type_.size, name, title, scale=scale)

    def digits(self, number: int) -> int:
        """Returns the digits behind the point of a value; a memory's cover it before and after a step."""
        if self.step.net.nodes[number].operation in BOUNDED:
            return DIGITS
        pairs = [(each.before, each.after) for each in self.step.memories if number == each.before]
        return fraction_of(max(self.largest[each] for each in (number, *(pairs[0] if pairs else ()))))

    def value(self, number: int) -> FrameValue:
        """Returns the value of a node in int16; of a node of integers as it is."""
        if number in self.known and number not in self.values and self.known[number].dtype.kind == "f":
            self.values[number] = self.constant(number)
        found = super().value(number)
        if found.dtype != "int8":
            return found
        number_, shift = factor(float(found.root.scale or 0) * 2.0 ** self.digits(number), 20)

        def decoded(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
            """Records a code times its scale."""
            product = code.mul(wide(code, *operands), code.constant("int32", number_))
            return stored(code, shifted(code, product, shift))

        self.encoded[number] = found
        self.values[number] = self.elementwise(number, found.shape, [found], decoded)
        return self.values[number]

    def constant(self, number: int) -> FrameValue:
        """Returns a constant of the net in integers: int32 if it is one number, which is in the code."""
        array, node = self.known[number], self.step.net.nodes[number]
        fraction = bounded_fraction(float(np.abs(array).max(initial=0)))
        codes = np.rint(np.asarray(array, np.float64) * 2.0**fraction)
        dtype = "int32" if codes.size and (codes == codes.flat[0]).all() else "int16"
        codes = np.ascontiguousarray(codes.astype(dtype))
        root = Root("constant", dtype, array.size, node.name, node.name, codes, scale=2.0**-fraction)
        return FrameValue.of(root, array.shape)

    def elementwise(
        self,
        number: int,
        shape: tuple[int, ...],
        operands: Sequence[FrameValue],
        record: Callable[[Recorder, list[FrameRegister]], FrameRegister],
    ) -> FrameValue:
        """Adds an elementwise operation that gives int16 with the digits of a value; returns its result."""
        about = self.step.net.nodes[number].operation
        value = self.drafts.pointwise(shape, "int16", operands, record, about)
        value.root.scale = 2.0 ** -self.digits(number)
        return value

    def left(self, number: int) -> FrameValue:
        """Returns a value as the left side of products: contiguous, in the dtype of activations."""
        if self.activations == "int16":
            return self.drafts.contiguous(self.value(number))
        if number not in self.encoded and self.values[number].dtype != "int8":
            self.encoded[number] = self.in_codes(number)
        return self.drafts.contiguous(self.encoded.get(number, self.values[number]))

    def in_codes(self, number: int) -> FrameValue:
        """Adds the operations that round a value to int8; returns the result."""
        value, scale = self.value(number), scale_of_codes(self.largest[number])
        multiplier, shift = factor(2.0 ** -fraction(value) / scale, DIGITS)

        def rounded(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
            """Records a number divided by the scale of its code."""
            product = code.mul(wide(code, *operands), code.constant("int32", multiplier))
            return narrowed(code, shifted(code, product, shift), "int8")

        encoded = self.drafts.pointwise(value.shape, "int8", [value], rounded)
        encoded.root.scale = scale
        return encoded

    def refit(self, value: FrameValue, digits: int) -> FrameValue:
        """Returns a value with so many digits behind the point."""
        if fraction(value) == digits and value.dtype == "int16":
            return value

        def record(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
            """Records the number with other digits."""
            return stored(code, refitted(code, wide(code, *operands), fraction(value), digits))

        made = self.drafts.pointwise(value.shape, "int16", [value], record)
        made.root.scale = 2.0**-digits
        return made

    def after(self, memory: StepMemory) -> FrameValue:
        """Returns the value that a memory has after the step, with the digits of the memory."""
        before, after = self.values[memory.before], self.value(memory.after)
        return after if before.root.scale is None else self.refit(after, self.digits(memory.before))

    def begin(self, memory: StepMemory) -> Array | None:
        """Returns the integers that the array of a memory begins with; None for zeros."""
        if memory.begin is None or memory.begin.dtype.kind != "f":
            return memory.begin
        codes = np.rint(memory.begin.astype(np.float64) * 2.0 ** self.digits(memory.before))
        return np.clip(codes, -LARGEST, LARGEST).astype(np.int16)


def scale_of_codes(largest: float) -> float:
    """Returns the scale in int8 of numbers up to a magnitude."""
    return max(largest, 2.0 ** -FRACTIONS[1]) / MOST_CODE


def fraction(value: FrameValue) -> int:
    """Returns the digits behind the point of a value; 0 for bools and integers of the model."""
    return 0 if value.root.scale is None else -round(log2(value.root.scale))


def no_integers(node: Node, advice: str) -> str:
    """Returns the message that refuses a node: its operation, the user's line, and what to do."""
    at = f" (at {node.source})" if node.source else ""
    return f"the operation {node.operation} has no form in integers{at}: {advice}"
