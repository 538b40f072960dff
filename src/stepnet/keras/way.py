"""How a layer goes over the steps of its sequences."""

from dataclasses import dataclass
from typing import Any

UNROLLED = 4
"""How many steps stand one behind the other in the loop of a layer with unroll=True."""


Results = tuple[Any, Any, Any]
"""The last output, the outputs, and the last states."""


@dataclass(frozen=True)
class Way:
    """How a layer goes over the steps of its sequences."""

    training: bool
    reverse: bool
    unroll: bool

    @property
    def options(self) -> dict[str, Any]:
        """The options of the recurrence."""
        return {"reverse": self.reverse, "unroll": UNROLLED if self.unroll else 1}

    @classmethod
    def of(cls, layer: Any, training: bool) -> "Way":
        """The way of a layer."""
        return cls(training, layer.go_backwards, layer.unroll)
