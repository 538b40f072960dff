"""Writes a thread's place in a kernel, and the addresses of what it reads and writes.

A thread holds a value as up to four elements: of 2 units x 2 sequences. Left operands of products are in
shared memory as [unit][sequence], each in two places, which alternate from step to step, so that a step needs
one barrier.
"""

from collections.abc import Iterable

from llvmlite import ir

from bench.gpu.device_functions import F32
from bench.gpu.inputs import ROWS
from bench.gpu.shape import LANES, UNITS, Shape
from stepnet.compiler.targets.cpu.writing.code import I32, I64, POINTER, Code

Value = ir.Value
Elements = list[Value]
"""A value of the step as a thread holds it, or the 4 sums of a product."""


def elements(values: Iterable[Value]) -> Elements:
    """Lists elements. A list of one kind of values is, to a checker of types, no list of values."""
    return list(values)


class Addresses:
    """Writer of a thread's place among units and sequences, and of the addresses of its elements."""

    def __init__(self, shape: Shape, code: Code, arguments: Value) -> None:
        """Writes the code that finds a thread's units and sequences. arguments: the kernel's argument."""
        self.shape, self.step, self.schedule, self.code = shape, shape.step, shape.schedule, code
        number = code.number
        self.arrays = {
            name: self.call("in_main", POINTER, code.read(POINTER, code.at(arguments, 8 * place), 8))
            for place, name in enumerate(shape.argument_names)
        }
        self.narrow_thread = self.call("thread", I32)
        self.thread = code.zext(self.narrow_thread, I64)
        block = code.zext(self.call("block", I32), I64)
        self.group = code.sdiv(block, number(self.schedule.blocks))
        share = code.srem(block, number(self.schedule.blocks))
        lane, warp = code.and_(self.thread, number(LANES - 1)), code.lshr(self.thread, number(5))
        self.quad, self.in_quad = code.lshr(lane, number(2)), code.and_(lane, number(3))
        self.part, tile = (
            code.srem(warp, number(self.schedule.parts)),
            code.sdiv(warp, number(self.schedule.parts)),
        )
        self.lane, self.warp, self.local_tile = lane, warp, tile
        self.share = share
        self.tile = code.mul(code.add(code.mul(share, number(shape.tiles)), tile), number(UNITS))
        self.first_k = code.mul(self.part, number(shape.step.width // self.schedule.parts))
        self.places = [
            code.add(code.mul(self.part, number(shape.elements)), number(e)) for e in range(shape.elements)
        ]
        self.units = [
            code.add(self.tile, code.add(self.quad, code.mul(code.lshr(e, number(1)), number(8))))
            for e in self.places
        ]
        self.rows = [
            code.add(code.add(self.in_quad, self.in_quad), code.and_(e, number(1))) for e in self.places
        ]
        self.slots = [code.add(code.mul(self.group, number(ROWS)), row) for row in self.rows]
        self.starts = [code.read_number(self.arrays["starts"], slot) for slot in self.slots]
        self.lengths = [code.read_number(self.arrays["lengths"], slot) for slot in self.slots]
        self.lasts = [
            code.select(code.icmp_signed(">", n, number(0)), code.sub(n, number(1)), number(0))
            for n in self.lengths
        ]
        self.shared = self.call("shared", POINTER)
        self.values, self.matrices = dict[int, Elements](), dict[tuple[int, int], Value | list[Elements]]()
        self.held = [m for m in self.step.memories if m in self.step.lefts]

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        """Writes a call of a device function."""
        return self.code.function_call(name, result, list(arguments))

    def element(self, array: str, index: Value, unit: Value) -> Value:
        """Writes the address of a unit of an element of an array of float32[width]."""
        code = self.code
        place = code.add(code.mul(index, code.number(self.step.width)), unit)
        return code.at(self.arrays[array], code.mul(place, code.number(4)))

    def state_offset(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the offset in bytes of an element of a left operand among the states of a group."""
        code, number = self.code, self.code.number
        place = code.add(parity, number(2 * self.step.lefts.index(left)))
        place = code.add(
            code.mul(code.add(code.mul(place, number(self.step.width)), unit), number(ROWS)), row
        )
        return code.mul(place, number(4))

    def state(self, left: int, parity: Value, unit: Value, row: Value) -> Value:
        """Writes the address of an element of a left operand in shared memory."""
        return self.code.at(self.shared, self.state_offset(left, parity, unit, row))

    def exchanged(self, offset: Value) -> Value:
        """Writes the address of an offset among the states in the memory of a group."""
        code = self.code
        base = code.mul(self.group, code.number(4 * self.shape.exchange_floats))
        if self.schedule.exchange == "tagged":
            offset = code.add(offset, offset)
        return code.at(self.arrays["exchange"], code.add(base, offset))

    def frames(self, t: Value) -> Elements:
        """Writes loads of the step's values of all sequences; beyond the end of a sequence, its last ones."""
        at = [
            self.code.add(s, self.code.smaller(t, last))
            for s, last in zip(self.starts, self.lasts, strict=True)
        ]
        return [
            self.code.read(F32, self.element(f"x{place}", at[e], self.units[e]), 4)
            for place in range(len(self.step.sequences))
            for e in range(self.shape.elements)
        ]
