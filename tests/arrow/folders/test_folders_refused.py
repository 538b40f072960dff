"""Refusals of `stepnet.arrow.run`, each one line that names the file; and rows that are set aside."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from constants import Constants

import stepnet as sn
from stepnet import arrow
from stepnet.arrow.folders import result_files, sifting
from stepnet.errors import FileError, InputError, StepnetError
from tests.arrow.folders.folder_cases import (
    FRAMES,
    RNN,
    TOKENS,
    WORDS,
    contents,
    read,
    table_of,
    tree,
    written,
)

NAN, INF = float("nan"), float("inf")


def file(folder: Path, name: str = "in/b.parquet", **columns: Any) -> Path:
    """A file beside another one that is right."""
    if name.startswith("in/"):
        tree(folder / "in", ("a.parquet",))
    return written(folder / name, pa.table(columns))


def frames(rows: list[Any], kind: Any = FRAMES) -> Any:
    return pa.array(rows, kind)


def linked(folder: Path, name: str, target: Path) -> None:
    tree(folder / "in", ("a.parquet",))
    (folder / "in" / name).symlink_to(target)


def device(folder: Path) -> None:
    tree(folder / "in", ("a.parquet",))
    os.mkfifo(folder / "in" / "b.parquet")


def two_roots(folder: Path) -> dict[str, Any]:
    tree(folder / "x", ("day=1/a.parquet",))
    tree(folder / "y", ("day=1/a.arrow",))
    return {"inputs": [folder / "x", folder / "y"]}


def reserved(folder: Path) -> dict[str, Any]:
    file(folder, "other/a.parquet", row=[1], frames=frames([[]]))
    return {"inputs": folder / "other", "bad": folder / "bad.parquet"}


def onto(folder: Path) -> dict[str, Any]:
    return {"output": folder / "in" / "b.parquet", "force": True}


def plain(folder: Path, **options: Any) -> dict[str, Any]:
    """A single input, and an output that exists and whose name has no ending."""
    (folder / "plain").touch()
    return {"inputs": file(folder, "a.parquet"), "output": folder / "plain", **options}


def named_at_length(folder: Path, count: int) -> Path:
    """A folder with an input whose result has a name of so many bytes."""
    return tree(folder / "in", (f"{'é' * 10}{'a' * (count - 28)}.parquet",))


def inside(folder: Path) -> dict[str, Any]:
    return {"inputs": tree(folder / "out", ("a.parquet",)) / "a.parquet", "output": folder / "out"}


def taken(folder: Path) -> dict[str, Any]:
    file(folder, "w.parquet", id=[1])
    inputs = tree(folder / "in", ("a.parquet",)) / "a.parquet"
    return {"inputs": inputs, "output": folder / "o.parquet", "bad": folder / "w.parquet", "force": True}


def looping(folder: Path) -> Path:
    tree(folder / "in", ("a.parquet",))
    (folder / "loop").symlink_to("loop")
    return folder / "loop" / "x.parquet"


def doubled(folder: Path, *names: str) -> Path:
    """A file whose first column has sequences, and the others numbers, with columns of one name."""
    columns = [frames([[[0.5, 1.0]]]), *[pa.array([1])] * (len(names) - 1)]
    return written(folder / "two.parquet", pa.Table.from_arrays(columns, names))


def tensors() -> Any:
    """A column with a tensor of three steps of two numbers in each row."""
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 3, 2), "float32"))


WINDOWS = pa.list_(pa.list_(pa.float32(), 2), 3)
LONG = "x" * 300
IN_OUT = "the output lies in {folder}/in, which is read; choose a folder beside it"
BAD = "--bad ROWS.parquet (Python: bad='ROWS.parquet') sets such rows aside"
NO_FOLDER = "this is not a folder; an output file has an ending, such as .parquet, and no / after it"
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no list": (
        lambda f: file(f, frames=[1.5], id=[1]) and {"column": "frames"},
        "{folder}/in/b.parquet: column `frames`: the Arrow array is double, and must be a list",
    ),
    "no list, first": (
        lambda f: file(f, "in2/a.parquet", id=[1]) and {"inputs": f / "in2"},
        "{folder}/in2/a.parquet: there is no list column of numbers; there are id (int64)",
    ),
    "no list of numbers": (
        lambda f: file(f, "in2/a.parquet", tags=[["a"]], ids=[[["b"]]]) and {"inputs": f / "in2"},
        "{folder}/in2/a.parquet: there is no list column of numbers; there are tags (list<",
    ),
    "a folder as the model": (
        lambda f: {"model": f / "in", "inputs": file(f)},
        "model: {folder}/in: this is a folder, not a file",
    ),
    "width": (
        lambda f: file(f, id=[1, 2], frames=frames([[[1, 2]], [[1, 2], [3]]])),
        "{folder}/in/b.parquet: column `frames`: row 1, entry 1 has 1 numbers, and the model takes 2; " + BAD,
    ),
    "null": (
        lambda f: file(f, id=[1], frames=frames([[[1, None]]])),
        "{folder}/in/b.parquet: column `frames`: the Arrow array has a null in row 0, entry 0",
    ),
    "token": (
        lambda f: {"inputs": file(f, "words.parquet", x=[[1, 4], [0, TOKENS], [2]]), "model": WORDS},
        "{folder}/words.parquet, row 1: an integer is outside the rows of the parameter that it indexes: "
        f"{TOKENS} at step 1, and `table` has {TOKENS} rows; " + BAD,
    ),
    "stdout": (
        lambda f: {"inputs": file(f, id=[1], frames=frames([[[1, 2]]])) and f / "in", "output": "-"},
        "results are written to a folder or a file, and not to stdout: output is a path",
    ),
    "a column without sequences": (
        lambda f: file(f, id=[1, 2], frames=pa.nulls(2)),
        "column `frames`: the Arrow array is null, and must be a list or large_list, one per sequence; one "
        "without sequences is column.cast(pyarrow.list_(pyarrow.float32()))",
    ),
    "nan": (
        lambda f: file(f, id=[1, 2], frames=frames([[], [[0, 0], [1, NAN]]])) and {"refuse_nan": True},
        "{folder}/in/b.parquet: column `frames`: row 1, entry 1 has nan, and NaN and infinite numbers are",
    ),
    "infinite": (
        lambda f: file(f, id=[1], frames=frames([[[-INF, 0]]])) and {"refuse_nan": True},
        "{folder}/in/b.parquet: column `frames`: row 0, entry 0 has -inf, and NaN and infinite",
    ),
    "empty folder": (
        lambda f: (f / "in").mkdir(),
        "{folder}/in: there is no Parquet or Arrow file (.parquet, .arrow, .feather, .ipc)",
    ),
    "empty glob": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"inputs": f"{f}/in/*/*.parquet"},
        "{folder}/in/*/*.parquet: there is no Parquet or Arrow file",
    ),
    "nothing": (lambda f: {"inputs": []}, "there are no inputs: give files, folders or globs"),
    "no path": (lambda f: {"inputs": 3}, "inputs is a path, or several, not 3"),
    "missing": (lambda f: {"inputs": [f / "gone.parquet"]}, "{folder}/gone.parquet: there is no such file"),
    "type": (
        lambda f: file(f, id=["x"], frames=frames([[]])),
        "{folder}/in/b.parquet: column `id` is string, and in {folder}/in/a.parquet it is int64; cast one",
    ),
    "further": (
        lambda f: file(f, id=[1], frames=frames([[]]), day=[1]),
        "{folder}/in/a.parquet: there is no column `day`, which {folder}/in/b.parquet has; name the "
        "columns to pass on with --keep",
    ),
    "fewer": (
        lambda f: file(f, frames=frames([[]])),
        "{folder}/in/b.parquet: there is no column `id`, which {folder}/in/a.parquet has; name the "
        "columns to pass on with --keep NAME",
    ),
    "output inside": (
        lambda f: file(f, id=[1], frames=frames([[]])) and {"output": f / "in" / "out"},
        IN_OUT,
    ),
    "output inside a glob": (
        lambda f: (
            tree(f / "in", ("a.parquet",)) and {"inputs": f"{f}/in/**/*.parquet", "output": f / "in" / "o"}
        ),
        IN_OUT,
    ),
    "input inside": (
        inside,
        "{folder}/out: {folder}/out/a.parquet lies in the output; choose another folder",
    ),
    "twice": (
        lambda f: {"inputs": [tree(f / "in", ("a.parquet",)), f / "in" / "a.parquet"]},
        "{folder}/in/a.parquet: this file is named twice, the first time as {folder}/in/a.parquet",
    ),
    "twice, by a link": (
        lambda f: linked(f, "b.parquet", f / "in" / "a.parquet"),
        "{folder}/in/b.parquet: this file is named twice, the first time as {folder}/in/a.parquet",
    ),
    "one name": (
        two_roots,
        "{folder}/out/day=1/a.parquet: this would be the result of {folder}/x/day=1/a.parquet and of "
        "{folder}/y/day=1/a.arrow; give the folder above them, {folder}, or a glob in quotes, whose results "
        "keep the folders; or rename one",
    ),
    "files of two folders": (
        lambda f: {"inputs": sorted(tree(f / "in", ("x/a.parquet", "y/a.parquet")).glob("*/*"))},
        "give the folder above them, {folder}/in, or a glob in quotes, whose results keep the folders",
    ),
    "files of one folder": (
        lambda f: tree(f / "in", ("a.parquet", "a.arrow")) and None,
        "{folder}/in/a.parquet; rename one, or run them into two folders",
    ),
    "two columns of the name": (
        lambda f: {"inputs": doubled(f, "frames", "frames"), "column": "frames"},
        "{folder}/two.parquet: there are 2 columns `frames`; rename all but one",
    ),
    "two columns of a name, and one is the list": (
        lambda f: {"inputs": doubled(f, "x", "x")},
        "{folder}/two.parquet: there are 2 columns `x`; rename all but one",
    ),
    "two other columns of a name": (
        lambda f: {"inputs": doubled(f, "frames", "id", "id")},
        "{folder}/two.parquet: there are 2 columns `id`; rename all but one",
    ),
    "windows of one length": (
        lambda f: {"inputs": file(f, "w.parquet", x=frames([[[1, 2]] * 3], WINDOWS))},
        "there is no list column of numbers; there are x (fixed_size_list<element: fixed_size_list<element: "
        "float>[2]>[3]); column.cast(pyarrow.list_(column.type.value_type)) makes lists",
    ),
    "the column has windows of one length": (
        lambda f: {"inputs": file(f, "w.arrow", x=frames([[[1, 2]] * 3], WINDOWS)), "column": "x"},
        "column `x` holds fixed_size_list<item: fixed_size_list<item: float>[2]>[3]; the column of sequences "
        "holds lists; column.cast(pyarrow.list_(column.type.value_type)) makes lists",
    ),
    "the column has tensors": (
        lambda f: {"inputs": file(f, "w.arrow", x=tensors()), "column": "x"},
        "the column of sequences holds lists; stepnet.Ragged.from_list([*column.combine_chunks()."
        "to_numpy_ndarray()]).to_arrow() makes lists",
    ),
    "on top": (
        lambda f: file(f, frames=frames([[]])) and {"inputs": f / "in" / "b.parquet", **onto(f)},
        "{folder}/in/b.parquet: the output is the input; choose another name",
    ),
    "link to nowhere": (
        lambda f: linked(f, "b.parquet", f / "gone"),
        "{folder}/in/b.parquet: this link leads nowhere",
    ),
    "link back": (
        lambda f: linked(f, "again", f / "in"),
        "{folder}/in/again: this link leads back to a folder that it lies in; remove it",
    ),
    "device": (device, "{folder}/in/b.parquet: this is a device, not a file"),
    "name of a file for a folder": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"output": f / "all.parquet"},
        "{folder}/all.parquet: the results of these inputs are a folder, and this is the name of a file; "
        "{folder}/all.parquet/ denotes a folder",
    ),
    "inputs elsewhere": (
        lambda f: {"inputs": "s3://bucket/calls"},
        "s3://bucket/calls: inputs are files of this machine: mount the store",
    ),
    "names in one": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"keep": ["id,frames"]},
        "there is no column `id,frames`; there are id, frames; give each by itself: --keep NAME (Python: "
        "keep=[NAME])",
    ),
    "file for a folder": (
        lambda f: tree(f / "in", ("a.parquet",)) and (f / "out").touch(),
        "{folder}/out: this is not a folder, and the results of these inputs are several files",
    ),
    "file without an ending": (plain, "{folder}/plain: " + NO_FOLDER),
    "file without an ending, by force": (lambda f: plain(f, force=True), "{folder}/plain: " + NO_FOLDER),
    "device for a folder": (
        lambda f: {"inputs": file(f, "a.parquet"), "output": "/dev/null"},
        "/dev/null: " + NO_FOLDER,
    ),
    "no input's name": (lambda f: {"inputs": ""}, "inputs is an empty text, and names no file or folder"),
    "no output's name": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"output": ""},
        "output is an empty text, and names no file or folder",
    ),
    "no name of bad rows": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"bad": ""},
        "bad is an empty text, and names no file or folder",
    ),
    "long name": (
        lambda f: named_at_length(f, 239) and None,
        "a.parquet: the name of its result is longer than 238 bytes; rename it",
    ),
    "out of a pattern": (
        lambda f: tree(f / "in" / "x", ("a.parquet",)) and {"inputs": f"{f}/in/*/../../in/x/*.parquet"},
        "{folder}/in/*/../../in/x/*.parquet: this leads out of {folder}/in, the folder before",
    ),
    "bad inside": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"bad": f / "out" / "bad.parquet"},
        "{folder}/out/bad.parquet: the rows that are set aside would lie in the output; choose another place",
    ),
    "bad's columns": (
        reserved,
        "there is a column `row`, as --bad ROWS.parquet (Python: bad='ROWS.parquet') has one: rename "
        "the column, or do",
    ),
    "bad's kind": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"bad": f / "bad.csv"},
        "{folder}/bad.csv: --bad ROWS.parquet (Python: bad='ROWS.parquet') names a Parquet file, which ends "
        "in .parquet: {folder}/bad.parquet",
    ),
    "bad without an ending": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"bad": f / "bad"},
        "names a Parquet file, which ends in .parquet: {folder}/bad.parquet",
    ),
    "result": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"result": "all"},
        "result is 'last' or 'outputs', not 'all'",
    ),
    "format": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"file_format": "csv"},
        "file_format is parquet or arrow, not 'csv'",
    ),
    "other format": (
        lambda f: {"inputs": file(f), "output": f / "o.arrow", "file_format": "parquet"},
        "{folder}/o.arrow: the format is parquet, and this name has the ending of arrow",
    ),
    "bad exists": (
        taken,
        "{folder}/w.parquet: the file is there already; --resume (Python: resume=True) continues its run, "
        "or remove it, or choose another file",
    ),
    "bad behind a loop": (
        lambda f: {"bad": looping(f)},
        "{folder}/loop/x.parquet: a link leads to itself; remove it",
    ),
    "output behind a loop": (
        lambda f: {"output": looping(f).parent},
        "{folder}/loop: a link leads to itself; remove it",
    ),
    "long folder": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"output": f / LONG},
        LONG + ": the file cannot be written (File name too long)",
    ),
    "long file": (
        lambda f: {
            "inputs": tree(f / "in", ("a.parquet",)) / "a.parquet",
            "output": f / f"{LONG}.parquet",
        },
        LONG + ".parquet: the name is longer than 220 bytes",
    ),
    "column's name": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"column": 5},
        "column is the name of the list column, not 5",
    ),
    "progress": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"progress": 5},
        "progress is a function of a `Progress`, not 5",
    ),
    "compression": (
        lambda f: tree(f / "in", ("a.parquet",)) and {"file_format": "arrow", "compression": "snappy"},
        "compression of arrow is none or zstd, not 'snappy'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named_in_one_line(tmp_path: Path, case: str):
    make, message = REFUSED[case]
    made = make(tmp_path)
    asked: dict[str, Any] = {"inputs": tmp_path / "in", "output": tmp_path / "out", "model": RNN}
    asked |= made if isinstance(made, dict) else {}
    before = sorted(tmp_path.rglob("*"))
    inputs, model, output = (asked.pop(name) for name in ("inputs", "model", "output"))
    with pytest.raises(StepnetError) as caught:
        arrow.run(inputs, model, output, **asked)
    said = str(caught.value)
    assert message.format(folder=tmp_path) in said
    assert "\n" not in said
    there = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    results = [path for path in there if path.is_file()]
    assert [path.name for path in results] == (
        ["a.parquet"] if (tmp_path / "out" / "a.parquet") in there else []
    )


def test_the_longest_name_of_a_result_is_written_and_set_aside(tmp_path: Path):
    source = named_at_length(tmp_path, 238)
    written(next(source.iterdir()), pa.table({"frames": frames([[[1.0]], [[1.0, 0.5]]])}))
    done = arrow.run(source, RNN, tmp_path / "out", bad=tmp_path / "bad.parquet")
    assert (done.sequences, done.bad) == (1, 1)


def test_a_pattern_with_dots_names_results_by_the_folders_that_it_leads_to(tmp_path: Path):
    tree(tmp_path / "in", ("b/a.parquet", "inner/x.arrow"))
    arrow.run(f"{tmp_path}/in/inn*/../b/*.parquet", RNN, tmp_path / "out")
    assert [*contents(tmp_path / "out")] == ["b/a.parquet"]


def test_a_second_output_is_told_what_it_is_called(tmp_path: Path):
    run: Any = arrow.run
    with pytest.raises(InputError, match=r"^run has two values for output: .* is result='last'$"):
        run(tree(tmp_path / "in", ("a.parquet",)), RNN, tmp_path / "out", output="last")


def test_a_format_is_told_what_it_is_called(tmp_path: Path):
    run: Any = arrow.run
    with pytest.raises(InputError, match=r"^run has no argument format=: write file_format= in place of it$"):
        run(tree(tmp_path / "in", ("a.parquet",)), RNN, tmp_path / "out", format="arrow")


def test_a_folder_may_have_the_name_of_a_file(tmp_path: Path):
    arrow.run(tree(tmp_path / "in", ("a.parquet",)), RNN, f"{tmp_path}/all.parquet/")
    assert [*contents(tmp_path / "all.parquet")] == ["a.parquet"]


def test_a_missing_model_is_named_alone(tmp_path: Path):
    source = tree(tmp_path / "in", ("a.parquet",))
    with pytest.raises(FileError) as caught:
        arrow.run(source, tmp_path / "gone.keras", tmp_path / "out")
    assert str(caught.value) == f"{tmp_path}/gone.keras: there is no such file"


def test_the_last_of_sequences_of_outputs_is_refused_without_a_name_of_another_function(tmp_path: Path):
    nested = sn.Graph(lambda x, p: x * 2, {}, inputs=sn.Spec((), "float32", levels=1))
    source = written(tmp_path / "a.parquet", pa.table({"x": frames([[[1.0], [2.0]]])}))
    message = "the last output is not defined where each step has a sequence of outputs"
    with pytest.raises(InputError, match=message):
        arrow.run(source, nested, tmp_path / "out", result="last")
    with pytest.raises(InputError, match=message):
        arrow.predict(pq.read_table(source), nested, column="x", result="last")


STRANGE = "a\nb\x1b[2J\u202e"
ESCAPED = r"a\nb\x1b[2J\u202e"


def strange_files(folder: Path, **columns: Any) -> Path:
    """A file that is right, and after it one of a strange name."""
    tree(folder / "in", ("a.parquet",))
    return written(folder / "in" / f"{STRANGE}.parquet", pa.table(columns))


LINES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "bad row": (lambda f: strange_files(f, id=[1], frames=frames([[[1.0]]])), {}),
    "damaged": (lambda f: strange_files(f).write_bytes(b"no"), {}),
    "type": (lambda f: strange_files(f, id=["x"], frames=frames([[]])), {}),
    "fewer": (lambda f: strange_files(f, frames=frames([[]])), {}),
    "further": (lambda f: strange_files(f, id=[1], frames=frames([[]]), x=[1]), {}),
    "column": (lambda f: tree(f / "in", (f"{STRANGE}.parquet",)), {"column": "gone"}),
    "keep": (lambda f: tree(f / "in", (f"{STRANGE}.parquet",)), {"keep": ["gone"]}),
    "bad": (lambda f: tree(f / "in", ("a.parquet",)), {"bad": f"{STRANGE}.csv"}),
    "format": (
        lambda f: tree(f, ("in",)),
        {"output": f"{STRANGE}.parquet", "file_format": "arrow"},
    ),
    "force": (lambda f: tree(f / "in", ("a.parquet",)), {"output": STRANGE, "force": True}),
    "column of a line": (
        lambda f: written(f / "in" / "a.parquet", pa.table({STRANGE: [1], "frames": ["x"]})),
        {},
    ),
    "column asked for": (lambda f: tree(f / "in", ("a.parquet",)), {"column": STRANGE}),
    "column that is refused": (
        lambda f: written(f / "in" / "a.parquet", pa.table({STRANGE: frames([[[1.0]]])})),
        {"column": STRANGE},
    ),
    "set aside": (
        lambda f: (
            strange_files(f, id=[1], frames=frames([[[1.0]]]))
            and arrow.run(f / "in", RNN, f / "out", bad=f / "bad.parquet")
        ),
        {"resume": True},
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_control_characters_of_names_are_shown_as_escapes(tmp_path: Path, case: str):
    make, options = LINES[case]
    make(tmp_path)
    asked = {"output": tmp_path / "out", **options}
    with pytest.raises(StepnetError) as caught:
        arrow.run(tmp_path / "in", RNN, **asked)
    said = str(caught.value)
    assert ESCAPED in said
    assert said.isprintable()
    assert said.count(ESCAPED) == said.count("a\\nb")


def test_control_characters_of_names_are_escapes_in_summaries_and_reasons(tmp_path: Path):
    strange_files(tmp_path, id=[1], frames=frames([[[1.0]]]))
    bad = tmp_path / f"{STRANGE}.bad.parquet"
    done = arrow.run(tmp_path / "in", RNN, tmp_path / STRANGE, bad=bad)
    lines = done.text(bad).splitlines()
    assert len(lines) == 2
    assert f"in {tmp_path}/{ESCAPED}, after" in lines[0]
    assert lines[1] == f"1 rows were set aside in {tmp_path}/{ESCAPED}.bad.parquet"
    (row,) = pq.read_table(bad).to_pylist()
    assert Path(row["file"]).name == f"{STRANGE}.parquet"
    assert row["reason"] == "column `frames`: row 0, entry 0 has 1 numbers, and the model takes 2"
    assert done.output == str(tmp_path / STRANGE)


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tree(tmp_path / "in", ("a/a.parquet",))
    real = os.scandir

    def refusing(path: Any) -> Any:
        if os.fspath(path).endswith("/a"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(FileError, match=r"in/a: the folder cannot be read \(Permission denied\)$"):
        arrow.run(source, RNN, tmp_path / "out")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="os.geteuid is missing: chmod hides no file")
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root reads all files")
def test_a_file_that_cannot_be_read(tmp_path: Path):
    source = tree(tmp_path / "in", ("a.parquet",))
    (source / "a.parquet").chmod(0)
    with pytest.raises(FileError, match=r"in/a\.parquet: the file cannot be read \(Permission denied\)$"):
        arrow.run(source, RNN, tmp_path / "out")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_no_room_leaves_whole_files_and_goes_on(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    resource = pytest.importorskip("resource", reason="the module resource is missing: no file is too large")
    source = tree(tmp_path / "in", ("a.parquet",), count=3)
    written(source / "b.parquet", table_of(1, 3000), group=1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # the system's own refusal
    try:
        with pytest.raises(
            FileError, match=rf"out/b\.{form}: the file cannot be written \(File too large\)$"
        ):
            arrow.run(source, RNN, tmp_path / "out", file_format=form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(contents(tmp_path / "out")) == [f"a.{form}"]
    write = result_files.ResultFile.write

    def full(self: Any, records: Any) -> None:
        with result_files.write_errors(self.path):
            raise OSError(errno.ENOSPC, "")
        write(self, records)

    with monkeypatch.context() as patched:
        patched.setattr(result_files.ResultFile, "write", full)
        message = (
            rf"out/b\.{form}: the file cannot be written \(No space left on device; free some space, "
            r"then continue with --resume"
        )
        with pytest.raises(FileError, match=message):
            arrow.run(source, RNN, tmp_path / "out", file_format=form, resume=True)
    assert list(contents(tmp_path / "out")) == [f"a.{form}"]
    assert arrow.run(source, RNN, tmp_path / "out", file_format=form, resume=True).before == 1
    arrow.run(source, RNN, tmp_path / "whole", file_format=form)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert capfd.readouterr().err == ""


def test_rows_that_cannot_be_run_are_set_aside_with_their_reasons(tmp_path: Path, constants: Constants):
    constants(sifting, JOINED=600)
    good = [[[0.5, 1.0]], None, []]
    wrong = {3: [[1.0]], 4: [[1.0, None]], 11: [[0.0, 0.0], [INF, 0.0]], 29: [None], 30: [[NAN, 1.0]]}
    rows = [wrong.get(place, good[place % 3]) for place in range(31)]
    written(tmp_path / "in" / "a.parquet", pa.table({"id": range(31), "frames": frames(rows)}), group=7)
    written(tmp_path / "in" / "b.arrow", pa.table({"frames": frames([[[1.0]]] * 3), "id": [7, 8, 9]}))
    done = arrow.run(
        tmp_path / "in", RNN, tmp_path / "out", result="last", bad=tmp_path / "bad.parquet", refuse_nan=True
    )
    assert (done.sequences, done.bad) == (26, 8)
    kept = [row for place, row in enumerate(rows) if place not in wrong]
    table = read(tmp_path / "out" / "a.parquet")
    assert table["id"].to_pylist() == [place for place in range(31) if place not in wrong]
    alone = written(tmp_path / "good.parquet", pa.table({"frames": frames(kept)}))
    arrow.run(alone, RNN, tmp_path / "good", result="last")
    assert (
        table["last"]
        .combine_chunks()
        .equals(read(tmp_path / "good" / "good.parquet")["last"].combine_chunks())
    )
    assert read(tmp_path / "out" / "b.parquet").num_rows == 0
    bad = pq.read_table(tmp_path / "bad.parquet").to_pylist()
    assert [each["row"] for each in bad] == [*wrong, 0, 1, 2]
    assert [each["id"] for each in bad] == [*wrong, 7, 8, 9]
    assert [each["file"] for each in bad] == [f"{tmp_path}/in/a.parquet"] * 5 + [f"{tmp_path}/in/b.arrow"] * 3
    np.testing.assert_equal([each["frames"] for each in bad[:5]], [*wrong.values()])
    assert [each["reason"].removeprefix("column `frames`: ") for each in bad[:3]] == [
        "row 3, entry 0 has 1 numbers, and the model takes 2",
        "the Arrow array has a null in row 4, entry 0, entry 1; drop such rows or fill them (pyarrow."
        "compute.fill_null)",
        "row 11, entry 1 has inf, and NaN and infinite numbers are refused",
    ]


def test_tokens_outside_are_set_aside(tmp_path: Path):
    rows = [[0, 1], [TOKENS], [4], [], None, [2, -TOKENS - 1], [3, 3]]
    source = written(tmp_path / "words.parquet", pa.table({"x": rows}))
    arrow.run(source, WORDS, tmp_path / "out", bad=tmp_path / "bad.parquet")
    outside = "an integer is outside the rows of the parameter that it indexes"
    bad = pq.read_table(tmp_path / "bad.parquet").to_pylist()
    assert [(each["row"], each["reason"], each["x"]) for each in bad] == [
        (1, f"{outside}: {TOKENS} at step 0, and `table` has {TOKENS} rows", rows[1]),
        (5, f"{outside}: {-TOKENS - 1} at step 1, and `table` has {TOKENS} rows", rows[5]),
    ]
    found = read(tmp_path / "out" / "words.parquet")["outputs"].to_pylist()
    table = WORDS.params["table"].astype("f8")
    expected = [None if row is None else table[row].sum(0) for row in rows if row not in (rows[1], rows[5])]
    assert [row is None for row in found] == [row is None for row in expected]
    for made, right in zip(found, expected, strict=True):
        if right is not None:
            np.testing.assert_allclose(made, right, rtol=0, atol=4 * float(np.finfo("f4").eps))


def test_refuse_nan_of_batches(tmp_path: Path):
    batch = pa.record_batch(
        {"frames": frames([[[0.0, 0.0]], [[1.0, NAN]]], pa.list_(pa.list_(pa.float64(), 2)))}
    )
    with pytest.raises(InputError, match=r"^batch 0: column `frames`: row 1, entry 0 has nan, and NaN"):
        arrow.predict([batch], RNN, refuse_nan=True).read_all()
    made = arrow.predict([batch], RNN).read_all()["last"]
    assert np.isnan(made.to_pylist()[1]).all()
    again, arguments = arrow.Predictor(RNN, refuse_nan=True).__reduce__()
    assert again(*arguments).refuse_nan


@pytest.mark.parametrize("name", ["out.csv", "out.json", "out.npz", "out.tsv"])
def test_an_output_with_the_ending_of_another_kind_of_file_is_refused(tmp_path: Path, name: str):
    source = file(tmp_path, "a.parquet", frames=frames([[[0.5, 0.5]]]))
    with pytest.raises(FileError, match=rf"the ending {Path(name).suffix} is not one of theirs"):
        arrow.run(source, RNN, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("address", ["s3://bucket/z", "gs://bucket/z.parquet", "hdfs://host:9000/z"])
def test_an_output_on_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
):
    monkeypatch.chdir(tmp_path)
    source = file(tmp_path, "a.parquet", frames=frames([[[0.5, 0.5]]]))
    with pytest.raises(FileError, match="results are written to a folder of this machine: mount it"):
        arrow.run(source, RNN, address)
    with pytest.raises(FileError, match="results are written to a folder of this machine: mount it"):
        arrow.run(source, RNN, "out", bad="s3://bucket/bad.parquet")
    assert contents(tmp_path).keys() == {"a.parquet"}
