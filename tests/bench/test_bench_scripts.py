"""The scripts in bench/: each runs through its own main in its smallest setting, tells what it should, and
stops where what it times gives wrong results. Of these in turn `make test` has every third one.
"""

import io
import json
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import typer
from constants import Constants
from installed_onednn import missing_onednn
from tolerance import assert_close
from typer.testing import CliRunner

import stepnet as sn
from bench import (
    adam,
    arrow_batches,
    beams,
    between,
    bits,
    blocks,
    calls,
    compiling,
    convert,
    convolutions,
    delta_rules,
    early,
    elementary,
    ensembles,
    entered,
    extremes,
    folders,
    generate,
    keras_layers,
    kernel,
    length,
    matrices,
    modern,
    nested,
    onednn_calls,
    outside,
    self_attention,
    serving,
    start,
    stream,
    stream_rows,
    tagger,
    training_memory,
    versions,
)
from stepnet import cells
from stepnet.compiler import targets as engines
from stepnet.compiler.targets.cpu import LlvmEngine

Array = np.ndarray
BENCH = Path(__file__).resolve().parents[2] / "bench"
pytestmark = [
    pytest.mark.long(every=3, of="scripts"),
    pytest.mark.skipif(
        find_spec("resource") is None,
        reason="the module resource is missing: scripts ask it for their memory",
    ),
]


def ran(module: ModuleType, *arguments: str) -> str:
    """The text that a script's main prints. Its exceptions are passed on."""
    app = typer.Typer()
    app.command()(module.main)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(module: ModuleType, *arguments: str) -> str:
    """The message with which a script's main refuses its arguments."""
    app = typer.Typer()
    app.command()(module.main)
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2
    return result.output


@pytest.mark.parametrize(
    "module", [matrices, modern, nested, stream, stream_rows, convert, beams, elementary]
)
def test_no_rounds_are_refused(module: ModuleType):
    assert "--rounds" in refused(module, "--rounds", "0")


@pytest.mark.parametrize("case", ["a step of a GRU", "a stream, one row in turn"])
def test_what_calls_take_outside_of_machine_code_is_timed(case: str):
    (row,) = json.loads(ran(outside, "--case", case, "--turns", "1", "--json"))["rows"]
    assert row["case"] == case
    assert 0 < row["microseconds"] < 1e5


# ---- two versions

ONE_CASE = "--cell", "gru", "--batch", "1", "--hidden", "4", "--time", "3", "--ragged", "dense"
KNOWN = subprocess.run(["git", "rev-parse", "HEAD"], cwd=BENCH, capture_output=True, check=False)
IN_GIT = pytest.mark.skipif(KNOWN.returncode != 0, reason="a checkout that git reads is missing")


def run_versions(*arguments: str) -> Any:
    return CliRunner().invoke(versions.app, list(arguments), catch_exceptions=False)


@IN_GIT
def test_another_revision_takes_turns_with_this_checkout():
    done = run_versions("HEAD", "--rounds", "1", "--no-steps", "--json", *ONE_CASE)
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert "gru 1x4 dense T=3" in rows
    for row in rows.values():
        (here,), (there,) = row["here"], row["there"]
        assert min(here, there) > 0
        assert row["ratio"] == pytest.approx(here / there)


def test_each_revision_is_timed_by_its_own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    trees: list[Path] = []

    def turn(tree: Path, options: list[str], steps: bool) -> dict[str, float]:
        trees.append(tree)
        assert (options, steps) == (["--quick"], True)
        return {"case": 3e-3 if tree == BENCH.parent else (2e-3, 1e-3)[len(trees) > 2]}

    monkeypatch.setattr(versions, "turn", turn)
    monkeypatch.setattr(versions, "check_out", lambda revision, folder: tmp_path / revision)
    said = run_versions("old", "--rounds", "2", "--quick").stdout
    assert trees == [BENCH.parent, tmp_path / "old"] * 2
    assert [word for word in said.splitlines()[-1].split() if word] == [
        "case",
        "3",
        "ms",
        "1.5",
        "ms",
        "2.25",
    ]


@IN_GIT
def test_a_revision_that_git_does_not_know_is_refused():
    done = run_versions("no-such-revision")
    assert done.exit_code == 2
    assert "no-such-revision" in done.output


# ---- rows of a stream that come and go


def test_steps_with_matrices_are_timed_beside_a_matrix_alone():
    small = "static, elementwise", "until", "--rows", "2", "--size", "8", "--rounds", "1"
    found = json.loads(ran(matrices, *small, "--json"))
    assert [one["case"] for one in found] == ["alone", "static, elementwise", "until, delta rule"]
    (alone, *others) = found
    assert alone["ratio"] == 1
    for one in others:
        assert one["ratio"] == pytest.approx(one["ms"] / alone["ms"])
    assert "no case begins with" in refused(matrices, "unknown")


@pytest.fixture
def few_users(constants: Constants) -> None:
    constants(stream_rows, USERS=4, CHANGING=2, INPUTS=3)


@pytest.mark.usefixtures("few_users")
def test_rows_that_come_and_go_are_timed_in_every_way():
    found = json.loads(ran(stream_rows, "--rounds", "1", "--steps", "1", "--json"))
    assert [one["case"] for one in found] == list(stream_rows.CASES)
    for one in found:
        names = [name for name, _, _ in one["rows"]]
        assert names == ["rows stay", "2 come and go", "halves in turn", "a random half", "a new stream"]
        (_, stay, ratio), *others = one["rows"]
        assert ratio == 1
        for _, time, ratio in others:
            assert ratio == pytest.approx(time / stay)
    assert "microseconds a step" in ran(stream_rows, "--rounds", "1", "--steps", "1")


@pytest.mark.usefixtures("few_users")
def test_rows_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch):
    step = sn.RNN.stream

    def begun_elsewhere(*arguments: Any, **options: Any) -> Any:
        stream: Any = step(*arguments, **options)
        add = stream.add
        stream.add = lambda rows: add(rows, initial=np.ones((rows, 256), "f4"))
        return stream

    monkeypatch.setattr(sn.RNN, "stream", begun_elsewhere)
    with pytest.raises(AssertionError, match="rows that came differ"):
        ran(stream_rows, "--rounds", "1")


# ---- one step of a stream


SMALLEST = "--rounds", "2", "--steps", "3"
THEIRS = ["onnxruntime, 1", "onnxruntime, 2", "onnxruntime bound, 1", "onnxruntime bound, 2", "torch"]


@pytest.fixture
def small(constants: Constants) -> None:
    """One small size, no time between turns."""
    constants(stream, SIZES=((3, 4),), PAUSE=0)


@pytest.mark.usefixtures("small")
def test_a_stream_is_timed_in_every_way():
    found = json.loads(ran(stream, *SMALLEST, "--json"))
    assert [(one["cell"], one["inputs"], one["hidden"]) for one in found] == [("gru", 3, 4), ("lstm", 3, 4)]
    for one in found:
        assert list(one["seconds"]) == ["stepnet", "stepnet, a call", *THEIRS]
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in one["seconds"].values())
        ours, best = one["seconds"]["stepnet"], one["seconds"][one["best"]]
        assert one["ratio"] == pytest.approx((ours[0] / best[0] + ours[1] / best[1]) / 2)
        assert sum(best) == min(sum(one["seconds"][name]) for name in THEIRS[:4])
        assert one["kept"] == (one["ratio"] <= 0.5 if one["cell"] == "gru" else None)
        call = one["seconds"]["stepnet, a call"]
        run = min((one["seconds"][name] for name in THEIRS[:2]), key=sum)
        assert one["call_of_run"] == pytest.approx((call[0] / run[0] + call[1] / run[1]) / 2)


@pytest.mark.usefixtures("small")
def test_a_stream_s_table_names_every_way():
    said = ran(stream, *SMALLEST)
    assert all(name in said for name in ("gru 3x4", "lstm 3x4", "stepnet", *THEIRS))
    assert said.count("kept") == 1


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_every_way_gives_what_the_equations_give(cell: str):
    case = stream.Case(cell, 3, 4)
    p = {name: array.astype("float64") for name, array in case.params.items()}
    memory: Any = np.zeros((1, 4)) if cell == "gru" else {"h": np.zeros((1, 4)), "c": np.zeros((1, 4))}
    right: list[Array] = []
    for x in case.sequence()[:9]:
        h, memory = cells.CELLS[cell].step(x, memory, p)
        right.append(h[0])
    for way in stream.ways(case):
        assert_close(way.outputs(case.sequence()[:9]), np.array(right), 9, 7, "float32")


def forgetful(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a way that begins with zeros at every step."""

    def made(*given: Any) -> Any:
        return replace(make(*given), step=lambda x: make(*given).step(x))

    return made


@pytest.mark.parametrize("name", ["streamed", "called", "with_run", "with_binding", "in_torch"])
@pytest.mark.usefixtures("small")
def test_a_way_that_forgets_its_state_stops_it(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(stream, name, forgetful(getattr(stream, name)))
    with pytest.raises(AssertionError, match="away from ours"):
        ran(stream, *SMALLEST)


# ---- ensembles


def test_calls_of_unusual_sizes_are_timed_beside_their_prediction(constants: Constants):
    """Two short sequences instead of a long one."""
    constants(extremes, CASES={"few": ("gru", 8, lambda random: np.array([3, 5]))})
    (outcome,) = json.loads(ran(extremes, "--rounds", "1", "--json"))
    assert [outcome["sequences"], outcome["steps"], outcome["way"]] == [2, 8, "alone, 1"]
    assert outcome["ratio"] == outcome["measured"] / outcome["predicted"] > 0
    assert "has 'none' in its name" in refused(extremes, "--only", "none")


@pytest.mark.usefixtures("same_threads")
def test_an_ensemble_is_timed_in_every_way():
    before = torch.get_num_threads()
    try:
        found = json.loads(ran(ensembles, "--sizes", "1", "--rounds", "1", "--json"))["rows"]
    finally:
        torch.set_num_threads(before)
    assert [(one["size"], one["what"]) for one in found] == [
        ("8, 20, 1, 16, 32", what) for what in ("outputs", "gradients")
    ]
    assert all(one[way] > 0 for one in found for way in ("mapped", "functional", "modules", "theirs"))


# ---- beam search


@pytest.fixture
def narrow(constants: Constants) -> None:
    """One small size."""
    constants(beams, HIDDEN=(4,), SYMBOLS=(32,), STARTS=(2,), BEAMS=(1, 3))


@pytest.mark.usefixtures("narrow")
def test_a_search_is_timed_beside_generation():
    found = json.loads(ran(beams, "--rounds", "2", "--json"))
    assert [(one["hidden"], one["symbols"], one["starts"], one["beams"]) for one in found] == [
        (4, 32, 2, 1),
        (4, 32, 2, 3),
    ]
    for one in found:
        assert one["ratio"] == one["search"] / one["rows"]
        assert one["by_beam"] == one["search"] / one["beams"] / one["alone"]
    assert ran(beams, "--rounds", "1").count("kept") == 2


@pytest.fixture
def short(constants: Constants) -> None:
    """Small models, and few symbols."""
    constants(generate, CASES=(("gru", 4), ("lstm", 4)), ROWS=(2,), STEPS=6)


@pytest.mark.usefixtures("short")
def test_generation_is_timed_beside_others(monkeypatch: pytest.MonkeyPatch):
    found = json.loads(ran(generate, "--rounds", "2", "--json"))
    assert [(one["cell"], one["hidden"], one["rows"]) for one in found] == [("gru", 4, 2), ("lstm", 4, 2)]
    for one in found:
        pairs = zip(one["seconds"]["torch"], one["seconds"]["machine code"], strict=True)
        assert one["ratios"]["torch"] == median(theirs / ours for theirs, ours in pairs)
    monkeypatch.setattr(generate, "with_torch", lambda model, start: lambda: np.zeros((len(start), 6), int))
    with pytest.raises(AssertionError, match="torch writes other symbols"):
        ran(generate, "--rounds", "1")


@pytest.mark.usefixtures("narrow")
def test_a_search_that_writes_something_else_stops_it(monkeypatch: pytest.MonkeyPatch):
    right = sn.generate
    monkeypatch.setattr(beams.sn, "generate", lambda rnn, start, **given: right(rnn, start[::-1], **given))
    with pytest.raises(AssertionError) as caught:
        ran(beams, "--rounds", "1")
    assert caught.traceback[-1].path == Path(str(beams.__file__))


# ---- nested recurrences

QUICK = "--rounds", "1", "--counted", "1"
RUNS = ["nested", "flat, last states", "flat, all states"]


def documents() -> Any:
    """A case of few frames."""
    return nested.documents(2, 3, 4, 5, ragged=True)


def test_nested_ones_are_timed_beside_flat_ones(constants: Constants):
    constants(nested, CASES=(documents, nested.vowels))
    found = json.loads(ran(nested, *QUICK, "--json", "--profile"))
    assert [one["name"] for one in found] == ["2 x 3 x 4, of any lengths", "Japanese Vowels"]
    assert (found[1]["groups"], found[1]["sequences"], found[1]["frames"]) == (9, 370, 5687)
    for one in found:
        seconds = one["seconds"]
        assert list(seconds) == RUNS
        assert one["ratios"] == {run: seconds["nested"][0] / seconds[run][0] for run in RUNS[1:]}
        assert one["kept"] == (one["ratios"]["flat, last states"] <= 1.3)
        # Calls of equal lengths are one block of machine code, of which Python runs no part.
        assert list(one["parts"]) == ["all"]
        assert one["parts"]["all"] > 0


def test_the_nested_one_s_table(constants: Constants):
    constants(nested, CASES=(documents,))
    said = ran(nested, *QUICK)
    assert "2 x 3 x 4, of any lengths" in said
    assert said.count("kept") == 1


@pytest.mark.parametrize("spoiled", ["nested", "flat", "outer"])
def test_nested_ones_that_differ_stop_it(constants: Constants, spoiled: str):
    case = documents()
    right = nested.documents(2, 3, 4, 5).nested
    wrong = {**right.params, "W": 2 * right.params["W"]}
    other = {"nested": sn.RNN(right.step, wrong, memory=right.memory)}
    doubled = cells.rnn("gru", {name: 2 * array for name, array in case.flat.params.items()})
    constants(nested, CASES=(lambda: replace(case, **{spoiled: other.get(spoiled, doubled)}),))
    with pytest.raises(AssertionError, match=r"nested is .* away"):
        ran(nested, *QUICK)


def test_a_nested_one_that_is_not_lifted_stops_it(constants: Constants):
    case = documents()

    def step(sentence: Any, h: Any, params: Any) -> tuple[Any, Any]:  # the memory of the outer one enters
        return cells.gru(case.flat(sentence, initial=h)[1], h, params)

    looped = replace(case, nested=sn.RNN(step, case.outer.params, memory=5))
    constants(nested, CASES=(lambda: looped,))
    with pytest.raises(AssertionError, match="is not lifted"):
        ran(nested, *QUICK)


def test_an_inner_one_that_the_memory_enters_is_timed_beside_others(constants: Constants):
    constants(entered, CASES=(entered.Case(3, 2, 1, 4, 8),))
    (found,) = json.loads(ran(entered, *QUICK, "--json"))
    assert (found["name"], found["hidden"]) == ("3 x 2 x 1 to 4", 8)
    ours, *others = entered.RUNS
    assert found["ratios"] == {run: found["seconds"][run][0] / found["seconds"][ours][0] for run in others}


def test_work_between_recurrences_is_timed(constants: Constants):
    name = "a step that gives words back"
    constants(between, WARM=0, CASES={name: between.CASES[name]})
    (found,) = json.loads(ran(between, "--calls", "1", "--json")).items()
    assert found[0] == name
    assert found[1] > 0


def test_ways_of_an_entered_one_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch, constants: Constants):
    constants(entered, CASES=(entered.Case(3, 2, 1, 4, 8),))
    monkeypatch.setattr(entered, "of_torch", lambda *_: lambda: np.ones((3, 8), "float32"))
    with pytest.raises(AssertionError, match=r"PyTorch is .* away"):
        ran(entered, *QUICK)


# ---- long sequences


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of this Python are modules and code run here, without the seconds in which they import."""

    def run(command: list[str], **_: Any) -> Any:
        kind, what, *rest = command[1:]
        said = io.StringIO()
        with redirect_stdout(said), monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*found in sys.modules after import of package")
            patch.setattr(sys, "argv", [what if kind == "-m" else kind, *rest])
            if kind == "-c":
                exec(what, {})
            else:
                with pytest.raises(SystemExit, match="0"):
                    runpy.run_module(what, run_name="__main__")
        return subprocess.CompletedProcess(command, 0, said.getvalue())

    monkeypatch.setattr(subprocess, "run", run)


THERE = pytest.mark.skipif(not length.ANEW.exists(), reason="a process's peak does not begin anew here")


@THERE
def test_last_only_takes_no_memory_for_its_steps(monkeypatch: pytest.MonkeyPatch):
    def in_a_process(way: str, rows: int, steps: int, right: Any = length.in_a_process) -> Any:
        return length.alone(way, rows, steps) if way == length.TORCH else right(way, rows, steps)

    monkeypatch.setattr(length, "in_a_process", in_a_process)  # PyTorch's memory is not what is promised
    # in processes of their own; all outputs are 12.8 MB, in pages of 2 MB
    found = json.loads(ran(length, "--rows", "1", "--steps", "50000", "--json"))
    (one,) = found["found"]
    memory = one["memory"]
    assert (one["rows"], one["steps"], one["inputs"]) == (1, 50_000, 1_600_000)
    assert memory["last only"] < 1_000_000
    assert 12_700_000 < memory["all outputs"] < 15_500_000  # less some pages that were there before
    assert 1_000 < one["code"] < 1_000_000
    assert found["kept"]


WATCHED = """
import json
import length
import numpy as np

def run():
    for _ in range(3):
        np.ones(40_000_000, np.uint8)
    return np.ones(10, np.uint8)

memory, outputs = length.watched(run)
print(json.dumps([memory, int(outputs.sum()), length.watched(lambda: outputs)[0]]))
"""


@THERE
def test_memory_is_the_peak_and_not_what_is_left():
    # in a process of its own, as the script does: here other threads may give memory back meanwhile
    command = [sys.executable, "-c", WATCHED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCH)
    memory, ones, nothing = json.loads(done.stdout)
    assert ones == 10
    assert 39_000_000 < memory < 44_000_000
    assert nothing < 1_000_000


def test_all_ways_end_in_what_the_equations_give():
    x = np.random.default_rng(0).standard_normal((2, 30, length.INPUTS)).astype("float32")
    p = {name: array.astype("float64") for name, array in length.parameters().items()}
    h = np.zeros((2, length.HIDDEN))
    for step in range(30):
        h, _ = cells.gru(x[:, step], h, p)
    for make in length.WAYS.values():
        run, _ = make()
        assert_close(run(x), h, 30, length.INPUTS + length.HIDDEN, "float32")


def pretend(monkeypatch: pytest.MonkeyPatch, away: dict[str, float]) -> list[tuple[str, int, int]]:
    """Runs that take what they should, ways being so far away from the right outputs; and which were run."""
    done: list[tuple[str, int, int]] = []

    def in_a_process(way: str, rows: int, steps: int) -> Any:
        done.append((way, rows, steps))
        last = np.full((rows, length.HIDDEN), 0.5) + away.get(way, 0)
        return length.Run(1000 if way == "last only" else rows * steps * 256, 24_000, last.tolist())

    monkeypatch.setattr(length, "in_a_process", in_a_process)
    return done


def test_a_way_that_does_not_fit_the_memory_is_left_out(monkeypatch: pytest.MonkeyPatch):
    done = pretend(monkeypatch, {})
    monkeypatch.setattr(length, "available", lambda: 100_000_000)
    found = json.loads(ran(length, "--json"))
    assert found["kept"]
    sizes = [(one["rows"], one["steps"]) for one in found["found"]]
    assert sizes == [(rows, steps) for rows in (1, 16) for steps in (1_000, 100_000, 1_000_000)]
    # of 60 MB: 100,000 steps take 25.6 MB of outputs, a million 256 MB
    last = found["found"][2]
    assert last["memory"] == {"last only": 1000, "all outputs": None, "torch": None}
    assert last["expected"]["torch"] == 256_000_000
    assert ("torch", 1, 100_000) in done
    assert ("torch", 1, 1_000_000) not in done
    said = ran(length)
    assert "left out: 256.00 MB" in said
    assert "up to 524 KB: kept" in said


@pytest.mark.parametrize(
    ("way", "away"), [("last only", 1e-6), ("all outputs", 1e-6), ("torch", 1e-2), ("torch", np.nan)]
)
def test_ways_that_end_otherwise_stop_it(monkeypatch: pytest.MonkeyPatch, way: str, away: float):
    pretend(monkeypatch, {way: away})
    with pytest.raises(AssertionError, match=r"is not the last output|away from ours"):
        ran(length, "--rows", "1", "--steps", "1000")


def test_memory_or_code_that_grows_is_not_kept():
    short = length.Found(1, 1_000, 0, 24_000, {"last only": 300_000}, {})
    assert length.kept([short, replace(short, steps=10_000, memory={"last only": 310_000})])
    assert not length.kept([short, replace(short, steps=10_000, memory={"last only": 900_000})])
    assert not length.kept([short, replace(short, steps=10_000, code=24_001)])
    assert not length.kept([short, replace(short, steps=10_000, memory={"last only": None})])
    assert length.kept([short, replace(short, rows=16, memory={"last only": 900_000})])


# ---- conversions


def test_a_conversion_is_timed_beside_a_copy(constants: Constants):
    constants(convert, PAIRS=(("torch.lstm", "keras.lstm"),))
    (one,) = json.loads(ran(convert, "--gigabytes", "0.0001", "--hidden", "32", "--rounds", "2", "--json"))
    assert (one["source"], one["target"], one["hidden"]) == ("torch.lstm", "keras.lstm", 32)
    assert one["bytes"] == one["layers"] * 4 * (2 * 4 * 32 * 32 + 2 * 4 * 32) >= 100_000
    ratios = [made / copied for made, copied in zip(one["conversions"], one["copies"], strict=True)]
    assert one["ratio"] == pytest.approx(sum(ratios) / 2)
    assert one["steps"] == "moved, summed"


# ---- training


def test_training_steps_are_timed_beside_pytorch() -> None:
    sizes = ("--batch", "2", "--hidden", "3", "--steps", "4", "--rounds", "1")
    figures = json.loads(ran(adam, *sizes, "--json"))
    assert [row["cell"] for row in figures["rows"]] == ["gru", "lstm"]
    for row in figures["rows"]:
        assert row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["theirs"] / row["ours"])


@pytest.fixture
def small_delta_rules(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    """A small model, and a loop where transformers' function stands, which has an environment of its own."""
    constants(delta_rules.example, KEY=4, WIDTH=16, ROWS=2, PIECE=5)
    monkeypatch.setattr(delta_rules, "chunked", lambda: delta_rules.looped)


@pytest.mark.usefixtures("small_delta_rules")
def test_delta_rules_are_timed_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    delta_rules.main(["--steps", "3"])
    first, second = (part.splitlines() for part in capsys.readouterr().out.split("a step of training")[:2])
    for lines in (first, second):
        assert [line[2:26].strip() for line in lines[1:]] == list(delta_rules.RULES)
        assert all(float(line.split(" ms ")[0].split()[-1]) > 0 for line in lines[1:])
        assert lines[1].endswith("1.00 times stepnet's")


def test_delta_rules_take_two_turns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        delta_rules.main(["--steps", "1"])
    assert "--steps is 2 or more" in capsys.readouterr().err


@pytest.mark.usefixtures("small_delta_rules")
def test_delta_rules_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Any, memory: Any) -> Any:
        outputs, last = delta_rules.looped(x, memory)
        return outputs + 1, last

    monkeypatch.setattr(delta_rules, "chunked", lambda: wrong)
    with pytest.raises(SystemExit, match="turn 0 of transformers, in chunks gives results that differ by 1"):
        delta_rules.main(["--steps", "2"])


FEW_BLOCKS = "--keys", "64", "--steps", "32", "--rounds", "1"


@pytest.fixture
def few_blocks(constants: Constants) -> None:
    constants(blocks, TOGETHER=(2,), BLOCKS=(16,))


@pytest.mark.usefixtures("few_blocks")
def test_blocks_of_steps_are_timed_beside_steps() -> None:
    times = json.loads(ran(blocks, *FEW_BLOCKS, "--json"))
    names = ["stepnet", "2 in one step", "by hand, steps", "by hand, blocks of 16"]
    assert [list(by_size["64"]) for by_size in times.values()] == [names, names]
    assert all(seconds[0] > 0 for by_size in times.values() for seconds in by_size["64"].values())


@pytest.mark.usefixtures("few_blocks")
def test_gradients_of_blocks_of_steps_are_timed_too() -> None:
    times = json.loads(ran(blocks, *FEW_BLOCKS, "--gradients", "--json"))
    names = ["stepnet", "derived", "2 in one step"]
    assert [list(by_size["64"]) for by_size in times.values()] == [names, names]


@pytest.mark.usefixtures("few_blocks")
def test_blocks_of_steps_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = blocks.by_hand
    monkeypatch.setattr(blocks, "by_hand", lambda *args: lambda: 1.01 * right(*args)())
    with pytest.raises(AssertionError, match=r"by hand, steps is .* away from stepnet"):
        ran(blocks, *FEW_BLOCKS)


def test_blocks_of_steps_take_whole_blocks() -> None:
    assert "multiples of 64" in refused(blocks, "--keys", "65")
    assert "multiples of 64" in refused(blocks, "--steps", "48")


SOME_ENDS = "--cell", "gru", "--cell", "lstm", "--hidden", "3", "--rows", "70", "--most", "9", "--rounds", "1"


def test_sequences_that_end_early_are_timed_beside_known_lengths() -> None:
    rows = json.loads(ran(early, *SOME_ENDS, "--json"))["rows"]
    assert [(row["cell"], row["hidden"]) for row in rows] == [("gru", 3), ("lstm", 3)]
    for row in rows:
        assert row["known"] > 0
        assert row["ratio"] == pytest.approx(row["until"] / row["known"])
    assert "70 sequences of 7 steps in the mean" in ran(early, *SOME_ENDS)


def test_sequences_that_end_elsewhere_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = early.recurrences

    def wrong(*case: Any) -> Any:
        until, known = right(*case)
        return until.with_params({name: -array for name, array in until.params.items()}), known

    monkeypatch.setattr(early, "recurrences", wrong)
    with pytest.raises(SystemExit, match="a gru of 3 has other outputs where the lengths are known"):
        early.timed("gru", 3, np.array([2, 3]), 4, 1)


BATCHES = "--hidden", "4", "--batch", "0.002", "--total", "0.02", "--rounds", "1"


def test_batches_of_arrow_are_timed_beside_the_engine_alone():
    rows = json.loads(ran(arrow_batches, *BATCHES, "--json"))["rows"]
    assert [(row["output"], row["batches"], row["rows"]) for row in rows] == [
        ("last", 10, 50),
        ("outputs", 10, 50),
    ]
    for row in rows:
        assert row["engine"] > 0
        assert row["ratio"] == pytest.approx(row["predict"] / row["engine"])
    assert "4 units, batches of 0.002 MB" in ran(arrow_batches, *BATCHES)


def test_batches_of_arrow_with_other_results_are_told(monkeypatch: pytest.MonkeyPatch):
    right = arrow_batches.arrow.predict

    def turned(batches: Any, *arguments: Any, **options: Any) -> Any:
        return list(right(batches, *arguments, **options))[::-1]

    monkeypatch.setattr(arrow_batches.arrow, "predict", turned)
    with pytest.raises(SystemExit, match="predict gives other last than the engine"):
        arrow_batches.timed("last", 4, 2000, 20_000, 1)


FOLDERS = "--hidden", "4", "--files", "2", "--rounds", "1"


def test_folders_are_timed_beside_the_engine_alone(constants: Constants):
    constants(folders, ROWS=20)
    rows = json.loads(ran(folders, *FOLDERS, "--json"))["rows"]
    assert [(row["result"], row["sequences"]) for row in rows] == [("last", 40), ("outputs", 40)]
    for row in rows:
        assert row["share"] == pytest.approx(row["engine"] / row["run"])
    assert "4 units" in ran(folders, *FOLDERS, "--format", "arrow")


def test_folders_with_other_results_are_told(monkeypatch: pytest.MonkeyPatch, constants: Constants):
    right = folders.table_of
    constants(folders, ROWS=20)
    monkeypatch.setattr(folders, "table_of", lambda path: right(path).take(list(range(20))[::-1]))
    with pytest.raises(SystemExit, match="run gives other last than the engine"):
        folders.timed("last", 4, 1, 1, "parquet", "none")


@pytest.mark.long
def test_batches_of_arrow_take_the_same_memory_however_many(request: pytest.FixtureRequest):
    if not request.config.getoption("--long"):
        pytest.skip("five gigabytes are for make test-long")
    few, many = (arrow_batches.held_apart(256, 64e6, total, "outputs", 256_000_000) for total in (1e9, 4e9))
    assert many["rows"] > 3 * few["rows"]
    assert many["peak"] < few["peak"] + 16


def test_layers_of_keras_are_timed_without_and_with_stepnet() -> None:
    sizes = ("--batch", "2", "--units", "3", "--steps", "4", "--rounds", "1", "--kind", "mask,cell")
    rows = json.loads(ran(keras_layers, *sizes, "--json"))["rows"]
    names = [(row["kind"], row["call"].split("_")[0]) for row in rows]
    assert names == [("mask", "train"), ("mask", "predict"), ("cell", "train"), ("cell", "predict")]
    for row in rows:
        assert row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["theirs"] / row["ours"])


def test_layers_of_keras_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = keras_layers.turn
    monkeypatch.setattr(
        keras_layers, "turn", lambda call, ours: (right(call, ours)[0] + (1 if ours else 0), 1.0)
    )
    app = typer.Typer()
    app.command()(keras_layers.main)
    result = CliRunner().invoke(app, ["--batch", "1", "--units", "2", "--steps", "2", "--rounds", "1"])
    assert result.exit_code != 0
    assert "gru: stepnet and Keras differ by 1" in str(result.exception or "") + result.output


SMALL_TAGGER = "--batch", "2", "--words", "9", "--hidden", "3", "--rounds", "1"


SMALL_SERVING = ("--requests", "12", "--hidden", "8", "--callers", "4", "--rounds", "2")


def test_requests_of_many_threads_are_timed_beside_one_batch() -> None:
    one, few, *others = json.loads(ran(serving, *SMALL_SERVING, "--json"))["rows"]
    assert (one["way"], one["share"], one["p50"]) == ("one batch", 1, None)
    assert (few["way"], few["p50"]) == ("calls of 4", None)
    assert few["rate"] > 0
    assert [row["way"] for row in others] == ["one thread", "each its own", "by arrival", serving.CLIENTS]
    assert all(0 < row["p50"] <= row["p99"] and row["rate"] > 0 for row in others)
    assert "12 callers" not in (table := ran(serving, *SMALL_SERVING))
    assert "4 callers of a GRU of 8 units" in table


def test_answers_that_differ_stop_it() -> None:
    ways = {f"of {number}": lambda number=number: ([np.full(2, number)], []) for number in (1, 2)}
    with pytest.raises(SystemExit, match="the results of of 1 and of 2 differ"):
        serving.timed_ways(ways, 1, 1, True)


def test_a_tagger_is_timed_beside_runtimes() -> None:
    rows = json.loads(ran(tagger, *SMALL_TAGGER, "--json"))["rows"]
    assert [row["peer"] for row in rows][:3] == ["stepnet", "onnxruntime", "torch"]
    ours = rows[0]["milliseconds"]
    assert ours > 0
    for row in rows:
        assert row["ratio"] == pytest.approx(row["milliseconds"] / ours)


def test_taggers_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tagger.peers

    def wrong(module: Any) -> Any:
        runs = right(module)
        return {**runs, "torch": lambda batch: runs["torch"](batch) + 1}

    monkeypatch.setattr(tagger, "peers", wrong)
    app = typer.Typer()
    app.command()(tagger.main)
    result = CliRunner().invoke(app, SMALL_TAGGER)
    assert result.exit_code != 0
    assert "the results of stepnet and torch differ by 1" in str(result.exception or "") + result.output


SMALL_CONVOLUTIONS = "--batch", "2", "--units", "3", "--rounds", "1"


def test_models_with_convolutions_are_timed_beside_onnxruntime() -> None:
    rows = json.loads(ran(convolutions, *SMALL_CONVOLUTIONS, "--json"))["rows"]
    assert [row["model"] for row in rows] == ["vad", "crnn", "stack"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["onnxruntime"] / row["stepnet"])


def test_models_with_convolutions_that_differ_stop_it() -> None:
    batch = convolutions.Batch.drawn(np.random.default_rng(0), 2)
    runs: Any = (lambda batch: batch.frames.to_list(), lambda batch: batch.padded + 1)
    with pytest.raises(SystemExit, match="the results of stepnet and onnxruntime differ by 1"):
        convolutions.check(runs, batch, 3)


def test_attention_is_timed_beside_pytorch(constants: Constants) -> None:
    constants(self_attention, WARM=0.0, COUNTED=1)
    options = ["--batch", "2", "--steps", "3", "--width", "4", "--heads", "2", "--rounds", "1", "--json"]
    rows = json.loads(ran(self_attention, *options))["rows"]
    assert [row["layer"] for row in rows] == ["products", "attention", "encoder"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["stepnet"] / row["torch"])


def test_small_calls_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = calls.theirs

    def wrong(case: Any) -> Any:
        run = right(case)
        return lambda given: run(given) + 1

    for name, case in calls.CASES.items():
        if case.other is not None and "unseen" not in name:
            calls.Turns(name, calls.OTHER)
    monkeypatch.setattr(calls, "theirs", wrong)
    with pytest.raises(SystemExit, match="the results of stepnet and onnxruntime differ by 1"):
        calls.Turns("a step of a GRU", calls.OTHER)


def test_small_calls_are_timed_beside_onnxruntime_and_another_checkout() -> None:
    tree = str(BENCH.parent)
    options = ["--case", "a step of a", "--case", "16 sequences", "--against", tree, "--rounds", "2"]
    found = {each["case"]: each["microseconds"] for each in json.loads(ran(calls, *options, "--json"))}
    assert {case: [*turns] for case, turns in found.items()} == {
        "a step of a GRU": ["stepnet", tree, "onnxruntime"],
        "unseen lengths, 16 sequences, a GRU": ["stepnet", tree],
        "the gradients of a GRU, 16 sequences": ["stepnet", tree],
        "a step of a stream of two layers": ["stepnet", tree],
    }
    assert all(len(times) == 2 and min(times) > 0 for turns in found.values() for times in turns.values())


SMALL_BITS = ["--cell", "lstm", "--batch", "2", "--hidden", "16", "--time", "4", "--rounds", "1"]


def test_weights_in_fewer_bits_are_timed_beside_runtimes() -> None:
    rows = json.loads(ran(bits, *SMALL_BITS, "--json"))["rows"]
    sn.set_threads(None)
    ways = [row["way"] for row in rows if not row["way"].startswith("oneDNN")]
    ours = ["stepnet", "stepnet bfloat16", "stepnet int8"]
    assert ways == [*ours, "torch", "torch bfloat16", "torch int8", "onnxruntime", "onnxruntime int8"]
    away = {row["way"]: row["away"] for row in rows}
    assert away["stepnet"] == 0 < away["torch"] < 1e-6 < away["stepnet bfloat16"] < bits.MOST
    for row in rows:
        assert row["times"] == pytest.approx(rows[0]["milliseconds"] / row["milliseconds"])


def test_weights_that_are_too_coarse_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bits.ways

    def wrong(*case: Any) -> Any:
        runs = right(*case)
        return {**runs, "torch int8": lambda: runs["torch int8"]() + 1}

    monkeypatch.setattr(bits, "ways", wrong)
    app = typer.Typer()
    app.command()(bits.main)
    result = CliRunner().invoke(app, SMALL_BITS)
    sn.set_threads(None)
    assert result.exit_code != 0
    assert "the outputs of torch int8 are" in str(result.exception or "") + result.output


def test_sizes_of_bits_are_given_together() -> None:
    assert "--batch and --hidden" in refused(bits, "--batch", "2")
    assert "--cell is one of lstm, gru" in refused(bits, "--cell", "elman")


@pytest.mark.usefixtures("in_this_process")
def test_compilation_is_timed_in_processes_of_their_own(constants: Constants) -> None:
    constants(compiling, LAYERS={"gru": compiling.LAYERS["gru"]})
    figures = json.loads(ran(compiling, "--rounds", "1", "--json"))
    assert list(figures) == ["gru"]
    assert 0.01 < figures["gru"] < 60


def test_the_parts_of_a_module_are_timed(constants: Constants) -> None:
    names = ("sum of 5", "gru 64")
    constants(compiling, MODULES={name: compiling.MODULES[name] for name in names})
    figures = json.loads(ran(compiling, "--modules", "--rounds", "1", "--json"))
    assert list(figures) == [*names]
    assert list(figures["gru 64"]) == ["lowering", "writing", "text", "LLVM", "lines"]
    assert figures["gru 64"]["lines"] > 3 * figures["sum of 5"]["lines"]
    assert 0 < figures["sum of 5"]["writing"] < figures["sum of 5"]["LLVM"]


def test_starts_are_timed_with_caches_of_their_own(constants: Constants) -> None:
    constants(start, MODELS={"gru": start.MODELS["gru"]})
    figures = json.loads(ran(start, "--rounds", "1", "--json"))
    assert list(figures) == ["gru"]
    assert list(figures["gru"]) == ["none", "cold", "warm", "import"]
    assert figures["gru"]["warm"] < figures["gru"]["cold"] / 3
    assert figures["gru"]["warm"] < figures["gru"]["none"] / 3


def test_training_stops_where_losses_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    right = adam.training

    def wrong(layer: Any, *arguments: Any) -> Any:
        step = right(layer, *arguments)
        return lambda: step() + ("stepnet" in type(layer).__module__)

    monkeypatch.setattr(adam, "training", wrong)
    app = typer.Typer()
    app.command()(adam.main)
    result = CliRunner().invoke(app, ["--batch", "1", "--hidden", "2", "--steps", "2", "--rounds", "1"])
    assert result.exit_code != 0
    assert "losses of stepnet and PyTorch differ by 1" in str(result.exception or "") + result.output


SMALL_STEPS = "--cell", "gru", "--batch", "2", "--hidden", "3", "--steps", "40", "--rounds", "1"


@pytest.mark.usefixtures("in_this_process")
def test_memory_of_training_is_measured_beside_pytorch() -> None:
    told = json.loads(ran(training_memory, *SMALL_STEPS, "--json"))
    (row,) = told["rows"]
    assert list(row["runs"]) == ["checkpoint", "saved", "stepnet", "torch.nn"]
    for way, run in row["runs"].items():
        assert run["seconds"] > 0
        exact = run["sums"] == pytest.approx(row["runs"]["torch.nn"]["sums"], rel=1e-4)
        assert exact == (way != "saved")  # the values for gradients are rounded


def test_memory_of_training_stops_where_gradients_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_process(way: str, *given: Any) -> Any:
        return training_memory.Run(1, 1, 1.0, [1.0 + (way == "checkpoint")])

    monkeypatch.setattr(training_memory, "in_a_process", in_a_process)
    with pytest.raises(SystemExit, match=r"checkpoint gives 2.0, and torch.nn 1.0: not measured"):
        training_memory.measured("gru", 1, 1, 1, 1)
    monkeypatch.setattr(
        training_memory, "in_a_process", lambda way, *given: training_memory.Run(len(way), 1, 1.0, [1.0])
    )
    row = training_memory.measured("gru", 1, 1, 1, 1)
    assert row.share == len("checkpoint") / len("torch.nn")


# ---- oneDNN


def test_calls_on_onednn_are_timed():
    if reason := missing_onednn():
        pytest.skip(reason)
    told = json.loads(ran(onednn_calls, "--quick", "--rounds", "1", "--json"))
    sn.set_threads(None)
    assert told["library"].startswith("oneDNN 3.")
    assert list(told["cases"]) == ["gru 4, 2 x 2-3 steps", "lstm 4, 2 x 2 steps"]
    for row in told["cases"].values():
        assert row["own"] == row["layer"] - row["bare"]
        assert min(row[name] for name in onednn_calls.WAYS) > 0
    told = json.loads(ran(onednn_calls, "--training", "--quick", "--rounds", "1", "--json"))
    sn.set_threads(None)
    for row in told["cases"].values():
        assert row.keys() == {*onednn_calls.TRAINING}
        assert min(row.values()) > 0


# ---- elementary functions


def test_elementary_functions_are_timed_beside_those_of_pytorch() -> None:
    found = json.loads(ran(elementary, "tanh", "sigmoid", "--rounds", "1", "--target", "generic", "--json"))
    assert (found["target"], list(found["nanoseconds"])) == ("generic", ["tanh", "sigmoid"])
    assert all(times["stepnet"] > 0 < times["torch"] for times in found["nanoseconds"].values())
    assert "sigmoid" in ran(elementary, "sigmoid", "--rounds", "1")


def test_an_elementary_function_that_differs_from_pytorchs_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(elementary.ELEMENTARY, "tanh", elementary.ELEMENTARY["sigmoid"])
    with pytest.raises(AssertionError, match="tanh"):
        ran(elementary, "tanh", "--rounds", "1")


def test_a_function_or_target_that_is_not_there_is_named() -> None:
    assert "softmax" in refused(elementary, "softmax")
    assert "abacus" in refused(elementary, "--target", "abacus")


# ---- products beside the processor's ceilings

SMALL_KERNEL = "--hidden", "4", "--threads", "1", "--rounds", "1", "--json"


def test_products_are_timed_beside_the_processors_ceilings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel, "multiply_adds", lambda dtype, threads: (1e9, 1.0))
    monkeypatch.setattr(kernel, "streaming", lambda size, threads: 1e8)
    one, two = json.loads(ran(kernel, "--cell", "gru", "--batch", "1,2", *SMALL_KERNEL))
    assert (one["batch"], two["batch"], two["stream"]) == (1, 2, None)
    for row in (one, two):
        work = 2 * 100 * row["batch"] * 3 * 4 * (4 + 4)
        assert row["flops"] == pytest.approx(work / row["seconds"])
        assert row["fma"] == pytest.approx(row["flops"] / 1e9)
    # 192 bytes of recurrent weights in each of 100 steps; products with inputs are half of the multiply-adds.
    least = 192 * 100 / 1e8 + 100 * 3 * 4 * (4 + 4) / 1e9
    assert one["stream"] == pytest.approx(least / one["seconds"])


def test_products_are_timed_for_the_target_asked_for(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    compile_plan = LlvmEngine.compile_plan

    def recorded(self: LlvmEngine, plan: Any) -> Any:
        asked.append("" if self.processor is None else self.processor.name)
        return compile_plan(self, plan)

    monkeypatch.setattr(LlvmEngine, "compile_plan", recorded)
    ran(kernel, "--cell", "lstm", "--batch", "1", "--target", "generic", *SMALL_KERNEL)
    assert set(asked) == {"generic"}
    assert engines.engine("llvm") == LlvmEngine()
    assert "runs" in refused(kernel, "--target", "abacus", *SMALL_KERNEL)


# ---- cells beside other libraries


def delta_loop(x: Any, memory: Any, params: Any) -> Any:
    """The gated delta rule as a loop in PyTorch."""

    def run() -> Any:
        state, outputs = memory, list[Any]()
        for now in range(x["q"].shape[1]):
            q, k, v, g, beta = (x[name][:, now] for name in ("q", "k", "v", "g", "beta"))
            state = state * g.exp()[..., None, None]
            new = beta[..., None] * (v - torch.einsum("rhk,rhkv->rhv", k, state))
            state = state + k[..., None] * new[..., None, :]
            outputs.append(torch.einsum("rhk,rhkv->rhv", q, state))
        return torch.stack(outputs, 1)

    return run


def missing_library(x: Any, memory: Any, params: Any) -> Any:
    raise ImportError("no such library")


@pytest.fixture
def small_delta(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    """A small case with a peer that is there and one that is not, and no time between turns."""
    case = modern.Case("gated_delta_rule", 3, {"heads": 2, "key": 4, "value": 8}, ("loop", "none"), 4)
    constants(modern, CASES=(case,))
    monkeypatch.setitem(modern.PEERS, ("gated_delta_rule", "loop"), delta_loop)
    monkeypatch.setitem(modern.PEERS, ("gated_delta_rule", "none"), missing_library)
    monkeypatch.setattr(modern, "multiply_adds", lambda dtype, threads: (1e9, 1.0))
    monkeypatch.setattr(modern.measured, "__defaults__", (0.0,))


@pytest.mark.usefixtures("small_delta")
def test_cells_are_timed_beside_the_peers_that_are_there():
    (row,) = json.loads(ran(modern, "--rounds", "2", "--counted", "1", "--json"))
    assert row["missing"] == {"none": "no such library"}
    own, theirs = row["seconds"]["stepnet"], row["seconds"]["loop"]
    assert row["best"] == pytest.approx(median(b / a for a, b in zip(own, theirs, strict=True)))
    assert row["share"] == pytest.approx(2 * 4 * 3 * 2 * 4 * 8 / 1e9 / median(own))
    assert "no such library" in ran(modern, "gated", "--rounds", "1", "--counted", "1")
    assert "begins with" in refused(modern, "gru")


@pytest.mark.usefixtures("small_delta")
def test_a_peer_of_a_cell_that_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    def other(x: Any, memory: Any, params: Any) -> Any:
        return delta_loop(x | {"beta": x["beta"] * 0.99}, memory, params)

    monkeypatch.setitem(modern.PEERS, ("gated_delta_rule", "loop"), other)
    with pytest.raises(AssertionError, match="loop is"):
        ran(modern, "--rounds", "1", "--counted", "1")


@pytest.mark.parametrize("case", modern.CASES, ids=lambda case: case.name)
def test_every_case_has_inputs_that_its_cell_takes(case: Any):
    small = replace(case, steps=2, sizes={name: min(size, 2) for name, size in case.sizes.items()})
    if case.cell == "mamba2":
        small = replace(small, sizes={**small.sizes, "groups": 1})
    assert np.isfinite(modern.ours(small, *modern.arrays_of(small))()).all()
    assert all((case.cell, name) in modern.PEERS for name in case.peers)
