"""Options of which every two values meet, in few combinations."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

MOST = 5_000
"""Up to how many combinations all are looked at; of more, some are drawn for each pair."""
DRAWN = 100


def pairwise(options: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Combinations in which every two values of two options meet."""
    names, sizes = list(options), [range(len(values)) for values in options.values()]
    left = {
        pair
        for a, b in itertools.combinations(range(len(names)), 2)
        for pair in itertools.product(((a, place) for place in sizes[a]), ((b, place) for place in sizes[b]))
    }
    count, draw = 1, random.Random(0)
    for size in sizes:
        count *= len(size)
    every = list(itertools.product(*sizes)) if count <= MOST else []
    while left:
        candidates = every or [drawn_with(min(left), sizes, draw) for _ in range(DRAWN)]
        best = max(candidates, key=lambda one: len(left & set(itertools.combinations(enumerate(one), 2))))
        left -= set(itertools.combinations(enumerate(best), 2))
        yield {name: options[name][place] for name, place in zip(names, best, strict=True)}


def drawn_with(pair: tuple[tuple[int, int], ...], sizes: list[range], draw: random.Random) -> tuple[int, ...]:
    """A random combination in which these two values meet."""
    known = dict(pair)
    return tuple(known[place] if place in known else draw.choice(size) for place, size in enumerate(sizes))
