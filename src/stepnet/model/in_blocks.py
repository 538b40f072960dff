"""A gradient of which some recurrences run in blocks of steps, each block as one step.

    [a a a a a]               [aa aa]    [a]        blocks of 2 steps, and behind them
    [b b b . .]     -->       [bb   ]    [b]        the steps that are left, by the step itself
    [c . . . .]                          [c]

Each of these recurrences is a section alone; all else is halved as ever. What is kept is what the second half
of each part reads of the first one, and the memories between both. How many steps a block has is chosen for a
net, and so a sequence's results do not depend on the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepnet.compiler.grad.blocks import BlockChoice, block_choices
from stepnet.compiler.grad.isolate_recurrences import Alone, sections_around
from stepnet.compiler.grad.sections import Section
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import STEPS, Type
from stepnet.compiler.plan.passes.block_steps import net_together
from stepnet.compiler.targets import Call, Order
from stepnet.model.backward_accumulator import BackwardAccumulator
from stepnet.model.gradient_runs import GradientRun, Halved
from stepnet.model.in_sections import AtOnce, Sectioned, SectionRun, Values, Way, cotangents_of
from stepnet.model.pieces import Piece, part_of, zeros

Array = np.ndarray
Memories = Sequence[Array | None]
"""Memories that rows begin with; None is zeros."""
EMPTY = np.zeros(0, np.bool_)
"""What is saved of steps that there are none of."""


def trained(net: Net, wanted: Sequence[int]) -> GradientRun:
    """The gradient of the inputs at these places: in blocks of steps where these pay, else in halves."""
    choices = block_choices(net)
    texts = tuple(map(str, choices.values()))
    numbers = [number for number, choice in choices.items() if choice.size > 1]
    if not numbers:
        return replace(Halved.of(net, wanted), blocks=texts)

    def run_of(each: Section | Alone, places: list[int]) -> SectionRun:
        if isinstance(each, Section):
            return AtOnce.of(each, places)
        return InBlocks.of(each.section, choices[each.number], places)

    return replace(Sectioned.of(net, wanted, sections_around(net, numbers), run_of), blocks=texts)


@dataclass(frozen=True)
class Blocks:
    """Steps of a call that are run so many at a time. piece: which these are. halved: what runs them."""

    piece: Piece
    size: int
    halved: Halved

    @property
    def call(self) -> Call:
        """Where the blocks lie in the arrays of the piece."""
        own, size = self.piece.call, self.size
        if size == 1:
            return own
        where = own.positions
        positions = replace(
            where,
            starts=where.starts // size,
            lengths=where.lengths // size,
            total=where.total // size,
        )
        return replace(own, positions=positions)

    def is_all(self, call: Call) -> bool:
        """Whether they are all steps of a call, and lie as these do."""
        first, everyone = self.piece.places[0], isinstance(self.piece.rows, slice)
        return everyone and isinstance(first, slice) and first == slice(0, call.positions.total)

    def blocks(self, array: Array, type_: Type) -> Array:
        """An array of the piece as one of blocks."""
        if self.size == 1 or type_.extent != STEPS:
            return array
        return array.reshape(-1, self.size, *type_.shape)

    def steps(self, array: Array, type_: Type) -> Array:
        """An array of blocks as one of steps."""
        return array.reshape(-1, *type_.shape) if type_.extent == STEPS else array

    def inputs(self, net: Net, arrays: Sequence[Array | None]) -> list[Array | None]:
        """The inputs of the piece, of those of a call."""
        pairs = zip(self.piece.inputs(net, arrays), net.inputs, strict=False)
        return [None if array is None else self.blocks(array, net.type_of(n)) for array, n in pairs]

    def forward(
        self, net: Net, arrays: Sequence[Array | None], ahead: Memories, engine: Order
    ) -> tuple[list[Array], list[Array]]:
        """The results of the steps' net, as it has them, and what is saved; nothing where there are none."""
        if not self.piece.call.positions.rows:
            return [], [EMPTY] * len(self.halved.saved)
        made = self.halved.forward([*self.inputs(net, arrays), *ahead], self.call, engine)
        pairs = zip(net.results, made, strict=False)
        results = [self.steps(array, net.type_of(number)) for number, array in pairs]
        return results, [made[place] for place in self.halved.saved]

    def backward(
        self,
        net: Net,
        arrays: Sequence[Array | None],
        ahead: Memories,
        cotangents: Iterable[Array],
        saved: Sequence[Array],
        wanted: Sequence[int],
        engine: Order,
    ) -> list[Array]:
        """The gradients of inputs of the steps' net. cotangents: of its floating-point results."""
        types = [net.type_of(number) for number in net.results if net.type_of(number).is_float]
        seeds = [self.blocks(array, type_) for array, type_ in zip(cotangents, types, strict=True)]
        inputs, kept = [*self.inputs(net, arrays), *ahead], saved[: len(self.halved.saved)]
        made = self.halved.backward(inputs, seeds, kept, self.call, engine)
        types = [net.type_of(net.inputs[place]) for place in wanted]
        return [self.steps(array, type_) for array, type_ in zip(made, types, strict=True)]


@dataclass(frozen=True)
class InBlocks:
    """A section of one recurrence that runs in blocks of so many steps, and then step by step.

    by_blocks, by_steps: its halves. wanted: the places of the inputs that gradients are of, the memories
    behind all others.
    """

    section: Section
    size: int
    by_blocks: Halved
    by_steps: Halved
    wanted: tuple[int, ...]

    @classmethod
    def of(cls, section: Section, choice: BlockChoice, wanted: Sequence[int]) -> "InBlocks":
        """The programs for gradients of what a section reads, at these places."""
        net = section.net
        memories = range(len(section.reads), len(net.inputs))
        every = (*wanted, *(place for place in memories if net.type_of(net.inputs[place]).is_float))
        blocks = net_together(net, choice.recur)
        return cls(section, choice.size, Halved.of(blocks, every), Halved.of(net, every), every)

    @property
    def kept(self) -> int:
        """See `SectionRun`."""
        return len(self.by_blocks.saved) + len(self.section.memories) + len(self.by_steps.saved)

    def parts(self, call: Call) -> tuple[Blocks, Blocks]:
        """The blocks of a call, and the steps that are left of it. There may be none of either."""
        lengths = call.positions.lengths
        left = lengths % self.size
        whole, none = lengths - left, np.zeros_like(left)
        firsts = (left, none) if self.section.reverse else (none, whole)
        blocks, others = (
            part_of(call, alive, first[alive], lengths[alive], apart=True)
            for first, lengths in zip(firsts, (whole, left), strict=True)
            for alive in [np.flatnonzero(lengths)]
        )
        return Blocks(blocks, self.size, self.by_blocks), Blocks(others, 1, self.by_steps)

    def begun(self, values: Values) -> list[Array | None]:
        """The memories that the section begins with."""
        numbers = self.section.net.inputs[len(self.section.reads) :]
        arrays = [
            None if memory.begins is None else values[memory.begins] for memory in self.section.memories
        ]
        dtypes = [self.section.net.type_of(number).dtype for number in numbers]
        pairs = zip(arrays, dtypes, strict=True)
        return [None if array is None else array.astype(dtype, copy=False) for array, dtype in pairs]

    def run(self, values: Values, way: Way) -> list[Array]:
        """See `SectionRun`. What is kept: what is saved of blocks, the memories behind them that steps begin
        with, and what is saved of these.
        """
        section, net, call = self.section, self.section.net, way.call
        inputs, count = [values[number] for number in section.reads], len(section.results)
        (blocks, others), memories = self.parts(call), self.begun(values)
        if blocks.is_all(call):
            results, kept = blocks.forward(net, inputs, memories, way.engine)
            kept += [EMPTY] * (self.kept - len(kept))
        else:
            results, kept = [zeros(net.type_of(number), call) for number in net.results], list[Array]()
            for last, memory in zip(results[count:], memories, strict=True):
                last[:] = 0 if memory is None else memory
            for part in (blocks, others):
                ahead = [last[part.piece.rows].copy() for last in results[count:]]
                made, saved = part.forward(net, inputs, ahead, way.engine)
                if made:
                    part.piece.put(net, made, results)
                kept += saved if part is blocks else ahead + saved
        values.update({n: array for n, array in zip(section.gives, results, strict=True) if n is not None})
        return kept

    def gradients(
        self, values: Values, known: dict[int, Array], kept: Sequence[Array], way: Way
    ) -> Iterable[tuple[int, Array]]:
        """See `SectionRun`."""
        section, net, call = self.section, self.section.net, way.call
        inputs, memories = [values[number] for number in section.reads], self.begun(values)
        blocks, others = self.parts(call)
        asked = [*section.reads, *(memory.begins for memory in section.memories)]
        if blocks.is_all(call):
            seeds = cotangents_of(section, known, call)
            made = blocks.backward(net, inputs, memories, seeds, kept, self.wanted, way.engine)
            pairs = zip((asked[place] for place in self.wanted), made, strict=True)
            return [(number, array) for number, array in pairs if number is not None]
        cotangents = [None if number is None else known.get(number) for number in section.gives]
        turn = BackwardAccumulator.of(net, len(section.results), self.wanted, cotangents, call)
        first, last = len(self.by_blocks.saved), len(self.by_blocks.saved) + len(memories)
        begun = [None if memory is None else memory[blocks.piece.rows] for memory in memories]
        for part, ahead, saved in ((others, kept[first:last], kept[last:]), (blocks, begun, kept)):
            if part.piece.call.positions.rows:
                seeds = turn.cotangents(part.piece)
                turn.add(part.piece, part.backward(net, inputs, ahead, seeds, saved, self.wanted, way.engine))
        return turn.gradients(asked)
