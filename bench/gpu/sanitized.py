"""A kernel of each kind, run once: for tools that watch every access to memory, such as compute-sanitizer."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.cells import FEATURES, inputs_of, recurrence
from bench.gpu.place import Place, Rows
from bench.gpu.placed import PlacedCall, error_of, exact_results, plan_of
from bench.gpu.schedules import FEW, loop_by, schedules, step_of
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.cuda import (
    ChosenLoop,
    empty,
    get,
    grid_code,
    grid_form,
    loop_code,
    multiply,
    units_code,
)
from stepnet.compiler.values import leaves

LENGTHS = [3, 0, 2, 4]
WIDTH = 20
"""The units of loops without tensor cores: no multiple of anything."""
Array = np.ndarray


def sanitized(place: Place) -> Rows:
    """Yields whether the results of each kind of kernel are right, by its name."""
    for step, text in FEW.items():
        rnn = recurrence(*step_of(step))
        for its in schedules(text):
            loop = loop_by(plan_of(rnn, place), its, place.device.facts, 1)[1]
            yield f"{step} {its.name}", called(place, step_of(step), rnn, loop)
    for name, cell, make in other_loops(place):
        rnn = recurrence(cell, WIDTH)
        loop = make(plan_of(rnn, place))
        yield name, called(place, (cell, WIDTH), rnn, loop)
    for name, way in (("plain units", "plain"), ("tensor cores", "float32"), ("bfloat16", "bfloat16")):
        yield f"product by {name}", multiplied(place, way)
    yield "moves, sums and gradients", gradients(place)


def other_loops(place: Place) -> Iterator[tuple[str, str, Callable[[Any], ChosenLoop]]]:
    """Yields the loops without tensor cores: a name, a cell, and what makes the loop of a plan."""

    def by_groups(plan: Any) -> ChosenLoop:
        """Returns the loop of groups of blocks."""
        form = grid_form(plan, 2, place.device.facts, 32, own=5)
        assert form is not None
        return ChosenLoop(grid_code(form), 1, "groups of blocks")

    def by_units(plan: Any) -> ChosenLoop:
        """Returns the loop with a thread for each unit."""
        code = units_code(plan)
        assert code is not None
        return ChosenLoop(code, 0, "a thread for each unit")

    yield "loop of a block", "layer_normed", lambda plan: ChosenLoop(loop_code(plan, 4, 64), 0, "a block")
    yield "loop of groups of blocks", "gru", by_groups
    yield "loop with a thread for each unit", "decay", by_units


def called(place: Place, step: tuple[str, int], rnn: sn.RNN, loop: ChosenLoop) -> dict[str, Any]:
    """Runs one loop with its stages; returns its error as a share of the tolerance."""
    cell, width = step
    x = (
        np.random.default_rng(0)
        .normal(size=(len(LENGTHS), max(LENGTHS), inputs_of(cell, width)))
        .astype("f4")
    )
    found = PlacedCall.of(rnn, place, x, LENGTHS, loop).results()
    exact = exact_results(recurrence(cell, width, "float64"), x, LENGTHS)
    error = error_of(found, exact, max(LENGTHS), 2 * width + FEATURES)
    return {"error": error, "right": bool(error <= 1)}


def multiplied(place: Place, way: str) -> dict[str, Any]:
    """Runs one product of matrices whose sizes are no multiples of its tiles."""
    chance = np.random.default_rng(0)
    left, right = (chance.normal(size=shape).astype("f4") for shape in ((37, 50), (50, 70)))
    out = empty(place.device, (37, 70), "float32")
    multiply(place.device, [place.memory.put(left)], [place.memory.put(right)], way, out)
    exact = left.astype("f8") @ right
    away = np.abs(get(out) - exact) / np.maximum(1, np.abs(exact))
    error = float(away.max()) / tolerance("bfloat16" if way == "bfloat16" else "float32", 1, 50)
    return {"error": error, "right": bool(error <= 1)}


def gradients(place: Place) -> dict[str, Any]:
    """Runs a recurrence with its gradients, which move, reduce and total rows."""
    x = np.random.default_rng(0).normal(size=(len(LENGTHS), max(LENGTHS), FEATURES)).astype("f4")
    made = list[list[Array]]()
    for dtype, engine in (("float32", place.name), ("float64", "interpret")):
        (outputs, final), backward = sn.vjp(recurrence("gru", WIDTH, dtype))(
            x.astype(dtype), lengths=LENGTHS, engine=engine
        )
        gradient = backward(outputs, final)
        made.append([np.asarray(each) for each in leaves((gradient.params, gradient.inputs))])
    scales = [max(1.0, float(np.abs(each).max())) for each in made[1]]
    ours, exact = ([a / scale for a, scale in zip(each, scales, strict=True)] for each in made)
    error = error_of(ours, exact, sum(LENGTHS), 4 * WIDTH)
    return {"error": error, "right": bool(error <= 1)}
