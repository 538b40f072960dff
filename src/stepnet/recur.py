"""A recurrence of a net, its parts by name.

    recur(sequences..., memories..., others...; body)  ->  outputs..., final memories...

A node has operands and results in a row, and so has its body. What lies where is said here alone: everything
else asks for the sequences, the memories, the others (statics and parameters), the outputs and what follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from stepnet.ir import Builder, Net


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
class Recur:
    """A recurrence: its step-net, how many sequences and memories it has, and how it runs.

    >>> from stepnet.ir import Builder
    >>> from stepnet.types import ROWS, Type
    >>> inside = Builder()
    >>> x, h = (inside.input(Type(ROWS, (2,), "float32"), name) for name in "xh")
    >>> recur = Recur(inside.net([inside.add("add", x, h)] * 2), sequence_count=1, memory_count=1)
    >>> recur.sequences, recur.memories, recur.outputs, recur.following
    ([0], [1], [2], [2])
    >>> recur.given(["frames", "zeros"])
    Given(sequences=['frames'], memories=['zeros'], others=[])
    """

    body: "Net"
    sequence_count: int
    memory_count: int
    reverse: bool = False
    unroll: int = 1

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Recur":
        """The recurrence of a node with these attributes."""
        return cls(
            attributes["body"],
            attributes["sequences"],
            attributes["memories"],
            attributes.get("reverse", False),
            attributes.get("unroll", 1),
        )

    # ---- numbers of the body's nodes

    @property
    def sequences(self) -> list[int]:
        """The inputs of the body that are a step's slices of the sequences."""
        return self.given(self.body.inputs).sequences

    @property
    def memories(self) -> list[int]:
        """The inputs of the body that are the memories ahead of a step."""
        return self.given(self.body.inputs).memories

    @property
    def others(self) -> list[int]:
        """The inputs of the body that are the same at every step: statics and parameters."""
        return self.given(self.body.inputs).others

    @property
    def outputs(self) -> list[int]:
        """The results of the body that are a step's outputs."""
        return self.gives(self.body.results).outputs

    @property
    def following(self) -> list[int]:
        """The results of the body that are the memories behind a step."""
        return self.gives(self.body.results).memories

    # ---- anything that lies as operands or results do

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

    # ---- nodes

    def add(self, builder: "Builder", operands: Iterable[int], name: str = "", source: str = "") -> int:
        """The number of a new node that is this recurrence."""
        unroll = {"unroll": self.unroll} if self.unroll > 1 else {}
        return builder.add(
            "recur",
            *operands,
            name=name,
            source=source,
            body=self.body,
            sequences=self.sequence_count,
            memories=self.memory_count,
            reverse=self.reverse,
            **unroll,
        )

    def add_results(self, builder: "Builder", operands: Iterable[int]) -> Gives:
        """The numbers of the results of a new node that is this recurrence."""
        number = self.add(builder, operands)
        count = len(builder.nodes[number].types)
        return self.gives([builder.add("result", number, of=place) for place in range(count)])
