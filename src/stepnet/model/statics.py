"""The statics of a call: values that each sequence has once, and static sequences, checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.net.types import WHOLE, is_sequence_axis
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import (
    leaves,
    named_leaves,
    rebuild,
    skeleton,
    titled_leaves,
    transform,
)
from stepnet.errors import InputError
from stepnet.model.batch import checked_array
from stepnet.ragged import Ragged

Array = np.ndarray


@dataclass(frozen=True)
class Statics:
    """The statics of a call (values that each sequence has once): arrays per sequence, and static sequences.

    specs: their `Spec`s (features, dtype, name of the axis), in the structure of the statics.
    arrays: the arrays of the statics; of a static sequence, the values of all sequences end to end.
    beside: the offsets of static sequences, by the name of their axis. Statics with the same lengths share an
        axis, so that keys and values can be combined.
    """

    specs: Any
    arrays: list[Array]
    beside: dict[str, Array]

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of a trace for these statics: their structure and `Spec`s (features and dtypes)."""
        return () if self.specs is None else (skeleton(self.specs), *leaves(self.specs))

    @classmethod
    def of(cls, statics: Any, count: int) -> "Statics":
        """Returns a call's checked statics (values that each sequence has once) as arrays; raises
        `InputError` unless each has `count` entries.

        Static sequences (Raggeds) with the same lengths share one axis, named after the first of them.
        """
        specs: list[Spec] = []
        arrays: list[Array] = []
        beside: dict[str, Array] = {}
        pairs = zip(named_leaves(statics), titled_leaves(statics, "statics"), strict=True)
        for (name, leaf), (title, _) in pairs:
            what = f"static {title}" if name else "the static"
            array, axis = checked_array(leaf.values if isinstance(leaf, Ragged) else leaf, what), ""
            if isinstance(leaf, Ragged):
                check_row_sequences(leaf, what, count)
                same = [
                    known for known, offsets in beside.items() if np.array_equal(offsets, leaf.offsets[0])
                ]
                axis = same[0] if same else static_axis(name, beside)
                beside[axis] = leaf.offsets[0]
            elif array.ndim < 1 or len(array) != count:
                raise InputError(
                    f"{what} is {list(array.shape)}; its first axis should be the {count} sequences"
                )
            specs.append(Spec(array.shape[1:], array.dtype, axis=axis))
            arrays.append(array)
        return cls(rebuild(statics, specs), arrays, beside)

    def beside_others(self, known: dict[str, Array]) -> "Statics":
        """Returns a copy of the statics (values that each sequence has once) in which no axis has a name that
        `known` has for sequences of other lengths.

        So the statics of several recurrences can be inputs of one net. "_" is appended to such a name.

        known: the offsets of the sequences of each axis so far, by name; the axes of these statics are added.
        """
        renamed: dict[str, str] = {}
        for axis, offsets in self.beside.items():
            name = axis
            while name in known and not np.array_equal(known[name], offsets):
                name += "_"
            known[name], renamed[axis] = offsets, name

        def spec(spec: Spec) -> Spec:
            """Returns a static's `Spec` (features, dtype, axis) with the new name of its axis, if any."""
            return Spec(spec.shape, spec.dtype, spec.levels, renamed.get(spec.axis, spec.axis))

        beside = {renamed[axis]: offsets for axis, offsets in self.beside.items()}
        return Statics(transform(spec, self.specs), self.arrays, beside)


def static_axis(name: str, known: Mapping[str, Array]) -> str:
    """Returns the name of the axis of a static sequence, made from the name of the static.

    It differs from the names of the axes of a model's steps, and from those of other statics.

    known: the axes of other statics.
    """
    is_of_steps = is_sequence_axis(name) or name.startswith(WHOLE)
    axis = f"_{name}" if is_of_steps else name or "static"
    while axis in known:
        axis += "_"
    return axis


def check_row_sequences(ragged: Ragged, what: str, count: int) -> None:
    """Raises `InputError` unless a Ragged, given as a static (one sequence for each sequence), is not nested
    and has `count` sequences; `what` is its name.
    """
    if ragged.levels != 1:
        raise InputError(f"{what} has {ragged.levels} levels; a static is one sequence for each row")
    if len(ragged) != count:
        raise InputError(f"{what} is of {len(ragged)} rows; there are {count} sequences")
