"""PairPlaces of steps: each step of a sequence, a query, with the steps that it attends to, its keys.

    queries              a b c                       keys of the same sequence: A B C
    rows/steps/steps*    aA aB aC bA bB bC cA cB cC  every query with all keys of its sequence
    rows/steps/steps<    aA bA bB cA cB cC           only with those up to its own index: causal

    scores    at each pair the product of query and key, summed over the last axis of features
    mix       weights at pairs times values at keys, summed over the keys of each query; or
              weights at pairs times values at queries, summed over the queries of each key

Pairs lie query by query, so that a value at pairs is one at an inner axis of the queries: `expand` repeats
what a query has at its pairs, and `reduce` goes over its keys. The name of the inner axis says what its
lengths follow from. Each of both operations has the other one in its gradients, so no further one is needed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.types import CAUSAL, PAIRS, Extent
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
OVER = ("keys", "queries")
"""The sides that `mix` sums over: the keys of each query, or the queries of each key."""


def pairs_of(queries: Extent, keys: Extent, causal: bool) -> Extent:
    """Returns the extent (the nested axes along which there are values) of the pairs of the steps of two
    sequences of each row.

    The steps of one are the queries, those of the other the keys. causal: whether a query is paired only with
    the keys up to its own index.

    >>> pairs_of(("rows", "steps"), ("rows", "words"), False)
    ('rows', 'steps', 'words*')
    """
    return (*queries, keys[-1] + (CAUSAL if causal else PAIRS))


def queries_of(extent: Extent) -> Extent:
    """Returns the extent of the queries of pairs, from that of the pairs."""
    return extent[:-1]


def keys_of(extent: Extent) -> Extent:
    """Returns the extent (the nested axes) of the keys (the steps that queries attend to), from that of the
    pairs of queries and keys.

    >>> keys_of(("rows", "steps", "words*"))
    ('rows', 'words')
    """
    return (*extent[:-2], extent[-1][:-1])


def is_causal(extent: Extent) -> bool:
    """Tells whether the pairs at this extent are those of queries with the keys up to their own index."""
    return extent[-1].endswith(CAUSAL)


class PairPlaces(NamedTuple):
    """Places of pairs: where the queries and the keys of each sequence begin, and the pairs of each query.

    queries, keys: the offsets of both, by sequence. offsets: the offsets of the pairs, by query.
    """

    queries: Array
    keys: Array
    offsets: Array

    @classmethod
    def of(cls, queries: Array, keys: Array, causal: bool) -> "PairPlaces":
        """Computes where the pairs of each query with its keys (steps of two sequences of a row) begin, one
        query after the other. queries, keys: where the steps of each sequence begin and end.

        causal: whether a query is paired only with the keys up to its own index.

        >>> PairPlaces.of(np.array([0, 2, 3]), np.array([0, 2, 5]), causal=True).offsets
        array([0, 1, 3, 4])
        """
        counts = np.diff(queries)
        lengths = np.repeat(np.diff(keys), counts)
        if causal:
            lengths = np.minimum(lengths, np.arange(len(lengths)) - np.repeat(queries[:-1], counts) + 1)
        return cls(queries, keys, offsets_of(lengths))

    def by_query(self) -> Iterator[tuple[int, slice, slice]]:
        """Yields each query by its number, with the slices of its keys and of its pairs."""
        firsts = np.repeat(self.keys[:-1], np.diff(self.queries))
        for query, first in enumerate(firsts.tolist()):
            begin, end = self.offsets[query : query + 2].tolist()
            yield query, slice(first, first + end - begin), slice(begin, end)


def scores(queries: Array, keys: Array, pairs: PairPlaces, over: str = "") -> Array:
    """Computes the products of queries and keys at their pairs, summed over the last axis of features.

    queries [queries, features..., size], keys [keys, features..., size]: the result is [pairs, features...].
    over: not read: `mix` has it.
    """
    made = np.empty((int(pairs.offsets[-1]), *queries.shape[1:-1]), queries.dtype)
    for query, read, own in pairs.by_query():
        made[own] = np.einsum("...f,s...f->s...", queries[query], keys[read])
    return made


def mix(weights: Array, values: Array, pairs: PairPlaces, over: str) -> Array:
    """Multiplies weights at pairs [pairs, features...] with values [entries, features..., size], and sums.

    over: "keys" for values at keys and a result at queries; "queries" for the reverse.
    """
    count = (pairs.queries if over == "keys" else pairs.keys)[-1]
    made = np.zeros((int(count), *values.shape[1:]), values.dtype)
    for query, read, own in pairs.by_query():
        if over == "keys":
            made[query] = np.einsum("s...,s...f->...f", weights[own], values[read])
        else:
            made[read] += weights[own][..., None] * values[query]
    return made


PAIRED = {"scores": scores, "mix": mix}
"""The functions of the operations between steps and pairs of them, by the name of the operation."""
