"""The smallest set of values from which others can be computed: a minimum cut of a graph.

    sources   values that exist, or that cost too much to be computed twice
    cut       values that are handed over: the set of least weight from which all sinks can be computed
    sinks     values that are needed

Every path from a source to a sink goes through a value of the cut. The cut is found by the maximum flow from
the sources to the sinks, where the capacity of a value is its weight (Ford and Fulkerson, Maximal Flow
Through a Network, 1956; with shortest paths first: Edmonds and Karp, 1972).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from stepnet.compiler.net.ir import Node
from stepnet.errors import NetError

Side = tuple[int, bool]
"""The two ends of a value in the flow network: its entry (False) and its exit (True)."""
SOURCE, SINK = (-1, True), (-2, False)


def smallest_cut(
    operands: Mapping[int, Sequence[int]],
    weights: Mapping[int, float],
    sources: Iterable[int],
    sinks: Iterable[int],
    latest: bool = True,
) -> set[int]:
    """Returns the lightest set of values (a cut) from which all sinks can be computed: it has a value of
    every path from a source to a sink.

    Among cuts of equal weight, `latest` selects the one nearest to the sinks; otherwise it is the one nearest
    to the sources.

    operands: for each value, the values that it is computed from.
    sources, sinks: the values that exist, and those that are needed.
    weights: the weight of each value that may be in the cut; a value without a weight is never cut.

    Raises `NetError` if a path from a source to a sink has no value with a weight.

    >>> sorted(smallest_cut({1: [0], 2: [0], 3: [1, 2]}, {0: 4, 1: 3, 2: 3, 3: 8}, [0], [3]))
    [0]
    >>> sorted(smallest_cut({1: [0], 2: [0], 3: [1, 2]}, {0: 4, 1: 3, 2: 3, 3: 4}, [0], [3]))
    [3]
    """
    residual: dict[Side, dict[Side, float]] = {}

    def connect(a: Side, b: Side, weight: float) -> None:
        """Adds an edge from a to b with this capacity to the flow network, and its reverse with none."""
        residual.setdefault(a, {})[b] = weight
        residual.setdefault(b, {}).setdefault(a, 0)

    values = {*operands, *sources, *sinks, *(value for own in operands.values() for value in own)}
    for value in values:
        connect((value, False), (value, True), weights.get(value, inf))
        for operand in operands.get(value, ()):
            connect((operand, True), (value, False), inf)
    for value in sources:
        connect(SOURCE, (value, False), inf)
    for value in sinks:
        connect((value, True), SINK, inf)
    while path := shortest_path(residual):
        flow = min(residual[a][b] for a, b in path)
        if flow == inf:
            raise NetError("a path from a source to a sink has no value that may be cut")
        for a, b in path:
            residual[a][b] -= flow
            residual[b][a] += flow
    if latest:
        behind = reached(residual, SINK, towards=False)
        return {value for value in values if (value, True) in behind and (value, False) not in behind}
    ahead = reached(residual, SOURCE, towards=True)
    return {value for value in values if (value, False) in ahead and (value, True) not in ahead}


def shortest_path(residual: Mapping[Side, Mapping[Side, float]]) -> list[tuple[Side, Side]]:
    """Finds a shortest path from the sources to the sinks of the flow network, along edges that can carry
    more flow.

    residual: for each end of a value, its entry (value, False) or exit (value, True), the remaining capacity
        of each edge from it.
    Returns the edges in order; an empty list if there is no path.
    """
    ahead: dict[Side, Side] = {SOURCE: SOURCE}
    waiting = deque([SOURCE])
    while waiting and SINK not in ahead:
        node = waiting.popleft()
        for neighbour, weight in residual.get(node, {}).items():
            if weight > 0 and neighbour not in ahead:
                ahead[neighbour] = node
                waiting.append(neighbour)
    path: list[tuple[Side, Side]] = []
    node = SINK
    while node in ahead and node != SOURCE:
        path.append((ahead[node], node))
        node = ahead[node]
    return path[::-1]


def reached(residual: Mapping[Side, Mapping[Side, float]], start: Side, towards: bool) -> set[Side]:
    """Returns the ends of values in the flow network that can be reached from `start` along edges with
    remaining capacity. The minimum cut lies at the border of this set.

    residual: for each end of a value, its entry (value, False) or exit (value, True), the remaining capacity
        of each edge from it.
    towards: if false, returns the ends from which `start` can be reached.
    """
    known = {start}
    waiting = [start]
    while waiting:
        node = waiting.pop()
        for neighbour in residual.get(node, {}):
            weight = residual[node][neighbour] if towards else residual[neighbour].get(node, 0)
            if weight > 0 and neighbour not in known:
                known.add(neighbour)
                waiting.append(neighbour)
    return known


EXPENSIVE = 10
"""The number of operations per element from which a value is stored rather than computed twice."""


def is_expensive(node: Node) -> bool:
    """Tells whether a node's values cost too much to be computed twice: products, reductions, scans, gathers,
    operations from sequences to their steps or back, and functions such as exp.
    """
    return node.kind in ("matmul", "reduce", "scan", "gather", "extent") or node.row.flops >= EXPENSIVE
