"""A gradient of which the forward pass keeps the memories ahead of every k steps alone.

    forward    [k steps] -h-> [k steps] -h-> [k steps]           each h is kept
    backward                                 [again, back]       the values of k steps are saved at a time
                              [again, back] <-dh-
               [again, back] <-dh-                               dW adds up

Recurrences of both directions run in sections of one direction each: what goes from one to the next is kept.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepnet.engines import Call, Order
from stepnet.grad.sections import Section, sections
from stepnet.net.ir import Net
from stepnet.plan.passes.prune import prune
from stepnet.rnn.gradient_runs import GradientRun, Halved
from stepnet.rnn.gradients import Programs
from stepnet.rnn.nets import Arrays, BoundNet
from stepnet.rnn.pieces import Checkpoint, Piece, piece_size, pieces, zeros
from stepnet.rnn.program import NetProgram
from stepnet.rnn.turn import Turn

Array = np.ndarray
Values = dict[int, Array | None]
"""Arrays by the values of the whole net that they are; None is a memory of zeros."""


def gradient_run(
    programs: Programs, key: Any, net: Net, wanted: Sequence[int], checkpoint: Checkpoint
) -> GradientRun:
    """What runs the gradient of a net, of the inputs at these places.

    programs, key: where it is kept, and by what the net is known there.
    """
    key = key, tuple(wanted), checkpoint is None
    if checkpoint is None:
        return programs.get(key, lambda: Halved.of(net, wanted))
    return replace(programs.get(key, lambda: Checkpointed.of(net, wanted)), checkpoint=checkpoint)


@dataclass(frozen=True)
class Way:
    """A call, how many steps each of its pieces has, and the engine that runs them."""

    call: Call
    size: int
    engine: Order


@dataclass(frozen=True)
class InPieces:
    """A section that runs in pieces.

    forward: the section. again: what its backward half reads of it; None where that reads nothing. backward:
    gradients. saved: for each value that `backward` reads of `again` its place there. wanted: the places of
    the inputs that `backward` gives gradients of, the memories behind all others. counts: whether the steps
    ask how many were before.
    """

    section: Section
    forward: NetProgram
    again: NetProgram | None
    backward: NetProgram
    saved: tuple[int, ...]
    wanted: tuple[int, ...]
    counts: bool

    @classmethod
    def of(cls, section: Section, wanted: Sequence[int]) -> "InPieces":
        """The programs for gradients of what a section reads, at these places."""
        net = section.net
        memories = range(len(section.reads), len(net.inputs))
        every = (*wanted, *(place for place in memories if net.type_of(net.inputs[place]).is_float))
        halved = Halved.of(net, every)
        first = halved.first.net
        numbers = list(dict.fromkeys(first.results[place] for place in halved.saved))
        saved = tuple(numbers.index(first.results[place]) for place in halved.saved)
        own = NetProgram(prune(replace(first, results=first.results[: len(net.results)])))
        again = NetProgram(prune(replace(first, results=tuple(numbers)))) if numbers else None
        return cls(section, own, again, halved.second, saved, every, counts_steps(net))

    @property
    def kept(self) -> int:
        """How many arrays `run` gives."""
        return len(self.section.memories)

    def begun(self, values: Values, call: Call) -> list[Array]:
        """New arrays of the memories that the section begins with."""
        net = self.section.net
        memories = zip(self.section.memories, net.inputs[len(self.section.reads) :], strict=True)
        made: list[Array] = []
        for memory, number in memories:
            array, type_ = None if memory.begins is None else values[memory.begins], net.type_of(number)
            made.append(zeros(type_, call) if array is None else array.astype(type_.dtype))
        return made

    def pieces(self, way: Way, back: bool = False) -> Iterator[Piece]:
        """The pieces in the order of the recurrences, or back."""
        return pieces(way.call, way.size, self.section.reverse, self.counts, back)

    def run(self, values: Values, way: Way) -> list[Array]:
        """Adds what the section gives to the values. Gives what is kept: of each memory one array, that ahead
        of each piece but the first, piece after piece.
        """
        section, net = self.section, self.section.net
        inputs, memories = [values[number] for number in section.reads], self.begun(values, way.call)
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
        """The cotangents of what the section reads and begins with, each with its value of the whole net.

        known: those of what it gives, where they are not zeros. kept: what `run` gave.
        """
        section, net = self.section, self.section.net
        inputs, memories = [values[number] for number in section.reads], self.begun(values, way.call)
        ends = [memory.ends for memory in section.memories]
        cotangents = [None if end is None else known.get(end) for end in (*section.results, *ends)]
        turn = Turn.of(net, len(section.results), self.wanted, cotangents, way.call)
        programs = [program for program in (self.again, self.backward) if program is not None]
        *again, backward = [
            BoundNet.of(program, [*inputs, *memories], way.call, way.engine) for program in programs
        ]
        end = len(kept[0])
        for piece in self.pieces(way, back=True):
            first = end - piece.call.rows
            ahead = (
                [array[first:end] for array in kept] if end else [memory[piece.rows] for memory in memories]
            )
            end, arrays = max(0, first), [*piece.inputs(net, inputs), *ahead]
            results = [array for run in again for array in run(arrays, piece.call, apart=0)]
            saved = [results[place] for place in self.saved]
            turn.add(piece, backward([*arrays, *turn.cotangents(piece), *saved], piece.call))
        for bound in (*again, backward):
            bound.release()
        begins = [memory.begins for memory in section.memories]
        return turn.gradients([*section.reads, *begins])


@dataclass(frozen=True)
class AtOnce:
    """A section without steps, behind all recurrences."""

    section: Section
    halved: Halved
    wanted: tuple[int, ...]

    @classmethod
    def of(cls, section: Section, wanted: Sequence[int]) -> "AtOnce":
        """The programs for gradients of what a section reads, at these places."""
        return cls(section, Halved.of(section.net, wanted), tuple(wanted))

    @property
    def kept(self) -> int:
        """How many arrays `run` gives."""
        return len(self.halved.saved)

    def run(self, values: Values, way: Way) -> list[Array]:
        """As of `InPieces`; what is kept is what is saved."""
        arrays = self.halved.forward([values[number] for number in self.section.reads], way.call, way.engine)
        values.update(zip(self.section.results, arrays, strict=False))
        return [arrays[place] for place in self.halved.saved]

    def gradients(
        self, values: Values, known: dict[int, Array], kept: Sequence[Array], way: Way
    ) -> Iterable[tuple[int, Array]]:
        """As of `InPieces`."""
        section, cotangents = self.section, list[Array]()
        for number, value in zip(section.net.results, section.results, strict=True):
            type_, array = section.net.type_of(number).computed, known.get(value)
            if type_.is_float:
                cotangents.append(zeros(type_, way.call) if array is None else array.astype(type_.dtype))
        arrays = [values[number] for number in section.reads]
        made = self.halved.backward(arrays, cotangents, kept, way.call, way.engine)
        return zip((section.reads[place] for place in self.wanted), made, strict=True)


@dataclass(frozen=True)
class Checkpointed:
    """The gradient of a net whose sections run in pieces.

    wanted: the places of the inputs that gradients are of. sections: what runs each. first: from which one on
    gradients go through them. crossing: the values that go from one to another and are no inputs.
    """

    net: Net
    wanted: tuple[int, ...]
    sections: tuple[InPieces | AtOnce, ...]
    first: int
    crossing: tuple[int, ...]
    checkpoint: int | str = "sqrt"

    @classmethod
    def of(cls, net: Net, wanted: Sequence[int]) -> "Checkpointed":
        """The gradient of the inputs at these places."""
        live, runs = {net.inputs[place] for place in wanted}, list[InPieces | AtOnce]()
        crossing, alive = dict[int, None](), list[bool]()
        for section in sections(net):
            alive.append(bool(live.intersection(section.operands)))
            live.update(section.values if alive[-1] else ())
            crossing |= dict.fromkeys(number for number in section.operands if number not in net.inputs)
            types = [section.net.type_of(number) for number in section.net.inputs]
            places = [
                place for place, one in enumerate(section.reads) if one in live and types[place].is_float
            ]
            runs.append((InPieces if section.memories else AtOnce).of(section, places))
        first = alive.index(True) if any(alive) else len(alive)
        return cls(net, tuple(wanted), tuple(runs), first, tuple(crossing))

    @property
    def others(self) -> list[int]:
        """What goes from one section to another and is no result."""
        return [number for number in self.crossing if number not in self.net.results]

    @property
    def saved(self) -> tuple[int, ...]:
        """See `GradientRun`: what goes from one section to another, and what each keeps."""
        results = [*self.net.results, *self.others]
        kept = sum(runs.kept for runs in self.sections)
        return (*map(results.index, self.crossing), *range(len(results), len(results) + kept))

    def forward(self, arrays: Arrays, call: Call, engine: Order) -> list[Array]:
        """See `GradientRun`."""
        values: Values = dict(zip(self.net.inputs, arrays, strict=True))
        way, kept = self.way(call, engine), list[Array]()
        for runs in self.sections:
            kept += runs.run(values, way)
        made = (values[number] for number in (*self.net.results, *self.others))
        return [*(array for array in made if array is not None), *kept]

    def backward(
        self,
        arrays: Arrays,
        cotangents: Sequence[Array],
        saved: Sequence[Array],
        call: Call,
        engine: Order,
    ) -> list[Array]:
        """See `GradientRun`."""
        known: dict[int, Array] = {}
        floats = [number for number in self.net.results if self.net.type_of(number).is_float]
        for number, array in zip(floats, cotangents, strict=True):
            add(known, number, array)
        values: Values = dict(zip((*self.net.inputs, *self.crossing), (*arrays, *saved), strict=False))
        left, way = list(saved[len(self.crossing) :]), self.way(call, engine)
        for runs in reversed(self.sections[self.first :]):
            kept, left = left[len(left) - runs.kept :], left[: len(left) - runs.kept]
            for number, array in runs.gradients(values, known, kept, way):
                add(known, number, array)
        inputs = [self.net.inputs[place] for place in self.wanted]
        return [
            known[number] if number in known else zeros(self.net.type_of(number), call) for number in inputs
        ]

    def way(self, call: Call, engine: Order) -> Way:
        """How a call is run."""
        return Way(call, piece_size(self.checkpoint, int(call.lengths.max(initial=0))), engine)


def add(known: dict[int, Array], number: int, array: Array) -> None:
    """Adds the cotangent of a value to what there is of it."""
    known[number] = known[number] + array if number in known else array


def counts_steps(net: Net) -> bool:
    """Whether a recurrence of a net asks how many steps were before."""
    bodies = (node.recur.body for node in net.nodes if node.operation == "recur")
    return any(node.operation == "index" for body in bodies for node in body.nodes)
