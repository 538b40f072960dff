"""oneDNN: its primitive alone, executed on memory that is filled once, through stepnet's access to the
library.

Layers and directions are stepnet's engine onednn, which joins them in one primitive where oneDNN has such.
"""

from typing import Any

import numpy as np

from stepnet import onednn
from stepnet.engines.onednn.primitives import Run
from stepnet.errors import LibraryError

from . import stepnet as ours
from .worker import Array, Missing, Prepared, Refused, Work


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version; the threads are set."""
    ours.start(threads, options)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in
             {"W": (1, 3), "R": (1, 3), "b": (3,), "d": (3,)}.items()}  # fmt: skip
    try:
        layer = onednn.layer(zeros, "stepnet.gru")
    except LibraryError as error:
        raise Missing(f"{error}; pip install stepnet[onednn]") from error
    return {"oneDNN": str(layer.library).partition(" (")[0].removeprefix("oneDNN ")}


def prepare(work: Work) -> Prepared:
    """The primitive over padded sequences, time before batch."""
    work.needs(("gru", "lstm"), "oneDNN")
    if work.dtype != "float32":
        raise Refused("oneDNN's recurrences are float32 and less")
    if not work.is_one:
        return by_engine(work)
    weights = {"d": np.zeros_like(work.weights["b"]), **work.weights}
    layer = onednn.layer(weights, f"stepnet.{work.cell}")
    if layer.recurrence is None or layer.weights is None:
        raise Refused(layer.reason or "oneDNN does not have it")
    layer(work.padded(time_major=False)[:1, :1], cell="none")  # it tells oneDNN how many threads there are
    x = work.padded(time_major=True)
    run = Run(layer.library, layer.recurrence, len(x), work.batch)
    layer.weights.bind(run)
    run.view("src_layer")[...] = x
    functions, primitive = layer.library.functions, run.primitive
    stream = primitive.stream.handle
    arguments = primitive.primitive.handle, stream, len(primitive.arguments), primitive.arguments

    def execute() -> Array:
        functions.dnnl_primitive_execute(*arguments)
        functions.dnnl_stream_wait(stream)
        return run.view("dst_layer")

    return Prepared(execute, lambda result: work.end_to_end(np.array(result), time_major=True))


def by_engine(work: Work) -> Prepared:
    """Layers or directions by stepnet's engine."""
    options = {**work.options, "engine": "onednn"}
    return ours.prepare(Work(work.case, work.arrays, work.threads, options))
