"""Checked arguments of a layer's call: sequences as one contiguous array, memories, and attention."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.onednn.padding import Padding, padding_of
from stepnet.compiler.values.arguments import array_of, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, named
from stepnet.ragged import Ragged
from stepnet.ragged.positions import Positions

Array = np.ndarray


GRADIENT = "the gradient of the outputs"
FLOATS = tuple(map(np.dtype, ("float32", "bfloat16", "float16")))


@dataclass(frozen=True)
class Sequences:
    """Sequences that lie end to end, with the argument that they come from.

    given: the argument, a `Ragged` or an array [batch, time, features].
    offsets: the index at which each sequence begins, and the one at which the last ends.
    values: the steps of all sequences, [total, features].
    """

    given: "Ragged | Array"
    offsets: Array
    values: Array

    @classmethod
    def of(cls, x: Any, features: int) -> "Sequences":
        """Converts a `Ragged` or an array [batch, time, features], the argument x of a call, to sequences end
        to end. Raises `InputError` for other shapes and dtypes.
        """
        sequences = x if isinstance(x, Ragged) else array_of(x, "x")
        if isinstance(sequences, Ragged):
            if len(sequences.offsets) != 1:
                raise InputError(
                    f"x has {sequences.levels} levels, and a recurrence runs over one: x.inner()"
                )
            offsets, values = sequences.offsets[0], sequences.values
        elif sequences.ndim == 3:
            rows, steps = (int(size) for size in sequences.shape[:2])
            offsets = np.arange(0, rows * steps + 1, steps) if steps else np.zeros(rows + 1, np.int64)
            values = sequences.reshape(rows * steps, sequences.shape[2])
        else:
            raise InputError(
                f"x is a Ragged or an array [batch, time, features], not {short_repr(sequences)}"
            )
        if values.shape[1:] != (features,):
            raise InputError(
                f"a step of x has shape {values.shape[1:]}, and the weights are for ({features},)"
            )
        check_float(values, "x")
        return cls(sequences, offsets, np.ascontiguousarray(values))

    @property
    def rows(self) -> int:
        """The number of sequences in the argument x of a call."""
        return len(self.offsets) - 1

    @property
    def call(self) -> Call:
        """Arguments for a run of an engine: the positions of these sequences' steps, and no arrays yet."""
        return Call(Positions.end_to_end(self.offsets))

    def padding(self, reverse: bool) -> Padding:
        """Returns the positions of these sequences' steps in a padded array, on which oneDNN runs. reverse:
        whether the padding of a sequence lies before its steps, not after them.
        """
        return padding_of(self.offsets, reverse)

    def like(self, values: Array) -> Any:
        """Converts values [total, features], one row per step, to what the argument x was: a `Ragged`, or an
        array [batch, time, features].
        """
        if isinstance(self.given, Ragged):
            return self.given.with_values(values)
        return values.reshape(*self.given.shape[:2], values.shape[-1])

    def gradient(self, cotangent: Any, size: int) -> Array | None:
        """Converts the caller's cotangent of the outputs (the gradient of a loss by them) to float32 [total,
        size], one row per step; None stands for zeros. Raises `InputError` for another type, shape or dtype.

        cotangent: a `Ragged` or a padded array, as x was. size: the number of features of an output.
        """
        if cotangent is None:
            return None
        if isinstance(self.given, Ragged):
            is_ragged = isinstance(cotangent, Ragged) and len(cotangent.offsets) == 1
            if not is_ragged or not np.array_equal(cotangent.offsets[0], self.offsets):
                raise InputError(
                    f"{GRADIENT} is a Ragged of the lengths of the sequences, not {short_repr(cotangent)}: "
                    "outputs.with_values(...) makes one"
                )
            values, shape = cotangent.values, (len(self.values), size)
        else:
            values, shape = array_of(cotangent, GRADIENT), (*self.given.shape[:2], size)
        if values.shape != shape:
            raise InputError(f"{GRADIENT} has shape {values.shape}, and must have {shape}")
        check_float(values, GRADIENT)
        return np.ascontiguousarray(values.reshape(-1, size), np.float32)


def sample_sequences(samples: Any, features: int) -> list[Sequences]:
    """Converts the user's list of samples to sequences of `features` each; raises `InputError` for other
    values, and if no sample has a step.
    """
    if not isinstance(samples, list | tuple):
        raise InputError(
            f"samples is a list of Raggeds or arrays [batch, time, features], not {short_repr(samples)}"
        )
    samples_read = list[Sequences]()
    for index, sample in enumerate(cast("Sequence[Any]", samples)):
        with named(f"sample {index}"):
            samples_read.append(Sequences.of(sample, features))
    if not any(len(sequences.values) for sequences in samples_read):
        raise InputError("the samples have no steps; give some that are usual")
    return samples_read


def check_float(array: Array, what: str) -> None:
    """Raises `InputError` for dtypes other than float32, float16 and bfloat16; what: the array's name."""
    if array.dtype not in FLOATS:
        raise InputError(
            f"{what} has dtype {array.dtype}, and oneDNN computes in float32 and less: .astype(np.float32)"
        )


def state(initial: Any, shape: tuple[int, int], name: str) -> Array | None:
    """Checks an initial memory, or a cotangent of a final one, and casts it to float32; None for zeros.

    initial: the caller's array. shape: that it must have. name: its name in messages. Raises `InputError` for
    another shape or dtype.
    """
    if initial is None:
        return None
    array = array_of(initial, name)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, and must have {shape}: one row per sequence")
    check_float(array, name)
    return np.ascontiguousarray(array, np.float32)


@dataclass(frozen=True)
class Arguments:
    """Checked arguments of a layer's call.

    sequences: the sequences, in the caller's order of steps.
    initial: the initial memories; None for zeros.
    attention: one number per step, [total, 1], in the caller's order; None for layers without attention.
    order: the permutation of steps that reverses each sequence, for a reverse run of a primitive that only
        runs forward; else None. It is its own inverse.
    """

    sequences: Sequences
    initial: tuple[Array | None, ...]
    attention: Array | None = None
    order: Array | None = None

    def reordered(self, values: Array) -> Array:
        """Reorders `values`, one row per step, from the caller's order of steps to that in which oneDNN's
        primitive runs, or back: if it is to run in reverse but cannot, each sequence is reversed.
        """
        return values if self.order is None else values[self.order]

    @property
    def x(self) -> Array:
        """The inputs of a call, [total, features], their steps in the order in which oneDNN reads them."""
        return self.reordered(self.sequences.values)

    @property
    def ordered_attention(self) -> Array | None:
        """The attention [total, 1] in the order in which oneDNN's primitive reads the steps; or None."""
        return None if self.attention is None else self.reordered(self.attention)

    def like(self, values: Array) -> Any:
        """Converts values [total, features], one row per step in the primitive's order, to the caller's order
        and to what the argument x was: a `Ragged` or an array [batch, time, features].
        """
        return self.sequences.like(self.reordered(values))


def initial_of(sequences: Sequences, states: tuple[int, ...], h0: Any, c0: Any) -> tuple[Array | None, ...]:
    """Checks the initial memories h0 and c0; returns (h,) or (h, c) in float32, each None for zeros.

    sequences: the inputs; the memories have a row for each of them. states: the size of each memory. Raises
    `InputError` for other shapes, and for a c0 of a recurrence without c.
    """
    if len(states) == 1 and c0 is not None:
        raise InputError("c0 is the memory c of an LSTM, and this recurrence has none")
    arguments = zip(("h0", "c0"), (h0, c0), states, strict=False)
    return tuple(state(array, (sequences.rows, size), name) for name, array, size in arguments)


def attention_of(attention: Any, sequences: Sequences) -> Array:
    """Checks the caller's attention and returns it in float32 as [total, 1], one number for each step of the
    sequences. Raises `InputError` for attention of another type, shape or dtype.

    attention: a `Ragged` or an array, whichever the sequences were given as, with the same lengths.
    """
    x = sequences.given
    if isinstance(attention, Ragged) and isinstance(x, Ragged):
        if len(attention.offsets) != 1 or not np.array_equal(attention.offsets[0], x.offsets[0]):
            raise InputError(f"attention is a {attention}, and x a {x}: give one number for each step of x")
        values, steps = attention.values, x.values.shape[:1]
    elif isinstance(attention, Ragged) or isinstance(x, Ragged):
        kinds = ["a Ragged" if isinstance(value, Ragged) else "an array" for value in (attention, x)]
        raise InputError(f"attention is {kinds[0]}, and x {kinds[1]}: give both in the same form")
    else:
        values, steps = array_of(attention, "attention"), x.shape[:2]
    if values.shape not in (steps, (*steps, 1)):
        expected = " or ".join(str(list(shape)) for shape in (steps, (*steps, 1)))
        raise InputError(f"attention has shape {list(values.shape)}, and must have {expected}")
    check_float(values, "attention")
    return np.ascontiguousarray(values, np.float32).reshape(-1, 1)


def reversed_indices(offsets: Array) -> Array:
    """Computes the permutation that reverses the steps of each sequence, for primitives that only run
    forward.

    >>> reversed_indices(np.array([0, 3, 3, 5]))
    array([2, 1, 0, 4, 3])
    """
    both_ends: Array = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets))
    return both_ends - np.arange(len(both_ends))
