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
from dataclasses import field, replace
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
from stepnet.compiler.values.records import dataclass

Values = dict[int, ir.Value]


def emit_fibers(stage: StageCode, loop: FiberLoop) -> None:
    """Writes one step of the work on fibers (matrix elements summed for a unit), for this thread's units."""
    with stage.own_groups(groups_of(loop)) as (row, group):
        emit_group(stage, loop, row, group)


def groups_of(loop: FiberLoop) -> int:
    """Returns the number of groups of units in a row; threads divide the groups, of `loop.width` units."""
    return -(-loop.size // loop.width)


def emit_group(stage: StageCode, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes one step of the work on fibers for a group of units (results of sums, some vectors of them) of a
    row. A fiber is the row of matrix elements that are summed to one result, a unit.

    loop: the work: loops over the elements, and elementwise work on the units. row, group: the indices of the
        row and of the group.
    """
    writer = FiberCode(stage, loop, row, group)
    writer.first_pass()
    writer.rest()


def emit_group_steps(steps: ConsecutiveSteps, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes consecutive steps of the work on fibers (elements summed to one result, a unit) of a group of
    units of a row. The steps are tiled over the length of the fibers, or each is fused with the beginning of
    the next, or they run one after the other, as `loop` says. Tiles and fusion keep elements in the cache or
    in registers. row, group: the indices of the row and of the group of units.
    """
    if loop.tile:
        emit_tiles(steps, loop, row, group)
    elif loop.begins_ahead:
        emit_ahead(steps, loop, row, group)
    else:
        steps.for_each_step(lambda stage: emit_group(stage, loop, row, group))


def emit_ahead(steps: ConsecutiveSteps, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes consecutive steps of work on fibers (elements summed to one result, a unit) of a group of units.
    The first loop over the elements in each step is fused with the last of the step before, so that each
    element is loaded once.
    """
    code = steps.code
    first_step = FiberCode(steps.first, loop, row, group)
    first_step.first_pass()
    numbers = sorted(first_step.values)

    def registers_by_node(values: list[ir.Value]) -> Values:
        """Returns the registers that the loop carries, by node. values: two buffers, then the registers."""
        return dict(zip(numbers, values[2:], strict=True))

    def step_with_next(ahead: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        """Writes a step, fused with the first pass over elements of the next; returns the values to carry.

        ahead: the index of the step. values: its two memory buffers, and the registers of its first pass.
        """
        memories, exchanged = values[:2], values[1::-1]
        writer = FiberCode(steps.at(ahead, memories), loop, row, group, registers_by_node(values))
        following = FiberCode(steps.at(code.add(ahead, code.number(1)), exchanged), loop, row, group)
        writer.rest(following)
        return [*exchanged, *(following.values[number] for number in numbers)]

    last = code.sub(steps.count, code.number(1))
    values = code.carry(0, last, [*steps.memories, *(first_step.values[n] for n in numbers)], step_with_next)
    FiberCode(steps.at(last, values[:2]), loop, row, group, registers_by_node(values)).rest()


def emit_tiles(steps: ConsecutiveSteps, loop: FiberLoop, row: ir.Value, group: ir.Value) -> None:
    """Writes consecutive steps of a group of units, tiled over the depth (length) of its fibers (elements
    summed to one result, a unit). A tile, which fits the L1 cache, runs through all steps before the next
    begins.
    """
    code, depth = steps.code, loop.passes[0].depth
    with code.loop(code.number(0), code.number(depth), loop.tile) as first:
        stop = code.smaller(code.add(first, code.number(loop.tile)), code.number(depth))
        steps.for_each_step(lambda stage: FiberCode(stage, loop, row, group).tile(first, stop))


@dataclass
class FiberCode:
    """Writer of the code of one step of work on fibers (matrix elements summed for one unit), for one group
    of units of one row. values: the registers computed so far for the units of the group, by node number.
    """

    stage: StageCode
    loop: FiberLoop
    row: ir.Value
    group: ir.Value
    values: Values = field(default_factory=Values)

    def __post_init__(self) -> None:
        """Makes vectors as wide as a group of units, so that loads and stores take all units of the group."""
        self.stage = replace(self.stage, width=self.loop.width)
        self.code, self.width, self.net = self.stage.code, self.stage.width, self.stage.net

    def first_pass(self) -> None:
        """Writes the first loop of a step over fiber elements, and the elementwise work ahead of it."""
        self.units(self.loop.passes[0].units)
        self.write_pass(self.loop.passes[0])

    def rest(self, following: "FiberCode | None" = None) -> None:
        """Writes the rest of a step, after its first pass over the fibers (elements summed to one result, a
        unit): the other passes, the work on units and the stores.

        following: the next step, whose first pass is fused with the last pass of this step; None for none.
        """
        for fiber_pass in self.loop.passes[1:]:
            self.units(fiber_pass.units)
            is_last = fiber_pass is self.loop.passes[-1]
            self.write_pass(fiber_pass, following if is_last else None)
        self.end()

    def tile(self, first: ir.Value, stop: ir.Value) -> None:
        """Writes a tile of a step's only loop over the fibers (elements summed to one result, a unit): the
        elements at depths (positions in the fiber) `first` to `stop` - 1. The sums so far are kept in memory
        between tiles; after the last tile the rest of the step follows.
        """
        code, (only_pass,), partial = self.code, self.loop.passes, self.loop.partial
        self.units(only_pass.units)
        pass_code = PassCode(self, only_pass)
        is_first = code.icmp_signed("==", first, code.number(0))
        initial = [
            code.select(is_first, neutral_sums, self.operand(VectorLoad(stored_sums, 0, stored_sums.dtype)))
            for neutral_sums, stored_sums in zip(pass_code.initial_sums(), partial, strict=True)
        ]

        def at_depth(ahead: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            """Writes the work on the elements at depth `first` + `ahead`; returns the sums after it."""
            return pass_code.at_depth(code.add(first, ahead), sums, {})

        sums = code.carry(0, code.sub(stop, first), initial, at_depth, runs=True)
        for value, target in zip(sums, partial, strict=True):
            self.store(value, target, self.group)
        with code.when(code.icmp_signed("==", stop, code.number(only_pass.depth))):
            self.values.update(
                (fiber_sum.number, value) for fiber_sum, value in zip(only_pass.sums, sums, strict=True)
            )
            self.end()

    def end(self) -> None:
        """Writes the end of a step, after its last loop over fibers: elementwise work and stores."""
        self.units(self.loop.units)
        for operand, target in self.loop.stores:
            self.store(self.operand(operand), target, self.group)

    def units(self, nodes: Computed) -> None:
        """Writes code for elementwise nodes with one value per unit (result of a sum) of the group of units
        that is computed together, and puts their registers into `self.values`. nodes: pairs of a node's
        number and its operands, in order of computation.
        """
        for number, operands in nodes:
            self.values[number] = self.computed(
                number, operands, [self.operand(operand) for operand in operands]
            )

    def computed(self, number: int, operands: Iterable[DeepOperand], values: list[ir.Value]) -> ir.Value:
        """Writes the code of an elementwise node; returns the register of its result.

        number: the number of the node. operands, values: its operands, whose dtypes are needed, and their
            registers.
        """
        return pointwise(self.code, self.net.nodes[number], values, [operand.dtype for operand in operands])

    def operand(self, operand: Operand) -> ir.Value:
        """Returns the register of an operand that a fiber's elements share; loads it if necessary."""
        return self.stage.operand(operand, self.row, self.group, self.values)

    def store(self, value: ir.Value, target: Field, element: ir.Value) -> None:
        """Writes a store of a register as vector number `element` of the field `target` of this row."""
        code, bytes_ = self.code, self.width * target.itemsize
        base = code.at(self.stage.rows.at(code, target.record, self.row), target.offset)
        pointer = code.at(base, code.mul(element, code.number(bytes_)))
        store_vector(code, target.dtype, value, pointer, min(bytes_, target.alignment))

    def write_pass(self, fiber_pass: FiberPass, following: "FiberCode | None" = None) -> None:
        """Writes one pass: a loop over the elements of the fibers (each summed to one result, a unit). The
        registers of the sums are then in `self.values`, by node.

        following: the next step, whose first pass is fused with this one; None for none.
        """
        pass_codes = [PassCode(self, fiber_pass)]
        if following is not None:
            following.units(following.loop.passes[0].units)
            pass_codes.append(PassCode(following, following.loop.passes[0]))

        def at_depth(depth: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
            """Writes the work of all fused passes (loops over fibers, the matrix elements summed to one
            result, a unit) on the elements at one depth; returns the new sums. partial: the sums before.
            """
            sums, stored = list[ir.Value](), dict[Field, ir.Value]()
            for pass_code in pass_codes:
                accumulators = partial[len(sums) : len(sums) + len(pass_code.fiber_pass.sums)]
                sums += pass_code.at_depth(depth, accumulators, stored)
            return sums

        initial = [accumulator for pass_code in pass_codes for accumulator in pass_code.initial_sums()]
        totals = iter(self.code.carry(0, fiber_pass.depth, initial, at_depth))
        for pass_code in pass_codes:
            pass_code.writer.values.update(
                (fiber_sum.number, next(totals)) for fiber_sum in pass_code.fiber_pass.sums
            )


class PassCode:
    """Writer of one pass: a loop over the elements of the fibers (summed for a unit) of a group of units."""

    def __init__(self, writer: FiberCode, fiber_pass: FiberPass) -> None:
        """Writes the code ahead of the loop over the fibers (elements summed to one result, a unit): loads of
        operands that all elements share. writer, fiber_pass: the writer of the step for one group of units,
        and the pass (the loop).
        """
        self.writer, self.fiber_pass, code = writer, fiber_pass, writer.code
        operand_lists = [operands for _, operands in fiber_pass.nodes] + [
            fiber_sum.terms for fiber_sum in fiber_pass.sums
        ]
        operands = dict.fromkeys(operand for operand_list in operand_lists for operand in operand_list)
        self.inside = {number for number, _ in fiber_pass.nodes}
        self.invariant = {
            operand: writer.operand(operand)
            for operand in operands
            if not isinstance(operand, Along) and not self.is_inside(operand)
        }
        self.streams = {
            operand: OperandStream(writer, operand, fiber_pass.depth)
            for operand in operands
            if isinstance(operand, Along)
        }
        self.start = code.mul(writer.group, code.number(fiber_pass.depth))

    def is_inside(self, operand: DeepOperand) -> TypeGuard[Register]:
        """Tells whether an operand is computed at each depth of the loop, and so is in a register."""
        return isinstance(operand, Register) and operand.number in self.inside

    def at_depth(
        self, depth: ir.Value, partial: list[ir.Value], stored: dict[Field, ir.Value]
    ) -> list[ir.Value]:
        """Writes the work on the elements at one depth (position in the fibers, whose elements are summed to
        one result, a unit), and their stores; returns the accumulators after it.

        partial: the accumulators before it.
        stored: the registers that the previous step stored at this depth, by field. The stores of this depth
            are added.
        """
        code, values = self.writer.code, Values()
        read = {operand: stream.at(depth, stored) for operand, stream in self.streams.items()}

        def value(operand: DeepOperand) -> ir.Value:
            """Returns the register of an operand at one depth of the fibers (elements summed to one result, a
            unit): computed at it, loaded at it, or loaded before the loop.
            """
            if self.is_inside(operand):
                return values[operand.number]
            return read[operand] if isinstance(operand, Along) else self.invariant[operand]

        for number, operands in self.fiber_pass.nodes:
            values[number] = self.writer.computed(number, operands, list(map(value, operands)))
        for operand, target in self.fiber_pass.stores:
            stored[target.a_step_later] = value(operand)
            self.writer.store(value(operand), target, code.add(self.start, depth))
        return [
            self.accumulated(fiber_sum, total, [value(term) for term in fiber_sum.terms])
            for fiber_sum, total in zip(self.fiber_pass.sums, partial, strict=True)
        ]

    def initial_sums(self) -> list[ir.Value]:
        """Returns the accumulators before a loop over fibers: the neutral element of each reduction, in a
        vector.
        """
        nodes = [self.writer.net.nodes[fiber_sum.number] for fiber_sum in self.fiber_pass.sums]
        return [
            neutral(self.writer.code, node.operation, register_type(node.type.dtype, self.writer.width))
            for node in nodes
        ]

    def accumulated(self, sum_: FiberSum, total: ir.Value, terms: list[ir.Value]) -> ir.Value:
        """Writes one step of a sum along fibers, the lines of a matrix memory along the axis that is summed
        over: the addition of the terms at one depth to the accumulator `total`; returns the new one.

        Two terms are factors of a fused multiply-add; one term is combined with `total` by the operation.
        """
        code, node = self.writer.code, self.writer.net.nodes[sum_.number]
        if len(terms) == 2:
            return code.fused(terms[0], terms[1], total)
        term = converted(code, terms[0], sum_.terms[0].dtype, node.type.dtype)
        return combine(code, node.operation, node.type.dtype, total, term)


class OperandStream:
    """Loads of an operand with a value for each fiber element (summed for a unit), for a group of units."""

    def __init__(self, writer: FiberCode, operand: Along, depth: int) -> None:
        """Writes the code ahead of the loop over the elements of fibers (matrix elements summed to one
        result, a unit): the addresses of the operand and its table.

        writer, depth: the writer of the step, for one group of units; and the depth (length) of the fibers.
        """
        self.writer, self.operand, self.code, self.width = writer, operand, writer.code, writer.width
        code, stage, source = writer.code, writer.stage, operand.source
        if isinstance(source, Field):
            self.base = code.at(stage.rows.at(code, source.record, writer.row), source.offset)
        else:
            self.base = code.at(stage.constants, source)
        self.itemsize = np.dtype(operand.dtype).itemsize
        self.table = code.at(stage.constants, operand.offset)
        if operand.stride is None:
            self.first = code.mul(writer.group, code.number(depth))
        else:
            start = code.read_number(self.table, writer.group)
            self.base = code.at(self.base, code.mul(start, code.number(self.itemsize)))

    def at(self, depth: ir.Value, stored: dict[Field, ir.Value]) -> ir.Value:
        """Returns the operand's vector at a depth (position in the fibers, whose elements are summed to one
        result, a unit), found by its table or a constant stride: loaded, unless the step before has stored it
        there.

        stored: the registers that the step before stored at this depth, by field.
        """
        code, operand = self.code, self.operand
        if isinstance(operand.source, Field) and operand.source in stored:
            return stored[operand.source]
        if operand.how == "element":
            first = code.mul(code.add(self.first, depth), code.number(self.width))
            return self.writer.stage.by_element(operand.dtype, self.base, self.table, first)
        if operand.stride is None:
            element = code.read_number(self.table, code.add(self.first, depth))
        else:
            element = code.mul(depth, code.number(operand.stride))
        return self.vector(element, 1 if operand.how == "spread" else self.width)

    def vector(self, element: ir.Value, count: int) -> ir.Value:
        """Loads the vector of the operand of a loop over fibers (elements summed to one result, a unit), from
        its element `element` on: `count` numbers, or one that is broadcast.
        """
        code = self.code
        pointer = code.at(self.base, code.mul(element, code.number(self.itemsize)))
        value = load_vector(code, self.operand.dtype, count, pointer, self.itemsize)
        return value if count == self.width else code.spread(value, self.width)
