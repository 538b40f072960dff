"""Folders that are nested deeper than Python's functions call themselves, and links in them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepnet import arrow
from stepnet.arrow.folders.listing import listing
from stepnet.arrow.folders.result_files import make_folder, remove_folder
from stepnet.errors import FileError
from tests.arrow.folders.folder_cases import FRAMES, RNN, contents, read, table_of, tree, written

DEPTH = 1100  # Python's limit is 1000 calls


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder for deep trees, which is removed here, as pytest cannot."""
    yield tmp_path
    for each in list(tmp_path.iterdir()):
        if each.is_dir():
            remove_folder(each)


def test_a_tree_of_any_depth_is_run_set_aside_and_gone_on_with(deep: Path):
    inside = Path(*["d"] * DEPTH)
    rows = pa.array([[[1.0, 0.5]], [[0.3]]], FRAMES)
    make_folder(deep / "in" / inside)
    pq.write_table(pa.table({"id": [1, 2], "frames": rows}), deep / "in" / inside / "a.parquet")
    done = arrow.run(deep / "in", RNN, deep / "out", bad=deep / "bad.parquet")
    assert (done.results, done.sequences, done.bad) == (1, 1, 1)
    made = deep / "out" / inside / "a.parquet"
    assert read(made)["id"].to_pylist() == [1]
    assert pq.read_table(deep / "bad.parquet")["id"].to_pylist() == [2]
    assert sorted(path.name for path in deep.iterdir()) == ["bad.parquet", "in", "out"]
    again = arrow.run(deep / "in", RNN, deep / "out", bad=deep / "bad.parquet", resume=True)
    assert again.before == 1
    with pytest.raises(FileError, match=r"nested too deeply for a pattern; give a folder in its place$"):
        arrow.run(f"{deep}/in/**/*.parquet", RNN, deep / "other")


def test_listing_a_deep_tree_looks_at_each_folder_once(deep: Path, monkeypatch: pytest.MonkeyPatch):
    make_folder(deep / "in" / Path(*["d"] * 50))
    asked = list[str]()
    for name in ("stat", "lstat", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path, *a, _real=real, **k: asked.append(path) or _real(path, *a, **k)
        )
    with pytest.raises(FileError, match="there is no Parquet or Arrow file"):
        listing(deep / "in")
    assert len(asked) < 4 * 50


def test_a_path_that_is_too_long_is_not_passed_over(deep: Path):
    tree(deep / "in", ("a.parquet",))
    name, levels, here = "d" * 250, 20, os.getcwd()  # 5,000 characters, of which the system takes 4,096
    os.chdir(deep / "in")
    try:
        for _ in range(levels):
            os.mkdir(name)
            os.chdir(name)
        with pytest.raises(FileError, match=r"d: the folder cannot be read \(File name too long\)$"):
            arrow.run(deep / "in", RNN, deep / "out")
        for _ in range(levels):
            os.chdir("..")
            os.rmdir(name)
    finally:
        os.chdir(here)


def test_links_to_folders_are_followed_but_not_upwards(tmp_path: Path):
    tree(tmp_path / "other", ("a.parquet",))
    written(tmp_path / "in" / "x" / "b.parquet", table_of(1))
    (tmp_path / "in" / "x" / "side").symlink_to(tmp_path / "other")
    arrow.run(tmp_path / "in", RNN, tmp_path / "out")
    assert [*contents(tmp_path / "out")] == ["x/b.parquet", "x/side/a.parquet"]
    (tmp_path / "in" / "x" / "up").symlink_to("..")
    with pytest.raises(FileError, match=r"in/x/up: this link leads back to a folder that it lies in; remove"):
        arrow.run(tmp_path / "in", RNN, tmp_path / "again")
