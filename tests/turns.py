"""Tables of which `make test` runs one column of each row."""

from collections.abc import Iterable


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
