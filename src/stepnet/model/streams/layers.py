"""The recurrences that a stream steps, the bottom one first, and the names of their layers."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from stepnet.compiler.values.records import dataclass
from stepnet.errors import named
from stepnet.model.program import StepProgram
from stepnet.model.reading import Reading

Names = tuple[str, ...]


class Stepped(Protocol):
    """A model that a stream can run step by step: an `RNN`, or a graph as one step.

    noun: the word for the model in messages.
    """

    noun: ClassVar[str]

    @property
    def memory(self) -> Any:
        """The `Spec`s of the memory that the recurrence was declared with; None for a graph."""
        ...

    @property
    def known_inputs(self) -> Any:
        """The `Spec`s of inputs, of the latest call or as declared; None before they are known."""
        ...

    @property
    def inputs(self) -> Any:
        """The `Spec`s (features and dtypes) of the inputs that the recurrence was declared with, or None."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the step's own parameters for inputs, memory and parameters, for messages."""
        ...

    @property
    def params(self) -> Any:
        """The parameters of the recurrence, in their structure."""
        ...

    def as_declared(self, inputs: Any) -> Any:
        """Returns inputs with dicts in the declared order, so that their arrays correspond in order."""
        ...

    def program_of(self, inputs: Any, statics: Any) -> StepProgram:
        """Returns the program by which a stream runs a step of the model. inputs, statics: the structures,
        with a `Spec` (features and dtype) for each value.
        """
        ...


@runtime_checkable
class CalledRecurrence(Stepped, Protocol):
    """A recurrence whose steps can each run as a separate call."""

    def read(
        self, sequences: Any, initial: Any, statics: Any, lengths: Any, *, begun: Any = None
    ) -> Reading[Any]:
        """Checks the arguments of a call of the recurrence; returns them with the program that runs it.

        It takes the arguments of `Model.__call__`. A stream makes such a call for each step.
        """
        ...


@dataclass(frozen=True)
class StreamedRecurrence:
    """A single recurrence that a stream steps."""

    rnn: Stepped

    as_one = None

    @property
    def named_recurrences(self) -> list[tuple[Names, Stepped]]:
        """A list of the only recurrence, as a pair (names of its layers, recurrence); the names are empty."""
        return [((), self.rnn)]

    def split(self, value: Any, what: str) -> list[Any]:
        """Returns an argument of a stream as a list with one entry, as there is one recurrence. what: the
        name of the argument; not read.
        """
        return [value]

    def joined(self, values: Sequence[Any]) -> Any:
        """Joins the results of a stream's recurrences: returns the result of the only one."""
        return values[0]


@dataclass(frozen=True)
class Layers:
    """Layers on top of each other that a stream runs step by step.

    by_part: splits an argument, given with its name for messages, into one entry per layer.
    as_one: returns the program of one step of all layers for inputs of these `Spec`s (features and dtypes);
        None for layers that do not run as one step.
    """

    by_part: Callable[[Any, str], Sequence[Any]]
    layers: "tuple[StreamedRecurrence | Layers, ...]"
    as_one: Callable[[Any], StepProgram | None]

    @property
    def named_recurrences(self) -> list[tuple[Names, Stepped]]:
        """All recurrences of the layers, each with the names of the layers that it is in, outermost first."""
        return [
            ((f"layer {index}", *names), rnn)
            for index, layer in enumerate(self.layers)
            for names, rnn in layer.named_recurrences
        ]

    def split(self, value: Any, what: str) -> list[Any]:
        """Splits an argument into one entry per recurrence of the stream; raises `InputError` if it cannot.

        what: the name of the argument in messages.
        """
        values_by_layer: list[Any] = []
        for index, (layer, part) in enumerate(zip(self.layers, self.by_part(value, what), strict=True)):
            with named(f"layer {index}"):
                values_by_layer += layer.split(part, what)
        return values_by_layer

    def joined(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Joins the results of all recurrences in the structure of the layers: a tuple with one entry per
        layer.

        values: a result per recurrence, the bottom layer first.
        """
        values_by_part: list[Any] = []
        for layer in self.layers:
            count = len(layer.named_recurrences)
            values_by_part.append(layer.joined(values[:count]))
            values = values[count:]
        return tuple(values_by_part)
