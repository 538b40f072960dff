"""Files of NumPy: what is read and written, bit by bit, and what gives a FileError and no more."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from constants import Constants
from containers import (
    Runs,
    assert_not_written,
    assert_refused,
    assert_same,
    changed,
    refusal,
    refused,
    samples,
)
from memory import memory

from stepnet.layout.files import store
from stepnet.layout.files.npz import read, write

FLOATS = [np.float16, np.float32, np.float64]


def packed(arrays: dict[str, Any], compressed: bool = False) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def npy(header: str, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """A member, its header in words."""
    size = len(header) if length is None else length
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", size)
        + header.encode()
        + data
    )


def described(dtype: str, shape: str, order: str = "False") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def one(header: str, data: bytes = b"", **options: Any) -> bytes:
    return zipped(("a.npy", npy(header, data, **options)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


# ---- what NumPy writes, and what it reads ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_read(path: Path, dtype: Any):
    arrays = samples(dtype)
    write(path, arrays)
    assert_same(read(path), arrays)
    with np.load(path, allow_pickle=False) as found:
        assert_same({name: found[name].astype(dtype) for name in found}, arrays)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_numpy_writes_is_read(path: Path, dtype: Any, compressed: bool):
    arrays = samples(dtype)
    path.write_bytes(packed(arrays, compressed))
    assert_same(read(path), arrays)


def test_numbers_of_every_kind(path: Path):
    kinds = ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "g", "F", "D", "G"]
    arrays = {f"kind {kind}": np.arange(3).astype(kind) for kind in kinds}
    write(path, arrays)
    found = read(path)
    assert {name: array.dtype for name, array in found.items()} == {n: a.dtype for n, a in arrays.items()}
    assert all((found[name] == array).all() for name, array in arrays.items())


@pytest.mark.parametrize(
    "header",
    [
        described("'<f4'", "(2, 3)"),
        described("'<f4'", "(2L, 3L)"),  # NumPy under Python 2
        described("'<f4'", "(2,3,)"),  # NPZ.jl and ndarray-npy
        "{'shape':(2,3),'fortran_order':False,'descr':'<f4'}",
        "{  'descr' : '<f4' ,\n 'fortran_order' : False , 'shape' : ( 2 , 3 ) }   ",
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_as_others_write_them(path: Path, header: str, version: int):
    numbers = np.arange(6, dtype="<f4").reshape(2, 3)
    path.write_bytes(one(header, numbers.tobytes(), version=version))
    assert_same(read(path), {"a": numbers})


def test_an_array_by_columns(path: Path):
    numbers = np.arange(6, dtype="<f4")
    path.write_bytes(one(described("'<f4'", "(2, 3)", "True"), numbers.tobytes()))
    assert_same(read(path), {"a": numbers.reshape(3, 2).T})


def test_names_are_no_more_than_names(path: Path, tmp_path: Path):
    arrays = {name: np.ones(2) for name in ("/etc/x", "a/b.npy", "", "é", "a" * 300)}
    write(path, arrays)
    assert_same(read(path), arrays)
    arrays["../up"] = np.ones(2)  # as NumPy writes it too
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType] - the names are no options
    assert_same(read(path), arrays)
    assert [one.name for one in tmp_path.iterdir()] == ["model.npz"]


def test_the_same_arrays_are_the_same_file(path: Path, tmp_path: Path):
    write(path, samples(np.float32))
    write(tmp_path / "again.npz", samples(np.float32))
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([None]), "object"),
        (np.array(["x"]), "str32"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
        (np.ones(2, ml_dtypes.float8_e5m2), "float8_e5m2"),
        (np.zeros(2, [("a", "f4")]), "void32"),
        (np.zeros(2, "m8[s]"), "timedelta64[s]"),
    ],
)
def test_what_the_format_lacks_is_not_written(path: Path, array: np.ndarray, kind: str):
    expected = f"'a' holds {kind}, which .npz files do not have"
    assert_not_written(write, path, {"fine": np.ones(2), "a": array}, expected)


@pytest.mark.parametrize("name", ["../a", "a/../../b", "..", "a\\..\\b"])
def test_names_that_lead_out_of_a_folder_are_not_written(path: Path, name: str):
    expected = f"{name!r} would lead out of the folder in which the .npz file is unpacked"
    assert_not_written(write, path, {name: np.ones(2)}, expected)


# ---- what is no such file ----------------------------------------------------------------------------------

F4 = described("'<f4'", "(2,)")
NO_HEADER = "its member 'a.npy' has no header as NumPy writes one"
FOREIGN = {
    "empty": (b"", "its zip is cut off: the list of members at its end is missing"),
    "random": (np.random.default_rng(0).bytes(2000), "its zip is cut off: the list of members"),
    "a pickle": (pickle.dumps([1]), "its zip is cut off: the list of members"),
    "one array": (npy(F4, bytes(8)), "its zip is cut off: the list of members"),
    "another member": (zipped(("readme.txt", b"x")), "its member 'readme.txt' is not an array"),
    "no array": (zipped(("a.npy", b"x")), "its member 'a.npy' is not an array of NumPy"),
    "version 4": (one(F4, bytes(8), version=4), "its member 'a.npy' is not an array of NumPy"),
    "no header": (
        zipped(("a.npy", b"\x93NUMPY\1\0")),
        NO_HEADER,
    ),
    "a cut header": (one(F4[:-9]), NO_HEADER),
    "a short header": (one(F4, length=5000), NO_HEADER),
    "a header of 4 GB": (one(F4, version=2, length=0xFFFFFFFF), "its member 'a.npy' has no header as"),
    "code": (
        one("{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (2,), }", bytes(8)),
        NO_HEADER,
    ),
    "code around it": (one(f"print({F4.strip()})", bytes(8)), NO_HEADER),
    "a field more": (one(F4.replace("}", "'x': 1}"), bytes(8)), NO_HEADER),
    "a field twice": (
        one("{'descr': '<f4', 'descr': '<f8', 'shape': (2,), }", bytes(8)),
        NO_HEADER,
    ),
    "a negative shape": (one(described("'<f4'", "(-2, -1)"), bytes(8)), "its member 'a.npy' has no header"),
    "cut numbers": (one(F4, bytes(7)), "its member 'a.npy' has more or fewer bytes than its array"),
    "more numbers": (one(F4, bytes(9)), "its member 'a.npy' has more or fewer bytes than its array"),
    "a huge shape": (
        one(described("'<f4'", f"({1 << 62}, 4)"), bytes(8)),
        f"its member 'a.npy' claims the shape ({1 << 62}, 4), which it cannot hold",
    ),
    "a shape of many digits": (
        one(described("'<f4'", f"({'9' * 5000},)"), bytes(8)),
        "this is not a complete .npz",
    ),
    "a huge empty shape": (one(described("'<f4'", f"(0, {1 << 62})")), "this is not a complete .npz file ("),
    "a shape of many axes": (
        one(described("'<f4'", f"({'1,' * 100})"), bytes(4)),
        "this is not a complete .npz",
    ),
    "objects": (
        packed({"a": np.array([{"x": 1}], object)}),
        "its member 'a.npy' holds '|O', and not numbers",
    ),
    "bfloat16": (
        packed({"a": np.ones(2, ml_dtypes.bfloat16)}),
        "its member 'a.npy' holds '<V2', and not numbers",
    ),
    "records": (
        packed({"a": np.zeros(2, [("x", "f4")])}),
        "its member 'a.npy' holds [('x','<f4')], and not numbers",
    ),
    "texts": (packed({"a": np.array(["x"])}), "its member 'a.npy' holds '<U1', and not numbers"),
    "no dtype": (
        one(described("'<f3'", "(2,)"), bytes(8)),
        "this is not a complete .npz file (data type '<f3'",
    ),
    "subarrays": (
        one(described("'(2,)<f4'", "(1,)"), bytes(8)),
        "its member 'a.npy' holds '(2,)<f4', and not",
    ),
    "bzip2": (
        zipped(("a.npy", npy(F4, bytes(8))), method=zipfile.ZIP_BZIP2),
        "is compressed as NumPy never does",
    ),
    "lzma": (
        zipped(("a.npy", npy(F4, bytes(8))), method=zipfile.ZIP_LZMA),
        "is compressed as NumPy never does",
    ),
    "two of a name": (
        zipped(("a.npy", npy(F4, bytes(8))), ("a.npx", npy(F4, bytes(8)))).replace(b"a.npx", b"a.npy"),
        "its zip has two members of the name 'a.npy'",
    ),
    "two of a name, one cut": (
        zipped(("a.npy", npy(F4, bytes(8))), ("a.npy-b", npy(F4, bytes(8)))).replace(b"a.npy-b", b"a.npy\0b"),
        "it has two arrays of the name 'a'",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_whole_file_is_refused_in_one_sentence(path: Path, name: str):
    assert_refused(read, path, *FOREIGN[name])


def test_a_pickle_in_it_is_not_run(path: Path, tmp_path: Path):
    mark = tmp_path / "ran"
    path.write_bytes(packed({"fine": np.ones(2), "weights": np.array([Runs(os.mkdir, str(mark))], object)}))
    assert refusal(read, path) == "its member 'weights.npy' holds '|O', and not numbers"
    assert not mark.exists()
    with np.load(path, allow_pickle=True) as found:
        assert found["weights"][0] is None
    assert mark.exists()  # and NumPy's own reader runs it


def test_what_zeros_unpack_to_has_a_limit(path: Path, constants: Constants):
    zeros = {f"a{number}": np.zeros(1 << 18) for number in range(4)}
    path.write_bytes(packed(zeros, compressed=True))
    assert len(path.read_bytes()) < 1 << 14
    assert_same(read(path), zeros)  # 8 MB, which anybody has
    constants(store, SPARE=5 << 20)
    with memory() as peak:
        assert refusal(read, path).startswith("with its array 'a2.npy' it would fill more than ")
        assert peak() < 7 << 20


def test_a_member_that_claims_more_than_it_unpacks_to(path: Path):
    stream = zipped(("a.npy", npy(described("'<f4'", f"({1 << 20},)"), bytes(8))))
    real = len(npy(described("'<f4'", f"({1 << 20},)"), bytes(8)))
    path.write_bytes(stream.replace(struct.pack("<II", real, real), struct.pack("<II", real, 5 << 20)))
    assert "its member 'a.npy' has more or fewer bytes than its array" in refusal(read, path)


def entries(*names: str, start: int, size: int) -> bytes:
    """A list of members of one place."""
    return b"".join(
        struct.pack(
            "<4s4H2H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, size, size, len(name), 0, 0, 0, 0, 0, start
        )
        + name.encode()
        for name in names
    )


def test_two_lists_of_members(path: Path):
    """The one that Python's zipfile takes has two members of the same bytes, the other one does not."""
    member = npy(described("'<f4'", "(1000,)"), bytes(4000))
    record = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, len(member), len(member), 5, 0) + b"a.npy"
    honest = entries("a.npy", "b.npy", start=0, size=0)
    doubled = entries("a.npy", "b.npy", start=0, size=len(member))
    body = bytes(len(honest)) + record + member
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(honest), len(body), 0)
    path.write_bytes(body + honest + doubled + end)
    with zipfile.ZipFile(path) as archive:
        assert [info.file_size for info in archive.infolist()] == [len(member)] * 2
    assert refusal(read, path) == "its zip has two lists of members"


def test_members_that_share_bytes(path: Path):
    member = npy(described("'<f4'", "(1000,)"), bytes(4000))
    record = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, len(member), len(member), 5, 0) + b"a.npy"
    body, listed = record + member, entries("a.npy", "b.npy", start=0, size=len(member))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(listed), len(body), 0)
    path.write_bytes(body + listed + end)
    assert refusal(read, path) == "its zip lists more bytes than it has"


def test_changed_headers_never_raise_anything_else(path: Path):
    """The zip is whole, and its member is not."""
    members = changed(npy(described("'<f4'", "(2, 3)"), bytes(24)), 600)
    assert 400 < refused(read, path, (zipped(("a.npy", member)) for member in members)) < 600
