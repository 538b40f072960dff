"""Functions shared by the passes: they rebuild a net node by node."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.plan.passes.when import When, when, when_inside

Rule = Callable[[Builder, Net, int, list[int]], "int | None"]
Change = Callable[[Net, list[When]], Net]


def rewritten(net: Net, rule: Rule, inside: bool = True) -> Net:
    """Applies `rule` to every node of a net; with `inside`, to the nodes of bodies first.

    The rule takes the new net's builder, the old net, the old number and the new operands. It returns the
    number to use instead, or None to copy the node.
    """
    builder, place = Builder(), list[int]()
    same, equal = (
        True,
        True,
    )  # whether all nodes so far have the old numbers and types; whether they are equal
    for number, node in enumerate(net.nodes):
        operands = [place[operand] for operand in node.inputs]
        replacement = rule(builder, net, number, operands)
        same = same and len(builder.nodes) == number
        if replacement is None:
            body = rewritten(node.recur.body, rule) if inside and node.operation == "recur" else None
            if same and (body is None or body is node.recur.body):
                replacement = builder.keep(node)
            else:
                changed, equal = {} if body is None else {"body": body}, False
                replacement = builder.copy(node, operands, **changed)
                same = same and replacement == number and builder.nodes[number].types == node.types
        else:
            same = False
        place.append(replacement)
    made = builder.net(place[result] for result in net.results)
    whole = len(made.nodes) == len(net.nodes) and made.inputs == net.inputs  # no node of it is unused
    return net if same and equal and whole else made


def with_constants_outside(
    builder: Builder, node: Node, body: Net, constants: Collection[int], operands: Sequence[int]
) -> int:
    """Rebuilds a recurrence with its constants moved out of the body, as operands; returns its number.

    body: the body of the node, possibly rewritten.
    constants: the numbers of the constants in it.
    """
    outside = dict(zip(body.inputs, operands, strict=True))
    needed = {operand for number in constants for operand in body.nodes[number].inputs}
    for number in sorted(needed.union(constants).difference(outside)):
        constant = body.nodes[number]
        outside[number] = builder.copy(constant, [outside[operand] for operand in constant.inputs])
    staying = [number for number in range(len(body.nodes)) if number not in constants]
    entering = sorted({n for number in staying for n in body.nodes[number].inputs}.intersection(constants))
    inner, place = Builder(), dict[int, int]()
    for number in (*body.inputs, *entering):
        place[number] = inner.input(body.type_of(number), body.nodes[number].name or f"constant{number}")
    for number in staying:
        if number not in place:
            place[number] = inner.copy(body.nodes[number], [place[n] for n in body.nodes[number].inputs])
    recur = replace(node.recur, body=inner.net(place[result] for result in body.results))
    return recur.add(builder, [*operands, *(outside[n] for n in entering)], node.name, node.source)


def at_every_level(net: Net, change: Change) -> Net:
    """Applies `change` to each body of a net, inner ones first, and to the net itself.

    change: a function of a net, and of the time at which each of its values is known, that returns a net.
    """

    def rule(builder: Builder, outer: Net, number: int, operands: list[int]) -> int | None:
        """Rebuilds a recurrence with its body changed; None for other nodes."""
        node = outer.nodes[number]
        if node.operation != "recur":
            return None
        body = rewritten(node.recur.body, rule)
        recur = replace(node.recur, body=body)
        return builder.copy(node, operands, body=change(body, when_inside(recur)))

    whole = rewritten(net, rule)
    return change(whole, when(whole))


def view_chain(net: Net | Builder, number: int) -> tuple[int, list[Node]]:
    """Follows a chain of views that ends in `number`; returns the node that it shows, and the views in order.

    A node that is no view shows itself.
    """
    chain: list[Node] = []
    while net.nodes[number].is_view:
        chain.append(net.nodes[number])
        number = net.nodes[number].inputs[0]
    return number, chain[::-1]


def readers_of(net: Net, users: list[list[int]], number: int) -> set[int]:
    """Returns the nodes other than views that read a value, directly or through views."""
    read = set[int]()
    for user in users[number]:
        read |= (readers_of(net, users, user) or {user}) if net.nodes[user].is_view else {user}
    return read


def value_read(net: Net, number: int) -> int:
    """Returns the node that a chain of views and expansions to inner sequences shows."""
    root, _ = view_chain(net, number)
    while net.nodes[root].operation == "expand":
        root, _ = view_chain(net, net.nodes[root].inputs[0])
    return root
