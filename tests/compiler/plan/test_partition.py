"""The sharing of a call between threads: the costs, the choice, and its description by `explain`."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callers import threads
from planned import plan
from wide_machine import MACHINE, PROCESSOR, call, load

import stepnet as sn
from stepnet import cells
from stepnet.compiler.grad import halves, vjp
from stepnet.compiler.net import CONST
from stepnet.compiler.plan import CallPartition, CallSize, Load, Machine, Partition, runs_of, waves_of
from stepnet.compiler.plan.load import InnerStepWork, StageLoad
from stepnet.compiler.plan.partition import at_once, duration, partition
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.targets.cpu import LlvmEngine, adapt_machine, caches, table_machine
from stepnet.compiler.targets.cpu.running import native
from stepnet.compiler.targets.cpu.running.sequence_layout import rounded
from stepnet.errors import InputError

ZEN4 = adapt_machine(MACHINE, {1: 2**15, 2: 2**20, 3: 2**25}, 32)
TUNED = replace(
    ZEN4,
    reads=(723e9, 131e9, 102e9, 10e9),
    rate=230e9,
    flops=47e9,
    cycle=0.27e-9,
    step=0.015e-6,
    sequence=0.14e-6,
    barrier=0.14e-6,
    handover=1.0e-6,
    exchange=4.9e9,
)
LATER = replace(
    ZEN4,
    caches=(2**15, 2**20, 2**24),
    reads=(373e9, 131e9, 101e9, 33e9),
    rate=230e9,
    flops=46e9,
    cycle=0.27e-9,
    step=0.015e-6,
    sequence=0.13e-6,
    barrier=0.12e-6,
    handover=0.73e-6,
    exchange=7.3e9,
)
"""A Zen 4 by the table, and by the rates that `stepnet tune` found on one, in two hours."""
MESH = adapt_machine(MACHINE, {1: 48 * 2**10, 2: 2**21, 3: 2**28}, 64)
"""A virtual machine on a server whose cores have one third-level cache."""

# ---- one recurrence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "hidden", "rows", "how"),
    [  # each is the best by a tenth or more, as bench/partition.py measured
        ("gru", 64, 2, "rows"),
        ("gru", 64, 6, "rows"),
        ("gru", 128, 1, "units"),
        ("gru", 128, 3, "units"),
        ("gru", 128, 4, "units"),
        ("gru", 256, 1, "units"),
        ("gru", 256, 4, "units"),
        ("gru", 512, 3, "units"),
        ("lstm", 64, 4, "rows"),
        ("lstm", 128, 3, "units"),
        ("lstm", 256, 2, "units"),
        ("lstm", 256, 6, "units"),
        ("lstm", 512, 4, "units"),
    ],
)
def test_the_way_that_was_measured_to_be_the_best_is_chosen(cell: str, hidden: int, rows: int, how: str):
    chosen = partition(load(cell, hidden), call(rows), 2, MACHINE).chosen
    assert (chosen.how, chosen.threads) == (how, 2)


@pytest.mark.parametrize("machine", [ZEN4, TUNED], ids=["table", "measured"])
@pytest.mark.parametrize(
    ("cell", "hidden", "rows", "steps", "how"),
    [  # each is the best by a tenth or more there; the table of Zen 5 chose another way
        ("gru", 9, 7, 71, "rows"),
        ("lstm", 19, 2, 52, "rows"),
        ("gru", 30, 3, 12, "rows"),
        ("lstm", 72, 1, 11, "units"),
        ("gru", 155, 18, 57, "units"),
        ("gru", 673, 53, 4, "units"),
        ("gru", 746, 22, 4, "units"),
    ],
)
def test_the_way_that_was_measured_to_be_the_best_on_a_zen_4_is_chosen(
    machine: Machine, cell: str, hidden: int, rows: int, steps: int, how: str
):
    assert partition(load(cell, hidden), call(rows, steps), 2, machine).chosen.how == how


@pytest.mark.parametrize("machine", [ZEN4, LATER], ids=["table", "measured"])
@pytest.mark.parametrize(
    ("cell", "hidden", "rows", "steps", "how"),
    [  # each is the best by 2 to 10% in a long call there, and by a sixth to a third in those of few steps
        ("gru", 512, 64, 100, "rows"),
        ("lstm", 512, 64, 100, "rows"),
        ("gru", 1024, 64, 100, "rows"),
        ("gru", 1024, 16, 100, "units"),
        ("lstm", 185, 19, 38, "rows"),
        ("lstm", 214, 8, 40, "rows"),
        ("lstm", 468, 20, 5, "units"),
        ("lstm", 619, 35, 4, "units"),
    ],
)
def test_many_rows_of_large_parameters_are_shared_as_measured_on_a_zen_4(
    machine: Machine, cell: str, hidden: int, rows: int, steps: int, how: str
):
    assert partition(load(cell, hidden), call(rows, steps), 2, machine).chosen.how == how


@pytest.mark.parametrize(
    ("cell", "hidden", "rows", "how"),
    [
        ("lstm", 1024, 64, "units"),
        ("gru", 512, 64, "units"),
        ("lstm", 256, 64, "rows"),
        ("gru", 64, 64, "rows"),
    ],
)
def test_many_rows_of_large_parameters_are_shared_by_units_of_which_late_threads_leave_some(
    cell: str, hidden: int, rows: int, how: str
):
    """By rows they take as long where all threads are equally fast, and longer where one is slower."""
    assert partition(load(cell, hidden), call(rows), 2, MESH).chosen.how == how
    even = partition(load(cell, hidden), call(rows), 2, replace(MESH, uneven=1e-9)).weighed
    assert min(even, key=lambda way: way.seconds).how == "rows"


def test_what_one_thread_does_is_shared_with_none():
    """Neither where one alone is asked for, nor where there is next to nothing to do, nor no step at all."""
    for size, most in ((call(8), 1), (call(2, 1), 4), (CallSize(0, 0, 0), 4)):
        chosen = partition(load("gru", 16), size, most, MACHINE).chosen
        assert (chosen.how, chosen.sets, chosen.threads_per_step) == ("alone", 1, 1)


def test_a_thread_has_at_least_one_sequence():
    ways = partition(load("gru", 64), call(3), 8, MACHINE).weighed
    assert [way.threads for way in ways if way.how == "rows"] == [2]
    assert [way.threads for way in ways if way.how == "units"] == [2, 4, 8]


def test_elementwise_work_is_shared_by_rows_alone():
    """Threads that share a step share its products; those without any have sequences of their own."""
    elementwise = Load(StageLoad((), 2000, 1), StageLoad((), 0, 0))
    assert {way.how for way in partition(elementwise, call(8), 2, MACHINE).weighed} == {"alone", "rows"}
    assert partition(elementwise, call(8), 2, MACHINE).chosen.how == "rows"


def test_the_steps_of_one_sequence_are_shared_where_none_depends_on_another():
    work = load("gru", 128).others
    plain = Load(StageLoad((), 0, 0), work)
    assert {way.how for way in partition(plain, call(1), 2, MACHINE).weighed} == {"alone", "steps"}
    chosen = partition(plain, call(1), 2, MACHINE).chosen
    assert (chosen.how, chosen.parts, chosen.sets, chosen.threads_per_step) == ("steps", 2, 1, 1)
    assert str(chosen) == "2 threads share the steps"
    halves = plain.seconds(call(1), 1, 2, MACHINE) - MACHINE.handover
    assert 0.45 < halves / plain.seconds(call(1), 1, 1, MACHINE) < 0.6
    assert partition(plain, call(1, 1), 2, MACHINE).chosen.how == "alone"


def test_a_slow_barrier_or_handover_leaves_the_work_to_one_thread():
    gru = load("gru", 128)
    assert partition(gru, call(1), 2, MACHINE).chosen.how == "units"
    assert partition(gru, call(1), 2, replace(MACHINE, barrier=2e-6)).chosen.how == "alone"
    assert partition(gru, call(4), 2, replace(MACHINE, handover=1e-2)).chosen.how == "alone"


def test_threads_that_exchange_values_slowly_share_no_step():
    """Each reads the units that the other has computed: 16 rows of 64 of 128 units, 4 KB per step."""
    gru, size = load("gru", 128), call(16)
    assert gru.loop.exchanged == 4 * 128
    times = {}
    for rate in (1e8, 1e12):
        ways = partition(gru, size, 2, replace(MACHINE, exchange=rate)).weighed
        times[rate] = {way.how: way.seconds for way in ways}
    slow, fast = times[1e8], times[1e12]
    exchanged = 100 * 4096 / 1e8 * (1 + MACHINE.uneven)
    assert slow["units"] - fast["units"] == pytest.approx(exchanged, rel=0.01)
    assert (slow["alone"], slow["rows"]) == (fast["alone"], fast["rows"])
    few = [partition(gru, call(4), 2, replace(MACHINE, exchange=rate)).chosen.how for rate in (1e8, 1e12)]
    assert few == ["rows", "units"]


@cache
def gradient_load(cell: str, hidden: int) -> Load:
    net = cells.rnn(cell, cells.CELLS[cell].parameters(hidden, hidden)).net
    return LlvmEngine(PROCESSOR).load(plan(halves(vjp(net), len(net.inputs), len(net.results)).backward))


@pytest.mark.parametrize(("cell", "gates"), [("gru", 3), ("lstm", 4)])
def test_threads_that_share_a_step_of_a_gradient_exchange_the_cotangents_of_gates(cell: str, gates: int):
    """They lie in an array of the call, as contracts read them after the loop; the units of all threads are
    multiplied by the transposed weights.
    """
    backward = gradient_load(cell, 256)
    assert (backward.loop.exchanged, backward.others.exchanged) == (4 * gates * 256, 0)
    machine = replace(MACHINE, caches=(48 * 2**10, 2**21, 2**28))
    assert {partition(backward, call(rows), 2, machine).chosen.how for rows in (16, 64)} == {"rows"}


def test_a_thread_that_computes_all_units_waits_for_none():
    """The 4 blocks of a GRU of 64 units are one group, which one thread computes."""
    way = partition(load("gru", 64), call(4), 2, MACHINE).weighed[-1]
    slow = partition(load("gru", 64), call(4), 2, replace(MACHINE, exchange=1e6)).weighed[-1]
    assert (way.how, way.blocks, slow.seconds) == ("units", (4,), way.seconds)
    alone, fast = replace(MACHINE, flops=1e8), replace(MACHINE, flops=1e20)
    times = [load("gru", 64).loop.seconds(4, threads, each) for threads in (1, 2) for each in (alone, fast)]
    assert times[0] - times[1] == times[2] - times[3], "its elementwise work is not divided either"


@pytest.mark.parametrize(("part", "how"), [(0.93, "units"), (0.97, "alone")])
def test_a_gain_of_less_than_a_twentieth_is_not_worth_a_thread(part: float, how: str):
    alone, units = partition(load("gru", 128), call(1), 2, MACHINE).weighed
    slower = replace(MACHINE, handover=MACHINE.handover + part * alone.seconds - units.seconds)
    assert partition(load("gru", 128), call(1), 2, slower).chosen.how == how


def test_threads_share_parameters_that_only_their_caches_together_hold():
    """With a large cache of its own, each thread reads all of them as fast, and needs no barrier."""
    lstm, size = load("lstm", 256), call(12)
    small = replace(MACHINE, caches=(2**14, 2**18, 2**22), reads=(700e9, 170e9, 40e9, 10e9))
    large = replace(MACHINE, caches=(2**14, 2**26, 2**26))
    assert partition(lstm, size, 2, small).chosen.how == "units"
    assert partition(lstm, size, 2, large).chosen.how == "rows"


def test_the_thread_with_most_unit_blocks_counts():
    """The 4 blocks of an LSTM are shared by twos, 5 one by one, and 16 by fours."""
    by_units = [partition(load("lstm", units), call(1), 2, MACHINE).weighed[-1] for units in (64, 80, 256)]
    assert [way.blocks for way in by_units] == [(2,), (3,), (8,)]


def test_more_rows_take_further_large_tiles():
    """The rows left over cost as many alone: 27 of a GRU are 3 tiles of 8 rows, and one of 4 for 3 rows."""
    (product,) = load("gru", 256).loop.products
    assert len(product.costs) == 17
    assert [product.cost(rows) for rows in (18, 26.5)] == [16 + product.costs[2], 24 + product.costs[3]]
    assert [product.cost(rows) for rows in (0, 5, 16, 64)] == [0, product.costs[5], 16, 64]


def test_threads_with_sequences_of_their_own_begin_and_end_these_alone():
    times = {}
    for each in (1e-9, 1e-6):
        ways = partition(load("gru", 64), call(5), 2, replace(MACHINE, sequence=each)).weighed
        times[each] = {way.how: way.seconds for way in ways}
    more = {how: times[1e-6][how] - times[1e-9][how] for how in times[1e-6]}
    assert more == pytest.approx(
        {
            "alone": 5 * 0.999e-6,
            "rows": 3 * 0.999e-6 * (1 + MACHINE.uneven),
            "units": 5 * 0.999e-6 * (1 + MACHINE.uneven),
        }
    )


@pytest.mark.parametrize("hidden", [155, 160])
def test_what_threads_exchange_ahead_of_the_loop_is_there_in_time(hidden: int):
    """Inputs of 155 units fill no whole vectors, so each thread copies some rows of all steps of a block."""
    gru = load("gru", hidden)
    assert (gru.loop.exchanged, gru.others.exchanged) == (4 * hidden, 0)


def test_a_ragged_call_costs_its_steps():
    gru = load("gru", 64)
    full, ragged = (partition(gru, size, 2, MACHINE).chosen for size in (call(64), CallSize(64, 100, 3200)))
    assert 0.4 < ragged.seconds / full.seconds < 0.75


def test_sizes_are_rounded_so_that_few_are_weighed():
    assert rounded(3, 100, 250) == CallSize(3, 112, 288)  # 84 steps each, as 96
    assert rounded(17, 100, 1700) == CallSize(20, 112, 20 * 112)
    assert rounded(64, 500, 5130) == CallSize(64, 512, 64 * 96)
    assert rounded(5, 1, 5) == CallSize(5, 1, 5)
    assert rounded(0, 0, 0) == CallSize(0, 0, 0)
    for filled, longest, steps in ((3, 7, 9), (40, 1000, 1039), (64, 33, 64 * 33)):
        size = rounded(filled, longest, steps)
        assert size.longest <= size.steps <= size.filled * size.longest


def test_parameters_that_are_larger_than_a_cache_are_in_part_read_from_it():
    """Half of the cache has what the step before read last, with which the next one begins."""
    cache, third = MACHINE.caches[1], MACHINE.reads[2]
    for size in (2 * cache, 4 * cache):
        held = cache / 2
        expected = held / MACHINE.reads[1] + (size - held) / third
        assert MACHINE.reading(size) == pytest.approx(expected, rel=0.01)
    assert MACHINE.reading(0) == 0.0


def test_threads_with_parameters_of_their_own_share_the_last_cache():
    """Two threads keep half as much of it each: the rest comes from memory."""
    size = 2 * MACHINE.caches[2]
    later = 1 / MACHINE.reads[3] - 1 / MACHINE.reads[2]
    more = MACHINE.reading(size, 2) - MACHINE.reading(size)
    assert more == pytest.approx(MACHINE.caches[2] / 4 * later, rel=0.05)


def test_threads_that_all_read_the_same_parameters_find_less_of_them_in_the_last_cache():
    """Each has half of that half of it which they share; and memory has what two threads leave there."""
    size = MACHINE.caches[2] / 2
    assert MACHINE.places(size)[-1] == pytest.approx(0)
    second, third = 0.5 * MACHINE.caches[1] / size, 0.5 * MACHINE.caches[2] / 4 / size
    assert MACHINE.places(size, sets=2)[-1] == pytest.approx((1 - second) * (1 - third))
    assert sum(MACHINE.places(size, others=size, sets=2)) == pytest.approx(1)


def test_blocks_of_threads_with_sequences_of_their_own_wait_for_their_first_parameters():
    """Both stages of a GRU of 1,024 units, 25 MB, leave the cache between two blocks of steps."""
    gru, slow = load("gru", 1024), 1e9
    small = replace(MACHINE, reads=(*MACHINE.reads[:3], slow), rate=1e6, overlap=50)
    fast = replace(small, reads=MACHINE.reads)
    ways, size = ((1, 1), (2, 1)), call(2, 1)
    more = [gru.seconds(size, *how, small) - gru.seconds(size, *how, fast) for how in ways]
    far = MACHINE.places(gru.loop.weights, others=gru.others.weights, sets=2)[-1]
    read = far * (gru.loop.weights + gru.others.weights) * (1 / slow - 1 / MACHINE.reads[3])
    assert more == pytest.approx([0, read * (1 + MACHINE.uneven)])


def test_threads_that_claim_blocks_wait_for_half_of_the_last_one():
    """A GRU of 512 units has 32. 4 rows of 128 units are too little work to claim; one thread never waits."""
    loop = load("gru", 512).loop
    block = loop.weights / 32 * 64 / MACHINE.rate
    assert loop.waiting(64, 2, MACHINE) == pytest.approx(block / 2)
    assert (loop.waiting(64, 1, MACHINE), load("gru", 128).loop.waiting(4, 2, MACHINE)) == (0, 0)
    slow = replace(MACHINE, rate=MACHINE.rate / 1000, uneven=1e-9)
    alone, _, units = partition(load("gru", 512), call(64), 2, slow).weighed
    assert units.seconds / alone.seconds == pytest.approx(0.5 + 0.5 / 64, rel=0.001)


def test_a_partition_says_what_was_weighed():
    ways = (
        CallPartition("alone", 1, 66e-6),
        CallPartition("rows", 2, 1.2e-3),
        CallPartition("units", 2, 41e-6, (3, 4), 2),
    )
    assert str(Partition(ways[2], ways)) == (
        "2 threads share the units (up to 3, 4 blocks each), 2 barriers per step: 41 us predicted\n"
        "  not one thread: 66 us\n"
        "  not 2 threads with sequences of their own: 1.2 ms"
    )
    with pytest.raises(AssertionError, match="none of those weighed"):
        Partition(ways[2], ways[:2])


def test_calls_are_shared_as_their_partition_says(monkeypatch: pytest.MonkeyPatch):
    seen: list[Partition] = []

    def noted(*arguments: object) -> Partition:
        seen.append(partition(*arguments))  # pyright: ignore[reportArgumentType]
        return seen[-1]

    monkeypatch.setattr(native, "partition", noted)
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(8, 16))
    for _ in range(3):
        rnn(np.zeros((4, 100, 8), "f4"))
    rnn(np.zeros((4, 110, 8), "f4"))  # rounded, of the same size
    assert [way.weighed[0].seconds for way in seen] == [seen[0].weighed[0].seconds]


# ---- recurrences that do not depend on each other ----------------------------------------------------------


@pytest.mark.parametrize("hidden", [64, 128])
@pytest.mark.parametrize("rows", [1, 3])
def test_two_directions_run_at_the_same_time_on_two_threads(hidden: int, rows: int):
    decided = at_once([load("gru", hidden)] * 2, [call(rows, 30)] * 2, 2, MACHINE)
    assert decided.order == (0, 1)
    assert [way.how for way in decided.ways] == ["alone", "alone"]


def test_parameters_that_only_several_threads_have_in_their_caches_are_shared():
    """Both directions of an LSTM of 256 units: 1.0 ms one after the other, 1.4 at the same time."""
    decided = at_once([load("lstm", 256)] * 2, [call(1)] * 2, 2, MACHINE)
    assert decided.order is None
    assert [way.how for way in decided.ways] == ["units", "units"]
    large = replace(MACHINE, caches=(2**14, 2**26, 2**26))
    assert at_once([load("lstm", 256)] * 2, [call(1)] * 2, 2, large).order is not None


def test_parameters_outside_the_loop_are_read_once_for_a_block_of_steps():
    """A call of one row of 4,096 units pauses after 8 steps."""
    seven, eight, nine = (load("gru", 4096).seconds(call(1, steps), 1, 1, MACHINE) for steps in (7, 8, 9))
    assert nine - eight > 1.5 * (eight - seven)


def test_a_step_of_a_stream_finds_in_a_cache_what_both_stages_leave_there():
    """1 MB of parameters of a step and as many of the inputs, which a long call reads once for many steps."""
    machine = replace(MACHINE, caches=(48 * 2**10, 2**21, 2**28))

    def share(hidden: int) -> float:
        """The time of a step of a stream, as a share of that of its stages, each alone in the caches."""
        lstm = load("lstm", hidden)
        alone = sum(stage.seconds(1, 1, machine) for stage in (lstm.loop, lstm.others))
        return (lstm.seconds(call(1, 1), 1, 1, machine) - machine.step - machine.sequence) / alone

    assert share(256) > 1.2
    assert share(64) == pytest.approx(1, abs=0.1)


def test_threads_that_would_have_nothing_to_do_are_used():
    """Three recurrences of many sequences on two threads: one thread would run two of them."""
    gru = load("gru", 128)
    assert at_once([gru] * 3, [call(64, 30)] * 3, 2, MACHINE).order is None


def test_next_to_no_work_is_not_handed_over():
    assert at_once([load("gru", 4)] * 2, [call(1, 2)] * 2, 2, MACHINE).order is None
    assert at_once([load("gru", 128)] * 2, [call(1)] * 2, 1, MACHINE).order is None


def test_the_longest_is_taken_first():
    loads = [load("gru", hidden) for hidden in (64, 256, 128)]
    assert at_once(loads, [call(1, 50)] * 3, 3, replace(MACHINE, barrier=1e-5)).order == (1, 2, 0)


def test_both_directions_say_what_was_weighed():
    decided = at_once([load("gru", 64)] * 2, [call(1)] * 2, 2, MACHINE)
    times = duration(decided.seconds), duration(decided.in_turn)
    assert str(decided) == (
        f"at the same time, a thread for each: {times[0]} predicted\n  not one after the other: {times[1]}"
    )


def test_waves_and_runs_of_parts():
    def part(reads: tuple[int, ...], *results: int) -> Part:
        return Part("recurrence", reads, results)

    parts = [part((0, -1), 1, -1), part((0,), 2), part((1, -1), 3), part((2, 3), 4), part((0,), 5)]
    assert waves_of(parts) == ((0, 1, 4), (2,), (3,))
    assert runs_of(parts, lambda place: place != 2) == [(0, 1), (2,), (3, 4)]


# ---- facts of the machine ----------------------------------------------------------------------------------


def fake_caches(root: Path, *entries: tuple[str, str, str]) -> str:
    for number, (level, kind, size) in enumerate(entries):
        folder = root / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            folder.joinpath(name).write_text(text + "\n")
    return str(root)


def test_caches_are_those_of_the_machine(tmp_path: Path):
    entries = (
        ("1", "Data", "32K"),
        ("1", "Instruction", "64K"),
        ("2", "Unified", "512K"),
        ("3", "Unified", "8M"),
    )
    assert caches(fake_caches(tmp_path, *entries)) == {1: 2**15, 2: 2**19, 3: 2**23}
    assert caches(str(tmp_path / "none")) == {}
    assert adapt_machine(MACHINE, {}, 64) == MACHINE


@pytest.mark.parametrize(("third", "how"), [(32, "rows"), (96, "rows"), (105, "units"), (300, "units")])
def test_the_last_cache_of_a_whole_server_is_read_and_exchanged_slowly(third: int, how: str):
    """There threads that each read all 3 MB of a gradient's loop wait for them, as measured; those of 256
    units stay in the second one, and cotangents that threads exchange cost more.
    """
    machine = adapt_machine(MACHINE, {1: 48 * 2**10, 2: 2**21, 3: third * 2**20}, 64)
    rates = machine.reads[2], machine.exchange, machine.uneven
    assert rates == ((86e9, 6e9, 0.005) if how == "rows" else (30e9, 3.3e9, 0.06))
    backward = [partition(gradient_load("gru", hidden), call(16), 2, machine) for hidden in (256, 512)]
    assert [way.chosen.how for way in backward] == ["rows", how]
    for cell in ("gru", "lstm"):
        forward = [partition(load(cell, hidden), call(64), 2, machine) for hidden in (256, 512)]
        assert [way.chosen.how for way in forward] == ["rows", how]


def test_a_zen_4_computes_vectors_of_avx512_in_halves():
    zen4, zen5 = (table_machine(replace(PROCESSOR, cpu=cpu)) for cpu in ("znver4", "znver5"))
    assert (zen4.rate, zen4.flops) == (zen5.rate / 2, zen5.flops / 2)
    assert zen4.reads == (zen5.reads[0] / 2, *zen5.reads[1:])
    assert table_machine(replace(PROCESSOR, name="avx2", cpu="znver4", vector_bytes=32)) == zen4


def test_a_cache_that_the_kernel_does_not_describe_is_left_out(tmp_path: Path):
    root = fake_caches(tmp_path, ("1", "Data", "48K"), ("2", "Unified", "-"), ("?", "Unified", "1M"))
    assert caches(root) == {1: 48 * 2**10}
    half = adapt_machine(MACHINE, caches(root), 32)
    assert half.caches == (48 * 2**10,) * 3
    assert half.rate == MACHINE.rate / 2


# ---- what explain says -------------------------------------------------------------------------------------


def test_explain_says_how_threads_share_a_call():
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(8, 256, seed=0))
    with threads(2):
        assert rnn.schedule.single_plan is not None
        engine = LlvmEngine()
        weighed = partition(engine.load(rnn.schedule.single_plan), call(4, 20), 2, engine.machine())
        text = rnn.explain(rows=4, steps=20)
        assert "threads, for 4 sequences of 20 steps\n" in text
        assert all(f"  {line}\n" in text for line in str(weighed).splitlines())
        assert "threads, for one sequence of 20 steps\n  2 threads share the units" in rnn.explain(steps=20)
        assert "threads, for" not in rnn.explain()
        assert "threads, for" not in rnn.explain("interpret", rows=4)


@pytest.mark.parametrize(
    "sizes",
    [
        *({"rows": 0}, {"steps": -1}, {"rows": 2.5}, {"steps": "3"}, {"rows": 2**24 + 1}),
        *({"steps": 2**40 + 1}, {"lengths": [3, 2**40 + 1]}),
    ],
)
def test_explain_refuses_sizes_that_no_call_has(sizes: dict[str, Any]):
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(2, 4))
    (name,) = sizes
    name = "steps of each sequence" if name == "lengths" else name
    with pytest.raises(InputError, match=f"the number of {name}, for which explain says how threads share"):
        rnn.explain(**sizes)


def test_explain_says_which_parts_run_at_the_same_time():
    params = cells.CELLS["gru"].parameters(8, 64, seed=0)
    ahead, back = (cells.rnn("gru", params, reverse=reverse) for reverse in (False, True))
    graph = sn.Graph(lambda x, _: sn.Bidirectional(ahead, back)(x)[0], inputs=8)
    with threads(2):
        assert "parts 0, 1, for one sequence of 100 steps\n    at the same time" in graph.explain()
        assert "at the same time" not in graph.explain("interpret")
        assert "for 64 sequences of 7 steps" in graph.explain(rows=64, steps=7)
        alone = sn.Graph(lambda x, _: ahead(ahead(x)[0][..., :8])[0], inputs=8)
        alone(np.zeros((1, 2, 8), "f4"))
        assert "at the same time" not in alone.explain()


# ---- steps that read inner sequences -----------------------------------------------------------------------


def decoder(width: int) -> sn.RNN:
    """A step that weights the keys of its sequence, by a score of each."""

    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        scores = np.tanh(statics + sn.expand(h @ p["Q"], statics)) @ p["v"]
        context = sn.reduce(statics * sn.softmax_over_steps(scores), "sum")
        h = cells.gru(np.concatenate([x, context], axis=-1), h, p["gru"])[1]
        return h, h

    random = np.random.default_rng(0)
    params = {"Q": random.normal(size=(width, width)), "v": random.normal(size=(width, 1))}
    gru = cells.CELLS["gru"].parameters(2 * width, width, seed=1)
    return sn.RNN(step, {**{name: p.astype("f4") for name, p in params.items()}, "gru": gru}, memory=width)


def decoder_load(width: int) -> Load:
    rnn = decoder(width)
    rnn(np.zeros((1, 1, width), "f4"), statics=sn.Ragged.from_list([np.zeros((1, width), "f4")]))
    (plan,) = (part.plan for part in rnn.schedule.parts if part.plan is not None and part.extent != CONST)
    return LlvmEngine(PROCESSOR).load(plan)


def test_the_work_on_words_is_counted_for_each_of_them():
    """A key has 128 numbers. Each is added to the query, goes through tanh (15), is multiplied by v and added
    up; then it is multiplied by its weight and added up. Softmax has about 15 operations on each key.
    """
    (work,) = decoder_load(128).inner_steps
    assert work.read == 4 * 128
    assert 128 * (1 + 15 + 1 + 1 + 1 + 1) < work.stage.flops <= 128 * (1 + 15 + 1 + 1 + 1 + 1) + 2 * 20
    assert work.stage.products == ()


def test_words_of_one_row_are_one_threads():
    """With many keys, threads that share a step of one sequence would wait for the one that has them all."""
    attention = decoder_load(128)
    sizes = {
        (rows, words): call(rows)._replace(inner_steps=(words,)) for rows in (1, 4) for words in (8, 2048)
    }
    chosen = {key: partition(attention, size, 2, MACHINE).chosen for key, size in sizes.items()}
    assert [chosen[1, 8].how, chosen[1, 2048].how] == ["units", "alone"]
    assert chosen[4, 2048].threads == 2
    assert chosen[4, 2048].seconds < 0.6 * 4 * chosen[1, 2048].seconds


def test_values_of_words_are_read_from_the_cache_that_holds_all():
    """Of 8 rows with 4096 words each, two threads share 16 MB."""
    work = InnerStepWork(StageLoad((), 1, 0), 512, StageLoad((), 0, 0))
    near, far = (work.seconds(rows, 4096, 1, MACHINE) / rows for rows in (1, 64))
    assert far > 2 * near


def test_steps_of_inner_recurrences_are_counted_for_each_word_and_shared():
    word = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(128, 128, seed=0))
    rnn = sn.RNN(lambda x, h, p: 2 * (word(x, initial=h)[1],), memory=128)
    rnn(sn.Ragged.from_list([[np.zeros((1, 128), "f4")]]))
    loads = [LlvmEngine(PROCESSOR).load(part.plan) for part in rnn.schedule.parts if part.plan is not None]
    (inner,) = (each for each in loads if each.inner_steps)
    (work,) = inner.inner_steps
    assert sum(each.weights for each in work.steps.products) == 3 * 128 * 128 * 4
    few, many, shared = (
        inner.seconds(call(1)._replace(inner_steps=(words,)), 1, threads, MACHINE)
        for words, threads in ((8, 1), (80, 1), (80, 2))
    )
    assert 8 * few < many < 10 * few
    assert shared < 0.8 * many


def test_a_call_says_how_many_words_its_rows_have_in_the_mean(monkeypatch: pytest.MonkeyPatch):
    seen: list[CallSize] = []

    def noted(load: Load, size: CallSize, most: int, machine: Machine, how: Any = None) -> Partition:
        seen.append(size)
        return partition(load, size, most, machine)

    monkeypatch.setattr(native, "partition", noted)
    rnn, random = decoder(16), np.random.default_rng(0)
    keys = [random.normal(size=(count, 16)).astype("f4") for count in (3, 11, 40, 0)]
    rnn(np.zeros((4, 2, 16), "f4"), statics=sn.Ragged.from_list(keys))
    rnn(np.zeros((2, 2, 16), "f4"), statics=sn.Ragged.from_list([keys[3], keys[3]]))
    rnn(np.zeros((1, 2, 16), "f4"), statics=sn.Ragged.from_list([np.zeros((16, 16), "f4")]))
    assert [size.inner_steps for size in seen if size.inner_steps] == [(16,), (1,), (16,)]


def test_explain_says_how_many_words_it_takes_for_granted():
    rnn = decoder(16)
    rnn(np.zeros((1, 1, 16), "f4"), statics=sn.Ragged.from_list([np.zeros((1, 16), "f4")]))
    assert "threads, for 4 sequences of 20 steps, inner sequences of 32\n" in rnn.explain(rows=4, steps=20)
