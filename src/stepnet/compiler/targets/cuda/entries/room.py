"""The room of stored values: where each lies in the shared memory of a block, or in its scratch memory."""

from collections.abc import Mapping
from math import prod

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cuda.entries.elements import ValueSlot
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.entries.statements import Statements
from stepnet.compiler.values.records import dataclass

Value = ir.Value
ALIGNMENT = 16


@dataclass(frozen=True)
class StoredValue:
    """A value that is stored for each row of a block.

    number: its node. part: 0 for the value itself; for the vectors of a left side of int8 products 1 for
        their factors, 2 for their scales.
    offset: of its first byte. is_shared: whether that is in shared memory.
    """

    number: int
    part: int
    dtype: str
    size: int
    offset: int = 0
    is_shared: bool = True


@dataclass(frozen=True)
class ValueRoom:
    """The stored values of a block with their places, and the bytes of both memories."""

    values: tuple[StoredValue, ...]
    shared: int
    scratch: int

    def slots(
        self, code: PlaceWriter, scratch: Value
    ) -> tuple[Mapping[int, ValueSlot], Mapping[int, list[ValueSlot]]]:
        """Writes the addresses of the stored values: of nodes, and of the scales of left sides.

        scratch: the address of the block's scratch memory.
        """
        whole, scales = dict[int, ValueSlot](), dict[int, list[ValueSlot]]()
        for value in self.values:
            pointer = code.shared(value.offset) if value.is_shared else code.at(scratch, value.offset)
            slot = ValueSlot(pointer, value.dtype, value.size)
            if value.part:
                scales.setdefault(value.number, []).append(slot)
            else:
                whole[value.number] = slot
        return whole, scales


def stored_values(statements: Statements) -> list[StoredValue]:
    """Lists the values of an entry that are stored, without places."""
    net, found = statements.net, list[StoredValue]()
    for number in sorted(statements.stored | statements.memories.keys()):
        type_ = net.type_of(number)
        found.append(StoredValue(number, 0, type_.dtype, type_.size))
    for number in sorted(statements.scaled):
        type_ = net.type_of(number)
        found += [StoredValue(number, part, type_.dtype, prod(type_.shape[:-1])) for part in (1, 2)]
    return found


def room(statements: Statements, rows: int, shared: int) -> ValueRoom:
    """Finds the places of the stored values of a block: in shared memory, the smallest first, as long as
    there is room.

    rows: of a block. shared: the most bytes of shared memory.
    """
    placed, used, scratch = list[StoredValue](), 0, 0
    listed = stored_values(statements)
    for value in sorted(listed, key=lambda v: v.size * np.dtype(v.dtype).itemsize):
        count = -(-rows * value.size * np.dtype(value.dtype).itemsize // ALIGNMENT) * ALIGNMENT
        fits = used + count <= shared
        place = StoredValue(
            value.number, value.part, value.dtype, value.size, used if fits else scratch, fits
        )
        placed.append(place)
        used, scratch = (used + count, scratch) if fits else (used, scratch + count)
    return ValueRoom(tuple(sorted(placed, key=lambda v: (v.number, v.part))), used, scratch)
