"""Gradient checkpointing: the forward pass saves only the memories before every k-th step.

    forward    [k steps] -h-> [k steps] -h-> [k steps]           each h is kept
    backward                                 [again, back]       the values of k steps are saved at once
                              [again, back] <-dh-
               [again, back] <-dh-                               dW adds up

Recurrences of both directions run in sections of one direction each; the values between sections are saved.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.grad.sections import Section, sections
from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.targets import Call
from stepnet.compiler.values.records import dataclass
from stepnet.model.gradients.accumulator import BackwardAccumulator
from stepnet.model.gradients.in_sections import AtOnce, Sectioned, Values, Way
from stepnet.model.gradients.pieces import Piece, pieces, zeros
from stepnet.model.gradients.runs import Halved
from stepnet.model.nets import BoundNet, counts_steps
from stepnet.model.program import NetProgram

Array = np.ndarray


def checkpointed(net: Net, wanted: Sequence[int], chunks: FitsChunks | None = None) -> Sectioned:
    """Prepares a gradient that saves few values: parts of the net (sections) run in pieces of a few steps.

    wanted: the positions of the inputs whose gradients are computed. chunks: as of `vjp`.
    """

    def run_of(section: Section, places: list[int]) -> InPieces | AtOnce:
        """Makes the programs of a section (part of a net): in pieces (ranges of steps) if it has memories,
        else at once. places: the positions of the section's inputs whose gradients are computed.
        """
        return (InPieces if section.memories else AtOnce).of(section, places, chunks)

    return Sectioned.of(net, wanted, sections(net), run_of)


@dataclass(frozen=True)
class InPieces:
    """A section of a net that runs in pieces of some steps, so that few values are saved at a time.

    section: the part of the net, with one recurrence direction.
    forward: the program of the section.
    again: recomputes the values of a piece that the backward half reads; None if it reads none.
    backward: computes the gradients of a piece.
    saved: for each value that `backward` reads, its position among the results of `again`.
    wanted: the positions of the inputs whose gradients `backward` computes, memories last.
    counts: whether steps read the step index.
    """

    section: Section
    forward: NetProgram
    again: NetProgram | None
    backward: NetProgram
    saved: tuple[int, ...]
    wanted: tuple[int, ...]
    counts: bool

    @classmethod
    def of(cls, section: Section, wanted: Sequence[int], chunks: FitsChunks | None) -> "InPieces":
        """Makes the programs that run a section (part of a net) and its gradients in pieces (ranges of
        steps).

        Values of the forward half that the backward half reads are not saved, but recomputed in each piece.
        There are gradients of the memories and of the wanted inputs.

        wanted: the positions of the wanted inputs. chunks: as of `vjp`.
        """
        net = section.net
        memories = range(len(section.reads), len(net.inputs))
        every = (*wanted, *(place for place in memories if net.type_of(net.inputs[place]).is_float))
        halved = Halved.of(net, every, chunks=chunks)
        first = halved.first.net
        numbers = list(dict.fromkeys(first.results[place] for place in halved.saved))
        saved = tuple(numbers.index(first.results[place]) for place in halved.saved)
        own = NetProgram(prune(replace(first, results=first.results[: len(net.results)])))
        again = NetProgram(prune(replace(first, results=tuple(numbers)))) if numbers else None
        return cls(section, own, again, halved.second, saved, every, counts_steps(net))

    @property
    def saved_count(self) -> int:
        """The number of arrays that `run` of this section saves for the backward pass: one per memory."""
        return len(self.section.memories)

    def initial_memories(self, values: Values, call: Call) -> list[Array]:
        """Returns new arrays with the memories (recurrent states) that the section (part of a net) begins
        with, for a run to overwrite.

        values: the arrays by their numbers in the whole net.
        call: the call, with the number of sequences.
        """
        net = self.section.net
        memories = zip(self.section.memories, net.inputs[len(self.section.reads) :], strict=True)
        made: list[Array] = []
        for memory, number in memories:
            array, type_ = None if memory.begins is None else values[memory.begins], net.type_of(number)
            made.append(zeros(type_, call) if array is None else array.astype(type_.dtype))
        return made

    def pieces(self, way: Way, back: bool = False) -> Iterator[Piece]:
        """Yields the pieces (ranges of steps) of `way`'s call in the loop's order; with `back`, reversed."""
        return pieces(way.call, way.size, self.section.reverse, self.counts, back)

    def run(self, values: Values, way: Way) -> list[Array]:
        """Runs the section (part of a net) piece by piece, by ranges of steps: adds its results to `values`;
        returns checkpoints.

        The checkpoints are one array per memory, with the values before each piece but the first, end to end.

        values: the arrays by their numbers in the whole net.
        way: the call, the piece size and the engines.
        """
        section, net = self.section, self.section.net
        inputs, memories = (
            [values[number] for number in section.reads],
            self.initial_memories(values, way.call),
        )
        made = [zeros(net.type_of(number), way.call) for number in net.results[: len(section.results)]]
        kept = [[memory[:0]] for memory in memories]
        bound = BoundNet.of(self.forward, [*inputs, *memories], way.call, way.engine)
        for place, piece in enumerate(self.pieces(way)):
            ahead = [memory[piece.rows] for memory in memories]
            if place:
                for parts, memory in zip(kept, ahead, strict=True):
                    parts.append(memory.copy())
            results = bound([*piece.inputs(net, inputs), *ahead], piece.call)
            piece.put(net, results, [*made, *memories])
        bound.release()
        values.update(zip(section.results, made, strict=True))
        ends = [memory.ends for memory in section.memories]
        values.update({end: last for end, last in zip(ends, memories, strict=True) if end is not None})
        return [np.concatenate(parts) for parts in kept]

    def gradients(
        self, values: Values, known: dict[int, Array], kept: Sequence[Array], way: Way
    ) -> Iterable[tuple[int, Array]]:
        """Yields the number and the cotangent of each input and memory of the section (part of a net).

        The pieces (ranges of steps) run backward, and the values that each needs are recomputed.

        values: the arrays by their numbers in the whole net.
        known: the nonzero cotangents of the section's results, by number.
        kept: the checkpoints that `run` returned.
        way: the call, the piece size and the engines.
        """
        section, net = self.section, self.section.net
        inputs, memories = (
            [values[number] for number in section.reads],
            self.initial_memories(values, way.call),
        )
        ends = [memory.ends for memory in section.memories]
        cotangents = [None if end is None else known.get(end) for end in (*section.results, *ends)]
        accumulator = BackwardAccumulator.of(net, len(section.results), self.wanted, cotangents, way.call)
        programs = [program for program in (self.again, self.backward) if program is not None]
        *again, backward = [
            BoundNet.of(program, [*inputs, *memories], way.call, way.engine) for program in programs
        ]
        end = len(kept[0])
        for piece in self.pieces(way, back=True):
            first = end - piece.call.positions.rows
            ahead = (
                [array[first:end] for array in kept] if end else [memory[piece.rows] for memory in memories]
            )
            end, arrays = max(0, first), [*piece.inputs(net, inputs), *ahead]
            results = [array for run in again for array in run(arrays, piece.call, separate_outputs=0)]
            saved = [results[place] for place in self.saved]
            accumulator.add(piece, backward([*arrays, *accumulator.cotangents(piece), *saved], piece.call))
        for bound in (*again, backward):
            bound.release()
        begins = [memory.begins for memory in section.memories]
        return accumulator.gradients([*section.reads, *begins])
