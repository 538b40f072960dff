"""The machine code of work on fibers: a group of units of a row at a time, from its first turn to its last.

    for each group of units of each row:     threads share them
        elementwise work on units            on registers
        for each depth:                      numbers of the fibers: read, computed, added up, stored
        ...

A sum is one chain of additions over the depths in order, whatever else is computed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.emit.reductions import combine, neutral
from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.lower.loops import (
    Along,
    Computed,
    DeepOperand,
    FiberLoop,
    FiberSum,
    Operand,
    Register,
    Turn,
)
from stepnet.engines.llvm.machine.records import Field
from stepnet.engines.llvm.writing.code import load_vector, register_type, store_vector
from stepnet.engines.llvm.writing.pointwise import converted, pointwise

Values = dict[int, ir.Value]


def emit_fibers(stage: StageCode, loop: FiberLoop) -> None:
    """All groups of units of this thread, of any row."""
    with stage.own_groups(groups_of(loop)) as (row, group):
        emit_group(stage, loop, row, group)


def groups_of(loop: FiberLoop) -> int:
    """How many groups of units a row has."""
    return -(-loop.size // loop.width)


def emit_group(stage: StageCode, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """A group of units of a row."""
    FiberCode(replace(stage, width=loop.width), loop, row, group).write()


@dataclass
class FiberCode:
    """The code of a group of units of a row."""

    stage: StageCode
    loop: FiberLoop
    row: ir.Value
    group: ir.Value

    def __post_init__(self) -> None:
        self.code, self.width, self.net = self.stage.code, self.stage.width, self.stage.net
        self.values: Values = {}

    def write(self) -> None:
        """All turns, the work behind the last, and what is stored of the units."""
        for turn in self.loop.turns:
            self.units(turn.units)
            self.turn(turn)
        self.units(self.loop.units)
        for operand, target in self.loop.stores:
            self.store(self.operand(operand), target, self.group)

    def units(self, nodes: Computed) -> None:
        """Elementwise work on the units."""
        for number, operands in nodes:
            self.values[number] = self.computed(number, operands, [self.operand(each) for each in operands])

    def computed(self, number: int, operands: Iterable[DeepOperand], values: list[ir.Value]) -> ir.Value:
        """An elementwise node of some operands."""
        return pointwise(self.code, self.net.nodes[number], values, [each.dtype for each in operands])

    def operand(self, operand: Operand) -> ir.Value:
        """An operand that is the same at every depth."""
        return self.stage.operand(operand, self.row, self.group, self.values)

    def store(self, value: ir.Value, target: Field, place: ir.Value) -> None:
        """Stores a register as the vector at a place of a field."""
        code, bytes_ = self.code, self.width * target.itemsize
        base = code.at(self.stage.rows.at(code, target.record, self.row), target.offset)
        pointer = code.at(base, code.mul(place, code.number(bytes_)))
        store_vector(code, target.dtype, value, pointer, min(bytes_, target.alignment))

    # ---- a turn

    def turn(self, turn: Turn) -> None:
        """One way through the fibers: all that is the same at each depth is read ahead of it."""
        code = self.code
        sides = [operands for _, operands in turn.nodes] + [each.terms for each in turn.sums]
        operands = dict.fromkeys(operand for side in sides for operand in side)
        inside = {number for number, _ in turn.nodes}
        fixed = {
            operand: self.operand(operand)
            for operand in operands
            if not isinstance(operand, Along)
            and not (isinstance(operand, Register) and operand.number in inside)
        }
        streams = {each: Stream(self, each, turn.depth) for each in operands if isinstance(each, Along)}
        first = code.mul(self.group, code.number(turn.depth))

        def at_depth(depth: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
            values, read = Values(), {each: stream.at(depth) for each, stream in streams.items()}

            def value(operand: DeepOperand) -> ir.Value:
                if isinstance(operand, Register) and operand.number in inside:
                    return values[operand.number]
                return read[operand] if isinstance(operand, Along) else fixed[operand]

            for number, operands in turn.nodes:
                values[number] = self.computed(number, operands, list(map(value, operands)))
            for operand, target in turn.stores:
                self.store(value(operand), target, code.add(first, depth))
            return [
                self.added(each, total, [value(term) for term in each.terms])
                for each, total in zip(turn.sums, partial, strict=True)
            ]

        begun = [self.begun(each) for each in turn.sums]
        totals = code.carry(0, turn.depth, begun, at_depth)
        self.values.update(zip((each.number for each in turn.sums), totals, strict=True))

    def begun(self, sum_: FiberSum) -> ir.Value:
        """What a reduction begins with."""
        node = self.net.nodes[sum_.number]
        return neutral(self.code, node.operation, register_type(node.type.dtype, self.width))

    def added(self, sum_: FiberSum, total: ir.Value, terms: list[ir.Value]) -> ir.Value:
        """A reduction with the numbers of one more depth."""
        if len(terms) == 2:
            return self.code.fused(terms[0], terms[1], total)
        node = self.net.nodes[sum_.number]
        term = converted(self.code, terms[0], sum_.terms[0].dtype, node.type.dtype)
        return combine(self.code, node.operation, node.type.dtype, total, term)


class Stream:
    """An operand that differs from depth to depth, for a group of units."""

    def __init__(self, own: FiberCode, operand: Along, depth: int) -> None:
        self.own, self.operand, self.code, self.width = own, operand, own.code, own.width
        code, stage, source = own.code, own.stage, operand.source
        if isinstance(source, Field):
            self.base = code.at(stage.rows.at(code, source.record, own.row), source.offset)
        else:
            self.base = code.at(stage.constants, source)
        self.itemsize = np.dtype(operand.dtype).itemsize
        self.table = code.at(stage.constants, operand.offset)
        if operand.stride is None:
            self.first = code.mul(own.group, code.number(depth))
        else:
            start = code.read_number(self.table, own.group)
            self.base = code.at(self.base, code.mul(start, code.number(self.itemsize)))

    def at(self, depth: ir.Value) -> ir.Value:
        """The vector of a depth."""
        code, operand = self.code, self.operand
        if operand.how == "element":
            first = code.mul(code.add(self.first, depth), code.number(self.width))
            return self.own.stage.by_element(operand.dtype, self.base, self.table, first)
        if operand.stride is None:
            place = code.read_number(self.table, code.add(self.first, depth))
        else:
            place = code.mul(depth, code.number(operand.stride))
        return self.vector(place, 1 if operand.how == "spread" else self.width)

    def vector(self, place: ir.Value, count: int) -> ir.Value:
        """The numbers from a place on; a single one for all units."""
        code = self.code
        pointer = code.at(self.base, code.mul(place, code.number(self.itemsize)))
        value = load_vector(code, self.operand.dtype, count, pointer, self.itemsize)
        return value if count == self.width else code.spread(value, self.width)
