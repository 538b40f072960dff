"""The choice among loops: estimates beside the times that were measured on an H100."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda.choice import loop_of
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.tensor.choice import chosen, refuse
from stepnet.compiler.targets.cuda.tensor.costs import H100, batch_time, facts_of, step_time
from stepnet.compiler.targets.cuda.tensor.registers import registers
from stepnet.compiler.targets.cuda.tensor.shape import TensorSchedule, TensorShape
from stepnet.compiler.targets.cuda.tensor.step import TensorStep
from tests.compiler.targets.cuda.tensor_loops import backward_plan, cell_plan

DEVICE = DeviceFacts("NVIDIA H100 80GB HBM3", (9, 0), 132, 232448, 65536, 16)
SAVED = Path(__file__).parents[4] / "bench" / "saved" / "gpu-h100.json"
WIDEST = 1024
"""The units of the widest step that was measured."""
WORDS = {"p": "parts", "c": "chains", "a": "ahead"}


@cache
def step_of(name: str) -> TensorStep:
    """The step of a kernel that was measured."""
    cell, width = name.removeprefix("backward ").split("-")
    make = backward_plan if name.startswith("backward ") else cell_plan
    return TensorStep.of(make(cell, int(width)))


def schedule_of(word: str, resident: int, alone: bool) -> TensorSchedule:
    """The schedule of a kernel that was measured, such as "cluster8-float32-p4-c3-a2-fast"."""
    first, numbers, *others = word.split("-")
    exchange = first.rstrip("0123456789")
    options: dict[str, Any] = {"exchange": "alone" if alone else exchange, "numbers": numbers}
    for other in others:
        if other == "fast":
            options["functions"] = other
        else:
            options[WORDS[other[0]]] = int(other[1:])
    return TensorSchedule(blocks=int(first[len(exchange) :]), resident=resident, **options)


@cache
def measured(widest: int = 128) -> dict[str, tuple[TensorShape, dict[str, Any]]]:
    """The kernels of steps of up to `widest` units that were timed whole, with what is saved of them."""
    stages, found = json.loads(SAVED.read_text())["stages"], dict[str, tuple[TensorShape, dict[str, Any]]]()
    for exchange in ("block", "grid", "tagged", "cluster"):
        for name, row in stages[f"steps, {exchange}"]["rows"].items():
            if name == "device" or "-no-" in name or int(row["step"].split("-")[1]) > widest:
                continue
            step = step_of(row["step"])
            schedule = schedule_of(row["schedule"], int(row["resident"].split()[0]), not step.lefts)
            found[name] = TensorShape(step, schedule), row
    return found


@pytest.mark.long
def test_kernels_have_the_sizes_of_those_that_were_measured(pytestconfig: pytest.Config):
    kernels = measured(WIDEST if pytestconfig.option.long else 128)
    assert len(kernels) > (180 if pytestconfig.option.long else 80)
    for name, (shape, row) in kernels.items():
        sizes = shape.threads, shape.shared_bytes, shape.operands
        assert sizes == (row["threads"], row["shared"], int(row["resident"].split()[2])), name


@pytest.mark.parametrize(("rows", "share"), [("1", 0.95), ("16", 0.97), ("64", 0.89)])
@pytest.mark.long
def test_estimates_are_near_the_times_that_were_measured(
    rows: str, share: float, pytestconfig: pytest.Config
):
    factors = dict[str, float]()
    for name, (shape, row) in measured(WIDEST if pytestconfig.option.long else 128).items():
        time = row["microseconds"].get(rows)
        if isinstance(time, float):
            needed = registers(shape, DEVICE)
            estimate = batch_time(shape, int(rows), DEVICE, facts_of(DEVICE), needed)
            factors[name] = max(estimate / time, time / estimate)
    worst = max(factors, key=lambda name: factors[name])
    near = sum(factor < 1.4 for factor in factors.values()) / len(factors)
    assert near >= share, f"{near:.0%} are near; the worst is {worst}, by {factors[worst]:.2f}"


@pytest.mark.long
def test_estimates_for_large_batches_are_near_too(pytestconfig: pytest.Config):
    kernels = measured(WIDEST if pytestconfig.option.long else 128)
    rows = json.loads(SAVED.read_text())["stages"]["large batches"]["rows"]
    for name, (shape, _) in kernels.items():
        times = rows[name]["microseconds"] if name in rows else {}
        for count, time in times.items():
            estimate = batch_time(shape, int(count), DEVICE, H100, registers(shape, DEVICE))
            assert max(estimate / time, time / estimate) < 1.6, f"{name}, {count} sequences: {estimate}"


@pytest.mark.parametrize(
    ("make", "rows", "numbers", "first"),
    [
        (lambda: cell_plan("gru", 32), 16, "float32", "block1"),
        (lambda: cell_plan("gru", 128), 16, "float32", "tagged8"),
        (lambda: cell_plan("gru", 512), 16, "float32", "tagged32"),
        (lambda: cell_plan("gru", 64), 1024, "float32", "block1"),
        (lambda: cell_plan("lstm", 1024), 1, "bfloat16", "tagged64"),
        (lambda: cell_plan("rg_lru", 256), 16, "float32", "alone"),
    ],
)
def test_the_fastest_schedule_is_chosen(make: Callable[[], Plan], rows: int, numbers: Any, first: str):
    best, *others = chosen(make(), rows, DEVICE, numbers)
    assert best.shape.schedule.name.startswith(first), best.reason
    assert best.microseconds <= min(other.microseconds for other in others)
    assert best.is_measured


def test_a_choice_says_its_time_and_what_bounds_it():
    best = chosen(cell_plan("gru", 512), 16, DEVICE)[0]
    assert best.reason.startswith("tagged32-float32-p4-c3-a2: ")
    assert best.reason.endswith(" us for a step, most of it products")
    assert best.groups == 4
    other = DeviceFacts("NVIDIA L40S", (8, 9), 142, 101376)
    assert chosen(cell_plan("gru", 64), 16, other)[0].reason.endswith(", by facts of another GPU")


def test_each_part_of_the_time_of_a_step_is_counted():
    shape, _ = measured()["gru-128-tagged8-float32-p4-c3-a2"]
    time = step_time(shape, H100)
    parts = time.loop, time.products, time.elementwise, time.exchange, time.reads
    assert time.total == pytest.approx(sum(parts))
    assert all(part > 0 for part in parts[:4])
    assert time.reads == 0
    slower = step_time(shape, H100.slower(2))
    assert slower.products == pytest.approx(2 * time.products)


def test_turns_of_groups_take_their_time():
    shape, _ = measured()["gru-128-tagged8-float32-p4-c3-a2"]
    one, many = (batch_time(shape, rows, DEVICE, H100, 248) for rows in (128, 1280))
    assert many == pytest.approx(10 * one)


def test_a_device_without_clusters_or_much_memory_gets_what_fits():
    small = DeviceFacts("NVIDIA A100", (8, 0), 108, 166912)
    found = chosen(cell_plan("gru", 256), 16, small)
    assert found
    assert all(each.shape.schedule.exchange != "cluster" for each in found)
    assert all(each.shape.shared_bytes <= small.shared for each in found)
    cluster = TensorSchedule(2, "cluster")
    assert refuse(cell_plan("gru", 32), cluster, small) == "a cluster has at most 1 blocks here"


def test_the_engine_takes_tensor_cores_where_they_are_faster():
    assert "tensor cores" in loop_of(cell_plan("gru", 64), 16, DEVICE).loop.schedule
    assert "tensor cores" not in loop_of(cell_plan("gru", 2048), 16, DEVICE).loop.schedule
