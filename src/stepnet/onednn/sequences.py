"""Sequences of a call as one contiguous array, and conversion of results to the form of the argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.engines.base import Call
from stepnet.engines.onednn.padding import Padding, padding_of
from stepnet.errors import InputError, named
from stepnet.ragged import Ragged
from stepnet.ragged.positions import Positions
from stepnet.values.arguments import array_of, shown

Array = np.ndarray


GRADIENT = "the gradient of the outputs"
FLOATS = tuple(map(np.dtype, ("float32", "bfloat16", "float16")))


@dataclass(frozen=True)
class Sequences:
    """Sequences laid end to end.

    given: the argument, a `Ragged` or an array [batch, time, features].
    offsets: where each sequence begins, and where the last one ends.
    values: the steps of all sequences, [total, features].
    """

    given: "Ragged | Array"
    offsets: Array
    values: Array

    @classmethod
    def of(cls, x: Any, features: int) -> "Sequences":
        """Sequences of a Ragged, or of an array [batch, time, features].

        Raises `InputError` for other shapes and dtypes.
        """
        given = x if isinstance(x, Ragged) else array_of(x, "x")
        if isinstance(given, Ragged):
            if len(given.offsets) != 1:
                raise InputError(f"x has {given.levels} levels, and a recurrence runs over one: x.inner()")
            offsets, values = given.offsets[0], given.values
        elif given.ndim == 3:
            rows, steps = (int(size) for size in given.shape[:2])
            offsets = np.arange(0, rows * steps + 1, steps) if steps else np.zeros(rows + 1, np.int64)
            values = given.reshape(rows * steps, given.shape[2])
        else:
            raise InputError(f"x is a Ragged or an array [batch, time, features], not {shown(given)}")
        if values.shape[1:] != (features,):
            raise InputError(
                f"a step of x has shape {values.shape[1:]}, and the weights are for ({features},)"
            )
        check_float(values, "x")
        return cls(given, offsets, np.ascontiguousarray(values))

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    @property
    def call(self) -> Call:
        """An engine's call over these sequences, without arrays."""
        return Call(Positions.end_to_end(self.offsets))

    def padding(self, reverse: bool) -> Padding:
        """The positions of the steps in a padded array."""
        return padding_of(self.offsets, reverse)

    def like(self, values: Array) -> Any:
        """Values of each step, [total, features], in the form of the argument."""
        if isinstance(self.given, Ragged):
            return self.given.with_values(values)
        return values.reshape(*self.given.shape[:2], values.shape[-1])

    def gradient(self, given: Any, size: int) -> Array | None:
        """The cotangent of the outputs as float32 [total, size], from their form; None for zeros.

        Raises `InputError` for another form or shape.
        """
        if given is None:
            return None
        if isinstance(self.given, Ragged):
            alike = isinstance(given, Ragged) and len(given.offsets) == 1
            if not alike or not np.array_equal(given.offsets[0], self.offsets):
                raise InputError(
                    f"{GRADIENT} is a Ragged of the lengths of the sequences, not {shown(given)}: "
                    "outputs.with_values(...) makes one"
                )
            values, shape = given.values, (len(self.values), size)
        else:
            values, shape = array_of(given, GRADIENT), (*self.given.shape[:2], size)
        if values.shape != shape:
            raise InputError(f"{GRADIENT} has shape {values.shape}, and must have {shape}")
        check_float(values, GRADIENT)
        return np.ascontiguousarray(values.reshape(-1, size), np.float32)


def listed(samples: Any, features: int) -> list[Sequences]:
    """Samples as sequences; raises `InputError` for anything but a list of them, and if none has a step."""
    if not isinstance(samples, list | tuple):
        raise InputError(
            f"samples is a list of Raggeds or arrays [batch, time, features], not {shown(samples)}"
        )
    made = list[Sequences]()
    for place, sample in enumerate(cast("Sequence[Any]", samples)):
        with named(f"sample {place}"):
            made.append(Sequences.of(sample, features))
    if not any(len(sequences.values) for sequences in made):
        raise InputError("the samples have no steps; give some that are usual")
    return made


def check_float(array: Array, what: str) -> None:
    """Raises `InputError` for what is not float32, float16 or bfloat16."""
    if array.dtype not in FLOATS:
        raise InputError(
            f"{what} has dtype {array.dtype}, and oneDNN computes in float32 and less: .astype(np.float32)"
        )


def state(given: Any, shape: tuple[int, int], name: str) -> Array | None:
    """An initial memory, or a cotangent of a final memory, as float32; None for zeros."""
    if given is None:
        return None
    array = array_of(given, name)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, and must have {shape}: one row per sequence")
    check_float(array, name)
    return np.ascontiguousarray(array, np.float32)
