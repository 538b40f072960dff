"""Sequences in the form in which they are given, as a call of an engine, and results in the same form."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.engines.base import Call
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.values.arguments import array_of, shown
from stepnet.values.dtypes import kind_of_dtype

Array = np.ndarray


@dataclass(frozen=True)
class Sequences:
    """Sequences as a call, their values [total, features] as they are, and what they were given as."""

    given: "Ragged | Array"
    call: Call
    values: Array

    @classmethod
    def of(cls, x: Any, features: int) -> "Sequences":
        """Sequences of a Ragged, or of an array [batch, time, features].

        Raises `InputError` for other shapes and dtypes, NaN being a number.
        """
        given = x if isinstance(x, Ragged) else array_of(x, "x")
        if isinstance(given, Ragged):
            if given.levels != 1:
                raise InputError(f"x has {given.levels} levels, and a recurrence runs over one: x.inner()")
            offsets = given.offsets[0]
            starts, lengths, values = offsets[:-1], given.lengths, given.values
        elif given.ndim == 3:
            rows, steps = given.shape[:2]
            starts, lengths = np.arange(rows) * steps, np.full(rows, steps, np.int64)
            values = given.reshape(rows * steps, given.shape[2])
        else:
            raise InputError(f"x is a Ragged or an array [batch, time, features], not {shown(given)}")
        if values.shape[1:] != (features,):
            raise InputError(f"a step of x has shape {values.shape[1:]}, and the weights are for ({features},)")
        check_float(values, "x")
        call = Call((), starts, lengths, len(values), ())
        return cls(given, call, np.ascontiguousarray(values))

    def like(self, values: Array) -> Any:
        """Values of each step, [total, features], in the form in which the sequences were given."""
        if isinstance(self.given, Ragged):
            return self.given.with_values(values)
        return values.reshape(*self.given.shape[:2], -1)


def check_float(array: Array, what: str) -> None:
    """Raises `InputError` for what is not float32, float16 or bfloat16."""
    if kind_of_dtype(array.dtype) != "float" or array.dtype.itemsize > 4:
        raise InputError(
            f"{what} has dtype {array.dtype}, and oneDNN computes in float32 and less: .astype(np.float32)"
        )


def state(given: Any, shape: tuple[int, int], name: str) -> Array | None:
    """A memory to begin with as float32; None for zeros."""
    if given is None:
        return None
    array = array_of(given, name)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, and must have {shape}: one row per sequence")
    check_float(array, name)
    return np.ascontiguousarray(array, np.float32)
