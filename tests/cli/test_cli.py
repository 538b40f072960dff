"""The command line: what each command prints and writes, and one line and exit code 1 for what is wrong."""

import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from command_line import MODEL, VOWELS, refusal, stepnet
from constants import Constants
from safetensors.torch import load_file, save_file
from tolerance import assert_close

import stepnet as sn
from stepnet.arrow.folders import tables
from stepnet.compiler.disk import store
from stepnet.explain import bars

RUN_MAIN = "from stepnet.cli.commands import main; main()"

ASIDE = "--bad ROWS.parquet (Python: bad='ROWS.parquet') sets such rows aside"


@pytest.fixture
def vowels(tmp_path: Path) -> Path:
    """The first rows of the data, so that tests are quick."""
    path = tmp_path / "vowels.parquet"
    parquet.write_table(parquet.read_table(VOWELS).slice(265, 9), path)
    return path


def write(path: Path, **columns: pa.Array | list) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def listed(path: Path, column: str = "outputs") -> list[np.ndarray]:
    return sn.Ragged.from_arrow(parquet.read_table(path)[column]).to_list()


# ---- run --------------------------------------------------------------------------------------------------


def test_run_gives_what_torch_gives(tmp_path: Path, vowels: Path, engine: str):
    out = tmp_path / "out.parquet"
    code, stdout, stderr = stepnet("run", "--recurrent-only", MODEL, vowels, "-o", out, "--engine", engine)
    assert (code, stderr) == (0, "")
    assert stdout.startswith("9 sequences of ")
    gru = torch.nn.GRU(12, 64)
    weights = load_file(MODEL)
    gru.load_state_dict({k.removeprefix("gru."): v for k, v in weights.items() if k.startswith("gru.")})
    table, source = parquet.read_table(out), parquet.read_table(vowels)
    assert table.schema.names == ["split", "speaker", "outputs"]
    assert table["outputs"].type == pa.list_(pa.list_(pa.float32(), 64))
    assert table.select(["split", "speaker"]).equals(source.select(["split", "speaker"]))
    for frames, outputs in zip(listed(vowels, "frames"), listed(out), strict=True):
        with torch.inference_mode():
            assert_close(outputs, gru(torch.tensor(frames))[0].numpy(), len(frames), 12 + 64)


def test_run_of_layers_and_directions(tmp_path: Path, vowels: Path):
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(12, 5, num_layers=2, bidirectional=True)
    model = tmp_path / "lstm.safetensors"
    save_file({f"encoder.{name}": value for name, value in lstm.state_dict().items()}, model)
    out = tmp_path / "out.parquet"
    assert stepnet("run", model, vowels, "-o", out, "--prefix", "encoder")[0] == 0
    for frames, outputs in zip(listed(vowels, "frames"), listed(out), strict=True):
        with torch.inference_mode():
            assert_close(outputs, lstm(torch.tensor(frames))[0].numpy(), len(frames), 12 + 20)


def test_run_as_json_in_chunks(tmp_path: Path, vowels: Path, constants: Constants):
    whole, chunked = tmp_path / "whole.parquet", tmp_path / "chunked.parquet"
    assert stepnet("run", "--recurrent-only", MODEL, vowels, "-o", whole)[0] == 0
    constants(tables, CHUNK_ROWS=2)
    code, stdout, _ = stepnet("run", "--recurrent-only", MODEL, vowels, "-o", chunked, "--json")
    found = json.loads(stdout)
    assert found.pop("sequences_per_second") > 0
    steps = sum(map(len, listed(vowels, "frames")))
    assert code == 0
    assert found.pop("seconds") > 0
    counts = {"files": 1, "results": 1, "before": 0, "bad": 0, "passed_over": 0}
    counts |= {"sequences": 9, "steps": steps, "features": 64}
    left_out = ["head.bias", "head.weight"]
    names = {"passed_names": [], "left_out": left_out}
    assert found == {**counts, "output": str(chunked), "notes": {}, **names}
    # A sequence's result is the same bits, whatever else is in its batch.
    assert parquet.read_table(whole).equals(parquet.read_table(chunked))


@pytest.mark.parametrize("name", ["frames", "all.frames", "frames.all"])
def test_the_numbers_of_a_column_are_counted_whatever_its_name(tmp_path: Path, name: str):
    source = write(tmp_path / "in.parquet", **{name: [[[1.0, 2.0]] * 3, []], "id": [1, 2]})
    # An empty list is a number in Parquet, too.
    assert tables.numbers_in(parquet.ParquetFile(source), name, 0) == 7


@pytest.mark.parametrize("rows", [0, 3])
def test_run_over_lists_of_lists_of_doubles_and_empty_ones(tmp_path: Path, rows: int):
    sequences = [[[float(step)] * 12 for step in range(length)] for length in (2, 0, 3)][:rows]
    source = write(tmp_path / "in.parquet", x=pa.array(sequences, pa.large_list(pa.list_(pa.float64()))))
    out = tmp_path / "out.parquet"
    assert stepnet("run", "--recurrent-only", MODEL, source, "-o", out)[0] == 0
    assert [len(outputs) for outputs in listed(out)] == [2, 0, 3][:rows]
    assert parquet.read_table(out)["outputs"].type == pa.large_list(pa.list_(pa.float32(), 64))


def test_run_over_one_number_per_step(tmp_path: Path):
    model = tmp_path / "rnn.safetensors"
    save_file(torch.nn.RNN(1, 2).state_dict(), model)
    source = write(tmp_path / "in.parquet", x=pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float32())))
    said = refusal("run", "--recurrent-only", model, source, "-o", tmp_path / "out.parquet")
    assert (
        "torch.rnn: the arrays do not determine candidate_activation (its name there: nonlinearity)" in said
    )
    run = ("run", "--recurrent-only", model, source, "-o", tmp_path / "out.parquet")
    assert stepnet(*run, "--semantics", "activation=tanh")[0] == 0
    assert [outputs.shape for outputs in listed(tmp_path / "out.parquet")] == [(2, 2), (1, 2)]


def test_run_replaces_an_output_only_by_force(tmp_path: Path, vowels: Path):
    out = tmp_path / "out.parquet"
    out.write_text("precious")
    message = refusal("run", "--recurrent-only", MODEL, vowels, "-o", out)
    assert message == f"{out}: the file is there already; --force (Python: force=True) replaces it"
    assert out.read_text() == "precious"
    assert stepnet("run", "--recurrent-only", MODEL, vowels, "-o", out, "--force")[0] == 0
    assert len(listed(out)) == 9
    message = refusal("run", "--recurrent-only", MODEL, vowels, "-o", vowels, "--force")
    assert message == f"{vowels}: the output is the input; choose another name"
    assert len(listed(vowels, "frames")) == 9


def test_run_leaves_nothing_behind_when_it_fails(tmp_path: Path):
    source = write(tmp_path / "in.parquet", x=pa.array([[[1.0] * 12], [[1.0] * 13]]))
    out = tmp_path / "out.parquet"
    message = refusal("run", "--recurrent-only", MODEL, source, "-o", out)
    reason = "column `x`: row 1, entry 0 has 13 numbers, and the model takes 12"
    assert message == f"{source}: {reason}; {ASIDE}"
    assert list(tmp_path.iterdir()) == [source]
    out.write_text("precious")
    refusal("run", "--recurrent-only", MODEL, source, "-o", out, "--force")
    assert out.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [source, out]


def test_run_with_columns_that_do_not_fit(tmp_path: Path):
    floats = pa.list_(pa.list_(pa.float32(), 13))
    frames = pa.array([[[1.0] * 13]], floats)
    cases: dict[str, tuple[dict[str, pa.Array | list], list[str], str]] = {
        "13 features": ({"x": frames}, [], "[13]>, and the model takes sequences of steps of 12 numbers"),
        "no features": (
            {"x": [[1.0]]},
            [],
            "list<element: double>, and the model takes sequences of steps of 12 numbers",
        ),
        "integers": (
            {"x": [[[1] * 12]]},
            [],
            "column `x`: its numbers are int64, and the model takes float32; cast them",
        ),
        "a null": (
            {"x": pa.array([[[1.0] * 12], [None]])},
            [],
            "the Arrow array has a null in row 1, entry 0; drop such rows or fill them "
            "(pyarrow.compute.fill_null)",
        ),
        "no lists": (
            {"x": [1.0], "y": ["a"]},
            [],
            "there is no list column of numbers; there are x (double), y (string)",
        ),
        "two lists": (
            {"x": frames, "y": frames},
            [],
            "there are 2 list columns (x, y); choose one with --column NAME (Python: column=NAME)",
        ),
        "another name": ({"x": frames}, ["--column", "z"], "there is no column `z`; there are x"),
        "no list": (
            {"x": frames, "y": [1]},
            ["--column", "y"],
            "column `y` holds int64; the column of sequences holds lists",
        ),
        "outputs": (
            {"x": frames, "outputs": [1]},
            [],
            "there is a column `outputs` already, and the result would have that name: rename the column, or "
            "do not pass it on",
        ),
    }
    for columns, options, expected in cases.values():
        source = write(tmp_path / "in.parquet", **columns)
        options += ["--engine", "interpret", "-o", str(tmp_path / "out.parquet")]
        message = refusal("run", "--recurrent-only", MODEL, source, *options)
        assert message.startswith(str(source))
        assert message.removesuffix(f"; {ASIDE}").endswith(expected)


def test_run_with_files_that_are_none(tmp_path: Path, vowels: Path):
    out, broken, slow = tmp_path / "out.parquet", tmp_path / "broken.parquet", ("--engine", "interpret")

    def over(source: Path) -> str:
        return refusal("run", "--recurrent-only", MODEL, source, "-o", out, *slow).removeprefix(f"{source}: ")

    assert over(tmp_path / "nowhere") == "there is no such file"
    (tmp_path / "empty").mkdir()
    assert over(tmp_path / "empty") == "there is no Parquet or Arrow file (.parquet, .arrow, .feather, .ipc)"
    for content in (b"", b"PAR1", VOWELS.read_bytes()[:-9], pickle.dumps([1]), MODEL.read_bytes()):
        broken.write_bytes(content)
        assert over(broken).startswith("this is not a complete Parquet file (")
    spoilt = bytearray(vowels.read_bytes())
    spoilt[100:400] = b"\xff" * 300  # the footer is whole, the numbers are not
    broken.write_bytes(spoilt)
    assert over(broken).startswith("this is not a complete Parquet file (")
    spoilt = bytearray(write(tmp_path / "in.parquet", frames=[[[1.0] * 12]]).read_bytes())
    footer = len(spoilt) - 8 - int.from_bytes(spoilt[-8:-4], "little")
    spoilt[spoilt.index(b"frames", footer)] = 0xE6  # no text begins so
    broken.write_bytes(spoilt)
    assert over(broken).startswith("this is not a complete Parquet file ('utf-8' codec")
    missing = tmp_path / "nowhere" / "out.parquet"
    message = refusal("run", "--recurrent-only", MODEL, vowels, "-o", missing, *slow)
    assert message == f"{missing}: the file cannot be written (there is no folder {missing.parent})"


# ---- explain, doctor --------------------------------------------------------------------------------------


def test_explain_prints_the_plan():
    code, stdout, stderr = stepnet("explain", "--recurrent-only", MODEL)
    assert (code, stderr) == (0, "")
    assert "in the loop, per step: 28.0 kflop, 49.4 kB of weights" in stdout
    assert "engine: llvm" in stdout


def test_explain_as_json_names_each_recurrence(tmp_path: Path):
    model = tmp_path / "gru.safetensors"
    save_file(torch.nn.GRU(3, 4, num_layers=2, bidirectional=True).state_dict(), model)
    code, stdout, _ = stepnet("explain", "--recurrent-only", model, "--json", "--engine", "interpret")
    found = json.loads(stdout)
    assert code == 0
    names = [one["name"] for one in found["recurrences"]]
    assert names == [f"layer {layer} {way}" for layer in (0, 1) for way in ("forward", "backward")]
    assert [one["inputs"]["x"] for one in found["recurrences"]] == ["f32[3]", "f32[3]", "f32[8]", "f32[8]"]
    assert [one["engine"] for one in found["recurrences"]] == ["interpret"] * 4
    loop = found["recurrences"][0]["stages"][-1]
    assert (loop["name"], loop["flops"]) == ("loop", 2 * 4 * 12 + 4 * (3 * 15 + 8))


def test_explain_of_models_that_are_none(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    assert refusal("explain", path) == f"{path}: there is no such file"
    for content in (b"", MODEL.read_bytes()[:-1], pickle.dumps([1])):
        path.write_bytes(content)
        assert refusal("explain", path).startswith(f"{path}: this is not a complete .safetensors file (")
    save_file({"head.weight": torch.zeros(2)}, path)
    assert refusal("explain", path).startswith(f"{path}: no recurrent layer is here")
    save_file({"head.weight\nx": torch.zeros(2)}, path)
    assert refusal("explain", path).endswith("the name 'head.weight\\nx', which cannot be printed")
    assert refusal("explain", MODEL, "--prefix", "rnn").startswith(
        f"{MODEL}: no recurrent module is called 'rnn'; there are 'gru.': "
        "say --module NAME (Python: module=NAME) for one of these"
    )
    assert refusal("explain", "--recurrent-only", MODEL, "--engine", "tpu").startswith(
        "no engine is called 'tpu'"
    )


def test_cache_says_what_is_kept(cache: Path, works: None, tmp_path: Path):
    for number in range(21):
        store.put("plan", f"{number:032x}", bytes(2**10))
    store.put("kernel", "f" * 32, bytes(100))
    store.get("kernel", "f" * 32)
    code, stdout, _ = stepnet("cache", "--json")
    found = json.loads(stdout)
    assert code == 0
    assert (found["folder"], found["reason"], found["most"]) == (str(cache), None, 2**28)
    assert found["bytes"] == 21 * (2**10 + 48) + 148
    assert [each["hits"] for each in found["entries"] if each["name"] == f"{'f' * 32}.kernel"] == [1]
    lines = stepnet("cache")[1].splitlines()
    assert lines[0] == f"{tmp_path / 'cache'}, 22.1 KB of 256.0 MB"
    assert lines[1].split()[:7] == ["plan", "21", "entries", "22.0", "KB", "read", "0"]
    assert lines[-1] == "  and 2 more, which --json lists"
    code, stdout, _ = stepnet("cache", "--clear")
    assert (code, stdout.splitlines()[0]) == (0, "22 entries removed")
    (cache / f"{'e' * 32}.plan").mkdir()
    found = json.loads(stepnet("cache", "--json")[1])
    assert (found["entries"], found["left"]) == ([], [f"{'e' * 32}.plan"])
    shown = ["  not removed, because they are not files:", f"  {'e' * 32}.plan"]
    assert stepnet("cache", "--clear")[1].splitlines()[-2:] == shown
    assert f"cache         {tmp_path / 'cache'}, " in stepnet("doctor")[1]


def test_cache_says_why_it_is_not_used(works: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert stepnet("cache")[1] == "not used: STEPNET_CACHE is 0\n"
    assert "cache         not used: STEPNET_CACHE is 0\n" in stepnet("doctor")[1]
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    reason = f"{tmp_path} is open to others, with mode 755; chmod 700 makes it private"
    assert stepnet("cache")[1] == f"not used: {reason}\n"
    assert refusal("cache", "--clear") == f"the cache cannot be cleared: {reason}"


@pytest.mark.parametrize(("patience", "seen"), [(0.0, True), (60.0, False)])
def test_progress_is_shown_of_what_takes_long(
    patience: float,
    seen: bool,
    monkeypatch: pytest.MonkeyPatch,
    constants: Constants,
    capsys: pytest.CaptureFixture[str],
):
    constants(bars, PATIENCE=patience)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stderr for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with bars.work_bar("sequences", 100) as advance:
        advance(40)
        time.sleep(0.3)
    captured = capsys.readouterr()
    assert ("sequences" in captured.err) == seen
    assert ("40%" in captured.err) == seen
    assert captured.out == ""


# ---- usage and exit codes ---------------------------------------------------------------------------------


def test_version():
    assert stepnet("--version") == (0, f"stepnet {sn.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("explode",),
        ("explain",),
        ("explain", MODEL, "--loud"),
        ("run", "--recurrent-only", MODEL),
        ("run", "--recurrent-only", MODEL, "-o"),
        ("doctor", "surplus"),
    ],
)
def test_wrong_usage(arguments: tuple[object, ...]):
    assert stepnet(*arguments)[0] == 2


def test_without_arguments_there_is_help():
    code, stdout, stderr = stepnet()
    assert code in (0, 2)  # the version of click decides, and where it is printed
    assert "doctor" in stdout + stderr


def test_refusals_of_several_lines_become_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vowels: Path):
    from stepnet.compiler.targets import engine_named

    monkeypatch.setattr(type(engine_named("llvm")), "refuse", lambda self, schedule: "it is Sunday")
    message = refusal("run", "--recurrent-only", MODEL, vowels, "-o", tmp_path / "out.parquet")
    assert message.endswith("; llvm: it is Sunday")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (lambda path: ["explain", "--recurrent-only", MODEL], 0, ""),
        (lambda path: ["explain", path / "nowhere"], 1, "stepnet: {path}/nowhere: there is no such file\n"),
        (lambda path: ["explain", MODEL, "--loud"], 2, None),
    ],
)
def test_exit_codes_of_the_process(
    arguments: Callable[[Path], list], code: int, says: str | None, tmp_path: Path
):
    command = [
        sys.executable,
        "-c",
        RUN_MAIN,
        *map(str, arguments(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code
    assert says is None or done.stderr == says.format(path=tmp_path)
    assert "Traceback" not in done.stderr


def ended(stdout: int, program: str, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a process whose stdout is buffered, as it is by default."""
    command, environment = [sys.executable, "-c", program, *arguments], {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=environment, text=True, timeout=240, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["layouts"]])  # written by click, and by rich
def test_a_full_device_gives_one_line(arguments: list[str]):
    with open("/dev/full", "w") as full:
        code, stderr = ended(full.fileno(), RUN_MAIN, *arguments)
    assert (code, stderr) == (1, "stepnet: stdout cannot be written: No space left on device\n")


@pytest.mark.parametrize("arguments", [["--version"], ["explain", "nowhere"]])
def test_a_closed_pipe_ends_a_command_quietly(arguments: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    code, stderr = ended(writing, f"print('in the buffer'); {RUN_MAIN}", *arguments)
    os.close(writing)
    assert (code, stderr) == (
        1,
        "" if "--version" in arguments else "stepnet: nowhere: there is no such file\n",
    )


def test_what_a_locale_without_utf_8_lacks_is_escaped(tmp_path: Path):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    path = tmp_path / "gru.safetensors"
    state = torch.nn.GRU(2, 3).state_dict()
    save_file({f"d\u00e9codeur.{name}": weight for name, weight in state.items()}, path)
    command = [sys.executable, "-c", RUN_MAIN, "show", str(path)]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"d\\xe9codeur" in done.stdout


def test_an_error_that_is_not_about_stdout_is_not_said_to_be():
    """Some errors of the system name no file: of a library that reads one, and of Python's own modules."""
    for error in ("OSError('could not get source code')", "FileNotFoundError(2, 'No such file')"):
        program = (
            f"import stepnet.cli.commands as c; c.app = lambda: (_ for _ in ()).throw({error}); c.main()"
        )
        code, stderr = ended(subprocess.DEVNULL, program)
        assert code == 1
        assert "stdout cannot be written" not in stderr
        assert stderr.splitlines()[-1].startswith(error.partition("(")[0])


def test_the_demo_finds_its_data_in_a_zip_file(tmp_path: Path):
    source = Path(sn.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.pyz", "w") as archive:
        for path in source.rglob("*"):
            if path.suffix == ".py" or path.parent.name == "data":
                archive.write(path, Path("stepnet", path.relative_to(source)))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'all.pyz')!r}); from stepnet.cli import demo; "
        "import inspect; inspect.getsource(demo.gru); print(demo.__file__, len(demo.load().utterances))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == f"{tmp_path / 'all.pyz' / 'stepnet' / 'cli' / 'demo.py'} 370\n"


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run([sys.executable, "-m", "stepnet", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"stepnet {sn.__version__}\n", "")


def test_the_command_line_imports_no_framework():
    program = (
        "import sys, stepnet.cli.commands; print({'torch', 'keras', 'pyarrow', 'onnx'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "set()\n"


# ---- names that are nearly right ---------------------------------------------------------------------------


def test_names_that_are_nearly_right():
    assert "no layout is called 'torch.gur' (did you mean torch.gru" in refusal("layouts", "torch.gur")
    assert "no framework is called 'kears' (did you mean keras" in refusal("show", MODEL, "--to", "kears")
    assert "no recurrent module is called 'gur' (did you mean gru?); there are 'gru.'" in refusal(
        "explain", MODEL, "--module", "gur"
    )
    for arguments, meant in {
        ("explain", MODEL, "--semantics", "rest=after"): "no setting is called 'rest' (did you mean reset?)",
        ("explain", MODEL, "--modul", "gru"): "--module",
        ("explian", MODEL): "explain",
    }.items():
        code, _, said = stepnet(*arguments)
        assert code == 2
        assert meant in " ".join(said.replace("│", " ").split())


def test_layouts_are_listed_whole_where_nobody_reads_them():
    command = [sys.executable, "-c", RUN_MAIN, "layouts"]
    own = ("COLUMNS", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + len(sn.layout.records())
    assert "…" not in done.stdout


def test_the_shell_completes_commands():
    environment = os.environ | {
        "_STEPNET_COMPLETE": "complete_bash",
        "COMP_WORDS": "stepnet conv",
        "COMP_CWORD": "1",
    }
    command = [sys.executable, "-c", RUN_MAIN.replace("main()", "sys.argv[0] = 'stepnet'; main()")]
    command[-1] = f"import sys; {command[-1]}"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["convert"]
