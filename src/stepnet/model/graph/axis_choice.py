"""The choice of the kinds of the axes of a model's inputs: sequences, steps or features.

    x [3, ?, 8]    -->    x [time, batch, 8], because a GRU reads x in this layout

A model rarely states the kinds of its axes, so the usual ones are tried until all operators fit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, product
from typing import Any, Literal, cast

import numpy as np

from stepnet.compiler.net.windows import own_axis
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import InputError, ModelError, StepError
from stepnet.importers.axes import FEATURE, LETTERS, AxesError, MixingError, axis_names
from stepnet.importers.sizes import STEPS
from stepnet.model.graph.array_model import ArrayModel, ModelInput
from stepnet.model.graph.graph import Graph

MOST_WAYS = 200
"""The largest number of combinations of axes that are tried."""
USUAL: dict[int, tuple[str, ...]] = {0: ("",), 1: ("N", "T", "_"), 2: ("NT", "TN", "N_", "T_", "__")}
"""The axes that are tried for inputs of at most two axes; see `axes_of_rank` for inputs of more."""

Apart = Literal["", "stated", "each"]
APART: tuple[Apart, ...] = ("", "stated", "each")
"""The choices of the inputs that have steps of their own, in the order in which they are tried: no input, the
inputs for which the file states another number of steps, or every input.
"""

FITS = "the file does not say which axes are the sequences; the model runs if its inputs are"
REMEDY = (
    "axes= says what the axes of the inputs are, as axes={'x': 'NT'}, or 'N_T' for [batch, features, time]"
)


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


def check_names(axes: Mapping[str, str], names: Sequence[str]) -> None:
    """Raises `InputError` if the user's argument `axes` names an input that the model does not have. axes:
    the axes of some inputs by name. names: the names of the model's inputs.
    """
    unknown = [name for name in axes if name not in names]
    if unknown:
        raise InputError(f"axes= names {short_repr(unknown[0])}, and the inputs are {', '.join(names)}")
