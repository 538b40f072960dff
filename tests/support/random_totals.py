"""The net of a random step with what is made of all its steps: reductions over each sequence, and totals."""

from dataclasses import replace
from math import prod
from typing import Any

from interpreted import interpreted
from planned import schedule
from random_steps import RandomStep, Sequences, wide

from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, widened
from stepnet.compiler.targets import Bound, Call, Results
from stepnet.compiler.targets.cpu import LlvmEngine
from stepnet.compiler.values import leaves
from stepnet.ragged import Positions

HOWS = ("sum", "mean", "max", "first", "last")


def with_totals(net: Net, how: str, outer: str) -> Net:
    """A net that also gives, of every value of floats that there is one of per step or row: its reduction
    over each sequence, that over all rows, and the sum of its products with the first input.
    """
    builder, place = Builder(), list[int]()
    for node in net.nodes:
        place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
    inputs, totals = [place[number] for number in net.inputs], list[int]()
    for result in dict.fromkeys(place[number] for number in net.results):
        type_ = builder.type_of(result)
        if not type_.is_float or type_.extent not in (STEPS, ROWS):
            continue
        of_rows = builder.add("reduce", result, how=how) if type_.extent == STEPS else result
        totals += [of_rows, builder.add("reduce", of_rows, how=outer)]
        totals += [
            builder.add("contract", flat(builder, one), flat(builder, result))
            for one in inputs
            if builder.type_of(one).extent == type_.extent
        ][:1]
    return builder.net([*(place[number] for number in net.results), *totals])


def flat(builder: Builder, number: int) -> int:
    """A value as vectors."""
    type_ = builder.type_of(number)
    if len(type_.shape) == 1:
        return number
    return builder.add("reshape", number, rank=len(type_.shape), shape=(prod(type_.shape),))


def call_of(step: RandomStep, given: Sequences) -> Call:
    """The sequences as an engine takes them; first memories that are not given are zeros."""
    offsets = next(iter(given.inputs.values())).offsets[0]
    return Call(
        Positions.end_to_end(offsets),
        [ragged.values for ragged in given.inputs.values()],
        [None] * len(step.memory) if given.initial is None else list(given.initial.values()),
        leaves(given.statics),
    )


def in_float64(net: Net, params: list[Any], call: Call) -> Results:
    """The right results: of the net as it is, in float64 throughout."""
    arrays = {
        name: [None if array is None else wide(array) for array in getattr(call, name)]
        for name in ("sequences", "initial", "statics")
    }
    return interpreted(widened(net), map(wide, params), replace(call, **arrays))


def on_llvm(net: Net, params: list[Any]) -> Bound:
    """A function that runs the net as machine code, part by part."""
    engine, planned = LlvmEngine(), schedule(net)
    assert engine.refuse(planned) is None
    return engine.compile(planned).bind(params)


def kinds(net: Net) -> set[str]:
    """The extents of the results: they show that a net gives totals at all."""
    names = {CONST: "totals", ROWS: "rows", STEPS: "steps"}
    return {names[net.type_of(number).extent] for number in net.results}
