"""Writes the kernel that computes constants from parameters (see `constants.py`)."""

from math import prod
from typing import Any

from llvmlite import ir

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.targets.cpu.writing.code import I1, integer
from stepnet.compiler.targets.cuda.arrays.constants import THREADS
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.entries.elements import (
    ElementWriter,
    RowOfThread,
    Source,
    combined,
    zero,
)
from stepnet.compiler.targets.cuda.entries.places import Place, PlaceWriter
from stepnet.compiler.targets.cuda.entries.statements import reduced_count

NO_ROW = RowOfThread(integer(0), integer(0), integer(0), ir.Constant(I1, 1), integer(0))
"""The entry of elements that belong to no sequence."""


class ConstantWriter(ElementWriter):
    """Writer of the elements of constants."""

    def written(self, number: int, place: Place, row: RowOfThread, own: bool) -> ir.Value:
        """Writes an element of a node that is not known yet: of a concatenation, that of one of its parts."""
        node = self.net.nodes[number]
        if node.operation == "sum" and number not in self.sources:
            return self.total(node, place, row)
        if node.operation != "concatenate" or number in self.sources:
            return super().written(number, place, row, own)
        code = self.code
        axis: int = node.attributes["axis"] % len(node.type.shape)
        at: Any = place.coordinates[axis]
        value: Any = None
        begin = 0
        for operand in node.inputs:
            shape: tuple[int, ...] = self.net.type_of(operand).shape
            if not prod(shape):
                continue
            inside = code.sub(at, integer(begin))
            is_behind = code.icmp_signed(">=", at, integer(begin))
            is_ahead = code.icmp_signed("<", at, integer(begin + shape[axis]))
            is_inside = code.and_(is_behind, is_ahead)
            coordinates = list(place.coordinates)
            coordinates[axis] = code.select(is_inside, inside, integer(0))
            element = self.element(operand, place.at(shape, coordinates), row)
            value = element if value is None else code.select(is_inside, element, value)
            begin += shape[axis]
        assert value is not None
        return value

    def total(self, node: Node, place: Place, row: RowOfThread) -> ir.Value:
        """Writes a sum of elements, one after the other."""

        def with_next(term: ir.Value, before: list[ir.Value]) -> list[ir.Value]:
            """Writes the sum with one more element."""
            return [combined(self.code, "sum", before[0], self.reduced_operand(node, place, term, row))]

        (found,) = self.code.carry(0, reduced_count(self.net, node), [zero(node.type.dtype)], with_next)
        return found


def constants_code(net: Net, sources: tuple[int, ...], computed: tuple[int, ...]) -> DeviceCode:
    """Writes the kernel that computes nodes of a net, which are constants, from others.

    Its arguments are the arrays of `sources`, the parameters, then those of `computed`.
    """
    names = [*(f"r{n}" for n in sources), *(f"w{n}" for n in computed)]
    code = PlaceWriter(f"{len(computed)} constants", names)
    types = {number: net.type_of(number) for number in sources}
    read = {n: Source(code.pointer(f"r{n}"), type_.dtype, type_.size, "const") for n, type_ in types.items()}
    writer = ConstantWriter(code, net, read, {})
    for number in computed:
        type_ = net.type_of(number)
        writer.begin()
        with code.over_all(type_.size) as flat:
            value = writer.element(number, Place(code, type_.shape, flat), NO_ROW)
            code.write_element(type_.dtype, value, code.pointer(f"w{number}"), flat)
    return code.finished(THREADS)
