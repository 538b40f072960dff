"""Files that another program has open for a moment are renamed after it; Windows' errors are imitated."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepnet import arrow, cells
from stepnet.errors import FileError

RNN = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=2, hidden=3, seed=0))


class Busy:
    """A system that refuses to rename files, as Windows does. left: how often, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int | None, left: int) -> None:
        self.code, self.left, self.times, self.replace = code, left, list[float](), os.replace
        monkeypatch.setattr(os, "replace", self.refuse)

    @property
    def waited(self) -> int:
        """The number of further attempts, each of which was made after a longer time."""
        pauses = np.diff(self.times)
        assert (pauses >= 0.01 * 2.0 ** np.arange(len(pauses))).all()
        return len(pauses)

    def refuse(self, *names: Any, **folders: Any) -> None:
        self.times.append(time.monotonic())
        if self.left:
            self.left -= 1
            error = PermissionError(13, "Access is denied")
            error.winerror = self.code  # pyright: ignore[reportAttributeAccessIssue]
            raise error
        self.replace(*names, **folders)


@pytest.mark.parametrize("code", [5, 32, 33])
def test_a_file_that_is_open_for_a_moment_is_replaced_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    busy = Busy(monkeypatch, code, 3)
    RNN.save(tmp_path / "m.stepnet")
    assert busy.waited == 3
    assert [path.name for path in tmp_path.iterdir()] == ["m.stepnet"]


def test_a_result_is_renamed_when_the_other_program_has_closed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"frames": [[[1.0, 0.5]], []]})
    pq.write_table(table, tmp_path / "a.parquet")
    arrow.run(tmp_path / "a.parquet", RNN, tmp_path / "c.parquet", column="frames")  # stores its code
    busy = Busy(monkeypatch, 32, 2)
    arrow.run(tmp_path / "a.parquet", RNN, tmp_path / "b.parquet", column="frames")
    assert busy.waited == 2
    assert pq.read_metadata(tmp_path / "b.parquet").num_rows == 2


def test_a_file_that_stays_open_is_an_error_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RNN.save(tmp_path / "m.stepnet")
    busy = Busy(monkeypatch, 5, 99)
    said = r"\(Access is denied\); while a model that was loaded from it is in use, write to another name$"
    with pytest.raises(FileError, match=said):
        RNN.save(tmp_path / "m.stepnet", force=True)
    assert busy.waited == 7
    assert [path.name for path in tmp_path.iterdir()] == ["m.stepnet"]


def test_other_errors_are_raised_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(monkeypatch, None, 1)
    with pytest.raises(FileError, match=r"cannot be written \(Access is denied\)$"):
        RNN.save(tmp_path / "m.stepnet")
    assert not busy.waited
