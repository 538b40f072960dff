"""The `Spec`s (features, dtypes, axes) of inputs, statics and memories: default dtypes, the check of given
ones against declared ones, and values without sequences to trace a model with.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import is_array
from stepnet.compiler.values.dtypes import promoted_float
from stepnet.compiler.values.structure import arranged, leaves, skeleton, titled_leaves, transform
from stepnet.errors import InputError
from stepnet.ragged import Ragged

Array = np.ndarray

NO_FEATURES = (
    "arrays are [batch, time, features], values of a Ragged [total, features]: one sequence is x[None], one "
    "number per step is x[..., None]"
)


def arranged_as(inputs: Any, declared: Any) -> Any:
    """Returns inputs with their dicts in the order of the declared inputs, so that their leaves correspond.

    declared: the `Spec`s of the declared inputs; None for inputs that were not declared, which stay as they
        are.
    """
    return inputs if declared is None or is_array(inputs) else arranged(inputs, declared)


def check_inputs(
    declared: Any,
    given: Any,
    kind: str = "input",
    owner: str = "recurrence",
    besides: str = "",
    argument: str = "",
) -> None:
    """Raises `InputError` for inputs whose structure or features differ from the declared ones.

    declared, given: the `Spec`s (features) of the declared and of the given inputs; None accepts all inputs.
    kind, owner: the words for the values and for the model in messages, such as "input" and "recurrence".
    besides: text that the message adds about the other arguments, if the structure differs.
    argument: the name of the step's argument for the inputs, for messages; "" for none.
    """
    if declared is None:
        return
    given = arranged(given, declared)
    if skeleton(declared) != skeleton(given):
        if isinstance(declared, Spec) and len(leaves(given)) == 1:
            besides = ": pass the array itself"
        elif kind == "static" and given is None:
            besides = ": give them as statics="
        raise InputError(
            f"the {kind}s {argument and f'`{argument}` '}are {skeleton(given)}; this {owner} was made for "
            f"{skeleton(declared)}{besides}"
        )
    for (name, expected), array in zip(titled_leaves(declared, argument), leaves(given), strict=True):
        if expected.shape != array.shape:
            what = f"{kind} {name}".strip()
            advice = "" if array.shape or kind != "input" else f"; {NO_FEATURES}"
            if array.levels > expected.levels and len(expected.shape) == 1:
                advice = f"; {steps_of_lists(array, expected)}"
            raise InputError(
                f"{what} has features {list(array.shape)}; this {owner} was made for {list(expected.shape)}"
                f"{advice}"
            )


def steps_of_lists(given: Spec, expected: Spec) -> str:
    """Returns the advice of a message: how the user turns nested sequences into plain ones, with the features
    that the model takes. given, expected: the `Spec`s of the input and of the model.
    """
    numbers = f"pyarrow.{given.dtype}(), {expected.shape[0]}"
    return (
        "this one has sequences of sequences, as Arrow's lists of lists are; for steps of features cast the "
        f"column: column.cast(pyarrow.list_(pyarrow.list_({numbers})))"
    )


def with_dtypes(specs: Any, params: list[Array], inputs: Any = ()) -> Any:
    """Returns the `Spec`s of inputs, memories or statics (values that each sequence has once) with a dtype
    each, where the user may have left it out: the floating dtype of the parameters, and of the inputs.

    specs: the `Spec`s, in their structure. inputs: those of the inputs, for memories and statics.
    """
    default = promoted_float(leaf.dtype for leaf in (*leaves(inputs), *params))
    return transform(lambda spec: replace(spec, dtype=spec.dtype or default), specs)


def no_sequences(spec: Spec) -> Ragged:
    """Returns a Ragged without sequences of these features and levels of nested sequences, to trace a model
    without data.

    >>> no_sequences(Spec(3, "float32"))
    Ragged(0 sequences, 3 features, float32)
    """
    return Ragged.from_list([], spec.dtype, spec.shape, 1 + spec.levels)


def no_static(spec: Spec) -> Any:
    """Returns a static (a value that each sequence has once) for a batch of no sequences, to trace with: a
    Ragged if the static is a sequence, else an array without rows.
    """
    if spec.axis:
        return Ragged.from_list([], spec.dtype, spec.shape)
    return np.zeros((0, *spec.shape), spec.dtype)
