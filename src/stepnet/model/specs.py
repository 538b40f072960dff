"""Checks of the `Spec`s of inputs, statics and memories, and their default dtypes.

declared   {"x": Spec(8)}                  given   {"x": Spec(8, "float32")}        they fit
without a dtype   Spec(8)   -->   Spec(8, "float32")   the floating dtype of inputs and parameters
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.dtypes import promoted_float
from stepnet.compiler.values.structure import arranged, leaves, named_leaves, skeleton, transform
from stepnet.errors import InputError

Array = np.ndarray


def check_inputs(declared: Any, given: Any, kind: str = "input", owner: str = "recurrence") -> None:
    """Raises `InputError` for inputs whose structure or features differ from the declared ones.

    declared: the declared `Spec`s; None accepts all inputs.
    given: the `Spec`s of the inputs.
    kind, owner: the words for the values and for the model in messages.
    """
    if declared is None:
        return
    given = arranged(given, declared)
    if skeleton(declared) != skeleton(given):
        raise InputError(f"the {kind}s are {skeleton(given)}; this {owner} was made for {skeleton(declared)}")
    for (name, expected), array in zip(named_leaves(declared), leaves(given), strict=True):
        if expected.shape != array.shape:
            what = f"{kind} {name}".strip()
            raise InputError(
                f"{what} has features {list(array.shape)}; this {owner} was made for {list(expected.shape)}"
            )


def with_dtypes(inputs: Any, params: list[Array]) -> Any:
    """The `Spec`s of inputs, with the floating dtype of the parameters where they have no dtype."""
    default = promoted_float(array.dtype for array in params)
    return transform(lambda spec: Spec(spec.shape, spec.dtype or default, spec.levels), inputs)


def beside(specs: Any, inputs: Any, params: list[Array]) -> Any:
    """The `Spec`s of memories or statics, with the dtype of inputs and parameters where they have none."""
    default = promoted_float(leaf.dtype for leaf in (*leaves(inputs), *params))
    return transform(lambda spec: replace(spec, dtype=spec.dtype or default), specs)
