"""The inputs of a model of arrays, and the kinds of their axes: sequences, steps or features.

    x [3, ?, 8]    -->    x [time, batch, 8], because a GRU reads x in this layout

A model rarely states the kinds of its axes, so the usual ones are tried until all operators fit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, cast

import numpy as np

from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import InputError, ModelError, StepnetError, printable
from stepnet.importers.axes import FEATURE, LETTERS, AxesError, axes_of
from stepnet.importers.padding import MISFITS
from stepnet.importers.placed import LENGTHS, Placed, Unusable, check_apart
from stepnet.importers.sizes import STEPS
from stepnet.model.graph.graph import Graph

MOST_WAYS = 200
"""The largest number of combinations of axes that are tried."""
USUAL: dict[int, tuple[str, ...]] = {0: ("",), 1: ("N", "T", "_"), 2: ("NT", "TN", "N_", "T_", "__")}
"""The axes that are tried for inputs of at most two axes; see `axes_of_rank` for inputs of more."""

REMEDY = (
    "axes= says what the axes of the inputs are, as axes={'x': 'NT'}, or 'N_T' for [batch, features, time]"
)


@dataclass(frozen=True)
class ModelInput:
    """An input of a model whose inputs are arrays.

    name: the name of the input.
    axes: the letters of its axes; "" for a single number, "lengths" for the lengths of the sequences.
    features: the sizes of its features.
    dtype: its dtype.
    stated: the numbers of sequences and steps, as far as the file states them.
    """

    name: str
    axes: str
    features: tuple[int, ...]
    dtype: str
    stated: tuple[tuple[str, int], ...] = ()

    @property
    def has_steps(self) -> bool:
        """True if this input of a model has a value per step, as a sequence has."""
        return self.axes != "lengths" and bool({"T", "S"} & set(self.axes))

    @property
    def is_lengths(self) -> bool:
        """True if this input of a model is the lengths of its sequences, which a caller does not pass."""
        return self.axes == "lengths"


@dataclass(frozen=True)
class ArrayModel:
    """A model whose inputs are arrays with axes of known kinds (sequences N, steps T, features _).

    A subclass computes its outputs.

    path: the file of the model.
    inputs: the inputs with their axes.
    """

    path: str
    inputs: tuple[ModelInput, ...]

    @property
    def __name__(self) -> str:
        """The name of the model in messages: its file."""
        return self.path

    @property
    def sequences(self) -> list[ModelInput]:
        """The inputs of the model that have steps, which a call passes as sequences."""
        return [input_ for input_ in self.inputs if input_.has_steps]

    @property
    def statics(self) -> list[ModelInput]:
        """The model's inputs with one value per sequence, or one for all, which a call passes as statics."""
        return [input_ for input_ in self.inputs if not (input_.has_steps or input_.is_lengths)]

    @property
    def has_lengths(self) -> bool:
        """True if one of the model's inputs is the lengths of the sequences."""
        return any(input_.is_lengths for input_ in self.inputs)

    def placed(self, x: Any, statics: Any) -> dict[str, Placed]:
        """Returns the inputs of a call by name with the meaning of their axes, as the model's operators need
        them.

        The lengths of sequences become a placeholder, which only recurrences may read.

        x, statics: the sequences and the statics of the call, as dicts by name; x may be the only sequence.
        """
        named = cast("Mapping[str, Any]", x) if isinstance(x, Mapping) else {self.sequences[0].name: x}
        values: dict[str, Any] = {**named, **(statics or {})}
        return {
            input_.name: Placed(LENGTHS, (), input_.stated)
            if input_.is_lengths
            else Placed(values[input_.name], axes_of(input_.axes, input_.features), input_.stated)
            for input_ in self.inputs
        }


class OperatorModel(ArrayModel, ABC):
    """A model of operators in a file, as a function of its inputs, which `sn.Graph` traces."""

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """Computes the outputs of the model, by name if there are several.

        x: the inputs with steps, by name if there are several.
        params: not used, as the model's weights are constants.
        statics: the inputs without steps, by name if there are several.
        """
        return outputs_of(self.path, self.computed(self.placed(x, statics)))

    @abstractmethod
    def computed(self, inputs: Mapping[str, Placed]) -> Mapping[str, Placed]:
        """Computes the outputs of the model by name, operator by operator, from its inputs by name."""

    def like(self, inputs: Mapping[str, Placed]) -> Any:
        """Returns the value of the first input that has steps, from which operators know the sequences."""
        return inputs[self.sequences[0].name].value


def graph_of(model: ArrayModel, params: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Makes a `Graph` of a model with array inputs; raises `AxesError` if their axes do not fit it.

    params: its parameters by name; None for a model whose weights are constants.
    """
    sequences = {input_.name: Spec(input_.features, input_.dtype) for input_ in model.sequences}
    if not sequences:
        raise AxesError(f"{model.path}: none of its inputs has an axis of steps")
    statics = {input_.name: Spec(input_.features, input_.dtype) for input_ in model.statics}
    inputs = next(iter(sequences.values())) if len(sequences) == 1 else sequences
    return Graph(cast(Any, model), params or None, inputs=inputs, statics=statics or None)


def fitting_graph(
    path: str,
    inputs: Sequence[tuple[str, Sequence[int], str]],
    make: Callable[[tuple[ModelInput, ...]], ArrayModel],
) -> Graph:
    """Returns the graph of a model for the first usual axes of its inputs that fit its operators.

    path: the file, for messages.
    inputs: the name of each input, the sizes of its axes, 0 for one that is not stated, and its dtype.
    make: makes the model for one choice of the axes.
    """

    def build(chosen: Sequence[str]) -> Graph:
        """Makes the graph for one choice of the inputs' axes, such as "NT_"; an error if they do not fit."""
        placed = tuple(with_axes(*each, axes) for each, axes in zip(inputs, chosen, strict=True))
        check_agree(placed)
        return graph_of(make(placed))

    return first_fitting(path, product(*(axes_of_sizes(sizes) for _, sizes, _ in inputs)), build, remedy="")


def first_fitting(
    path: str,
    ways: Iterable[Sequence[str]],
    make: Callable[[Sequence[str]], Graph],
    remedy: str = REMEDY,
) -> Graph:
    """Returns the graph for the first combination of axes that fits the operators of the model in a file.

    Raises `ModelError` if none fits, with the reason why the first does not.

    path: the file, for messages.
    ways: combinations of the axes of all inputs, in order of preference; at most `MOST_WAYS` are tried.
    make: makes the graph for one combination, or raises `AxesError`.
    remedy: what the user can do if none fits, for the message.
    """
    problem: Exception | None = None
    for axes in islice(ways, MOST_WAYS):
        try:
            return make(axes)
        except AxesError as error:
            problem = problem or error
    if problem is None:
        raise ModelError(f"{path}: none of its inputs has an axis of steps")
    raise ModelError("\n  ".join(filter(None, (str(problem), remedy)))) from problem


def axes_of_rank(rank: int) -> list[str]:
    """Returns axes to try for an input of `rank` axes, most usual first: N sequences, T steps, _ features."""
    more = FEATURE * (rank - 2)
    return list(USUAL.get(rank, ("NT" + more, "TN" + more, "N_" + more, "_N" + more)))


def axes_of_sizes(sizes: Sequence[int]) -> list[str]:
    """Returns axes to try for an input, most usual first: those whose features all have stated sizes.

    sizes: the sizes of its axes, 0 for one that the file does not state. If only the last one of several is
        not stated, it is the steps, as in [batch, features, time].
    """
    rank = len(sizes)
    usual = axes_of_rank(rank)
    if rank > 2 and not sizes[-1] and all(sizes[1:-1]):
        usual = ["N" + FEATURE * (rank - 2) + "T", *usual]
    return sorted(
        usual, key=lambda axes: any(a == FEATURE and not n for a, n in zip(axes, sizes, strict=True))
    )


def with_axes(name: str, sizes: Sequence[int], dtype: str, axes: str) -> ModelInput:
    """Makes the description of an input of a model, with the meaning of its axes.

    name, dtype: those of the input.
    sizes: the sizes of its axes as the file states them; 0 for one that it does not state.
    axes: the letters of the axes (N sequences, T steps, _ a feature); trailing features may be left out.

    Raises `InputError` for axes that do not fit the shape, and `AxesError` for a feature without a size.
    """
    axes = axes.ljust(len(sizes), FEATURE)
    twice = any(axes.count(letter) > 1 for letter in LETTERS)
    if len(axes) != len(sizes) or set(axes) - {*LETTERS, FEATURE} or twice:
        raise InputError(
            f"the axes of {name!r} are {short_repr(axes)}, and it has {len(sizes)}: "
            "N is sequences, T steps, and _ a feature; N and T may occur once"
        )
    features = tuple(size for size, letter in zip(sizes, axes, strict=True) if letter == FEATURE)
    if 0 in features:
        raise AxesError(f"{name!r} has a feature whose size the model does not state")
    stated = tuple(
        (str(LETTERS[letter][0]), size)
        for letter, size in zip(axes, sizes, strict=True)
        if letter != FEATURE and size
    )
    return ModelInput(name, axes, features, dtype, stated)


def check_agree(inputs: Iterable[ModelInput]) -> None:
    """Raises `AxesError` if the file states different numbers of sequences, or of steps, for some inputs."""
    first_stated = dict[str, tuple[int, str]]()
    for input_ in inputs:
        for symbol, size in input_.stated:
            other, name = first_stated.setdefault(symbol, (size, input_.name))
            if other != size:
                what = f"{symbol}: {size} in {input_.name!r}, {other} in {name!r}"
                raise AxesError(f"inputs state different numbers of {what}")


def outputs_of(path: str, values: Mapping[str, Placed]) -> Any:
    """Returns the outputs of a model by name to build its graph from; of one output, that alone. Raises
    `ModelError` for an output that is a placeholder or a number of steps, and for one with joined axes.

    path: the file, for messages. values: the outputs by name.
    """
    for name, value in values.items():
        if isinstance(value.value, Unusable):
            raise ModelError(f"{path}: output {name!r} cannot be computed: {value.value.reason}")
        if value.value.dtype.kind == "O":
            raise ModelError(f"{path}: output {name!r} is the number of sequences or of steps")
        check_apart(f"output {name!r}", value.axes)
    results = {name: value.value for name, value in values.items()}
    return next(iter(results.values())) if len(results) == 1 else results


@contextmanager
def located(where: str) -> Generator[None]:
    """Context manager that adds to errors of an operator's rule where the operator stands, and makes those of
    NumPy, for operands that do not fit, to `ModelError`s.

    where: the operator, by the names of the file, and the file.
    """
    where = printable(where)
    try:
        with written_at(where):
            yield
    except StepnetError as error:
        reason = str(error).partition("\n  at ")[0]
        kind = AxesError if isinstance(error, AxesError) else ModelError
        raise kind(f"{reason}\n  at {where}") from error
    except MISFITS as error:
        raise ModelError(f"its operands or attributes do not fit: {error}\n  at {where}") from error


def check_factor(value: np.ndarray, inputs: Iterable[ModelInput]) -> None:
    """Raises `ModelError` for a factor that may be the number of steps for which a model was exported.

    Exporters fold it into a mean over the steps: it would be wrong for sequences of other lengths. value: the
    factor; nothing is checked if it is several numbers. inputs: those whose declared sizes may fix the number
    of steps.
    """
    if value.size != 1 or value.dtype.kind not in "fiu":
        return
    factor = float(value.reshape(()))
    for steps in {size for each in inputs for symbol, size in each.stated if symbol == STEPS}:
        if np.isclose(factor, [steps, 1 / steps], rtol=1e-6, atol=0).any():
            raise ModelError(
                f"it has the factor {factor:.6g}, and the file fixes the number of steps to {steps}, from "
                "which that may be computed: export the model with a dynamic number of steps"
            )


def check_names(axes: Mapping[str, str], names: Sequence[str]) -> None:
    """Raises `InputError` if the user's argument `axes` names an input that the model does not have.

    axes: the axes of some inputs by name.
    names: the names of the model's inputs.
    """
    unknown = [name for name in axes if name not in names]
    if unknown:
        raise InputError(f"axes= names {short_repr(unknown[0])}, and the inputs are {', '.join(names)}")
