"""What an engine with gradients of its own implements; `pairs.py` chooses between such engines."""

from collections.abc import Sequence
from typing import Protocol

from stepnet.engines.base import Array, Call
from stepnet.plan.plan import Plan


class Pair(Protocol):
    """The native gradient of one recurrence on an engine: a forward pass that saves what the backward pass
    reads.

    Arrays are those of the net's inputs, in their order; None is a memory of zeros. A call has no arrays, and
    its sequences are those of the net.
    """

    @property
    def text(self) -> str:
        """A description of it."""
        ...

    def forward(self, arrays: Sequence[Array | None], call: Call) -> tuple[list[Array], Array]:
        """The results in the net's order, and the saved values, as bytes."""
        ...

    def backward(
        self, arrays: Sequence[Array | None], cotangents: Sequence[Array], kept: Array, call: Call
    ) -> list[Array]:
        """The gradients of all inputs, for the cotangents of all results."""
        ...

    def kept_bytes(self, rows: int, steps: int) -> int:
        """The number of bytes saved for this many sequences of this many steps."""
        ...


class Pairs(Protocol):
    """The native gradients of an engine: for recurrences, not for the work between them."""

    @property
    def between(self) -> str:
        """The engine that runs the work between recurrences by default."""
        ...

    def pair(self, plan: Plan) -> Pair | str:
        """The native gradient of a recurrence, or the reason why there is none."""
        ...
