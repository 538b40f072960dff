"""`stepnet.arrow.run` over files, folders and globs: what it writes, where, and with how much memory."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from constants import Constants
from tolerance import assert_close

import stepnet as sn
from stepnet import arrow
from stepnet.arrow.folders import sifting, tables
from stepnet.errors import FileError
from tests.arrow.folders.folder_cases import (
    FRAMES,
    IN,
    RNN,
    H,
    contents,
    read,
    rows_of,
    table_of,
    tree,
    written,
)

NAMES = ("day=1/a.parquet", "day=1/b.arrow", "day=2/c.feather", "d.ipc")


def expected(row: Any, result: str) -> Any:
    """The interpreter's result for one row alone."""
    if row is None:
        return None
    one = sn.Ragged.from_list([np.asarray(row, "f4").reshape(-1, IN)])
    made = RNN(one, last_only=result == "last", engine="interpret")[0]
    return np.asarray(made[0])


def check(table: Any, seed: int, result: str = "outputs", count: int = 12) -> None:
    """Asserts that a result is that of a table of this seed, row by row."""
    assert table["id"].equals(table_of(seed, count)["id"])
    for found, row in zip(table[result].to_pylist(), rows_of(seed, count), strict=True):
        right = expected(row, result)
        assert (found is None) == (right is None)
        if right is not None:
            assert_close(np.array(found, "f4").reshape(right.shape), right, 5, IN + H)


@pytest.mark.parametrize(("result", "form"), [("outputs", "parquet"), ("last", "arrow")])
def test_each_row_is_what_its_sequence_gives_alone(tmp_path: Path, result: str, form: str):
    source = tree(tmp_path / "in", NAMES)
    (source / "_SUCCESS").touch()
    (source / "notes.txt").touch()
    done = arrow.run(source, RNN, tmp_path / "out", result=result, file_format=form)
    found = {name: read(tmp_path / "out" / name) for name in contents(tmp_path / "out")}
    stems = {name: Path(name).with_suffix(f".{form}").as_posix() for name in NAMES}
    assert sorted(found) == sorted(stems.values())
    for seed, name in enumerate(NAMES):
        check(found[stems[name]], seed, result)
    rows = [row for seed in range(4) for row in rows_of(seed)]
    assert (done.files, done.results, done.before, done.passed_over) == (4, 4, 0, 2)
    assert (done.sequences, done.bad, done.features) == (48, 0, H)
    assert done.steps == sum(len(row) for row in rows if row)


def test_files_of_other_endings_are_named(tmp_path: Path):
    source = tree(tmp_path / "in", ("a.parquet",))
    for name in ("_SUCCESS", "b.pq", "c.parquet.gz", "part-0", "z"):
        (source / name).touch()
    done = arrow.run(source, RNN, tmp_path / "out")
    assert (done.passed_over, done.passed_names) == (5, ("b.pq", "c.parquet.gz", "part-0", "z"))
    assert done.text().endswith("\n5 other files were passed over (b.pq, c.parquet.gz, part-0, ...)")


def test_numbers_of_several_outputs_are_counted_together(tmp_path: Path):
    graph = sn.Graph(lambda x, p: {"all": x, "sum": sn.reduce(x, "sum")}, {}, inputs=IN)
    done = arrow.run(tree(tmp_path / "in", NAMES[:1]), graph, tmp_path / "out")
    assert done.features == 2 * IN
    assert f": {2 * IN} outputs each in " in done.text()


def test_a_glob_keeps_what_comes_after_its_first_part_and_a_file_its_name(tmp_path: Path):
    source = tree(tmp_path / "in", ("day=1/a.parquet", "day=2/a.parquet", "day=3/_x.parquet", "e.parquet"))
    (source / "day=1" / "b.txt").touch()
    run, out = arrow.run, tmp_path / "out"
    run(str(source / "day=*" / "*"), RNN, out / "files")
    run(str(source / "d*"), RNN, out / "folders")
    run(str(source / "**" / "a.parquet"), RNN, out / "deep")
    run([source / "day=1", source / "e.parquet"], RNN, out / "several", keep=[])
    assert sorted(contents(out / "files")) == ["day=1/a.parquet", "day=2/a.parquet"]
    assert contents(out / "folders").keys() == contents(out / "files").keys() == contents(out / "deep").keys()
    assert sorted(contents(out / "several")) == ["a.parquet", "e.parquet"]
    assert read(out / "several" / "e.parquet").schema.names == ["outputs"]
    check(read(out / "deep" / "day=2" / "a.parquet"), 1)


ODD = (
    "a b.parquet",
    "sn%C3%B6w %d.parquet",
    "日=1/é.parquet",
    "k=__HIVE_DEFAULT_PARTITION__/x=y.parquet",
    "[0]*.parquet",
)


def test_names_are_taken_as_they_are(tmp_path: Path):
    names = [*ODD, os.fsdecode(b"no\xfftext.parquet")]
    source = tree(tmp_path / "in", names)
    rows = table_of(9).set_column(1, "frames", pa.array([*rows_of(9)[:-1], [[1.0]]], FRAMES))
    written(source / names[-1], rows)
    done = arrow.run(source, RNN, tmp_path / "out", bad=tmp_path / "bad.parquet")
    assert sorted(contents(tmp_path / "out")) == sorted(names)
    assert (done.sequences, done.bad) == (71, 1)
    (bad,) = pq.read_table(tmp_path / "bad.parquet").to_pylist()
    assert bad["file"] == f"{source}/no\\xfftext.parquet"
    for seed, name in enumerate(ODD):
        check(read(tmp_path / "out" / name), seed)
    arrow.run(source / "[0]*.parquet", RNN, tmp_path / "alone")  # a name before it is a glob
    assert list(contents(tmp_path / "alone")) == ["[0]*.parquet"]


def test_links_are_followed(tmp_path: Path):
    elsewhere = tree(tmp_path / "elsewhere", ("a.parquet", "deep/b.parquet"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file.parquet").symlink_to(elsewhere / "a.parquet")
    (tmp_path / "in" / "folder").symlink_to(elsewhere / "deep")
    arrow.run(tmp_path / "in", RNN, tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == ["file.parquet", "folder/b.parquet"]
    check(read(tmp_path / "out" / "folder" / "b.parquet"), 1)


def test_bits_do_not_depend_on_how_rows_are_cut(tmp_path: Path, constants: Constants):
    source = tree(tmp_path / "in", ("a.parquet", "b.arrow"), count=60)
    arrow.run(source, RNN, tmp_path / "whole")
    whole = {name: read(tmp_path / "whole" / name) for name in ("a.parquet", "b.parquet")}
    check(whole["b.parquet"], 1, count=60)
    constants(tables, CHUNK_BYTES=700, PART_BYTES=900)
    constants(sifting, JOINED=300)
    arrow.run(source, RNN, tmp_path / "cut")
    parts = sorted(path.name for path in (tmp_path / "cut").iterdir())
    assert parts[:-1] == [f"a-{number:05}.parquet" for number in range(len(parts) - 1)]
    assert len(parts) > 3
    made = [pq.ParquetFile(tmp_path / "cut" / name) for name in parts]
    assert sum(each.metadata.num_row_groups for each in made) > 20
    assert pa.concat_tables(each.read() for each in made[:-1]).equals(whole["a.parquet"])
    assert made[-1].read().equals(whole["b.parquet"])
    [each.close() for each in made]


def test_a_single_file_into_a_file(tmp_path: Path):
    source = written(tmp_path / "a.ipc", table_of(0))
    arrow.run(source, RNN, tmp_path / "b.feather", compression="zstd")
    check(read(tmp_path / "b.feather"), 0)
    before = (tmp_path / "b.feather").read_bytes()
    done = arrow.run(source, RNN, tmp_path / "b.feather", compression="zstd", resume=True)
    assert (done.before, done.sequences) == (1, 0)
    assert (tmp_path / "b.feather").read_bytes() == before
    arrow.run(source, RNN, tmp_path / "b.feather", force=True)
    check(read(tmp_path / "b.feather"), 0)
    assert sorted(contents(tmp_path)) == ["a.ipc", "b.feather"]


def test_dictionaries_of_small_arrow_batches_become_one(tmp_path: Path):
    words = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "b"]).dictionary_encode()]
    frames = pa.array([[[1, 2]], [[3, 4]]], FRAMES)
    batches = [pa.record_batch({"word": each, "frames": frames}) for each in words]
    with ipc.new_stream(tmp_path / "a.arrow", batches[0].schema) as writer:
        [writer.write_batch(each) for each in batches]
    arrow.run(tmp_path / "a.arrow", RNN, tmp_path / "out")
    assert read(tmp_path / "out" / "a.parquet")["word"].to_pylist() == ["a", "b", "c", "b"]


def most_held(source: Path, output: Path) -> float:
    """The most bytes of Arrow and of NumPy that are held at once while a folder is run."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        arrow.run(source, RNN, output)
        return pool.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def test_memory_does_not_grow_with_the_inputs(tmp_path: Path, constants: Constants):
    constants(tables, CHUNK_BYTES=1 << 16, BUFFER=1 << 12)
    values = pa.array(np.random.default_rng(0).random(200_000, "f4"))
    frames = pa.FixedSizeListArray.from_arrays(values, IN)
    table = pa.table({"frames": pa.ListArray.from_arrays(np.arange(0, 100_001, 50, dtype="i4"), frames)})
    for size, copies in (("small", 2), ("large", 12)):
        written(tmp_path / size / "a.parquet", pa.concat_tables([table] * copies), group=2000)
        written(tmp_path / size / "b.arrow", pa.concat_tables([table] * copies), group=100)
    most_held(tmp_path / "small", tmp_path / "warm")
    small, large = (most_held(tmp_path / size, tmp_path / f"{size} out") for size in ("small", "large"))
    total = sum(path.stat().st_size for path in (tmp_path / "large").iterdir())
    assert large < 1.25 * small
    assert large < total / 5


@pytest.mark.long
def test_the_memory_of_a_process_does_not_grow_with_the_inputs(
    tmp_path: Path, request: pytest.FixtureRequest
):
    from bench.folders import peak_apart

    if not request.config.getoption("--long"):
        pytest.skip("two gigabytes are for make test-long")
    small, large = (peak_apart(size, "last", 16, str(tmp_path)) for size in (0.3e9, 2e9))
    assert large < 1.15 * small


def test_what_changes_while_it_is_read_is_refused(tmp_path: Path):
    source = tree(tmp_path / "in", ("a.parquet", "b.parquet"))

    def touched(progress: arrow.Progress) -> None:
        if not progress.done:
            os.utime(source / "b.parquet", ns=(0, 0))

    with pytest.raises(FileError, match=r"b\.parquet: the file was changed while it was run$"):
        arrow.run(source, RNN, tmp_path / "out", progress=touched)
    assert list(contents(tmp_path / "out")) == ["a.parquet"]


def test_progress_counts_all_bytes_and_sequences(tmp_path: Path):
    source = tree(tmp_path / "in", NAMES)
    seen = list[arrow.Progress]()
    arrow.run(source, RNN, tmp_path / "out", progress=seen.append)
    size = sum(map(len, contents(source).values()))
    assert (seen[0].done, seen[0].total, seen[-1].sequences) == (0, pytest.approx(size), 48)
    assert seen[-1].done == pytest.approx(size)
    assert [each.done for each in seen] == sorted(each.done for each in seen)


def test_the_command_is_the_function(tmp_path: Path):
    from command_line import MODEL, stepnet

    rows = [[[0.5] * 12] * 3, [[float("nan")] * 12], [[1.0] * 12]]
    for name in ("a", "b"):
        written(tmp_path / "in" / f"{name}.parquet", pa.table({"id": [1, 2, 3], "x": rows}))
    options = ["--result", "last", "--refuse-nan", "--keep", "id", "--compression", "zstd"]
    options += ["--bad", tmp_path / "bad.parquet", "--engine", "interpret"]
    code, told, said = stepnet(
        "run", "--recurrent-only", MODEL, tmp_path / "in", "-o", tmp_path / "out", *options, "--json"
    )
    assert (code, said) == (0, "")
    done = json.loads(told)
    assert (done["files"], done["sequences"], done["steps"], done["bad"]) == (2, 4, 8, 2)
    assert (done["output"], done["notes"]) == (str(tmp_path / "out"), {})
    arrow.run(
        tmp_path / "in", MODEL, tmp_path / "same", result="last", refuse_nan=True, keep=["id"],
        compression="zstd", bad=tmp_path / "bad2.parquet", engine="interpret", recurrent_only=True,
    )  # fmt: skip
    assert contents(tmp_path / "out") == contents(tmp_path / "same")
    code, told, _ = stepnet(
        "run", "--recurrent-only", MODEL, tmp_path / "in", "-o", tmp_path / "out", *options, "--resume"
    )
    assert code == 0
    lines = told.splitlines()
    assert f"0 sequences of 0 steps in all: 64 outputs each in 0 files in {tmp_path}/out, after" in lines[0]
    assert lines[1:] == [
        "recurrent layers alone; left out: head.bias, head.weight",
        "2 of 2 results were there already",
        f"2 rows were set aside in {tmp_path}/bad.parquet",
    ]


@pytest.mark.parametrize(
    ("option", "value"), [("--format", "csv"), ("--result", "mean"), ("--compression", "x")]
)
def test_a_value_that_an_option_does_not_have_is_wrong_usage(tmp_path: Path, option: str, value: str):
    from command_line import MODEL, stepnet

    source = written(tmp_path / "a.parquet", pa.table({"x": [[[0.5] * 12]]}))
    code, told, said = stepnet(
        "run", "--recurrent-only", MODEL, source, "-o", tmp_path / "out", option, value
    )
    assert (code, told) == (2, "")
    assert f"'{option}'" in said
    assert f"'{value}' is not one of" in said


def test_the_values_of_options_are_those_of_the_function():
    from stepnet.arrow.folders.request import FORMATS
    from stepnet.arrow.folders.result_files import COMPRESSIONS
    from stepnet.arrow.runnable import OUTPUTS
    from stepnet.cli.run import Compression, OutputFormat, ResultKind

    assert {*ResultKind} == {*OUTPUTS}
    assert {*OutputFormat} == {*FORMATS}
    assert {*Compression} == {name for names in COMPRESSIONS.values() for name in names}


def test_the_bar_of_a_run_shows_the_rate(
    monkeypatch: pytest.MonkeyPatch, constants: Constants, capsys: pytest.CaptureFixture[str]
):
    import time

    from stepnet.cli.report import sequences
    from stepnet.explain import bars

    constants(bars, PATIENCE=0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with sequences.bar() as show:
        for done in (0, 20, 40):
            show(arrow.Progress(done, 100, 5000 * done))
            time.sleep(0.1)
    said = capsys.readouterr().err
    assert "40%" in said
    assert "200,000 sequences" in said
    assert "/s" in said


def test_what_needs_no_files_does_not_load_them():
    text = "import stepnet.cli.commands, sys; print('stepnet.arrow.folders' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
