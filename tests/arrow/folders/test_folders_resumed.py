"""`stepnet.arrow.run` that is stopped in any way, and goes on: nothing lost, doubled or mixed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from constants import Constants

import stepnet as sn
from stepnet import arrow, cells
from stepnet.arrow.folders import tables
from stepnet.errors import FileError, InputError, StepnetError
from tests.arrow.folders.folder_cases import FRAMES, RNN, contents, read, rows_of, table_of, tree, written

WRONG = [[[1.0, 2.0]], [[1.0]]]
CHILD = """
import sys
sys.path[:0] = {paths!r}
from tests.arrow.folders.folder_cases import RNN
from stepnet import arrow
from stepnet.arrow.folders import tables
tables.PART_BYTES = 2000
arrow.run({inputs!r}, RNN, {output!r}, resume=True, bad={bad!r}, engine="interpret")
"""


def poisoned(folder: Path, files: int) -> Path:
    """A tree in which every other file has wrong rows."""
    for seed in range(files):
        rows = rows_of(seed, 20)
        if seed % 2:
            rows[seed % 20] = rows[(seed + 7) % 20] = WRONG[1]
        table = pa.table({"id": np.arange(20), "frames": pa.array(rows, FRAMES)})
        written(folder / f"day={seed % 3}" / f"{seed}.parquet", table)
    return folder


def dated(folder: Path) -> Path:
    """A folder whose files were all last changed at the same time, which results store."""
    for name in contents(folder):
        os.utime(folder / name, (0, 0))
    return folder


def results(folder: Path) -> list[Path]:
    """The files of a folder that are whole."""
    return [path for path in folder.rglob("*.parquet") if not path.is_dir()]


def killed(source: Path, folder: Path, wait: float) -> bool:
    """True if a process that runs a folder was killed before its end, some time after a new result."""
    output, bad = str(folder / "out"), str(folder / "bad.parquet")
    before = len(results(folder))
    paths = ["tests/support", "src", "."]
    text = CHILD.format(paths=paths, inputs=str(source), output=output, bad=bad)
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", text], cwd=root) as process:
        while process.poll() is None and len(results(folder)) == before:
            time.sleep(0.001)
        time.sleep(wait)
        process.kill()
        return process.wait() != 0


@pytest.mark.long(every=2)
@pytest.mark.parametrize("times", [2, 10])
def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path: Path, times: int, constants: Constants):
    constants(tables, PART_BYTES=2000)
    chosen = random.Random()
    source = poisoned(tmp_path / "in", 20 * times)
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole").mkdir()
    stopped = [killed(source, tmp_path / "killed", chosen.uniform(0, 0.05)) for _ in range(times)]
    assert any(stopped)
    arrow.run(
        source, RNN, tmp_path / "killed" / "out", resume=True, bad=tmp_path / "killed" / "bad.parquet",
        engine="interpret",
    )  # fmt: skip
    arrow.run(
        source, RNN, tmp_path / "whole" / "out", bad=tmp_path / "whole" / "bad.parquet", engine="interpret"
    )
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert pq.read_table(tmp_path / "whole" / "bad.parquet").num_rows == 20 * times


def stop_at(number: int, error: Callable[[], Any]) -> Callable[[arrow.Progress], None]:
    """A function that is called with progress, and at a call of this number calls another."""
    calls = iter(range(1000))

    def step(_: arrow.Progress) -> None:
        if next(calls) == number:
            error()

    return step


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_is_interrupted_anywhere_goes_on(tmp_path: Path):
    source = poisoned(tmp_path / "in", 5)
    (tmp_path / "stopped").mkdir()
    (tmp_path / "whole").mkdir()
    arrow.run(source, RNN, tmp_path / "whole" / "out", bad=tmp_path / "whole" / "bad.parquet")
    output, bad = tmp_path / "stopped" / "out", tmp_path / "stopped" / "bad.parquet"
    for number in (1, 2, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            arrow.run(source, RNN, output, bad=bad, resume=number > 1, progress=stop_at(number, interrupt))
        names = contents(output) if output.exists() else {}
        assert not any(name.endswith(".partial") for name in names)
        whole = contents(tmp_path / "whole" / "out")
        assert all(whole[name] == data for name, data in names.items())
        assert not bad.exists()
    done = arrow.run(source, RNN, output, bad=bad, resume=True)
    assert done.before > 0
    assert done.bad == 4
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    again = arrow.run(source, RNN, output, bad=bad, resume=True)
    assert (again.before, again.sequences, again.bad) == (5, 0, 4)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_inputs_that_come_later_are_run_beside_those_that_are_done(tmp_path: Path):
    source = dated(poisoned(tmp_path / "in", 4))
    for name in ("grown", "at once"):
        (tmp_path / name).mkdir()
    arrow.run(source, RNN, tmp_path / "grown" / "out", bad=tmp_path / "grown" / "bad.parquet")
    poisoned(tmp_path / "in", 9)  # written again, with the same content
    dated(source)
    done = arrow.run(
        source, RNN, tmp_path / "grown" / "out", resume=True, bad=tmp_path / "grown" / "bad.parquet"
    )
    assert (done.before, done.bad) == (4, 8)
    arrow.run(source, RNN, tmp_path / "at once" / "out", bad=tmp_path / "at once" / "bad.parquet")
    assert contents(tmp_path / "grown") == contents(tmp_path / "at once")


def test_the_command_that_is_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from contextlib import contextmanager

    from command_line import MODEL, stepnet

    from stepnet.cli.report import sequences

    rows = pa.table({"x": [[[0.5] * 12] * 3] * 4})
    for name in ("a", "b", "c"):
        written(tmp_path / "in" / f"{name}.parquet", rows)

    @contextmanager
    def stopping(shown: bool) -> Any:
        assert shown
        yield stop_at(2, interrupt)

    monkeypatch.setattr(sequences, "bar", stopping)
    command = (
        "run",
        "--recurrent-only",
        MODEL,
        tmp_path / "in",
        "-o",
        tmp_path / "out",
        "--engine",
        "interpret",
    )
    code, told, said = stepnet(*command)
    assert (code, told) == (130, "")
    assert said == f"stepnet: stopped; each file in {tmp_path}/out is complete, and --resume runs the rest\n"
    monkeypatch.undo()
    code, told, said = stepnet(*command, "--resume")
    assert (code, said) == (0, "")
    assert [len(read(path)) for path in sorted((tmp_path / "out").iterdir())] == [4, 4, 4]


PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}
TIMES = {"now": None, "future": 4_000_000_000, "past": 1_000}


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", ["b.parquet", "b.arrow"])
def test_an_input_of_another_time_is_the_same_until_its_rows_are_others(
    tmp_path: Path, name: str, time: str, constants: Constants
):
    """Other numbers in a file of the same size, footer and ends are noticed, whatever the time."""
    constants(tables, EDGE=64)
    source, random = tmp_path / "in" / name, np.random.default_rng(0)

    def rewrite(rows: Any) -> None:
        table = pa.table({"frames": pa.array(rows, FRAMES)})
        source.parent.mkdir(exist_ok=True)
        if name.endswith("arrow"):
            written(source, table, group=400)
        else:
            pq.write_table(table, source, **PLAIN)

    def touch(seconds: int | None) -> None:
        os.utime(source, None if seconds is None else (seconds, seconds))

    first, second = (random.normal(size=(400, 3, 2)).astype("f4").tolist() for _ in range(2))
    rewrite(first)
    touch(5_000_000_000)  # before the run: a time in the future
    arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret")
    before = contents(tmp_path / "out")
    listed = tables.TableFile.of(source)
    assert arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret", resume=True).before == 1
    touch(TIMES[time])
    assert arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret", resume=True).before == 1
    rewrite(second)
    touch(TIMES[time])
    now = tables.TableFile.of(source)
    assert (now.size, now.digest) == (listed.size, listed.digest)
    with pytest.raises(
        FileError, match=rf"out/b\.parquet: \S+in/{name} was changed since it was made; remove"
    ):
        arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret", resume=True)
    assert contents(tmp_path / "out") == before


def test_the_bytes_of_a_file_are_those_of_its_parts(tmp_path: Path, constants: Constants):
    """A change anywhere in a file is in one part, and only the result of that part is refused."""
    constants(tables, PART_BYTES=700, BLOCK=100)
    source = written(tmp_path / "in" / "a.parquet", table_of(0, 60))
    parts, whole = tables.TableFile.of(source).parts, source.read_bytes()
    assert len(parts) > 3
    assert [part.span[0] for part in parts[1:]] == [part.span[1] for part in parts[:-1]]
    assert (parts[0].span[0], parts[-1].span[1]) == (0, len(whole))
    for part in parts:
        assert tables.TableFile.of(source).checksum(part) == zlib.crc32(whole[slice(*part.span)])
    arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret")
    changed = bytearray(whole)
    changed[parts[2].span[1] - 1] ^= 1
    source.write_bytes(changed)
    os.utime(source, (1, 1))
    with pytest.raises(
        FileError, match=r"out/a-00002\.parquet: \S+/a\.parquet was changed since it was made"
    ):
        arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret", resume=True)
    (tmp_path / "out" / "a-00002.parquet").unlink()
    source.write_bytes(whole)
    assert arrow.run(tmp_path / "in", RNN, tmp_path / "out", engine="interpret", resume=True).before > 2


def one_of(seed: int) -> sn.RNN:
    """A recurrence with other weights."""
    params = cells.CELLS["gru"].parameters(2, 3)
    return cells.rnn("gru", {name: value + np.float32(seed) for name, value in params.items()})


def rewritten(folder: Path) -> None:
    written(folder / "in" / "b.parquet", table_of(7))


def patched(folder: Path) -> None:
    data = bytearray((folder / "in" / "b.parquet").read_bytes())
    data[60] ^= 1
    (folder / "in" / "b.parquet").write_bytes(data)


def spoilt(folder: Path) -> None:
    pq.write_table(read(folder / "out" / "b.parquet"), folder / "out" / "b.parquet")
    table = pq.read_table(folder / "out" / "b.parquet").replace_schema_metadata({"stepnet": "{}"})
    pq.write_table(table, folder / "out" / "b.parquet", store_schema=False)


MIXED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "model": (lambda _: None, {"model": one_of(1)}, r"out/a\.parquet: it was made by another model; remove"),
    "reverse": (
        lambda _: None,
        {"model": cells.rnn("gru", cells.CELLS["gru"].parameters(2, 3), reverse=True)},
        r"out/a\.parquet: it was made by another model; remove",
    ),
    "options": (
        lambda _: None,
        {"keep": ["id"], "refuse_nan": True},
        r"made with other options: keep=None, refuse_nan=False, and now keep=\['id'\], refuse_nan=True;",
    ),
    "version": (
        lambda _: None,
        {"version": "99"},
        r"out/a\.parquet: it was made by stepnet \S+, and this is 99; remove it to make it again, or choose",
    ),
    "other content": (rewritten, {}, r"out/b\.parquet: it was made of another input: the file was changed"),
    "a bit": (patched, {}, r"out/b\.parquet: .*in/b\.parquet was changed since it was made; remove it"),
    "gone": (
        lambda folder: (folder / "in" / "b.parquet").unlink(),
        {},
        r"out/b\.parquet: this is a result of b\.parquet, which is not among these inputs \(removed or "
        r"renamed\?\); move it elsewhere",
    ),
    "format": (
        lambda _: None,
        {"file_format": "arrow"},
        r"out/a\.parquet: this is a result of a\.parquet, and not as this run names it \(another format\?\);",
    ),
    "copied": (
        lambda folder: written(folder / "out" / "d.parquet", table_of(0)),
        {},
        r"out/d\.parquet: this is not a result of these inputs; move it elsewhere",
    ),
    "foreign": (
        lambda folder: (folder / "out" / "notes").touch(),
        {},
        r"out/notes: this is not a result of these inputs",
    ),
    "spoilt": (spoilt, {}, r"out/b\.parquet: it is not a result of stepnet run; remove it"),
    "cut": (
        lambda folder: os.truncate(folder / "out" / "b.parquet", 50),
        {},
        r"out/b\.parquet: this is not a complete Parquet file",
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_what_was_made_otherwise_is_not_mixed(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch):
    from stepnet.arrow.folders import request

    change, options, message = MIXED[case]
    source = tree(tmp_path / "in", ("a.parquet", "b.parquet", "c.parquet"))
    arrow.run(source, RNN, tmp_path / "out")
    (tmp_path / "out" / "c.parquet").unlink()
    change(tmp_path)
    before = contents(tmp_path / "out")
    asked = dict(options)
    if version := asked.pop("version", None):
        monkeypatch.setattr(request, "__version__", version)
    model = asked.pop("model", RNN)
    with pytest.raises(FileError, match=message):
        arrow.run(source, model, tmp_path / "out", resume=True, **asked)
    assert contents(tmp_path / "out") == before


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path):
    source = tree(tmp_path / "in", ("a.parquet",))
    arrow.run(source, RNN, tmp_path / "out")
    message = r"out: the folder is not empty; --resume \(Python: resume=True\) continues with the results"
    with pytest.raises(FileError, match=message):
        arrow.run(source, RNN, tmp_path / "out")
    with pytest.raises(
        InputError, match=r"--force \(Python: force=True\) replaces an output file, and \S+ is a"
    ):
        arrow.run(source, RNN, tmp_path / "out", force=True)


def test_a_damaged_file_stops_the_run_and_goes_on_when_it_is_mended(tmp_path: Path):
    source = dated(tree(tmp_path / "in", ("a.parquet", "b.parquet", "c.parquet"), count=400))
    whole = (source / "b.parquet").read_bytes()
    arrow.run(source, RNN, tmp_path / "expected")
    damaged = bytearray(whole)
    damaged[200:3000] = b"\xff" * 2800
    (source / "b.parquet").write_bytes(damaged)
    with pytest.raises(FileError, match=r"in/b\.parquet: this is not a complete Parquet file \("):
        arrow.run(source, RNN, tmp_path / "out")
    assert list(contents(tmp_path / "out")) == ["a.parquet"]
    for cut in (whole[:-9], b"", whole[:100]):
        (source / "b.parquet").write_bytes(cut)
        with pytest.raises(FileError, match=r"in/b\.parquet: this is not a complete Parquet file \("):
            arrow.run(source, RNN, tmp_path / "out", resume=True)
    (source / "b.parquet").write_bytes(whole)
    assert arrow.run(dated(source), RNN, tmp_path / "out", resume=True).before == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_a_damaged_arrow_file_is_named(tmp_path: Path):
    source = tree(tmp_path / "in", ("a.arrow", "b.ipc", "c.feather"), count=400)
    for name in ("b.ipc", "c.feather"):
        whole = (source / name).read_bytes()
        (source / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FileError, match=rf"in/{name}: this is not a complete Arrow file \("):
            arrow.run(source, RNN, tmp_path / "out", resume=True)
        (source / name).write_bytes(b"")
        with pytest.raises(FileError, match=rf"in/{name}: this is not a complete Arrow file \("):
            arrow.run(source, RNN, tmp_path / "out", resume=True)
        (source / name).write_bytes(whole)
    assert arrow.run(source, RNN, tmp_path / "out", resume=True).results == 3


def test_rows_that_were_set_aside_are_not_lost(tmp_path: Path):
    source, output, bad = poisoned(tmp_path / "in", 3), tmp_path / "out", tmp_path / "bad.parquet"
    arrow.run(source, RNN, output, bad=bad)
    (output / "day=2" / "2.parquet").unlink()
    before = contents(output)
    answers: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, r"out/day=1/1\.parquet: 2 rows were set aside for it; name the file that holds them with --bad"),
        (
            {"bad": tmp_path / "other.parquet"},
            r"1\.parquet: 2 rows were set aside for it, and 0 of them are in .*/other\.parquet; name the "
            r"file of its run, or remove the result 1\.parquet to make both again",
        ),
    )
    for asked, message in answers:
        with pytest.raises(StepnetError, match=message):
            arrow.run(source, RNN, output, resume=True, **asked)
    with pytest.raises(FileError, match=r"bad\.parquet: it was made by another model; choose another file"):
        arrow.run(source, one_of(1), tmp_path / "new", bad=bad, resume=True)
    with pytest.raises(FileError, match=r"bad\.parquet: the file is there already"):
        arrow.run(source, RNN, tmp_path / "new", bad=bad)
    assert contents(output) == before


def test_two_processes_do_not_write_the_same_result(tmp_path: Path):
    from stepnet.arrow.folders import result_files

    source, output = tree(tmp_path / "in", ("a.parquet",)), tmp_path / "out"
    held = result_files.ResultFile(output / "a.parquet", pa.schema([("x", pa.int8())]), {}, "parquet", "none")
    message = r"out/\.a\.parquet\.partial: another process is writing here; wait for it, or stop it$"
    with pytest.raises(FileError, match=message):
        arrow.run(source, RNN, output, resume=True)
    with pytest.raises(FileError, match=message):
        arrow.run(source / "a.parquet", RNN, output / "a.parquet")
    held.drop()
    assert arrow.run(source, RNN, output, resume=True).results == 1


def test_rows_that_were_set_aside_are_there_however_paths_are_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    poisoned(Path("in"), 4)
    arrow.run(tmp_path / "in", RNN, tmp_path / "out", bad=tmp_path / "bad.parquet")
    expected = contents(tmp_path)
    Path("link").symlink_to("in")
    Path("deep").mkdir()
    for inputs in ("in", "./in/", "deep/../in", "link", tmp_path / "in"):
        Path("out/day=1/1.parquet").unlink()
        done = arrow.run(inputs, RNN, "./out", bad="bad.parquet", resume=True)
        assert (done.before, done.bad) == (3, 4)
        rows = pq.read_table("bad.parquet")
        # The path of each row is spelled as it was given last, and opens its file.
        assert set(rows["file"].to_pylist()) == {
            os.fspath(Path(inputs, f"day={n % 3}/{n}.parquet")) for n in (1, 3)
        }
    assert contents(tmp_path / "out") == {
        name[4:]: data for name, data in expected.items() if name.startswith("out/")
    }
    assert Path("bad.parquet").read_bytes() == expected["bad.parquet"]
    Path("in").rename("moved")
    assert arrow.run("moved", RNN, "out", bad="bad.parquet", resume=True).before == 4
    assert set(pq.read_table("bad.parquet")["file"].to_pylist()) == {
        "moved/day=1/1.parquet",
        "moved/day=0/3.parquet",
    }


def test_rows_of_another_input_are_not_those_of_this_one(tmp_path: Path):
    """Two runs with files of the same names, and the same number of rows that were set aside."""
    for name in ("x", "y"):
        table = pa.table({"id": [len(name), ord(name)], "frames": pa.array(WRONG, FRAMES)})
        written(tmp_path / name / "a.parquet", table)
        arrow.run(tmp_path / name, RNN, tmp_path / f"{name} out", bad=tmp_path / f"{name}.bad.parquet")
    with pytest.raises(FileError, match=r"a\.parquet: 1 rows were set aside for it, and 0 of them are in"):
        arrow.run(tmp_path / "y", RNN, tmp_path / "y out", bad=tmp_path / "x.bad.parquet", resume=True)
    # Nor are the rows of a run that was stopped, under the name of this one's result.
    (tmp_path / "y.bad.parquet").unlink()
    (tmp_path / ".y.bad.parquet.parts").mkdir()
    table = pq.read_table(tmp_path / "x.bad.parquet")
    pq.write_table(table, tmp_path / ".y.bad.parquet.parts" / "a.parquet.parquet")
    with pytest.raises(FileError, match=r"a\.parquet: 1 rows were set aside for it, and 0 of them are in"):
        arrow.run(tmp_path / "y", RNN, tmp_path / "y out", bad=tmp_path / "y.bad.parquet", resume=True)


def test_a_row_group_of_rows_that_were_set_aside_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    from stepnet.arrow.folders import aside

    constants(aside, GROUP=5)
    for number in range(7):
        rows = pa.array([[[1.0]]] * 3 + [[[1.0, 2.0]]], FRAMES)
        written(tmp_path / "in" / f"{number}.parquet", pa.table({"id": range(4), "frames": rows}))
    output, bad = tmp_path / "out", tmp_path / "bad.parquet"
    arrow.run(tmp_path / "in", RNN, output, bad=bad)
    before, read_groups, native = bad.read_bytes(), list[Path](), aside.open_native
    monkeypatch.setattr(aside, "open_native", lambda path: read_groups.append(path) or native(path))
    assert arrow.run(tmp_path / "in", RNN, output, bad=bad, resume=True).bad == 21
    assert len(read_groups) == 1 + 5  # the footer, and 21 rows in groups of 5
    assert bad.read_bytes() == before


@pytest.mark.parametrize("index", [None, [["a", 1]], [["a", "many"]], [["a", -1], ["b", 2]], 3])
def test_a_file_of_rows_whose_index_is_wrong_is_refused(tmp_path: Path, index: Any):
    source = written(tmp_path / "a.parquet", pa.table({"frames": pa.array([[[1.0]], [[1.0]]], FRAMES)}))
    arrow.run(source, RNN, tmp_path / "out", bad=tmp_path / "bad.parquet")
    table = pq.read_table(tmp_path / "bad.parquet")
    metadata = pq.read_metadata(tmp_path / "bad.parquet").metadata
    end = b"{}" if index is None else json.dumps({"results": index}).encode()
    pq.write_table(
        table.replace_schema_metadata({**metadata, b"stepnet.rows": end}), tmp_path / "bad.parquet"
    )
    with pytest.raises(
        FileError, match=r"bad\.parquet: it is not a file of rows that were set aside; choose"
    ):
        arrow.run(source, RNN, tmp_path / "out", bad=tmp_path / "bad.parquet", resume=True)
