"""Values that a recurrence computes for its gradient alone, stored in fewer bits.

    forward gives  z : rows/steps f32[64]          forward gives  cast z : rows/steps bf16[64]
    backward reads z                         ->    backward reads cast (cast z)

A value is stored so if nothing but the backward pass reads it. Results of the net, and values that other
recurrences read in the forward pass, keep their bits.
"""

from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Recur
from stepnet.compiler.plan.passes.rewrite import rewritten


def saving(net: Net, dtype: str | None) -> Net:
    """Returns a net whose recurrences store in `dtype`, such as "bfloat16", what they compute for gradients
    alone; the net itself for None. Only the gradient differs.
    """

    def marked(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
        """Rewrite rule: marks a recurrence with the dtype; None for other nodes."""
        node = net.nodes[number]
        return builder.copy(node, operands, saved=dtype) if node.operation == "recur" else None

    return net if dtype is None else rewritten(net, marked, inside=False)


def with_stored_values(net: Net, inputs: int) -> Net:
    """Returns a gradient net whose marked recurrences store float32 values that the backward pass alone reads
    in the dtype of the mark, without the marks.

    inputs: the number of inputs of the original net, which come first; the others are cotangents.
    """
    if all(node.operation != "recur" or node.recur.saved is None for node in net.nodes):
        return net
    stored, builder = stored_results(net, inputs), Builder()
    copy_of, wide = list[int](), dict[int, int]()

    def computed(number: int) -> int:
        """Returns the copy of a value in the dtype in which it is computed: a stored one is cast, once."""
        if number in stored and number not in wide:
            wide[number] = builder.add("cast", copy_of[number], dtype=net.type_of(number).dtype)
        return wide.get(number, copy_of[number])

    for number, node in enumerate(net.nodes):
        if node.operation == "recur":
            count = node.recur.sequence_count
            read = {place: stored[n] for place, n in enumerate(node.inputs[:count]) if n in stored}
            given = {
                net.nodes[n].attributes["of"]: stored[n] for n in stored if net.nodes[n].inputs == (number,)
            }
            recur = giving_stored(reading_stored(node.recur, read), given)
            operands = [*(copy_of[n] for n in node.inputs[:count]), *map(computed, node.inputs[count:])]
            copy_of.append(replace(recur, saved=None).add(builder, operands, node.name, node.source))
        else:
            copy_of.append(builder.copy(node, [computed(n) for n in node.inputs]))
    return builder.net(copy_of[result] for result in net.results)


def stored_results(net: Net, inputs: int) -> dict[int, str]:
    """Finds the outputs of marked recurrences that are stored; returns the dtype of each `result` node.

    inputs: the number of inputs of a gradient net that are no cotangents.
    """
    late = set(net.inputs[inputs:])
    for number, node in enumerate(net.nodes):
        if late & set(node.inputs):
            late.add(number)
    users, stored = net.users(), dict[int, str]()
    for number, node in enumerate(net.nodes):
        if node.operation != "result" or number in net.results or number in late:
            continue
        source = net.nodes[node.inputs[0]]
        if source.operation != "recur" or source.recur.saved is None or not users[number]:
            continue
        is_output = node.attributes["of"] < len(source.recur.outputs)
        if is_output and node.type.dtype == "float32" and late.issuperset(users[number]):
            stored[number] = source.recur.saved
    return stored


def giving_stored(recur: Recur, dtypes: dict[int, str]) -> Recur:
    """Returns a recurrence some of whose outputs are cast. dtypes: the dtype of each, by its position."""
    if not dtypes:
        return recur
    builder = Builder()
    for node in recur.body.nodes:
        builder.keep(node)
    results = [
        builder.add("cast", number, dtype=dtypes[place]) if place in dtypes else number
        for place, number in enumerate(recur.body.results)
    ]
    return replace(recur, body=builder.net(results))


def reading_stored(recur: Recur, dtypes: dict[int, str]) -> Recur:
    """Returns a recurrence that takes some of its sequences in other dtypes, and casts them at each step.

    dtypes: the dtype of each of these sequences, by its position.
    """
    if not dtypes:
        return recur
    builder, copy_of = Builder(), dict[int, int]()
    for place, number in enumerate(recur.body.inputs):
        type_, name = recur.body.type_of(number), recur.body.nodes[number].name
        given = replace(type_, dtype=dtypes.get(place, type_.dtype))
        copy_of[number] = builder.input(given, name)
    for place in dtypes:
        number = recur.body.inputs[place]
        copy_of[number] = builder.add("cast", copy_of[number], dtype=recur.body.type_of(number).dtype)
    for number, node in enumerate(recur.body.nodes):
        if number not in copy_of:
            copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    return replace(recur, body=builder.net(copy_of[result] for result in recur.body.results))
