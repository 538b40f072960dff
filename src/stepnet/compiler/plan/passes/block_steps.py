"""Several steps of a recurrence as one step.

    recur(x; h' = f(x, h))    ->    recur(X; h' = f(X[1], f(X[0], h)))        X: two steps of x side by side
                                             y = [y of the first, y of the second]

Values that are stored per step, such as memories for a gradient, are then stored once for two steps. The
arrays of sequences have the same numbers in the same order, with one more axis. The new step still computes
the memory between the two steps: `distribute.py` removes the matrices among these values.
"""

from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Recur
from stepnet.compiler.net.types import STEPS, Type


def with_joined_steps(recur: Recur, count: int) -> Recur:
    """Makes a recurrence of which one step does `count` steps of `recur`, to store intermediate values less
    often. A new first axis of each sequence and output has the values of the `count` steps.
    """
    body, builder = recur.body, Builder()
    sequences = [
        builder.input(with_step_axis(body.type_of(n), count), body.nodes[n].name) for n in recur.sequences
    ]
    numbers = (*recur.memories, *recur.others)
    fixed = {number: builder.input(body.type_of(number), body.nodes[number].name) for number in numbers}
    memories, outputs = [fixed[number] for number in recur.memories], list[list[int]]()
    for step in reversed(range(count)) if recur.reverse else range(count):
        copy_of = fixed | dict(zip(recur.memories, memories, strict=True))
        pairs = zip(recur.sequences, sequences, strict=True)
        copy_of |= {number: at_step(builder, sequence, step) for number, sequence in pairs}
        for number, node in enumerate(body.nodes):
            if number not in copy_of:
                copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
        memories = [copy_of[number] for number in recur.following]
        outputs.append([copy_of[number] for number in recur.outputs])
    ordered = outputs[::-1] if recur.reverse else outputs
    joined = [side_by_side(builder, values) for values in zip(*ordered, strict=True)]
    return replace(recur, body=builder.net([*joined, *memories]))


def net_with_joined_steps(net: Net, blocked: Recur) -> Net:
    """Replaces the only recurrence of a net by `blocked`, which does several of its steps at a time.

    The sequences of the recurrence are inputs of the net, and its outputs are results.
    """
    builder, copy_of, count = Builder(), dict[int, int](), 0
    for number, node in enumerate(net.nodes):
        if node.operation == "input" and node.type.extent == STEPS:
            count = blocked.body.type_of(blocked.sequences[0]).shape[0]
            copy_of[number] = builder.input(with_step_axis(node.type, count), node.name)
        elif node.operation == "recur":
            copy_of[number] = blocked.add(
                builder, [copy_of[operand] for operand in node.inputs], source=node.source
            )
        else:
            copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    return builder.net(copy_of[result] for result in net.results)


def with_step_axis(type_: Type, count: int) -> Type:
    """Returns a type with a new first feature axis of this size, for the values of several steps."""
    return Type(type_.extent, (count, *type_.shape), type_.dtype)


def at_step(builder: Builder, sequence: int, step: int) -> int:
    """Adds to a net the values at step `step` of a value of several steps (its first axis); returns the
    node's number. builder: makes the net. sequence: the node of the value.
    """
    shape = builder.type_of(sequence).shape
    cuts = ((step, step + 1, 1), *((0, size, 1) for size in shape[1:]))
    cut = builder.add("slice", sequence, slices=cuts)
    return builder.add("reshape", cut, rank=len(shape), shape=shape[1:])


def side_by_side(builder: Builder, values: tuple[int, ...]) -> int:
    """Stacks the values of several steps along a new first feature axis; returns the number of the result."""
    shape = builder.type_of(values[0]).shape
    rows = [builder.add("reshape", value, rank=len(shape), shape=(1, *shape)) for value in values]
    return rows[0] if len(rows) == 1 else builder.add("concatenate", *rows, axis=-len(shape) - 1)
