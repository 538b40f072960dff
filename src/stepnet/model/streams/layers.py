"""The recurrences that a stream runs, the bottom one first, and what their arguments are called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stepnet.errors import named
from stepnet.model.program import StepProgram
from stepnet.model.reading import Reading

Names = tuple[str, ...]


class Stepped(Protocol):
    """A recurrence that a stream steps: an `RNN`, or a graph as one step."""

    @property
    def inputs(self) -> Any:
        """The `Spec`s of the inputs that it was declared with, or None."""
        ...

    @property
    def params(self) -> Any:
        """The parameters."""
        ...

    def as_declared(self, inputs: Any) -> Any:
        """The inputs with their dicts in the declared order."""
        ...

    def program_of(self, inputs: Any, statics: Any) -> StepProgram:
        """The program for inputs and statics of these `Spec`s."""
        ...


@runtime_checkable
class CalledRecurrence(Stepped, Protocol):
    """A recurrence each of whose steps may be a call of its own."""

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool = False,
        *,
        mask: Any = None,
        masked: str = "repeat",
        begun: Any = None,
        time_major: bool = False,
    ) -> Reading[Any]:
        """The arguments of a call, checked."""
        ...


@dataclass(frozen=True)
class StreamedRecurrence:
    """One recurrence. Its arguments and results are its own."""

    rnn: Stepped

    @property
    def named(self) -> list[tuple[Names, Stepped]]:
        """The recurrence, with no name."""
        return [((), self.rnn)]

    def split(self, value: Any, what: str) -> list[Any]:
        """The argument."""
        return [value]

    def together(self, values: Sequence[Any]) -> Any:
        """The result."""
        return values[0]


@dataclass(frozen=True)
class Layers:
    """Layers on top of each other. by_part: takes an argument apart into those of the layers."""

    by_part: Callable[[Any, str], Sequence[Any]]
    layers: "tuple[StreamedRecurrence | Layers, ...]"

    @property
    def named(self) -> list[tuple[Names, Stepped]]:
        """All recurrences, with the places of the layers that they are in, outermost first."""
        return [
            ((f"layer {place}", *names), rnn)
            for place, layer in enumerate(self.layers)
            for names, rnn in layer.named
        ]

    def split(self, value: Any, what: str) -> list[Any]:
        """The argument of each recurrence; raises `InputError` unless there is one for each layer."""
        made: list[Any] = []
        for place, (layer, part) in enumerate(zip(self.layers, self.by_part(value, what), strict=True)):
            with named(f"layer {place}"):
                made += layer.split(part, what)
        return made

    def together(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The results of all recurrences as those of the layers."""
        made: list[Any] = []
        for layer in self.layers:
            count = len(layer.named)
            made.append(layer.together(values[:count]))
            values = values[count:]
        return tuple(made)
