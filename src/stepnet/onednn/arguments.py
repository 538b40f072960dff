"""The checked arguments of a layer's call, with steps in the order in which the primitive reads them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.errors import InputError
from stepnet.onednn.sequences import Sequences, check_float, state
from stepnet.ragged import Ragged
from stepnet.values.arguments import array_of

Array = np.ndarray


@dataclass(frozen=True)
class Arguments:
    """The checked arguments of a call.

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

    def turned(self, values: Array) -> Array:
        """Values of each step, converted between the caller's order and the primitive's, in either
        direction.
        """
        return values if self.order is None else values[self.order]

    @property
    def x(self) -> Array:
        """The inputs [total, features]."""
        return self.turned(self.sequences.values)

    @property
    def weighted(self) -> Array | None:
        """The attention [total, 1]."""
        return None if self.attention is None else self.turned(self.attention)

    def like(self, values: Array) -> Any:
        """Values of each step in the primitive's order, as a value of the form of the sequences."""
        return self.sequences.like(self.turned(values))


def initial_of(sequences: Sequences, states: tuple[int, ...], h0: Any, c0: Any) -> tuple[Array | None, ...]:
    """The initial memories, checked. states: the sizes of h, and of c if there is one."""
    if len(states) == 1 and c0 is not None:
        raise InputError("c0 is the memory c of an LSTM, and this recurrence has none")
    named = zip(("h0", "c0"), (h0, c0), states, strict=False)
    return tuple(state(array, (sequences.rows, size), name) for name, array, size in named)


def attention_of(given: Any, sequences: Sequences) -> Array:
    """The attention [total, 1]: of a Ragged or an array with one number for each step of the sequences.

    Raises `InputError` unless it has the form and the lengths of the sequences.
    """
    x = sequences.given
    if isinstance(given, Ragged) and isinstance(x, Ragged):
        if len(given.offsets) != 1 or not np.array_equal(given.offsets[0], x.offsets[0]):
            raise InputError(f"attention is a {given}, and x a {x}: give one number for each step of x")
        values, steps = given.values, x.values.shape[:1]
    elif isinstance(given, Ragged) or isinstance(x, Ragged):
        kinds = ["a Ragged" if isinstance(each, Ragged) else "an array" for each in (given, x)]
        raise InputError(f"attention is {kinds[0]}, and x {kinds[1]}: give both in the same form")
    else:
        values, steps = array_of(given, "attention"), x.shape[:2]
    if values.shape not in (steps, (*steps, 1)):
        wanted = " or ".join(str(list(shape)) for shape in (steps, (*steps, 1)))
        raise InputError(f"attention has shape {list(values.shape)}, and must have {wanted}")
    check_float(values, "attention")
    return np.ascontiguousarray(values, np.float32).reshape(-1, 1)


def turned_places(offsets: Array) -> Array:
    """The permutation that reverses the steps of each sequence.

    >>> turned_places(np.array([0, 3, 3, 5]))
    array([2, 1, 0, 4, 3])
    """
    both_ends: Array = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets))
    return both_ends - np.arange(len(both_ends))
