"""Collects the facts about a plan: its operations by stage, their costs, and the engine that runs them.

Inputs and parameters have their own names, a view is named by what it reads (`W[:, :64]`), and all other
values are numbered through all stages (`%1`). `explain` writes these facts as text.
"""

from collections.abc import Iterable, Iterator, Sequence

from stepnet.compiler.net.flops import flops
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, Extent, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import (
    AUTO,
    REFERENCE,
    choose,
    engine_named,
    engine_names,
    is_engine,
    order_of,
    planning_of,
)
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError
from stepnet.explain.document import OperationLine
from stepnet.explain.expressions import expression, types_text
from stepnet.explain.value_names import Names, is_reading, is_work, names_of_plan, of_inner_step

Asked = str | Sequence[str]


@dataclass(frozen=True)
class StageFacts:
    """Work of one stage of a plan, by phase, and the cost of each time it runs.

    phases: the operations of each phase. flops: the floating-point operations. weights: the bytes of
    parameters that are read. values: the bytes of other values that are read or written. inner: the flops for
    each step of the inner sequences that a step reads.
    """

    name: str
    phases: tuple[tuple[OperationLine, ...], ...]
    flops: int
    weights: int
    values: int
    inner: int = 0


@dataclass(frozen=True)
class Explanation:
    """Facts about a plan: what it takes and gives, its stages, and the engine that runs it.

    inputs, memories, statics, parameters, results: the type of one element of each, by name.
    reverse: whether each sequence runs from its last step.
    stages: the stages, in the order they run.
    engine: the name of the chosen engine; None if all engines refuse.
    engines: for each engine, why it refuses the plan; None if it does not.
    """

    inputs: dict[str, str]
    memories: dict[str, str]
    statics: dict[str, str]
    parameters: dict[str, str]
    results: dict[str, str]
    reverse: bool
    stages: tuple[StageFacts, ...]
    engine: str | None
    engines: dict[str, str | None]


def explanation(schedule: Schedule, engine: Asked = "auto") -> Explanation:
    """Collects the facts about a schedule that has a single plan, for the engines that the user asks for."""
    chosen, engines = choice(schedule, engine)
    single = schedule_on(schedule, chosen).single_plan
    assert single is not None
    return plan_explanation(single, chosen, engines)


def choice(schedule: Schedule, engine: Asked) -> tuple[str | None, dict[str, str | None]]:
    """Chooses the engine that runs a schedule (a net cut into parts), for an explanation. Returns (name of
    the chosen engine, or None if all refuse; for each engine by name, why it refuses the schedule, or None).

    engine: the engine, or several in order, that the user asks for. Engines that need more than stepnet's own
    dependencies are included only if they are asked for.
    """
    asked = dict.fromkeys((*order_of(engine), *AUTO, REFERENCE))
    try:
        chosen = choose(schedule, engine)[0].name
    except RefusedError:
        chosen = None
    names = dict.fromkeys((*engine_names(), *asked))
    engines = {name: engine_named(name) for name in names if name in asked}
    return chosen, {name: each.refuse(schedule.planned(planning_of(each))) for name, each in engines.items()}


def schedule_on(schedule: Schedule, chosen: str | None) -> Schedule:
    """Returns a schedule (a net cut into parts) with the plans (which operation runs when) for the chosen
    engine. Several engines together, or none, have no plans of their own: the schedule is returned unchanged.

    chosen: the name that `choice` returned.
    """
    if chosen is None or not is_engine(chosen):
        return schedule
    return schedule.planned(planning_of(engine_named(chosen)))


def plan_explanation(plan: Plan, chosen: str | None, engines: dict[str, str | None]) -> Explanation:
    """Collects the facts about one plan (which operation runs when): its values, stages and engines.

    chosen: the name of the chosen engine; None for none. engines: for each engine, why it refuses the plan;
    None if it does not.
    """
    outer, inner = names_of_plan(plan)
    traced, ends = plan.traced, plan.ends
    inputs = [(traced.nodes[number].name, traced.type_of(number)) for number in traced.inputs]
    kinds = (ends.sequences, ends.memories, ends.statics, ends.parameters)
    sequence_inputs, memories, statics, parameters = (
        elements(inputs[index] for index in kind) for kind in kinds
    )
    names = result_names(plan)
    return Explanation(
        sequence_inputs,
        memories,
        statics,
        parameters,
        {names[index]: outer.of(number) for index, number in enumerate(plan.net.results)},
        plan.reverse,
        tuple(stages(plan, outer, inner)),
        chosen,
        engines,
    )


def result_names(plan: Plan) -> dict[int, str]:
    """Names each result of a plan (which operation runs when) by its index, for an explanation. The last
    memory h is "next h"; others are "output", "row" (one per sequence) or "total", with a number if there are
    several of a kind.
    """
    memories = plan.recurrence.recur.body.nodes
    names = {
        number: f"next {memories[inside].name}"
        for number, inside in zip(plan.last, plan.recurrence.recur.memories, strict=True)
    }
    outputs: dict[int, str] = {}
    kinds = (("output", plan.ends.steps), ("row", plan.ends.rows), ("total", plan.ends.totals))
    for kind, indices in kinds:
        others = [index for index in indices if plan.net.results[index] not in names]
        outputs |= {index: names[plan.net.results[index]] for index in indices if index not in others}
        outputs |= {
            index: f"{kind} {count}" if len(others) > 1 else kind for count, index in enumerate(others)
        }
    return dict(sorted(outputs.items()))


def elements(ends: Iterable[tuple[str, Type]]) -> dict[str, str]:
    """Returns each value's type as text, such as f32[64], by name. ends: pairs (name, type)."""
    return {name: type_.element for name, type_ in ends}


# ---- what is done, and what it costs ----------------------------------------------------------------------


def stages_of(plan: Plan) -> Iterator[tuple[str, Net, tuple[tuple[int, ...], ...]]]:
    """Yields (name, net, phases) of each stage of a plan (which operation runs when), in the order in which
    they run.

    name: such as "once", "loop" or "total". net: the net that the stage's nodes belong to. phases: for each
    phase, the numbers of nodes that compute values.
    """
    for name, net, phases in (
        ("once", plan.net, (plan.once,)),
        *plan.stages,
        ("total", plan.net, (plan.total,)),
    ):
        nodes = net.nodes
        gives = {n for n, node in enumerate(nodes) if is_work(node) or node.operation == "result"}
        yield name, net, tuple(tuple(n for n in phase if n in gives) for phase in phases)


def stages(plan: Plan, outer: Names, inner: Names) -> Iterator[StageFacts]:
    """Yields the stages of a plan that have any work, with their operations and costs.

    A stage is one of the times at which operations run, such as once per step. outer: names the values of the
    plan's net. inner: names those of the loop's body (the net of one step).
    """
    for name, net, phases in stages_of(plan):
        names = inner if name == "loop" else outer
        lines = [
            tuple(text for n in phase if is_work(net.nodes[n]) for text in node_lines(names, n))
            for phase in phases
        ]
        numbers = [number for phase in phases for number in phase]
        if any(lines):
            deep = {n for n in numbers if name == "loop" and len(inner_extent(net, n)) > 1}
            weights, values = traffic(net, numbers)
            of_inner = sum(flops(net, n) for n in deep)
            of_rows = sum(flops(net, n) for n in numbers) - of_inner
            yield StageFacts(name, tuple(text for text in lines if text), of_rows, weights, values, of_inner)


def inner_extent(net: Net, number: int) -> Extent:
    """Returns the extent over which the operation of a node runs in one step: once per sequence, or also once
    for each step of inner sequences. A reduction or a recurrence runs over the extent of its first input.
    """
    node = net.nodes[number]
    reads = node.operation in ("reduce", "recur")
    return net.type_of(node.inputs[0]).extent if reads else node.types[0].extent


def node_lines(names: Names, number: int) -> list[OperationLine]:
    """Makes the line of an explanation for one node, and the lines of its step if it is an inner recurrence.

    names: the names of the net's values. number: the node.
    """
    node = names.net.nodes[number]
    if node.operation != "recur":
        return [line(names, number)]
    recur, inside = node.recur, of_inner_step(names, number)
    computed = [n for n, inner in enumerate(recur.body.nodes) if is_work(inner)]
    lines = [line(inside, n) for n in computed]
    memories = zip(recur.memories, recur.following, strict=True)
    lines += [
        OperationLine(
            (f"next {inside.of(memory)}",), inside.of(following), types_text(recur.body.nodes[memory].types)
        )
        for memory, following in memories
    ]
    nested = (OperationLine((f"    {own.gives[0]}", *own.gives[1:]), own.text, own.type) for own in lines)
    return [line(names, number), *nested]


def line(names: Names, number: int) -> OperationLine:
    """Makes the line of an explanation for one node: the names of its values ("_" for one that nothing
    reads), its expression, and the types.

    names: the names of the net's values. number: the node.
    """
    node = names.net.nodes[number]
    gives = [names.of(number)]
    if len(node.types) > 1 or node.operation == "recur":
        gives = ["_"] * len(node.types)
        for other, picked in enumerate(names.net.nodes):
            if picked.operation == "result" and picked.inputs[0] == number:
                gives[picked.attributes["of"]] = names.of(other)
    text = expression(node, [names.of(operand) for operand in node.inputs])
    return OperationLine(tuple(gives), text, types_text(node.types))


def traffic(net: Net, numbers: list[int]) -> tuple[int, int]:
    """Counts the bytes that nodes, given by number and run together, read from and write to memory. Values
    that only these nodes use stay out of it. A view counts as the value that it reads; a parameter counts in
    the encoding of its product.

    Returns (bytes of parameters read, bytes of other values read or written).
    """
    inside = set(numbers)
    read = {operand for n in numbers if is_work(net.nodes[n]) for operand in net.nodes[n].inputs}
    foreign = {operand for operand in read if source(net, operand) not in inside}
    constant = {operand for operand in foreign if net.type_of(operand).extent == CONST}
    weights = {operand for operand in constant if not is_number(net.nodes[operand])}
    taken = {source(net, operand) for operand in foreign - constant}
    taken = {operand for operand in taken if net.nodes[operand].operation != "index"}
    users = [node for n, node in enumerate(net.nodes) if n not in inside and is_work(node)]
    read_values = {source(net, operand) for node in users for operand in node.inputs}
    handed = (read_values | {source(net, result) for result in net.results}) & inside
    sizes = {n: net.type_of(n).itemsize for n in weights}
    for node in (net.nodes[n] for n in numbers if net.nodes[n].kind == "matmul"):
        sizes |= {right: node.weight_bytes for right in node.sides[1] if right in sizes}
    read = sum(net.type_of(n).size * size for n, size in sizes.items())
    return read, nbytes(net.type_of(n) for n in taken | handed)


def is_number(node: Node) -> bool:
    """Tells whether a node is a single number that the net is written with, and no parameter."""
    return node.operation == "constant" and not node.type.shape


def source(net: Net, number: int) -> int:
    """Returns the node that node `number` reads through views; `number` itself if it is no view."""
    while is_reading(net.nodes[number]):
        number = net.nodes[number].inputs[0]
    return number


def nbytes(types: Iterable[Type]) -> int:
    """Adds up the bytes of one value of each type, to count memory traffic."""
    return sum(type_.size * type_.itemsize for type_ in types)
