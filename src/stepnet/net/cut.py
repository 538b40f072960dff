"""The smallest set of values from which others can be computed: a minimum cut of a graph.

    sources   values that are there, or cost too much to be computed twice
    cut       what is handed over: the fewest bytes from which all sinks can be computed
    sinks     values that are needed

Every path from a source to a sink goes through a value of the cut. It is found as the maximum flow from the
sources to the sinks, where a value lets through as much as it weighs (Ford and Fulkerson, Maximal Flow
Through a Network, 1956; shortest paths first: Edmonds and Karp, 1972).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from stepnet.errors import NetError
from stepnet.net.ir import Node

Side = tuple[int, bool]
"""A value as it is reached (False), and as it is left for those that read it (True)."""
SOURCE, SINK = (-1, True), (-2, False)


def smallest_cut(
    operands: Mapping[int, Sequence[int]],
    weights: Mapping[int, float],
    sources: Iterable[int],
    sinks: Iterable[int],
    latest: bool = True,
) -> set[int]:
    """The lightest values that lie on every path from a source to a sink.

    Of cuts that weigh the same it is the latest, the one next to the sinks, or else the earliest.

    operands: for each value those that it is computed from. weights: of each value that may be in the cut;
    others are never in it. Raises `NetError` where a path has none that may be.

    >>> sorted(smallest_cut({1: [0], 2: [0], 3: [1, 2]}, {0: 4, 1: 3, 2: 3, 3: 8}, [0], [3]))
    [0]
    >>> sorted(smallest_cut({1: [0], 2: [0], 3: [1, 2]}, {0: 4, 1: 3, 2: 3, 3: 4}, [0], [3]))
    [3]
    """
    left: dict[Side, dict[Side, float]] = {}

    def connect(a: Side, b: Side, weight: float) -> None:
        left.setdefault(a, {})[b] = weight
        left.setdefault(b, {}).setdefault(a, 0)

    values = {*operands, *sources, *sinks, *(one for own in operands.values() for one in own)}
    for value in values:
        connect((value, False), (value, True), weights.get(value, inf))
        for operand in operands.get(value, ()):
            connect((operand, True), (value, False), inf)
    for value in sources:
        connect(SOURCE, (value, False), inf)
    for value in sinks:
        connect((value, True), SINK, inf)
    while path := shortest_path(left):
        flow = min(left[a][b] for a, b in path)
        if flow == inf:
            raise NetError("no values with a weight lie between a source and a sink")
        for a, b in path:
            left[a][b] -= flow
            left[b][a] += flow
    if latest:
        behind = reached(left, SINK, towards=False)
        return {value for value in values if (value, True) in behind and (value, False) not in behind}
    ahead = reached(left, SOURCE, towards=True)
    return {value for value in values if (value, False) in ahead and (value, True) not in ahead}


def shortest_path(left: Mapping[Side, Mapping[Side, float]]) -> list[tuple[Side, Side]]:
    """The edges of a path from the sources to the sinks that still lets something through; none if there is
    no such path.
    """
    ahead: dict[Side, Side] = {SOURCE: SOURCE}
    waiting = deque([SOURCE])
    while waiting and SINK not in ahead:
        here = waiting.popleft()
        for there, weight in left.get(here, {}).items():
            if weight > 0 and there not in ahead:
                ahead[there] = here
                waiting.append(there)
    path: list[tuple[Side, Side]] = []
    here = SINK
    while here in ahead and here != SOURCE:
        path.append((ahead[here], here))
        here = ahead[here]
    return path[::-1]


def reached(left: Mapping[Side, Mapping[Side, float]], start: Side, towards: bool) -> set[Side]:
    """The sides that are reached from one by what is left, or (not `towards`) from which it is reached."""
    known = {start}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for there in left.get(here, {}):
            weight = left[here][there] if towards else left[there].get(here, 0)
            if weight > 0 and there not in known:
                known.add(there)
                waiting.append(there)
    return known


DEAR = 10
"""How many operations a function takes at least for each number to be worth an array of its values."""


def is_dear(node: Node) -> bool:
    """Whether a value of each row is not to be computed twice: products, reductions and dear functions."""
    return node.kind in ("matmul", "reduce", "scan", "gather", "extent") or node.row.flops >= DEAR
