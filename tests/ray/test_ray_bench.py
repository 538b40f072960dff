"""`bench.ray_workers`: what it times, and what stops it."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bench import ray_workers
from bench.ray_workers import ancestors, processor_seconds, timed

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="/proc is missing, which bench.ray_workers reads"
)


def test_blocks_are_timed_from_the_first_results_to_the_last(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 5.0, 5.0, 7.0, 9.0])
    spent = iter(
        [
            {("driver", 1): 1.0, ("workers", 2): 3.0, ("workers", 1): 4.0, ("busy", 0): 9.0},
            {("driver", 1): 2.0, ("workers", 2): 9.0, ("workers", 3): 5.0, ("busy", 0): 22.0},
        ]
    )
    monkeypatch.setattr(ray_workers.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(ray_workers, "processor_seconds", lambda: next(spent))
    run = timed(iter([np.ones(2)] * 4), np.ones(2), 2)
    assert (run.seconds, run.block, run.used) == (9.0, 2.0, (2.75, 0.25, 0.0, 0.25))


def test_other_bits_stop_it():
    with pytest.raises(SystemExit, match="a worker gives other outputs than the engine"):
        timed(iter([np.ones(2), np.zeros(2)]), np.ones(2), 1)


def test_processor_time_is_that_of_this_process_and_its_children():
    assert processor_seconds()["driver", os.getpid()] > 0.1
    assert list(ancestors(5, {5: 3, 3: 1, 7: 5})) == [5, 3]


def test_the_time_of_the_machine_is_that_of_its_processors():
    def used() -> float:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        each = [list(map(int, words[1:9])) for words in lines if re.fullmatch(r"cpu\d+", words[0])]
        return sum(sum(ticks[:3]) + sum(ticks[5:]) for ticks in each) / os.sysconf("SC_CLK_TCK")

    before, spent, after = used(), processor_seconds(), used()
    assert before - 0.1 <= spent["busy", 0] <= after + 0.1


@pytest.mark.long
def test_workers_are_timed_beside_the_engine(request: pytest.FixtureRequest):
    if not request.config.getoption("--long"):
        pytest.skip("each run of Ray takes seconds")
    app = typer.Typer()
    app.command()(ray_workers.main)
    sizes = "--hidden", "4", "--block", "0.01", "--blocks", "6", "--rounds", "1", "--json"
    done = CliRunner().invoke(app, sizes, catch_exceptions=False)
    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == ["engine", "workers: 1", "workers: 2"]
    assert all(row["a block"] > 0 for row in rows)
