"""New files: what they do not replace, and threads that write the same one."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepnet.errors import FileError
from stepnet.layout.files.paths import new_file


def test_a_device_is_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="pipe: this is a device, not a file"), new_file(pipe, force=True):
        raise AssertionError("it was opened")
    assert pipe.is_fifo()


def test_threads_write_the_same_file(tmp_path: Path):
    path = tmp_path / "same"

    def write(number: int) -> None:
        for _ in range(50):
            with new_file(path, force=True) as partial:
                for _ in range(20):
                    with open(partial, "a") as stream:
                        stream.write(str(number))
            assert len(set(path.read_text())) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [file.name for file in tmp_path.iterdir()] == ["same"]
