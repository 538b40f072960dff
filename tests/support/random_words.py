"""Random sequences of words, as inputs of steps that read inner sequences."""

from typing import Any, cast

import numpy as np

import stepnet as sn

Array = np.ndarray
WIDTHS = (1, 3, 16, 17, 32)
"""Features of words: fewer than a vector has numbers, as many, and one more."""


def lengths(random: np.random.Generator, count: int, most: int) -> Array:
    """Random lengths, some of them zero."""
    return random.integers(0, most + 1, count) * (random.random(count) > 0.2)


def ragged(random: np.random.Generator, counts: Array, features: int) -> sn.Ragged:
    """Sequences of these lengths, in float64."""
    return sn.Ragged(random.normal(size=(int(counts.sum()), features)), (np.cumsum([0, *counts]),))


def inside(sentences: sn.Ragged, words: sn.Ragged) -> sn.Ragged:
    """Words, of which each step of the sentences has one sequence."""
    return sn.Ragged(words.values, (*sentences.offsets, *words.offsets))


def rows_in(dtype: str, sequences: sn.Ragged, rows: Any = slice(None)) -> sn.Ragged:
    """Some rows of sequences, in a dtype."""
    return cast(sn.Ragged, sequences.with_values(np.asarray(sequences.values).astype(dtype))[rows])
