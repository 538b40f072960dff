"""The smallest cut, against every other one of small graphs."""

from collections.abc import Iterable
from itertools import combinations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stepnet.compiler.net.cut import smallest_cut
from stepnet.errors import NetError

Graph = dict[int, list[int]]
COUNT = 6


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, dict[int, int], list[int], list[int]]:
    """Values whose operands come before them, what each weighs, and some sources and sinks."""
    operands = {n: draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) for n in range(1, COUNT)}
    weights = {n: draw(st.integers(1, 4)) for n in range(COUNT)}
    numbers = st.lists(st.integers(0, COUNT - 1), min_size=1, unique=True)
    return operands, weights, draw(numbers), draw(numbers)


def cuts(operands: Graph, cut: Iterable[int], sources: list[int], sinks: list[int]) -> bool:
    """True if no path from a source to a sink goes around a cut."""
    cut, waiting = set(cut), list(sinks)
    while waiting:
        number = waiting.pop()
        if number not in cut:
            if number in sources:
                return False
            waiting += operands.get(number, [])
    return True


@pytest.mark.long(examples=20)
@given(graphs(), st.booleans())
def test_no_other_cut_is_lighter(
    graph: tuple[Graph, dict[int, int], list[int], list[int]], latest: bool
) -> None:
    operands, weights, sources, sinks = graph
    found = smallest_cut(operands, weights, sources, sinks, latest)
    assert cuts(operands, found, sources, sinks)
    every = [set(some) for size in range(COUNT + 1) for some in combinations(range(COUNT), size)]
    lightest = min(sum(weights[n] for n in some) for some in every if cuts(operands, some, sources, sinks))
    assert sum(weights[n] for n in found) == lightest


def test_of_equal_cuts_the_latest_or_the_earliest() -> None:
    chain = {1: [0], 2: [1]}
    assert smallest_cut(chain, {0: 1, 1: 1, 2: 1}, [0], [2]) == {2}
    assert smallest_cut(chain, {0: 1, 1: 1, 2: 1}, [0], [2], latest=False) == {0}


def test_values_without_a_weight_are_in_no_cut() -> None:
    chain = {1: [0], 2: [1]}
    assert smallest_cut(chain, {1: 5}, [0], [2]) == {1}
    with pytest.raises(NetError, match="has no value that may be cut"):
        smallest_cut(chain, {}, [0], [2])
