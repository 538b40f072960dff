"""Packing: sequences end to end without padding in the memory of a target, and zeros for omitted memories.

    [a a a . .]          a a a b b c   with offsets 0 3 5 6   ->   results end to end
    [b b . . .]    ->                                              -> at the positions of the caller's steps
    [c . . . .]

The interpreter and schedules of several parts take calls in this form. Machine code reads sequences in place.
Arrays are copied to the memory as the caller has them, and steps are moved there.
"""

from collections.abc import Container, Sequence
from typing import Any, Self

import numpy as np

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.interpreter import LevelSizes
from stepnet.compiler.net.ir import Net, ancestors
from stepnet.compiler.net.memory import HOST, AnyMemory, Buffer, scattered
from stepnet.compiler.net.types import CONST, is_pairs
from stepnet.compiler.targets.base import Array, Call, OptionalArrays, Results
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions

PIECE, PIECES = 64, 128
"""Without a recurrence, values are divided into at most PIECES sequences of at least PIECE values."""


@dataclass(frozen=True)
class CallPacking:
    """Moves of the arrays of calls into the memory of a target, sequences end to end, and of results back.

    call: a call at the positions of the caller's steps; its arrays are not read.
    memory: the memory of the target.
    positions: where the steps lie in the memory: end to end, or as the caller has them.
    indices: for each step, its index in the caller's arrays; None if they are end to end there.
    """

    call: Call
    memory: AnyMemory
    positions: Positions
    indices: Array | None = None

    @classmethod
    def of(cls, call: Call, memory: AnyMemory = HOST, pack: bool = True) -> Self:
        """Describes how the arrays of a call are moved so that sequences lie end to end, and results back. If
        `pack` is false, padded sequences are not packed, but used with the gaps between them.
        """
        positions = call.positions
        if positions.is_packed:
            return cls(call, memory, positions)
        # Only padded arrays have gaps, and these have one level: the values of Raggeds always lie end to end.
        packed = Positions.end_to_end(positions.offsets) if pack else positions
        return cls(call, memory, packed, positions.all_step_indices)

    @property
    def segments(self) -> LevelSizes:
        """The offsets of a call's sequences, which do not depend on where they lie in the arrays."""
        positions, call = self.call.positions, self.call
        offsets = positions.offsets, *positions.inner
        return LevelSizes(positions.rows, offsets, call.step_offset, positions.beside)

    @property
    def gaps(self) -> Positions | None:
        """The positions, if the sequences have gaps between them in the memory; else None."""
        return None if self.positions.is_packed else self.positions

    def leaves(self, form: "NetForm", clean: Container[int]) -> bool:
        """Tells whether the arrays of a call stay where they are: neither sequences nor outputs are moved,
        and no gaps are set to zero. form: the kinds of the net's results. clean: the results that have zeros
        in the gaps between sequences already.
        """
        return self.indices is None or (
            self.gaps is not None and all(place in clean for place in form.ends.steps)
        )

    def put(self, form: "NetForm", given: OptionalArrays) -> list[Buffer | None]:
        """Puts the arrays of a call into the memory of the target, its sequences end to end without padding;
        returns the buffers there, None for an initial memory (recurrent state) of zeros.

        form: which of the net's inputs are sequences, memories and statics (values that every step reads).
        given: the sequences, initial memories and statics.
        """
        memory = self.memory
        buffers = [None if array is None else memory.put(array) for array in given]
        if self.indices is not None and self.gaps is None:
            for place in form.per_step:
                buffers[place] = memory.take(buffers[place], self.indices)
        return buffers

    def inputs(self, form: "NetForm", given: OptionalArrays) -> list[Buffer]:
        """Puts the arrays of a call into the memory of the target; returns them in the order of the net's
        inputs, parameters left out. Zeros replace initial memories (recurrent states) that were omitted.

        form: which of the net's inputs are sequences, memories and statics (values that every step reads).
        given: the sequences, initial memories and statics.
        """
        net, inputs = form.net, dict[int, Buffer]()
        for place, buffer in zip(form.given, self.put(form, given), strict=True):
            if buffer is None:
                type_ = net.type_of(net.inputs[place])
                buffer = self.memory.zeros((self.positions.rows, *type_.shape), type_.dtype)
            inputs[place] = buffer
        return [inputs[place] for place in sorted(inputs)]

    def results(
        self, form: "NetForm", buffers: Sequence[Buffer], given: OptionalArrays, clean: Container[int] = ()
    ) -> Results:
        """Returns the results of a net as arrays of the host, or as buffers if the arrays of the call are
        buffers, with outputs at the positions of the caller's steps, or reduced to the last step of each
        sequence.

        form: which of the traced net's results are outputs, memories (recurrent states) and totals (values
            over all rows), and the direction of each output.
        buffers: the results in the net's order.
        given: the arrays of the call.
        clean: the positions of the results that are already zeros in the gaps between sequences.
        """
        ends, get = form.ends, unchanged if has_buffers(given) else self.memory.get
        outputs = [
            get(self.in_caller_order(form, place, buffers[place], place in clean)) for place in ends.steps
        ]
        rows, totals = ([get(buffers[place]) for place in places] for places in (ends.rows, ends.totals))
        return Results(outputs, rows, totals)

    def in_caller_order(self, form: "NetForm", place: int, output: Buffer, clean: bool) -> Buffer:
        """Moves the steps of one output to the caller's positions, with zeros in the gaps; with `last_only`,
        takes the step of each sequence that is computed last instead: its first one in a reversed recurrence.
        An output with a value per pair of steps stays as it is: pairs lie end to end also for the caller.

        form: has the types of the network's results. place: the position of the output among these.
        clean: whether the output is already zeros in the gaps between sequences.
        """
        memory, positions, type_ = self.memory, self.positions, form.net.type_of(form.net.results[place])
        if is_pairs(type_.extent):
            return output
        if self.call.last_only:
            rows, indices = positions.end_step_indices(form.backward[place])
            return scattered(memory, type_, positions.rows, rows, memory.take(output, indices))
        if self.indices is None or (clean and self.gaps is not None):
            return output
        steps = output if self.gaps is None else memory.take(output, self.indices)
        return scattered(memory, type_, self.call.positions.total, self.indices, steps)


def has_buffers(arrays: Sequence[Any]) -> bool:
    """Tells whether some arrays of a call lie in the memory of a target, as its buffers; None is zeros."""
    return any(array is not None and not isinstance(array, np.ndarray) for array in arrays)


def unchanged(buffer: Any) -> Any:
    """Returns a buffer as it is: results stay in the memory of a target."""
    return buffer


@dataclass(frozen=True)
class NetForm:
    """Inputs and results of a net by kind (sequence, memory, static), and properties derived from them."""

    net: Net

    @computed_once
    def ends(self) -> Ends:
        """The positions of the net's inputs and results, by kind."""
        return Ends.of(self.net)

    @computed_once
    def per_step(self) -> tuple[int, ...]:
        """The indices of a call's sequences with a value per step; others have one per pair of steps."""
        sequences = (self.net.inputs[place] for place in self.ends.sequences)
        return tuple(
            index for index, number in enumerate(sequences) if not is_pairs(self.net.type_of(number).extent)
        )

    @computed_once
    def given(self) -> tuple[int, ...]:
        """The positions of the net's inputs that a call gives (`Call.given`): all but parameters."""
        ends = self.ends
        return *ends.sequences, *ends.memories, *ends.statics

    @computed_once
    def results(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the results by kind: one value per step, one per row, and totals (`Results`)."""
        return self.ends.steps, self.ends.rows, self.ends.totals

    @computed_once
    def backward(self) -> list[bool]:
        """Tells, for each result of the net, whether the last recurrence that computes it runs in reverse."""
        return [runs_back(self.net, number) for number in self.net.results]


def runs_back(net: Net, number: int) -> bool:
    """Tells whether the last recurrence that a node of a net depends on runs in reverse order of the steps,
    so that the first step of a sequence has the final output. For a node that depends on none, the last
    recurrence of the net counts; False if the net has none. number: the node.
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
