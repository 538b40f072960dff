"""Files of Flax: msgpack as flax/serialization.py has it, and what gives a FileError and no more."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from constants import Constants
from containers import assert_not_written, assert_refused, assert_same, changed, refusal, refused, samples
from memory import memory

from stepnet.layout.files.flax import read, write

packb: Any = msgpack.packb
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


# ---- flax/serialization.py, in its own words ---------------------------------------------------------------


def packed_array(array: np.ndarray) -> bytes:
    return packb((array.shape, array.dtype.name, array.tobytes("C")), use_bin_type=True)


def extended(value: Any) -> Any:
    """_msgpack_ext_pack."""
    match value:
        case np.ndarray():
            return msgpack.ExtType(1, packed_array(value))
        case complex():
            return msgpack.ExtType(2, packb((value.real, value.imag)))
        case np.generic():
            return msgpack.ExtType(3, packed_array(np.asarray(value)))
        case tuple():
            options: Any = {"strict_types": True, "use_bin_type": True, "default": extended}
            return msgpack.ExtType(4, packb(list(value), **options))
        case _:
            raise ValueError(value)


def serialized(tree: Any) -> bytes:
    """msgpack_serialize."""
    return packb(tree, default=extended, strict_types=True)


def chunked(array: np.ndarray, size: int) -> dict[str, Any]:
    """_chunk."""
    flat = array.reshape(-1)
    chunks = [flat[start : start + size] for start in range(0, flat.size, size)]
    return {
        "__msgpack_chunked_array__": True,
        "shape": {str(axis): length for axis, length in enumerate(array.shape)},
        "chunks": {str(place): chunk for place, chunk in enumerate(chunks)},
    }


def unextended(code: int, data: bytes) -> Any:
    """_msgpack_ext_unpack, as far as we write."""
    assert code == 1
    shape, name, numbers = msgpack.unpackb(data, raw=True)
    dtype = ml_dtypes.bfloat16 if name == b"bfloat16" else np.dtype(name)
    return np.frombuffer(numbers, dtype).reshape(shape)


def restored(path: Path) -> Any:
    """msgpack_restore."""
    return msgpack.unpackb(path.read_bytes(), ext_hook=unextended, raw=False)


def flat(tree: Any, front: str = "") -> dict[str, np.ndarray]:
    if not isinstance(tree, Mapping):
        return {front: tree}
    return {
        name: array
        for key, value in tree.items()
        for name, array in flat(value, f"{front}/{key}" if front else key).items()
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.msgpack"


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_read(path: Path, dtype: Any):
    arrays = {f"params/cell/{name}": array for name, array in samples(dtype).items()}
    write(path, arrays)
    assert_same(read(path), arrays)
    assert_same(flat(restored(path)), arrays)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_flax_writes_is_read(path: Path, dtype: Any):
    arrays = {name: np.array(array, np.dtype(dtype)) for name, array in samples(dtype).items()}
    path.write_bytes(serialized({"params": {"cell": arrays}, "step": 3}))
    assert_same(read(path), {f"params/cell/{name}": array for name, array in arrays.items()})


def test_numbers_of_every_kind(path: Path):
    kinds = [*(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
    kinds += ["bool", "complex64", "complex128"]
    arrays = {kind: np.array([[0, 1, 1]]).astype(kind) for kind in kinds}
    write(path, arrays)
    found = read(path)
    assert {name: array.dtype.name for name, array in found.items()} == {kind: kind for kind in kinds}
    assert all((found[kind] == arrays[kind]).all() for kind in kinds)


def test_scalars_lists_tuples_and_what_is_no_array(path: Path):
    one, two, three = np.arange(2.0), np.arange(3, dtype="f4"), np.ones((1, 1))
    tree = {
        "scalar": np.float32(1.5),
        "list": [one, {"x": two}],
        "tuple": (one, (three, "text")),
        "none": None,
    }
    path.write_bytes(serialized({**tree, "complex": 1j, "text": "x", "number": 5}))
    wanted = {
        "scalar": np.array(1.5, "f4"),
        "list/0": one,
        "list/1/x": two,
        "tuple/0": one,
        "tuple/1/0": three,
    }
    assert_same(read(path), wanted)


@pytest.mark.parametrize("shape", [(5, 5), (25,), (1, 25)])
def test_long_arrays_in_pieces(path: Path, shape: tuple[int, ...], constants: Constants):
    array = np.arange(25, dtype="f4").reshape(shape)
    assert len(chunked(array, 2)["chunks"]) == 13  # "10" comes before "2" where keys are sorted
    path.write_bytes(serialized({"a": chunked(array, 2), "b": array}))
    assert_same(read(path), {"a": array, "b": array})
    by_key = chunked(array, 2)
    by_key["chunks"] = dict(sorted(by_key["chunks"].items()))
    path.write_bytes(serialized({"a": by_key}))
    assert_same(read(path), {"a": array})
    constants("stepnet.layout.files.flax", CHUNK=8)
    write(path, {"x/a": array}, force=True)
    tree = restored(path)
    assert tree["x"]["a"]["shape"] == {str(axis): length for axis, length in enumerate(shape)}
    assert [chunk.size for chunk in tree["x"]["a"]["chunks"].values()] == [2] * 12 + [1]
    assert_same(read(path), {"x/a": array})


NOT_WRITTEN = {
    "objects": ({"a": np.array([None])}, "'a' holds object, which Flax's files do not have"),
    "float8": (
        {"a": np.ones(1, ml_dtypes.float8_e5m2)},
        "'a' holds float8_e5m2, which Flax's files do not have",
    ),
    "within an array": ({"a": np.ones(1), "a/b": np.ones(1)}, "'a/b' lies in 'a', which is an array"),
    "around an array": (
        {"a/b": np.ones(1), "a": np.ones(1)},
        "'a' is an array, and a branch with others in it",
    ),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_the_format_lacks_is_not_written(path: Path, name: str):
    assert_not_written(write, path, *NOT_WRITTEN[name])


# ---- what is no such file ----------------------------------------------------------------------------------

ONE = np.ones(1, "f4")
WHOLE = serialized({"params": {name: np.array(array, "f4") for name, array in samples(np.float32).items()}})


def array(shape: Any, dtype: Any = "float32", numbers: Any = b"\0" * 4) -> bytes:
    """A file with an array that is said so."""
    return packb({"a": msgpack.ExtType(1, packb((shape, dtype, numbers)))})


def pieces(shape: Any, chunks: Any) -> bytes:
    return serialized({"a": {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}})


def tuples(depth: int) -> bytes:
    value: Any = ONE
    for _ in range(depth):
        value = (value,)
    return serialized(value)


NO_BYTES = "an array in it has more or fewer bytes than its shape requires"
NO_CHUNKS = "a long array in it has no shape and chunks"
FOREIGN = {
    "empty": (b"", "this is not a complete .msgpack file ("),
    "more behind": (WHOLE + b"\0", "this is not a complete .msgpack file (unpack(b) received extra data.)"),
    "reserved": (b"\xc1", "this is not a complete .msgpack file (FormatError)"),
    "no text": (b"\x81\xa1\xff" + packb(1), "this is not a complete .msgpack file ('utf-8' codec"),
    "a key that is a number": (
        serialized({"1": ONE, "x": {}})[:-3] + b"\x01\x80",
        "int is not allowed for map key",
    ),
    "a key that is an array": (b"\x81" + serialized(ONE) * 2, "numpy.ndarray is not allowed for map key"),
    "a key twice": (b"\x82" + (b"\xa1a" + serialized(ONE)) * 2, "a dictionary in it has a key twice"),
    "a name twice": (serialized({"a/b": ONE, "a": {"b": ONE}}), "it has two arrays of the name 'a/b'"),
    "deep lists": (b"\x91" * 5000 + b"\xc0", "this is not a complete .msgpack file (StackError)"),
    "deep": (b"\x91" * 300 + b"\xc0", "its tree is deeper than 100"),
    "deep tuples": (tuples(9), "its tuples are deeper than 8"),
    "a list of 4 billion": (b"\xdd\xff\xff\xff\xff", "4294967295 exceeds max_array_len(4096)"),
    "a dictionary of 4 billion": (b"\xdf\xff\xff\xff\xff", "4294967295 exceeds max_map_len"),
    "bytes of 4 GB": (
        b"\xc6\xff\xff\xff\xff",
        "this is not a complete .msgpack file (Unpack failed: incomplete input)",
    ),
    "an extension of 4 GB": (b"\xc9\xff\xff\xff\xff\x01", "0 exceeds max_ext_len(6)"),
    "a long name": (serialized({"a" * 600: {"b" * 600: ONE}}), "an array with a name of more than 1000"),
    "a petabyte": (array((1 << 48,)), NO_BYTES),
    "a petabyte that is empty": (
        array((1 << 62, 0), numbers=b""),
        "this is not a complete .msgpack file (array is too big",
    ),
    "below none": (array((-1,)), NO_BYTES),
    "true": (array((True,)), NO_BYTES),
    "a shape that is a number": (array(1), NO_BYTES),
    "33 axes": (array((1,) * 33), "33 exceeds max_array_len(32)"),
    "too few bytes": (array((2,)), NO_BYTES),
    "too many bytes": (array((1,), numbers=bytes(8)), NO_BYTES),
    "half a number": (
        array((1,), numbers=bytes(6)),
        "this is not a complete .msgpack file (buffer size must be",
    ),
    "numbers that are a number": (array((1,), numbers=5), NO_BYTES),
    "an object": (array((1,), "object"), "an array in it holds 'object', which is not read"),
    "records": (array((1,), "float32,float32"), "an array in it holds 'float32,float32', which is not read"),
    "a dtype that is a number": (array((1,), 5), "an array in it holds '5', which is not read"),
    "two parts": (
        packb({"a": msgpack.ExtType(1, packb((1, 2)))}),
        "an array in it has no shape, dtype and bytes",
    ),
    "an array in an array": (
        packb({"a": msgpack.ExtType(1, packb(((1,), "f4", msgpack.ExtType(1, b""))))}),
        "an array in it",
    ),
    "no shape": (pieces(5, {"0": ONE}), NO_CHUNKS),
    "no chunks": (
        pieces({"0": 1}, {}),
        "a long array in it has no chunks, or chunks that are not arrays of one dtype",
    ),
    "a missing chunk": (pieces({"0": 2}, {"0": ONE, "2": ONE}), NO_CHUNKS),
    "chunks that are numbers": (
        pieces({"0": 1}, {"0": 5}),
        "a long array in it has no chunks, or chunks that are not arrays of one dtype",
    ),
    "chunks of two kinds": (
        pieces({"0": 2}, {"0": ONE, "1": np.ones(1)}),
        "a long array in it has no chunks",
    ),
    "too few numbers": (
        pieces({"0": 3}, {"0": ONE}),
        "a long array in it has more or fewer numbers than its shape",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_whole_file_is_refused_in_one_sentence(path: Path, name: str):
    assert_refused(read, path, *FOREIGN[name])


def test_lists_take_no_memory_before_they_are_there(path: Path):
    """A list of lists of lists, each of which claims to be as long as the file."""
    path.write_bytes(b"\xdd" + (1 << 18).to_bytes(4, "big") + b"\0" * (1 << 18))
    assert "exceeds max_array_len(4096)" in refusal(read, path)
    path.write_bytes((b"\xdd" + (1 << 12).to_bytes(4, "big")) * 500 + b"\0" * (1 << 20))
    with memory() as peak:
        assert refusal(read, path)
        assert peak() < 32 << 20


def test_long_keys_are_not_multiplied(path: Path):
    path.write_bytes(serialized({"a" * 1_000_000: {str(number): ONE for number in range(1000)}}))
    with memory() as peak:
        assert refusal(read, path) == "it has an array with a name of more than 1000 characters"
        assert peak() < 16 << 20


def test_changed_bytes_never_raise_anything_else(path: Path):
    small = serialized(
        {"params": {"kernel": np.ones((2, 3), "f4"), "bias": np.ones(3), "rest": (ONE, [ONE])}}
    )
    assert 600 < refused(read, path, changed(small, 1500)) < 1400
    assert 100 < refused(read, path, changed(WHOLE, 500)) < 500


def test_random_bytes_never_raise_anything_else(path: Path):
    draw = random.Random(0)
    starts = [b"\x81\xa1a", b"\x91", b"\xc7\x09\x01\x93", b"\xd8\x01\x93\x91\x01", b"\xc7\x04\x04"]
    spoilt = (b"".join(draw.choice(starts) for _ in range(3)) + draw.randbytes(20) for _ in range(2000))
    assert 1000 < refused(read, path, spoilt) <= 2000
