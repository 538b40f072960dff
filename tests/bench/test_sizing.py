"""The sizing of a load: simulated workers against closed forms, and the commands of bench/sizing.py."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from typer.testing import CliRunner

import stepnet as sn
from bench import block_work, sizing
from bench.block_work import Load, Worked, done, recurrence, sequences, worked, write
from bench.simulated_workers import Workers, end_of, simulated

NEVER = float("inf")

# ---- simulated workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 7, 100])
@pytest.mark.parametrize("blocks", [1, 6, 7, 8, 1000])
def test_equal_times_take_whole_rounds(blocks: int, workers: int):
    run = simulated([2.5], blocks, Workers(workers))
    assert run.seconds == ceil(blocks / workers) * 2.5
    assert run.efficiency == pytest.approx(blocks / workers / ceil(blocks / workers))


def test_a_slow_worker_does_fewer_blocks():
    """In 2 seconds a worker that takes 2 seconds does one block, and one that takes 1 does two."""
    assert [end_of([1.0] * count, [2, 1], [NEVER] * 2) for count in (1, 2, 3, 6)] == [2, 2, 2, 4]
    assert simulated([1.0], 30, Workers(2, slow=0.5, factor=2)).seconds == 20
    assert simulated([1.0], 30, Workers(2, slow=1.0, factor=3)).seconds == 45


def test_the_block_of_a_lost_worker_is_done_again():
    assert end_of([1.0, 1.0], [1, 1], [0.5, NEVER]) == 2
    assert end_of([1.0, 1.0], [1, 1], [1.0, NEVER]) == 1  # lost when its block is done
    assert end_of([1.0] * 6, [1, 1, 1], [0.0, NEVER, NEVER]) == 3
    assert end_of([4.0, 1.0], [1, 1], [3.0, NEVER]) == 7  # begun again when the loss is seen
    assert end_of([4.0, 1.0, 1.0], [1, 1, 1], [3.0, 3.5, NEVER]) == 7.5  # lost with a second worker
    assert simulated([1.0], 20, Workers(2, lost=1)).seconds in range(11, 21)
    with pytest.raises(ValueError, match="all workers are lost before 2 of 2 blocks are done"):
        end_of([1.0, 1.0], [1, 1], [0.5, 0.25])


def test_no_run_is_shorter_than_its_work_or_longer_than_graham_says():
    """Graham, 1966: at most the work of each, and the longest block."""
    random = np.random.default_rng(0)
    for seed in range(50):
        times = random.lognormal(size=20).tolist()
        blocks, workers = (int(count) for count in random.integers(1, 60, 2))
        run = simulated(times, blocks, Workers(workers), seed)
        needed = run.efficiency * run.seconds
        assert needed <= run.seconds + 1e-9
        assert run.seconds <= needed + max(times)
        assert needed <= blocks * max(times) / workers + 1e-9


def test_seeds_draw_other_times():
    runs = {simulated([1.0, 2.0], 9, Workers(3), seed).seconds for seed in range(9)}
    assert len(runs) > 1
    assert simulated([1.0, 2.0], 9, Workers(3), 4) == simulated([1.0, 2.0], 9, Workers(3), 4)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 2, "lost": 2}, {"count": 2, "slow": 1.5}])
def test_workers_that_cannot_be_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="there is a worker at least that is not lost"):
        Workers(**wrong)


# ---- how many cores ----------------------------------------------------------------------------------------


def test_cores_are_those_whose_simulated_run_is_in_time():
    assert sizing.cores_for([2.0], 100, 20.0, Workers(1)).cores == 10
    assert sizing.cores_for([2.0], 100, 19.0, Workers(1)).cores == 12  # 9 blocks of each, of 18 seconds
    times, cluster = [1.0, 1.5, 4.0], Workers(2, 0.1, 3.0, 1)
    answer = sizing.cores_for(times, 3000, 100.0, cluster)
    assert simulated(times, 3000, Workers(answer.cores, 0.1, 3.0, 1)).seconds <= 100
    assert answer.cores > 3000 * np.mean(times) / 100 * 1.05  # a tenth at a third is 7% of all work
    assert answer.blocks_per_worker == 3000 / answer.cores
    with pytest.raises(SystemExit, match=r"10 blocks of 2 s are not done in 1 s .* smaller blocks"):
        sizing.cores_for([2.0], 10, 1.0, Workers(1))


# ---- blocks of sequences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", sizing.CELLS)
def test_a_block_of_a_file_gives_what_the_step_says(cell: str, tmp_path: Path):
    load = Load(cell, 128 if cell == "gated_delta_rule" else 6, 3, rows=2)
    rnn, inputs = recurrence(load)
    right = rnn(inputs(sequences(load)), last_only=True, engine="interpret")[0]
    for file in write(load, tmp_path).values():
        assert_close(done(load, file), right, load.steps, load.features)
    assert sequences(load).values.nbytes == load.bytes


def test_two_workers_do_all_blocks():
    run = worked(Load("gru", 4, 3, rows=2), 20, workers=2)
    assert len(run.times) == 20
    assert run.seconds >= sum(run.times) / 2


def test_a_worker_that_ends_with_an_error_is_noticed():
    with pytest.raises(SystemExit, match="a worker ended with code 1"):
        worked(Load("no cell", 4, 3, rows=2), 1, workers=1)


@pytest.mark.alone
@pytest.mark.long
def test_the_simulation_gives_the_time_of_two_workers(request: pytest.FixtureRequest):
    """Within a tenth, of block times of the same run: what is left is how they are handed out."""
    if not request.config.getoption("--long"):
        pytest.skip("--long is missing: this times two processes for some seconds")
    run = worked(Load("gru", 256, 25, rows=500), 60, workers=2)
    assert run.seconds == pytest.approx(simulated(run.times, 60, Workers(2)).seconds, rel=0.1)


# ---- commands ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take two seconds each."""

    def known(load: Load, blocks: int, workers: int) -> Worked:
        return Worked(2.0 * ceil(blocks / workers), [2.0] * blocks)

    monkeypatch.setattr(sizing, "worked", known)


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(sizing.app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"]


@pytest.mark.usefixtures("same_threads")
def test_cells_and_reading_are_measured():
    made = rows("table", "--hidden", "8", "--rows", "2", "--rounds", "1")
    assert [(row["cell"], row["steps"]) for row in made] == [
        (c, s) for c in sizing.CELLS for s in sizing.STEPS
    ]
    assert all(row["steps/s"] == pytest.approx(row["steps"] * row["sequences/s"]) for row in made)
    for row in rows("reading", "--hidden", "4", "--rows", "50", "--rounds", "1"):
        assert row["MB/s"] * 1e6 == pytest.approx(row["sequences/s"] * 25 * 4 * 4)
    sn.set_threads(None)


@pytest.mark.usefixtures("two_seconds")
def test_a_load_is_answered_with_cores():
    load = "cores", "--load", "2e6", "--hours", "0.5", "--rows", "1000", "--measured", "1"
    (answer,) = rows(*load, "--slow", "0", "--lost", "0")
    assert (answer["blocks"], answer["cores"], answer["efficiency"]) == (2000, 3, pytest.approx(2000 / 2001))
    (slower,) = rows(*load, "--slow", "0.5", "--factor", "4", "--lost", "1")
    assert slower["cores"] > answer["cores"]
    refused = CliRunner().invoke(sizing.app, [*load, "--cell", "elman"])
    assert refused.exit_code == 2
    assert "elman is none of gru, lstm" in refused.output


@pytest.mark.usefixtures("two_seconds")
def test_stragglers_cost_less_of_small_blocks():
    made = rows("blocks", "--workers", "20", "--slow", "0.1", "--measured", "1")
    assert [row["blocks per worker"] for row in made] == list(sizing.PER_WORKER)
    assert all(row["none slow"] == 1 for row in made)
    assert made[0]["slow"] == 0.5  # all wait for a slow one
    assert made[-1]["slow"] == pytest.approx(0.95, abs=0.01)  # a tenth at half the speed is 5% of all work
    assert made[0]["slow"] < made[3]["slow"] < made[-1]["slow"]


@pytest.mark.usefixtures("two_seconds")
def test_measured_runs_are_shown_beside_simulated_ones():
    one, two = rows("check", "--blocks", "5", "--rounds", "1")
    assert (one["workers"], one["measured"], one["predicted"]) == (1, 10, 10)
    assert (two["workers"], two["measured"], two["by one worker's times"]) == (2, 6, 6)
    assert two["measured / predicted"] == 1


def test_what_is_measured_has_one_thread(monkeypatch: pytest.MonkeyPatch):
    asked = list[int]()
    monkeypatch.setattr(block_work.sn, "set_threads", asked.append)
    monkeypatch.setattr(sn, "set_threads", asked.append)
    rows("table", "--hidden", "4", "--rows", "1", "--rounds", "1")
    assert asked == [1]
