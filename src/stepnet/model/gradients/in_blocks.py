"""A gradient in which some recurrences run in blocks of steps, each block as one step.

    [a a a a a]               [aa aa]    [a]        blocks of 2 steps, and behind them
    [b b b . .]     -->       [bb   ]    [b]        the steps that are left, by the step itself
    [c . . . .]                          [c]

Each of these recurrences is a section of its own; everything else runs in two halves. The values that the
backward half of each part reads of its forward half are saved, and so are the memories after the blocks. The
block size is chosen for a net, so a sequence's results do not depend on the other sequences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.grad.blocks import BlockChoice, block_choices
from stepnet.compiler.grad.isolate_recurrences import IsolatedRecurrence, sections_around
from stepnet.compiler.grad.matrix_adjoint import divided
from stepnet.compiler.grad.sections import Section
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import STEPS, Type
from stepnet.compiler.plan.load import BlockCosts
from stepnet.compiler.plan.passes.block_steps import net_with_joined_steps
from stepnet.compiler.targets import Call, Order
from stepnet.compiler.values.records import dataclass
from stepnet.model.gradients.accumulator import BackwardAccumulator
from stepnet.model.gradients.in_sections import AtOnce, Sectioned, SectionRun, Values, Way, cotangents_of
from stepnet.model.gradients.pieces import Piece, part_of, zeros
from stepnet.model.gradients.runs import GradientRun, Halved

Array = np.ndarray
Memories = Sequence[Array | None]
"""The memories that rows begin with; None stands for zeros."""
EMPTY = np.zeros(0, np.bool_)
"""A placeholder among saved arrays, for the blocks or single steps that a call does not have."""


def trained(
    net: Net, wanted: Sequence[int], costs: BlockCosts, alone: str = "", is_each: bool = False
) -> GradientRun:
    """Prepares the gradient of a net that saves all values; recurrences may run in chunks of steps, or in
    blocks (several steps computed as one).

    They do if that is faster; all else runs in a forward and a backward half.

    wanted: the positions of the inputs whose gradients are computed.
    costs: the costs of the engine that runs it. alone: why no steps are joined to blocks; "" if they may be.
    is_each: as of `Halved.of`.
    """
    net = net if costs.chunks is None else divided(net, costs.chunks)
    choices = block_choices(net, costs, alone)
    texts = tuple(map(str, choices.values()))
    numbers = [number for number, choice in choices.items() if choice.size > 1]
    if not numbers:
        return replace(Halved.of(net, wanted, is_each, chunks=costs.chunks), blocks=texts)

    def run_of(each: Section | IsolatedRecurrence, places: list[int]) -> SectionRun:
        """Makes the programs of a part of the net: in blocks (several steps computed as one) for a recurrence
        of `numbers`, else at once. places: the positions of the part's inputs whose gradients are computed.
        """
        if isinstance(each, Section):
            return AtOnce.of(each, places, costs.chunks)
        return InBlocks.of(each.section, choices[each.number], places)

    return replace(Sectioned.of(net, wanted, sections_around(net, numbers), run_of), blocks=texts)


@dataclass(frozen=True)
class Blocks:
    """A part of a call's steps, which run in blocks of several steps at a time.

    piece: the steps, as a piece of the call.
    size: the number of steps of a block; 1 for single steps.
    halved: the programs that run a block and its gradient.
    """

    piece: Piece
    size: int
    halved: Halved

    @property
    def call(self) -> Call:
        """The call of the piece, on the same arrays, with each block of `size` steps as one step."""
        own, size = self.piece.call, self.size
        if size == 1:
            return own
        where = own.positions
        positions = replace(
            where, starts=where.starts // size, lengths=where.lengths // size, total=where.total // size
        )
        return replace(own, positions=positions)

    def is_all(self, call: Call) -> bool:
        """Returns whether these blocks of steps (several computed as one) have all steps of all sequences of
        a call, in the order of its arrays, so that they can use these arrays without copies.
        """
        first, everyone = self.piece.places[0], isinstance(self.piece.rows, slice)
        return everyone and isinstance(first, slice) and first == slice(0, call.positions.total)

    def blocks(self, array: Array, type_: Type) -> Array:
        """Groups an array's values per step by block of `size` steps (computed as one), [blocks, size, ...],
        as views; returns other arrays unchanged.

        type_: the type of the values, which says if there is one per step.
        """
        if self.size == 1 or type_.extent != STEPS:
            return array
        return array.reshape(-1, self.size, *type_.shape)

    def steps(self, array: Array, type_: Type) -> Array:
        """Ungroups the values per block (several steps computed as one) of an array to values per step;
        returns other arrays unchanged. type_: the type of the values, which says if there is one per step.
        """
        return array.reshape(-1, *type_.shape) if type_.extent == STEPS else array

    def inputs(self, net: Net, arrays: Sequence[Array | None]) -> list[Array | None]:
        """Returns the inputs of the blocks of steps (several computed as one), cut out of the arrays of the
        whole call.

        net: the net of single steps.
        arrays: the arrays of its inputs in the whole call; None for an initial memory of zeros.
        """
        pairs = zip(self.piece.inputs(net, arrays), net.inputs, strict=False)
        return [None if array is None else self.blocks(array, net.type_of(n)) for array, n in pairs]

    def forward(
        self, net: Net, arrays: Sequence[Array | None], ahead: Memories, engine: Order
    ) -> tuple[list[Array], list[Array]]:
        """Runs the forward pass of the blocks of steps (several computed as one); returns the net's results
        per step, and saved arrays.

        Without rows (sequences) there are no results, and the saved arrays are placeholders.

        net: the net of single steps.
        arrays: the inputs of the whole call.
        ahead: the memories before the blocks.
        engine: the engines in order of preference.
        """
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
        """Runs the backward pass of the blocks of steps (several computed as one); returns the gradients of
        the inputs at `wanted`.

        net: the net of single steps.
        arrays: the inputs of the whole call.
        ahead: the memories before the blocks.
        cotangents: the cotangents of the net's floating-point results, per step.
        saved: the saved arrays of `forward`; further arrays after them are ignored.
        wanted: positions among the inputs of the net.
        engine: the engines in order of preference.
        """
        types = [net.type_of(number) for number in net.results if net.type_of(number).is_float]
        seeds = [self.blocks(array, type_) for array, type_ in zip(cotangents, types, strict=True)]
        inputs, kept = [*self.inputs(net, arrays), *ahead], saved[: len(self.halved.saved)]
        made = self.halved.backward(inputs, seeds, kept, self.call, engine)
        types = [net.type_of(net.inputs[place]) for place in wanted]
        return [self.steps(array, type_) for array, type_ in zip(made, types, strict=True)]


@dataclass(frozen=True)
class InBlocks:
    """A section of one recurrence that runs in blocks of steps, and then the remaining steps one by one.

    size: the number of steps of a block.
    by_blocks, by_steps: the forward and backward programs of a block, and of a single step.
    wanted: the positions of the inputs whose gradients are computed, memories last.
    """

    section: Section
    size: int
    by_blocks: Halved
    by_steps: Halved
    wanted: tuple[int, ...]

    @classmethod
    def of(cls, section: Section, choice: BlockChoice, wanted: Sequence[int]) -> "InBlocks":
        """Makes the programs that run a section (part of a net) and its gradients in blocks of steps (several
        computed as one).

        There are programs for a block of steps, and for a single step. They compute the gradients of the
        memories and of the wanted inputs.

        choice: the recurrence of the section over blocks, with the number of steps of a block.
        wanted: the positions of the wanted inputs.
        """
        net = section.net
        memories = range(len(section.reads), len(net.inputs))
        every = (*wanted, *(place for place in memories if net.type_of(net.inputs[place]).is_float))
        blocks = net_with_joined_steps(net, choice.recur)
        return cls(section, choice.size, Halved.of(blocks, every), Halved.of(net, every), every)

    @property
    def saved_count(self) -> int:
        """The number of arrays that `run` of this section saves for the backward pass."""
        return len(self.by_blocks.saved) + len(self.section.memories) + len(self.by_steps.saved)

    def parts(self, call: Call) -> tuple[Blocks, Blocks]:
        """Splits a call into blocks of `size` steps (each computed as one) and the single steps that remain;
        either may be empty.

        The single steps run last: at the end of each sequence, or at its beginning if the recurrence runs in
        reverse.
        """
        lengths = call.positions.lengths
        left = lengths % self.size
        whole, none = lengths - left, np.zeros_like(left)
        firsts = (left, none) if self.section.reverse else (none, whole)
        blocks, others = (
            part_of(call, alive, first[alive], lengths[alive], consecutive=True)
            for first, lengths in zip(firsts, (whole, left), strict=True)
            for alive in [np.flatnonzero(lengths)]
        )
        return Blocks(blocks, self.size, self.by_blocks), Blocks(others, 1, self.by_steps)

    def initial_memories(self, values: Values) -> list[Array | None]:
        """Returns the memories that the section (part of a net) begins with; None for zeros.

        values: the arrays by their numbers in the whole net.
        """
        numbers = self.section.net.inputs[len(self.section.reads) :]
        arrays = [
            None if memory.begins is None else values[memory.begins] for memory in self.section.memories
        ]
        dtypes = [self.section.net.type_of(number).dtype for number in numbers]
        pairs = zip(arrays, dtypes, strict=True)
        return [None if array is None else array.astype(dtype, copy=False) for array, dtype in pairs]

    def run(self, values: Values, way: Way) -> list[Array]:
        """Runs the section (part of a net): blocks of several steps as one step each, then the remaining
        steps. Adds its results to `values`.

        Returns arrays to save: the saved values of the blocks, the memories after the blocks, and the saved
        values of the single steps.

        values: the arrays by their numbers in the whole net.
        way: the call with its engines.
        """
        section, net, call = self.section, self.section.net, way.call
        inputs, count = [values[number] for number in section.reads], len(section.results)
        (blocks, others), memories = self.parts(call), self.initial_memories(values)
        if blocks.is_all(call):
            results, kept = blocks.forward(net, inputs, memories, way.engine)
            kept += [EMPTY] * (self.saved_count - len(kept))
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
        """Returns the number and the cotangent of each input and memory of the section (part of a net).

        values: the arrays by their numbers in the whole net.
        known: the nonzero cotangents of the section's results.
        kept: the arrays that `run` returned.
        way: the call and the engines.
        """
        section, net, call = self.section, self.section.net, way.call
        inputs, memories = [values[number] for number in section.reads], self.initial_memories(values)
        blocks, others = self.parts(call)
        input_values = [*section.reads, *(memory.begins for memory in section.memories)]
        if blocks.is_all(call):
            seeds = cotangents_of(section, known, call)
            made = blocks.backward(net, inputs, memories, seeds, kept, self.wanted, way.engine)
            pairs = zip((input_values[place] for place in self.wanted), made, strict=True)
            return [(number, array) for number, array in pairs if number is not None]
        cotangents = [None if number is None else known.get(number) for number in section.gives]
        accumulator = BackwardAccumulator.of(net, len(section.results), self.wanted, cotangents, call)
        first, last = len(self.by_blocks.saved), len(self.by_blocks.saved) + len(memories)
        initial = [None if memory is None else memory[blocks.piece.rows] for memory in memories]
        for part, ahead, saved in ((others, kept[first:last], kept[last:]), (blocks, initial, kept)):
            if part.piece.call.positions.rows:
                seeds = accumulator.cotangents(part.piece)
                accumulator.add(
                    part.piece, part.backward(net, inputs, ahead, seeds, saved, self.wanted, way.engine)
                )
        return accumulator.gradients(input_values)
