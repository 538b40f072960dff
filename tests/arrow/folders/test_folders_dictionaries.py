"""Columns with another dictionary for each batch of rows, and dictionaries that are damaged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from constants import Constants

from stepnet import arrow
from stepnet.arrow.folders import dictionaries, tables
from stepnet.errors import FileError, InputError
from tests.arrow.folders.folder_cases import FRAMES, RNN, contents, read

STEPS = [[1.0, 0.5]]


def encoded(indices: Sequence[int | None], values: Sequence[Any], kind: Any = None, ordered: bool = False):
    """A column with a dictionary of its own."""
    numbers = pa.array(indices, kind or pa.int32())
    return pa.DictionaryArray.from_arrays(numbers, pa.array(values), ordered=ordered, safe=False)


def in_lists(column: Any) -> Any:
    return pa.ListArray.from_arrays(range(len(column) + 1), column)


def in_structs(column: Any) -> Any:
    return pa.StructArray.from_arrays([column], ["part"])


def stream(path: Path, *columns: Any) -> Path:
    """A stream of Arrow with a batch for each column."""
    rows = [pa.record_batch({"k": each, "frames": pa.array([STEPS] * len(each), FRAMES)}) for each in columns]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file, ipc.new_stream(file, rows[0].schema) as writer:
        for each in rows:
            writer.write_batch(each)
    return path


def groups(path: Path, *columns: Any) -> Path:
    """A Parquet file with a row group for each column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(
        path, pa.schema([("k", columns[0].type), ("frames", FRAMES)]), compression="none"
    ) as file:
        for each in columns:
            frames = pa.array([STEPS] * len(each), FRAMES)
            file.write_table(pa.table([each, frames], schema=file.schema))
    return path


def one_batch_at_a_time(constants: Constants) -> None:
    constants(tables, CHUNK_BYTES=1)


COLUMNS = {
    "other values": [encoded([0, 1, None], ["a", "b"]), encoded([1, 0, 0], ["b", "z"]), encoded([0], ["a"])],
    "in lists": [in_lists(encoded([0, 1], ["a", "b"])), in_lists(encoded([1, 0], ["b", "z"]))],
    "in structs": [in_structs(encoded([0, 1], ["a", "b"])), in_structs(encoded([1, 0], ["b", "z"]))],
    "the same value twice": [encoded([0, 1], ["a", "a"]), encoded([0, 1, 2], ["z", "a", "z"])],
    "nulls": [encoded([0, 1, None], ["a", None]), encoded([1, 0], [None, "b"])],
    "ordered": [encoded([0, 1], ["a", "b"], ordered=True), encoded([1, 0], ["b", "z"], ordered=True)],
    "bytes": [encoded([0, 1], [7, 8], pa.int8()), encoded([1, 0], [8, 9], pa.int8())],
}


PAIRS = [(case, made) for case in COLUMNS for made in (stream, groups) if (case, made) != ("nulls", groups)]


@pytest.mark.parametrize(("case", "made"), PAIRS)  # Parquet has no nulls in dictionaries
def test_dictionaries_are_joined_in_an_arrow_file(tmp_path: Path, case: str, made: Any, constants: Constants):
    one_batch_at_a_time(constants)
    columns = COLUMNS[case]
    source = made(tmp_path / ("a.ipc" if made is stream else "a.parquet"), *columns)
    arrow.run(source, RNN, tmp_path / "out", column="frames", file_format="arrow")
    there = read(tmp_path / "out" / "a.arrow")["k"]
    assert there.to_pylist() == [row for each in columns for row in each.to_pylist()]
    kind = columns[0].type if made is stream else pq.read_schema(source).field("k").type
    assert there.type == kind


def test_results_with_joined_dictionaries_do_not_depend_on_interruptions(
    tmp_path: Path, constants: Constants
):
    one_batch_at_a_time(constants)
    for name in ("a", "b", "c"):
        groups(tmp_path / "in" / f"{name}.parquet", *COLUMNS["other values"])
    for folder in ("out", "whole"):
        arrow.run(tmp_path / "in", RNN, tmp_path / folder, file_format="arrow")
    (tmp_path / "out" / "b.arrow").unlink()
    assert arrow.run(tmp_path / "in", RNN, tmp_path / "out", file_format="arrow", resume=True).before == 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


BYTES = [encoded(range(100), [f"{first}-{each}" for each in range(100)], pa.int8()) for first in ("a", "b")]
LISTS = [encoded([0, 1], [[each], []]) for each in "ab"]
ORDERS = [encoded([0, 1], ["a", "b"], ordered=True), encoded([0, 1], ["b", "a"], ordered=True)]
LARGE = [encoded([0, 1], ["aaaaaaaa", "bbbbbbbb"]), encoded([0, 1], ["cccccccc", "dddddddd"])]
REFUSED = {
    "more than indices tell apart": (BYTES, "requires a larger index type"),
    "lists": (LISTS, "Unification of list<item: string> dictionaries is not implemented"),
    "orders": (ORDERS, "they are ordered, and their orders differ"),
    "memory": (LARGE, "together they have more than 40 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_dictionaries_that_cannot_be_joined_name_their_column(
    tmp_path: Path, case: str, constants: Constants
):
    constants(dictionaries, MOST=40 if case == "memory" else dictionaries.MOST)
    columns, reason = REFUSED[case]
    source = stream(tmp_path / "a.ipc", *columns)
    if case in ("orders", "memory"):
        one_batch_at_a_time(constants)  # pyarrow joins those of small batches
    with pytest.raises((FileError, InputError)) as caught:
        arrow.run(source, RNN, tmp_path / "out", file_format="arrow")
    said = str(caught.value)
    assert said.startswith(
        f"{tmp_path}/out/a.arrow: column `k` has several dictionaries, and in an Arrow file"
    )
    assert reason in said
    assert said.endswith("; choose --format parquet (Python: file_format='parquet'), or cast the column")
    assert not (tmp_path / "out").exists()
    if case == "lists":  # which Parquet lacks
        return
    arrow.run(source, RNN, tmp_path / "out")
    there = read(tmp_path / "out" / "a.parquet")["k"].to_pylist()
    assert there == [row for each in columns for row in each.to_pylist()]


@pytest.mark.parametrize("column", [LISTS[0], LARGE[0]], ids=["lists", "large"])
def test_a_dictionary_that_stays_is_written_whatever_it_holds(
    tmp_path: Path, column: Any, constants: Constants
):
    one_batch_at_a_time(constants)
    constants(dictionaries, MOST=1)
    arrow.run(stream(tmp_path / "a.ipc", column, column), RNN, tmp_path / "out", file_format="arrow")
    assert read(tmp_path / "out" / "a.arrow")["k"].to_pylist() == 2 * column.to_pylist()


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_damaged_indices_are_an_error_of_the_input(tmp_path: Path, form: str):
    column = encoded([0, 1, 2, 1] * 50, ["alpha", "beta", "gamma"])
    source = groups(tmp_path / "a.parquet", column)
    whole, pages = source.read_bytes(), pq.read_metadata(source).row_group(0).column(0)
    stop = pages.dictionary_page_offset + pages.total_compressed_size
    reasons = list[str]()
    for place in range(stop - 24, stop):  # the indices, at the end of the column's pages
        for bit in (0, 4):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            source.write_bytes(damaged)
            try:
                arrow.run(source, RNN, tmp_path / f"out{place}-{bit}", file_format=form)
            except FileError as error:
                reasons.append(str(error))
    assert all(each.startswith(f"{source}: this is not a complete Parquet file (") for each in reasons)
    assert any("Dictionary indices invalid" in each for each in reasons)


def test_damaged_indices_of_streams_are_seen_before_dictionaries_are_joined(tmp_path: Path):
    columns = encoded([0, 1, 0], ["a", "b"]), encoded([0, 1 << 30, 1], ["z", "y"])
    source = stream(tmp_path / "a.ipc", *columns)
    with pytest.raises(
        FileError, match=r"a\.ipc: this is not a complete Arrow file .*Dictionary indices invalid"
    ):
        arrow.run(source, RNN, tmp_path / "out")


@pytest.mark.parametrize("wrap", [in_lists, in_structs])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_dictionaries_inside_differ_between_row_groups(tmp_path: Path, form: str, wrap: Any):
    columns = [wrap(encoded([0, 1, 0], values)) for values in (["a", "b"], ["c", "a"])]
    source, result = groups(tmp_path / "a.parquet", *columns), tmp_path / f"o.{form}"
    arrow.run(source, RNN, result, column="frames")
    assert read(result)["k"].to_pylist() == [value for column in columns for value in column.to_pylist()]


@pytest.mark.parametrize("wrap", [lambda column: column, in_lists, in_structs])
@pytest.mark.parametrize("values", [pa.array([], pa.string()), pa.array(["c"])])
def test_a_dictionary_may_begin_empty(tmp_path: Path, values: pa.Array, wrap: Any):
    first = wrap(encoded([None, None], pa.array([], values.type)))
    columns = [first, wrap(encoded([0 if len(values) else None, None], values))]
    source = groups(tmp_path / "a.parquet", *columns)
    arrow.run(source, RNN, tmp_path / "o.arrow", column="frames")
    rows = read(tmp_path / "o.arrow")["k"]
    assert rows.type == first.type
    assert rows.to_pylist() == [value for column in columns for value in column.to_pylist()]


def test_ordered_dictionaries_of_small_batches_are_not_joined_in_another_order(tmp_path: Path):
    columns = [encoded([0, 1], values, ordered=True) for values in (["lo", "hi"], ["hi", "lo"])]
    with pytest.raises(InputError, match=r"column `k` has several dictionaries.*their orders differ"):
        arrow.run(stream(tmp_path / "a.arrow", *columns), RNN, tmp_path / "o.arrow", column="frames")


@pytest.mark.parametrize("bad", [False, True])
def test_dictionaries_of_dates_in_structs_without_rows(tmp_path: Path, bad: bool):
    kind = pa.struct([("day", pa.dictionary(pa.int8(), pa.date32()))])
    source = stream(tmp_path / "a.arrow", pa.nulls(0, kind))
    options: dict[str, Any] = {"bad": tmp_path / "bad.parquet"} if bad else {}
    arrow.run(source, RNN, tmp_path / "o.arrow", column="frames", **options)
    assert read(tmp_path / "o.arrow")["k"].type == kind


def test_dictionaries_with_nulls_inside_are_not_sent_to_parquet(tmp_path: Path):
    columns = [in_structs(encoded([0, 1], values)) for values in (["a", None], ["b", None])]
    with pytest.raises(FileError, match=r"they cannot be joined \(.*nulls.*\); cast the column$"):
        arrow.run(stream(tmp_path / "a.arrow", *columns), RNN, tmp_path / "o.arrow", column="frames")
