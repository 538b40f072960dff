"""Generation in machine code, without Python between two symbols: calls of the recurrence of `feedback`.

    first symbols --> call of all steps --> symbols

In a call, a waiting row starts in a lane as soon as another row ends there. Random numbers are drawn in the
step, by the seed, the sequence and the number of the step.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.compiler.net.types import STEPS
from stepnet.compiler.targets import Call, DeviceEngine, EarlyEnds, Engine, choose
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.once import put_latest
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves
from stepnet.model.compose import Layer
from stepnet.model.control import next_piece
from stepnet.model.generation.by_symbol import symbol_tables
from stepnet.model.generation.decoder import Front, Writer
from stepnet.model.generation.feedback import Chooses, feedback
from stepnet.model.generation.feeds import Feed
from stepnet.model.initial import initial_arrays
from stepnet.model.layers import LayerArguments, leaves_of
from stepnet.model.one_step import refusal
from stepnet.model.program import Program, StepProgram
from stepnet.ragged.offsets import offsets_of, positions_of
from stepnet.ragged.positions import Positions

Array = np.ndarray
MOST_STEPS = 2**16
"""The largest number of symbols of a row in a call, which has room for all of them."""
MOST_KEPT = 8
"""The largest number of combinations of feed and choice for which a layer keeps compiled recurrences."""


@dataclass(frozen=True)
class CompiledGeneration:
    """Compiled recurrence that generates symbols, with the `Spec`s (features, dtypes) of its memories and the
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
    def of(cls, writer: Writer, front: Front, choice: Chooses) -> "Wired | str":
        """Compiles the recurrence that generates symbols, or returns why Python must run the steps. Compiled
        recurrences are kept for later calls, a few for each layer.

        writer: the model, with the conversions from symbols to inputs and from outputs to scores.
        front: the layers, and the state of the sequences after their given first symbols.
        choice: the rule by which symbols are chosen from scores.
        """
        feed, rows = writer.feed, len(front.scores)
        reason = refused(writer, choice)
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
        if choice.beams:
            memories = [np.repeat(array[:, None], choice.beams, axis=1) for array in memories]
        statics = [array for part in parts for array in part.statics.arrays]
        return cls(made.program, memories, statics, made.engine)


def refused(writer: Writer, choice: Chooses) -> str | None:
    """Returns the reason why a generation needs Python between two steps; None if it can be compiled.

    writer: the layers, with the conversions from symbols to inputs and from outputs to scores.
    choice: the rule by which symbols are chosen from scores.
    """
    if not isinstance(writer.feed, Feed):
        return "feed= is a function"
    if writer.scores is not None:
        return "scores= is a function"
    if writer.feed.size is not None and writer.feed.size < choice.symbols:
        return f"there are scores of {choice.symbols} symbols, and {writer.feed.size} can be fed"
    return choice.refused(on_device=True)


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
    writer: Writer, feed: Feed, parts: list[LayerArguments], choice: Chooses
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
    if (reason := choice.refused(isinstance(engine, DeviceEngine))) is not None:
        return reason
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


@dataclass(frozen=True)
class GeneratedSteps:
    """The outputs and the last memories of the calls of a generation.

    parts: for each call the rows of the outputs, and the outputs, in the order in which they were written.
    memories: the memories that the choice of symbols adds, at the end of each row, without the flags.
    """

    parts: list[tuple[Array, list[Array]]]
    memories: list[Array]


def run(
    wired: Wired,
    begun: Array,
    rows: Array,
    own: list[Array],
    most: int,
    given: Callable[[Array], Array],
    drawn: Sequence[Array] = (),
) -> GeneratedSteps | None:
    """Generates in machine code until each row (sequence) has ended, or has taken `most` steps.

    Returns the outputs, whose rows are counted from 0 on; None if a score is not finite, which raises an
    error where the steps run one by one.

    wired: the compiled recurrence.
    begun: the number of steps that each row has taken.
    rows: the indices of the rows among those of `wired`.
    own: the memories that the choice of symbols adds, without the flags.
    given: returns the inputs of steps by their numbers, from 0 on, which are the same for all rows.
    drawn: the statics that the choice adds.
    """
    bound = wired.program.bound(wired.engine)
    memories = [*(memory[rows] for memory in wired.memories), *(np.array(each, order="C") for each in own)]
    statics, layers = [*(static[rows] for static in wired.statics), *drawn], len(wired.memories)
    until = EarlyEnds(len(memories) + 1, beyond=True) if bound.ends_early else None
    last = [np.array(memory) for memory in own]
    longest = MOST_STEPS // own[0][:1].size if len(rows) else 0
    left, steps, taken = np.arange(len(rows)), 0, 0
    parts = list[tuple[Array, list[Array]]]()
    while len(left) and taken < most:
        # Where ended rows cost work, calls are short at first and double.
        steps = min(next_piece(steps) if until is None else longest, most - taken)
        all_false = np.zeros(len(left), bool)
        inputs = given(np.arange(taken, taken + steps))
        call = call_of(inputs, [*memories, begun, all_false, all_false], statics, until)
        results = bound(call)
        *memories, step, done, unclear = results.final
        if unclear.any():
            return None
        used, outputs = step - begun + done, list(results.outputs)
        if until is None:
            written = positions_of(call.positions.offsets[:-1], used)
            outputs = [output[written] for output in outputs]
        parts.append((np.repeat(left, used), outputs))
        for every, now in zip(last, memories[layers:], strict=True):
            every[left] = now
        taken, on = taken + steps, np.flatnonzero(~done)
        memories, statics = [memory[on] for memory in memories], [static[on] for static in statics]
        left, begun = left[on], step[on]
    return GeneratedSteps(parts, last)


def call_of(given: Array, initial: list[Array | None], statics: list[Array], until: EarlyEnds | None) -> Call:
    """Makes a call of the generating recurrence for some steps of each row.

    given: the inputs of these steps, which are the same for all rows.
    initial: the memories before these steps; the last memories have one number per row.
    statics: the values that each row (sequence) has once.
    until: the condition by which rows end; None if the engine does not check it.
    """
    assert initial[-1] is not None
    rows, steps = len(initial[-1]), len(given)
    lengths = np.full(rows, steps)
    if until is not None:  # the rows read the same steps
        positions = Positions(np.zeros(rows, np.int64), lengths, steps, np.arange(steps))
        return Call(positions, [given], initial, statics, until=until)
    positions = Positions.end_to_end(offsets_of(lengths))
    return Call(positions, [np.tile(given, (rows, *[1] * (given.ndim - 1)))], initial, statics)
