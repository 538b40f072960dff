"""Columns that formats lack, links, names that clash, and two runs at once."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from constants import Constants

from stepnet import arrow, cells
from stepnet.arrow.folders.result_files import lock_folder
from stepnet.errors import FileError

RNN = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=2, hidden=3, seed=0))
FRAMES = [[[1.0, 0.5]], [[0.3]], None, []]


def written(path: Path, **columns: pa.Array) -> Path:
    """A file of Arrow: four rows, of which the second is wrong."""
    table = pa.table({**columns, "frames": FRAMES})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    return path


def run(source: Path, output: Path, **options: object) -> arrow.Summary:
    """A run of the last outputs."""
    return arrow.run(source, RNN, output, column="frames", result="last", **options)  # pyright: ignore[reportArgumentType]


def test_dictionaries_are_written_to_arrow_files(tmp_path: Path) -> None:
    source = written(tmp_path / "a.arrow", x=pa.array(["a", "b", "a", "c"]).dictionary_encode())
    run(source, tmp_path / "out", file_format="arrow", bad=tmp_path / "bad.parquet")
    made = pa.ipc.open_file(tmp_path / "out" / "a.arrow").read_all()
    assert made["x"].to_pylist() == ["a", "a", "c"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3, 4], pa.timestamp("s")),
        pa.array([1, 2, 3, 4], pa.time32("s")),
        pa.array([86400000] * 4, pa.date64()),
        pa.array([7, 8, 7, 9]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_types_that_parquet_changes_are_set_aside(column: pa.Array, tmp_path: Path) -> None:
    source = written(tmp_path / "a.arrow", x=column)
    run(source, tmp_path / "out", bad=tmp_path / "bad.parquet")
    assert pq.read_table(tmp_path / "bad.parquet")["x"].to_pylist() == [column[1].as_py()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arrow", "bad.parquet", "out"]


def test_a_type_that_a_format_lacks_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    source = written(tmp_path / "a.arrow", x=pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval()))
    good = pa.ipc.open_file(source).read_all().slice(2)
    with pa.ipc.new_file(tmp_path / "good.arrow", good.schema) as file:
        file.write_table(good)
    for name, bad in (("a.arrow", tmp_path / "bad.parquet"), ("good.arrow", None)):
        with pytest.raises(
            FileError, match=r"a column cannot be written .*; name the columns to pass on with --keep"
        ):
            run(tmp_path / name, tmp_path / "out", bad=bad)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arrow", "good.arrow"]


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    written(tmp_path / "in" / "a.arrow")
    (tmp_path / "in" / "x").symlink_to("x")
    (tmp_path / "o").symlink_to("o")
    assert run(tmp_path / "in", tmp_path / "out", bad=tmp_path / "bad.parquet").passed_over == 1
    with pytest.raises(FileError, match="a link leads to itself; remove it"):
        run(tmp_path / "in", tmp_path / "o")


def test_rows_are_not_set_aside_where_files_are_read(tmp_path: Path) -> None:
    written(tmp_path / "in" / "a.arrow")
    with pytest.raises(FileError, match=r"would lie in .*in, which is read; choose another place"):
        run(tmp_path / "in", tmp_path / "out", bad=tmp_path / "in" / "bad.parquet")


@pytest.mark.parametrize(
    ("one", "other"),
    [("A.arrow", "a.arrow"), ("d/a.arrow", "D/a.arrow"), ("\u00e9.arrow", "e\u0301.arrow")],
)
def test_names_that_a_system_takes_for_one(
    tmp_path: Path, constants: Constants, one: str, other: str
) -> None:
    for name in (one, other):
        written(tmp_path / "in" / name)
    assert run(tmp_path / "in", tmp_path / "out", bad=tmp_path / "bad.parquet").results == 2
    constants("stepnet.arrow.folders.plan", IGNORES_CASE=True)
    with pytest.raises(FileError, match="this system takes the two names for one; rename one"):
        run(tmp_path / "in", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_result_goes_on_under_a_name_that_a_system_takes_for_one(
    tmp_path: Path, constants: Constants
) -> None:
    constants("stepnet.arrow.folders.plan", IGNORES_CASE=True)
    written(tmp_path / "in" / "\u00e9.arrow")
    run(tmp_path / "in", tmp_path / "out", bad=tmp_path / "bad.parquet")
    (tmp_path / "out" / "\u00e9.parquet").rename(tmp_path / "out" / "e\u0301.parquet")
    again = run(tmp_path / "in", tmp_path / "out", bad=tmp_path / "bad.parquet", resume=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["e\u0301.parquet"]
    assert (again.before, again.sequences) == (1, 0)


def test_a_result_is_not_the_folder_of_another(tmp_path: Path) -> None:
    written(tmp_path / "in" / "b.arrow")
    written(tmp_path / "in" / "b.parquet" / "c.arrow")
    with pytest.raises(FileError, match=r"this would be the result of .*, and the folder of that of"):
        run(tmp_path / "in", tmp_path / "out")


def test_files_of_others_stay(tmp_path: Path) -> None:
    source = written(tmp_path / "in" / "a.arrow").parent
    run(source, tmp_path / "out", bad=tmp_path / "bad.parquet")
    mine = tmp_path / "out" / ".y.partial"
    mine.write_text("mine")
    with pytest.raises(FileError, match="this is not a result of these inputs"):
        run(source, tmp_path / "out", bad=tmp_path / "bad.parquet", resume=True)
    assert mine.read_text() == "mine"


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "in" / "a.arrow").parent
    for held in ("out", ".bad.parquet.parts"):
        with (
            lock_folder(tmp_path / held),
            pytest.raises(FileError, match=f"{held}: another process is writing"),
        ):
            run(source, tmp_path / "out", bad=tmp_path / "bad.parquet", resume=True)
    assert run(source, tmp_path / "out", bad=tmp_path / "bad.parquet").bad == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.parquet", "in", "out"]


def test_a_lock_that_a_power_cut_left_is_named(tmp_path: Path, constants: Constants) -> None:
    """Of a system without locks of files, which has files of their own in their place."""
    constants("stepnet.arrow.folders.locks", HAS_FLOCK=False)
    source = written(tmp_path / "a.arrow")
    lock = tmp_path / ".b.parquet.partial.lock"
    lock.touch()
    message = rf"another process is writing here; .*; if there is none, remove {re.escape(str(lock))}, which"
    with pytest.raises(FileError, match=message):
        run(source, tmp_path / "b.parquet", bad=tmp_path / "bad.parquet")
