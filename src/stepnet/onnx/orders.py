"""Sorts of the sequences, as torch.onnx.export writes them ahead of a recurrence over packed sequences.

    TopK(lengths)                 the lengths in another order, and the order
    Gather(x, order)              x with its sequences in that order
    ScatterElements(order)        the order that undoes it, from the numbers 0, 1, ... at its places

A net computes each sequence by itself, so that only the name of an axis changes: `sequences (sorted 1)`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import shaping
from stepnet.importers.axes import Axes, AxesError, is_rows, text_of
from stepnet.importers.facts import LENGTH
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.importers.sizes import SEQUENCES, Size, product
from stepnet.onnx.call import OnnxCall

REASON = (
    "it reads the places of the sequences in their batch, which a model does not know: for the steps at "
    "lengths - 1 of a module of PyTorch trace it, stepnet.torch.graph(model, (x, lengths))"
)
READERS = ("Cast", "Gather", "ScatterElements", "Shape")
"""The operators that may read an order."""


@dataclass(frozen=True)
class PlacesInBatch(Unusable):
    """Placeholder for an order of the sequences. source, target: the names of their axis before and after it;
    equal ones are the numbers 0, 1, ..., which change nothing.
    """

    source: str = SEQUENCES
    target: str = SEQUENCES


def order_of(x: Placed | None) -> PlacesInBatch | None:
    """Returns the order for which a value stands; None for another value."""
    return x.value if x is not None and isinstance(x.value, PlacesInBatch) else None


def may_read(operator: str, x: Placed) -> bool:
    """Tells whether an operator may read a placeholder: an order of the sequences."""
    return operator in READERS and order_of(x) is not None


def placed_order(source: str, target: str) -> Placed:
    """Makes the value that stands for an order of the sequences."""
    return Placed(PlacesInBatch(REASON, source, target), ((target,),))


def reordered(call: OnnxCall) -> list[Placed] | None:
    """Computes the results of a node that sorts the sequences of a batch, makes or inverts a permutation of
    them, or permutes values by one, as exporters do for packed sequences; None for other nodes.
    """
    orders = [*filter(None, map(order_of, call.operands))]
    if call.op == "Range" and is_count(call.operand(1)):
        return [placed_order(SEQUENCES, SEQUENCES)]
    if call.op in ("Cast", "Shape") and orders:
        return [call.x] if call.op == "Cast" else None
    if call.op == "TopK" and call.x.fact == LENGTH and is_count(call.operand(1)):
        return sorted_lengths(call.x)
    if call.op == "ScatterElements":
        return [inverted(call)]
    if call.op == "Gather" and orders:
        return [in_order(call.x, call.axis(0), orders[0])]
    return None


def is_count(x: Placed) -> bool:
    """Tells whether a constant is the number of the sequences."""
    return x.is_array and x.array.size == 1 and x.array.ravel()[0] == Size((SEQUENCES,))


def sorted_lengths(x: Placed) -> list[Placed]:
    """Returns the results of a TopK node over the lengths of sequences: the sorted lengths, whose axis of
    sequences gets another name, and the permutation from the order of the batch to theirs. Raises
    `ModelError` for lengths that are sorted already.
    """
    (name,) = x.axes[0]
    target = f"{SEQUENCES} (sorted)"
    if name != SEQUENCES:
        raise ModelError("it sorts the sequences twice")
    return [replace(x, axes=((target,),)), placed_order(SEQUENCES, target)]


def inverted(call: OnnxCall) -> Placed:
    """Returns the permutation of sequences that undoes another, from a node that writes 0, 1, ... at the
    places that the other names; raises `ModelError` for one that writes other numbers.
    """
    order, numbers = order_of(call.operand(1)), order_of(call.operand(2))
    if order is None or numbers is None or numbers.source != numbers.target:
        raise ModelError("it writes numbers at places, which only an order of the sequences may be undone by")
    return placed_order(order.target, order.source)


def in_order(x: Placed, axis: int, order: PlacesInBatch) -> Placed:
    """Returns a value with its sequences in another order: only the name of the axis of sequences changes,
    since each sequence is computed by itself. order: the names of the orders before and after. Raises
    `AxesError` if the value has another order before.
    """
    if x.axes[axis] != (order.source,):
        raise AxesError(f"an order of {order.source} is applied to axis {axis} of {text_of(x.axes)}")
    return replace(x, axes=named(x.axes, order.source, order.target))


def named(axes: Axes, source: str, target: str) -> Axes:
    """Returns axes in which the sequences have another name."""
    return tuple(tuple(target if part == source else part for part in axis) for axis in axes)


def order_in(operands: Sequence[Placed | None]) -> str:
    """Returns the name of the axis of sequences that the operands of a recurrence share, which says in which
    order the sequences are. Constants fit any order. Raises `ModelError` for operands with different orders.
    """
    used = [x for x in operands if x is not None and not x.is_constant]
    found = {part for x in used for axis in x.axes for part in axis if is_rows(part)}
    if len(found) > 1:
        raise ModelError(f"its operands have the sequences in different orders: {', '.join(map(str, found))}")
    return str(next(iter(found), SEQUENCES))


def in_batch_order(call: OnnxCall, name: str) -> OnnxCall:
    """Returns the call of a recurrence whose operands have their sequences in the order of the batch."""
    own = [x and replace(x, axes=named(x.axes, name, SEQUENCES)) for x in call.operands]
    return replace(call, operands=tuple(own))


def check_batch_order(name: str, value: Placed) -> None:
    """Raises `ModelError` for an output whose sequences are in another order than in the inputs."""
    if any(is_rows(part) and part != SEQUENCES for axis in value.axes for part in axis):
        raise ModelError(
            f"output {name!r} has the sequences in the order of their lengths: {text_of(value.axes)}"
        )


def product_of_sizes(call: OnnxCall) -> Placed:
    """Computes the result of a ReduceProd node over all sizes of a shape, some of which may be symbolic."""
    made = constant(shaping.sizes_array([product(np.ravel(call.x.array))]))
    return made if call.flag("keepdims", True) else shaping.squeeze(made, [0])


def no_sort(call: OnnxCall) -> Placed:
    """Raises `ModelError` for a TopK or ScatterElements that does not sort the sequences by their lengths."""
    raise ModelError(f"a {call.op} of a model sorts the sequences by their lengths, or undoes that")
