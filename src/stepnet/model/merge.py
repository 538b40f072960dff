"""Merges of the outputs of two directions: side by side, sum, average and product."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.trace.step import rounded
from stepnet.compiler.trace.traced import Traced, is_traced
from stepnet.compiler.values.arguments import choice
from stepnet.compiler.values.dtypes import DTYPES, promoted_float
from stepnet.compiler.values.structure import arranged, leaves, rebuild, skeleton
from stepnet.errors import InputError
from stepnet.ragged import Ragged

Array = np.ndarray


def side_by_side(forward: Array, backward: Array, rows: int) -> Array:
    """Concatenates the features of the outputs of two directions; outputs without features become a pair.
    forward, backward: the outputs of each direction. rows: the number of leading axes that are not features.
    """
    return (np.concatenate if forward.ndim > rows else np.stack)([forward, backward], axis=-1)


MERGES: dict[str, Callable[[Array, Array, int], Array]] = {
    "concat": side_by_side,
    "sum": lambda forward, backward, _: forward + backward,
    "average": lambda forward, backward, _: (forward + backward) / 2,
    "product": lambda forward, backward, _: forward * backward,
}


def checked_merge(merge: Any) -> str | None:
    """Returns the argument `merge`, a name or None; raises `InputError` for an unknown name."""
    return (
        None if merge is None else choice(merge, f"merge is {', '.join(map(repr, MERGES))} or None", MERGES)
    )


def merged(forward: Any, backward: Any, how: str, last_only: bool) -> Any:
    """Merges the outputs of the forward and the backward direction, leaf by leaf of their structure; raises
    `InputError` for different structures.

    forward, backward: the outputs of the directions.
    how: the name of a merge, such as "concat".
    last_only: whether the outputs are last outputs, which have no time axis.
    """
    backward = arranged(backward, forward)
    if skeleton(forward) != skeleton(backward):
        raise InputError(
            f"outputs of the two directions do not merge: {skeleton(forward)} and {skeleton(backward)}"
        )
    pairs = zip(leaves(forward), leaves(backward), strict=True)
    rows = 1 if last_only or is_traced(forward) else 2
    return rebuild(forward, [merged_leaf(first, second, how, rows) for first, second in pairs])


def merged_leaf(forward: Any, backward: Any, how: str, rows: int) -> Any:
    """Merges one output of the forward and the backward direction; returns the result. Raises `InputError`
    for features that do not fit.

    forward, backward: the outputs of the directions, arrays or Raggeds.
    how: the name of the merge, such as "concat".
    rows: the number of leading axes that are not features.
    """
    if isinstance(forward, Ragged):
        return forward.with_values(merged_leaf(forward.values, backward.values, how, 1))
    here, there = forward.shape, backward.shape
    if len(here) != len(there) or (here[:-1] != there[:-1] if how == "concat" else here != there):
        shapes = f"{here[rows:]} and {there[rows:]}"
        raise InputError(
            f"outputs of the two directions do not merge by {how!r}: their features are {shapes}"
        )
    stored = promoted_float((forward.dtype, backward.dtype))
    if DTYPES[stored].is_stored:
        # Computed in the wider dtype, and rounded once.
        compute = DTYPES[stored].compute
        whole = MERGES[how](forward.astype(compute), backward.astype(compute), rows)
        return stored_as(whole, stored)
    return MERGES[how](forward, backward, rows)


def stored_as(value: Any, dtype: str) -> Any:
    """Rounds values, an array or a value of a net, to a storage dtype such as "bfloat16"."""
    if not is_traced(value):
        return value.astype(dtype)
    return Traced(value.builder, rounded(value.builder, value.number, dtype))
