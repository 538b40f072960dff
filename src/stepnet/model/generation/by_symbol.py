"""Precomputed tables for generation: the first layer's work before the loop, computed once for each symbol.

    x = E[symbol];  x @ W + b     at every step        ->        table[symbol],  table = E @ W + b     once

The rows of a table are computed by the machine code that otherwise computes them before the loop, so their
bits are the same. With few symbols, as in a character model, this removes the product with the input from
each step.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from stepnet.compiler.net.ir import Builder, Recur, ancestors
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets import Call
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced
from stepnet.errors import InputError
from stepnet.model.generation.feeds import Feed
from stepnet.model.one_step import before_loop, of_inputs
from stepnet.model.program import Program
from stepnet.ragged.positions import Positions

Array = np.ndarray
MOST_BYTES = 8 * 2**20
"""The largest number of bytes of all tables."""


def symbol_tables(
    plan: Plan, params: Sequence[Array], feed: Feed, symbols: int, stops: Sequence[int], engine: str
) -> Mapping[int, Array]:
    """Computes for all symbols, to look up in generation, a layer's values that depend on its input alone.

    Returns an array [symbols, ...] by the number of each value in the plan's net. It is empty if no matrix
    product would be saved, if the tables are too large, or if some symbols cannot be fed.

    plan: the plan of the first layer, its net and the order of the operations.
    params: the parameters of the plan.
    feed: the conversion from symbols to inputs.
    symbols: the number of symbols.
    stops: the symbols that end a sequence and are never fed.
    engine: the engine that computes the tables.
    """
    net, known = plan.net, of_inputs(plan)
    inside = set(known)
    read = {n for number, node in enumerate(net.nodes) if number not in inside for n in node.inputs}
    wanted = [number for number in known if number in read or number in net.results]
    types = [net.type_of(number) for number in wanted]
    saved = any(net.nodes[number].kind == "matmul" for number in ancestors(net.nodes, wanted) & inside)
    if not saved or symbols * sum(type_.size * type_.itemsize for type_ in types) > MOST_BYTES:
        return {}
    program = table_program(plan, params, feed, wanted)
    fed = np.arange(symbols)
    fed[list(stops)] = 0
    positions = Positions.end_to_end(np.arange(symbols + 1))
    call = Call(positions, [np.zeros(symbols, bool)], [fed, *([None] * len(wanted))])
    try:
        _, *rows = program.bound(engine)(call).final
    except InputError:  # a symbol is outside a table of the step: the error belongs to the call that feeds it
        return {}
    return dict(zip(wanted, rows, strict=True))


def table_program(plan: Plan, params: Sequence[Array], feed: Feed, wanted: Sequence[int]) -> Program:
    """Makes the program whose final memories are tables that save work in generation: a row per symbol, for
    each value in `wanted` that the plan's net computes from its input before its loop.

    Each row runs one step, from its symbol to its entries. Both are memories: passes move no work between
    memories out of the loop, so it is compiled as in the plan, with the same bits. The next memory of the
    symbol is never read, so any value serves.

    plan: the plan of the first layer, its net and the order of the operations.
    params: the parameters of the plan.
    feed: the conversion from symbols to inputs, with at most one table of inputs by symbol (`feed.tables`).
    wanted: the numbers of the values in the plan's net.
    """
    builder, net, ends = Builder(), plan.net, plan.ends
    builder.input(Type(ROWS, (), "bool"), "nothing")  # the input sequence, which every recurrence has
    symbol = Traced(builder, builder.input(Type(ROWS, (), "int64"), "symbol"))
    for number in wanted:
        builder.input(net.type_of(number).at(ROWS), f"value{number}")
    operands = {
        net.inputs[place]: builder.input(net.type_of(net.inputs[place]), net.nodes[net.inputs[place]].name)
        for place in ends.parameters
    }
    tables = [
        Traced(builder, builder.input(Type(CONST, table.shape, table.dtype.name), "table"))
        for table in feed.tables
    ]
    operands[net.inputs[ends.sequences[0]]] = feed.of_values(symbol, *(tables or [None])).number
    body = builder.net([(symbol + 1).number, *before_loop(builder, plan, operands, wanted)])
    return program_of(Recur(body, 1, 1 + len(wanted)), [*params, *feed.tables])


def program_of(recur: Recur, params: Sequence[Array]) -> Program:
    """Returns the program of a net that consists of one recurrence, whose first operand is the input
    sequence.

    recur: the recurrence.
    params: the arrays of the last operands. The others are initial memories, and values that each sequence
        has once, if there are any.
    """
    builder, body = Builder(), recur.body
    types = [body.type_of(number) for number in body.inputs]
    types[0] = types[0].at(STEPS)
    names = [body.nodes[number].name for number in body.inputs]
    operands = [builder.input(type_, name) for type_, name in zip(types, names, strict=True)]
    results = recur.add_results(builder, operands)
    memory = [Spec(body.type_of(number).shape, body.type_of(number).dtype) for number in recur.memories]
    net = builder.net([*results.outputs, *results.memories])
    return Program(net, 0, memory, memory, len(memory), list(params))
