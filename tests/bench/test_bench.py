"""The benchmark: its workers' protocol, that peers compute the same, its statistics, and its files."""

import io
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from installed_onednn import missing_onednn
from tolerance import assert_close
from typer.testing import CliRunner

from bench.runtimes import charts, command, groups, measure, oracle, page, results, runner, saved, targets
from bench.runtimes.cases import Case
from bench.runtimes.command import bench, parts_of
from bench.runtimes.groups import GROUPS, PRESETS, chosen_cases, grid, vowels_case
from bench.runtimes.machine import Peak, peak
from bench.runtimes.peers import onednn, onnxruntime, prototype, worker
from bench.runtimes.peers import stepnet as ours
from bench.runtimes.peers import torch as torch_peer
from bench.runtimes.peers.equations import CELLS, EPSILON
from bench.runtimes.plot import draw
from bench.runtimes.repeated import Repeated, repeated
from bench.runtimes.report import comparison, remarks, times
from bench.runtimes.restricted import restricted
from bench.runtimes.results import REFUSED, Result, Run, Timing
from bench.runtimes.runner import PEERS, Peer, Worker
from bench.runtimes.saved import Saved
from stepnet import __version__, cells
from stepnet.errors import FileError, InputError

ROOT = Path(__file__).resolve().parents[2]
TINY = Case("gru", 3, 5, 4, 16, "ragged")
SETTINGS = measure.Settings(threads=1, rounds=3, turn=0.0, pause=0.0)


# ---- cases


def test_a_grid_has_every_combination_but_no_ragged_batch_of_one():
    cases = grid(["gru", "custom"], [1, 4], [8], ["dense", "ragged"], time=6)
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
    assert case in GROUPS["targets"].cases
    values = case.arrays()["values"]
    assert values.shape == (9961, 12)
    assert values[0, 0] == np.float32(1.860936)  # the first number in the file


@pytest.mark.parametrize(
    "change",
    [
        {"cell": "gurke"},
        {"dtype": "int8"},
        {"batch": 0},
        {"mode": "dance"},
        {"lengths": "even"},
        {"directions": 3},
    ],
)
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


def loaded(file: Path | str) -> dict[str, np.ndarray]:
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
    assert loaded(tmp_path / "out.npz")["outputs"].tolist() == [[7], [7]]


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
        assert loaded(files["outputs"])["outputs"].shape == (TINY.steps, 16)
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


def test_peers_are_restricted_to_the_same_instructions_or_left_out_by_name(monkeypatch: pytest.MonkeyPatch):
    asked = runner.chosen(["torch", "onnxruntime", "onednn"])
    assert restricted(asked) == (asked, {})
    monkeypatch.setenv("STEPNET_CPU", "x86-64-v3")
    found, left_out = restricted(asked)
    variables = {peer.name: dict(peer.variables) for peer in found}
    assert variables["torch"]["ATEN_CPU_CAPABILITY"] == "avx2"
    assert variables["onednn"] == {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert variables["stepnet"] == {}
    assert left_out == {
        "onnxruntime": "no variable restricts it to the instructions of STEPNET_CPU=x86-64-v3"
    }
    monkeypatch.setenv("STEPNET_CPU", "generic")
    assert [peer.name for peer in restricted(asked)[0]] == ["stepnet"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64 are restricted")
def test_a_restricted_torch_says_so():
    peer = restricted_torch()
    told = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"],
        env={**os.environ, **peer.variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "AVX2"


def restricted_torch() -> Peer:
    """Returns the peer torch as STEPNET_CPU=x86-64-v3 restricts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPNET_CPU", "x86-64-v3")
        return next(peer for peer in restricted(runner.chosen(["torch"]))[0] if peer.name == "torch")


def test_the_last_words_are_the_error():
    text = "warning\nTraceback (most recent call last):\n  File\n    x\nValueError: one\n  two\n"
    assert runner.last_words(text) == "ValueError: one two"
    assert runner.last_words("Killed\n\n") == "Killed"
    assert runner.last_words("") == "the process ended without a word"


# ---- what peers compute


def prepared_outputs(peer: ModuleType, case: Case, **options: Any) -> Any:
    prepared = worker.prepared_by(peer, worker.Work(case.record, case.arrays(), 1, options))
    return prepared.outputs(prepared.run())


def one_by_one(case: Case) -> np.ndarray:
    """stepnet's own cells or the equations, one sequence and one step after the other, in float64."""
    arrays = {name: array.astype(np.float64) for name, array in case.arrays().items()}
    shapes = CELLS[case.cell].memory(case.hidden)
    found: list[np.ndarray] = []
    for values in np.split(arrays["values"], np.cumsum(case.steps_of)[:-1]):
        zeros = {name: np.zeros((1, *shape)) for name, shape in shapes.items()}
        memory: Any = zeros if len(zeros) > 1 else zeros["h"]
        for x in values:
            output, memory = ours.STEPS[case.cell](x[None], memory, arrays)
            found.append(output.reshape(-1))
    return np.array(found)


def assert_right(found: Any, case: Case) -> None:
    """Outputs, or gradients, are those of the oracle."""
    right = oracle.expected(case, case.arrays())
    answers = found if isinstance(found, dict) else {"outputs": found}
    assert {name: array.shape for name, array in answers.items()} == case.answers
    for name, array in answers.items():
        length = case.layers * (case.steps if case.training else case.time)
        assert np.abs(right[name]).max() > 0.05
        assert_close(array, right[name], length=length, width=case.inputs + case.hidden)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("lengths", ["dense", "ragged"])
@pytest.mark.parametrize("cell", CELLS)
def test_the_oracle_takes_one_sequence_and_one_step_after_the_other(cell: str, lengths: str):
    case = replace(TINY, cell=cell, lengths=lengths, dtype="float64")
    right = oracle.expected(case, case.arrays())["outputs"]
    assert_close(right, one_by_one(case), length=case.time, width=case.inputs + case.hidden)


def test_the_oracle_s_layers_and_directions_are_those_of_torch():
    case = replace(TINY, cell="lstm", layers=2, directions=2, dtype="float64")
    found = prepared_outputs(torch_peer, case, form="packed")
    assert_close(oracle.expected(case, case.arrays())["outputs"], found, length=case.time, width=48)


def test_the_oracle_s_gradients_are_those_of_finite_differences():
    case = replace(TINY, cell="layernorm_lstm", mode="training", dtype="float64")
    arrays, random = case.arrays(), np.random.default_rng(3)
    gradients = oracle.expected(case, arrays)
    for name, gradient in gradients.items():
        direction = random.standard_normal(gradient.shape)
        sides: list[float] = []
        for step in (1e-6, -1e-6):
            moved = arrays | {name: arrays[name] + step * direction}
            outputs = oracle.expected(replace(case, mode="forward"), moved)["outputs"]
            sides.append(float((outputs * arrays["cotangents"]).sum()))
        slope = (sides[0] - sides[1]) / 2e-6
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-6, abs=1e-7)


def test_a_normalized_row_has_mean_zero_and_variance_one():
    found = oracle.FUNCTIONS.normalized(np.array([[1.0, 3.0]]))
    assert found[0] == pytest.approx([-1 / (1 + EPSILON) ** 0.5, 1 / (1 + EPSILON) ** 0.5])


FORMS = {
    "stepnet": (ours, {"engine": "interpret"}),
    "torch": (torch_peer, {"form": "padded"}),
    "torch packed": (torch_peer, {"form": "packed"}),
    "torch loop": (torch_peer, {"form": "loop"}),
    "onnxruntime": (onnxruntime, {}),
    "onednn": (onednn, {}),
    "prototype": (prototype, {}),
}
TAKES_EQUATIONS = ("stepnet", "torch loop")


def has(name: str, case: Case) -> bool:
    """True if a peer has a case."""
    if name in TAKES_EQUATIONS:
        return True
    if name == "prototype":
        return case.cell == "gru" and not case.ragged and case.layers == case.directions == 1
    packs = name == "torch packed" and not case.ragged
    padded = name == "torch" and case.ragged and case.directions > 1
    return case.cell in ("gru", "lstm") and not packs and not padded


WHY = "has no |nothing to pack: |the prototype is a dense float32 GRU|would begin in the padding"
VARIANTS: list[dict[str, Any]] = [
    *({"cell": cell, "lengths": lengths} for cell in CELLS for lengths in ("dense", "ragged")),
    *({"cell": cell, "lengths": lengths, "layers": 2, "directions": 2}
      for cell in ("gru", "lstm") for lengths in ("dense", "ragged")),
]  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_peer_computes_the_same_or_refuses(name: str):
    peer, options = FORMS[name]
    if name == "onednn" and (reason := missing_onednn()):
        pytest.skip(reason)
    for variant in VARIANTS:
        case = replace(TINY, **variant)
        if has(name, case):
            assert_right(prepared_outputs(peer, case, **options), case)
            continue
        with pytest.raises(worker.Refused, match=WHY):
            prepared_outputs(peer, case, **options)


STREAMS = {
    "stepnet": (ours, {"engine": "llvm"}),
    "torch": (torch_peer, {"form": "padded"}),
    "onnxruntime": (onnxruntime, {}),
    "onnxruntime bound": (onnxruntime, {"bound": True}),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_stream_carries_its_state_from_step_to_step(name: str, cell: str):
    case = replace(TINY, cell=cell, lengths="dense", mode="stream")
    peer, options = STREAMS[name]
    assert_right(prepared_outputs(peer, case, **options), case)


def test_who_has_no_streams_and_no_gradients_refuses(tmp_path: Path):
    for mode, why in (("stream", "it does not carry on"), ("training", "it computes no gradients")):
        case = replace(TINY, lengths="dense", mode=mode)
        write_arrays(tmp_path / "in.npz", case)
        request = {"do": "prepare", "case": case.record, "arrays": str(tmp_path / "in.npz"), "outputs": ""}
        assert answers(prototype, HELLO, request)[1]["refused"].startswith(why)


OTHERS = [peer for peer in PEERS if peer.environment]
EVERYTHING: list[dict[str, Any]] = [
    *({"cell": cell, "lengths": lengths} for cell in ("gru", "lstm") for lengths in ("dense", "ragged")),
    {"cell": "gru", "lengths": "ragged", "layers": 2, "directions": 2},
    {"cell": "lstm", "lengths": "dense", "mode": "stream"},
    {"cell": "gru", "mode": "training"},
    {"cell": "lstm", "layers": 2, "mode": "training"},
]


@pytest.mark.parametrize("peer", OTHERS, ids=lambda peer: peer.name)
def test_peers_of_other_environments_compute_the_same_or_refuse(peer: Peer, tmp_path: Path):
    with Worker(peer, 1) as process:
        if process.missing is not None:
            pytest.skip(process.missing)
        for variant in EVERYTHING:
            case = replace(TINY, **variant)
            write_arrays(tmp_path / "in.npz", case)
            outputs = str(tmp_path / "out.npz")
            reply = process.ask(
                do="prepare", case=case.record, arrays=str(tmp_path / "in.npz"), outputs=outputs
            )
            if "refused" in reply:
                assert (peer.name, case.mode) == ("openvino", "training")
                continue
            found = loaded(outputs)
            assert_right(found if case.training else found["outputs"], case)


# ---- training


TRAINING = {name: (peer, {} if name == "stepnet" else options) for name, (peer, options) in FORMS.items()}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ["stepnet", "torch", "torch packed", "torch loop"])
@pytest.mark.parametrize("cell", ["gru", "lstm", "custom", "layernorm_lstm"])
@pytest.mark.parametrize("lengths", ["dense", "ragged"])
def test_every_peer_computes_the_same_gradients_or_refuses(name: str, cell: str, lengths: str):
    case = replace(TINY, cell=cell, lengths=lengths, mode="training")
    peer, options = TRAINING[name]
    if has(name, case):
        assert_right(prepared_outputs(peer, case, **options), case)
        return
    with pytest.raises(worker.Refused, match=WHY):
        prepared_outputs(peer, case, **options)


def test_gradients_are_compared_by_their_largest_number():
    case = replace(TINY, mode="training")
    right = {name: np.full(shape, 100.0) for name, shape in case.answers.items()}
    near = {name: array + 1e-4 for name, array in right.items()}
    far = right | {"R": right["R"] + 0.1}
    assert oracle.wrong(near, right, case) is None
    assert (oracle.wrong(far, right, case) or "").startswith("wrong: R 1.0e-03 away from float64")


def test_training_has_three_times_the_products():
    case = replace(TINY, mode="training")
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
    spins: int = 0
    starts: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def peer(self) -> Peer:
        return Peer(self.name, "")

    @property
    def processor_seconds(self) -> float:
        self.spins = max(0, self.spins - 1)
        return float(self.spins)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        self.log.append(f"{self.name} {request['do']}")
        if request["do"] == "run":
            return {"seconds": [self.takes] * request["count"]}
        outputs = self.spoil(oracle.expected(TINY, TINY.arrays())["outputs"].astype(np.float32))
        if isinstance(outputs, str):
            return {"refused": outputs}
        np.savez(request["outputs"], outputs=outputs)
        return {"seconds": 0.5}

    def stop(self) -> None:
        self.log.append(f"{self.name} stop")

    def start(self, variables: dict[str, str]) -> None:
        self.starts.append(variables)
        self.log.append(f"{self.name} start")


def measured(*processes: FakeWorker) -> Result:
    return measure.measure(TINY, processes, SETTINGS)  # pyright: ignore[reportArgumentType]


def test_peers_take_turns():
    log: list[str] = []
    measured(*(FakeWorker(name, log) for name in ("stepnet", "a", "b")))
    assert log == [f"{name} {do}" for do in ("prepare", *["run"] * 4) for name in ("stepnet", "a", "b")]


def test_the_next_turn_waits_for_threads_that_spin(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    spinning: Any = FakeWorker("a", [], spins=5)
    measure.settle(spinning, replace(SETTINGS, pause=0.01))
    assert slept == [0.01] * 6
    clock = iter(range(100))
    monkeypatch.setattr(measure.time, "monotonic", lambda: 0.1 * next(clock))
    spinning.spins = 1000
    measure.settle(spinning, replace(SETTINGS, pause=0.01, most_pause=0.35))
    assert len(slept) == 6 + 4  # three that fit, and the last


def test_the_time_that_a_process_had_grows_while_it_works(tmp_path: Path):
    write_arrays(tmp_path / "in.npz", TINY)
    files = {"arrays": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}
    with Worker(PEERS[0], 1, {"engine": "interpret"}) as process:
        before = process.processor_seconds
        if before is None:
            pytest.skip("the system does not say")
        process.ask(do="prepare", case=TINY.record, **files)
        process.ask(do="run", count=60)
        assert (process.processor_seconds or 0) > before


def test_a_start_is_a_process_of_its_own_with_caches_that_are_empty_if_it_is_cold():
    files = Path("in.npz"), Path("/dev/null")
    for mode, variables in (("start", set[str]()), ("cold start", {*measure.CACHES})):
        process: Any = FakeWorker("a", [])
        process.spoil = lambda _, starts=process.starts: "no" if starts[1:] else np.zeros(1)
        case = replace(TINY, mode=mode)
        assert measure.turn(process, case, 1, files) > 0
        assert process.log == ["a stop", "a start", "a prepare"]
        assert set(process.starts[0]) == variables
        with pytest.raises(runner.WorkerError, match="no result"):
            measure.turn(process, case, 1, files)


def test_busy_processes_run_during_the_rounds_alone(monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []

    class Process:
        def __init__(self, command: list[str]) -> None:
            events.append("begin")

        def kill(self) -> None:
            events.append("end")

        def wait(self) -> None:
            pass

    monkeypatch.setattr(measure.subprocess, "Popen", Process)
    with measure.counting(2):
        events.append("rounds")
    assert events == ["begin", "begin", "rounds", "end", "end"]


def test_a_turn_has_as_many_calls_as_fill_it():
    process = FakeWorker("stepnet", [], takes=0.01)
    settings = replace(SETTINGS, turn=0.05)
    result = measure.measure(TINY, [process], settings)  # pyright: ignore[reportArgumentType]
    assert [request["count"] for request in process.asked[1:]] == [1, 5, 5, 5]
    assert result.timings["stepnet"] == Timing((0.01, 0.01, 0.01), 5, 0.5)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda outputs: outputs + np.float32(1e-3), "wrong: outputs 1.0e-03 away from float64"),
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


def a_run(ours: float = 1.0, **fields: Any) -> Run:
    timings = {
        "stepnet": Timing((ours, ours * 1.1, ours * 0.9), 3, 0.1),
        "prototype": Timing((0.5, 0.5, 0.5), 3, 0.1),
        "torch": Timing((2.0, 2.2, 3.6), 3, 0.1),
        "b": Timing((4.0, 4.0, 4.0), 3, 0.1),
    }
    result = Result(TINY, timings, {"c": "wrong: far", "d": REFUSED + "no"}, Peak(1e9, 1e9, 1.0))
    machine = {"processor": "p", "processors": 2, "threads": 2, "vectors": "v", "system": "s", "python": "3"}
    versions = {"stepnet": {"stepnet": "0"}, "torch": {"torch": "2"}}
    run = Run((result,), machine, versions, {"e": "make bench-peers"}, {"rounds": 3}, "python -m bench")
    return replace(run, **fields)


def timed(case: Case, group: str, **seconds: float) -> Result:
    """A result whose rounds are all the same."""
    timings = {name.replace("_", " "): Timing((value,) * 3, 1, 0.1) for name, value in seconds.items()}
    return Result(case, timings, {}, Peak(1e9, 1e9, 1.0), group)


def test_the_best_peer_is_the_fastest_that_is_no_mark():
    result = a_run().results[0]
    assert result.best == "torch"
    assert result.ratio("torch") == pytest.approx(2.0)  # of the rounds 2, 2 and 4
    assert result.ratio("prototype") == pytest.approx(0.5)
    assert result.ratio("c") is None
    assert result.compute_share == pytest.approx(TINY.flops / 1e9)


def test_times_are_in_the_unit_of_the_mode():
    stream = replace(TINY, lengths="dense", mode="stream")
    assert timed(TINY, "", stepnet=0.5).shown("stepnet") == pytest.approx(500)  # milliseconds
    assert timed(stream, "", stepnet=0.5).shown("stepnet") == pytest.approx(1e5)  # microseconds of 5 steps
    assert timed(stream, "").shown("stepnet") is None
    assert timed(replace(TINY, mode="start"), "", stepnet=0.5).compute_share is None


def test_a_case_is_disturbed_where_rounds_are_far_apart_or_the_machine_was_busy():
    quiet = timed(TINY, "", stepnet=1.0, torch=2.0)
    assert not quiet.disturbed
    apart = Timing((1.0, 1.0, 1.4, 1.4), 1, 0.1)  # quartiles 1.0 and 1.4, a third of the median 1.2
    assert replace(quiet, timings=quiet.timings | {"stepnet": apart}).disturbed
    assert replace(quiet, timings=quiet.timings | {"torch": apart}).disturbed
    assert not replace(quiet, timings=quiet.timings | {"b": Timing((5.0, 9.0), 1, 0.1)}).disturbed
    assert replace(quiet, peak=Peak(1e9, 1e9, 0.5)).disturbed
    assert not replace(quiet, case=replace(TINY, busy=1), peak=Peak(1e9, 1e9, 0.5)).disturbed


def test_means_are_geometric():
    other = replace(TINY, hidden=32)
    two = [timed(TINY, "g", stepnet=1.0, torch=4.0, jax=2.0), timed(other, "g", stepnet=2.0, torch=2.0)]
    assert results.mean_ratio(two, "torch") == pytest.approx(2.0)  # of 4 and 1
    assert results.mean_ratio(two, "jax") == pytest.approx(2.0)  # of 2 alone
    assert results.mean_ratio(two) == pytest.approx(2**0.5)  # of 2 (jax) and 1 (torch)
    assert results.mean_ratio(two, "paddle") is None


def test_a_saved_run_is_read_again(tmp_path: Path):
    run = a_run()
    saved.save(run, tmp_path / "new" / "run.json")
    assert saved.load(tmp_path / "new" / "run.json") == Saved((run,))


def test_a_file_keeps_the_last_three_results_of_a_case(tmp_path: Path):
    file, other = tmp_path / "run.json", replace(TINY, hidden=32)
    first = a_run(
        results=(timed(TINY, "a", stepnet=1.0), timed(other, "a", stepnet=2.0)), date="1", facts={"x": 1.0}
    )
    later = [a_run(results=(timed(TINY, "a", stepnet=time),), date=f"{time:.0f}") for time in (3.0, 4.0, 5.0)]
    for run in (first, *later[:2]):
        saved.save(run, file)
    assert [one.timings["stepnet"].seconds for one in saved.load(file).results] == [1.0, 2.0, 3.0, 4.0]
    saved.save(later[2], file)  # the result of 1.0 is left out, and its run stays for the other case
    four = saved.load(file)
    assert [one.timings["stepnet"].seconds for one in four.results] == [2.0, 3.0, 4.0, 5.0]
    assert (four.facts, [run.date for run in four.runs]) == ({"x": 1.0}, ["1", "3", "4", "5"])
    last = [a_run(results=(timed(other, "a", stepnet=6.0),), date=date, facts={"x": 2.0}) for date in "678"]
    for run in last:
        saved.save(run, file)
    assert [run.date for run in saved.load(file).runs] == ["3", "4", "5", "6", "7", "8"]
    elsewhere = replace(first, machine=first.machine | {"threads": 1})
    before = saved.load(file)
    with pytest.raises(InputError, match="results with threads 2, and this run has 1"):
        saved.save(elsewhere, file)
    assert saved.load(file) == before


def test_figures_of_several_runs_are_their_medians():
    runs = (
        timed(TINY, "gru", stepnet=1.0, torch=2.0, jax=1.5, prototype=0.1),
        timed(TINY, "gru", stepnet=2.0, torch=2.0, onednn=5.0),
        replace(timed(TINY, "gru", stepnet=4.0, torch=5.0), failures={"jax": "no", "openvino": "no cell"}),
    )
    other = timed(replace(TINY, hidden=32), "gru", stepnet=1.0, torch=3.0)
    one, two = repeated((runs[0], other, *runs[1:]))
    assert (one.runs, two.runs) == (runs, (other,))
    assert one.ratios("torch") == [2.0, 1.0, 1.25]
    assert (one.ratio("torch"), one.ratio("jax"), one.ratio("openvino")) == (1.25, 1.5, None)
    assert (one.best, one.seconds("stepnet"), one.failures) == ("torch", 2.0, {"openvino": "no cell"})
    assert one.shown("stepnet") == pytest.approx(1e3 * 2.0)  # milliseconds
    busy = replace(runs[0], peak=Peak(1e9, 1e9, 0.5))
    assert [Repeated(some).disturbed for some in ((busy, *runs[:2]), (busy, busy, runs[0]))] == [False, True]
    made = page.page([Saved(tuple(a_run(results=(run,)) for run in (*runs, other)))])
    assert "| 1.25 (2.00, 1.00, 1.25; torch) |" in made
    assert "| 3.00 (torch) |" in made


def test_the_saved_form_is_what_readers_rely_on():
    record = results.to_record(a_run())
    assert set(record) == {
        "format", "version", "date", "command", "machine", "versions", "missing", "settings", "facts", "cases"
    }  # fmt: skip
    (case,) = record["cases"]
    assert set(case) == {
        "group", "case", "name", "flops", "weight_bytes", "peak", "timings", "failures", "best_peer", "ratio",
        "compute_share", "stream_share",
    }  # fmt: skip
    assert set(case["timings"]["torch"]) == {"rounds", "calls", "preparing", "median", "spread"}


def spoilt(**fields: Any) -> Any:
    """Changes the first run of a file."""
    return lambda record: record | {"runs": [record["runs"][0] | fields]}


def spoilt_case(**fields: Any) -> Any:
    """Changes the first case of a file."""
    return lambda record: spoilt(cases=[record["runs"][0]["cases"][0] | fields])(record)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda record: [], "should be a dict"),
        (lambda record: record | {"format": "other"}, "no saved benchmark"),
        (lambda record: record | {"version": 9}, "version 9"),
        (lambda record: record | {"runs": None}, "'runs' should be a list"),
        (spoilt(cases=None), "'cases' should be a list"),
        (spoilt(cases=[1]), "'case' should be a dict"),
        (spoilt_case(case={"cell": "x"}), "damaged case"),
        (spoilt_case(group=None), "'group' should be a str"),
    ],
)
def test_a_file_that_is_no_saved_run_is_refused(spoil: Any, message: str, tmp_path: Path):
    file = tmp_path / "run.json"
    right = json.loads(saved.text(Saved((a_run(),))))
    file.write_text(json.dumps(spoil(right)), encoding="utf-8")
    with pytest.raises(FileError, match=message):
        saved.load(file)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(FileError, match="no JSON"):
        saved.load(file)
    with pytest.raises(FileError, match=r"missing\.json"):
        saved.load(tmp_path / "missing.json")


def test_two_runs_are_compared_case_by_case():
    before, now = a_run(3.0), a_run(1.0)
    (change,) = results.changes(before.results, now.results)
    assert change.ratio == pytest.approx(3.0)
    assert change.sure
    (same,) = results.changes(now.results, a_run(1.05).results)
    assert not same.sure  # the rounds of both overlap
    assert results.changes(before.results, []) == []
    other = replace(now, machine=now.machine | {"threads": 1}, versions={"torch": {"torch": "3"}})
    assert results.differences(before, other) == ["threads: 2 -> 1", "torch: 2 -> 3"]
    assert comparison([change]).row_count == 1


def test_promises_are_looked_up_in_a_run():
    size, small = Case("gru", 16, 100, 256, 256), Case("lstm", 2, 100, 64, 64)
    stream = Case("gru", 1, 100, 64, 64, mode="stream")
    busy = replace(vowels_case(), lengths="dense", batch=1, time=100, inputs=256, busy=1)
    found = targets.targets(
        [
            timed(size, "", stepnet=1.0, torch=2.0, prototype=0.9),
            timed(small, "", stepnet=1.0, onnxruntime=0.9),
            timed(replace(small, directions=2), "", stepnet=1.0, onnxruntime=0.1),
            timed(stream, "", stepnet=1.0, onnxruntime=3.0, **{"onnxruntime bound": 1.9}),
            timed(busy, "", stepnet=1.0, one_thread=0.8),
            timed(vowels_case(), "", stepnet=1.0, torch=9.0),
        ],
        {"importing stepnet": 0.2},
    )
    assert {
        target.name.removesuffix(", times our time"): (target.found, target.kept) for target in found
    } == {
        "gru 16x256 dense: the prototype": (pytest.approx(0.9), True),
        "gru 16x256 dense: torch": (pytest.approx(2.0), False),
        "lstm 2x64 dense: onnxruntime": (pytest.approx(0.9), True),
        "gru 1x64 dense stream: onnxruntime": (pytest.approx(1.9), False),
        "gru 1x256 dense beside 1 busy: one thread": (pytest.approx(0.8), False),
        "gru vowels ragged: torch, packed or padded": (None, None),
        "importing stepnet": (0.2, True),
        "cold compile of a GRU": (None, None),
    }
    assert targets.targets([], {}) == []


def test_a_table_names_what_was_not_timed():
    run = a_run()
    assert times(run, "milliseconds").row_count == 1
    assert times(run, "microseconds a step").row_count == 0
    text = "\n".join(remarks(run))
    assert "make bench-peers" in text
    assert "wrong: far" in text
    assert run.wrong == [(TINY, "c", "wrong: far")]
    busy = replace(run.results[0], peak=Peak(1e9, 1e9, 0.4))
    said = "\n".join(remarks(replace(run, results=(busy,))))
    assert "other processes took 60%" in said
    assert f"disturbed:[/] {TINY}" in said


# ---- groups


def test_every_case_of_a_group_is_there_once_and_its_peers_exist():
    known = {peer.name for peer in PEERS}
    for group in GROUPS.values():
        assert len(set(group.cases)) == len(group.cases) > 0
        assert set(group.peers) <= known
    assert set(PRESETS["wide"].groups) | {"targets", "gpu"} == set(GROUPS)


def test_the_grids_have_all_sizes():
    for cell in ("gru", "lstm"):
        sizes = {(case.batch, case.hidden) for case in GROUPS[cell].cases}
        assert sizes == {(n, h) for n in (1, 2, 4, 8, 16, 64, 256) for h in (32, 64, 128, 256, 512, 1024)}


def test_a_preset_chooses_sizes_and_options_choose_among_them():
    parts = parts_of([], "small", ([], [], []), quick=False)
    assert [part.group for part in parts] == ["gru", "lstm"]
    assert {(case.batch, case.hidden) for case in parts[0].cases} == {
        (n, h) for n in (1, 2, 4, 8) for h in (32, 64, 128)
    }
    (part,) = parts_of(["streaming"], "", (["gru"], [1], [64, 128]), quick=True)
    assert [str(case) for case in part.cases] == ["gru 1x64 dense stream"]
    assert part.peers == GROUPS["streaming"].peers
    for names, preset in ((["swimming"], ""), ([], "narrow")):
        with pytest.raises(InputError, match=r"swimming|narrow"):
            parts_of(names, preset, ([], [], []), quick=False)


def test_lengths_are_those_that_the_table_promises():
    lengths = Case("gru", 64, 500, 8, 8, "log-normal").steps_of
    assert (lengths.min(), lengths.max()) == (5, 500) or lengths.min() > 5
    assert lengths.max() == 500
    assert 20 < np.median(lengths) < 120
    assert len(set(lengths.tolist())) > 30
    assert chosen_cases(GROUPS["ragged"], ["lstm"], [640], [64]) == [vowels_case(64, cell="lstm")]


# ---- the page


def test_the_page_has_every_point_and_a_reason_for_each_that_is_missing():
    cases = GROUPS["streaming"].cases[:2]
    slow = replace(
        timed(cases[1], "streaming", stepnet=3e-4, onnxruntime=1.5e-4, jax=6e-4),
        failures={"torch": REFUSED + "no cell", "openvino": "wrong: far"},
    )
    run = a_run(
        results=(slow, timed(cases[0], "streaming", stepnet=1e-4, onnxruntime=4e-4)),
        missing={"paddle": "not installed"},
        date="2026-01-02T00:00:00",
    )
    made = page.page([Saved((run,))])
    rows = [line for line in made.splitlines() if "microseconds a step" in line]
    assert rows == [
        "| gru 1x64 dense stream, microseconds a step | 1.00 | (a) | 4.00 | (b) | (c) | (d) "
        "| 4.00 (onnxruntime) |",
        "| gru 1x128 dense stream, microseconds a step | 3.00 | (e) | 1.50 | (f) | 6.00 | (d) "
        "| 0.50* (onnxruntime) |",
    ]
    reasons = [line for line in made.splitlines() if line.startswith("- (")]
    assert reasons == [
        "- (a) torch: it was not asked in this run",
        "- (b) openvino: it was not asked in this run",
        "- (c) jax: it was not asked in this run",
        "- (d) paddle: not installed",
        "- (e) torch: no cell",
        "- (f) openvino: wrong: far",
    ]
    assert "## p, 2 threads" in made
    assert "v, s, 2026-01-02. stepnet 0, torch 2." in made
    short = page.summary([Saved((run,))])
    # of onnxruntime 4 and a half, of jax 2 in one case
    assert "| One step at a time | 2 | 1 | 1.41 | - | 1.41 | - | 2.00 | - |" in short


def test_the_summary_stands_between_its_marks():
    text = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    assert page.with_summary(text, "new\n") == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"
    with pytest.raises(FileError, match="marks"):
        page.with_summary("before", "new")


def test_the_documentation_is_made_from_the_saved_files():
    files = [saved.load(path) for path in sorted(saved.FOLDER.glob("*-threads.json"))]
    assert page.PAGE.read_text(encoding="utf-8") == page.page(files)
    text = page.SUMMARY.read_text(encoding="utf-8")
    assert page.with_summary(text, page.summary(files)) == text


def test_charts_show_the_processor_that_most_cases_were_timed_on():
    """Neither a processor with few cases takes the charts over, nor one with few cases in many runs."""
    one, other = (timed(replace(TINY, hidden=width), "gru", stepnet=1.0, torch=2.0) for width in (16, 32))
    few, many = Saved((a_run(results=(one,)),) * 3), Saved((a_run(results=(one, other)),))
    assert page.charted([few, many]) is many
    assert page.charted([many, few]) is many


def test_charts_of_the_documentation_show_each_library(tmp_path: Path):
    """Every library that was timed in the cases of a chart is in its picture, and pages show all pictures."""
    pytest.importorskip("matplotlib", reason="matplotlib is missing, which draws the charts")
    processor = saved.load(saved.FOLDER / "amd-epyc-26.2-2-threads.json")
    paths = charts.draw_all(processor, tmp_path)
    shown = (page.DOCS / "benchmarks.md").read_text("utf-8")
    for chart, path in zip(charts.CHARTS, paths, strict=False):
        text = path.read_text("utf-8")
        names = {name for result in charts.cases_of(processor, chart) for name in result.peers}
        assert {name for name in names - set(runner.MARKS) if f"<!-- {name} -->" not in text} == set()
    assert [path.name for path in paths if f"pictures/{path.name}" not in shown] == []
    assert [path.name for path in paths if not (page.DOCS / "pictures" / path.name).exists()] == []


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
    assert [record] == json.loads(Path(file).read_text(encoding="utf-8"))["runs"]
    assert [case["name"] for case in record["cases"]] == ["custom 2x8 ragged T=4"]
    assert list(record["cases"][0]["timings"]) == ["stepnet"]
    second = invoked(*size, *how, "--compare", file)
    assert second.exit_code == 0, second.output
    assert "before and now" in second.output


def test_a_later_run_times_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = str(tmp_path / "run.json")
    cases = (replace(TINY, cell="custom"), replace(TINY, cell="minimal"))
    monkeypatch.setitem(GROUPS, "two", groups.Group("two", "Two", (), cases))
    how = ("--group", "two", "--peers", "stepnet", "--engine", "interpret", "--rounds", "1", "--threads", "1")
    clock = count(0, 100)
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    for name in ("custom", "minimal"):
        done = invoked(*how, "--save", file, "--rest", "--limit", "50", "--json")
        assert done.exit_code == 0, done.output
        assert [case["name"] for case in json.loads(done.stdout)["cases"]] == [f"{name} 3x16 ragged T=5 I=4"]
    assert [result.case for result in saved.load(Path(file)).results] == list(cases)
    done = invoked(*how, "--save", file, "--rest")
    assert "the file has them all" in str(done.exception)
    done = invoked(*how, "--save", file, "--rest", "--runs", "2", "--json")
    assert [case["case"]["cell"] for case in json.loads(done.stdout)["cases"]] == ["custom", "minimal"]
    assert "--rest leaves out" in str(invoked(*how, "--rest").exception)


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
    assert done.stderr.startswith("bench: no peer is called 'nobody'; there are stepnet, one thread,")
    assert done.stderr.count("\n") == 1


def test_saved_runs_are_read():
    files = sorted(saved.FOLDER.glob("*-threads.json"))
    assert files
    for file in files:
        one = saved.load(file)
        assert saved.path_of(one.runs[-1].machine) == file
        assert one.results
        assert all(result.ours is not None for result in one.results)
