"""KernelNumbers of a kernel in any dtype: numbers of arrays, their sums and products, the larger of two.

A storage dtype such as bfloat16 is computed in float32, and rounded once, when a result is written. A bool's
sum is `or`, its product `and`, as in NumPy.
"""

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import register_type
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.writer import KernelWriter
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class KernelNumbers:
    """Writer of the arithmetic of a kernel in one dtype, which is no storage dtype."""

    writer: KernelWriter
    dtype: str

    @property
    def kind(self) -> str:
        """The kind of the numbers: float, integer or bool."""
        return DTYPES[self.dtype].kind

    @property
    def type(self) -> ir.Type:
        """The type of a register."""
        return register_type(self.dtype, 1)

    @property
    def zero(self) -> ir.Value:
        """The number 0."""
        return ir.Constant(self.type, 0.0 if self.kind == "float" else 0)

    @property
    def nothing(self) -> ir.Value:
        """The number that added to x gives x: -0 among floats, as 0 would change the sign of -0."""
        return ir.Constant(self.type, -0.0) if self.kind == "float" else self.zero

    @property
    def lowest(self) -> ir.Value:
        """The identity of the maximum: the lowest number of the dtype."""
        if self.kind == "float":
            return ir.Constant(self.type, float("-inf"))
        return ir.Constant(self.type, 0 if self.kind == "bool" else int(np.iinfo(self.dtype).min))

    def read(self, source: str, pointer: ir.Value, index: ir.Value) -> ir.Value:
        """Writes a load of an element of an array of the dtype `source`, and its cast."""
        return converted(self.writer, self.writer.read_element(source, pointer, index), source, self.dtype)

    def write(self, target: str, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        """Writes a store of a number as an element of an array of the dtype `target`."""
        self.writer.write_element(target, converted(self.writer, value, self.dtype, target), pointer, index)

    def rounded(self, value: ir.Value) -> ir.Value:
        """Writes a number rounded to bfloat16."""
        stored = converted(self.writer, value, self.dtype, "bfloat16")
        return converted(self.writer, stored, "bfloat16", self.dtype)

    def sum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes the sum of two numbers."""
        if self.kind == "float":
            return self.writer.fadd(a, b)
        return self.writer.or_(a, b) if self.kind == "bool" else self.writer.add(a, b)

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """Writes a product plus a sum so far; of floats it is rounded once."""
        if self.kind == "float":
            return self.writer.fused(a, b, total)
        product = self.writer.and_(a, b) if self.kind == "bool" else self.writer.mul(a, b)
        return self.sum(product, total)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes the larger of two numbers; NaN if either is NaN."""
        writer = self.writer
        if self.kind == "float":
            is_nan = writer.fcmp_unordered("uno", a, a)
            return writer.select(writer.or_(is_nan, writer.fcmp_ordered(">=", a, b)), a, b)
        if self.kind == "bool":
            return writer.or_(a, b)
        return writer.select(writer.icmp_signed(">", a, b), a, b)

    def combined(self, how: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes the reduction of two numbers. how: "sum", "mean" (which divides later) or "max"."""
        return self.maximum(a, b) if how == "max" else self.sum(a, b)

    def divided(self, a: ir.Value, count: ir.Value) -> ir.Value:
        """Writes a float divided by an integer of 64 bits."""
        return self.writer.fdiv(a, self.writer.sitofp(count, self.type))
