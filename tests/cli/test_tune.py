"""`stepnet tune`: the rates of this machine, measured and kept for later processes."""

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import stepnet
from constants import Constants

import stepnet as sn
from stepnet.cli.report.tuning import timed_calls
from stepnet.compiler.plan.calibration import FITTED
from stepnet.compiler.targets.cpu import (
    NAMES,
    host_processor,
    key_of,
    machine_for,
    store_rates,
    stored_rates,
    table_machine,
)

TUNING = "stepnet.cli.report.tuning"


@pytest.fixture
def folder(cache: Path) -> Generator[Path]:
    """An empty cache, and rates that are read anew, before the test and after it."""
    machine_for.cache_clear()
    yield cache
    machine_for.cache_clear()


@pytest.fixture
def few(constants: Constants, same_threads: None) -> None:
    """Two threads, few calls, and small buffers."""
    constants(TUNING, CELLS=("gru",), UNITS=(8, 16), ROWS=(1, 2), ROUNDS=1, TURN=2e-3, WORTH=0.0)
    constants("stepnet.compiler.targets.cpu.products.reads", LEAST=2**21, MOST=2**22)
    sn.set_threads(2)


@pytest.mark.usefixtures("few")
def test_rates_are_measured_and_used(folder: Path):
    processor = host_processor()
    assert machine_for(processor) == table_machine(processor)
    code, stdout, _ = stepnet("tune", "--json")
    tuning = json.loads(stdout)
    assert code == 0
    assert tuning["stored"] is None
    # 4 alone, and 2 of two sequences by rows; fewer where other processes keep threads late
    assert 4 <= tuning["calls"] <= 6
    assert set(tuning["after"]) == set(tuning["before"]) == {*FITTED, "caches", "cycle"}
    machine_for.cache_clear()  # as a later process begins
    machine = machine_for(processor)
    assert [machine.rate, machine.exchange] == [tuning["after"]["rate"], tuning["after"]["exchange"]]
    assert list(machine.reads) == tuning["after"]["reads"]
    assert machine != table_machine(processor)
    assert [path.suffix for path in folder.iterdir() if path.suffix == ".machine"] == [".machine"]
    assert "the rates of this machine" in stepnet("cache")[1]


@pytest.mark.usefixtures("few")
def test_steps_of_which_one_thread_would_do_all_are_not_timed(constants: Constants):
    """The others would only wait: a GRU of 4 units has one unit block, and one of 512 has 32 and more."""
    constants(TUNING, UNITS=(4, 512), ROWS=(1,))
    _, *calls = timed_calls()
    ways = [(call.case.units, call.case.how) for call in calls]
    assert ways == [(4, "alone"), (512, "alone"), (512, "units")]


def test_rates_of_a_version_with_other_rates_are_measured_anew(folder: Path):
    processor = host_processor()
    store_rates(processor, replace(table_machine(processor), rate=1e9))
    assert stored_rates(processor) is not None
    (stored,) = folder.glob("*.machine")
    older = key_of(processor, [name for name in NAMES if name != "exchange"])
    stored.rename(stored.with_stem(older))
    assert stored_rates(processor) is None


@pytest.mark.usefixtures("few")
def test_rates_that_cannot_be_written_are_said_not_to_be_kept(folder: Path):
    """As on a full disk: here a folder has the name of the entry."""
    folder.mkdir(mode=0o700)
    (folder / f"{key_of(host_processor())}.machine").mkdir()
    code, stdout, _ = stepnet("tune")
    assert code == 0
    assert f"not kept: the entry could not be written to {folder}" in stdout


@pytest.mark.parametrize(
    "rates", [{"rate": 0.0}, {"barrier": -1.0}, {"flops": np.inf}, {"reads": (1e9, 0.0)}]
)
@pytest.mark.usefixtures("folder")
def test_numbers_that_are_no_rates_are_not_kept(rates: dict[str, Any]):
    """Estimates divide by them: calls would raise `ZeroDivisionError`."""
    processor = host_processor()
    table = table_machine(processor)
    assert store_rates(processor, table)
    assert not store_rates(processor, replace(table, **rates))
    assert stored_rates(processor) == table


@pytest.mark.usefixtures("few")
def test_without_a_cache_it_says_that_rates_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPNET_CACHE", "0")
    code, stdout, _ = stepnet("tune")
    assert code == 0
    assert "not kept: STEPNET_CACHE is 0" in stdout
    assert [line.split()[0] for line in stdout.splitlines() if line.startswith("  exchange")] == ["exchange"]
    assert machine_for(host_processor()) == table_machine(host_processor())
