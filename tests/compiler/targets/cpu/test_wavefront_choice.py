"""The layers of a stack that run as a wavefront: those that may, where it takes less time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from wide_machine import MACHINE, call, load
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.plan import CallSize, Machine, lines_of
from stepnet.compiler.plan.partition import wavefront
from stepnet.compiler.targets.cpu import LlvmEngine


def layer(inputs: int, hidden: int, seed: int, reverse: bool = False) -> sn.RNN:
    """A GRU."""
    return rnn_of("gru", inputs, hidden, seed=seed, reverse=reverse)


def lines(model: Callable[[Any], Any]) -> list[int]:
    """The number of recurrences of each line."""
    parts = sn.Graph(lambda x, _: model(x), inputs=8).schedule.parts
    return [len(line) for line in lines_of(parts)]


def test_recurrences_that_read_outputs_step_by_step_may_follow_one_another():
    first, second, third, back = (layer(8, 8, seed, reverse=seed == 3) for seed in range(4))
    assert lines(lambda x: third(second(first(x)[0])[0])[0]) == [3]
    assert lines(lambda x: second(first(x)[0], first(x)[1])[0]) == []
    assert lines(lambda x: back(first(x)[0])[0]) == []
    assert lines(lambda x: back(first(back(x)[0])[0])[0]) == []
    assert lines(lambda x: third(back(second(first(x)[0])[0])[0])[0]) == [2]
    assert lines(lambda x: second(first(x)[0])[0] + back(x)[0]) == []
    assert lines(lambda x: third(second(first(x)[0])[0], first(x)[1])[0]) == [2]


@pytest.mark.parametrize(
    ("cell", "hidden", "rows", "counts"),
    [  # each is the best of those that bench/partition.py measured, by a twentieth or more
        ("gru", 64, 1, [2]),
        ("gru", 64, 2, [2]),
        ("gru", 64, 3, [2]),
        ("lstm", 64, 1, [2]),
        ("lstm", 64, 2, [2]),
        ("lstm", 128, 1, [2]),
        ("gru", 128, 1, [2]),
        ("gru", 256, 1, [1, 1]),
        ("gru", 256, 4, [1, 1]),
        ("lstm", 256, 1, [1, 1]),
        ("gru", 512, 1, [1, 1]),
    ],
)
def test_two_layers_run_the_way_that_was_measured_to_be_the_best(
    cell: str, hidden: int, rows: int, counts: list[int]
):
    front = wavefront([load(cell, hidden)] * 2, [call(rows)] * 2, 2, MACHINE)
    assert [count for count, _ in front.groups] == counts
    assert all((block > 0) == (count > 1) for count, block in front.groups)
    assert front.seconds <= front.in_turn


def test_layers_are_grouped_by_the_threads_that_there_are():
    gru = load("gru", 64)
    counts = {
        (layers, most): sorted(
            count for count, _ in wavefront([gru] * layers, [call(1)] * layers, most, MACHINE).groups
        )
        for layers, most in ((3, 2), (4, 2), (4, 4), (5, 4), (2, 4))
    }
    assert counts == {(3, 2): [1, 2], (4, 2): [2, 2], (4, 4): [4], (5, 4): [1, 4], (2, 4): [2]}


def test_the_longest_layers_share_a_group():
    """Beside a layer that takes long, a short one costs nothing: the two long ones run at the same time."""
    long, short = load("gru", 64), load("gru", 8)
    front = wavefront([short, long, long], [call(1)] * 3, 2, MACHINE)
    assert [count for count, _ in front.groups] == [1, 2]


def test_next_to_no_work_and_slow_threads_leave_layers_one_after_the_other():
    for each, size, most, machine in [
        (load("gru", 64), call(1), 1, MACHINE),
        (load("gru", 64), call(1), 2, replace(MACHINE, handover=1e-3)),
        (load("gru", 64), call(1), 2, replace(MACHINE, block=1e-4)),
        (load("gru", 4), call(1, 4), 2, MACHINE),
        (load("gru", 64), CallSize(0, 0, 0), 2, MACHINE),
    ]:
        assert wavefront([each] * 2, [size] * 2, most, machine).groups == ((1, 0), (1, 0))


def test_a_block_is_shorter_where_there_are_more_rows_and_longer_where_it_costs_more():
    gru = load("gru", 64)

    def block(rows: int, machine: Machine) -> int:
        ((_, steps),) = wavefront([gru] * 2, [call(rows)] * 2, 2, machine).groups
        return steps

    assert block(4, MACHINE) < block(1, MACHINE) < block(1, replace(MACHINE, block=2e-6))


@pytest.mark.usefixtures("same_threads")
def test_a_wavefront_says_what_was_weighed():
    sn.set_threads(2)
    plan: Any = layer(64, 64, 0).schedule.single_plan
    engine = LlvmEngine()
    front = wavefront([engine.load(plan)] * 3, [call(1)] * 3, 2, engine.machine())
    text = str(front)
    assert "2 layers as a wavefront, blocks of" in text
    assert "one layer alone" in text
    assert "\n  not one layer after the other: " in text
    stack = sn.Stack([layer(64, 64, seed) for seed in range(3)])
    assert text.splitlines()[0] in stack.explain(rows=1, steps=100)
    assert "wavefront" not in stack.explain()
    assert "wavefront" not in stack.explain("interpret", rows=1)
    assert "one layer after the other: " in stack.explain(rows=64, steps=100)
