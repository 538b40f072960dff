"""Rules for graph nodes that concern whole sequences: recurrent layers, sorts, and `PackedSequence`s."""

from collections.abc import Sequence
from typing import Any, cast

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.importers.aten.replay import NoValue, ReplayedNode, SequenceOrder
from stepnet.importers.axes import PACKED, TIME, Axes, is_packed, is_rows, is_time, text_of
from stepnet.importers.broadcasting import broadcastable
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import SEQUENCES
from stepnet.importers.values import to_extent

NO_STEPS = -1
"""The axis of the steps in the data of a `PackedSequence`, which are joined with the sequences."""


def layer(call: ReplayedNode) -> list[Placed]:
    """Evaluates the graph node of a recurrent layer: adds the layer to the net, with the node's parameters,
    states and statics (values that each sequence has once).

    call: the node. Its argument `number` is the index in `call.replay.builds` of the `LayerBuild`, which
        builds the layer; `time` is the axis of the steps in `data`.

    Returns the outputs, then the last states, each as a `Placed`: a value with the meaning of each axis. The
    outputs have the leading axes of the data, sequences and steps; the last states that of the sequences.
    """
    arguments: dict[str, Any] = call.arguments
    build = call.replay.builds[int(arguments["number"])]
    made: Any = build.layer([weight.value for weight in arguments["weights"]])
    return run(
        arguments["data"], arguments["time"], made, arguments["states"], build.memory, arguments["statics"]
    )


def run(
    data: Placed,
    time: int,
    layer: Any,
    states: Sequence[Placed] = (),
    memory: Any = None,
    statics: Sequence[Placed] = (),
) -> list[Placed]:
    """Runs a recurrent layer over sequences; returns the outputs, then the last states.

    data: the sequences. time: the number of their axis of steps; `NO_STEPS` for the data of a
        `PackedSequence`, which has all steps end to end.
    states: the initial states, in the structure `memory`; none for zeros. statics: values for all steps.
    """
    lead, rows = sequences_of(data, time)
    initial = [to_extent(broadcastable(state, ((rows,), *state.axes[1:])), ROWS) for state in states]
    further = {"initial": rebuild(memory, initial)} if initial else {}
    if statics:
        further["statics"] = rebuild(layer.statics, [static.value for static in statics])
    outputs, last = layer(data.value, **further)
    placed = [Placed(value, (*lead, *((size,) for size in value.type.shape))) for value in leaves(outputs)]
    return placed + [
        Placed(value, ((rows,), *((size,) for size in value.type.shape))) for value in leaves(last)
    ]


def sequences_of(data: Placed, time: int) -> tuple[Axes, str]:
    """Returns the leading axes of a recurrent layer's input, and the name of the sequences in them, which
    says how they are sorted.

    data: the input. time: the number of its axis of steps; `NO_STEPS` for data of a `PackedSequence`.
    """
    if time == NO_STEPS:
        (part,) = data.axes[0]
        if not is_packed(part):
            raise refuse(
                f"the data of a PackedSequence are {text_of(data.axes)}: pack_padded_sequence makes it"
            )
        return data.axes[:1], str(part).replace(PACKED, SEQUENCES)
    (rows, *others) = data.axes[1 - time]
    if not is_time(data.axes[time]) or others or not is_rows(rows):
        first = "batch_first=True" if time else "batch_first=False"
        raise refuse(
            f"a recurrent layer with {first} is called with a tensor {text_of(data.axes)}: the steps are its "
            f"axis {time}; axes= says which axes of the model's arguments they are"
        )
    return data.axes[:2], str(rows)


def source_of(value: Traced) -> int:
    """Returns the number of the node in its net from which views and casts alone make the value. Values with
    the same such node, as two casts of the lengths, have the same numbers.
    """
    number, nodes = value.number, value.builder.nodes
    while nodes[number].operation in ("cast", "reshape", "broadcast", "expand", "transpose"):
        number = nodes[number].inputs[0]
    return number


def packed(call: ReplayedNode) -> list[Any]:
    """Evaluates a `packed` node (pack_padded_sequence) of a PyTorch graph: gives padded steps the axes of
    packed data. Nothing is copied, as sequences of a net have no padding.

    Returns the steps with the axes of packed data, and a placeholder for the batch sizes. Raises `StepError`
    for lengths that are not those of the sequences.
    """
    x, lengths = call.operands
    if source_of(lengths.value) != source_of(call.replay.lengths):
        raise refuse(
            "sequences are packed with other lengths than their own, which are the argument `lengths`: "
            "lengths='NAME' is the name of another argument of forward that has them"
        )
    axes, rows = sequences_of(x, call.arguments["time"])
    if lengths.axes != ((rows,),):
        raise refuse(f"the order of the lengths, {text_of(lengths.axes)}, is not that of {text_of(axes)}")
    if TIME not in axes:
        raise refuse(f"the lengths are those of the inputs, and {text_of(axes)} has other numbers of steps")
    axis = (rows.replace(SEQUENCES, PACKED),)
    return [Placed(x.value, (axis, *x.axes[2:])), NoValue("the number of sequences at each step")]


def padded(call: ReplayedNode) -> list[Any]:
    """Evaluates a `padded` node (pad_packed_sequence) of a PyTorch graph: gives packed data the axes of a
    padded tensor, sequences and steps. The node's argument `time` is the axis of the steps.

    Returns the steps and the lengths of the sequences.
    """
    data: Placed = call.arguments["data"]
    (rows,) = sequences_of(data, NO_STEPS)[1:]
    lead = ((rows,), TIME) if call.arguments["time"] else (TIME, (rows,))
    return [Placed(data.value, (*lead, *data.axes[1:])), Placed(call.replay.lengths, ((rows,),))]


# ---- orders ------------------------------------------------------------------------------------------------


def ordered(x: Any, dim: int, order: SequenceOrder) -> Any:
    """Reorders the sequences of x along axis `dim` by `order`, a permutation. Only the name of the axis
    changes, as a net computes each sequence separately. If x is itself an order of sequences, returns both
    orders combined.

    Raises `StepError` if the sequences of x are not sorted as `order` expects.
    """
    if isinstance(x, SequenceOrder):
        if x.target != order.source:
            raise refuse("the sequences are sorted twice, in different ways: undo one sort before the other")
        return SequenceOrder(x.source, order.target)
    axis = x.axes[dim]
    if axis != (order.source,):
        raise refuse(f"an order of {order.source} is applied to {text_of((axis,))}")
    return Placed(x.value, (*x.axes[:dim], (order.target,), *x.axes[dim % len(x.axes) + 1 :]))


def scattered(call: ReplayedNode) -> Any:
    """Evaluates a `scatter` node that inverts an order of the sequences: it writes 0, 1, ... at the indices
    of the order. Raises `StepError` for others.
    """
    index, values = call.arguments["index"], call.arguments["src"]
    if not isinstance(index, SequenceOrder) or values != SequenceOrder():
        raise refuse("a model cannot write numbers at indices: use torch.where")
    return SequenceOrder(index.target, index.source)


def sorted_rows(call: ReplayedNode) -> Any:
    """Evaluates a sort of one number per sequence, such as the lengths: returns the sorted numbers, and the
    permutation as a `SequenceOrder`.

    If the numbers are such a permutation themselves, the second result is its inverse.
    """
    x = call.arguments["x"]
    if isinstance(x, SequenceOrder):
        return [SequenceOrder(), SequenceOrder(x.target, x.source)]
    (source,) = x.axes[0]
    target = f"{SEQUENCES} (sorted {sum(is_rows_order(value) for value in call.replay.values.values()) + 1})"
    return [Placed(x.value, ((target,),)), SequenceOrder(source, target)]


def is_rows_order(value: Any) -> bool:
    """Tells whether a graph node's value contains an order of sequences, as a sort's results do."""
    parts: list[Any] = cast("Any", value) if isinstance(value, list) else []
    return any(isinstance(part, SequenceOrder) for part in parts)
