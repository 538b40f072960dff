"""Generation as a recurrence: a step whose input is the symbol that the step before chose.

    symbol --feed--> x --layers--> scores --choose--> symbol        the memory of the new recurrence:
                      memories -----------> memories                memories, symbol, step, ended

All symbols are written by one call of a kernel, without Python between two symbols. After the stop symbol of
a sequence its memories do not change, its last symbol is fed again, and its steps are not counted. So steps
after the end repeat the last computation, and no index can leave its table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Builder, Recur, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.model.by_symbol import program_of
from stepnet.model.control import chosen
from stepnet.model.feeds import Feed
from stepnet.model.one_step import one_step
from stepnet.model.program import Program
from stepnet.model.samplers import Sampling

Array = np.ndarray

OWN = {"symbol": "int64", "step": "int64", "ended": "bool", "unclear": "bool"}
"""The memories after those of the layers, with their dtypes: the symbol that is fed next, the number of
steps, whether the sequence has ended, and whether it ended because no score was the highest.
"""


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

    @property
    def random(self) -> str:
        """The dtype of the input of random numbers in the net that generates symbols; "bool" without a
        sampler, when nothing reads it.
        """
        return "bool" if self.sampler is None else "float64"

    def of(self, scores: Traced, random: Traced) -> tuple[Traced, Traced]:
        """Chooses the next symbol of each row (sequence), in a traced step: that of the highest score, or one
        drawn by the sampler; returns the symbols, and whether the highest score of each row is finite.

        scores: the scores, [rows, symbols]. Those of an integer dtype are always finite.
        random: a random number for each row, which is not used without a sampler.
        """
        highest = np.max(scores, axis=-1)
        clear = abs(highest) < np.inf if scores.type.is_float else highest == highest
        if self.sampler is None:
            return scores.argmax(axis=-1), clear
        assert isinstance(self.sampler, Sampling)
        return self.sampler.of_values(scores, random), clear

    @property
    def stopping(self) -> Array:
        """The flags of the symbols, True for one that ends a sequence, as an array that is a parameter of the
        net.

        So nets with other stop symbols share machine code.
        """
        return np.isin(np.arange(self.symbols), self.stops)


def feedback(
    plans: Sequence[Plan], params: Sequence[Array], feed: Feed, choice: Choice, known: Mapping[int, Array]
) -> Program:
    """Makes the program of a recurrence that generates symbols: each step feeds the symbol chosen before it.

    Its sequence is one random number per step, or any bools. Its output is the symbol that each step chose.
    Its memories are those of the layers, then the symbol, the step and two flags (`OWN`); its statics (values
    that each sequence has once) those of the layers. At a stop symbol, or a highest score that is not finite,
    a sequence ends and keeps them.

    plans: the plan of each layer (its operations in order), with exactly one input and one output.
    params: the parameters of all layers, layer after layer.
    feed: the conversion from symbols to inputs.
    choice: the rule by which symbols are chosen from scores.
    known: for some values of the first plan's net, by number, a table with their values for all symbols.
    """
    builder = Builder()
    tables = [("by symbol", table) for table in known.values()]
    tables += [*(("table", table) for table in feed.tables), ("stopping", choice.stopping)]
    inputs = Inputs.of(builder, plans, tables, choice.random)
    symbol, step, ended, unclear = inputs.own
    x = feed.of_values(symbol, *inputs.tables[len(known) : -1])
    pairs = zip(known, inputs.tables, strict=False)
    own = {number: builder.add("gather", table.number, symbol.number) for number, table in pairs}
    before, after = list[Traced](), list[Traced]()
    for plan, memories, statics, parameters in inputs.parts(plans):
        operands = [value.number for value in (x, *memories, *statics, *parameters)]
        output, *following = one_step(builder, plan, operands, step.number, own)
        x, own = Traced(builder, output), {}
        before += memories
        after += [Traced(builder, number) for number in following]
    scores = x.astype(x.type.computed.dtype)
    new, clear = choice.of(scores, inputs.random)
    ends = ended | ~clear | apply("gather", inputs.tables[-1], new)
    after = chosen(~ends, [*after, new, step + 1], [*before, symbol, step])
    results = [new, *after, ends, unclear | ~(clear | ended)]
    body = with_inputs(builder, [value.number for value in inputs.order], [value.number for value in results])
    return program_of(Recur(body, 1, len(results) - 1), [*params, *(table for _, table in tables)])


@dataclass(frozen=True)
class Inputs:
    """The inputs of a step that generates symbols, by kind.

    random: the random number of each row.
    memories, statics, parameters: the inputs of each layer, in one list per layer.
    own: the memories that the generation adds: the symbol, the step, and the flags `ended` and `unclear`.
    tables: the tables by symbol, the table of the feed, and the stop symbols.
    """

    random: Traced
    memories: list[list[Traced]]
    own: list[Traced]
    statics: list[list[Traced]]
    parameters: list[list[Traced]]
    tables: list[Traced]

    @classmethod
    def of(
        cls, builder: Builder, plans: Sequence[Plan], tables: Sequence[tuple[str, Array]], random: str
    ) -> "Inputs":
        """Adds the inputs of all layers to the net of a step that generates symbols; returns them by kind.

        builder: the net of the step.
        plans: the plan of each layer (its operations in order), whose memories, statics (values that each
            sequence has once) and parameters become inputs.
        tables: the names and arrays of tables that are parameters of this step.
        random: the dtype of the sequence of random numbers.
        """

        def new(type_: Type, name: str) -> Traced:
            """Adds an input of this type and name to the net of the step; returns its value."""
            return Traced(builder, builder.input(type_, name))

        def like(plan: Plan, places: tuple[int, ...]) -> list[Traced]:
            """Adds inputs with the names and types of a plan's inputs at these positions."""
            nodes = [plan.net.nodes[plan.net.inputs[place]] for place in places]
            return [new(node.type, node.name) for node in nodes]

        return cls(
            new(Type(ROWS, (), random), "random"),
            [like(plan, plan.ends.memories) for plan in plans],
            [new(Type(ROWS, (), dtype), name) for name, dtype in OWN.items()],
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

        They are the random numbers, the memories (of the layers, and `own` of the generation), the statics
        (values that each sequence has once) and the parameters, with the tables.
        """
        layers = [[value for part in kind for value in part] for kind in (self.memories, self.statics)]
        constants = [value for part in self.parameters for value in part]
        return [self.random, *layers[0], *self.own, *layers[1], *constants, *self.tables]
