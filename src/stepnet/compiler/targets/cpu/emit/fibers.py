"""The machine code of work on matrices of a row, fiber by fiber (`lower/fibers.py`).

A fiber is the numbers of a matrix that are summed for one unit. A pass is one loop over their depth.

    for each group of units of each row:     divided among threads
        elementwise work on units            in registers
        for each depth:                      a pass: load, compute, accumulate and store fiber elements
        ...                                  elementwise work that reads the sums, further passes

Each sum is one chain of additions in the order of the depths, so its bits do not depend on the batch.

If a group runs through several steps, the last pass of a step is fused with the first pass of the next step,
provided that this pass reads no memories but matrices:

    step t      sum(S * k)      S = a * S + k * d, y = sum(S * q)
    step t + 1                  sum(S * k)                          S = a * S + k * d, y = sum(S * q)

Each matrix element is then loaded and stored once per step. And more accumulators are in flight, which hides
the four cycles of latency of an addition.

If a step has a single pass, its stores do not depend on its sums. If its fibers do not fit the L1 cache, the
depth is tiled: one tile of the depth runs through all steps, then the next tile. The partial sums of each
step are stored in between, so the order of additions stays the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.reductions import combine, neutral
from stepnet.compiler.targets.cpu.emit.stage import ConsecutiveSteps, StageCode
from stepnet.compiler.targets.cpu.lower.loops import (
    Along,
    Computed,
    DeepOperand,
    FiberLoop,
    FiberPass,
    FiberSum,
    Operand,
    Register,
    VectorLoad,
)
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.writing.code import load_vector, register_type, store_vector
from stepnet.compiler.targets.cpu.writing.pointwise import converted, pointwise

Values = dict[int, ir.Value]


def emit_fibers(stage: StageCode, loop: FiberLoop) -> None:
    """Writes one step of work on fibers (matrix elements summed for one unit), for this thread's units."""
    with stage.own_groups(groups_of(loop)) as (row, group):
        emit_group(stage, loop, row, group)


def groups_of(loop: FiberLoop) -> int:
    """Returns the number of groups of units in a row; threads divide the groups, of `loop.width` units."""
    return -(-loop.size // loop.width)


def emit_group(stage: StageCode, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes one step of the work on fibers (elements summed for a unit) of one group of units of a row."""
    own = FiberCode(stage, loop, row, group)
    own.first()
    own.rest()


def emit_group_steps(steps: ConsecutiveSteps, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes consecutive steps of a group of units of a row: tiled over the depth, fused, or one by one."""
    if loop.tile:
        emit_tiles(steps, loop, row, group)
    elif loop.begins_ahead:
        emit_ahead(steps, loop, row, group)
    else:
        steps.each(lambda stage: emit_group(stage, loop, row, group))


def emit_ahead(steps: ConsecutiveSteps, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes consecutive steps of a group of units. The first pass over the fibers of each step is fused with
    the last pass of the step before, so that a step loads each matrix element once.
    """
    code = steps.code
    begun = FiberCode(steps.first, loop, row, group)
    begun.first()
    numbers = sorted(begun.values)

    def known(values: list[ir.Value]) -> Values:
        """Returns the carried registers by node. values: the two memory buffers, then the registers."""
        return dict(zip(numbers, values[2:], strict=True))

    def step_with_next(ahead: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        """Writes a step and the first pass of the next one; returns the values to carry, memories first."""
        memories, exchanged = values[:2], values[1::-1]
        own = FiberCode(steps.at(ahead, memories), loop, row, group, known(values))
        following = FiberCode(steps.at(code.add(ahead, code.number(1)), exchanged), loop, row, group)
        own.rest(following)
        return [*exchanged, *(following.values[number] for number in numbers)]

    last = code.sub(steps.count, code.number(1))
    values = code.carry(0, last, [*steps.memories, *(begun.values[n] for n in numbers)], step_with_next)
    FiberCode(steps.at(last, values[:2]), loop, row, group, known(values)).rest()


def emit_tiles(steps: ConsecutiveSteps, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes consecutive steps of a group of units, tiled over the depth (length) of its fibers. A tile,
    which fits the L1 cache, runs through all steps before the next one begins.
    """
    code, depth = steps.code, loop.turns[0].depth
    with code.loop(code.number(0), code.number(depth), loop.tile) as first:
        stop = code.smaller(code.add(first, code.number(loop.tile)), code.number(depth))
        steps.each(lambda stage: FiberCode(stage, loop, row, group).tile(first, stop))


@dataclass
class FiberCode:
    """Writer of the code of one step of work on fibers, for one group of units of one row.

    values: the registers computed so far for the units of the group, by node number.
    """

    stage: StageCode
    loop: FiberLoop
    row: ir.Value
    group: ir.Value
    values: Values = field(default_factory=Values)

    def __post_init__(self) -> None:
        """Makes vectors as wide as a group of units, for all loads and stores."""
        self.stage = replace(self.stage, width=self.loop.width)
        self.code, self.width, self.net = self.stage.code, self.stage.width, self.stage.net

    def first(self) -> None:
        """Writes the first pass over the fibers of a step, and the elementwise work on units ahead of it."""
        self.units(self.loop.turns[0].units)
        self.turn(self.loop.turns[0])

    def rest(self, following: "FiberCode | None" = None) -> None:
        """Writes everything of a step after its first pass over the fibers.

        following: the next step, whose first pass is fused with the last pass of this step.
        """
        for turn in self.loop.turns[1:]:
            self.units(turn.units)
            is_last = turn is self.loop.turns[-1]
            self.turn(turn, following if is_last else None)
        self.end()

    def tile(self, first: ir.Value, stop: ir.Value) -> None:
        """Writes depths `first` to `stop` - 1 of a step with one pass; after the last tile, also the rest.

        The sums so far are kept in memory between tiles.
        """
        code, (turn,), partial = self.code, self.loop.turns, self.loop.partial
        self.units(turn.units)
        way = TurnCode(self, turn)
        is_first = code.icmp_signed("==", first, code.number(0))
        begun = [
            code.select(is_first, nothing, self.operand(VectorLoad(before, 0, before.dtype)))
            for nothing, before in zip(way.begun(), partial, strict=True)
        ]

        def at_depth(ahead: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            """Writes the work at depth `first` + `ahead`; returns the sums after it."""
            return way.at_depth(code.add(first, ahead), sums, {})

        sums = code.carry(0, code.sub(stop, first), begun, at_depth, runs=True)
        for each, target in zip(sums, partial, strict=True):
            self.store(each, target, self.group)
        with code.when(code.icmp_signed("==", stop, code.number(turn.depth))):
            self.values.update((each.number, value) for each, value in zip(turn.sums, sums, strict=True))
            self.end()

    def end(self) -> None:
        """Writes the elementwise work on units and the stores after the last pass over the fibers."""
        self.units(self.loop.units)
        for operand, target in self.loop.stores:
            self.store(self.operand(operand), target, self.group)

    def units(self, nodes: Computed) -> None:
        """Writes elementwise nodes on the units of the group, and adds their registers to `values`."""
        for number, operands in nodes:
            self.values[number] = self.computed(number, operands, [self.operand(each) for each in operands])

    def computed(self, number: int, operands: Iterable[DeepOperand], values: list[ir.Value]) -> ir.Value:
        """Writes an elementwise node; returns its register. values: the registers of its operands."""
        return pointwise(self.code, self.net.nodes[number], values, [each.dtype for each in operands])

    def operand(self, operand: Operand) -> ir.Value:
        """Returns the register of an operand that is the same at every depth; loads it if necessary."""
        return self.stage.operand(operand, self.row, self.group, self.values)

    def store(self, value: ir.Value, target: Field, place: ir.Value) -> None:
        """Writes a store of a register as vector number `place` of a field (a value of this row)."""
        code, bytes_ = self.code, self.width * target.itemsize
        base = code.at(self.stage.rows.at(code, target.record, self.row), target.offset)
        pointer = code.at(base, code.mul(place, code.number(bytes_)))
        store_vector(code, target.dtype, value, pointer, min(bytes_, target.alignment))

    def turn(self, turn: FiberPass, following: "FiberCode | None" = None) -> None:
        """Writes one pass: a loop over the depth of the fibers. It adds the sums to `values`.

        following: the next step, whose first pass is fused with this one; None for none.
        """
        ways = [TurnCode(self, turn)]
        if following is not None:
            following.units(following.loop.turns[0].units)
            ways.append(TurnCode(following, following.loop.turns[0]))

        def at_depth(depth: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
            """Writes the work at one depth, for all fused passes; returns their sums after it."""
            sums, stored = list[ir.Value](), dict[Field, ir.Value]()
            for way in ways:
                own = partial[len(sums) : len(sums) + len(way.turn.sums)]
                sums += way.at_depth(depth, own, stored)
            return sums

        totals = iter(
            self.code.carry(0, turn.depth, [begun for way in ways for begun in way.begun()], at_depth)
        )
        for way in ways:
            way.own.values.update((each.number, next(totals)) for each in way.turn.sums)


class TurnCode:
    """Writer of one pass: a loop over the depth of the fibers of a group of units of one row."""

    def __init__(self, own: FiberCode, turn: FiberPass) -> None:
        """Writes the loads before the loop of the pass `turn`: operands that are the same at every depth.

        own: the writer of the step, for one group of units.
        """
        self.own, self.turn, code = own, turn, own.code
        sides = [operands for _, operands in turn.nodes] + [each.terms for each in turn.sums]
        operands = dict.fromkeys(operand for side in sides for operand in side)
        self.inside = {number for number, _ in turn.nodes}
        self.fixed = {
            operand: own.operand(operand)
            for operand in operands
            if not isinstance(operand, Along) and not self.is_inside(operand)
        }
        self.streams = {
            each: OperandStream(own, each, turn.depth) for each in operands if isinstance(each, Along)
        }
        self.place = code.mul(own.group, code.number(turn.depth))

    def is_inside(self, operand: DeepOperand) -> TypeGuard[Register]:
        """Tells whether an operand is computed inside the loop, at each depth, and so is in a register."""
        return isinstance(operand, Register) and operand.number in self.inside

    def at_depth(
        self, depth: ir.Value, partial: list[ir.Value], stored: dict[Field, ir.Value]
    ) -> list[ir.Value]:
        """Writes the elementwise work and the stores of one depth; returns the accumulators after it.

        partial: the accumulators before it.
        stored: the registers that the previous step stored at this depth, by field. The stores of this depth
            are added.
        """
        code, values = self.own.code, Values()
        read = {each: stream.at(depth, stored) for each, stream in self.streams.items()}

        def value(operand: DeepOperand) -> ir.Value:
            """Returns the register of an operand at this depth."""
            if self.is_inside(operand):
                return values[operand.number]
            return read[operand] if isinstance(operand, Along) else self.fixed[operand]

        for number, operands in self.turn.nodes:
            values[number] = self.own.computed(number, operands, list(map(value, operands)))
        for operand, target in self.turn.stores:
            stored[target.a_step_later] = value(operand)
            self.own.store(value(operand), target, code.add(self.place, depth))
        return [
            self.added(each, total, [value(term) for term in each.terms])
            for each, total in zip(self.turn.sums, partial, strict=True)
        ]

    def begun(self) -> list[ir.Value]:
        """Returns the accumulators before the loop: for each reduction its neutral element, in a vector."""
        nodes = [self.own.net.nodes[each.number] for each in self.turn.sums]
        return [
            neutral(self.own.code, node.operation, register_type(node.type.dtype, self.own.width))
            for node in nodes
        ]

    def added(self, sum_: FiberSum, total: ir.Value, terms: list[ir.Value]) -> ir.Value:
        """Adds one depth to the accumulator of a reduction: by a fused multiply-add if it has two terms."""
        code, node = self.own.code, self.own.net.nodes[sum_.number]
        if len(terms) == 2:
            return code.fused(terms[0], terms[1], total)
        term = converted(code, terms[0], sum_.terms[0].dtype, node.type.dtype)
        return combine(code, node.operation, node.type.dtype, total, term)


class OperandStream:
    """Loads of an operand that differs from depth to depth of the fibers, for one group of units."""

    def __init__(self, own: FiberCode, operand: Along, depth: int) -> None:
        """Writes the loads before the loop over the depth: the address of the operand, and of its table.

        own, depth: the writer of the step, for one group of units; and the depth (length) of the fibers.
        """
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

    def at(self, depth: ir.Value, stored: dict[Field, ir.Value]) -> ir.Value:
        """Returns the vector at a depth: loaded, unless the step before has stored it there.

        stored: the registers that the step before stored at this depth, by field.
        """
        code, operand = self.code, self.operand
        if isinstance(operand.source, Field) and operand.source in stored:
            return stored[operand.source]
        if operand.how == "element":
            first = code.mul(code.add(self.first, depth), code.number(self.width))
            return self.own.stage.by_element(operand.dtype, self.base, self.table, first)
        if operand.stride is None:
            place = code.read_number(self.table, code.add(self.first, depth))
        else:
            place = code.mul(depth, code.number(operand.stride))
        return self.vector(place, 1 if operand.how == "spread" else self.width)

    def vector(self, place: ir.Value, count: int) -> ir.Value:
        """Loads a vector `place` elements after the base: `count` numbers, or one broadcast to all units."""
        code = self.code
        pointer = code.at(self.base, code.mul(place, code.number(self.itemsize)))
        value = load_vector(code, self.operand.dtype, count, pointer, self.itemsize)
        return value if count == self.width else code.spread(value, self.width)
