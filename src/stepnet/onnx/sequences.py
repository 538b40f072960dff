"""Reads ONNX's sequences of tensors, as scripts of PyTorch have them for lists of Python.

    outs = []                        SequenceEmpty
    for i in range(x.size(1)):       Loop, with the list as a state
        outs.append(h)               SequenceInsert
    torch.stack(outs, 1)             ConcatFromSequence

    outs = torch.zeros(0, n, f)      an array without entries, as a state of a Loop
        outs = torch.cat([outs, h])  Concat: the array is a list until the Loop ends

A list that gets one entry per step of a Loop becomes a value per step. No other operator reads a list.
"""

from collections.abc import Sequence

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import ONE, text_of
from stepnet.importers.placed import Placed, Unusable
from stepnet.importers.selecting import concatenate
from stepnet.importers.shaping import squeeze, transpose, unsqueeze
from stepnet.onnx.call import OnnxCall

READERS = {"Concat", "ConcatFromSequence", "Identity", "Loop", "SequenceAt", "SequenceInsert"}
"""The operators that read lists."""


@dataclass(frozen=True)
class Listed(Unusable):
    """Placeholder for a list of tensors, `entries`. by_step: the entries along the first axis, that of the
    steps, if the list has one for each step; else None.
    """

    entries: tuple[Placed, ...] = ()
    by_step: Placed | None = None


def list_of(entries: Sequence[Placed] = (), by_step: Placed | None = None) -> Placed:
    """Makes the value that stands for a list of tensors, with the arguments of `Listed`."""
    reason = "it is a list of tensors, which only operators on lists read"
    return Placed(Listed(reason, tuple(entries), by_step), ())


def listed(value: Placed) -> Listed:
    """Returns the list of tensors that a value is; raises `ModelError` for another value."""
    if not isinstance(value.value, Listed):
        raise ModelError(f"its operand is {text_of(value.axes)}, where a list of tensors is expected")
    return value.value


def appended(after: Placed) -> Placed:
    """Returns the tensor that the body of a Loop adds to a list in one iteration, from the list `after` the
    iteration, which was empty before; raises `ModelError` if it does not add exactly one.
    """
    entries = listed(after).entries
    if len(entries) != 1:
        raise ModelError(f"its body adds {len(entries)} entries to a list, and each iteration adds one")
    return entries[0]


def sequence_insert(call: OnnxCall) -> Placed:
    """Computes the result of a SequenceInsert node: a list with another entry at its end. Raises `ModelError`
    for another position.
    """
    own, position = listed(call.x), call.optional(2)
    if own.by_step is not None:
        raise ModelError("it adds to a list with an entry for each step")
    if position is not None and int(position.array) != len(own.entries):
        raise ModelError(f"it adds to a list at {int(position.array)}: that is supported only at its end")
    return list_of((*own.entries, call.operand(1)))


def grown(call: OnnxCall) -> Placed:
    """Computes the result of a Concat node in the body of a Loop whose first operand is an array that the
    Loop began without entries: a list with the other operand at its end. Raises `ModelError` for several.
    """
    if len(call.present) != 2:
        raise ModelError("it adds several values at once to an array that grows from step to step")
    return list_of((*listed(call.x).entries, call.operand(1)))


def sequence_at(call: OnnxCall) -> Placed:
    """Computes the result of a SequenceAt node: the tensor at a constant position of a list. Raises
    `ModelError` for a position beyond the list.
    """
    own, place = listed(call.x), int(call.operand(1).array)
    if own.by_step is not None or not -len(own.entries) <= place < len(own.entries):
        count = "an entry for each step" if own.by_step is not None else f"{len(own.entries)} entries"
        raise ModelError(f"it takes entry {place} of a list with {count}")
    return own.entries[place]


def concat_from_sequence(call: OnnxCall) -> Placed:
    """Computes the result of a ConcatFromSequence node: the entries of a list along an axis, a new one or one
    that they have.
    """
    own, is_new, axis = listed(call.x), call.flag("new_axis"), int(call.attributes["axis"])
    if own.by_step is None:
        if not own.entries:
            raise ModelError("it joins the entries of a list that has none")
        at = own.entries[0].axis(axis, int(is_new))
        entries = [unsqueeze(entry, [at]) for entry in own.entries] if is_new else own.entries
        return concatenate(entries, at)
    return joined_steps(own.by_step, axis, is_new)


def joined_steps(x: Placed, axis: int, is_new: bool) -> Placed:
    """Returns a list with an entry for each step as one value, joined along an axis.

    x: the entries, along the first axis. is_new: whether the axis is a new one, or one that entries have, of
    size 1; `ModelError` for another size.
    """
    at = x.axis(axis) if is_new else x.axis(axis, -1)
    if not is_new:
        if x.axes[at + 1] != ONE:
            entry = text_of(x.axes[1:])
            raise ModelError(f"it joins {entry} of each step along axis {at}, which is not of size 1")
        x = squeeze(x, [at + 1])
    rest = range(1, len(x.axes))
    return transpose(x, [*rest[:at], 0, *rest[at:]])
