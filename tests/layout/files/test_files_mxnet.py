"""Files of MXNet: lists of arrays as ndarray.cc has them, byte by byte, and what gives a FileError alone."""

import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from containers import assert_not_written, assert_refused, assert_same, samples

from stepnet.layout.files.mxnet import read, write

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
KINDS = [  # TypeFlag of mshadow/base.h
    *("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"),
    *("int16", "uint16", "uint32", "uint64", "bfloat16"),
]
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA


# ---- ndarray.cc, in its own words --------------------------------------------------------------------------


def shape(sizes: Any, form: str = "q") -> bytes:
    """TShape::Save: how many axes in 32 bits, and each of them."""
    return struct.pack(f"<i{len(sizes)}{form}", len(sizes), *sizes)


def data(array: np.ndarray, device: int = 1) -> bytes:
    """A context, the kind of numbers, and these."""
    return struct.pack("<iii", device, 0, KINDS.index(array.dtype.name)) + array.tobytes()


def saved(array: np.ndarray, version: int = V2, device: int = 1) -> bytes:
    """NDArray::Save; version 0 is before there was a number for it."""
    match version:
        case 0:
            return shape(array.shape, "I") + data(array, device)
        case 0xF993FAC8:
            return struct.pack("<I", V1) + shape(array.shape) + data(array, device)
        case _:
            return struct.pack("<Ii", version, 0) + shape(array.shape) + data(array, device)


def listed(arrays: list[bytes], names: list[bytes]) -> bytes:
    """The list of arrays and the list of names, which may be empty."""
    found = struct.pack("<QQQ", 0x112, 0, len(arrays)) + b"".join(arrays) + struct.pack("<Q", len(names))
    return found + b"".join(struct.pack("<Q", len(name)) + name for name in names)


def file(arrays: dict[str, np.ndarray], version: int = V2) -> bytes:
    return listed([saved(array, version) for array in arrays.values()], [name.encode() for name in arrays])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.params"


def with_axes(dtype: Any) -> dict[str, np.ndarray]:
    return {name: array for name, array in samples(dtype).items() if array.ndim}


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_read(path: Path, dtype: Any):
    arrays = with_axes(dtype)
    write(path, arrays)
    assert_same(read(path), arrays)
    plain = {name: np.array(array, np.dtype(dtype), order="C") for name, array in arrays.items()}
    assert path.read_bytes() == file(plain)


@pytest.mark.parametrize("version", [0, V1, V2, V3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_version_and_kind_of_numbers(path: Path, version: int, kind: str):
    arrays = {
        "matrix": np.arange(6).reshape(2, 3).astype(kind),
        "odd": np.ones(3, "uint8"),  # and what comes next lies at no multiple of its size
        "vector": np.array([0, 1, 1]).astype(kind),
        "none": np.zeros((0, 3), kind),
    }
    path.write_bytes(file(arrays, version))
    found = read(path)
    assert {name: (array.dtype.name, array.shape) for name, array in found.items()} == {
        name: (array.dtype.name, array.shape) for name, array in arrays.items()
    }
    assert all((found[name] == array).all() for name, array in arrays.items())
    assert found["matrix"].tobytes() == arrays["matrix"].tobytes()


def test_arrays_of_no_axes(path: Path):
    """One number in version 3; in those before, an array that has no numbers yet."""
    path.write_bytes(file({"a": np.array(2.5), "b": np.ones(1)}, V3))
    assert_same(read(path), {"a": np.array(2.5), "b": np.ones(1)})
    unknown = [struct.pack("<Iii", V3, 0, -1), struct.pack("<Ii", V3, 0) + shape((2, -1))]
    unknown += [struct.pack("<Iii", V2, 0, 0), struct.pack("<Ii", V1, 0), struct.pack("<I", 0)]
    for none in unknown:
        path.write_bytes(listed([none, saved(np.ones(1))], [b"a", b"b"]))
        assert_same(read(path), {"b": np.ones(1)})


def test_names_of_arguments_and_states_and_devices(path: Path):
    path.write_bytes(listed([saved(np.ones(1), device=2), saved(np.zeros(1))], [b"arg:a", b"aux:b"]))
    assert_same(read(path), {"a": np.ones(1), "b": np.zeros(1)})
    path.write_bytes(listed([saved(np.ones(1))], [b"\xff\xc3\xa9"]))
    assert_same(read(path), {"\\xffé": np.ones(1)})
    path.write_bytes(listed([], []))
    assert read(path) == {}


NOT_WRITTEN = {
    "no axes": ({"a": np.array(1.0)}, "'a' has no axes, which an array of MXNet 1 has"),
    "complex": ({"a": np.ones(1, complex)}, "'a' holds complex128, which MXNet does not have"),
    "objects": ({"a": np.array([None])}, "'a' holds object, which MXNet does not have"),
    "float8": (
        {"a": np.ones(1, ml_dtypes.float8_e5m2)},
        "'a' holds float8_e5m2, which MXNet does not have",
    ),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_the_format_lacks_is_not_written(path: Path, name: str):
    assert_not_written(write, path, *NOT_WRITTEN[name])


# ---- what is no such file ----------------------------------------------------------------------------------

ONE = saved(np.ones(1, "f4"))


def array(start: bytes) -> bytes:
    """A file with an array that begins so."""
    return listed([start + bytes(64)], [b"a"])


def dense(sizes: tuple[int, ...], kind: int = 0) -> bytes:
    return array(struct.pack("<Ii", V2, 0) + shape(sizes) + struct.pack("<iii", 1, 0, kind))


NO_LIST = "this is not a .params file of MXNet: it does not begin as a list of arrays does"
FOREIGN = {
    "empty": (b"", NO_LIST),
    "23 bytes": (bytes(23), NO_LIST),
    "random": (random.Random(0).randbytes(500), NO_LIST),
    "many arrays": (
        struct.pack("<QQQ", 0x112, 0, 1 << 61),
        f"it claims {1 << 61} arrays, which it cannot hold",
    ),
    "no names": (listed([ONE], []), "its arrays have no names"),
    "fewer names": (listed([ONE, ONE], [b"a"]), "it has 2 arrays and 1 names"),
    "more names": (listed([ONE], [b"a", b"b"]), "it has 1 arrays and 2 names"),
    "two of a name": (listed([ONE, ONE], [b"a", b"a"]), "it has two arrays of the name 'a'"),
    "an argument and a state": (
        listed([ONE, ONE], [b"arg:a", b"aux:a"]),
        "it has two arrays of the name 'a'",
    ),
    "sparse": (
        array(struct.pack("<Ii", V2, 1)),
        "an array in it is sparse (storage type 1), which is not read",
    ),
    "axes": (array(struct.pack("<Iii", V2, 0, 33)), "an array in it claims 33 axes"),
    "minus one axes": (array(struct.pack("<Iii", V2, 0, -1)), "an array in it claims -1 axes"),
    "many axes": (array(struct.pack("<I", 1 << 30)), f"an array in it claims {1 << 30} axes"),
    "a petabyte": (
        dense((1 << 48,)),
        f"an array in it claims the shape ({1 << 48},), which the file cannot hold",
    ),
    "a petabyte that is empty": (
        dense((0, 1 << 62)),
        f"an array in it claims the shape (0, {1 << 62}), which",
    ),
    "below none": (dense((-1,)), "an array in it claims the shape (-1,), which the file cannot hold"),
    "twice below none": (dense((-2, -2)), "an array in it claims the shape (-2, -2), which the file cannot"),
    "an unknown kind": (dense((1,), 99), "an array in it has the dtype 99, which is not read"),
    "a cut array": (dense((40,)), "the file ends within 160 bytes at byte"),
    "a long name": (listed([ONE], [])[:-8] + struct.pack("<QQ", 1, 1 << 60), "the file ends within"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_whole_file_is_refused_in_one_sentence(path: Path, name: str):
    assert_refused(read, path, *FOREIGN[name])
