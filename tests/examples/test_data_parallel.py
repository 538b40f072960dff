"""Training by several processes, as torchrun and Ray start them: they learn what one process learns."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import typer
from tolerance import assert_close
from typer.testing import CliRunner

from bench import data_parallel as bench

ROOT = Path(__file__).resolve().parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux is missing, where two processes meet")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example, in a group of this process alone."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = import_module("data_parallel")
    module.join()
    yield module
    if dist.is_initialized():
        dist.destroy_process_group()


def ran(*command: str, limit: int = 1800, **variables: str) -> str:
    """The text of a command that starts processes, with the number of threads that torchrun or Ray sets."""
    given = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")} | variables
    given["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("src", "tests/support", "examples"))
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=given, timeout=limit, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_same_losses(example: Any, found: list[float], right: list[float]) -> None:
    """Losses agree, each of which follows from those before: sums over the frames of all batches."""
    frames = sum(map(len, example.read("train")[0])) * len(right)
    assert_close(np.array(found, "float32"), np.array(right), frames, example.HIDDEN)


@LINUX
@pytest.mark.long
def test_two_processes_have_the_gradients_of_one(
    example: Any, tmp_path: Path, request: pytest.FixtureRequest
):
    """tests/processes/replicas.py says what is compared there. torchrun itself is for `make test-long`."""
    script = str(ROOT / "tests/processes/replicas.py"), str(tmp_path / "losses.json")
    if request.config.getoption("--long"):
        ran(*TORCHRUN, *script, "long")
    else:
        ran(sys.executable, *script, OMP_NUM_THREADS="1")
    found = json.loads((tmp_path / "losses.json").read_text())
    alone = example.train("torch.nn.GRU", epochs=1, hidden=8)
    assert_same_losses(example, found["losses"], alone.losses)
    assert found["right"] == pytest.approx(alone.right, abs=0.002)
    assert found["losses"][0] < np.log(example.SPEAKERS)


def test_the_example_saves_what_layers_of_torch_read(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dist.destroy_process_group()
    file = tmp_path / "model.pt"
    example.main(["--epochs", "1", "--hidden", "8", "--save", str(file)])
    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"epoch   1  loss \d\.\d{4}  \d+\.\d{3} s", first)
    said = re.fullmatch(r"([\d.]+)% of the test frames right, by 1 process", last)
    assert said is not None
    utterances, speakers = example.read("test")
    model = example.SpeakerTagger(example.read("train")[0], torch.nn.GRU, hidden=8)
    model.load_state_dict(torch.load(file, weights_only=True))
    example.join()
    assert example.accuracy(model, utterances, speakers) == pytest.approx(float(said[1]) / 100, abs=0.002)


def test_batches_are_cut_equally(example: Any):
    """None is empty or left out, so each of 30 processes has a part of every batch."""
    cut = example.batches(269, 30, epoch=3)
    assert torch.equal(torch.cat(cut).sort().values, torch.arange(269))
    assert {len(one) for one in cut} == {33, 34}
    assert not torch.equal(torch.cat(cut), torch.cat(example.batches(269, 30, epoch=4)))


def test_a_batch_of_fewer_utterances_than_processes_is_refused(example: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(example.dist, "get_world_size", lambda: 31)
    with pytest.raises(SystemExit, match="a batch has 31 utterances or more: one for each process"):
        example.train(batch=30)


def timed(monkeypatch: pytest.MonkeyPatch, loss: str, code: int = 0) -> Any:
    """The text of the benchmark where an epoch takes 10 ms for each thread of stepnet, and 5 by torchrun."""

    def run(command: list[str], env: dict[str, str], **options: Any) -> Any:
        threads, by_torchrun = int(env["STEPNET_NUM_THREADS"]), "torch.distributed.run" in command
        seconds, first = 0.005 if by_torchrun else threads / 100, loss if by_torchrun else "1.5000"
        lines = f"epoch   1  loss {first}  9.000 s\nepoch   2  loss 1.0000  {seconds:.3f} s\n"
        return subprocess.CompletedProcess(command, code, lines, "why")

    monkeypatch.setattr(bench.subprocess, "run", run)
    app = typer.Typer()
    app.command()(bench.main)
    return CliRunner().invoke(app, ["--rounds", "2", "--json"])


def test_the_benchmark_compares_epochs_behind_the_first(monkeypatch: pytest.MonkeyPatch):
    told = json.loads(timed(monkeypatch, "1.5000").stdout)
    assert list(told["ratios"].values()) == [1, 4, 4, 2]
    assert told["seconds"]["1 process, 1 thread"] == [0.01, 0.01]


def test_the_benchmark_stops_where_losses_differ_or_a_turn_fails(monkeypatch: pytest.MonkeyPatch):
    refused = timed(monkeypatch, "1.5001")
    assert refused.exit_code != 0
    assert "first losses differ: 1.5000, 1.5001" in refused.output + str(refused.exception)
    refused = timed(monkeypatch, "1.5000", code=1)
    assert "2 processes: " in refused.output + str(refused.exception)
    assert "ended with 1\nwhy" in refused.output + str(refused.exception)


@LINUX
@pytest.mark.long
def test_workers_of_ray_learn_what_one_process_learns(
    example: Any, tmp_path: Path, request: pytest.FixtureRequest
):
    """The trainer of docs/training.md as it stands there."""
    if not request.config.getoption("--long"):
        pytest.skip("--long is missing: Ray takes a minute")
    pytest.importorskip("ray.train", reason="ray[train] is missing, which starts the workers")
    page = (ROOT / "docs/training.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(import tempfile.*?)```", page, re.DOTALL)
    begun = "import ray\nray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
    in_folder = f'storage_path="{tmp_path}"'
    block = block.replace("torch_config=", f"run_config=ray.train.RunConfig({in_folder}), torch_config=")
    last = ran(sys.executable, "-c", begun + block).splitlines()[-1]
    loss, _, folder = last.partition(" ")
    alone = example.train("torch.nn.GRU", epochs=2, hidden=8)
    assert_same_losses(example, [float(loss)], alone.losses[-1:])
    example.SpeakerTagger(*example.read("train")[:1], torch.nn.GRU, hidden=8).load_state_dict(
        torch.load(Path(folder, "model.pt"), weights_only=True)
    )
