"""Model files: what is read, and that nothing but a FileError comes of what is not one."""

import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

from stepnet.errors import FileError
from stepnet.files.safetensors import read

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.c": np.zeros((0, 4)),
    "d": np.array(3, np.int64),
}
WHOLE = save(ARRAYS)


def framed(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    return stream.getvalue()


FOREIGN = {
    "empty": b"",
    "five bytes": b"abcde",
    "cut in the numbers": WHOLE[:-1],
    "cut in the header": WHOLE[:30],
    "more behind": WHOLE + b"\0",
    "random": random.Random(0).randbytes(1000),
    "pickle": pickle.dumps(list(range(200))),
    "zip": zipped(),
    "huge header": (1 << 60).to_bytes(8, "little") + b"{}",
    "no JSON": framed("x")[:-1] + b"x",
    "a list": framed([1, 2]),
    "huge shape": framed({"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}}, b"\0" * 8),
    "shape beyond the data": framed({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}, b"\0" * 8),
    "a hole": framed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"\0" * 8),
    "unknown dtype": framed({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
}


def test_arrays_come_back_as_they_were_saved(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    save_file(ARRAYS, path)
    found = read(str(path))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_widened_exactly(tmp_path: Path, dtype: type):
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    halves = halves[np.isfinite(halves.astype(np.float32))]
    save_file({"halves": halves}, tmp_path / "model.safetensors")
    found = read(tmp_path / "model.safetensors")["halves"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, halves.astype(np.float32))


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_whole_file_is_refused_in_one_sentence(tmp_path: Path, name: str):
    path = tmp_path / "model.safetensors"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(FileError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: this is no whole .safetensors file (")
    assert "\n" not in message


def test_numbers_that_numpy_lacks(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(framed({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, b"\0\0"))
    with pytest.raises(FileError, match=r"'a' holds F8_E4M3, which stepnet does not read; save it as F32"):
        read(path)


def test_paths_that_are_no_files(tmp_path: Path):
    with pytest.raises(FileError, match=r"nowhere: there is no such file$"):
        read(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"there is no such file$"):
        read(tmp_path / ("long" * 5000))
    with pytest.raises(FileError, match=r"this is no file but a folder$"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match=r"pipe: this is no file but a device$"):
        read(tmp_path / "pipe")


def test_changed_bytes_never_raise_anything_else(tmp_path: Path):
    path, draw = tmp_path / "model.safetensors", random.Random(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(WHOLE)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            read(path)
        except FileError:
            refused += 1
    assert refused > 100
