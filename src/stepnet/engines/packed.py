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
from stepnet.net.ends import Ends
from stepnet.net.interpret import Segments
from stepnet.net.ir import Net, ancestors
from stepnet.net.types import CONST
from stepnet.ragged.offsets import ends_of, offsets_of

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
        ends = Ends.of(net)
        memories = [net.type_of(net.inputs[place]) for place in ends.memories]
        initial = [
            np.zeros((self.call.rows, *type_.shape), type_.dtype) if array is None else array
            for array, type_ in zip(self.call.initial, memories, strict=True)
        ]
        places = (*ends.sequences, *ends.memories, *ends.statics)
        given = dict(zip(places, (*self.call.sequences, *initial, *self.call.statics), strict=True))
        return [given[place] for place in sorted(given)]

    def results(self, net: Net, made: Sequence[Array], clean: Collection[int] = ()) -> Results:
        """What a net gave by kind, steps as the caller's sequences lie, or each sequence's last.

        net: as traced, which says from which end each output was made. clean: the places of those results
        that are zeros in the gaps.
        """
        ends = Ends.of(net)
        outputs = [
            self.laid_out(made[place], net, net.results[place], place in clean) for place in ends.steps
        ]
        rows, totals = ([made[place] for place in places] for places in (ends.rows, ends.totals))
        return Results(outputs, rows, totals)

    def laid_out(self, output: Array, net: Net, number: int, clean: bool) -> Array:
        """One output where the sequences' steps lay, or each sequence's last."""
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
    """Whether the last recurrence that a value is made of, or that there is, runs from the last step."""
    recurs = [one for one, node in enumerate(net.nodes) if node.operation == "recur"]
    needed = ancestors(net.nodes, (number,)).intersection(recurs)
    return bool(recurs) and net.nodes[max(needed or recurs)].recur.reverse


def parameters_of(net: Net) -> list[int]:
    """The inputs of a net that are parameters, in order."""
    return [number for number in net.inputs if net.type_of(number).extent == CONST]


def called_again(bound: Bound, call: Call, results: Results) -> Callable[[], None]:
    """What makes a call whenever it is called, and copies what it gives to where `results` has it."""

    def once() -> None:
        made = bound(call)
        for kept, new in zip(results.arrays, made.arrays, strict=True):
            kept[...] = new

    return once
