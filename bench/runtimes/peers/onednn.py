"""oneDNN: its primitives alone, on padded memory that is filled once, through stepnet's access to it.

Each direction of each layer is a primitive; their outputs are copied into the memory of the next layer. In a
ragged batch the reverse direction runs forward over turned sequences, so that padding stays behind them.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from stepnet import onednn
from stepnet.compiler.targets.onednn.primitives import PrimitiveRun
from stepnet.errors import LibraryError

from . import stepnet as ours
from .worker import Array, Missing, Prepared, Refused, Work


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Sets the threads, and returns oneDNN's version."""
    ours.start(threads, options)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in
             {"W": (1, 3), "R": (1, 3), "b": (3,), "d": (3,)}.items()}  # fmt: skip
    try:
        layer = onednn.layer(zeros, "stepnet.gru")
    except LibraryError as error:
        raise Missing(f"{error}; pip install stepnet[onednn]") from error
    return {"oneDNN": str(layer.library).partition(" (")[0].removeprefix("oneDNN ")}


def prepare(work: Work) -> Prepared:
    """Builds oneDNN's primitives of the case, on padded memory: returns the timed call and its conversion."""
    work.needs(("gru", "lstm"), "oneDNN")
    if work.dtype != "float32":
        raise Refused("oneDNN's recurrences are float32 and less")
    x = work.padded(time_major=True)
    order = work.turned()[..., None] if work.ragged else None

    def turned(array: Array) -> Array:
        """Reverses each sequence of a ragged batch within its length; a dense batch stays as it is."""
        return array if order is None else np.take_along_axis(array, order, 0)

    runs = [
        [run_of(work, weights, len(x), is_reverse=place == 1) for place, weights in enumerate(directions)]
        for directions in work.recurrences
    ]
    for place, run in enumerate(runs[0]):
        run.view("src_layer")[...] = turned(x) if place == 1 else x
    steps = [execution(runs[0])]
    for below, above in pairwise(runs):
        steps += [handing(below, above, turned), execution(above)]

    def execute() -> list[Array]:
        """Runs all layers, to be timed; returns the last layer's outputs by direction."""
        for step in steps:
            step()
        return [run.view("dst_layer") for run in runs[-1]]

    def outputs(made: list[Array]) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        ways = [turned(array) if place == 1 else array for place, array in enumerate(made)]
        return work.end_to_end(np.concatenate(ways, -1), time_major=True)

    return Prepared(execute, outputs)


def run_of(work: Work, weights: dict[str, Array], steps: int, is_reverse: bool) -> PrimitiveRun:
    """Builds the primitive of one direction of a layer for `steps` steps, with its weights."""
    layer = onednn.layer({"d": np.zeros_like(weights["b"]), **weights}, f"stepnet.{work.cell}")
    if layer.recurrence is None or layer.weights is None:
        raise Refused(layer.reason or "oneDNN does not have it")
    # A call tells oneDNN how many threads there are.
    layer(np.zeros((1, 1, layer.inputs), np.float32), cell="none")
    is_native = is_reverse and not work.ragged
    recurrence = replace(layer.recurrence, direction="right2left" if is_native else "left2right")
    run = PrimitiveRun(layer.library, recurrence, steps, work.batch)
    layer.weights.bind(run)
    return run


def execution(runs: list[PrimitiveRun]) -> Callable[[], None]:
    """Returns a function that executes primitives, one after the other."""
    calls: list[tuple[Any, ...]] = []
    for run in runs:
        primitive = run.primitive
        handles = primitive.primitive.handle, primitive.stream.handle
        calls.append((*handles, len(primitive.arguments), primitive.arguments))
    functions = runs[0].library.functions

    def execute() -> None:
        """Executes oneDNN's primitives one after the other, and waits for each."""
        for primitive, stream, count, arguments in calls:
            functions.dnnl_primitive_execute(primitive, stream, count, arguments)
            functions.dnnl_stream_wait(stream)

    return execute


def handing(
    below: list[PrimitiveRun], above: list[PrimitiveRun], turned: Callable[[Array], Array]
) -> Callable[[], None]:
    """Returns a function that copies the outputs of a layer's directions into the inputs of the next layer.

    turned: reverses sequences.
    """
    size = below[0].recurrence.output

    def hand() -> None:
        """Copies the outputs of the directions below side by side into the inputs of those above."""
        for place, run in enumerate(below):
            made = run.view("dst_layer")
            for other, reader in enumerate(above):
                part = reader.view("src_layer")[..., place * size : (place + 1) * size]
                part[...] = made if place == other else turned(made)

    return hand
