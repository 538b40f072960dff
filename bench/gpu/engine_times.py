"""Times of the target `cuda`: loops as they are chosen, stages and whole calls."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.gpu.cells import inputs_of, recurrence
from bench.gpu.place import Place, Rows
from bench.gpu.placed import PlacedCall

STEPS = 1024
CASES = (
    *((cell, width) for cell in ("gru", "lstm") for width in (256, 64, 512, 128, 1024)),
    *(("minimal_gated_unit", width) for width in (256, 64, 512)),
    *((name, width) for name in ("layer_normed", "slstm", "decay") for width in (256, 64)),
)
BATCHES = (1, 16, 64)
TRIAL = (("gru", 16), ("layer_normed", 16), ("decay", 8))
"""The cases that are run in emulation."""


def engine_times(place: Place) -> Rows:
    """Yields the times of recurrences, in microseconds of a step: the estimate, the loop alone, a call on
    arrays of the device, and one on arrays of the host.
    """
    for cell, width in place.sized(CASES, TRIAL):
        for rows in place.sized(BATCHES, (2,)):
            yield f"{cell}-{width} x {rows}", times_of(place, cell, width, rows)


def times_of(place: Place, cell: str, width: int, rows: int) -> dict[str, Any]:
    """Times one recurrence."""
    steps = place.sized(STEPS, 3)
    rnn: Any = recurrence(cell, width)
    x = np.random.default_rng(1).normal(size=(rows, steps, inputs_of(cell, width))).astype("f4")
    begun = time.perf_counter()
    placed = PlacedCall.of(rnn, place, x, [steps] * rows)
    placed()
    place.device.wait()
    first = time.perf_counter() - begun
    rnn(x, engine=place.name)
    host = place.seconds(lambda: rnn(x, engine=place.name), 3)
    return {
        "schedule": placed.loop.loop.schedule,
        "reason": placed.loop.reason,
        "estimate_us": round(placed.loop.microseconds, 2),
        **dict(microseconds(placed, steps)),
        "host_us": round(host / steps * 1e6, 2),
        "first_s": round(first, 2),
    }


def microseconds(placed: PlacedCall, steps: int) -> Iterator[tuple[str, float]]:
    """Yields the microseconds of a step of the loop alone, and of the whole call."""
    yield "loop_us", round(placed.loop_seconds() / steps * 1e6, 2)
    yield "call_us", round(placed.call_seconds() / steps * 1e6, 2)
