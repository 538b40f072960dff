"""Functions shared by the passes: they rebuild a net node by node."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.plan.passes.when import When, when, when_inside

Rule = Callable[[Builder, Net, int, list[int]], "int | None"]
Change = Callable[[Net, list[When]], Net]


def rewritten(net: Net, rule: Rule, inside: bool = True) -> Net:
    """Returns a net in which `rule` was applied to every node; with `inside`, first to the nodes of the
    bodies (nets of steps) of its recurrences.

    The rule gets the builder of the new net, the old net, a node's old number and the new numbers of its
    operands. It returns the number to use instead, or None to copy the node. A net in which nothing changes
    is returned itself.
    """
    builder, copy_of = Builder(), list[int]()
    same = True  # whether all nodes so far have their old numbers and types
    equal = True  # whether they are also unchanged
    for number, node in enumerate(net.nodes):
        operands = [copy_of[operand] for operand in node.inputs]
        replacement = rule(builder, net, number, operands)
        same = same and len(builder.nodes) == number
        if replacement is None:
            body = rewritten(node.recur.body, rule) if inside and node.operation == "recur" else None
            is_whole = body is None or body is node.recur.body
            if same and is_whole:
                replacement = builder.keep(node)
            elif is_whole and has_types_of(builder, operands, net, node.inputs):
                replacement = builder.move(node, operands)
            else:
                changed, equal = {} if body is None else {"body": body}, False
                replacement = builder.copy(node, operands, **changed)
                same = same and replacement == number and builder.nodes[number].types == node.types
        else:
            same = False
        copy_of.append(replacement)
    new_net = builder.net(copy_of[result] for result in net.results)
    has_no_unused_nodes = (
        len(new_net.nodes) == len(net.nodes) and new_net.inputs == net.inputs
    )  # no node of it is unused
    return net if same and equal and has_no_unused_nodes else new_net


def rewritten_steps(net: Net, rule: Rule) -> Net:
    """Returns a net in which `rule` was applied to every node in the steps of its recurrences, inner
    recurrences included, and to no node outside of them.
    """

    def of_recurrence(builder: Builder, outer: Net, number: int, operands: list[int]) -> int | None:
        """Rewrite rule: rebuilds a recurrence whose step changes; None for other nodes."""
        node = outer.nodes[number]
        body = rewritten(node.recur.body, rule) if node.operation == "recur" else None
        is_same = body is None or body is node.recur.body
        return None if is_same else builder.copy(node, operands, body=body)

    return rewritten(net, of_recurrence, inside=False)


def has_types_of(builder: Builder, operands: Sequence[int], net: Net, before: Sequence[int]) -> bool:
    """Tells whether nodes `operands` in `builder` have the types of nodes `before` in `net`, in order."""
    pairs = zip(operands, before, strict=True)
    return all(builder.nodes[new].types == net.nodes[old].types for new, old in pairs)


def with_constants_outside(
    builder: Builder, node: Node, body: Net, constants: Collection[int], operands: Sequence[int]
) -> int:
    """Rebuilds a recurrence with some constants of its body (the net of its step) as operands, computed
    outside; returns its number.

    body: the body of the node, possibly rewritten.
    constants: the node numbers of these constants in the body.
    operands: the new numbers of the recurrence's operands.
    """
    outside = dict(zip(body.inputs, operands, strict=True))
    needed = {operand for number in constants for operand in body.nodes[number].inputs}
    for number in sorted(needed.union(constants).difference(outside)):
        constant = body.nodes[number]
        outside[number] = builder.copy(constant, [outside[operand] for operand in constant.inputs])
    staying = [number for number in range(len(body.nodes)) if number not in constants]
    entering = sorted({n for number in staying for n in body.nodes[number].inputs}.intersection(constants))
    inner, copy_of = Builder(), dict[int, int]()
    for number in (*body.inputs, *entering):
        copy_of[number] = inner.input(body.type_of(number), body.nodes[number].name or f"constant{number}")
    for number in staying:
        if number not in copy_of:
            copy_of[number] = inner.copy(body.nodes[number], [copy_of[n] for n in body.nodes[number].inputs])
    recur = replace(node.recur, body=inner.net(copy_of[result] for result in body.results))
    return recur.add(builder, [*operands, *(outside[n] for n in entering)], node.name, node.source)


def at_every_level(net: Net, change: Change) -> Net:
    """Applies `change` to the bodies (nets of the steps) of all recurrences of a net, inner ones first, and
    to the net itself; returns the new net.

    change: takes a net and the time at which each of its values is known, and returns a net.
    """

    def rule(builder: Builder, outer: Net, number: int, operands: list[int]) -> int | None:
        """Rewrite rule: rebuilds a recurrence with `change` applied to its body (the net of its step), and
        before that to the bodies inside; None for other nodes, which are copied.
        """
        node = outer.nodes[number]
        if node.operation != "recur":
            return None
        body = rewritten(node.recur.body, rule)
        recur = replace(node.recur, body=body)
        return builder.copy(node, operands, body=change(body, when_inside(recur)))

    rewritten_net = rewritten(net, rule)
    return change(rewritten_net, when(rewritten_net))


def view_chain(net: Net | Builder, number: int) -> tuple[int, list[Node]]:
    """Follows views from node `number` to the node that they show; returns that node, and the views in order.

    For a node that is no view, returns the node itself and no views.
    """
    chain: list[Node] = []
    while net.nodes[number].is_view:
        chain.append(net.nodes[number])
        number = net.nodes[number].inputs[0]
    return number, chain[::-1]


def readers_of(net: Net, users: list[list[int]], number: int) -> set[int]:
    """Returns the nodes that read a value, directly or through views. users: for each node, its readers."""
    read = set[int]()
    for user in users[number]:
        read |= (readers_of(net, users, user) or {user}) if net.nodes[user].is_view else {user}
    return read


def value_read(net: Net, number: int) -> int:
    """Follows views and expansions from node `number` to the node whose value they show; returns it."""
    root, _ = view_chain(net, number)
    while net.nodes[root].operation == "expand":
        root, _ = view_chain(net, net.nodes[root].inputs[0])
    return root
