"""`stepnet tune`: the rates of this machine, measured and kept for later processes."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from command_line import stepnet
from constants import Constants

import stepnet as sn
from stepnet.compiler.plan.calibration import FITTED
from stepnet.compiler.targets.cpu import host_processor, machine_for, table_machine

TUNING = "stepnet.cli.report.tuning"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """An empty cache, and rates that are read anew, before the test and after it."""
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    machine_for.cache_clear()
    yield tmp_path / "cache"
    machine_for.cache_clear()


@pytest.fixture
def few(constants: Constants, same_threads: None) -> None:
    """Two threads, and few short calls."""
    constants(TUNING, CELLS=("gru",), UNITS=(8, 16), ROWS=(1, 2), MOST_STEPS=8, LEAST_TURNS=1, TURN=0.0)
    sn.set_threads(2)


@pytest.mark.usefixtures("few")
def test_rates_are_measured_and_used(folder: Path):
    processor = host_processor()
    assert machine_for(processor) == table_machine(processor)
    code, stdout, _ = stepnet("tune", "--json")
    tuning = json.loads(stdout)
    assert code == 0
    assert tuning["stored"] is None
    assert tuning["calls"] == 10  # 4 alone, 4 by units, and 2 of two sequences by rows
    assert tuning["missed_after"] <= tuning["missed_before"]
    assert set(tuning["after"]) == set(FITTED)
    machine_for.cache_clear()  # as a later process begins
    machine = machine_for(processor)
    assert [machine.rate, machine.barrier] == [tuning["after"]["rate"], tuning["after"]["barrier"]]
    assert list(machine.reads) == tuning["after"]["reads"]
    assert machine != table_machine(processor)
    assert [path.suffix for path in folder.iterdir() if path.suffix == ".machine"] == [".machine"]
    assert "the rates of this machine" in stepnet("cache")[1]


@pytest.mark.usefixtures("few")
def test_without_a_cache_it_says_that_rates_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPNET_CACHE", "0")
    code, stdout, _ = stepnet("tune")
    assert code == 0
    assert "not kept: STEPNET_CACHE is 0" in stdout
    assert machine_for(host_processor()) == table_machine(host_processor())
