"""Reductions of long vectors that the blocks of a group share: each reduces the elements of its units, they
meet, and each reduces what all have found.

    block 0    highest of elements 0 1 4 5 8 9      -> number, place \\
    block 1    highest of elements 2 3 6 7          -> number, place  -> of all, for each block

A highest number, and its first place, are the same in any order.
"""

import math

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import ElementWriter, RowOfThread, RowShare, literal_of
from stepnet.compiler.targets.cuda.entries.places import Place, over_lanes
from stepnet.compiler.targets.cuda.entries.reductions import ReductionWriter
from stepnet.compiler.targets.cuda.entries.statements import Statement
from stepnet.compiler.targets.cuda.grid.share import GridShare
from stepnet.compiler.values.records import dataclass

Value = ir.Value
NONE = 2**62
"""The place of no number, behind all others."""


@dataclass(frozen=True)
class FoundPlaces:
    """Addresses of the extremes that all blocks have found: [rows][warps of a row, of all blocks].

    numbers, places: the addresses of the numbers, and of their places. count: for a row.
    """

    numbers: Value
    places: Value
    count: int


class SplitReductionWriter(ReductionWriter):
    """Writer of reductions that blocks share. grid: the share of the block. rank: its number in the group."""

    def __init__(
        self, writer: ElementWriter, share: RowShare, row: RowOfThread, grid: GridShare, rank: Value
    ) -> None:
        """Takes the writer of the entry, the elements of the thread, its row, and the share of the block."""
        super().__init__(writer, share, row)
        self.grid, self.rank = grid, rank
        self.warp, self.lane = self.code.divided(self.first, LANES)

    def write_found(self, operand: int, to: FoundPlaces, first: Value) -> None:
        """Writes the extremes that the warps of a block find among its units. first: the first unit."""
        code, grid, type_ = self.code, self.grid, self.net.type_of(operand)
        count = grid.own_columns(type_.size)

        def turn(index: Value, best: list[Value]) -> list[Value]:
            """Writes the combination with one more element."""
            part, mine = code.divided(code.add(index, self.first), grid.own)
            unit = code.summed(first, mine)
            flat = code.summed(code.multiplied(part, grid.units), unit)
            is_there = code.icmp_signed("<", unit, integer(grid.units))
            is_there = code.and_(is_there, code.icmp_signed("<", flat, integer(type_.size)))
            flat = code.select(is_there, flat, integer(0))
            self.writer.begin()
            value = self.writer.element(operand, Place(code, type_.shape, flat), self.row)
            value = code.select(is_there, value, literal_of(type_.dtype, -math.inf))
            return self.first_highest(best, [value, code.select(is_there, flat, integer(NONE))])

        lowest = [literal_of(type_.dtype, -math.inf), integer(NONE)]
        stop = code.sub(integer(count), self.first)
        best = code.carry(0, stop, lowest, turn, step=self.step)
        self.writer.begin()
        best = over_lanes(code, best, self.first_highest)
        warps = self.step // LANES
        place = code.summed(code.multiplied(self.rank, warps), self.warp)
        place = code.summed(code.multiplied(self.row.place, to.count), place)
        with code.when(code.icmp_signed("==", self.lane, integer(0))):
            code.write_element(type_.dtype, best[0], to.numbers, place)
            code.write_element("int64", best[1], to.places, place)

    def write_all(self, statement: Statement, of: FoundPlaces) -> None:
        """Writes the result of the parts that all blocks have found, by the first warp of each row."""
        code, node = self.code, self.net.nodes[statement.number]
        dtype = self.net.type_of(node.inputs[0]).dtype
        ahead = code.multiplied(self.row.place, of.count)

        def turn(index: Value, best: list[Value]) -> list[Value]:
            """Writes the combination with the part that one more warp has found."""
            place = code.summed(ahead, code.summed(index, self.lane))
            value = code.read_element(dtype, of.numbers, place)
            return self.first_highest(best, [value, code.read_element("int64", of.places, place)])

        lowest = [literal_of(dtype, -math.inf), integer(NONE)]
        with code.when(code.icmp_signed("==", self.warp, integer(0))):
            best = code.carry(0, code.sub(integer(of.count), self.lane), lowest, turn, step=LANES)
            best = over_lanes(code, best, self.first_highest)
            with code.when(code.icmp_signed("==", self.lane, integer(0))):
                slot = self.writer.slots[statement.number]
                kept = best[1] if node.operation == "argmax" else best[0]
                self.writer.write_slot(kept, slot, self.row.place, integer(0))
