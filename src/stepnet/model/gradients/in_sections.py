"""A gradient that runs section by section, where the results of a section are read by later ones.

    forward    x  --section 0-->  u  --section 1-->  y        u, and the values that each section saves
    backward   dx <--section 0--  du <--section 1--  dy       cotangents of one value add up

A section may run in pieces of some steps (`checkpoint.py`), in blocks of steps (`in_blocks.py`), or at once
(here).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from stepnet.compiler.grad.sections import Section
from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.targets import Call, Order
from stepnet.compiler.values.records import dataclass
from stepnet.model.gradients.pieces import Checkpoint, piece_size, zeros
from stepnet.model.gradients.runs import Halved
from stepnet.model.nets import Arrays

Array = np.ndarray
Values = dict[int, Array | None]
"""Arrays by their numbers in the whole net; None for an initial memory of zeros."""


@dataclass(frozen=True)
class Way:
    """The settings with which a gradient runs.

    call: the call of the whole net.
    size: the number of steps of each piece, for sections that run in pieces.
    engine: the engines in order of preference.
    """

    call: Call
    size: int
    engine: Order


class SectionRun(Protocol):
    """A section of a net (a part that runs before or after others), with the programs of its gradients."""

    @property
    def section(self) -> Section:
        """The section (part of the net) that the programs run."""
        ...

    @property
    def saved_count(self) -> int:
        """The number of arrays that `run` of this section saves for the backward pass."""
        ...

    def run(self, values: Values, way: Way) -> list[Array]:
        """Runs the section (part of a net): adds its results to `values`, and returns arrays to save for its
        gradients.

        values: the arrays by their numbers in the whole net.
        way: the call, the number of steps of a piece (range of steps), and the engines.
        """
        ...

    def gradients(
        self, values: Values, known: dict[int, Array], kept: Sequence[Array], way: Way
    ) -> Iterable[tuple[int, Array]]:
        """Returns the number and the cotangent of each input and memory of the section (part of a net).

        values: the arrays by their numbers in the whole net.
        known: the nonzero cotangents of the section's results.
        kept: the arrays that `run` returned.
        way: the call, the number of steps of a piece (range of steps), and the engines.
        """
        ...


RunOf = Callable[[Any, list[int]], SectionRun]
"""A function that makes the run of a section, for the gradients of its inputs at these positions."""


@dataclass(frozen=True)
class AtOnce:
    """A section of a net that runs all of its steps at once, in a forward and a backward half.

    wanted: the positions of the inputs whose gradients are computed.
    """

    section: Section
    halved: Halved
    wanted: tuple[int, ...]

    @classmethod
    def of(cls, section: Section, wanted: Sequence[int], chunks: FitsChunks | None = None) -> "AtOnce":
        """Makes the programs that run a section (part of a net) and its gradients for all steps at once.
        wanted: the positions of the inputs whose gradients are computed. chunks: as of `vjp`.
        """
        return cls(section, Halved.of(section.net, wanted, chunks=chunks), tuple(wanted))

    @property
    def saved_count(self) -> int:
        """The number of arrays that `run` of this section saves for the backward pass."""
        return len(self.halved.saved)

    def run(self, values: Values, way: Way) -> list[Array]:
        """Runs the section as `SectionRun.run`: adds its results to `values`, returns the saved arrays."""
        arrays = self.halved.forward([values[number] for number in self.section.reads], way.call, way.engine)
        values.update(zip(self.section.results, arrays, strict=False))
        return [arrays[place] for place in self.halved.saved]

    def gradients(
        self, values: Values, known: dict[int, Array], kept: Sequence[Array], way: Way
    ) -> Iterable[tuple[int, Array]]:
        """Yields each input's (number, cotangent). It takes the arguments of `SectionRun.gradients`."""
        section, cotangents = self.section, cotangents_of(self.section, known, way.call)
        arrays = [values[number] for number in section.reads]
        made = self.halved.backward(arrays, cotangents, kept, way.call, way.engine)
        return zip((section.reads[place] for place in self.wanted), made, strict=True)


@dataclass(frozen=True)
class Sectioned:
    """The gradient of a net that runs section by section (part by part).

    wanted: the positions of the inputs whose gradients are computed.
    sections: the programs of each section, in the order of the forward pass.
    first: the index of the first section that gradients pass through.
    crossing: the numbers of the values that one section computes and another reads.
    checkpoint: the number of steps of a piece, for sections that run in pieces; else None.
    blocks: a text for each recurrence: the number of steps that it runs at a time, and the reason.
    """

    net: Net
    wanted: tuple[int, ...]
    sections: tuple[SectionRun, ...]
    first: int
    crossing: tuple[int, ...]
    checkpoint: Checkpoint = None
    blocks: tuple[str, ...] = ()

    @classmethod
    def of(cls, net: Net, wanted: Sequence[int], cut: Iterable[Any], run_of: RunOf) -> "Sectioned":
        """Makes the gradient of a net, section by section, with respect to the inputs at the positions
        `wanted`.

        In a section, gradients are computed of the inputs that are wanted or depend on wanted ones.

        cut: the sections (parts of the net) in order; or objects with an attribute `section`.
        run_of: makes the programs of a section, given an entry of `cut` and the positions of the inputs to
            differentiate.
        """
        live, runs = {net.inputs[place] for place in wanted}, list[SectionRun]()
        crossing, alive = dict[int, None](), list[bool]()
        for each in cut:
            section: Section = getattr(each, "section", each)
            alive.append(bool(live.intersection(section.operands)))
            live.update(section.values if alive[-1] else ())
            crossing |= dict.fromkeys(number for number in section.operands if number not in net.inputs)
            types = [section.net.type_of(number) for number in section.net.inputs]
            places = [
                place for place, one in enumerate(section.reads) if one in live and types[place].is_float
            ]
            runs.append(run_of(each, places))
        first = alive.index(True) if any(alive) else len(alive)
        return cls(net, tuple(wanted), tuple(runs), first, tuple(crossing))

    @property
    def others(self) -> list[int]:
        """The numbers of the values that a section computes for another one, without results of the net."""
        return [number for number in self.crossing if number not in self.net.results]

    @property
    def saved(self) -> tuple[int, ...]:
        """The positions of the values that `backward` reads among the arrays that `forward` returns."""
        results = [*self.net.results, *self.others]
        kept = sum(runs.saved_count for runs in self.sections)
        return (*map(results.index, self.crossing), *range(len(results), len(results) + kept))

    def forward(self, arrays: Arrays, call: Call, engine: Order) -> list[Array]:
        """Runs the forward pass, section by section (parts of the net).

        Returns the results of the net, then the values that one section reads of another, then the arrays
        that the sections save. It takes the arguments of `GradientRun.forward`.
        """
        values: Values = dict(zip(self.net.inputs, arrays, strict=True))
        way = self.way(call, engine)
        kept: list[Array] = []
        for runs in self.sections:
            kept += runs.run(values, way)
        made = (values[number] for number in (*self.net.results, *self.others))
        return [*(array for array in made if array is not None), *kept]

    def backward(
        self, arrays: Arrays, cotangents: Sequence[Array], saved: Sequence[Array], call: Call, engine: Order
    ) -> list[Array]:
        """Runs the sections (parts of the net) backward; returns the gradients of the inputs at `wanted`. It
        takes the arguments of `GradientRun.backward`.
        """
        known: dict[int, Array] = {}
        floats = [number for number in self.net.results if self.net.type_of(number).is_float]
        for number, array in zip(floats, cotangents, strict=True):
            add(known, number, array)
        values: Values = dict(zip((*self.net.inputs, *self.crossing), (*arrays, *saved), strict=False))
        left, way = list(saved[len(self.crossing) :]), self.way(call, engine)
        for runs in reversed(self.sections[self.first :]):
            kept, left = left[len(left) - runs.saved_count :], left[: len(left) - runs.saved_count]
            for number, array in runs.gradients(values, known, kept, way):
                add(known, number, array)
        inputs = [self.net.inputs[place] for place in self.wanted]
        return [
            known[number] if number in known else zeros(self.net.type_of(number), call) for number in inputs
        ]

    def way(self, call: Call, engine: Order) -> Way:
        """Returns the steps per piece and the engines of a call; without a checkpoint it is one piece."""
        longest = int(call.positions.lengths.max(initial=0))
        size = longest if self.checkpoint is None else piece_size(self.checkpoint, longest)
        return Way(call, size, engine)


def cotangents_of(section: Section, known: dict[int, Array], call: Call) -> list[Array]:
    """Returns the cotangents of the floating-point results of a section (part of a net).

    known: cotangents by the numbers of their values in the whole net; missing ones become zeros.
    call: the call, with the number of entries of each value.
    """
    made: list[Array] = []
    for number, value in zip(section.net.results, section.gives, strict=True):
        type_, array = section.net.type_of(number).computed, None if value is None else known.get(value)
        if type_.is_float:
            made.append(zeros(type_, call) if array is None else array.astype(type_.dtype, copy=False))
    return made


def add(known: dict[int, Array], number: int, array: Array) -> None:
    """Adds an array to the cotangent of a value; the first array becomes the cotangent. known: the cotangents
    so far by the numbers of their values. number: the number of the value.
    """
    known[number] = known[number] + array if number in known else array
