"""Calls as nets see them: sequences end to end, memories that begin at zeros filled in.

    [a a a . .]          a a a b b c   with offsets 0 3 5 6   ->   results end to end
    [b b . . .]    ->                                              -> laid out as the sequences lay
    [c . . . .]

The interpreter and what runs a schedule part by part take calls in this form. Machine code reads sequences
where they lie.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepnet.engines.base import Bound, Call, Results
from stepnet.interpret import Segments
from stepnet.ir import Net
from stepnet.ragged.offsets import ends_of, offsets_of
from stepnet.types import CONST, ROWS

Array = np.ndarray


@dataclass(frozen=True)
class Packed:
    """A call with its sequences end to end.

    places: where each step lay, None where it lies as it lay. gaps: the call itself, where its sequences have
    gaps between them and stay where they are.
    """

    call: Call
    segments: Segments
    places: Array | None = None
    gaps: Call | None = None

    @classmethod
    def of(cls, call: Call, pack: bool = True) -> "Packed":
        """The packed form of a call; the same arrays where they are packed already, or are not to be."""
        offsets = offsets_of(call.lengths)
        segments = Segments(call.rows, (offsets, *call.inner), call.begun, call.beside)
        if call.is_packed:
            return cls(call, segments)
        # Only arrays of one level have gaps: the values of Raggeds always lie end to end.
        places = call.all_places
        if not pack:
            return cls(call, segments, places, call)
        sequences = [np.ascontiguousarray(sequence[places]) for sequence in call.sequences]
        return cls(replace(call, sequences=sequences, steps=None), segments, places)

    def arrays(self, net: Net) -> list[Array]:
        """The arrays of all inputs of a net but its parameters, in order."""
        types = [net.type_of(number) for number in net.inputs]
        memories = types[len(self.call.sequences) :][: len(self.call.initial)]
        initial = [
            np.zeros((self.call.rows, *type_.shape), type_.dtype) if array is None else array
            for array, type_ in zip(self.call.initial, memories, strict=True)
        ]
        return [*self.call.sequences, *initial, *self.call.statics]

    def results(self, net: Net, made: Sequence[Array], clean: Collection[int] = ()) -> Results:
        """What a net gave, outputs as the caller's sequences lie, or each sequence's last.

        net: as traced, which says from which end each output was made. clean: the places of those results
        that are zeros in the gaps.
        """
        first = len(made) - len(self.call.initial)
        outputs = [
            self.laid_out(array, net, net.results[place], place in clean)
            for place, array in enumerate(made[:first])
        ]
        return Results(outputs, list(made[first:]))

    def laid_out(self, output: Array, net: Net, number: int, clean: bool) -> Array:
        """One output where the sequences' steps lay, or each sequence's last."""
        if net.type_of(number).extent == ROWS:
            return output
        if self.call.last_only and self.gaps is not None:
            return self.gaps.ends(output, runs_back(net, number))
        if self.call.last_only:
            return ends_of(output, self.segments.offsets[0], runs_back(net, number))
        if self.places is None or (self.gaps is not None and clean):
            return output
        whole = np.zeros((self.call.total, *output.shape[1:]), output.dtype)
        whole[self.places] = output if self.gaps is None else output[self.places]
        return whole


def runs_back(net: Net, number: int) -> bool:
    """Whether a value is an output of a recurrence that runs from each sequence's last step."""
    node = net.nodes[number]
    return node.operation == "result" and net.nodes[node.inputs[0]].recur.reverse


def parameters_of(net: Net) -> list[int]:
    """The inputs of a net that are parameters, in order."""
    return [number for number in net.inputs if net.type_of(number).extent == CONST]


def called_again(bound: Bound, call: Call, results: Results) -> Callable[[], None]:
    """What makes a call whenever it is called, and copies what it gives to where `results` has it."""

    def once() -> None:
        made = bound(call)
        for kept, new in zip((*results.outputs, *results.final), (*made.outputs, *made.final), strict=True):
            kept[...] = new

    return once
