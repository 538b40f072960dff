"""Random numbers that belong to a sequence and a step: dropout masks, as inputs and statics of a recurrence.

A number is a function of a seed, the identity of its sequence, its step and its feature alone. So a sequence
gets the same numbers whatever else is in its batch, in any order, however it is cut, and on every machine.

That function is Philox4x32-10 (J. K. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", SC
2011) with the seed for its key and (block of four features, step, identity) for its counter. NumPy's own
generator of that name makes one sequence of numbers at a time; this one makes all of a batch at once.
"""

from typing import Any

import numpy as np

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import (
    array_of,
    checked_integer,
    checked_integers,
    choice,
    dtype_name,
    number,
)
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of, positions_of

__all__ = ["dropout", "uniform"]

Array = np.ndarray

WHOLE_SEQUENCE = 2**32 - 1
"""The step number that stands for a value drawn once per sequence."""

PER = ("sequence", "step")

MOST_SEED = 2**64 - 1
SEED = "a seed is a whole number from 0 to 2**64 - 1"


def dropout(
    rate: float,
    like: Any,
    features: int | tuple[int, ...] = (),
    *,
    seed: int,
    per: str = "sequence",
    dtype: Any = "float32",
    identities: Any = None,
    before: Any = 0,
) -> Any:
    """Returns dropout masks: 0 with probability `rate`, else 1 / (1 - rate), as in PyTorch and Keras.

    A number depends on the seed, the sequence, its step and its feature alone. So a sequence has the same
    mask in any batch and however it is cut.

    Args:
        rate: The probability of 0, from 0 to 1.
        like: A `Ragged`, or the lengths of the sequences.
        features: The feature shape of a mask.
        seed: A whole number from 0 to 2**64 - 1. Masks that should differ have different seeds: of inputs and
            of memories, of one epoch and the next.
        per: "sequence" for an array [batch, *features], which a recurrence takes as a static: a mask for all
            steps of a sequence. "step" for a `Ragged` with a mask for each step, which it takes as an input.
        dtype: The dtype of the masks.
        identities: [batch], a whole number that identifies each sequence; by default its place in the batch.
        before: The number of steps of each sequence that were cut off in front: one for all, or [batch].

    Raises:
        InputError: For a rate outside 0 to 1, another `per`, and lengths or identities that do not fit.

    >>> dropout(0.5, [2, 3], 4, seed=1).tolist()
    [[0.0, 2.0, 0.0, 2.0], [0.0, 2.0, 2.0, 0.0]]
    >>> dropout(0.5, [2, 3], 4, seed=1, per="step")
    Ragged(2 sequences of 2 to 3 steps, 4 features, float32)
    """
    rate = number(rate, "a dropout rate is from 0 to 1", lambda value: 0 <= value <= 1)
    name = dtype_name(dtype, "a dropout mask")
    scale = np.asarray(0 if rate == 1 else 1 / (1 - rate), name)

    def mask(numbers: Array) -> Array:
        """Maps uniform random numbers to entries of a mask, 0 or `scale`."""
        return np.where(numbers < rate, np.zeros((), name), scale)

    drawn = uniform(like, features, seed=seed, per=per, identities=identities, before=before)
    return drawn.with_values(mask(drawn.values)) if isinstance(drawn, Ragged) else mask(drawn)


def uniform(
    like: Any,
    features: int | tuple[int, ...] = (),
    *,
    seed: int,
    per: str = "sequence",
    identities: Any = None,
    before: Any = 0,
) -> Any:
    """Returns random float64 numbers in [0, 1): an array [batch, *features], or a `Ragged` for per="step".

    A number depends on the seed, the sequence, its step and its feature alone.

    Args:
        like: A `Ragged`, or the lengths of the sequences.
        features: The features of one sequence or step.
        seed: A whole number from 0 to 2**64 - 1.
        per: "sequence" for the same numbers at all steps of a sequence, "step" for numbers for each step.
        identities: [batch], a whole number that identifies each sequence; by default its place in the batch.
        before: The number of steps of each sequence that were cut off in front: one for all, or [batch].

    Raises:
        InputError: For another `per`, and for lengths, identities or counts that do not fit.

    >>> uniform([2, 3], seed=1).round(3)
    array([0.019, 0.208])
    """
    choice(per, f"per is {' or '.join(map(repr, PER))}", PER)
    offsets = (
        like.offsets[-1] if isinstance(like, Ragged) else offsets_of(checked_integers(like, None, "like"))
    )
    count = len(offsets) - 1
    names = identified(identities, count)
    shape = Spec(features).shape
    if per == "sequence":
        return numbers_at(seed, names, np.full(count, WHOLE_SEQUENCE), shape)
    given = array_of(before, "before")
    given = np.broadcast_to(given, count) if given.ndim == 0 else given
    lengths, skipped = np.diff(offsets), checked_integers(given, count, "before", WHOLE_SEQUENCE - 1)
    steps = positions_of(skipped, lengths)
    drawn = numbers_at(seed, np.repeat(names, lengths), steps, shape)
    return like.with_values(drawn) if isinstance(like, Ragged) else Ragged(drawn, (offsets,))


def identified(identities: Any, count: int) -> Array:
    """Returns the argument `identities` as int64: the numbers by which `count` sequences are identified.

    They select the random numbers of each sequence. None stands for 0, 1, 2, ...
    """
    return checked_integers(
        np.arange(count) if identities is None else identities, count, "identities", 2**64 - 1
    )


def numbers_at(seed: int, identities: Array, steps: Array, shape: tuple[int, ...] = ()) -> Array:
    """Returns the random numbers [len(steps), *shape] in [0, 1) for pairs of a sequence and a step. Raises
    `InputError` for an invalid seed.

    seed: the seed of all numbers.
    identities, steps: for each pair, the identity of the sequence and the number of the step.
    shape: the features of the numbers of one pair.
    """
    seed = checked_integer(seed, SEED, 0, MOST_SEED)
    size = int(np.prod(shape, dtype=np.int64))
    blocks = np.arange((size + 1) // 2, dtype=np.uint64)[None, :]
    key = int(seed) & 0xFFFFFFFF, int(seed) >> 32
    drawn, chunk = np.empty((len(steps), size)), max(1, IN_CACHE // max(1, blocks.size))
    for begin in range(0, len(steps), chunk):
        rows = slice(begin, begin + chunk)
        step, name = low(steps[rows, None].astype(np.uint64)), identities[rows, None].astype(np.uint64)
        words = np.stack(philox((blocks, step, low(name), high(name)), key), axis=-1)
        numbers = in_unit_interval(words[..., 0::2], words[..., 1::2])
        drawn[rows] = numbers.reshape(len(step), -1)[:, :size]
    return drawn.reshape(len(steps), *shape)


def number_in_step(seed: Traced, identity: Traced, step: Traced) -> Traced:
    """Returns the random number of each row in a traced step, bitwise equal to the number of `numbers_at`.

    seed, identity, step: for each row the seed, the identity of its sequence and the number of its step, as
    int64. A number of 2**63 or more is the int64 with the same bits.
    """
    counter = 0, low(step), low(identity), high(identity)
    first, second, _, _ = philox(counter, (low(seed), high(seed)))
    return in_unit_interval(first, second)


def in_unit_interval(first: Any, second: Any) -> Any:
    """Makes a number in [0, 1) of each two random words: of 53 bits, 27 of the first and 26 of the second."""
    return ((first >> 5 << 26) | (second >> 6)).astype(np.float64) * 2.0**-53


# ---- the generator -----------------------------------------------------------------------------------------

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
IN_CACHE = 2**13
"""The number of counters that are computed together, such that they fit into the cache."""


def philox(counter: tuple[Any, ...], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Computes the Philox4x32-10 generator: four 32-bit random words for each counter.

    Words are arrays of uint64, values of int64 in a traced step, or numbers of Python: from 0 to 2**32 - 1.
    Products of two words take all 64 bits.

    counter: the four words of the counters.
    key: the two words of the seed.
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(ROUNDS):
        product_a, product_c = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, c = high(product_c) ^ b ^ first, high(product_a) ^ d ^ second
        b, d = low(product_c), low(product_a)
        first, second = low(first + WEYL[0]), low(second + WEYL[1])
    return a, b, c, d


def low(words: Any) -> Any:
    """Returns the lower 32 bits of each word of 64, as the random number generator computes with 32 bits."""
    return words & 0xFFFFFFFF


def high(words: Any) -> Any:
    """Returns the upper 32 bits of each word of 64, which is signed or not."""
    return (words >> 32) & 0xFFFFFFFF


__dir__ = __all__.copy
