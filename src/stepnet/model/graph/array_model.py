"""The inputs of a model of arrays, and the kinds of their axes: sequences, steps or features.

    x [3, ?, 8]    -->    x [time, batch, 8], because a GRU reads x in this layout

A model rarely states the kinds of its axes, so the usual ones are tried until all operators fit.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from itertools import islice, product
from typing import Any, ClassVar, Literal, cast

import numpy as np

from stepnet.compiler.net.windows import own_axis, own_name
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, ModelError, StepError, StepnetError, printable
from stepnet.importers.axes import FEATURE, LETTERS, AxesError, MixingError, axes_of, axis_names
from stepnet.importers.example_steps import FEWEST, only_at
from stepnet.importers.padding import MISFITS
from stepnet.importers.placed import LENGTHS, Placed, Unusable, check_apart
from stepnet.importers.shaping import as_turned
from stepnet.importers.sizes import STEPS
from stepnet.layout.options import option
from stepnet.model.graph.dtypes import check_dtypes
from stepnet.model.graph.graph import Graph
from stepnet.ragged.positions import Positions

MOST_WAYS = 200
"""The largest number of combinations of axes that are tried."""
USUAL: dict[int, tuple[str, ...]] = {0: ("",), 1: ("N", "T", "_"), 2: ("NT", "TN", "N_", "T_", "__")}
"""The axes that are tried for inputs of at most two axes; see `axes_of_rank` for inputs of more."""

Apart = Literal["", "stated", "each"]
APART: tuple[Apart, ...] = ("", "stated", "each")
"""The choices of the inputs that have steps of their own, in the order in which they are tried: no input, the
inputs for which the file states another number of steps, or every input.
"""

EXPORT = "export with dynamic shapes (dynamic_shapes= or dynamic_axes=)"
"""The way to write a file of PyTorch with an open number of steps."""
FITS = "the file does not say which axes are the sequences; the model runs if its inputs are"
REMEDY = (
    "axes= says what the axes of the inputs are, as axes={'x': 'NT'}, or 'N_T' for [batch, features, time]"
)


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


def graph_of(model: ArrayModel, params: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Makes a `Graph` of a model with array inputs; raises `AxesError` if their axes do not fit it.

    params: its parameters by name; None for a model whose weights are constants.
    """
    sequences = {input_.name: input_.spec for input_ in model.sequences}
    if not sequences:
        raise AxesError(f"{model.path}: none of its inputs has an axis of steps")
    statics = {input_.name: input_.spec for input_ in model.statics}
    inputs = next(iter(sequences.values())) if len(sequences) == 1 else sequences
    return Graph(cast(Any, model), params or None, inputs=inputs, statics=statics or None)


def fitting_graph(
    path: str,
    inputs: Sequence[tuple[str, Sequence[int], str]],
    make: Callable[[tuple[ModelInput, ...]], ArrayModel],
    usual: Callable[[Sequence[int]], list[str]] | None = None,
) -> Graph:
    """Returns the graph of a model for the first usual axes of its inputs that fit its operators.

    path: the file, for messages. inputs: the name of each input, the sizes of its axes, 0 for one that is not
    stated, and its dtype. make: makes the model for one choice of the axes. usual: takes the sizes of an
    input and lists the axes to try for it, most usual first; None for `axes_of_sizes`.
    """

    def build(chosen: Sequence[str], apart: Apart) -> Graph:
        """Makes the graph for one choice of the inputs' axes, such as "NT_"; an error if they do not fit."""
        placed = tuple(with_axes(*each, axes) for each, axes in zip(inputs, chosen, strict=True))
        return graph_of(make(agreed(placed, apart)))

    ways = product(*((usual or axes_of_sizes)(sizes) for _, sizes, _ in inputs))
    return first_fitting(path, ways, build, remedy="")


def first_fitting(
    path: str,
    ways: Iterable[Sequence[str]],
    make: Callable[[Sequence[str], Apart], Graph],
    remedy: str = REMEDY,
) -> Graph:
    """Returns the graph for the first combination of axes that fits the operators of the model in a file. If
    none fits, inputs are given steps of their own: first the inputs for which the file states another number
    of steps than for the first input, then every input.

    Raises `ModelError` if none fits, with the reason why the first that mixes sequences does not, or else the
    first; and if axes fit only with the steps of an input where those tried before had its sequences, which
    an operator mixes. The model then mixes sequences, or has its steps first, and the file does not say
    which.

    path: the file, for messages.
    ways: combinations of the axes of all inputs, in order of preference; at most `MOST_WAYS` are tried.
    make: makes the graph for one combination, or raises `AxesError`; its second argument names the inputs
        with steps of their own.
    remedy: what the user can do if none fits, for the message.
    """
    problem: Exception | None = None
    mixing: list[tuple[Sequence[str], MixingError]] = []
    for apart, axes in product(APART, tuple(islice(ways, MOST_WAYS))):
        try:
            graph = make(axes, apart)
        except AxesError as error:
            problem = problem or error
            mixing += [(axes, error)] if isinstance(error, MixingError) and not apart else []
            continue
        except (ModelError, StepError):
            if not apart:  # else the model does not fit either, for the reason that was found first
                raise
            continue
        for others, error in mixing:
            if any(map(takes_place, others, axes)):
                words = " and ".join(axis_names(each) for each in axes)
                raise ModelError(
                    "\n  ".join(filter(None, (f"{error}", f"{FITS} [{words}]", remedy)))
                ) from error
        return graph
    problem = mixing[0][1] if mixing else problem
    if problem is None:
        raise ModelError(f"{path}: none of its inputs has an axis of steps")
    raise ModelError("\n  ".join(filter(None, (str(problem), remedy)))) from problem


def takes_place(axes: str, others: str) -> bool:
    """Tells whether one choice of an input's axes has the sequences where another choice has the steps.

    >>> takes_place("NT_", "TN_"), takes_place("N_", "T_"), takes_place("NT_", "N__"), takes_place("", "")
    (True, True, False, False)
    """
    return "N" in axes and others.find("T") == axes.index("N")


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

    name, dtype: of the input.
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


def agreed(inputs: Sequence[ModelInput], apart: Apart) -> tuple[ModelInput, ...]:
    """Returns the inputs of a model, some with steps of their own, whose number differs from the first one's.

    apart: "" if all inputs have the same steps; "stated" for steps of their own where the file states
        another number of steps than for the first input; "each" for all inputs but the first.

    Raises `AxesError` if the file states different numbers of sequences; if it states different numbers of
    steps for the same ones; and if `apart` leaves all inputs with the same steps.
    """
    first_stated, taken = dict[str, tuple[int, str]](), list[ModelInput]()
    own = dict[int, str]()
    for input_ in inputs:
        for symbol, size in input_.stated:
            other, name = first_stated.setdefault(symbol, (size, input_.name))
            if other == size:
                continue
            if symbol != STEPS or not apart:
                what = f"{symbol}: {size} in {input_.name!r}, {other} in {name!r}"
                raise AxesError(f"inputs state different numbers of {what}")
            input_ = input_.with_steps(own.setdefault(size, own_axis(input_.name)))
        is_first = not any(known.has_steps for known in taken)
        if apart == "each" and input_.has_steps and not is_first:
            input_ = input_.with_steps(own_axis(input_.name))
        taken.append(input_)
    if apart and all(input_.steps == STEPS for input_ in taken):
        raise AxesError("its inputs have the same steps")
    return tuple(taken)


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


def check_names(axes: Mapping[str, str], names: Sequence[str]) -> None:
    """Raises `InputError` if the user's argument `axes` names an input that the model does not have. axes:
    the axes of some inputs by name. names: the names of the model's inputs.
    """
    unknown = [name for name in axes if name not in names]
    if unknown:
        raise InputError(f"axes= names {short_repr(unknown[0])}, and the inputs are {', '.join(names)}")
