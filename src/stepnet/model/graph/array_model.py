"""A model of operators in a file, whose inputs are arrays with axes of known kinds: sequences, steps or
features.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, ClassVar, cast

import numpy as np

from stepnet.compiler.net.windows import own_axis, own_name
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, ModelError, StepnetError, printable
from stepnet.importers.axes import AxesError, axes_of
from stepnet.importers.example_steps import FEWEST, only_at
from stepnet.importers.padding import MISFITS
from stepnet.importers.placed import LENGTHS, Placed, Unusable, check_apart
from stepnet.importers.shaping import as_turned
from stepnet.importers.sizes import STEPS
from stepnet.layout.options import option
from stepnet.model.graph.dtypes import check_dtypes
from stepnet.ragged.positions import Positions

EXPORT = "export with dynamic shapes (dynamic_shapes= or dynamic_axes=)"
"""The way to write a file of PyTorch with an open number of steps."""


@dataclass(frozen=True)
class ModelInput:
    """An input of a model whose inputs are arrays.

    name: the name of the input.
    axes: the letters of its axes; "" for a single number, "lengths" for the lengths of the sequences.
    features: the sizes of its features.
    stated: the numbers of sequences and steps, as far as the file states them.
    steps: the axis of its steps, shared with the first input unless it has steps of its own.
    """

    name: str
    axes: str
    features: tuple[int, ...]
    dtype: str
    stated: tuple[tuple[str, int], ...] = ()
    steps: str = STEPS

    @property
    def has_steps(self) -> bool:
        """True if this input of a model has a value per step, as a sequence has."""
        return self.axes != "lengths" and bool({"T", "S"} & set(self.axes))

    @property
    def is_lengths(self) -> bool:
        """True if this input of a model is the lengths of its sequences, which a caller does not pass."""
        return self.axes == "lengths"

    @property
    def stated_sizes(self) -> tuple[tuple[str, int], ...]:
        """The numbers of sequences and steps that the file states, by the names of the axes."""
        return tuple((self.steps if symbol == STEPS else symbol, size) for symbol, size in self.stated)

    @property
    def spec(self) -> Spec:
        """The features, dtype and axis of this input of a model, as `Graph` takes them."""
        return Spec(self.features, self.dtype, axis=own_name(self.steps) if self.has_steps else "")

    def taking(self, value: Any) -> "ModelInput":
        """Returns this input of a model with the name of its axis of steps taken from a value that a call
        gives for it.

        Raises `AxesError` for a value with other steps than other inputs, if the file has the steps of all
        sequences end to end.
        """
        if not self.has_steps or not isinstance(value, Traced) or value.type.extent[-1] == self.steps:
            return self
        return self.with_steps(value.type.extent[-1])

    def with_steps(self, axis: str) -> "ModelInput":
        """Returns this input of a model with steps of its own, whose number differs from that of other
        inputs; `axis` is the name of their axis. Raises `AxesError` if the steps of all its sequences lie end
        to end.
        """
        if "S" in self.axes:
            raise AxesError(
                f"{self.name!r} has packed steps, so its sequences have the lengths of the other inputs"
            )
        return replace(self, steps=axis)


@dataclass(frozen=True)
class ArrayModel:
    """A model of operators in a file, as a function of its inputs, which `sn.Graph` traces. The inputs are
    arrays with axes of known kinds (sequences N, steps T, features _). A subclass computes its outputs.

    path: the file of the model.
    inputs: the inputs with their axes.
    any_steps: whether the user states that no number of the file depends on the number of its steps.
    numbers: the numbers that may depend on it (`importers.example_steps`), with the operators that have them;
    filled in when the model is traced.
    output_names: the names of its outputs, filled in when it is traced.
    has_dtypes: whether a call has the dtypes of the file, since its format has no casts of inputs.
    open_steps: the way to write such a file with an open number of steps, for messages.
    """

    has_dtypes: ClassVar[bool] = False
    open_steps: ClassVar[str]
    path: str
    inputs: tuple[ModelInput, ...]
    any_steps: bool = field(default=False, kw_only=True)
    numbers: list[str] = field(default_factory=list[str], kw_only=True)
    output_names: list[str] = field(default_factory=list[str], kw_only=True)

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """Computes the outputs of the model, by name if there are several.

        x: the inputs with steps, by name if there are several.
        params: the weights by name; None for a model whose weights are constants.
        statics: the inputs without steps, by name if there are several.
        """
        self.numbers.clear()
        if any(count < FEWEST for _, count in self.counted) and not self.any_steps:
            self.numbers.append("any number in it, even 0 or 1,")
        inputs = self.placed(x, statics)
        computed = self.only_at_steps(self.computed(inputs, params or {}), inputs)
        self.output_names[:] = computed
        return outputs_of(self.path, computed)

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Any]) -> Mapping[str, Placed]:
        """Computes the outputs of the model by name, operator by operator, from its inputs by name. params:
        the weights by name, where they are no constants of the model.
        """
        raise NotImplementedError

    @property
    def __name__(self) -> str:
        """The name of the model in messages: its file."""
        return self.path

    @property
    def sequences(self) -> list[ModelInput]:
        """The inputs of the model that have steps, which a call passes as sequences."""
        return [input_ for input_ in self.inputs if input_.has_steps]

    @property
    def file_names(self) -> dict[str, list[str]]:
        """The names of inputs with steps ("sequence") and of outputs ("output"), once the model is traced."""
        return {"sequence": [each.name for each in self.sequences], "output": self.output_names}

    @property
    def statics(self) -> list[ModelInput]:
        """The model's inputs with one value per sequence, or one for all, which a call passes as statics."""
        return [input_ for input_ in self.inputs if not (input_.has_steps or input_.is_lengths)]

    @property
    def has_lengths(self) -> bool:
        """True if one of the model's inputs is the lengths of the sequences."""
        return any(input_.is_lengths for input_ in self.inputs)

    @property
    def counted(self) -> list[tuple[ModelInput, int]]:
        """The inputs with steps of which the file states the number, each with that number."""
        return [(each, size) for each in self.sequences for symbol, size in each.stated if symbol == STEPS]

    @property
    def steps(self) -> int | None:
        """The number of steps that the file states for its inputs; None if it is open, or if the user states
        that the model is right for any number.
        """
        return next((count for _, count in self.counted), None) if not self.any_steps else None

    def note(self, where: str, numbers: Callable[[], Iterable[float]]) -> None:
        """Records numbers of an operator that may depend on the number of steps, if the file states it."""
        if self.steps is not None:
            self.numbers.extend(f"the number {number:.6g} of {where}" for number in numbers())

    @property
    def advice(self) -> str:
        """The number that may depend on the number of steps, and what the user can do, for messages."""
        return (
            f"{self.numbers[0]} may depend on it: {self.open_steps}, or say {option('steps')} "
            "if no number in it depends on the steps"
        )

    @property
    def only_steps(self) -> int | None:
        """The only length of sequences, as the file states it and numbers may depend on it; else None."""
        return self.steps if self.numbers else None

    def check_lengths(self, positions: Positions) -> None:
        """Raises `InputError` for sequences of other lengths than the numbers of steps that the file states,
        if numbers in it may depend on these. positions: the lengths of a call.
        """
        if self.only_steps is None:
            return
        called = {own_name(axis): np.diff(offsets) for axis, offsets in positions.beside.items()}
        for each, count in self.counted:
            lengths = called.get(own_name(own_axis(each.name)), positions.lengths)
            others = np.flatnonzero(lengths != count)
            if len(others):
                which = f"sequence {others[0]}" if len(lengths) > 1 else "the sequence"
                raise InputError(
                    f"{self.path} was written for {of_steps(count)}, and {which} has "
                    f"{lengths[others[0]]}; {self.advice}"
                )

    def check_any_steps(self) -> None:
        """Raises `InputError` if the model is for one number of steps alone, as a stream has any number."""
        if self.only_steps is not None:
            raise InputError(
                f"{self.path} was written for {of_steps(self.only_steps)}, and a stream has any number of "
                f"them; {self.advice}"
            )

    def check_dtypes(self, sequences: Any, statics: Any) -> None:
        """Raises `InputError` if the inputs of a call have other dtypes than the file, for formats that fix
        dtypes.

        sequences, statics: the `Spec`s of the inputs, by name if there are several.
        """
        if self.has_dtypes:
            given = cast("dict[str, Any]", sequences)
            named = given if isinstance(sequences, dict) else {self.sequences[0].name: sequences}
            declared = {each.name: each.spec for each in (*self.sequences, *self.statics)}
            check_dtypes(self.path, declared, {**named, **(statics or {})})

    def only_at_steps(self, values: Mapping[str, Placed], inputs: Mapping[str, Placed]) -> dict[str, Placed]:
        """Returns the outputs by name, as NaN for sequences whose length is not the stated number of steps.

        Outputs are unchanged if no number in the file may depend on the number of steps.

        inputs: the inputs by name. Raises `ModelError` for an output of a dtype without NaN.
        """
        steps = self.only_steps
        if steps is None:
            return dict(values)
        for name, value in values.items():
            if isinstance(value.value, Traced) and not value.value.type.is_float:
                raise ModelError(
                    f"{self.path} was written for {of_steps(steps)}, and its output {name!r} is "
                    f"{value.value.dtype}, without a NaN for others; {self.advice}"
                )
        counted = {
            inputs[each.name].value.type.extent[-1]: (inputs[each.name].value, count)
            for each, count in self.counted
        }
        return {name: only_at(value, [*counted.values()]) for name, value in values.items()}

    def placed(self, x: Any, statics: Any) -> dict[str, Placed]:
        """Returns the inputs of a call by name with the meaning of their axes, as the model's operators need
        them.

        An input that is the lengths of the sequences, if the model has one, becomes a placeholder, which only
        recurrences may read.

        x, statics: the sequences and the statics of the call, as dicts by name; x may be the only sequence.
        """
        named = cast("Mapping[str, Any]", x) if isinstance(x, Mapping) else {self.sequences[0].name: x}
        values: dict[str, Any] = {**named, **(statics or {})}
        taken = self.taking(values)
        if self.has_lengths and any(input_.steps != STEPS for input_ in taken):
            raise AxesError(
                f"{self.path}: one of its inputs is the lengths of the sequences, so all inputs with steps "
                "have the same lengths"
            )
        return {
            input_.name: Placed(LENGTHS, (), input_.stated)
            if input_.is_lengths
            else Placed(
                values[input_.name],
                axes_of(input_.axes, input_.features, (input_.steps,)),
                input_.stated_sizes,
            )
            for input_ in taken
        }

    def taking(self, values: Mapping[str, Any]) -> tuple[ModelInput, ...]:
        """Returns the inputs of the model, with axes of steps as in the values of a call, by name."""
        return tuple(input_.taking(values.get(input_.name)) for input_ in self.inputs)

    def like(self, inputs: Mapping[str, Placed]) -> Any:
        """Returns the value of the first input that has steps, from which operators know the sequences."""
        return inputs[self.sequences[0].name].value


def of_steps(count: int) -> str:
    """Returns a number of steps in words, as "1 step"."""
    return "1 step" if count == 1 else f"{count} steps"


def outputs_of(path: str, values: Mapping[str, Placed]) -> Any:
    """Returns the outputs of a model by name, as the function of its graph returns them; a single output
    alone. Raises `ModelError` for an output that is a placeholder or a number of steps, and for one with
    joined axes.

    path: the file, for messages. values: the outputs by name.
    """
    values = {name: as_turned(value) for name, value in values.items()}
    for name, value in values.items():
        if isinstance(value.value, Unusable):
            raise ModelError(f"{path}: output {name!r} cannot be computed: {value.value.reason}")
        if value.value.dtype.kind == "O":
            raise ModelError(f"{path}: output {name!r} is the number of sequences or of steps")
        check_apart(f"output {name!r}", value.axes)
    results = {name: value.value for name, value in values.items()}
    return next(iter(results.values())) if len(results) == 1 else results


@contextmanager
def located(where: str, inner: str | None = None) -> Generator[None]:
    """Context manager for the computation of an operator: adds to its errors where the operator stands in the
    file, and converts NumPy's errors, for operands that do not fit, to `ModelError`s.

    where: the operator, by the names of the file, and the file. inner: the first words of the places of
    operators inside this one, whose errors keep their places; None if there are none.
    """
    where = printable(where)
    try:
        with written_at(where):
            yield
    except StepnetError as error:
        if inner is not None and isinstance(error, ModelError) and f"\n  at {inner}" in str(error):
            raise
        reason = str(error).partition("\n  at ")[0]
        kind = type(error) if isinstance(error, AxesError) else ModelError
        raise kind(f"{reason}\n  at {where}") from error
    except MISFITS as error:
        raise ModelError(f"its operands or attributes do not fit: {error}\n  at {where}") from error
