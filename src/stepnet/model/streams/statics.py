"""The statics of new rows: checked against the first statics of a stream, and written to slots."""

from typing import Any

import numpy as np

from stepnet.compiler.values.structure import arranged, leaves, named_leaves, rebuild, skeleton
from stepnet.errors import InputError
from stepnet.model.batch import checked_array
from stepnet.model.statics import Statics
from stepnet.ragged import Ragged

Array = np.ndarray


def checked_statics(statics: Any, before: Any, count: int) -> list[Any]:
    """Checks the statics (values that each sequence has once) of `count` new rows of a stream; returns them
    as arrays and Raggeds.

    Raises `InputError` unless they have the structure, features and dtypes of the statics of earlier rows.

    before: the `Spec`s of the earlier statics; a static that is a sequence has an axis in its `Spec`.
    """
    if statics is None and before is None:  # as usual
        return []
    if statics is None and leaves(before):
        raise InputError(f"the rows of this stream have statics, {skeleton(before)}; give statics= for them")
    statics = arranged(statics, before)
    if skeleton(statics) != skeleton(before):
        raise InputError(f"the statics are {skeleton(statics)}; they were {skeleton(before)}")
    checked: list[Any] = []
    for (name, spec), new in zip(named_leaves(before), leaves(statics), strict=True):
        what = f"static {name}" if name else "the static"
        ragged = isinstance(new, Ragged)
        array = new if ragged else checked_array(new, what)
        if ragged != bool(spec.axis) or (ragged and (len(new) != count or new.levels != 1)):
            raise InputError(
                f"{what} is {text_of(new)}; it should be as those the stream began with, of {count} rows"
            )
        checked.append(array)
    specs = Statics.of(rebuild(before, checked), count).specs
    if kinds(specs) != kinds(before):
        raise InputError("the statics have other features or dtypes than those the stream began with")
    return checked


def kinds(specs: Any) -> list[tuple[Any, ...]]:
    """Returns the properties that the statics (values that each sequence has once) of all rows of a stream
    must share, to compare them.

    They are the features, the dtype, and whether a static is a sequence.

    specs: the `Spec`s (features and dtypes) of the statics.
    """
    return [(spec.shape, np.dtype(spec.dtype), bool(spec.axis)) for spec in leaves(specs)]


def text_of(value: Any) -> str:
    """Describes a static for the message that it differs from the statics of earlier rows."""
    return repr(value) if isinstance(value, Ragged) else f"a {type(value).__name__} {list(np.shape(value))}"


def rows_of(values: list[Any], rows: Array) -> list[Any]:
    """Returns copies of the statics (values that each sequence has once) of some rows of a stream. values:
    the statics of all rows, as arrays and Raggeds. rows: the indices of the rows.
    """
    return [value.take(rows) if isinstance(value, Ragged) else value[rows] for value in values]


def empty_slots(specs: Any, capacity: int) -> list[Any]:
    """Allocates statics (values that each sequence has once) for `capacity` rows (sequences) of a stream, as
    a list: arrays of zeros and, for statics that are sequences, sequences without steps. specs: their
    features and dtypes.
    """
    arrays: list[Any] = []
    for spec in leaves(specs):
        values = np.zeros((0 if spec.axis else capacity, *spec.shape), spec.dtype)
        arrays.append(Ragged(values, (np.zeros(capacity + 1, np.int64),)) if spec.axis else values)
    return arrays


def with_slots(kept: Ragged, slots: Array, new: Ragged) -> Ragged:
    """Returns a copy of one static sequence of a stream (a whole sequence per row), with some rows replaced.

    kept: the present sequences, one for each position that a row may have in the arrays. slots: the positions
    to replace. new: their new sequences.
    """
    values = np.concatenate([kept.values, new.values])
    offsets = np.concatenate([kept.offsets[0], new.offsets[0][1:] + kept.total])
    order = np.arange(len(kept))
    order[slots] = len(kept) + np.arange(len(new))
    return Ragged(values, (offsets,)).take(order)
