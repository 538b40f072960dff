"""Computes the costs of a schedule and the memory that it holds: per step, per sequence, and once.

x @ W at rows/steps       2 * 3 * 12 flops of each step contract of both          2 * 3 * 12 flops of each
step: it adds all steps up W.T                       once
"""

from collections.abc import Iterable, Iterator, Mapping

from stepnet.compiler.net.flops import flops
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.type_rules import TOTALS
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.values.records import dataclass
from stepnet.explain.facts import inner_extent, is_number, nbytes, stages_of, traffic
from stepnet.explain.value_names import is_work

STAGE_EXTENTS = {
    "once": CONST,
    "sequence": ROWS,
    "before": STEPS,
    "loop": STEPS,
    "after": STEPS,
    "reduced": STEPS,
    "ended": ROWS,
}
"""For each stage, the extent of one run. The stage `total` has an entry for each extent that it sums over."""


@dataclass(frozen=True)
class Cost:
    """The cost of some work each time it runs.

    flops: floating-point operations. weights: bytes of parameters read. values: bytes of other values read or
    written.
    """

    flops: int = 0
    weights: int = 0
    values: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Adds two costs, number by number."""
        return Cost(self.flops + other.flops, self.weights + other.weights, self.values + other.values)


Costs = Mapping[Extent, Cost]
"""Costs by extent: of one step, of one sequence, of one call, and so on."""
Held = Mapping[Extent, int]
"""Bytes by extent: of one step, of one sequence, and so on."""


def added(pairs: Iterable[tuple[Extent, Cost]]) -> dict[Extent, Cost]:
    """Adds up the costs (operations, bytes) of parts of a model that have the same extent, such as per step.
    Returns the sums by extent, that with the most axes first (per step before per sequence).
    """
    costs: dict[Extent, Cost] = {}
    for extent, cost in pairs:
        costs[extent] = costs.get(extent, Cost()) + cost
    return dict(sorted(costs.items(), key=lambda pair: -len(pair[0])))


def bytes_of(types: Iterable[Type]) -> dict[Extent, int]:
    """Adds up the bytes of one entry of each type, by extent: per step, per sequence, and so on."""
    sizes: dict[Extent, int] = {}
    for type_ in types:
        sizes[type_.extent] = sizes.get(type_.extent, 0) + nbytes([type_])
    return sizes


def sum_of(*parts: Held) -> dict[Extent, int]:
    """Adds up tables of bytes by extent: per step, per sequence, and so on."""
    return {extent: sum(part.get(extent, 0) for part in parts) for part in parts for extent in part}


# ---- what is done ------------------------------------------------------------------------------------------


def costs(schedule: Schedule) -> dict[Extent, Cost]:
    """Computes the costs of all parts of a schedule, by extent: per step, per sequence, and once."""
    return added(pair for part in schedule.parts for pair in part_costs(schedule.net, part))


def part_costs(net: Net, part: Part) -> Iterator[tuple[Extent, Cost]]:
    """Yields (extent, cost) for the work of one part of a schedule (a net cut into parts); the extent (such
    as per step) says how often the work is done. A plan (which operation runs when) or an inner schedule is
    run for each entry of the part's extent, so the extents of its own work are appended to that.

    net: the net that contains the part.
    """
    if part.plan is not None:
        rows = part.extent[:-1] if part.kind == "recurrence" else part.extent
        extents = {CONST: CONST, ROWS: rows, STEPS: part.extent}
        for extent, cost in plan_costs(part.plan):
            yield extents.get(extent, (*part.extent, *extent[2:])), cost
    elif part.inner is not None:
        for extent, cost in costs(part.inner).items():
            yield (*part.extent, *extent[1:]) if extent else CONST, cost
    else:
        yield from node_costs(net, [number for number in part.results if number >= 0])


def plan_costs(plan: Plan) -> Iterator[tuple[Extent, Cost]]:
    """Yields (extent, cost) for each stage of a plan (which operation runs when); the extent says how often
    it runs, such as once per step.
    """
    for name, net, phases in stages_of(plan):
        numbers = [number for phase in phases for number in phase]
        if name == "total":
            yield from node_costs(net, numbers)
            continue
        by_extent: dict[Extent, list[int]] = {}
        for number in numbers:
            inner = inner_extent(net, number)[1:] if name == "loop" else ()
            by_extent.setdefault((*STAGE_EXTENTS[name], *inner), []).append(number)
        for extent, nodes in by_extent.items():
            if any(is_work(net.nodes[n]) for n in nodes):
                yield extent, Cost(sum(flops(net, n) for n in nodes), *traffic(net, nodes))


def node_costs(net: Net, numbers: Iterable[int]) -> Iterator[tuple[Extent, Cost]]:
    """Yields (extent, cost) for nodes of a net; the extent says how often each runs, such as per step.

    The work of a node is counted at the extent of its value, that of a sum over all sequences at the extent
    of the values that it adds up. The result, as bytes written, is yielded as a further pair. numbers: the
    nodes.
    """
    for number in numbers:
        node = net.nodes[number]
        if not is_work(node):
            continue
        read = [net.nodes[operand] for operand in node.inputs]
        types = [operand.type for operand in read if not is_number(operand)]
        extent = types[0].extent if node.operation in TOTALS and types else node.type.extent
        weights = nbytes(type_ for type_ in types if type_.extent == CONST)
        values = nbytes(type_ for type_ in types if type_.extent != CONST)
        yield extent, Cost(flops(net, number), weights, values)
        yield node.type.extent, Cost(values=nbytes([node.type]))


# ---- what is held ------------------------------------------------------------------------------------------


def held_bytes(schedule: Schedule) -> dict[Extent, int]:
    """Adds up the memory in bytes, per step and per sequence, that a call of a schedule (a net cut into
    parts) holds beyond its results.

    These are values that one part hands to another, which live to the end, and values of all steps that a
    plan (which operation runs when) keeps for sums over all sequences. Of the latter the plan that keeps most
    counts, as plans run one after the other. Returns the bytes by extent (how often the value occurs).
    """
    net = schedule.net
    if schedule.single_plan is not None:
        return held_to_the_end(schedule.single_plan)
    results = {*net.results}
    computed = {number for part in schedule.parts for number in part.results if number >= 0}
    between = bytes_of(net.type_of(number) for number in computed - results)
    inside = [
        held_to_the_end(part.plan)
        for part in schedule.parts
        if part.plan is not None and part.extent == STEPS
    ]
    return sum_of(between, max(inside, key=lambda sizes: sizes.get(STEPS, 0), default=dict[Extent, int]()))


def held_to_the_end(plan: Plan) -> dict[Extent, int]:
    """Returns {STEPS: bytes of each step} that a plan keeps for the work after its loop, or {}."""
    read = plan.read_in_the_end - {*plan.net.inputs}
    return bytes_of(plan.net.type_of(n) for n in read if plan.net.type_of(n).extent == STEPS)
