"""What lies where among the operands and the results of a recurrence.

    recur(sequences..., memories..., others...; body)  ->  outputs..., final memories...

A node has operands and results in a row, and so has its body. That order is said here alone: everything else
asks for the sequences, the memories, the others (statics and parameters), the outputs and what follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Given(NamedTuple):
    """What a recurrence is given: one entry for each sequence, memory and other operand."""

    sequences: list[Any]
    memories: list[Any]
    others: list[Any]


class Gives(NamedTuple):
    """What a recurrence gives: one entry for each output and each memory."""

    outputs: list[Any]
    memories: list[Any]


@dataclass(frozen=True)
class Order:
    """The order in which operands and results lie: so many sequences, then so many memories, then the rest.

    >>> order = Order(sequence_count=1, memory_count=1)
    >>> order.given(["frames", "zeros", "weights"])
    Given(sequences=['frames'], memories=['zeros'], others=['weights'])
    >>> order.gives(["outputs", "last"])
    Gives(outputs=['outputs'], memories=['last'])
    """

    sequence_count: int
    memory_count: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Order":
        """The order of a node with these attributes."""
        return cls(attributes["sequences"], attributes["memories"])

    def given(self, operands: Sequence[Any]) -> Given:
        """What lies as the operands do, by what it is."""
        first = self.sequence_count + self.memory_count
        return Given(
            list(operands[: self.sequence_count]),
            list(operands[self.sequence_count : first]),
            list(operands[first:]),
        )

    def gives(self, results: Sequence[Any]) -> Gives:
        """What lies as the results do, by what it is."""
        first = len(results) - self.memory_count
        return Gives(list(results[:first]), list(results[first:]))
