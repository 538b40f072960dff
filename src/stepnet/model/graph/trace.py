"""Tracing of a model, written as ordinary Python functions of whole sequences, to a net.

    def model(words, params):                          words: rows/steps i64
        x = params["table"][words]               -->   %1 = gather table words         rows/steps f32[8]
        h, _ = gru(x)                                  %2 = recur %1 ...               rows/steps f32[16]
        return sn.reduce(h, "mean") @ params["W"]      %3 = reduce %2 how=mean         rows f32[16]
                                                       %4 = matmul %3 W                rows f32[2]

Sequences of a model correspond to inner sequences of a step, so a model supports the operations that a step
has on these. Arrays that the model captures, such as the parameters of its recurrences, become parameters of
the net: with other values the net has the same machine code.
"""

import inspect
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Literal
from stepnet.compiler.trace.draws import traced_purely
from stepnet.compiler.trace.lines import NamingLine, defined_at, refuse, written_at
from stepnet.compiler.trace.step import blank, declared, rounded, row_value
from stepnet.compiler.values.dtypes import promoted_float
from stepnet.compiler.values.structure import leaves, named_leaves
from stepnet.errors import InputError
from stepnet.model.graph.traced_model import ModelFunction, TracedModel

Array = np.ndarray
SMALL = 16
"""The largest size of a captured array that stays a constant of the net, and so a part of its code.

Parameters of recurrences are captured by name, and none of them stays. Zeros that are repeated stay, however
many they are and whatever else reads them: a recurrence needs no array for the zeros that it begins with.
"""


def traced_model(model: ModelFunction, inputs: Any, statics: Any, params: Any) -> TracedModel:
    """Traces a model to its net; see `trace_model`, which has these arguments and errors."""
    return traced_purely(
        model, lambda: traced_once(model, inputs, statics, params), lambda traced: traced.net
    )


def traced_once(model: ModelFunction, inputs: Any, statics: Any, params: Any) -> TracedModel:
    """Traces a model a single time; returns its net, with the captured arrays as further inputs.

    Outputs are rounded to the dtype of the inputs and parameters where that is only for storage, as bfloat16.

    model: the user's function.
    inputs, statics: the structures of its sequences and statics (values that each sequence has once), with a
        `Spec` (features and dtype) for each.
    params: its parameters.
    """
    builder = Builder(is_model=True)
    stored = promoted_float(leaf.dtype for leaf in (*leaves(inputs), *leaves(params)))
    x = declared(builder, inputs, "input", STEPS)
    still = declared(builder, statics, "static", ROWS)
    parameters = declared(builder, params, "parameter", CONST)
    with NamingLine(model):
        extras = statics_argument(model, statics, still)
        output = model(x, parameters, **extras)
    with NamingLine(model), written_at(defined_at(model)):
        named = list(named_leaves(output))
        if not named:
            raise refuse("a model returns its outputs; this one returns none")
        results = [
            row_value(builder, leaf, f"output `{name}`" if name else "the output") for name, leaf in named
        ]
        results = [rounded(builder, number, stored) for number in results]
    net, captured = with_captured(builder.net(results))
    return TracedModel(net, blank(output), captured, inputs, statics)


def statics_argument(model: ModelFunction, statics: Any, values: Any) -> dict[str, Any]:
    """Returns the keyword argument `statics` (values that each sequence has once) for a model that has one,
    as a dict; raises `InputError` if the call does not fit.

    statics: the `Spec`s of the caller's statics, or None.
    values: the statics as values of the net.
    """
    try:
        argument = inspect.signature(model).parameters.get("statics")
    except (TypeError, ValueError):
        argument = None
    if statics is None and (argument is None or argument.default is not argument.empty):
        return {}
    if (argument is None) != (statics is None):
        has, were = ("no", "they were given") if argument is None else ("a", "none were given")
        raise InputError(f"the model has {has} parameter named `statics`, and {were}")
    return {"statics": values}


def with_captured(net: Net) -> tuple[Net, tuple[Array, ...]]:
    """Replaces a net's named and larger constants by further inputs; returns the new net and these constants.

    So nets that differ only in these constants share machine code. Constants of at most `SMALL` elements
    stay if they have no name. Zeros stay where they are repeated, also if a parameter has the same zeros: a
    net has equal constants once.
    """
    builder, places = Builder(is_model=True), dict[int, int]()
    for number in net.inputs:
        places[number] = builder.input(net.type_of(number), net.nodes[number].name)
    captured, users, repeated = list[Array](), net.users(), set[int]()
    for number, node in enumerate(net.nodes):
        literal: Literal | None = node.attributes.get("value") if node.operation == "constant" else None
        if literal is None or (literal.value.size <= SMALL and not node.name):
            continue
        readers = users[number]
        zeros = {u for u in readers if net.nodes[u].operation == "expand" and not literal.value.any()}
        repeated |= zeros
        if zeros != {*readers} or number in net.results:
            places[number] = builder.input(node.type, node.name or f"captured{len(captured)}")
            captured.append(literal.value)
    for number, node in enumerate(net.nodes):
        if number in repeated:
            places[number] = builder.copy(node, [builder.copy(net.nodes[node.inputs[0]], ())])
        elif number not in places:
            places[number] = builder.copy(node, [places[operand] for operand in node.inputs])
    return builder.net(places[number] for number in net.results), tuple(captured)
