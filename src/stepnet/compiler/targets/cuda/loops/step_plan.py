"""The plan of one step of a recurrence, for a loop whose steps the host gives one by one.

recur(x, h; body)   ->   body, as work ahead of a loop that does nothing: its inputs are values per row
"""

from stepnet.compiler.net.ir import Builder, Recur
from stepnet.compiler.net.types import ROWS, STEPS, Type
from stepnet.compiler.plan.plan import Plan, Planning, planned

NOTHING = Type(ROWS, (), "float32")


def step_plan(whole: Plan) -> Plan | None:
    """Returns the plan of a step. Its inputs and results are those of the body, in order, and then those of
    the loop that does nothing: two and one.

    None for a step that reads its number, and for a loop that reads or writes memories in other dtypes than
    its steps have.
    """
    body, recurrence = whole.body, whole.recurrence
    pairs = zip(recurrence.inputs, body.inputs, strict=True)
    is_same = all(whole.net.type_of(n).dtype == body.type_of(inside).dtype for n, inside in pairs)
    made = zip(recurrence.types, body.results, strict=True)
    is_same = is_same and all(type_.dtype == body.type_of(n).dtype for type_, n in made)
    is_same = is_same and [*body.inputs] == sorted(body.inputs)
    if not is_same or any(node.operation == "index" for node in body.nodes):
        return None
    builder, inner = Builder(), Builder()
    copies = list[int]()
    for node in body.nodes:
        operands = [copies[number] for number in node.inputs]
        copies.append(
            builder.input(node.type, node.name) if node.operation == "input" else builder.move(node, operands)
        )
    memory = [inner.input(NOTHING, name) for name in ("nothing", "memory")][1]
    ahead = builder.input(NOTHING.at(STEPS), "nothing"), builder.input(NOTHING, "memory")
    _, final = Recur(inner.net([memory]), 1, 1).add_results(builder, ahead)
    results = [copies[number] for number in body.results]
    return planned(builder.net([*results, *final]), Planning((), whole.planning.costs))
