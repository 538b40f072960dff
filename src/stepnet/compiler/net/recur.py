"""The order of the operands and results of a recurrence.

    recur(sequences..., memories..., others...; body)  ->  outputs..., final memories...

The order is defined here only. All other code asks for the sequences, the memories, the others (statics and
parameters), the outputs and the final memories by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepnet.compiler.values.records import dataclass


class OperandsByKind(NamedTuple):
    """The operands of a recurrence by kind: one entry for each sequence, memory and other operand."""

    sequences: list[Any]
    memories: list[Any]
    others: list[Any]


class ResultsByKind(NamedTuple):
    """The results of a recurrence by kind: one entry for each output and each memory."""

    outputs: list[Any]
    memories: list[Any]


@dataclass(frozen=True)
class Order:
    """The order of operands (sequences, memories, others) and of results (outputs, final memories).

    >>> order = Order(sequence_count=1, memory_count=1)
    >>> order.operands_by_kind(["frames", "zeros", "weights"])
    OperandsByKind(sequences=['frames'], memories=['zeros'], others=['weights'])
    >>> order.results_by_kind(["outputs", "last"])
    ResultsByKind(outputs=['outputs'], memories=['last'])
    """

    sequence_count: int
    memory_count: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Order":
        """Makes the order of a recurrence's operands and results from the attributes of a `recur` node."""
        return cls(attributes["sequences"], attributes["memories"])

    def operands_by_kind(self, operands: Sequence[Any]) -> OperandsByKind:
        """Divides a list with one entry for each operand into sequences, memories and others."""
        first = self.sequence_count + self.memory_count
        return OperandsByKind(
            list(operands[: self.sequence_count]),
            list(operands[self.sequence_count : first]),
            list(operands[first:]),
        )

    def results_by_kind(self, results: Sequence[Any]) -> ResultsByKind:
        """Divides a list with one entry for each result into outputs and memories."""
        first = len(results) - self.memory_count
        return ResultsByKind(list(results[:first]), list(results[first:]))
