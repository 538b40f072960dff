"""Explains a generation: where symbols are chosen, in how many calls, and by which kernels.

generation, for 16 sequences of up to 100 symbols
  symbols     chosen in the step, by the highest of 50 scores
  runs        one call for all symbols after the first ones, which follow the given symbols
  GPU         NVIDIA H100 ...

What needs Python between two symbols runs as a stream, with the reason in the row "runs".
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.targets import Order, engines_of
from stepnet.compiler.targets.capabilities import KernelEngine
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import checked_integer, function
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, transform
from stepnet.errors import InputError, named
from stepnet.explain.document import Item, TitledSection
from stepnet.explain.plan import facts_table, schedule_sections
from stepnet.model.generation.beam_steps import BeamChoice
from stepnet.model.generation.compiled import (
    MOST_STEPS,
    CompiledGeneration,
    compiled_generation,
    programs_of,
    refused,
)
from stepnet.model.generation.decoder import FOLLOW, Writer, checked_most
from stepnet.model.generation.feedback import Choice
from stepnet.model.generation.feeds import Feed
from stepnet.model.generation.samplers import Sampling
from stepnet.model.layers import Combined, LayerArguments, leaves_of
from stepnet.model.model import Model
from stepnet.model.recurrence import RNN
from stepnet.ragged import Ragged

NAMES = "max_steps", "beams", "sampler", "feed", "scores"
"""The arguments of `explain` for a generation."""
SHOWN = 1
"""The number of sequences of a generation that is explained by default."""


@dataclass(frozen=True)
class AskedGeneration:
    """A call of `generate`, or with `beams` of `beam_search`, that is explained.

    rows: the number of starts. most: the largest number of symbols of a sequence. The others are the
    arguments of these functions.
    """

    rows: int
    most: int
    beams: int | None = None
    sampler: Any = None
    feed: Any = None
    scores: Callable[[Any], Any] | None = None

    def choice(self, symbols: int) -> Choice | BeamChoice:
        """Returns the rule that chooses the next symbol from the scores of `symbols` symbols."""
        return (
            Choice(symbols, (), self.sampler) if self.beams is None else BeamChoice(symbols, (), self.beams)
        )

    @property
    def size(self) -> CallSize:
        """The size of the call that generates all symbols but the first of each sequence."""
        return CallSize(self.rows, self.most, self.rows * self.most)

    @property
    def title(self) -> str:
        """The title of the section, with the numbers of sequences, symbols and beams."""
        starts = "one sequence" if self.rows == 1 else f"{self.rows} sequences"
        beams = "" if self.beams is None else f", {self.beams} beams of each"
        return f"generation, for {starts} of up to {self.most} symbols{beams}"


def explained(
    model: Model, order: Order, given: tuple[Any, ...], rows: int | None, steps: Any, lengths: Any
) -> list[TitledSection]:
    """Checks the arguments of `explain` for a generation; makes the sections that explain it.

    order: the engines in order of preference. given: the arguments by the names in `NAMES`. Raises
    `InputError` for arguments without `max_steps`, and for arguments that do not fit one another.
    """
    by_name = {name: value for name, value in zip(NAMES, given, strict=True) if value is not None}
    if "max_steps" not in by_name:
        raise InputError(f"{next(iter(by_name))}= is of a generation: give max_steps= too, its most symbols")
    if steps is not None or lengths is not None:
        raise InputError("max_steps= says how many symbols a generation has: leave out steps= and lengths=")
    if {"beams", "sampler"} <= {*by_name}:
        raise InputError("a beam search draws no symbols: leave out beams= or sampler=")
    most = checked_most(by_name.pop("max_steps"))
    if "beams" in by_name:
        checked_integer(by_name["beams"], "beams is how many sequences are kept, 1 or more", 1)
    if "sampler" in by_name:
        function(by_name["sampler"], "sampler is a function sampler(scores, random)")
    meaning = "rows is the number of sequences that are generated, a whole number from 1 on"
    count = checked_integer(SHOWN if rows is None else rows, meaning, 1)
    return generation_sections(model, order, AskedGeneration(count, most, **by_name))


def generation_sections(model: Model, order: Order, asked: AskedGeneration) -> list[TitledSection]:
    """Makes the sections that explain a generation: where symbols are chosen and by which kernels, then the
    plan of the recurrence that generates them, or of the model if Python runs between two symbols.
    """
    engines = [engine for engine in engines_of(order) if isinstance(engine, KernelEngine)]
    made = generating(model, tuple(stand_in(engine) for engine in engines_of(order)), asked)
    if isinstance(made, str):
        rows = asked.rows * (asked.beams or 1)
        runs = (
            "runs",
            f"one step for each symbol, as a stream of {rows} rows, with Python between them: {made}",
        )
        section = TitledSection(asked.title, (facts_table([runs]),))
        return [section, *model.explained(order, CallSize(rows, 1, rows) if engines else None)]
    schedule, flag = made.program.schedule_for(order), len(leaves(made.program.memory)) - 2
    facts = list[Item]([facts_table([*choice_facts(made, asked), ("runs", calls_text(asked))])])
    facts += [facts_table(engine.early_ends(schedule, flag, asked.size)) for engine in engines]
    plan = schedule_sections(schedule, order, None if engines else asked.size)
    return [TitledSection(asked.title, tuple(facts)), *plan]


def stand_in(engine: Any) -> str:
    """Returns the name of an engine that takes what another one takes where it has its device."""
    name: str = engine.stand_in if isinstance(engine, KernelEngine) else engine.name
    return name


def generating(model: Model, order: Order, asked: AskedGeneration) -> CompiledGeneration | str:
    """Compiles the recurrence that generates symbols, for a model that is not run; returns the reason if
    Python runs between two symbols. Raises `InputError` for a model that generates none.
    """
    writer = Writer.of(model, asked.feed, asked.scores, order)
    reason = refused(writer, asked.choice(1))
    if reason is not None or not isinstance(writer.feed, Feed):
        return str(reason)
    parts = parts_of(writer, asked.rows)
    found = parts if isinstance(parts, str) else programs_of(parts, writer)
    if isinstance(parts, str) or isinstance(found, str):
        return str(found)
    last = found[0][-1]
    choice = asked.choice(symbols_of(last.net.type_of(last.net.results[0])))
    reason = refused(writer, choice)
    return reason if reason is not None else compiled_generation(writer, writer.feed, parts, choice)


def parts_of(writer: Writer, rows: int) -> list[LayerArguments] | str:
    """Lists the recurrences of a model in the order they run, with zeros for the statics that it declares;
    returns the reason if its statics keep it from running in one call.
    """
    model, specs = writer.model, writer.model.declaration.statics
    if specs is not None and any(spec.axis for spec in leaves(specs)):
        return f"{model!r} has statics that are sequences"

    def zeros(spec: Spec) -> np.ndarray:
        """Returns a static of zeros."""
        return np.zeros((rows, *spec.shape), spec.dtype or "float32")

    statics = None if specs is None else transform(zeros, specs)
    symbols = Ragged.from_padded(np.zeros((rows, 1), np.int64))
    with named(FOLLOW):
        layer, initial = model.as_layers(writer.inputs(symbols), None, statics, writer.engine)
    assert isinstance(layer, RNN | Combined)
    return leaves_of(layer, initial, statics, rows)


def symbols_of(type_: Type) -> int:
    """Returns the number of symbols that an output scores; raises `InputError` if it is no such output."""
    if len(type_.shape) != 1:
        raise InputError(
            f"scores are one number for each symbol, and the output is {type_.element}; scores= makes such "
            "scores"
        )
    return type_.shape[0]


def choice_facts(made: CompiledGeneration, asked: AskedGeneration) -> list[tuple[str, str]]:
    """Describes where symbols are chosen and how."""
    count = len(made.program.params[-1])  # the last parameter tells which symbols end a sequence
    if asked.beams is not None:
        return [
            (
                "symbols",
                f"in the step, the best {asked.beams} of {asked.beams * count:,} continuations of a start",
            ),
            (
                "beams",
                "a feature axis of the memories: all beams of a start are in one lane, and memories move "
                "between them in the step",
            ),
        ]
    if asked.sampler is None:
        return [("symbols", f"in the step, by the highest of {count:,} scores")]
    assert isinstance(asked.sampler, Sampling)
    drawn = "by random numbers that the step computes from the seed, the sequence and its own number"
    return [("symbols", f"drawn in the step among {count:,}, {drawn}")]


def calls_text(asked: AskedGeneration) -> str:
    """Describes the calls that generate all symbols."""
    most = MOST_STEPS // (asked.beams or 1)
    first = "after the first ones, which follow the given symbols"
    return f"one call for {'all' if asked.most - 1 <= most else f'{most:,}'} symbols {first}"
