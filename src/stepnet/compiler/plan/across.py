"""Operations across extents, as parts of a schedule: values that are repeated, or reduced to one.

expand         repeat     a        -> a a a
expand         last       a        -> 0 0 a
reduce         mean       a b c    -> (a + b + c) / 3

Every target has them for values in its memory (`net/memory.py`). On the CPU most are machine code
(`targets/cpu/running/across.py`).
"""

from dataclasses import dataclass
from typing import Self

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.schedule import Part


@dataclass(frozen=True)
class Across:
    """An operation between two extents.

    operation: "expand" or "reduce".
    how: the reduction, such as "mean"; of an expansion "repeat", or the end at which the value is put,
        "first" or "last", with zeros elsewhere.
    source, result: the types of the two values.
    """

    operation: str
    how: str
    source: Type
    result: Type

    @classmethod
    def of(cls, net: Net, part: Part) -> Self:
        """Returns the operation of a part of the kind "across" of the schedule of a net."""
        assert part.node is not None
        how: str = part.node.attributes.get("how", "repeat")
        return cls(part.node.operation, how, net.type_of(part.reads[0]), net.type_of(part.results[0]))
