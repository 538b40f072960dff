"""Rules for recurrent layers, for sequences that are sorted, and for `PackedSequence`s in a module."""

from typing import Any, cast

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.traced import Traced, refuse
from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.importers.axes import PACKED, TIME, Axes, is_packed, is_rows, text_of
from stepnet.importers.placed import Placed, beside
from stepnet.importers.sizes import SEQUENCES
from stepnet.importers.values import to_extent
from stepnet.torch.replay import NoValue, ReplayedNode, SequenceOrder

NO_STEPS = -1
"""The axis of the steps in the data of a `PackedSequence`, which are joined with the sequences."""


def layer(call: ReplayedNode) -> list[Placed]:
    """Computes the node of a recurrent layer: adds the layer to the net; returns outputs and last states."""
    arguments: dict[str, Any] = call.arguments
    build = call.replay.builds[int(arguments["number"])]
    data, time = arguments["data"], arguments["time"]
    lead, rows = sequences_of(data, time)
    states = [to_extent(beside(state, ((rows,), *state.axes[1:])), ROWS) for state in arguments["states"]]
    made: Any = build.layer([weight.value for weight in arguments["weights"]])
    further = {"initial": rebuild(build.memory, states)} if states else {}
    if arguments["statics"]:
        further["statics"] = rebuild(made.statics, [static.value for static in arguments["statics"]])
    outputs, last = made(data.value, **further)
    placed = [Placed(value, (*lead, *((size,) for size in value.type.shape))) for value in leaves(outputs)]
    return placed + [
        Placed(value, ((rows,), *((size,) for size in value.type.shape))) for value in leaves(last)
    ]


def sequences_of(data: Placed, time: int) -> tuple[Axes, str]:
    """Returns the leading axes of a recurrence's input, and the name of the part that is its sequences."""
    if time == NO_STEPS:
        (part,) = data.axes[0]
        if not is_packed(part):
            raise refuse(
                f"the data of a PackedSequence are {text_of(data.axes)}: pack_padded_sequence makes it"
            )
        return data.axes[:1], str(part).replace(PACKED, SEQUENCES)
    (rows, *others) = data.axes[1 - time]
    if data.axes[time] != TIME or others or not is_rows(rows):
        first = "batch_first=True" if time else "batch_first=False"
        raise refuse(
            f"a recurrent layer with {first} is called with a tensor {text_of(data.axes)}: the steps are its "
            f"axis {time}; axes= says which axes of the model's arguments they are"
        )
    return data.axes[:2], str(rows)


def source_of(value: Traced) -> int:
    """Returns the number of the node that a value repeats: looks through views, casts and repetitions."""
    number, nodes = value.number, value.builder.nodes
    while nodes[number].operation in ("cast", "reshape", "broadcast", "expand", "transpose"):
        number = nodes[number].inputs[0]
    return number


def packed(call: ReplayedNode) -> list[Any]:
    """Computes `packed`: removes the padding, which the net's sequences never have, and returns steps and
    counts.
    """
    x, lengths = call.operands
    if source_of(lengths.value) != source_of(call.replay.lengths):
        raise refuse(
            "sequences are packed with other lengths than their own, which are the argument `lengths`"
        )
    axes, rows = sequences_of(x, call.arguments["time"])
    if lengths.axes != ((rows,),):
        raise refuse(f"the order of the lengths, {text_of(lengths.axes)}, is not that of {text_of(axes)}")
    axis = (rows.replace(SEQUENCES, PACKED),)
    return [Placed(x.value, (axis, *x.axes[2:])), NoValue("the number of sequences at each step")]


def padded(call: ReplayedNode) -> list[Any]:
    """Computes `padded`: gives the steps of a `PackedSequence` the axes of a padded tensor; returns the
    lengths too.
    """
    data: Placed = call.arguments["data"]
    (rows,) = sequences_of(data, NO_STEPS)[1:]
    lead = ((rows,), TIME) if call.arguments["time"] else (TIME, (rows,))
    return [Placed(data.value, (*lead, *data.axes[1:])), Placed(call.replay.lengths, ((rows,),))]


# ---- orders ------------------------------------------------------------------------------------------------


def ordered(x: Any, dim: int, order: SequenceOrder) -> Any:
    """Brings sequences into another order; composes two orders if x is an order itself."""
    if isinstance(x, SequenceOrder):
        if x.target != order.source:
            raise refuse("the sequences are sorted twice, in different ways: undo one sort before the other")
        return SequenceOrder(x.source, order.target)
    axis = x.axes[dim]
    if axis != (order.source,):
        raise refuse(f"an order of {order.source} is applied to {text_of((axis,))}")
    return Placed(x.value, (*x.axes[:dim], (order.target,), *x.axes[dim % len(x.axes) + 1 :]))


def scattered(call: ReplayedNode) -> Any:
    """Computes scatter for the inverse of an order of the sequences; raises `StepError` for any other use."""
    index, values = call.arguments["index"], call.arguments["src"]
    if not isinstance(index, SequenceOrder) or values != SequenceOrder():
        raise refuse("a model cannot write numbers at indices: use torch.where")
    return SequenceOrder(index.target, index.source)


def sorted_rows(call: ReplayedNode) -> Any:
    """Computes sort of one number per sequence: returns the values and a new order. Sorting an order inverts
    it.
    """
    x = call.arguments["x"]
    if isinstance(x, SequenceOrder):
        return [SequenceOrder(), SequenceOrder(x.target, x.source)]
    (source,) = x.axes[0]
    target = f"{SEQUENCES} (sorted {sum(is_rows_order(value) for value in call.replay.values.values()) + 1})"
    return [Placed(x.value, ((target,),)), SequenceOrder(source, target)]


def is_rows_order(value: Any) -> bool:
    """Tells whether a value is a list of results that contains an `SequenceOrder`, as the rule of sort
    returns.
    """
    parts: list[Any] = cast("Any", value) if isinstance(value, list) else []
    return any(isinstance(part, SequenceOrder) for part in parts)
