"""The chain of operations that a step waits for, and what it does to estimates of time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planned import plan
from wide_machine import MACHINE, PROCESSOR, call, load

from stepnet import RNN
from stepnet.compiler.plan.partition import partition
from stepnet.compiler.targets.cpu import LlvmEngine, cycle_seconds, host_processor

MEMORY, ADD, SIGMOID, TANH = 9, 4, 44, 42


@pytest.mark.parametrize("units", [8, 128])
def test_a_step_waits_for_its_longest_chain(units: int):
    """By hand from the equations: the memory; its products, and their sums, which pass through memory."""
    products = MEMORY + 4 * units + MEMORY
    gru = products + ADD + SIGMOID + 4 + ADD + TANH + 3 * ADD
    lstm = products + ADD + SIGMOID + 4 + ADD + TANH + 4
    assert (load("gru", units).chain, load("lstm", units).chain) == (gru, lstm)


@pytest.mark.parametrize(
    ("step", "cycles"),
    [
        (lambda x, h, p: (np.tanh(x), np.tanh(x)), 0),
        (lambda x, h, p: (h, h), 0),
        (lambda x, h, p: (h + x, h + x), MEMORY + ADD),
        (lambda x, h, p: (np.tanh(h) + x @ p, 0.5 * h), MEMORY + ADD),
        (lambda x, h, p: (h, np.tanh(h) @ p), MEMORY + TANH + 2 * MEMORY + 4 * 8),
        (lambda x, h, p: (h, x @ p + h @ p), MEMORY + MEMORY + 4 * 8 + ADD),
    ],
)
def test_only_what_leads_from_a_memory_to_itself_is_waited_for(step: Any, cycles: int):
    rnn = RNN(step, np.zeros((8, 8), "f4"), memory=8)
    rnn(np.zeros((1, 2, 8), "f4"))
    assert LlvmEngine(PROCESSOR).load(plan(rnn.net)).chain == cycles


def test_a_step_of_few_units_takes_as_long_as_its_chain():
    """However many rows it has, up to some, and whichever thread runs them: so one thread is enough."""
    gru = load("gru", 8)
    for rows in (1, 2):
        assert gru.seconds(call(rows, 1000), 1, 1, MACHINE) >= 1000 * gru.chain * MACHINE.cycle
    slow, wide = replace(MACHINE, cycle=3e-8), load("gru", 64)
    assert gru.seconds(call(1, 1000), 1, 1, slow) == pytest.approx(1000 * gru.chain * 3e-8, rel=0.05)
    assert [partition(wide, call(6), 2, each).chosen.how for each in (MACHINE, slow)] == ["rows", "alone"]


@pytest.mark.parametrize(
    ("cell", "units", "fewest"), [("gru", 128, 4), ("lstm", 128, 4), ("gru", 8, 8), ("gru", 1024, 8)]
)
def test_few_rows_are_enough_where_more_take_longer(cell: str, units: int, fewest: int):
    """Not where a step waits for its chain, or for its parameters."""
    assert load(cell, units).fewest_rows(1, 8, MACHINE) == fewest


def test_a_cycle_is_a_quarter_of_a_multiply_add():
    """Of a processor of 0.01 to 10 GHz, so that an emulated one counts."""
    assert 0.1e-9 < cycle_seconds(host_processor()) < 1e-7
