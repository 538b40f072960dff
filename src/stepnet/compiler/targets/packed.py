"""Packed calls: sequences end to end without padding, and zeros filled in for omitted initial memories.

    [a a a . .]          a a a b b c   with offsets 0 3 5 6   ->   results end to end
    [b b . . .]    ->                                              -> at the positions of the caller's steps
    [c . . . .]

The interpreter and schedules of several parts take calls in this form. Machine code reads sequences in place.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.interpret import LevelSizes
from stepnet.compiler.net.ir import Net, ancestors
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.targets.base import Bound, Call, Results
from stepnet.compiler.values.once import computed_once
from stepnet.ragged.offsets import ends_of, offsets_of
from stepnet.ragged.positions import Positions

Array = np.ndarray
PIECE, PIECES = 64, 128
"""Without a recurrence, values are divided into at most PIECES sequences of at least PIECE values."""


@dataclass(frozen=True)
class PackedCall:
    """Call with its sequences end to end.

    call: the call with packed sequences; with gaps, the call as given.
    segments: the offsets of the packed sequences.
    indices: for each packed step, its index in the caller's arrays; None if nothing moved.
    gaps: the positions, if the sequences have gaps between them and are used in place; else None.
    """

    call: Call
    segments: LevelSizes
    indices: Array | None = None
    gaps: Positions | None = None

    @classmethod
    def of(cls, call: Call, pack: bool = True) -> "PackedCall":
        """Copies the sequences of a call end to end, without the gaps of padded arrays. If `pack` is false,
        they are used in place.
        """
        positions = call.positions
        offsets = positions.offsets, *positions.inner
        segments = LevelSizes(positions.rows, offsets, call.step_offset, positions.beside)
        if positions.is_packed:
            return cls(call, segments)
        # Only padded arrays have gaps, and these have one level: the values of Raggeds always lie end to end.
        indices = positions.all_step_indices
        if not pack:
            return cls(call, segments, indices, positions)
        sequences = [np.ascontiguousarray(sequence[indices]) for sequence in call.sequences]
        return cls(replace(call, sequences=sequences), segments, indices)

    def arrays(self, net_form: "NetForm") -> list[Array]:
        """Lists the call's arrays in the order of the net's inputs, parameters left out. Zeros replace
        initial memories that were omitted. net_form: the kinds of the net's inputs.
        """
        ends = net_form.ends
        initial = [
            np.zeros((self.call.positions.rows, *type_.shape), type_.dtype) if array is None else array
            for array, type_ in zip(self.call.initial, net_form.memories, strict=True)
        ]
        indices = (*ends.sequences, *ends.memories, *ends.statics)
        arrays = dict(zip(indices, (*self.call.sequences, *initial, *self.call.statics), strict=True))
        return [arrays[index] for index in sorted(arrays)]

    def results(
        self, net_form: "NetForm", net_results: Sequence[Array], clean: Collection[int] = ()
    ) -> Results:
        """Converts the results of a net on packed sequences to those of the caller: moves outputs to the
        positions of the caller's steps, or reduces them to the last step of each sequence.

        net_form: the kinds of results of the traced net, and the direction of each output.
        net_results: the results in the net's order.
        clean: the positions of the results that are already zeros in the gaps between sequences.
        """
        ends = net_form.ends
        outputs = [
            self.in_caller_order(net_results[index], net_form.backward[index], index in clean)
            for index in ends.steps
        ]
        rows, totals = ([net_results[index] for index in indices] for indices in (ends.rows, ends.totals))
        return Results(outputs, rows, totals)

    def in_caller_order(self, output: Array, backward: bool, clean: bool) -> Array:
        """Moves the steps of one output to the caller's positions, with zeros in the gaps; with `last_only`,
        takes the last step of each sequence instead.

        backward: whether its recurrence runs from the last step, so that the first step is computed last.
        clean: whether the output is already zeros in the gaps between sequences.
        """
        if self.call.last_only and self.gaps is not None:
            return self.gaps.ends(output, backward)
        if self.call.last_only:
            return ends_of(output, self.segments.offsets[0], backward)
        if self.indices is None or (self.gaps is not None and clean):
            return output
        caller_output = np.zeros((self.call.positions.total, *output.shape[1:]), output.dtype)
        caller_output[self.indices] = output if self.gaps is None else output[self.indices]
        return caller_output


@dataclass(frozen=True)
class NetForm:
    """Inputs and results of a net by kind (sequence, memory, static), and properties derived from them."""

    net: Net

    @computed_once
    def ends(self) -> Ends:
        """The positions of the net's inputs and results, by kind."""
        return Ends.of(self.net)

    @computed_once
    def memories(self) -> list[Type]:
        """The types of the initial memories, in order, to make zeros for those that a call leaves out."""
        return [self.net.type_of(self.net.inputs[index]) for index in self.ends.memories]

    @computed_once
    def backward(self) -> list[bool]:
        """Tells, for each result of the net, whether the last recurrence that computes it runs in reverse."""
        return [runs_back(self.net, number) for number in self.net.results]


def runs_back(net: Net, number: int) -> bool:
    """Tells whether the last recurrence that a node depends on runs in reverse, so that its first step has
    the final output. For a node without one, the last recurrence of the net counts. number: the node.
    """
    recurs = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    needed = ancestors(net.nodes, (number,)).intersection(recurs)
    return bool(recurs) and net.nodes[max(needed or recurs)].recur.reverse


def parameters_of(net: Net) -> list[int]:
    """Lists the inputs of a net that are parameters (the same for all rows), as nodes in the net's order."""
    return [number for number in net.inputs if net.type_of(number).extent == CONST]


def varying_of(net: Net) -> list[int]:
    """Lists the inputs of a net other than parameters, which differ by call, as nodes in order."""
    return [number for number in net.inputs if net.type_of(number).extent != CONST]


def plain_call(arrays: Sequence[Array], count: int) -> Call:
    """Makes the call of nodes without a recurrence on arrays of `count` values. The values are treated as the
    steps of some sequences, so that several threads can share them.
    """
    pieces = max(1, min(count // PIECE, PIECES)) if count else 0
    lengths = count // max(1, pieces) + (np.arange(pieces) < count % max(1, pieces))
    return Call(Positions.end_to_end(offsets_of(lengths)), arrays, [None])


def called_again(bound: Bound, call: Call, results: Results) -> Callable[[], None]:
    """Makes a function that runs a call of a kernel anew and copies its results into `results`. Nothing is
    prepared, so that this works for every kernel. bound: the kernel with its parameters.
    """

    def once() -> None:
        """Runs the call on the current contents of its arrays, and copies its results."""
        new_results = bound(call)
        for target, value in zip(results.arrays, new_results.arrays, strict=True):
            target[...] = value

    return once


class CalledSteps:
    """Single steps of some rows of a call, each run as a call of its own: `base.Steps` without preparation.

    Memories and statics of the rows are gathered before, and final memories scattered after each step.
    """

    def __init__(self, bound: Bound, call: Call, results: Results) -> None:
        """Takes a bound kernel, a call with all rows, and the arrays for its results."""
        self.bound, self.call, self.results = bound, call, results

    def of(self, rows: Array) -> Callable[[], None]:
        """Makes a function that runs one step of some rows (sequences), given by index, on the current
        contents of the call's arrays. The first `len(rows)` entries of inputs and outputs belong to them;
        memories, statics and step offsets are read, and final memories written, at the indices `rows`.
        """
        count, call, results = len(rows), self.call, self.results
        positions = Positions.end_to_end(np.arange(count + 1))
        sequences = [array[:count] for array in call.sequences]

        def once() -> None:
            """Runs the step and copies its outputs and final memories into `results`."""
            initial = [None if array is None else array[rows] for array in call.initial]
            statics = [array[rows] for array in call.statics]
            before = None if call.step_offset is None else call.step_offset[rows]
            new_results = self.bound(Call(positions, sequences, initial, statics, step_offset=before))
            for target, value in zip(results.outputs, new_results.outputs, strict=True):
                target[:count] = value
            for target, value in zip(results.final, new_results.final, strict=True):
                target[rows] = value

        return once

    def renew(self, rows: Array) -> None:
        """Does nothing: each step reads all statics (constant inputs) again, so changes need no notice.

        rows: the rows whose statics have changed.
        """
