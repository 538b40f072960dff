"""Generation in machine code, without Python between two symbols: calls of the recurrence of `feedback`.

    highest score    first symbols --> call of all steps --> symbols
    drawn            first symbols --> call of many steps --> symbols, memories --> call --> ...

In a call, a waiting row starts in a lane as soon as another row ends there. Where symbols are drawn, a call
needs a random number for each of its steps, also for steps after the end of a row. So drawing takes several
calls of a limited number of steps.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.compiler.net.types import STEPS
from stepnet.compiler.targets import Call, DeviceEngine, EarlyEnds, Engine, choose
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.once import put_latest
from stepnet.compiler.values.structure import leaves
from stepnet.model.batch import initial_arrays
from stepnet.model.by_symbol import symbol_tables
from stepnet.model.compose import Layer
from stepnet.model.control import next_piece
from stepnet.model.decoder import Front, Writer
from stepnet.model.feedback import OWN, Choice, feedback
from stepnet.model.feeds import Feed
from stepnet.model.layers import LayerArguments, leaves_of
from stepnet.model.one_step import refusal
from stepnet.model.program import Program, StepProgram
from stepnet.model.samplers import MOST_SYMBOLS, Sampling
from stepnet.ragged.offsets import offsets_of, positions_of
from stepnet.ragged.positions import Positions

Array = np.ndarray
PIECES, NUMBERS, FEWEST = (256, 1024), (2**14, 2**16), 8
"""Limits on calls that draw symbols: the steps of the first and of the largest call, the random numbers of
these two calls, and the least number of steps.
"""
Draw = Callable[[Array, Array], Array]
MOST_STEPS = 2**16
"""The largest number of steps of a call, which has a table of the positions of a sequence's steps."""
MOST_KEPT = 8
"""The largest number of combinations of feed and choice for which a layer keeps compiled recurrences."""


@dataclass(frozen=True)
class CompiledGeneration:
    """A compiled recurrence that generates symbols, the `Spec`s (features, dtypes) of its memories, and the
    name of its engine.
    """

    program: Program
    memories: list[Any]
    engine: str


KEPT: "WeakKeyDictionary[Layer, OrderedDict[Any, CompiledGeneration]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Wired:
    """A compiled recurrence that generates symbols for given sequences, with initial memories and statics.

    engine: the name of the engine that runs it.
    """

    program: Program
    memories: list[Array]
    statics: list[Array]
    engine: str

    @classmethod
    def of(cls, writer: Writer, front: Front, choice: Choice) -> "Wired | str":
        """Compiles the recurrence that generates symbols, or returns why Python must run the steps. Compiled
        recurrences are kept for later calls, a few for each layer.

        writer: the model, with the conversions from symbols to inputs and from outputs to scores.
        front: the layers, and the state of the sequences after their given first symbols.
        choice: the rule by which symbols are chosen from scores.
        """
        feed, rows = writer.feed, len(front.scores)
        reason = refused(writer, choice.symbols, choice.sampler)
        if reason is not None or not isinstance(feed, Feed):
            return str(reason)
        parts = leaves_of(front.layer, front.state, front.statics, rows)
        kept = KEPT.setdefault(front.layer, OrderedDict())
        key = feed.size, feed.dtype, choice, writer.engine, *(part.statics.key for part in parts)
        made = kept.get(key)
        if made is None or not same_table(feed, made.program):
            made = compiled_generation(writer, feed, parts, choice)
            if isinstance(made, str):
                return made
            put_latest(kept, key, made, MOST_KEPT)
        memories = [
            np.zeros((rows, *spec.shape), spec.dtype) if array is None else array
            for part, specs in zip(parts, made.memories, strict=True)
            for array, spec in zip(
                initial_arrays(part.initial, specs, rows, part.rnn.arguments[1]), leaves(specs), strict=True
            )
        ]
        statics = [array for part in parts for array in part.statics.arrays]
        return cls(made.program, memories, statics, made.engine)


def refused(writer: Writer, symbols: int, sampler: Any) -> str | None:
    """Returns the reason why a generation needs Python between two steps; None if it can be compiled.

    writer: the layers, with the conversions from symbols to inputs and from outputs to scores.
    symbols: the number of symbols.
    sampler: the argument of `generate`.
    """
    if not isinstance(writer.feed, Feed):
        return "feed= is a function"
    if writer.scores is not None:
        return "scores= is a function"
    if writer.feed.size is not None and writer.feed.size < symbols:
        return f"there are scores of {symbols} symbols, and {writer.feed.size} can be fed"
    if sampler is not None and type(sampler) is not Sampling:
        return "sampler= is a function, and not one of sn.sampling"
    if sampler is not None and symbols > MOST_SYMBOLS:
        return f"symbols are drawn in machine code among {MOST_SYMBOLS} at most, and there are {symbols}"
    return None


def programs_of(parts: list[LayerArguments], writer: Writer) -> tuple[list[StepProgram], Engine] | str:
    """Returns the programs of all layers and the engine that runs them, or the reason why one cannot run in
    the compiled recurrence: its bits would differ there, or it runs on another engine than the first layer.

    parts: the recurrences of all layers with their statics (values that each sequence has once), each of
        which feeds the next one.
    writer: the layers, with the conversion from symbols to the inputs of the first one, and the engines.
    """
    assert isinstance(writer.feed, Feed)
    spec, programs, engines = writer.feed.spec, list[StepProgram](), list[Engine]()
    for part in parts:
        program = part.rnn.program_of(spec, part.statics.specs)
        schedule = program.schedule_for(writer.engine)
        single = schedule.single_plan
        if part.statics.beside or single is None:
            return f"{part.rnn!r} has sequences inside its steps, or statics that are sequences"
        if len(leaves(program.output)) != 1:
            return f"{part.rnn!r} has several outputs"
        if (reason := refusal(single)) is not None:
            return f"{part.rnn!r} is no step of a net: {reason}"
        engines.append(choose(schedule, writer.engine)[0])
        # On a device the host between two steps takes longer than they do.
        has_bits = engines[-1].has_same_bits or isinstance(engines[-1], DeviceEngine)
        if not has_bits or engines[-1] != engines[0]:
            return f"{part.rnn!r} runs on {engines[-1].name}"
        type_ = program.net.type_of(program.net.results[0])
        assert type_.extent == STEPS
        spec = Spec(type_.shape, type_.dtype)
        programs.append(program)
    return programs, engines[0]


def compiled_generation(
    writer: Writer, feed: Feed, parts: list[LayerArguments], choice: Choice
) -> CompiledGeneration | str:
    """Compiles the recurrence that generates symbols; returns the reason if it needs Python between steps.

    writer: the layers, with the engines in order of preference.
    feed, choice: the conversion from symbols to inputs, and the rule from scores to symbols.
    parts: the recurrences of all layers, with their statics (values that each sequence has once).
    """
    found = programs_of(parts, writer)
    if isinstance(found, str):
        return found
    programs, engine = found
    if feed.table is not None:  # a copy, as the caller may change the table between calls
        feed = replace(feed, table=feed.table.copy())
    schedules = [program.schedule_for(engine.name) for program in programs]
    plans = [plan for schedule in schedules if (plan := schedule.single_plan) is not None]
    params = [array for program in programs for array in program.params]
    own = programs[0].params
    tables = symbol_tables(plans[0], own, feed, choice.symbols, choice.stops, engine.name)
    program = feedback(plans, params, feed, choice, tables)
    if engine.refuse(program.schedule_for(engine.name)) is not None:
        return "the net of a step with its symbols is refused by the engine"
    return CompiledGeneration(program, [program.memory for program in programs], engine.name)


def same_table(feed: Feed, program: Program) -> bool:
    """Returns whether a cached program still has the values of the table from symbols to inputs, which the
    user may have changed.

    feed: the conversion from symbols to inputs, with the table. program: has the table as its last parameter
    but one, before the stop symbols.
    """
    return not feed.tables or np.array_equal(feed.tables[0], program.params[-2])


# ---- the calls ---------------------------------------------------------------------------------------------


def write(
    wired: Wired,
    front: Front,
    first: Array,
    rows: Array,
    most: int,
    draw: Draw | None,
) -> list[tuple[Array, Array]] | None:
    """Generates symbols in machine code until each row (sequence) has ended or has `most` more symbols.

    Returns pairs (rows, symbols) in the order in which they were written; None if a score is not finite,
    which raises an error where the steps run one by one.

    wired, front: the compiled recurrence, and the state of the sequences after their given first symbols.
    first: the first generated symbol of each of these rows.
    rows: the indices of the sequences in `front`.
    most: the largest number of symbols of a row after the first.
    draw: draws random numbers for rows and steps; None if the highest score is chosen.
    """
    bound = wired.program.bound(wired.engine)
    memories = [memory[rows] for memory in wired.memories]
    begun, symbol, written = front.begun[rows], first, np.zeros(len(front.scores), np.int64)
    statics, result = [static[rows] for static in wired.statics], list[tuple[Array, Array]]()
    ended = len(memories) + list(OWN).index("ended")
    until = EarlyEnds(ended, beyond=True) if bound.ends_early else None
    steps = 0
    while len(rows):
        lengths, steps = next_lengths(most - written[rows], steps, draw is not None, until is not None)
        random = (
            None if draw is None else draw(np.repeat(rows, lengths), step_numbers(written[rows], lengths))
        )
        all_false = np.zeros(len(rows), bool)
        call = call_of(random, lengths, [*memories, symbol, begun, all_false, all_false], statics, until)
        results = bound(call)
        *memories, symbol, step, done, unclear = results.final
        if unclear.any():
            return None
        used = step - begun + done
        (symbols,) = results.outputs
        if until is None:
            symbols = symbols[positions_of(call.positions.offsets[:-1], used)]
        result.append((np.repeat(rows, used), symbols))
        written[rows] += used
        left = np.flatnonzero(~done & (written[rows] < most))
        memories = [memory[left] for memory in memories]
        statics = [static[left] for static in statics]
        symbol, begun, rows = symbol[left], step[left], rows[left]
    return result


def next_lengths(left: Array, before: int, is_drawn: bool, ends: bool) -> tuple[Array, int]:
    """Returns the number of steps of each row in the next call, and the limit that none of them exceeds.

    Where ended rows cost work, calls are short at first and double. Else a call has up to `MOST_STEPS`.

    left: the number of symbols that each row may still get.
    before: this limit in the call before; 0 for the first call.
    is_drawn: whether each step needs a random number, also after the end of its row.
    ends: whether the engine itself checks which rows have ended.
    """
    if not ends:
        steps = next_piece(before)
    elif is_drawn:
        fewest, most = (
            min(steps, max(numbers // len(left), FEWEST))
            for steps, numbers in zip(PIECES, NUMBERS, strict=True)
        )
        steps = min(max(2 * before, fewest), most)
    else:
        steps = MOST_STEPS
    return np.minimum(left, steps), steps


def step_numbers(written: Array, lengths: Array) -> Array:
    """Returns the numbers of the next steps of each row (sequence), row after row, to draw random numbers by.

    written: the number of symbols that each row has after the one chosen at step 0.
    lengths: the number of next steps of each row.
    """
    return positions_of(written + 1, lengths)


def call_of(
    random: Array | None,
    lengths: Array,
    initial: list[Array | None],
    statics: list[Array],
    until: EarlyEnds | None,
) -> Call:
    """Makes the call of the generating recurrence that runs `lengths` steps of each row.

    random: a random number per step; None if nothing is drawn.
    initial: the memories before these steps.
    statics: the values that each row (sequence) has once.
    until: the condition by which rows end; None if the engine does not check it.
    """
    if random is None and until is not None:  # nothing reads the inputs: one number stands for all
        starts, steps = np.zeros(len(lengths), np.int64), np.zeros(int(lengths.max()), np.int64)
        return Call(Positions(starts, lengths, 1, steps), [np.zeros(1, bool)], initial, statics, until=until)
    positions = Positions.end_to_end(offsets_of(lengths))
    numbers = np.zeros(positions.total, bool) if random is None else random
    return Call(positions, [numbers], initial, statics, until=until)
