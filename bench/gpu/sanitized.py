"""A kernel of each kind, run once: for tools that watch every access to memory, such as compute-sanitizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.cells import FEATURES, ending, inputs_of, recurrence
from bench.gpu.forced import LoopMaker, by_block, by_groups, by_schedule, by_units, forced
from bench.gpu.place import Place, Rows
from bench.gpu.placed import error_of
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.cuda import empty, get, multiply
from stepnet.compiler.values import leaves

LENGTHS = [3, 0, 2, 4]
WIDTH, ON_TENSOR_CORES = 20, 32
"""The units of loops without tensor cores, no multiple of anything, and with them."""
LEFT = [1e9, 0.0, 0.4, 0.9]
"""The memory "left" at first: the first sequence never ends."""
Array = np.ndarray
Row = dict[str, Any]


def sanitized(place: Place) -> Rows:
    """Yields whether the results of each kind of kernel are right, by its name."""
    for name, run in CASES.items():
        yield name, run(place)


def called(cell: str, width: int, make: LoopMaker, place: Place) -> Row:
    """Runs one loop with its stages; returns its error as a share of the tolerance."""
    x = np.random.default_rng(0).normal(size=(len(LENGTHS), max(LENGTHS), inputs_of(cell, width)))
    x = x.astype("f4")
    found = leaves(forced(recurrence(cell, width), place, make, x, None, LENGTHS))
    exact = recurrence(cell, width, "float64")(x.astype("f8"), lengths=LENGTHS, engine="interpret")
    return row_of(found, leaves(exact), max(LENGTHS), 2 * width + FEATURES)


def ended(width: int, make: LoopMaker, place: Place) -> Row:
    """Runs one loop whose sequences a flag ends, and the product that follows it."""
    x = np.random.default_rng(0).normal(size=(len(LENGTHS), max(LENGTHS), FEATURES)).astype("f4")
    begun = {"h": np.zeros((len(LENGTHS), width), "f4"), "left": np.array(LEFT, "f4")}
    found = forced(ending(width, projected=True), place, make, x, begun, LENGTHS)
    wide = {name: array.astype("f8") for name, array in begun.items()}
    exact = ending(width, "float64", projected=True)(
        x.astype("f8"), wide, lengths=LENGTHS, engine="interpret"
    )
    if found[0].lengths.tolist() != exact[0].lengths.tolist():
        return {"right": False, "lengths": found[0].lengths.tolist()}
    ours, theirs = ([made[0].values, *made[1].values()] for made in (found, exact))
    return row_of(ours, theirs, max(LENGTHS), 2 * width + FEATURES)


def row_of(found: list[Array], exact: list[Array], steps: int, width: int) -> Row:
    """Returns the error of some results, and whether it is within the tolerance."""
    error = error_of(found, exact, steps, width)
    return {"error": error, "right": bool(error <= 1)}


def multiplied(way: str, place: Place) -> Row:
    """Runs one product of matrices whose sizes are no multiples of its tiles."""
    chance = np.random.default_rng(0)
    left, right = (chance.normal(size=shape).astype("f4") for shape in ((37, 50), (50, 70)))
    out = empty(place.device, (37, 70), "float32")
    multiply(place.device, [place.memory.put(left)], [place.memory.put(right)], way, out)
    exact = left.astype("f8") @ right
    away = np.abs(get(out) - exact) / np.maximum(1, np.abs(exact))
    error = float(away.max()) / tolerance("bfloat16" if way == "bfloat16" else "float32", 1, 50)
    return {"error": error, "right": bool(error <= 1)}


def gradients(cell: str, width: int, place: Place) -> Row:
    """Runs a recurrence with its gradients: the loop back through it, and moves, sums and totals of rows."""
    x = np.random.default_rng(0).normal(size=(len(LENGTHS), max(LENGTHS), FEATURES)).astype("f4")
    made = list[list[Array]]()
    for dtype, engine in (("float32", place.name), ("float64", "interpret")):
        (outputs, final), backward = sn.vjp(recurrence(cell, width, dtype))(
            x.astype(dtype), lengths=LENGTHS, engine=engine
        )
        gradient = backward(outputs, final)
        made.append([np.asarray(each) for each in leaves((gradient.params, gradient.inputs))])
    scales = [max(1.0, float(np.abs(each).max())) for each in made[1]]
    ours, exact = ([a / scale for a, scale in zip(each, scales, strict=True)] for each in made)
    return row_of(ours, exact, sum(LENGTHS), 4 * width)


EXCHANGES = "block1", "block1.parts4", "plain2", "grid2", "tagged2", "cluster2"
"""A schedule of each exchange of values between blocks."""
CASES: dict[str, Callable[[Place], Row]] = {
    **{f"gru, {word}": partial(called, "gru", ON_TENSOR_CORES, by_schedule(word)) for word in EXCHANGES},
    "units alone, alone2.ahead4": partial(called, "rg_lru", ON_TENSOR_CORES, by_schedule("alone2.ahead4")),
    "loop of a block": partial(called, "layer_normed", WIDTH, by_block),
    "loop of groups of blocks": partial(called, "gru", WIDTH, by_groups),
    "loop with a thread for each unit": partial(called, "decay", WIDTH, by_units),
    "matrix memory": partial(called, "matrix_memory", 6, by_block),
    **{f"early ends, {word}": partial(ended, ON_TENSOR_CORES, by_schedule(word)) for word in EXCHANGES},
    "early ends, a block": partial(ended, WIDTH, by_block),
    "early ends, groups of blocks": partial(ended, WIDTH, by_groups),
    "product by plain units": partial(multiplied, "plain"),
    "product by tensor cores": partial(multiplied, "float32"),
    "product by bfloat16": partial(multiplied, "bfloat16"),
    "gradients, tensor cores": partial(gradients, "gru", ON_TENSOR_CORES),
    "gradients, a block": partial(gradients, "layer_normed", WIDTH),
}
"""The kernels that run: of each schedule one, by names."""
