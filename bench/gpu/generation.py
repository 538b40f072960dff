"""Estimates of the time of a step of generation on an H100: of a language model of a GRU.

    python -m bench.gpu generation

It needs no GPU, and nothing of it was measured.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import stepnet as sn

UNITS, STEPS = 512, 100
CASES: Sequence[tuple[str, int, int, dict[str, Any]]] = (
    *(("highest score", 256, rows, {}) for rows in (1, 8, 16, 64)),
    *(("highest score", 32000, rows, {}) for rows in (1, 8, 16, 64)),
    *(("drawn", 256, rows, {"sampler": sn.sampling()}) for rows in (1, 16)),
    *(("8 beams", 64, rows, {"beams": 8}) for rows in (1, 16)),
    *((f"{beams} beams", 64, rows, {"beams": beams}) for beams in (16, 32, 64) for rows in (1, 16)),
)
"""Cases: the way in which symbols are chosen, their number, the sequences, and the options of `explain`."""
SAID = re.compile(
    r"chosen (.*?)([\d.]+) us for a step, most of it (.*?); (without them|one block) ([\d.]+) us"
)


def language(symbols: int, units: int = UNITS) -> sn.RNN:
    """Returns a language model of a GRU, with an embedding and scores of symbols; its numbers are zero."""
    shapes = {"E": (symbols, 64), "W": (64, 3 * units), "R": (units, 3 * units), "V": (units, symbols)}
    parameters = {name: np.zeros(shape, "float32") for name, shape in shapes.items()}

    def step(x: Any, h: Any, p: Any) -> Any:
        """Computes the scores and the next memory."""
        a, b = p["E"][x] @ p["W"], h @ p["R"]
        r = sn.sigmoid(a[:, :units] + b[:, :units])
        z = sn.sigmoid(a[:, units : 2 * units] + b[:, units : 2 * units])
        h = z * h + (1 - z) * np.tanh(a[:, 2 * units :] + r * b[:, 2 * units :])
        return h @ p["V"], h

    return sn.RNN(step, parameters, memory=units, inputs=sn.Spec((), np.int64))


def table(cases: Sequence[tuple[str, int, int, dict[str, Any]]] = CASES, units: int = UNITS) -> Iterator[str]:
    """Yields the lines of the table: the estimate of a step as it is chosen, that without tensor cores, and
    what takes the longest.
    """
    yield "| chosen by | symbols | sequences | us of a step | without tensor cores | bound by |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for name, symbols, rows, options in cases:
        text = language(symbols, units).explain("cuda", rows=rows, max_steps=STEPS, **options)
        said = SAID.search(" ".join(text.split()))
        found = (
            ("", "", "one block")
            if said is None
            else (said[2], said[5] if said[4] == "without them" else said[2], said[3])
        )
        yield f"| {name} | {symbols} | {rows} | {' | '.join(found)} |"
