"""Constants that a body computes moved out of it.

    recur(x, W): x @ W[:, :4]   ->   A = W[:, :4]
                                     recur(x, A): x @ A

So the parameters of a body are inputs of it, or numbers: its adjoint hands out what is summed up for its
inputs alone.
"""

from dataclasses import replace

from stepnet.net.ir import Builder, Net
from stepnet.plan.passes.rewrite import rewritten
from stepnet.plan.passes.when import is_constant


def constants_outside(net: Net) -> Net:
    """The net whose bodies compute no constants."""
    return rewritten(net, moved)


def moved(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """A recurrence whose body computes no constants; None for all that is no recurrence."""
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    recur = node.recur
    body = constants_outside(recur.body)
    outside = dict(zip(body.inputs, operands, strict=True))
    leaving = {
        n
        for n, inside in enumerate(body.nodes)
        if is_constant(inside) and inside.operation not in ("input", "constant")
    }
    for n, inside in enumerate(body.nodes):
        if n in leaving or inside.operation == "constant":
            outside[n] = builder.copy(inside, [outside[operand] for operand in inside.inputs])
    read = {operand for n, inside in enumerate(body.nodes) if n not in leaving for operand in inside.inputs}
    arriving = sorted(read & leaving)
    inner = Builder()
    place: dict[int, int] = {}
    for n in (*body.inputs, *arriving):
        place[n] = inner.input(body.type_of(n), body.nodes[n].name or f"constant{n}")
    for n, inside in enumerate(body.nodes):
        if n not in place and n not in leaving:
            place[n] = inner.copy(inside, [place[operand] for operand in inside.inputs])
    made = replace(recur, body=inner.net(place[result] for result in body.results))
    return made.add(builder, [*operands, *(outside[n] for n in arriving)], node.name, node.source)
