"""Inputs of a model that have steps of their own: the axis of each input's steps.

question   lengths 3 5      steps              the steps of the model: those of the first input
hint       lengths 3 5      steps              inputs of the same lengths share an axis
answer     lengths 2 7      steps[answer]      an own axis, whose offsets are beside those of the steps
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.net.types import WHOLE
from stepnet.compiler.net.windows import own_axis, own_name
from stepnet.compiler.values.structure import leaves
from stepnet.errors import InputError

Array = np.ndarray


def check_axes(inputs: Any, statics: Any) -> None:
    """Raises `InputError` if all inputs of a model are declared to have steps of their own, and for a static
    sequence (a whole sequence that each step reads) whose axis has a reserved name.

    inputs, statics: the structures of their `Spec`s; None if they are not declared.
    """
    own, still = ([] if each is None else [spec.axis for spec in leaves(each)] for each in (inputs, statics))
    if own and all(own):
        raise InputError(
            "every input has an axis= of its own: leave it out for one, whose steps are those of the model"
        )
    if any(axis.startswith(WHOLE) for axis in still):
        raise InputError(
            f"the name of a static's axis does not begin with {WHOLE!r}, as those of a model's do"
        )


def axes_of_inputs(
    named: Sequence[tuple[str, Array]], offsets: Array, own: Mapping[str, str]
) -> tuple[list[str], dict[str, Array]]:
    """Finds the name of the axis of each input's steps: "" if it has the lengths of the model's steps, else
    another name. Inputs of the same lengths share an axis, unless they are declared to have different ones.

    named: the offsets of each input with its name. offsets: of the model's steps.
    own: the names of declared axes, by that of the input.

    Returns the axes, and the offsets of the named ones by name. Raises `InputError` for inputs of different
    lengths that are declared to share an axis.
    """
    axes, known, shared = list[str](), dict[str, Array](), dict[str, Array]()
    for name, level in named:
        declared = own.get(name, "")
        same = [axis for axis, lengths in shared.items() if np.array_equal(lengths, level)]
        if not declared and np.array_equal(level, offsets):
            axes.append("")
            continue
        axis = own_axis(declared) if declared else same[0] if same else unused(own_axis(name), known, own)
        if not np.array_equal(known.setdefault(axis, level), level):
            raise InputError(f"input `{name}` has other lengths than another one with axis={declared!r}")
        if not declared:
            shared[axis] = level
        axes.append(axis)
    return axes, known


def unused(axis: str, known: Mapping[str, Array], own: Mapping[str, str]) -> str:
    """Returns the name of an axis with "_" appended until no other input has it. known: the axes so far. own:
    the names of declared axes, by input.
    """
    taken = {*known, *map(own_axis, own.values())}
    while axis in taken:
        axis = own_axis(own_name(axis) + "_")
    return axis
