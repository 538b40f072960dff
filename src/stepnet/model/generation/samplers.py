"""`sampling`: symbols drawn with the probabilities of their scores, on arrays and inside a net."""

import math
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import checked_integer, number
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
MOST_SYMBOLS = 256
"""The largest number of symbols among which a net draws: it compares each score with every other."""


@dataclass(frozen=True)
class Sampling:
    """A sampler for `generate`; `sampling` makes it and documents the fields."""

    temperature: float
    top_k: int | None
    top_p: float | None

    def __call__(self, scores: Array, random: Array) -> Array:
        """Draws a symbol for each row, given scores [rows, symbols] and random numbers [rows] in [0, 1).

        It is the first symbol, in the order of falling scores, up to which the probabilities sum to more than
        the random number times the sum of all. Symbols beyond `top_k` or `top_p` have probability 0. Of equal
        scores the lower symbol comes first.
        """
        known = scores.astype(np.float64)  # first, as unsigned integers have no negative
        order = np.argsort(-known, axis=-1, kind="stable")
        ordered = np.take_along_axis(known, order, axis=-1)
        with np.errstate(over="ignore"):  # far below the highest score the weight is 0
            weights = np.exp((ordered - ordered[:, :1]) / self.temperature)
        weights /= weights.sum(axis=-1, keepdims=True)
        if self.top_p is not None:
            weights = np.where(np.cumsum(weights, axis=-1) - weights < self.top_p, weights, 0)
        sums = np.cumsum(weights[:, : self.top_k], axis=-1)
        places = (sums <= random[:, None] * sums[:, -1:]).sum(axis=-1)
        return np.take_along_axis(order, places[:, None], axis=-1)[:, 0]

    def of_values(self, scores: Traced, random: Traced) -> Traced:
        """Draws the symbol of each row, as values of the step that is being traced.

        It is the first symbol, by falling scores, where the sum of probabilities exceeds the random number.
        As a net does not sort, the rank of a symbol is the number of symbols with a higher score, or with
        the same score and a lower number.
        """
        count = scores.type.shape[0]
        known = scores.astype(np.float64)
        mine, other = known[:, :, None], known[:, None, :]
        places = np.arange(count)
        above = (other > mine) | ((other == mine) & (places[None, :] < places[:, None]))
        rank = np.sum(above.astype(np.int64), axis=-1)
        weights: Any = np.exp((known - np.max(known, axis=-1, keepdims=True)) / self.temperature)
        weights = weights / np.sum(weights, axis=-1, keepdims=True)
        if self.top_p is not None:
            weights = np.where(sum_of(weights, above) < self.top_p, weights, 0.0)
        if self.top_k is not None:
            weights = np.where(rank < self.top_k, weights, 0.0)
        drawn = random * np.sum(weights, axis=-1)
        passed = sum_of(weights, above) + weights <= drawn[:, None]
        place = np.sum(passed.astype(np.int64), axis=-1)
        return np.argmax((rank == place[:, None]).astype(np.int64), axis=-1)


def sum_of(weights: Traced, above: Traced) -> Traced:
    """Returns for each symbol s the sum of the weights of all t that rank above s, to draw symbols by.
    weights, above: the weights [rows, symbols], and flags [rows, s, t], True if t ranks above s.
    """
    return np.sum(np.where(above, weights[:, None, :], 0.0), axis=-1)


def sampling(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Sampling:
    """Returns a sampler for `generate` that draws symbols with the probabilities softmax(scores /
    temperature).

    Args:
        temperature: Above 0. Below 1 likely symbols become more likely, above 1 less.
        top_k: Draw only from the k symbols with the highest scores.
        top_p: Draw only from the smallest set of most probable symbols whose probabilities sum to at least
            `top_p`.

    Returns:
        A function sampler(scores [rows, symbols], random [rows]) -> symbols [rows].

    Raises:
        InputError: For a temperature that is not above 0, a `top_k` below 1, and a `top_p` outside (0, 1].

    >>> sampling(top_k=2)(np.log([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), np.array([0.6, 0.8])).tolist()
    [0, 1]
    """
    checked_temperature = number(
        temperature,
        "temperature is above 0",
        lambda value: 0 < value < math.inf,
        "; without a sampler the best is taken",
    )
    if top_k is not None:
        top_k = checked_integer(top_k, "top_k is how many symbols may be drawn, 1 or more", 1)
    if top_p is not None:
        top_p = number(top_p, "top_p is a probability above 0", lambda value: 0 < value <= 1)
    return Sampling(checked_temperature, top_k, top_p)
