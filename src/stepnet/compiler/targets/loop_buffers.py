"""Prepared calls shared by the steps of a loop: a part is prepared once and run at every step.

In a recurrence whose steps run part by part, each part does little work per step. So its plain parts run on
arrays that are allocated once. When a sequence ends, its row leaves. Its entries in the arrays are still
computed, on stale values, until half of the rows have left. A recurrence over sequences that are the same at
every step, such as static sequences, stays prepared until a row leaves.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.targets.base import Bound, Call, Results
from stepnet.compiler.targets.packed import plain_call

Array = np.ndarray


class InputBuffers:
    """Arrays of fixed size for the inputs of a part. An array copied last time is not copied again."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        """Makes buffers for the inputs of runs from copies of these arrays, the largest to come."""
        self.arrays, self.latest = [array.copy() for array in arrays], list(arrays)

    def take(self, arrays: Sequence[Array]) -> None:
        """Copies a run's inputs to a prepared call's buffers, except arrays that the last run had too."""
        for index, array in enumerate(arrays):
            if array is not self.latest[index]:
                self.arrays[index][: len(array)] = array
                self.latest[index] = array


class PlainBuffers:
    """Part without a recurrence, prepared for a number of values: its input arrays and the prepared call."""

    def __init__(self, net: Net, part: Part, bound: Bound, arrays: Sequence[Array], count: int) -> None:
        """Prepares a call of a part's kernel `bound` (compiled code with parameters) on copies of its inputs,
        which have `count` values each. net: the net of the part, for the types of its results. The kernel's
        final memory (recurrent state) is not used.
        """
        self.count, self.inputs = count, InputBuffers(arrays)
        types = [net.type_of(number) for number in part.results]
        self.outputs = [np.empty((count, *type_.shape), type_.dtype) for type_ in types]
        call = plain_call(self.inputs.arrays, count)
        self.run = bound.again(call, Results(self.outputs, [np.empty(count, np.float32)]))

    def fits(self, count: int) -> bool:
        """Tells whether this prepared call suits `count` values: they fit, and fill more than half."""
        return self.count // 2 < count <= self.count

    def __call__(self, arrays: Sequence[Array], count: int) -> list[Array]:
        """Runs the prepared part on inputs with `count` values; its outputs are valid until the next run."""
        self.inputs.take(arrays)
        self.run()
        return [output[:count] for output in self.outputs]


class SequenceBuffers:
    """Recurrence of a loop's step that is prepared for sequences with fixed offsets."""

    def __init__(self, part: Part, bound: Bound, call: Call, offsets: Array) -> None:
        """Prepares a call of a recurrence's kernel `bound` (compiled code with parameters) on copies of the
        arrays of a call. offsets: where its sequences begin and end; a later call suits if it has the same
        object.
        """
        self.offsets, first = offsets, len(call.sequences)
        self.inputs = InputBuffers([*call.sequences, *call.statics])
        outputs, final = result_types(part)
        count = call.positions.rows if call.last_only else call.positions.total
        self.outputs = [np.zeros((count, *type_.shape), type_.dtype) for type_ in outputs]
        self.final = [np.zeros((call.positions.rows, *type_.shape), type_.dtype) for type_ in final]
        arrays = self.inputs.arrays
        prepared = replace(call, sequences=arrays[:first], statics=arrays[first:])
        self.run = bound.again(prepared, Results(self.outputs, self.final))

    def __call__(self, call: Call) -> list[Array]:
        """Runs the prepared recurrence on a call whose sequences begin and end at the same offsets; returns
        outputs and final memories (recurrent states), valid until the next run. They are new views, so that
        `InputBuffers` of a later part copies them again.
        """
        self.inputs.take([*call.sequences, *call.statics])
        self.run()
        return [array[:] for array in (*self.outputs, *self.final)]


def result_types(part: Part) -> tuple[list[Type], list[Type]]:
    """Returns the types of the outputs and of the final memories of a part of a net that is a recurrence."""
    assert part.plan is not None
    net, ends = part.plan.net, part.plan.ends
    outputs, final = ([net.type_of(net.results[index]) for index in kind] for kind in (ends.steps, ends.rows))
    return outputs, final


LoopBuffers = dict[int, "PlainBuffers | SequenceBuffers | Array"]
"""The prepared parts of a loop, by `id(part)`; the offsets of a recurrence that is not prepared yet."""


def reused_results(
    part: Part, bound: Bound, call: Call, offsets: Array, buffers: LoopBuffers
) -> list[Array] | None:
    """Runs a recurrence in a step of a loop by a prepared call; returns its outputs and final memories
    (recurrent states), valid until the next step. The call is prepared in `buffers` at the second step that
    has the same sequences.

    Returns None if the recurrence must be called normally: if it has no steps, an initial memory other than
    zeros, or other sequences than at the last step.

    part: the recurrence. bound: its kernel (compiled code) with its parameters.
    offsets: where its sequences begin and end, the same object as long as they do not change.
    """
    if not call.positions.total or any(memory is not None for memory in call.initial):
        return None
    entry = buffers.get(id(part))
    if isinstance(entry, SequenceBuffers) and entry.offsets is offsets:
        return entry(call)
    if entry is offsets:
        sequence_buffers = buffers[id(part)] = SequenceBuffers(part, bound, call, offsets)
        return sequence_buffers(call)
    buffers[id(part)] = offsets
    return None


def reused_outputs(
    net: Net, part: Part, bound: Bound, arrays: Sequence[Array], count: int, buffers: LoopBuffers
) -> list[Array]:
    """Runs a part without a recurrence in a step of a loop, by a call that is prepared at the first step and
    stored in `buffers`; returns its outputs, valid until the next step.

    net: the net of the part. bound: the part's kernel (compiled code) with its parameters. arrays: the part's
        inputs.
    count: the number of values in each of them.
    """
    plain_buffers = buffers.get(id(part))
    if not isinstance(plain_buffers, PlainBuffers) or not plain_buffers.fits(count):
        plain_buffers = buffers[id(part)] = PlainBuffers(net, part, bound, arrays, count)
    return plain_buffers(arrays, count)
