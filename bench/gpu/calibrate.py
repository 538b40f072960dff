"""The facts of a GPU for `tensor/facts.py`, fitted to the times of loops that were measured on it.

times of loops by schedule  --least squares of relative errors, no time below zero-->  TensorFacts

The estimate of a step is a sum of the facts, each as often as a loop needs it. So the facts of a device are a
linear fit. How many clusters run at once is measured alone, and so is the rate of main memory, by moves.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.cells import recurrence
from bench.gpu.schedules import sizes_of, step_of
from stepnet.compiler.targets.cuda import (
    H100,
    ExchangeCost,
    PlainCost,
    TensorFacts,
    TensorSchedule,
    TensorShape,
    TensorStep,
    step_time,
)
from stepnet.compiler.targets.cuda.tensor.facts import UNFITTED
from stepnet.errors import InputError

Array = np.ndarray
TIMES = "loop", "warp", "scheduler", "wait", "barrier", "read"
"""The facts that are times, besides those of exchanges."""
COSTS = {
    "grid": ("alone", "pieces"),
    "tagged": ("alone", "doubling", "pieces"),
    "cluster": ("alone", "pieces"),
}
"""The parts of the cost of an exchange that are fitted: only an exchange by tags depends on the blocks."""
WORDS = {"p": "parts", "c": "chains", "a": "ahead"}
FEWEST = 20
"""The fewest loops that facts are fitted to."""
FEWEST_PLAIN = 4
"""The fewest loops of plain units that their facts are fitted to; for fewer they are those of an H100."""
BATCH = "16"
"""The sequences of the times that are fitted: as many as no GPU takes turns for."""


@dataclass(frozen=True)
class Measured:
    """A loop and the microseconds of a step of it, by the number of sequences."""

    name: str
    shape: TensorShape
    row: dict[str, Any]

    @property
    def time(self) -> float | None:
        """The microseconds of a step; None if the device refused the loop."""
        found = self.row.get("microseconds", {}).get(BATCH)
        return found if isinstance(found, float) else None


def schedule_of(name: str, resident: int, is_alone: bool) -> TensorSchedule:
    """Returns a schedule by its name, such as "cluster8-float32-p4-c3-a2-fast"."""
    first, numbers, *others = name.split("-")
    exchange = first.rstrip("0123456789")
    options: dict[str, Any] = {"exchange": "alone" if is_alone else exchange, "numbers": numbers}
    for other in others:
        if other in ("short", "fast"):
            options["functions"] = other
        else:
            options[WORDS[other[0]]] = int(other[1:])
    sizes = sizes_of(exchange, int(first[len(exchange) :]))
    return TensorSchedule(resident=resident, **{**sizes, **options})


def measured(result: dict[str, Any], widest: int = 1024) -> Iterator[Measured]:
    """Yields the loops that were timed whole, of steps of up to `widest` units. Left out are backward ones,
    and those that read values as they multiply them, which is no sum of facts.

    result: of `python -m bench.gpu report`, or of the prototype, bench/saved/gpu-h100.json.
    """
    steps = dict[str, TensorStep]()
    for part, found in result["parts"].items():
        if not part.startswith(("steps, ", "schedules")):
            continue
        for name, row in found["rows"].items():
            if "schedule" not in row or "-no-" in name or "-direct" in name:
                continue
            if row["step"].startswith("backward"):
                continue
            cell, width = step_of(row["step"])
            if width <= widest:
                if row["step"] not in steps:
                    steps[row["step"]] = TensorStep.of(recurrence(cell, width).plan)
                step = steps[row["step"]]
                resident = int(row["resident"].split()[0])
                its = schedule_of(row["schedule"], resident, not step.lefts)
                yield Measured(name, TensorShape(step, its), row)


def unknowns() -> list[tuple[str, str]]:
    """Lists the facts that are fitted: an exchange and a part of its cost, or "" and a time."""
    costs = [(exchange, part) for exchange, parts in COSTS.items() for part in parts]
    return [*(("", name) for name in TIMES), *costs]


def facts_from(
    values: Array, clusters: dict[int, int], rates: dict[str, float], crowd: float = H100.crowd
) -> TensorFacts:
    """Returns facts from the values of the unknowns, in their order, and from what is not fitted."""
    found = dict(zip(unknowns(), map(float, values), strict=True))
    exchanges = {
        exchange: ExchangeCost(
            **{part: found.get((exchange, part), 0.0) for part in ("alone", "doubling", "pieces")}
        )
        for exchange in COSTS
    }
    times = {name: found["", name] for name in TIMES} | rates
    return TensorFacts(
        is_measured=True, exchanges=exchanges, clusters=clusters, crowd=crowd, plain=H100.plain, **times
    )


def fitted_facts(loops: list[Measured], clusters: dict[int, int], main: float = H100.main) -> TensorFacts:
    """Fits the facts to loops. clusters, main: as measured. Raises `InputError` for too few loops."""
    every = [(each.shape, each.time) for each in loops if each.time is not None]
    timed, plain = ([loop for loop in every if loop[0].is_plain == is_plain] for is_plain in (False, True))
    if len(timed) < FEWEST:
        raise InputError(
            f"{len(timed)} loops were timed, and facts are fitted to {FEWEST} or more: run `schedules`"
        )
    rates: dict[str, float] = {name: getattr(H100, name) for name in UNFITTED} | {"main": main}
    one_each = [facts_from(row, clusters, dict.fromkeys(rates, 0.0)) for row in np.eye(len(unknowns()))]
    rows = [[step_time(shape, each).total / time for each in one_each] for shape, time in timed]
    facts = facts_from(positive_fit(np.array(rows), np.ones(len(rows))), clusters, rates)
    return replace(facts, plain=fitted_plain(plain)) if len(plain) >= FEWEST_PLAIN else facts


def fitted_plain(loops: Sequence[tuple[TensorShape, float]]) -> PlainCost:
    """Returns the times of plain units that give those of loops, in microseconds, with the least squares of
    relative errors.
    """
    none, *each = (replace(H100, shared=0.0, plain=PlainCost(*row)) for row in (np.zeros(2), *np.eye(2)))
    meetings = [step_time(shape, none).total for shape, _ in loops]
    rows = [
        [(step_time(shape, one).total - ahead) / time for one in each]
        for (shape, time), ahead in zip(loops, meetings, strict=True)
    ]
    left = [1 - ahead / time for (_, time), ahead in zip(loops, meetings, strict=True)]
    return PlainCost(*map(float, positive_fit(np.array(rows), np.array(left))))


def positive_fit(matrix: Array, right: Array) -> Array:
    """Returns the least squares of matrix @ x = right for x of 0 or more, by the method of Lawson and Hanson.

    >>> positive_fit(np.array([[1.0, 1], [0, 1], [1, 0]]), np.array([1.0, -1, 2])).round(2).tolist()
    [1.5, 0.0]
    """
    scale = np.maximum(np.abs(matrix).max(0), 1e-30)
    matrix = matrix / scale
    x, free = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], bool)
    for _ in range(10 * len(x)):
        slopes = np.where(free, -np.inf, matrix.T @ (right - matrix @ x))
        if slopes.max() <= 1e-9:
            break
        free[slopes.argmax()] = True
        while True:
            wanted = np.zeros_like(x)
            wanted[free] = np.linalg.lstsq(matrix[:, free], right, rcond=None)[0]
            below = free & (wanted <= 0)
            if not below.any():
                x = wanted
                break
            step = (x[below] / (x[below] - wanted[below])).min()
            x = x + step * (wanted - x)
            free &= x > 1e-12
            x[~free] = 0
    return x / scale


def clusters_of(result: dict[str, Any]) -> dict[int, int]:
    """Returns how many clusters run at once, by their blocks; those of an H100 if they were not measured."""
    rows = result["parts"].get("exchanges", {}).get("rows", {})
    found = {size: rows.get(f"clusters of {size} at once") for size in H100.clusters}
    return {size: count if isinstance(count, int) else H100.clusters[size] for size, count in found.items()}


def main_of(result: dict[str, Any]) -> float:
    """Returns the microseconds of a byte that moves read or write in main memory; those of an H100 if they
    were not measured.
    """
    rows = result["parts"].get("memory", {}).get("rows", {})
    rates = [row["TB/s"] for name, row in rows.items() if name.startswith("rows in order")]
    return 1 / (1e6 * max(rates)) if rates else H100.main


def errors(facts: TensorFacts, loops: list[Measured]) -> list[tuple[float, str]]:
    """Returns the factors by which estimates miss the times of loops, the largest first, with their names."""
    found = [
        (max(estimate / each.time, each.time / estimate), each.name)
        for each in loops
        if each.time is not None and (estimate := step_time(each.shape, facts).total)
    ]
    return sorted(found, reverse=True)


def written(facts: TensorFacts) -> str:
    """Returns the facts as the code of a row of `tensor/facts.py`."""
    lines = ["TensorFacts(", "    is_measured=True,"]
    lines += [f"    {name}={getattr(facts, name):.3g}," for name in (*TIMES, *UNFITTED)]
    lines.append("    exchanges={")
    for exchange, cost in facts.exchanges.items():
        numbers = ", ".join(f"{number:.3g}" for number in (cost.alone, cost.doubling, cost.pieces))
        lines.append(f'        "{exchange}": ExchangeCost({numbers}),')
    return "\n".join(
        [
            *lines,
            "    },",
            f"    clusters={dict(facts.clusters)},",
            f"    crowd={facts.crowd},",
            f"    plain={facts.plain},",
            ")",
        ]
    )


def beside(result: dict[str, Any]) -> Iterator[str]:
    """Yields what microbenchmarks say of the same things, where they were measured."""
    rows = {name: row for found in result["parts"].values() for name, row in found["rows"].items()}
    for blocks in ("2", "16", "128"):
        for name in (
            "exchange counter, 16 words",
            "exchange tagged, 16 words",
            "barrier counter, 128 threads",
        ):
            if name in rows and blocks in rows[name]:
                yield f"{name}, {blocks} blocks: {rows[name][blocks] / 1e3:.3f} us"
    for size in H100.clusters:
        name = f"cluster store, {size} blocks"
        if name in rows:
            yield f"{name}, 128 threads: {rows[name][f'1 x {size} blocks of 128 threads'] / 1e3:.3f} us"
    if "barrier of a block, 8 warps" in rows:
        yield f"barrier of a block, 8 warps: {rows['barrier of a block, 8 warps']['cycles']:.0f} cycles"
    for blocks in (1, 132):
        name = f"the same 256 KB read by {blocks} blocks"
        if name in rows:
            rate = 256 * 1024 * blocks / rows[name]["cycles"]
            yield f"{name}: {rate:.0f} bytes in a cycle, for BLOCK_READS and CACHE_READS"


def calibration(path: Path) -> str:
    """Returns the row of `tensor/facts.py` for the results in a file, how near its estimates are, and what
    microbenchmarks say of the same.
    """
    result = of_file(path)
    loops = list(measured(result))
    facts = fitted_facts(loops, clusters_of(result), main_of(result))
    lines = [written(facts), ""]
    for name, one in (("fitted", facts), ("of an H100", replace(H100, clusters=facts.clusters))):
        found = errors(one, loops)
        near = sum(factor < 1.4 for factor, _ in found) / len(found)
        lines.append(
            f"{name}: {near:.0%} of {len(found)} loops within 1.4; worst {found[0][0]:.2f}, {found[0][1]}"
        )
    return "\n".join([*lines, "", *beside(result)])


def of_file(path: Path) -> dict[str, Any]:
    """Reads results; those of the prototype have `stages` in place of parts. Raises `InputError` for a file
    that is no report.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
        return result if "parts" in result else {**result, "parts": result["stages"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no report of `python -m bench.gpu report`: {type(error).__name__}: {error}"
        ) from None
