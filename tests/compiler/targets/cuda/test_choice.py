"""The choice among loops: estimates beside the times that were measured on an H100."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from bench.gpu.calibrate import Measured, of_file
from bench.gpu.calibrate import measured as loops_of
from bench.gpu.cells import recurrence
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda import (
    H100,
    CudaOptions,
    DeviceFacts,
    TensorSchedule,
    TensorShape,
    batch_time,
    chosen,
    facts_of,
    grid_form,
    loop_of,
    refuse,
    registers,
    step_time,
)
from stepnet.compiler.targets.cuda.tensor.costs import read_bytes
from tests.compiler.targets.cuda.tensor_loops import DEVICE, backward_plan, cell_plan

SAVED = Path(__file__).parents[4] / "bench" / "saved" / "gpu-h100.json"
OF_TARGET = SAVED.with_name("gpu-target-h100.json")
GRID = re.compile(r"(\d+) blocks of \d+ threads for (\d+) sequences")
NEAR = 1.3
"""The most by which an estimate may differ from the time, as a factor."""
WIDEST = 1024
"""The units of the widest step that was measured."""


@cache
def measured(widest: int = 128) -> list[Measured]:
    """The kernels of steps of up to `widest` units that were timed whole, with what is saved of them."""
    return [*loops_of(of_file(SAVED), widest)]


def shape_of(name: str) -> TensorShape:
    """The kernel that was measured by this name."""
    return next(each.shape for each in measured() if each.name == name)


@pytest.mark.long
def test_kernels_have_the_sizes_of_those_that_were_measured(pytestconfig: pytest.Config):
    kernels = measured(WIDEST if pytestconfig.option.long else 128)
    assert len(kernels) > (170 if pytestconfig.option.long else 75)
    for each in kernels:
        sizes, row = (each.shape.threads, each.shape.shared_bytes, each.shape.operands), each.row
        assert sizes == (row["threads"], row["shared"], int(row["resident"].split()[2])), each.name


@pytest.mark.parametrize(("rows", "share"), [("1", 0.95), ("16", 0.97), ("64", 0.89)])
@pytest.mark.long
def test_estimates_are_near_the_times_that_were_measured(
    rows: str, share: float, pytestconfig: pytest.Config
):
    factors = dict[str, float]()
    for each in measured(WIDEST if pytestconfig.option.long else 128):
        time = each.row["microseconds"].get(rows)
        if isinstance(time, float):
            needed = registers(each.shape, DEVICE)
            estimate = batch_time(each.shape, int(rows), DEVICE, facts_of(DEVICE), needed)
            factors[each.name] = max(estimate / time, time / estimate)
    worst = max(factors, key=lambda name: factors[name])
    near = sum(factor < 1.4 for factor in factors.values()) / len(factors)
    assert near >= share, f"{near:.0%} are near; the worst is {worst}, by {factors[worst]:.2f}"


@pytest.mark.long
def test_estimates_for_large_batches_are_near_too(pytestconfig: pytest.Config):
    kernels = measured(WIDEST if pytestconfig.option.long else 128)
    rows = json.loads(SAVED.read_text())["stages"]["large batches"]["rows"]
    for each in kernels:
        times = rows[each.name]["microseconds"] if each.name in rows else {}
        for count, time in times.items():
            estimate = batch_time(each.shape, int(count), DEVICE, H100, registers(each.shape, DEVICE))
            assert max(estimate / time, time / estimate) < 1.6, f"{each.name}, {count} sequences: {estimate}"


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("make", "rows", "numbers", "first"),
    [
        (lambda: cell_plan("gru", 32), 16, "float32", "plain1"),
        (lambda: cell_plan("gru", 128), 16, "float32", "plain1"),
        (lambda: cell_plan("gru", 256), 16, "float32", "tagged16"),
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
    shape = shape_of("gru-128-tagged8-float32-p4-c3-a2")
    time = step_time(shape, H100)
    parts = time.loop, time.products, time.elementwise, time.exchange, time.reads
    assert time.total == pytest.approx(sum(parts))
    assert all(part > 0 for part in parts[:4])
    assert time.reads == 0
    slower = step_time(shape, H100.slower(2))
    assert slower.products == pytest.approx(2 * time.products)


def test_turns_of_groups_take_their_time():
    shape = shape_of("gru-128-tagged8-float32-p4-c3-a2")
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
    assert "tensor cores" in loop_of(cell_plan("gru", 256), 16, DEVICE).loop.schedule
    assert "plain units" in loop_of(cell_plan("gru", 128), 16, DEVICE).loop.schedule
    wide = loop_of(cell_plan("gru", 2048), 16, DEVICE)
    assert "products alone on tensor cores, float32: it does not fit" in wide.reason
    assert "products on tensor cores, float32" in wide.loop.schedule


class SharedLoop(NamedTuple):
    """A loop that was measured: its case, the sequences of a group of blocks, and microseconds of a step."""

    name: str
    width: int
    rows: int
    group_rows: int
    blocks: int
    microseconds: float


def shared_loops() -> Iterator[SharedLoop]:
    """Yields the loops of blocks without tensor cores among what is saved."""
    for row in json.loads(OF_TARGET.read_text())["loops"]:
        shared = GRID.match(row["schedule"])
        if shared:
            case, rows = row["case"].split(" x ")
            name, width = case.rsplit("-", 1)
            yield SharedLoop(name, int(width), int(rows), int(shared[2]), int(shared[1]), row["loop_us"])


@cache
def plan_of(name: str, width: int) -> Plan:
    """The plan of a measured recurrence, as it was: a layer norm took a mean in each step."""
    return recurrence(name, width).plan


@pytest.mark.parametrize("row", [*shared_loops()], ids=lambda row: f"{row.name}-{row.width} x {row.rows}")
def test_estimates_of_loops_that_blocks_share_are_near_the_times_too(row: SharedLoop):
    form = grid_form(plan_of(row.name, row.width), row.group_rows, DEVICE)
    assert form is not None
    assert form.share.blocks == row.blocks
    at_once = DEVICE.multiprocessors // form.share.blocks
    estimate = ceil(ceil(row.rows / row.group_rows) / at_once) * form.microseconds
    factor = max(estimate / row.microseconds, row.microseconds / estimate)
    assert factor < NEAR, f"{estimate:.2f} us are expected, and {row.microseconds} were measured"


def test_all_of_these_loops_are_compared():
    cases = {f"{row.name}-{row.width} x {row.rows}" for row in shared_loops()}
    names = "gru-1024", "lstm-1024", "layer_normed-256"
    assert cases == {f"{name} x {rows}" for name in names for rows in (1, 16, 64)}


@pytest.mark.parametrize(
    ("name", "width", "first"),
    [
        ("gru", 1024, "tagged64-float32-p8"),
        ("lstm", 1024, "tagged64-float32-p8"),
        ("backward gru", 1024, "tagged64-float32-p8"),
        ("backward lstm", 512, "tagged32-float32-p4"),
    ],
)
def test_wide_recurrences_fit_an_h100(name: str, width: int, first: str):
    make = backward_plan if name.startswith("backward ") else cell_plan
    plan = make(name.removeprefix("backward "), width)
    assert loop_of(plan, 16, DEVICE).reason.startswith(first)


def test_reading_weights_bounds_the_time_of_a_step():
    shape = chosen(cell_plan("lstm", 1024), 16, DEVICE)[0].shape
    assert read_bytes(shape) == shape.away * 256 * 16 + 16 * 8 * 8 * 32
    slow = replace(H100, shared=1e3 * H100.shared)
    assert step_time(shape, slow).products == pytest.approx(read_bytes(shape) * slow.shared)
    assert step_time(shape, H100).products > read_bytes(shape) * H100.shared


def test_a_loop_beside_another_has_fewer_blocks_and_the_same_order_of_sums():
    plan, options = cell_plan("gru", 128), CudaOptions("tf32")
    alone, beside = (loop_of(plan, 128, DEVICE, options, share=share) for share in (1, 2))
    assert alone.reason.startswith("tagged8-tf32-p4-c1")
    assert beside.reason.startswith("tagged4-tf32-p4-c1")
    alone, beside = (loop_of(cell_plan("gru", 64), 128, DEVICE, share=share) for share in (1, 4))
    assert alone.reason.startswith("plain1-float32")
    assert beside.reason.startswith("plain2-float32")


def test_a_block_runs_one_sequence_of_many_elements_while_blocks_are_left() -> None:
    """A memory that is a matrix then lies in shared memory."""
    rnn = recurrence("matrix_memory", 64)
    loops = [loop_of(rnn.plan, rows, DEVICE).loop for rows in (16, 2000)]
    assert [loop.group_rows for loop in loops] == [1, 4]
    assert loops[0].scratch == 0 < loops[1].scratch
    small = recurrence("matrix_memory", 8)
    assert loop_of(small.plan, 16, DEVICE, flag=0).loop.group_rows == 4
    x = np.random.default_rng(1).normal(size=(3, 4, 12)).astype("f4")
    (outputs, final), (expected, last) = (rnn(x, engine=name) for name in ("cuda-emulated", "interpret"))
    assert_close(outputs, expected, 4, 64)
    assert_close(final, last, 4, 64)


@pytest.mark.parametrize(
    ("units", "dtype", "rows", "is_invariant", "by_steps"),
    [
        (4096, "float32", 1, False, False),
        (4096, "float32", 256, False, True),
        (4096, "float32", 256, True, False),  # as for 16 sequences
        (512, "float64", 1, True, True),
        (128, "float64", 16, False, False),
    ],
)
def test_steps_of_wide_recurrences_are_given_one_by_one(
    units: int, dtype: str, rows: int, is_invariant: bool, by_steps: bool
) -> None:
    """Where one launch would read the weights again for each few sequences."""

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x + h @ p)
        return h, h

    params = np.zeros((units, units), dtype)
    rnn = sn.RNN(step, params, memory=sn.Spec(units, dtype), inputs=sn.Spec(units, dtype))
    loop = loop_of(rnn.plan, rows, DEVICE, CudaOptions(batch_invariant=is_invariant))
    assert loop.by_steps == by_steps


@pytest.mark.parametrize(
    ("name", "capability", "clock", "memory"),
    [
        ("NVIDIA H200", (9, 0), 1980, 4.8),
        ("NVIDIA GH200 480GB", (9, 0), 1980, 4.0),
        ("NVIDIA H100 PCIe", (9, 0), 1755, 2.0),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 1410, 1.555),
        ("NVIDIA A100 80GB PCIe", (8, 0), 1410, 1.935),
        ("NVIDIA A10G", (8, 6), 1695, 0.6),
        ("NVIDIA L4", (8, 9), 2040, 0.3),
        ("NVIDIA L40S", (8, 9), 2490, 0.864),
        ("NVIDIA GB200", (10, 0), 1965, 8.0),  # no row of its own: as a B200
        ("NVIDIA RTX A4000", (8, 6), 1695, 0.936),  # nor this one, which is no A40: as the first of 8.6
        ("NVIDIA Thor", (11, 0), 1965, 8.0),
    ],
)
def test_devices_have_the_clocks_and_the_memory_of_their_data_sheets(
    name: str, capability: tuple[int, int], clock: int, memory: float
) -> None:
    facts = facts_of(DeviceFacts(name, capability, 100, 101376))
    assert not facts.is_measured
    assert facts.slowness == pytest.approx(1980 / clock)
    assert facts.main == pytest.approx(3.35 / memory / 2.6e6)
    assert facts_of(DEVICE) is H100


def test_reads_of_weights_take_the_time_of_the_devices_memory() -> None:
    """A group of blocks that reads weights at each step, and products of steps that the host gives."""
    h200 = replace(DEVICE, name="NVIDIA H200")
    units, products = cell_plan("gru", 4096), recurrence("gru", 512, "float64").plan
    for plan, rows in ((units, 16), (products, 16)):
        old, new = (loop_of(plan, rows, device).microseconds for device in (DEVICE, h200))
        assert 3.35 / 4.8 * old < new < 0.97 * old
