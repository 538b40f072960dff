"""Tables of which `make test` runs a part: one column of each row, or each row and each column somewhere."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

Case = TypeVar("Case", bound=Hashable)
Value = TypeVar("Value", bound=Hashable)


def in_turns(rows: Iterable[object], columns: Iterable[object]) -> list[tuple[object, object]]:
    """All pairs, row by row, each row beginning with the next column.

    A test of them that is marked `long(every=len(columns))` has each row once in `make test`, and each column
    where there are as many rows.

    >>> in_turns("ab", [1, 2])
    [('a', 1), ('a', 2), ('b', 2), ('b', 1)]
    """
    columns = list(columns)
    places = range(len(columns))
    return [
        (row, columns[(number + place) % len(columns)]) for number, row in enumerate(rows) for place in places
    ]


def values_of(case: Sequence[str], in_pairs: bool) -> frozenset[object]:
    """The values of a case by their places, or each two of these, as `covering` takes them.

    >>> sorted(values_of(["a", "x"], in_pairs=False))
    [(0, 'a'), (1, 'x')]
    >>> cases = [a + b + c for a in "12" for b in "xy" for c in "uv"]
    >>> sorted(covering({case: values_of(case, in_pairs=True) for case in cases}))
    ['1xu', '1yv', '2xv', '2yu']
    """
    values = enumerate(case)
    return frozenset(combinations(values, 2) if in_pairs else values)


def covering(grid: Mapping[Case, frozenset[Value]]) -> set[Case]:
    """Few of the cases, which have each value that any of them has: the one with most new values, repeatedly,
    and of such the one whose values were chosen least, so that a column is not in one case alone.

    >>> grid = {a + b: frozenset({("a", a), ("b", b)}) for a in "123" for b in "xy"}
    >>> sorted(covering(grid))
    ['1x', '2y', '3x']
    >>> grid = {a + b: frozenset({("a", a), ("b", b)}) for a in "123456" for b in "xy"}
    >>> sorted(covering(grid))
    ['1x', '2y', '3x', '4y', '5x', '6y']
    """
    kept, new = set[Case](), frozenset(value for values in grid.values() for value in values)
    chosen = Counter[Value]()
    while new:
        best = max(
            grid, key=lambda case: (len(grid[case] & new), -sum(chosen[value] for value in grid[case]))
        )
        kept.add(best)
        chosen.update(grid[best])
        new -= grid[best]
    return kept
