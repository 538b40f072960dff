"""A gradient in which some recurrences run on an engine with native forward and backward code.

    forward    u = x * s   llvm      y, kept = gru(u)        onednn      loss of y           llvm
    backward   dx          llvm      du, dW of kept, dy      onednn      dy                  llvm

Each of these recurrences is a section alone; all else is halved as ever.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepnet.engines import Call, Order
from stepnet.engines.native_gradients import Pair
from stepnet.engines.pairs import PairChoice, pair_choice
from stepnet.engines.part import Frame
from stepnet.grad.alone import Alone, alone, sections_around
from stepnet.grad.sections import Section
from stepnet.net.interpret import Segments
from stepnet.net.ir import Net
from stepnet.net.types import STEPS, Extent
from stepnet.plan.groups import has_inner
from stepnet.plan.passes.lift import lift
from stepnet.plan.passes.unloop import unloop
from stepnet.plan.plan import plan
from stepnet.plan.schedule import is_nested
from stepnet.rnn.in_sections import AtOnce, Sectioned, SectionRun, Values, Way, cotangents_of

Array = np.ndarray


@dataclass(frozen=True)
class Paired:
    """A section of one recurrence, on an engine that has its gradient. See `SectionRun`.

    wanted: the places of the inputs whose gradients are wanted, those that are read alone.
    """

    section: Section
    extent: Extent
    choice: PairChoice
    pair: Pair
    wanted: tuple[int, ...]
    kept: int = 1

    def run(self, values: Values, way: Way) -> list[Array]:
        """See `SectionRun`. The saved values are bytes in a private format of the engine."""
        section = self.section
        results, kept = self.pair.forward(self.arrays(values), sequences_at(way.call, self.extent))
        values.update({n: array for n, array in zip(section.gives, results, strict=True) if n is not None})
        return [kept]

    def gradients(
        self, values: Values, known: dict[int, Array], kept: Sequence[Array], way: Way
    ) -> Iterable[tuple[int, Array]]:
        """See `SectionRun`."""
        section, call = self.section, sequences_at(way.call, self.extent)
        cotangents = cotangents_of(section, known, call)
        made = self.pair.backward(self.arrays(values), cotangents, kept[0], call)
        for place in self.wanted:
            yield section.reads[place], made[place]
        for memory, array in zip(section.memories, made[len(section.reads) :], strict=True):
            if memory.begins is not None:
                yield memory.begins, array

    @property
    def bytes_per_step(self) -> int:
        """About how much is kept for each step: of 16 sequences, where nothing depends on few of them."""
        rows, steps = 16, 32
        more, fewer = (self.pair.kept_bytes(rows, count) for count in (2 * steps, steps))
        return (more - fewer) // (rows * steps)

    def arrays(self, values: Values) -> list[Array | None]:
        """The inputs of the section's net."""
        begins = [memory.begins for memory in self.section.memories]
        return [None if number is None else values[number] for number in (*self.section.reads, *begins)]


def paired(net: Net, wanted: Sequence[int], asked: Order) -> Sectioned:
    """The gradient of the inputs at these places, each recurrence on the first engine that has it.

    Raises `RefusedError` where a recurrence has no engine.
    """
    net = unloop(lift(net)) if is_nested(net) else net
    choices = pair_choices(net, asked)
    chosen = [number for number, choice in choices.items() if choice.pair is not None]

    def run_of(each: Section | Alone, places: list[int]) -> SectionRun:
        if isinstance(each, Section):
            return AtOnce.of(each, places)
        choice = choices[each.number]
        assert choice.pair is not None
        return Paired(each.section, each.extent, choice, choice.pair, tuple(places))

    made = Sectioned.of(net, wanted, sections_around(net, chosen), run_of)
    return replace(made, choices=tuple(choices.values()))


def pair_choices(net: Net, asked: Order) -> dict[int, PairChoice]:
    """The engine of the gradient of each recurrence, by the number of its node."""
    choices: dict[int, PairChoice] = {}
    for number, node in enumerate(net.nodes):
        if node.operation == "recur":
            flat = not has_inner(node.recur.body)
            made = plan(alone(net, number).section.net) if flat else None
            choices[number] = pair_choice(made, asked)
    return choices


def sequences_at(call: Call, extent: Extent) -> Call:
    """A call without arrays of the sequences along the innermost axis of an extent."""
    if extent == STEPS:
        return replace(call, sequences=(), initial=(), statics=(), beside={})
    positions = call.positions
    offsets = positions.offsets, *positions.inner
    segments = Segments(positions.rows, offsets, call.step_offset, positions.beside)
    return Frame(segments).sequences(extent)
