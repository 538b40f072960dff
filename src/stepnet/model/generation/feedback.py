"""Generation as a recurrence: a step whose input is the symbol that the step before chose.

    symbol --feed--> x --layers--> scores --choose--> symbol        the memory of the new recurrence:
                      memories -----------> memories                memories, symbol, step, ended

All symbols are written by one call of a kernel, without Python between two symbols. After the stop symbol of
a sequence its memories do not change, its last symbol is fed again, and its steps are not counted. So steps
after the end repeat the last computation, and no index can leave its table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from stepnet.compiler.net.ir import Builder, Recur, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.records import dataclass
from stepnet.model.control import chosen
from stepnet.model.generation.by_symbol import program_of
from stepnet.model.generation.feeds import Feed
from stepnet.model.generation.samplers import MOST_SYMBOLS, Sampling
from stepnet.model.masks import number_in_step
from stepnet.model.one_step import one_step
from stepnet.model.program import Program

Array = np.ndarray

OWN = {"symbol": "int64", "step": "int64", "ended": "bool", "unclear": "bool"}
"""The memories after those of the layers, with their dtypes: the symbol that is fed next, the number of
steps, whether the sequence has ended, and whether it ended because no score was the highest.
"""
DRAWN = ("seed", "identity", "first step")
"""The statics after those of the layers where symbols are drawn, of int64: the seed and the identity of the
sequence, by which its random numbers are drawn, and the number of the step whose random number is the 0-th.
"""


class Chooses(Protocol):
    """Rule by which generation goes on from scores: `Choice`, or the rule of a beam search."""

    @property
    def symbols(self) -> int:
        """The number of symbols."""
        ...

    @property
    def stops(self) -> tuple[int, ...]:
        """The symbols that end a sequence."""
        ...

    @property
    def beams(self) -> int:
        """The number of sequences that a row continues, the first feature axis of memories; 0 without it."""
        ...

    @property
    def sequence(self) -> Type:
        """The type of the input of each step."""
        ...

    @property
    def own(self) -> Mapping[str, Type]:
        """The memories after those of the layers, by name. The first are the symbols that are fed, the last
        three the number of steps, and two flags: whether the row has ended, and whether it ended because no
        score was the highest.
        """
        ...

    @property
    def statics(self) -> Mapping[str, Type]:
        """The statics behind the layers' own, by name."""
        ...

    def refused(self, on_device: bool) -> str | None:
        """Returns the reason why Python chooses between two steps; None if the step can. on_device: whether
        the engine runs on a device, as a GPU, where each call takes longer.
        """
        ...

    def next(
        self, scores: Traced, inputs: "Inputs", after: list[Traced]
    ) -> tuple[list[Traced], list[Traced]]:
        """Chooses how generation goes on, in a traced step; returns the outputs of the step, and its next
        memories.

        scores: the scores of the symbols.
        inputs: the inputs of the step.
        after: the memories of the layers after the step.
        """
        ...


@dataclass(frozen=True)
class Choice:
    """The rule by which symbols are chosen from scores, and the symbols that end a sequence.

    symbols: the number of symbols.
    stops: the symbols that end a sequence.
    sampler: a `Sampling`; None for the highest score. Other samplers are Python functions, which a net cannot
        call.
    """

    symbols: int
    stops: tuple[int, ...]
    sampler: Any = None

    beams = 0
    sequence = Type(ROWS, (), "bool")  # which nothing reads

    @property
    def own(self) -> Mapping[str, Type]:
        """The memories after those of the layers, by name."""
        return {name: Type(ROWS, (), dtype) for name, dtype in OWN.items()}

    @property
    def statics(self) -> Mapping[str, Type]:
        """The statics that random numbers are drawn by; none without a sampler."""
        return {} if self.sampler is None else dict.fromkeys(DRAWN, Type(ROWS, (), "int64"))

    def refused(self, on_device: bool) -> str | None:
        """Returns the reason why Python chooses symbols between two steps; None if the step can. It is the
        same for all engines.
        """
        if self.sampler is not None and type(self.sampler) is not Sampling:
            return "sampler= is a function, and not one of sn.sampling"
        if self.sampler is not None and self.symbols > MOST_SYMBOLS:
            most, count = MOST_SYMBOLS, self.symbols
            return f"symbols are drawn in machine code among {most} at most, and there are {count}"
        return None

    def next(
        self, scores: Traced, inputs: "Inputs", after: list[Traced]
    ) -> tuple[list[Traced], list[Traced]]:
        """Chooses the next symbol, in a traced step; returns it, and the next memories of the step. At a stop
        symbol, or a highest score that is not finite, a sequence ends and keeps its memories.

        scores: the scores, [rows, symbols].
        inputs: the inputs of the step.
        after: the memories of the layers after the step.
        """
        symbol, step, ended, unclear = inputs.own
        new, clear = self.of(scores, inputs.drawn, step)
        ends = ended | ~clear | apply("gather", inputs.tables[-1], new)
        before = [memory for part in inputs.memories for memory in part]
        kept = chosen(~ends, [*after, new, step + 1], [*before, symbol, step])
        return [new], [*kept, ends, unclear | ~(clear | ended)]

    def of(self, scores: Traced, drawn: Sequence[Traced], step: Traced) -> tuple[Traced, Traced]:
        """Returns the next symbol of each row (sequence) in a traced step, which has the highest score or is
        drawn by the sampler, and whether the highest score of each row is finite.

        scores: the scores, [rows, symbols]. Scores of an integer dtype are always finite.
        drawn: the values that random numbers are drawn by, as `statics` names them.
        step: the number of the step of each row.
        """
        highest = np.max(scores, axis=-1)
        clear = abs(highest) < np.inf if scores.type.is_float else highest == highest
        if self.sampler is None:
            return scores.argmax(axis=-1), clear
        assert isinstance(self.sampler, Sampling)
        seed, identity, first = drawn
        return self.sampler.of_values(scores, number_in_step(seed, identity, step - first)), clear


def feedback(
    plans: Sequence[Plan], params: Sequence[Array], feed: Feed, choice: Chooses, known: Mapping[int, Array]
) -> Program:
    """Makes the program of a recurrence that generates symbols: each step feeds the symbol chosen before it.

    The choice defines its sequence, its outputs, and the memories and statics behind the layers' own.

    plans: the plan of each layer (its operations in order), with exactly one input and one output.
    params: the parameters of all layers, layer after layer.
    feed: the conversion from symbols to inputs.
    choice: the rule by which symbols are chosen from scores.
    known: for some values of the first plan's net, by number, a table with their values for all symbols.
    """
    builder = Builder()
    tables = [("by symbol", table) for table in known.values()]
    # The flags of the stop symbols are a parameter, so that nets with other ones share machine code.
    stopping = np.isin(np.arange(choice.symbols), choice.stops)
    tables += [*(("table", table) for table in feed.tables), ("stopping", stopping)]
    inputs = Inputs.of(builder, plans, tables, choice)
    symbol, step = inputs.own[0], inputs.own[-3]
    x = feed.of_values(symbol, *inputs.tables[len(known) : -1])
    pairs = zip(known, inputs.tables, strict=False)
    own = {number: builder.add("gather", table.number, symbol.number) for number, table in pairs}
    after = list[Traced]()
    for plan, memories, statics, parameters in inputs.parts(plans):
        operands = [value.number for value in (x, *memories, *statics, *parameters)]
        output, *following = one_step(builder, plan, operands, step.number, own, choice.beams)
        x, own = Traced(builder, output), {}
        after += [Traced(builder, number) for number in following]
    outputs, following = choice.next(x.astype(x.type.computed.dtype), inputs, after)
    results = [value.number for value in (*outputs, *following)]
    body = with_inputs(builder, [value.number for value in inputs.order], results)
    return program_of(Recur(body, 1, len(following)), [*params, *(table for _, table in tables)])


@dataclass(frozen=True)
class Inputs:
    """The inputs of a step that generates symbols, by kind.

    sequence: the input of each step.
    memories, statics, parameters: the inputs of each layer, in one list per layer.
    own, drawn: the memories and the statics that the choice of symbols adds.
    tables: the tables by symbol, the table of the feed, and the stop symbols.
    """

    sequence: Traced
    memories: list[list[Traced]]
    own: list[Traced]
    drawn: list[Traced]
    statics: list[list[Traced]]
    parameters: list[list[Traced]]
    tables: list[Traced]

    @classmethod
    def of(
        cls, builder: Builder, plans: Sequence[Plan], tables: Sequence[tuple[str, Array]], choice: Chooses
    ) -> "Inputs":
        """Adds the inputs of all layers to the net of a step that generates symbols; returns them by kind.

        builder: the net of the step.
        plans: the plan of each layer (its operations in order), whose memories, statics (values that each
            sequence has once) and parameters become inputs.
        tables: the names and arrays of tables that are parameters of this step.
        choice: the rule by which symbols are chosen, with its own inputs.
        """

        def new(type_: Type, name: str) -> Traced:
            """Adds an input of this type and name to the net of the step; returns its value."""
            return Traced(builder, builder.input(type_, name))

        def like(plan: Plan, places: tuple[int, ...], lead: tuple[int, ...] = ()) -> list[Traced]:
            """Adds inputs like a plan's inputs at these positions. lead: sizes of added leading features."""
            nodes = [plan.net.nodes[plan.net.inputs[place]] for place in places]
            types = [replace(node.type, shape=(*lead, *node.type.shape)) for node in nodes]
            return [new(type_, node.name) for type_, node in zip(types, nodes, strict=True)]

        beams = (choice.beams,) if choice.beams else ()

        return cls(
            new(choice.sequence, "given"),
            [like(plan, plan.ends.memories, beams) for plan in plans],
            [new(type_, name) for name, type_ in choice.own.items()],
            [new(type_, name) for name, type_ in choice.statics.items()],
            [like(plan, plan.ends.statics) for plan in plans],
            [like(plan, plan.ends.parameters) for plan in plans],
            [new(Type(CONST, table.shape, table.dtype.name), name) for name, table in tables],
        )

    def parts(self, plans: Sequence[Plan]) -> Iterable[tuple[Plan, list[Traced], list[Traced], list[Traced]]]:
        """Yields for each layer its plan (operations in order), and its memories, statics (values that each
        sequence has once) and parameters.

        plans: the plans of the layers. The others are traced values of the step that generates symbols.
        """
        return zip(plans, self.memories, self.statics, self.parameters, strict=True)

    @property
    def order(self) -> list[Traced]:
        """The inputs of a step that generates symbols, in the order in which a recurrence takes them.

        They are the sequence, the memories (of the layers, and `own` of the generation), the statics (values
        that each sequence has once, of the layers, and `drawn`) and the parameters, with the tables.
        """
        layers = [[value for part in kind for value in part] for kind in (self.memories, self.statics)]
        constants = [value for part in self.parameters for value in part]
        return [self.sequence, *layers[0], *self.own, *layers[1], *self.drawn, *constants, *self.tables]
