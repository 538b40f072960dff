"""The checked arguments of a call of a layer, in the order in which the primitive takes the steps."""

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
    """What a layer is called with.

    sequences: as they were given. initial: the memories before the first step; None for zeros. attention: one
    number per step, [total, 1], in the order of the sequences. order: where each sequence has to be turned
    round for a primitive that runs from the first step alone, the place of each step; else None.
    """

    sequences: Sequences
    initial: tuple[Array | None, ...]
    attention: Array | None = None
    order: Array | None = None

    def turned(self, values: Array) -> Array:
        """Values of each step in the primitive's order; or, given in this, in the caller's."""
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
        """Values of each step as a primitive gives them, in the form of the sequences."""
        return self.sequences.like(self.turned(values))


def initial_of(sequences: Sequences, states: tuple[int, ...], h0: Any, c0: Any) -> tuple[Array | None, ...]:
    """The memories before the first step, checked. states: the sizes of h, and of c where there is one."""
    if len(states) == 1 and c0 is not None:
        raise InputError("c0 is the memory c of an LSTM, and this recurrence has none")
    named = zip(("h0", "c0"), (h0, c0), states, strict=False)
    return tuple(state(array, (sequences.rows, size), name) for name, array, size in named)


def attention_of(given: Any, sequences: Sequences) -> Array:
    """The attention [total, 1]: of a Ragged or an array with one number for each step of the sequences.

    Raises `InputError` for what does not lie as the sequences do.
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
    """For each step the place of the one as far from the other end of its sequence.

    >>> turned_places(np.array([0, 3, 3, 5]))
    array([2, 1, 0, 4, 3])
    """
    both_ends: Array = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets))
    return both_ends - np.arange(len(both_ends))
