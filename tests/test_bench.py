"""The benchmark: its workers' protocol, that peers compute the same, its statistics, and its files."""

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from tolerance import assert_close
from typer.testing import CliRunner

from bench.runtimes import measure, results, runner, targets
from bench.runtimes.cases import Case, grid, target_cases, vowels_case
from bench.runtimes.command import bench
from bench.runtimes.machine import Peak, peak
from bench.runtimes.peers import onnxruntime, prototype, worker
from bench.runtimes.peers import stepnet as ours
from bench.runtimes.peers import torch as torch_peer
from bench.runtimes.plot import draw
from bench.runtimes.report import comparison, remarks, times
from bench.runtimes.results import REFUSED, Result, Run, Timing
from bench.runtimes.runner import PEERS, Peer, Worker
from stepnet import cells
from stepnet.errors import FileError, InputError
from stepnet.values.version import __version__

ROOT = Path(__file__).resolve().parents[1]
TINY = Case("gru", 3, 5, 4, 16, ragged=True)
SETTINGS = measure.Settings(threads=1, rounds=3, turn=0.0, pause=0.0)


# ---- cases


def test_a_grid_has_every_combination_but_no_ragged_batch_of_one():
    cases = grid(["gru", "custom"], [1, 4], [8], [False, True], time=6)
    names = [str(case) for case in cases]
    assert names[:3] == ["gru 1x8 dense T=6", "gru 4x8 dense T=6", "gru 4x8 ragged T=6"]
    assert len(cases) == 6


def test_arrays_are_those_of_the_case_and_the_same_every_time():
    arrays, again = TINY.arrays(), TINY.arrays()
    assert {name: array.shape for name, array in arrays.items()} == {
        "W": (4, 48), "R": (16, 48), "b": (48,), "d": (48,), "values": (TINY.steps, 4), "lengths": (3,)
    }  # fmt: skip
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    assert arrays["lengths"].max() == 5
    assert arrays["lengths"].min() < 5
    assert TINY.flops == 2 * TINY.steps * 3 * 16 * (4 + 16)


def test_the_vowels_are_all_utterances():
    case = vowels_case()
    assert (case.batch, case.time, case.inputs, case.steps) == (640, 29, 12, 9961)
    assert case in target_cases()
    values = case.arrays()["values"]
    assert values.shape == (9961, 12)
    assert values[0, 0] == np.float32(1.860936)  # the first number in the file


@pytest.mark.parametrize("change", [{"cell": "gurke"}, {"dtype": "int8"}, {"batch": 0}])
def test_a_case_that_is_none_is_refused(change: dict[str, Any]):
    with pytest.raises(InputError, match=str(next(iter(change.values())))):
        replace(TINY, **change)


# ---- the protocol


def answers(peer: Any, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    lines, replies = io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), io.StringIO()
    worker.serve(peer, lines, replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def write_arrays(file: Path, case: Case) -> None:
    np.savez(file, **case.arrays())  # pyright: ignore[reportArgumentType]


def saved(file: Path | str) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


HELLO = {"do": "hello", "threads": os.cpu_count(), "options": {"form": "padded"}}


def fake_peer(**functions: Any) -> Any:
    def prepare(work: worker.Work) -> worker.Prepared:
        return worker.Prepared(lambda: work.hidden, lambda found: np.full((work.arrays["a"][0], 1), found))

    return SimpleNamespace(
        **{"start": lambda threads, options: {"fake": "1"}, "prepare": prepare} | functions
    )


def test_a_worker_answers_line_by_line(tmp_path: Path):
    np.savez(tmp_path / "in.npz", a=[2])
    prepare = {"do": "prepare", "case": {"hidden": 7}, "arrays": str(tmp_path / "in.npz")}
    prepare["outputs"] = str(tmp_path / "out.npz")
    hello, prepared, run = answers(fake_peer(), HELLO, prepare, {"do": "run", "count": 3})
    assert hello == {"versions": {"fake": "1"}}
    assert prepared["seconds"] >= 0
    assert len(run["seconds"]) == 3
    assert saved(tmp_path / "out.npz")["outputs"].tolist() == [[7], [7]]


def test_a_worker_says_what_it_lacks_and_what_it_refuses(tmp_path: Path):
    np.savez(tmp_path / "in.npz", a=[2])

    def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
        raise worker.Missing("no compiler")

    def prepare(work: worker.Work) -> worker.Prepared:
        raise worker.Refused("no such cell")

    request = {"do": "prepare", "case": {}, "arrays": str(tmp_path / "in.npz"), "outputs": ""}
    found = answers(fake_peer(start=start, prepare=prepare), HELLO, request)
    assert found == [{"missing": "no compiler"}, {"refused": "no such cell"}]


def test_a_worker_does_not_run_before_it_prepared():
    with pytest.raises(ValueError, match="'run' is not to be done now"):
        answers(fake_peer(), HELLO, {"do": "run", "count": 1})


def test_a_run_that_is_not_counted_goes_ahead():
    calls: list[int] = []
    assert len(worker.timed(lambda: calls.append(0), 4)) == 4
    assert len(calls) == 5


def test_processes_are_started_asked_and_started_again(tmp_path: Path):
    write_arrays(tmp_path / "in.npz", TINY)
    files = {"arrays": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}
    with Worker(PEERS[0], 1, {"engine": "interpret"}) as process:
        assert process.versions == {"stepnet": __version__}
        assert "seconds" in process.ask(do="prepare", case=TINY.record, **files)
        assert saved(files["outputs"])["outputs"].shape == (TINY.steps, 16)
        with pytest.raises(runner.WorkerError, match="ValueError: 'dance' is not to be done now"):
            process.ask(do="dance")
        assert not process.running
        process.start()
        assert process.missing is None


def test_a_peer_that_cannot_be_started_says_why():
    with Worker(Peer("none", "no_such_module"), 1) as process:
        assert "no_such_module" in (process.missing or "")
    with Worker(Peer("none", "stepnet", environment="nowhere"), 1) as process:
        assert "make bench-peers" in (process.missing or "")


def test_peers_are_chosen_by_name():
    assert [peer.name for peer in runner.chosen(["torch"])] == ["stepnet", "torch"]
    with pytest.raises(InputError, match="no peer is called 'torhc'"):
        runner.chosen(["torhc"])


def test_the_last_words_are_the_error():
    text = "warning\nTraceback (most recent call last):\n  File\n    x\nValueError: one\n  two\n"
    assert runner.last_words(text) == "ValueError: one two"
    assert runner.last_words("Killed\n\n") == "Killed"
    assert runner.last_words("") == "the process ended without a word"


# ---- what peers compute


def prepared_outputs(peer: ModuleType, case: Case, **options: Any) -> Any:
    prepared = worker.prepared_by(peer, worker.Work(case.record, case.arrays(), 1, options))
    return prepared.outputs(prepared.run())


def expected_outputs(case: Case) -> np.ndarray:
    """The cell's equations, one sequence and one step after the other, in float64."""
    arrays = {name: array.astype(np.float64) for name, array in case.arrays().items()}
    found: list[np.ndarray] = []
    for values in np.split(arrays["values"], np.cumsum(case.lengths)[:-1]):
        h = np.zeros((1, case.hidden))
        memory: Any = {"h": h, "c": h} if case.cell == "lstm" else h
        for x in values:
            output, memory = ours.STEPS[case.cell](x[None], memory, arrays)
            found.append(output[0])
    return np.array(found)


FORMS = {
    "stepnet": (ours, {"engine": "interpret"}),
    "torch": (torch_peer, {"form": "padded"}),
    "torch packed": (torch_peer, {"form": "packed"}),
    "torch loop": (torch_peer, {"form": "loop"}),
    "onnxruntime": (onnxruntime, {}),
    "prototype": (prototype, {}),
}


def has(name: str, cell: str, ragged: bool) -> bool:
    """Whether a peer has a cell in this form."""
    if name in ("stepnet", "torch loop"):
        return True
    if name == "prototype":
        return cell == "gru" and not ragged
    return cell in ("gru", "lstm") and (ragged or name != "torch packed")


WHY = "has no operator for a|torch.nn has no|nothing to pack: |the prototype is a dense float32 GRU"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("cell", ["gru", "lstm", "minimal", "custom"])
@pytest.mark.parametrize("ragged", [False, True])
def test_every_peer_computes_the_same_or_refuses(name: str, cell: str, ragged: bool):
    case = replace(TINY, cell=cell, ragged=ragged)
    peer, options = FORMS[name]
    if not has(name, cell, ragged):
        with pytest.raises(worker.Refused, match=WHY):
            prepared_outputs(peer, case, **options)
        return
    found = prepared_outputs(peer, case, **options)
    assert_close(found, expected_outputs(case), length=case.time, width=case.inputs + case.hidden)


def named_peer(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


@pytest.mark.parametrize("name", ["openvino", "jax"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("ragged", [False, True])
def test_peers_of_other_environments_compute_the_same(name: str, cell: str, ragged: bool, tmp_path: Path):
    case = replace(TINY, cell=cell, ragged=ragged)
    write_arrays(tmp_path / "in.npz", case)
    files = {"arrays": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}
    with Worker(named_peer(name), 1) as process:
        if process.missing is not None:
            pytest.skip(process.missing)
        process.ask(do="prepare", case=case.record, **files)
    found = saved(files["outputs"])["outputs"]
    assert_close(found, expected_outputs(case), length=case.time, width=case.inputs + case.hidden)


# ---- training


def expected_gradients(case: Case) -> dict[str, np.ndarray]:
    """Those of PyTorch's autograd through the equations in a loop, in float64."""
    return prepared_outputs(torch_peer, replace(case, dtype="float64"), form="loop")


TRAINING = {
    "stepnet": (ours, {}),
    "torch": (torch_peer, {"form": "padded"}),
    "torch packed": (torch_peer, {"form": "packed"}),
    "torch loop": (torch_peer, {"form": "loop"}),
}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("cell", ["gru", "lstm", "minimal", "custom"])
@pytest.mark.parametrize("ragged", [False, True])
def test_every_peer_computes_the_same_gradients_or_refuses(name: str, cell: str, ragged: bool):
    case = replace(TINY, cell=cell, ragged=ragged, training=True)
    peer, options = TRAINING[name]
    if not has(name, cell, ragged):
        with pytest.raises(worker.Refused, match=WHY):
            prepared_outputs(peer, case, **options)
        return
    gradients, expected = prepared_outputs(peer, case, **options), expected_gradients(case)
    assert {key: array.shape for key, array in gradients.items()} == case.answers
    for key, right in expected.items():
        assert np.abs(right).max() > 0.1
        assert_close(gradients[key], right, length=case.steps, width=case.inputs + case.hidden)


@pytest.mark.parametrize("cell", ["gru", "lstm", "minimal", "custom"])
def test_jax_computes_the_same_gradients(cell: str, tmp_path: Path):
    case = replace(TINY, cell=cell, training=True)
    write_arrays(tmp_path / "in.npz", case)
    with Worker(named_peer("jax"), 1) as process:
        if process.missing is not None:
            pytest.skip(process.missing)
        outputs = str(tmp_path / "out.npz")
        process.ask(do="prepare", case=case.record, arrays=str(tmp_path / "in.npz"), outputs=outputs)
    gradients = saved(outputs)
    for key, right in expected_gradients(case).items():
        assert_close(gradients[key], right, length=case.steps, width=case.inputs + case.hidden)


def test_who_computes_no_gradients_refuses(tmp_path: Path):
    case = replace(TINY, ragged=False, training=True)
    write_arrays(tmp_path / "in.npz", case)
    request = {"do": "prepare", "case": case.record, "arrays": str(tmp_path / "in.npz"), "outputs": ""}
    assert answers(prototype, HELLO, request)[1] == {"refused": "it computes no gradients"}


def test_gradients_are_compared_by_their_largest_number():
    case = replace(TINY, training=True)
    right = {name: np.full(shape, 100.0) for name, shape in case.answers.items()}
    near = {name: array + 1e-4 for name, array in right.items()}
    far = right | {"R": right["R"] + 0.1}
    assert measure.wrong(near, right, case) is None
    assert (measure.wrong(far, right, case) or "").startswith("wrong: R 1.0e-03 away from stepnet")


def test_training_has_three_times_the_products():
    case = replace(TINY, training=True)
    assert case.flops == 3 * TINY.flops
    assert str(case) == f"{TINY} training"
    assert case.arrays()["cotangents"].shape == (case.steps, case.hidden)


def test_the_named_cells_are_run_by_name():
    assert ours.STEPS["gru"] is cells.gru
    assert ours.STEPS["lstm"] is cells.lstm


# ---- timing


@dataclass(eq=False)
class FakeWorker:
    """A worker that does nothing, keeps what it was asked, and takes the seconds that it is told."""

    name: str
    log: list[str]
    takes: float = 1.0
    spoil: Any = np.asarray
    missing: str | None = None
    running: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def peer(self) -> Peer:
        return Peer(self.name, "")

    def ask(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        self.log.append(f"{self.name} {request['do']}")
        if request["do"] == "run":
            return {"seconds": [self.takes] * request["count"]}
        outputs = self.spoil(np.ones((TINY.steps, TINY.hidden), np.float32))
        if isinstance(outputs, str):
            return {"refused": outputs}
        np.savez(request["outputs"], outputs=outputs)
        return {"seconds": 0.5}


def measured(*processes: FakeWorker) -> Result:
    return measure.measure(TINY, processes, SETTINGS)  # pyright: ignore[reportArgumentType]


def test_peers_take_turns():
    log: list[str] = []
    measured(*(FakeWorker(name, log) for name in ("stepnet", "a", "b")))
    assert log == [f"{name} {do}" for do in ("prepare", *["run"] * 4) for name in ("stepnet", "a", "b")]


def test_a_turn_has_as_many_calls_as_fill_it():
    process = FakeWorker("stepnet", [], takes=0.01)
    settings = replace(SETTINGS, turn=0.05)
    result = measure.measure(TINY, [process], settings)  # pyright: ignore[reportArgumentType]
    assert [request["count"] for request in process.asked[1:]] == [1, 5, 5, 5]
    assert result.timings["stepnet"] == Timing((0.01, 0.01, 0.01), 5, 0.5)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda outputs: outputs + np.float32(1e-3), "wrong: outputs 1.0e-03 away from stepnet"),
        (lambda outputs: outputs * np.float32(np.nan), "wrong: outputs are not finite"),
        (lambda outputs: outputs[1:], "wrong: the shapes are "),
        (lambda _: "not that cell", REFUSED + "not that cell"),
    ],
)
def test_who_computes_something_else_is_not_timed(spoil: Any, why: str):
    wrong = FakeWorker("a", [], spoil=spoil)
    result = measured(FakeWorker("stepnet", []), wrong, FakeWorker("b", []))
    assert set(result.timings) == {"stepnet", "b"}
    assert result.failures["a"].startswith(why)
    assert [request["do"] for request in wrong.asked] == ["prepare"]


def test_rounding_is_not_wrong():
    near = FakeWorker("a", [], spoil=lambda outputs: outputs * (1 + np.float32(1e-6)))
    assert set(measured(FakeWorker("stepnet", []), near).timings) == {"stepnet", "a"}


def test_the_machine_reaches_something():
    found = peak("float32", 10_000, threads=1)
    assert found.flops > 1e8
    assert found.bandwidth > 1e8
    assert 0 < found.quiet <= 1
    assert Peak.of([Peak(1, 5, 0.2), Peak(3, 4, 0.9), Peak(2, 2, 0.8)]) == Peak(3, 5, 0.8)


# ---- results


def a_run(ours: float = 1.0) -> Run:
    timings = {
        "stepnet": Timing((ours, ours * 1.1, ours * 0.9), 3, 0.1),
        "prototype": Timing((0.5, 0.5, 0.5), 3, 0.1),
        "torch": Timing((2.0, 2.2, 3.6), 3, 0.1),
        "b": Timing((4.0, 4.0, 4.0), 3, 0.1),
    }
    result = Result(TINY, timings, {"c": "wrong: far", "d": REFUSED + "no"}, Peak(1e9, 1e9, 1.0))
    machine = {"processor": "p", "processors": 2, "threads": 2, "vectors": "v", "system": "s", "python": "3"}
    versions = {"stepnet": {"stepnet": "0"}, "torch": {"torch": "2"}}
    return Run((result,), machine, versions, {"e": "make bench-peers"}, {"rounds": 3}, "python -m bench")


def test_the_best_peer_is_the_fastest_that_is_no_mark():
    result = a_run().results[0]
    assert result.best == "torch"
    assert result.ratio("torch") == pytest.approx(2.0)  # of the rounds 2, 2 and 4
    assert result.ratio("prototype") == pytest.approx(0.5)
    assert result.ratio("c") is None
    assert result.compute_share == pytest.approx(TINY.flops / 1e9)


def test_a_saved_run_is_read_again(tmp_path: Path):
    run = a_run()
    results.save(run, tmp_path / "new" / "run.json")
    assert results.load(tmp_path / "new" / "run.json") == run


def test_the_saved_form_is_what_readers_rely_on():
    record = results.to_record(a_run())
    assert set(record) == {
        "format", "version", "date", "command", "machine", "versions", "missing", "settings", "facts", "cases"
    }  # fmt: skip
    (case,) = record["cases"]
    assert set(case) == {
        "case", "name", "flops", "weight_bytes", "peak", "timings", "failures", "best_peer", "ratio",
        "compute_share", "stream_share",
    }  # fmt: skip
    assert set(case["timings"]["torch"]) == {"rounds", "calls", "preparing", "median", "spread"}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda record: [], "should be a dict"),
        (lambda record: record | {"format": "other"}, "no saved benchmark"),
        (lambda record: record | {"version": 9}, "version 9"),
        (lambda record: record | {"cases": None}, "'cases' should be a list"),
        (lambda record: record | {"cases": [1]}, "'case' should be a dict"),
        (lambda record: record | {"cases": [record["cases"][0] | {"case": {"cell": "x"}}]}, "damaged case"),
    ],
)
def test_a_file_that_is_no_saved_run_is_refused(spoil: Any, message: str, tmp_path: Path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(spoil(results.to_record(a_run()))), encoding="utf-8")
    with pytest.raises(FileError, match=message):
        results.load(file)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(FileError, match="no JSON"):
        results.load(file)
    with pytest.raises(FileError, match=r"missing\.json"):
        results.load(tmp_path / "missing.json")


def test_two_runs_are_compared_case_by_case():
    before, now = a_run(3.0), a_run(1.0)
    (change,) = results.changes(before, now)
    assert change.ratio == pytest.approx(3.0)
    assert change.sure
    (same,) = results.changes(now, a_run(1.05))
    assert not same.sure  # the rounds of both overlap
    assert results.changes(before, replace(now, results=())) == []
    other = replace(now, machine=now.machine | {"threads": 1}, versions={"torch": {"torch": "3"}})
    assert results.differences(before, other) == ["threads: 2 -> 1", "torch: 2 -> 3"]
    assert comparison([change]).row_count == 1


def test_promises_are_looked_up_in_a_run():
    size = Case("gru", 16, 100, 256, 256)
    run = replace(
        a_run(), results=(replace(a_run().results[0], case=size),), facts={"importing stepnet": 0.2}
    )
    found = {target.name: (target.found, target.kept) for target in targets.targets(run)}
    assert found == {
        "gru 16x256 dense, time of the prototype's": (pytest.approx(2.0), False),
        "gru 16x256 dense, torch's time of ours": (pytest.approx(2.0), False),
        "importing stepnet": (0.2, True),
        "cold compile of a GRU": (None, None),
    }


def test_a_table_names_what_was_not_timed():
    run = a_run()
    assert times(run).row_count == 1
    text = "\n".join(remarks(run))
    assert "make bench-peers" in text
    assert "wrong: far" in text
    assert run.wrong == [(TINY, "c", "wrong: far")]
    busy = replace(run.results[0], peak=Peak(1e9, 1e9, 0.4))
    assert "other processes took 60%" in "\n".join(remarks(replace(run, results=(busy,))))


def test_a_plot_is_a_picture(tmp_path: Path):
    draw(a_run(), tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    with pytest.raises(InputError, match=r"run\.gif"):
        draw(a_run(), tmp_path / "run.gif")


def test_matplotlib_is_not_imported_without_a_plot():
    code = (
        "import sys, bench.runtimes.command; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- the command


def invoked(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_times_saves_and_compares(tmp_path: Path):
    file = str(tmp_path / "run.json")
    size = ("--cell", "custom", "--batch", "2", "--hidden", "8", "--time", "4", "--ragged", "ragged")
    how = ("--peers", "stepnet", "--engine", "interpret", "--quick", "--rounds", "1", "--threads", "1")
    first = invoked(*size, *how, "--json", "--save", file)
    assert first.exit_code == 0, first.output
    record = json.loads(first.stdout)
    assert record == json.loads(Path(file).read_text(encoding="utf-8"))
    assert [case["name"] for case in record["cases"]] == ["custom 2x8 ragged T=4"]
    assert list(record["cases"][0]["timings"]) == ["stepnet"]
    second = invoked(*size, *how, "--compare", file)
    assert second.exit_code == 0, second.output
    assert "before and now" in second.output


def test_wrong_usage_is_told_apart_from_wrong_input():
    assert invoked("--batch", "two").exit_code == 2
    assert isinstance(invoked("--peers", "nobody").exception, InputError)
    assert isinstance(
        invoked("--batch", "1", "--ragged", "ragged", "--peers", "stepnet").exception, InputError
    )


def test_it_runs_from_the_repository_and_wrong_input_is_one_line():
    command = [sys.executable, "-m", "bench", "--peers", "nobody"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bench: no peer is called 'nobody'; there are stepnet, prototype,")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["grid", "targets"])
def test_saved_runs_are_read(name: str):
    run = results.load(ROOT / "bench" / "saved" / f"{name}.json")
    assert run.command.startswith("stepnet bench ")
    assert all(result.ours is not None for result in run.results)
