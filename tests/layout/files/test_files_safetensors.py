"""Files of safetensors: what is read and written, bit by bit, and what gives a FileError and no more."""

import io
import json
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from containers import assert_same, refusal, samples
from memory import memory
from safetensors import SafetensorError
from safetensors.numpy import load_file, save, save_file

from stepnet.errors import FileError
from stepnet.layout.files.safetensors import read, write

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.c": np.zeros((0, 4)),
    "d": np.array(3, np.int64),
}
WHOLE = save(ARRAYS)


def framed(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def twice(entry: str) -> bytes:
    text = f"{{{entry % (0, 4)},{entry % (4, 8)}}}".encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 8


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
    "a header of a petabyte": (1 << 50).to_bytes(8, "little") + b"{}",
    "two of a name": twice('"a":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'),
    "shared bytes": framed(
        {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}, b"\0" * 8
    ),
    "a petabyte": framed(
        {"a": {"dtype": "F32", "shape": [1 << 48], "data_offsets": [0, 1 << 50]}}, b"\0" * 8
    ),
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
def test_halves_of_every_pattern_stay_halves(tmp_path: Path, dtype: type):
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    save_file({"halves": halves}, tmp_path / "model.safetensors")
    assert_same(read(tmp_path / "model.safetensors"), {"halves": halves})


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_read(tmp_path: Path, dtype: Any):
    arrays, path = samples(dtype), tmp_path / "model.safetensors"
    write(path, arrays)
    assert_same(read(path), arrays)
    assert_same(load_file(path), arrays)


def test_whole_numbers_are_written_and_read(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    kinds = [*(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "bool"]
    arrays = {kind: np.array([[0, 1], [1, 0]], kind) for kind in kinds}
    write(path, arrays)
    found = read(path)
    assert {name: array.dtype.name for name, array in found.items()} == {kind: kind for kind in kinds}
    assert all((found[kind] == arrays[kind]).all() for kind in kinds)


NOT_WRITTEN = {
    "complex128": ({"a": np.ones(2, complex)}, "'a' holds complex128, which .safetensors files do not have"),
    "texts": ({"a": np.array(["x"])}, "'a' holds str32, which .safetensors files do not have"),
    "objects": ({"a": np.array([None])}, "'a' holds object, which .safetensors files do not have"),
    "float8": (
        {"a": np.ones(2, ml_dtypes.float8_e5m2)},
        "'a' holds float8_e5m2, which .safetensors files do not have",
    ),
    "a name taken": (
        {"__metadata__": np.ones(2)},
        "no array of a .safetensors file can be called '__metadata__'",
    ),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_the_format_lacks_is_not_written(tmp_path: Path, name: str):
    arrays, expected = NOT_WRITTEN[name]
    assert refusal(lambda path: write(path, arrays), tmp_path / "model.safetensors") == expected
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: object, partial: Path, *__: object) -> None:
        partial.write_text("half of it")
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    said = refusal(lambda path: write(path, ARRAYS), tmp_path / "model.safetensors")
    assert said.startswith("the file cannot be written (")
    assert said.endswith("No space left on device)")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_whole_file_is_refused_in_one_sentence(tmp_path: Path, name: str):
    path = tmp_path / "model.safetensors"
    path.write_bytes(FOREIGN[name])
    with memory() as peak:
        assert refusal(read, path).startswith("this is not a complete .safetensors file (")
        assert peak() < 1 << 20


def test_numbers_that_numpy_lacks(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(framed({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, b"\0\0"))
    with pytest.raises(FileError, match=r"'a' holds F8_E4M3, which stepnet does not read; save it as F32"):
        read(path)
