"""Structures put together again, once and again and again."""

from collections import namedtuple
from typing import Any

import pytest

from stepnet.compiler.values import leaves, rebuild
from stepnet.compiler.values.structure import rebuilder
from stepnet.errors import InputError

Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    "structure",
    [0, None, (), (0, 0), ((0, None), [0, {"a": 0}]), {"b": 0, "a": (0,)}, Pair(0, [0, 0]), [Pair(0, 0)]],
    ids=str,
)
def test_a_rebuilder_makes_what_rebuild_makes(structure: Any) -> None:
    make = rebuilder(structure)
    for first in (1, 10):
        values = [*range(first, first + len(leaves(structure)))]
        made, right = make(values), rebuild(structure, values)
        assert made == right
        assert type(made) is type(right)
        assert leaves(made) == values


def test_a_structure_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="contains itself"):
        rebuilder(endless)
