"""A check of a recognised cell: the body of the recurrence and the equations of the cell on random numbers.

Recognition is a proof, but its rules were written by people. The check runs both sides once in float64. Code
that hands a recurrence to another library does this first.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import LevelSizes, interpret, widened
from stepnet.compiler.net.ir import Recur, without_unused
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.recognise.known import Recognised
from stepnet.compiler.values.fork_guard import module_late
from stepnet.errors import NetError
from stepnet.layout.equations import step_of
from stepnet.layout.semantics import GATES

Array = np.ndarray
ROWS = 4


def check(known: Recognised, seed: int = 0) -> None:
    """Raises `NetError` unless one step of the recurrence and of the recognised cell agree on random numbers.

    Args:
        known: The recognised cell.
        seed: The seed of the numbers.
    """
    random = module_late("numpy.random").default_rng(seed)
    outputs = {index: kind for index, kind in enumerate(known.outputs) if kind is not None}
    recur = wide_recur(known.recur, list(outputs))
    body = recur.body
    arrays: list[Array] = []
    for number in body.inputs:
        type_ = body.type_of(number)
        shape = type_.shape if type_.extent == CONST else (ROWS, *type_.shape)
        arrays.append(random.normal(size=shape).astype(type_.dtype))
    operands = recur.operands_by_kind(arrays)
    results_by_kind = recur.results_by_kind(
        interpret(body, arrays, LevelSizes(ROWS), np.zeros(ROWS, np.int64))
    )
    weights = replace(known, recur=recur, weights=widened(known.weights)).arrays(operands.others)
    x = np.concatenate(
        [np.zeros((ROWS, 0)), *(operands.sequences[index].reshape(ROWS, -1) for index in known.sequences)],
        axis=-1,
    )
    h, c = step(known, weights, x, operands.memories)
    expected = {"h": (known.h, h)} | ({} if known.c is None else {"c": (known.c, c)})
    for name, (index, value) in expected.items():
        agree(known, name, results_by_kind.memories[index], value)
    for kind, value in zip(outputs.values(), results_by_kind.outputs, strict=True):
        agree(known, f"the output {kind}", value, expected[kind][1])


def wide_recur(recur: Recur, outputs: list[int]) -> Recur:
    """Returns a recurrence in float64 with only the outputs at these positions, to check a known cell."""
    results = (*(recur.outputs[index] for index in outputs), *recur.following)
    return replace(recur, body=widened(without_unused(recur.body.nodes, results)))


def step(
    known: Recognised, weights: dict[str, Array], x: Array, memories: list[Array]
) -> tuple[Array, Array]:
    """Computes h and c after one step of the recognised cell by its equations; for a cell without c, h twice.

    known: the recognised cell. weights: the cell's arrays by name. x: the inputs. memories: the memories
        before the step.
    """
    gates = GATES[known.cell]
    params: dict[str, Any] = {
        name: dict(zip(gates, np.split(weights[name], len(gates), axis=-1), strict=True))
        for name in "WRbd"
        if name in weights
    }
    if known.projected is not None:
        # Without W, x has a part for each gate: a 0/1 matrix W selects it.
        x = x[:, known.projected]
        params["W"] = dict(zip(gates, np.split(np.eye(x.shape[1]), len(gates), axis=-1), strict=True))
    if "p" in weights:
        params["p"] = dict(zip("ifo", weights["p"], strict=True))
    if "P" in weights:
        params["P"] = weights["P"]
    h = memories[known.h]
    with np.errstate(all="ignore"):
        if known.c is None:
            after = step_of(known.semantics)(x, h, params)[1]
            return after, after
        after = step_of(known.semantics)(x, {"h": h, "c": memories[known.c]}, params)[1]
    return after["h"], after["c"]


def agree(known: Recognised, name: str, actual: Array, expected: Array) -> None:
    """Raises `NetError` unless two arrays agree up to rounding in the dtype of the recurrence.

    known: the recognised cell. name: the name of the value, for the message. actual, expected: the value
        computed by the recurrence, and by the cell.
    """
    away = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
    # Constants in a body, such as the 1 / 6 of hard_sigmoid, are rounded to its dtype.
    dtype = known.recur.body.type_of(known.recur.memories[0]).dtype
    most = 2 * tolerance(dtype, 1, known.inputs + known.hidden)
    if not bool((away <= most).all()):
        raise NetError(
            f"the recurrence was taken for {known}, and differs in {name} by {float(away.max()):.3g}, where "
            f"{most:.3g} is rounding"
        )
