"""Loops on tensor cores by schedules of one's choice: their times, from which the cost model is fitted, and
whether their results are right.

A schedule is a word: an exchange with its blocks, or with sequences where plain units multiply, then
numbers, chains, parts, ahead, rows, places, functions or what is left out, as in
cluster8.parts4.bfloat16.ahead2. The numbers * stand for each of float32, tf32 and bfloat16.
"""

from dataclasses import replace
from typing import Any

import numpy as np

import stepnet as sn
from bench.gpu.cells import FEATURES, recurrence
from bench.gpu.place import Place, Rows
from bench.gpu.placed import PlacedCall, error_of, exact_results, plan_of
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda import (
    ChosenLoop,
    DeviceFacts,
    TensorSchedule,
    TensorShape,
    TensorStep,
    batch_time,
    code_of,
    facts_of,
    fitted,
    groups_at_once,
    registers,
)
from stepnet.compiler.targets.cuda.tensor.shape import LAUNCHED, PLAIN_PARTS
from stepnet.errors import DeviceError

STEPS, BATCHES, LENGTHS = 1024, (1, 16, 64), [3, 7, 0, 1, 5, 4, 2, 6, 7, 3]
RUNS = 3
"""The runs whose bits are compared."""
NUMBERS = ("float32", "tf32", "bfloat16")
KINDS = {"short": "functions", "fast": "functions", "barrier": "without", "products": "without"}
"""The fields of a schedule that words other than numbers are for."""
TIMED = {
    "gru-128": "plain1.parts2.chains2.ahead2.short "
    "cluster8.parts4.ahead2.* tagged8.parts4.ahead2.* block1 cluster8 grid8.parts4.ahead2 tagged8",
    "gru-256": "cluster16.parts4.ahead2.* tagged16.parts4.ahead2.* cluster8.parts2 grid16.parts4.ahead2",
    "lstm-128": "cluster8.parts4.ahead2 tagged8.parts4.ahead2 block1 cluster4.parts4.ahead2 tagged4.parts4",
    "gru-64": "plain1.parts2.chains2.ahead4.short plain1.ahead2 plain2.ahead2 plain4.ahead2 "
    "block1.parts2.ahead2.* block1.parts4.ahead2 "
    "cluster4.parts4.ahead2 tagged4.parts4.ahead2",
    "gru-512": "tagged32.parts4.ahead2.* grid32.parts4.ahead2 tagged64.parts2.ahead2",
    "minimal_gated_unit-128": "plain1.ahead2 cluster8.parts4.ahead2 tagged8.parts4.ahead2 block1.parts2",
    "rg_lru-256": "alone2.ahead4 alone4.ahead8 alone4.ahead16 alone8.parts4.ahead16",
    "lstm-256": "cluster16.parts4.ahead2 tagged16.parts4.ahead2 tagged32.parts4.ahead2",
    "lstm-64": "plain1.parts2.chains2.ahead4.short plain1.ahead2 "
    "block1.parts4.ahead2 cluster2.parts4.ahead2 tagged4.parts4.ahead2 block1",
    "lstm-512": "tagged32.parts4.ahead2 tagged32.parts4.bfloat16.ahead2",
    "minimal_gated_unit-256": "cluster16.parts4.ahead2 tagged16.parts4.ahead2",
    "gru-1024": "tagged64.parts4.bfloat16.ahead2 tagged64.parts4.tf32.ahead2 "
    "grid64.parts8.chains1.ahead2.places0.rows32 grid64.parts8.chains1.ahead2.places0.rows16",
    "lstm-1024": "grid64.parts8.chains1.places0.rows32",
    "minimal_gated_unit-1024": "grid64.parts8.chains1.ahead2.places0.rows32",
}
"""The schedules that are timed, by the step, those first that say most."""
DIGITS = {"float32": "float32", "tf32": "float16", "bfloat16": "bfloat16"}
"""A dtype with as many digits as the numbers that are multiplied."""
TRIAL = {"simple_rnn-32": "block1 plain2 tagged2.parts2 grid2.parts2.places0.rows16", "gru-16": "block1.tf32"}
"""The schedules that are run in emulation."""


def schedules(text: str) -> list[TensorSchedule]:
    """Returns the schedules of a text of words."""
    words = (word.replace("*", numbers) for word in text.split() for numbers in NUMBERS)
    return [schedule(word) for word in dict.fromkeys(words)]


def schedule(word: str) -> TensorSchedule:
    """Returns the schedule of one word. Unless it says so, the terms of float32 have a chain each."""
    first, *others = word.split(".")
    exchange = first.rstrip("0123456789")
    options: dict[str, Any] = {"numbers": "float32", **sizes_of(exchange, int(first[len(exchange) :]))}
    for other in others:
        name = other.rstrip("0123456789")
        if name in ("chains", "parts", "ahead", "rows", "places"):
            options[name] = int(other[len(name) :])
        else:
            options[KINDS.get(other, "numbers")] = other
    chains = 3 if options["numbers"] == "float32" and exchange not in ("alone", "plain") else 1
    return TensorSchedule(**{"exchange": exchange, "chains": chains, **options})


def sizes_of(exchange: str, count: int) -> dict[str, int]:
    """Returns the fields that the number behind an exchange is for: the blocks of a group, or the sequences
    where plain units multiply.
    """
    return {"rows": count, "parts": max(PLAIN_PARTS)} if exchange == "plain" else {"blocks": count}


def step_of(name: str) -> tuple[str, int]:
    """Returns the cell and the units of a step, such as "gru-128"."""
    cell, _, width = name.rpartition("-")
    return cell, int(width)


def loop_by(
    plan: Plan, its: TensorSchedule, facts: DeviceFacts, rows: int, flag: int | None = None
) -> tuple[TensorShape, ChosenLoop]:
    """Returns the loop of a plan by a schedule, with as many operands in registers as are estimated to fit.

    rows: the sequences for which its time is estimated. flag: the position of the bool memory that ends a
        sequence early, if one does.
    """
    shape = fitted(TensorStep.of(plan, flag), its, facts)
    needed, known = registers(shape, facts), facts_of(facts)
    is_grid = LAUNCHED[its.exchange] == "grid"
    groups = groups_at_once(shape, facts, known, needed)[0] if is_grid else 0
    time = batch_time(shape, rows, facts, known, needed)
    return shape, ChosenLoop(code_of(shape), groups, its.name, time, needed)


def schedule_times(place: Place) -> Rows:
    """Yields the times of a step by each schedule, and whether its results are right, by their names."""
    for step, text in place.sized(TIMED, TRIAL).items():
        cell, width = step_of(step)
        rnn = recurrence(cell, width)
        for its in schedules(text):
            yield f"{step} {its.name}", row_of(place, step, rnn, its)


def row_of(place: Place, step: str, rnn: sn.RNN, its: TensorSchedule) -> dict[str, Any]:
    """Returns the facts about one loop, and the microseconds of a step for each batch; or why the device
    refuses it.
    """
    shape, loop = loop_by(plan_of(rnn, place), its, place.device.facts, 1)
    resident = min(shape.operands, shape.schedule.resident)
    sizes = {"threads": shape.threads, "shared": shape.shared_bytes}
    row = {"step": step, "schedule": its.name, **sizes, "resident": f"{resident} of {shape.operands}"}
    if (misfit := shape.misfit(place.device.facts)) is not None:
        return {**row, "refused": misfit}
    times, estimates = dict[str, float | str](), dict[str, float]()
    for rows in place.sized(BATCHES, (2,)):
        estimates[str(rows)] = round(
            loop_by(plan_of(rnn, place), its, place.device.facts, rows)[1].microseconds, 3
        )
        times[str(rows)] = timed(place, rnn, loop, rows)
    return {**row, "microseconds": times, "estimates": estimates, **right(place, step, rnn, its, loop)}


def timed(place: Place, rnn: sn.RNN, loop: ChosenLoop, rows: int) -> float | str:
    """Returns the microseconds of a step of the loop alone; the driver's reason if it refuses the loop."""
    steps = place.sized(STEPS, 3)
    x = np.random.default_rng(1).normal(size=(rows, steps, FEATURES)).astype("f4")
    try:
        return PlacedCall.of(rnn, place, x, [steps] * rows, loop).loop_seconds() / steps * 1e6
    except DeviceError as error:
        if getattr(place.device, "lost", ""):
            raise
        return f"refused: {error}"


def right(place: Place, step: str, rnn: sn.RNN, its: TensorSchedule, loop: ChosenLoop) -> dict[str, Any]:
    """Compares sequences of ten lengths with the truth, the bits of several runs, and a sequence alone.

    error: as a share of the tolerance of the numbers that are multiplied.
    """
    cell, width = step_of(step)
    lengths = place.sized(LENGTHS, LENGTHS[:4])
    x = np.random.default_rng(0).normal(size=(len(lengths), max(lengths), FEATURES)).astype("f4")
    placed = PlacedCall.of(rnn, place, x, lengths, loop)
    runs = [placed.results() for _ in range(place.sized(RUNS, 1))]
    alone = PlacedCall.of(rnn, place, x[:1], lengths[:1], loop).results()
    exact = exact_results(recurrence(cell, width, "float64"), x, lengths)
    error = error_of(runs[0], exact, max(lengths), 2 * width, DIGITS[its.numbers])
    bits = {b"".join(each.tobytes() for each in run) for run in runs}
    ends = runs[0][len(runs[0]) // 2 :], alone[len(alone) // 2 :]
    is_alike = all(np.array_equal(a[:1], b) for a, b in zip(*ends, strict=True))
    return {
        "error": error,
        "right": bool(error <= 1 and len(bits) == 1 and is_alike),
        "runs_alike": len(bits) == 1,
        "alone_alike": is_alike,
    }


def without_times(place: Place) -> Rows:
    """Yields the times of loops that leave their products out, beside the whole ones."""
    for step, word in place.sized(WITHOUT, WITHOUT_TRIAL):
        rnn = recurrence(*step_of(step))
        for its in (schedule(word), replace(schedule(word), without="products")):
            loop = loop_by(plan_of(rnn, place), its, place.device.facts, 16)[1]
            yield f"{step} {its.name}", {"microseconds": timed(place, rnn, loop, place.sized(16, 2))}


WITHOUT = (
    ("gru-128", "cluster8.parts4.ahead2"),
    ("gru-128", "tagged8.parts4.ahead2"),
    ("gru-64", "block1.parts4"),
)
WITHOUT_TRIAL = (("simple_rnn-16", "block1"),)
