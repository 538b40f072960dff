"""Files of paddle.save, made as Paddle makes them: read bit for bit; a hostile one only gives a FileError."""

import io
import math
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from containers import Runs, refusal
from memory import memory

from stepnet.errors import FileError
from stepnet.layout.files.pickles.paddle import DTYPES, read, write
from stepnet.layout.files.pickles.values import Name, Pairs, PickledCall, dump

PROTOCOLS = [2, 3, 4, 5]
RNG = np.random.default_rng(0)
ARRAYS = {
    "weight_ih_l0": RNG.standard_normal((9, 2)).astype(np.float32),
    "weight_hh_l0": RNG.standard_normal((9, 3)),
    "0.cell.bias_ih": RNG.standard_normal(9).astype(np.float16),
    "number": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float32),
}


def state_dict(arrays: dict[str, Any]) -> dict[str, Any]:
    """The value that paddle.save pickles for a state dict (_build_saved_state_dict)."""
    return {**arrays, "StructuredToParameterName@@": {name: f"gru_{name}" for name in arrays}}


def sliced(arrays: dict[str, Any], most: int) -> dict[str, Any]:
    """The value that paddle.save makes of it for protocols 2 and 3, in parts (_unpack_saved_dict)."""
    made, infos = dict(arrays), {}
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.size > most:
            parts = [f"{name}@@.{index}" for index in range(math.ceil(array.size / most))]
            infos[name] = {"OriginShape": array.shape, "slices": parts}
            made.pop(name)
            for index, part in enumerate(parts):
                made[part] = array.flatten()[index * most : (index + 1) * most]
    return {**made, "UnpackBigParamInfor@@": infos} if infos else made


def check(path: Path, expected: dict[str, Any]) -> dict[str, Any]:
    found = read(path)
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    return found


def saved(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pdparams"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_state_dicts(path: Path, protocol: int):
    found = check(saved(path, state_dict(ARRAYS), protocol), ARRAYS)
    assert list(found) == list(ARRAYS)
    assert all(array.flags.writeable for array in found.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors_with_names_in_other_values(path: Path, protocol: int):
    class Tensor:
        """An object that paddle.save pickles as the tuple of a name and an array (reduce_varbase)."""

        def __init__(self, name: str, array: Any):
            self.pair = name, array

        def __reduce__(self) -> Any:
            return tuple, (self.pair,)

    tensors = {name: Tensor(f"linear_0.{name}", array) for name, array in ARRAYS.items()}
    value = {
        "model": tensors,
        "epoch": 100,
        "list": [tensors["number"], "text", (1, 2)],
        "lr": np.float64(0.1),
    }
    expected = {f"model.{name}": array for name, array in ARRAYS.items()} | {"list.0": ARRAYS["number"]}
    check(saved(path, value, protocol), expected)
    check(saved(path, Tensor("w_0", ARRAYS["number"]), protocol), {"w_0": ARRAYS["number"]})
    check(saved(path, ARRAYS["number"], protocol), {"tensor": ARRAYS["number"]})
    assert read(saved(path, {"epoch": 1}, protocol)) == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_orders_of_axes_and_bytes(path: Path, protocol: int):
    values = {
        "fortran": np.asfortranarray(ARRAYS["weight_ih_l0"]),
        "cube": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        "step": ARRAYS["weight_hh_l0"][::2, ::-1],
        "big": ARRAYS["weight_ih_l0"].astype(">f4"),
        "big fortran": np.asfortranarray(ARRAYS["weight_hh_l0"].astype(">f8")),
        "twice": ARRAYS["number"],
        "again": ARRAYS["number"],
    }
    expected = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in values.items()}
    found = check(saved(path, values, protocol), expected)
    assert np.shares_memory(found["twice"], found["again"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("code", DTYPES)
def test_every_dtype(path: Path, code: str, protocol: int):
    dtype = np.dtype(code)
    array = np.frombuffer(RNG.bytes(6 * dtype.itemsize), dtype).reshape(2, 3)
    array = array if code != "b1" else RNG.integers(0, 2, (2, 3)).astype(bool)
    expected = array.view(ml_dtypes.bfloat16) if code == "u2" else array
    found = check(
        saved(path, {"x": array, "one": array[:1, 0]}, protocol), {"x": expected, "one": expected[:1, 0]}
    )
    assert found["x"].dtype == DTYPES[code]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_that_are_cut_into_slices(path: Path, protocol: int):
    values = {**ARRAYS, "half": np.arange(30, dtype=np.uint16).reshape(5, 6)}
    expected = {**ARRAYS, "half": values["half"].view(ml_dtypes.bfloat16)}
    check(saved(path, sliced(state_dict(values), 7), protocol), expected)


def test_files_of_other_numpys(path: Path):
    data = pickle.dumps(state_dict(ARRAYS), 2)
    assert b"cnumpy._core.multiarray\n" in data
    path.write_bytes(data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    check(path, ARRAYS)
    data = pickle.dumps(ARRAYS, 5)
    old = data.replace(b"\x8c\x13numpy._core.numeric", b"\x8c\x12numpy.core.numeric")
    path.write_bytes(old[:3] + struct.pack("<Q", 0) + old[11:])
    check(path, ARRAYS)


def test_files_of_python_2(path: Path):
    array = ARRAYS["weight_ih_l0"]
    data = array.tobytes()
    path.write_bytes(
        b"\x80\x02}U\x01wcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x09K\x02\x86cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + struct.pack("<i", len(data)) + data + b"tbs."
    )
    assert pickle.loads(path.read_bytes(), encoding="latin1")["w"].tobytes() == data
    check(path, {"w": array})


def test_arrays_that_hold_no_numbers(path: Path):
    for array, kind in [
        (np.array([{}, None]), "Python objects"),
        (np.array(["a"]), "texts"),
        (np.array([b"a"]), "texts"),
        (np.zeros(2, "m8[s]"), "dtype 'm8'"),
        (np.zeros(2, np.uint32), "dtype 'u4'"),
        (np.zeros(2, [("a", "f4")]), "dtype 'V4'"),
    ]:
        message = refusal(read, saved(path, {"layer": {"w": array}}))
        assert message == f"'layer.w' holds {kind}, which stepnet does not read; save an array of numbers"


def pickled(value: object) -> bytes:
    stream = io.BytesIO()
    dump(value, stream.write, 4)
    return stream.getvalue()


def array_of(
    shape: object = (2, 3), code: object = "f4", order: object = "<", fortran: object = False, size: int = 24
) -> PickledCall:
    dtype = PickledCall("numpy.dtype", (code, False, True), (3, order, None, None, None, -1, -1, 0))
    data = np.zeros(size, np.uint8)
    empty = (Name("numpy.ndarray"), (0,), "b")
    return PickledCall("numpy.core.multiarray._reconstruct", empty, (1, shape, dtype, fortran, data))


KNOWN = "is not an array in a form that stepnet knows"
HOSTILE = {
    "of shape (2, 3) and dtype float32 needs 24 bytes and has 23 bytes": [array_of(size=23)],
    "of shape (2, 3) and dtype float32 needs 24 bytes and has 25 bytes": [array_of(size=25)],
    "of shape () and dtype float32 needs 4 bytes and has 24 bytes": [array_of(())],
    "has a shape that no array can have": [
        array_of((-2, -3)),
        array_of((True, 6)),
        array_of((1 << 30, 1 << 30)),
        array_of((0, 1 << 60)),
        array_of((1,) * 65),
        array_of(None),
        array_of(6),
    ],
    "its arrays have more bytes than itself": [array_of((1 << 20,)), array_of((1 << 57,))],
    "holds truth values other than 0 and 1": [
        PickledCall(
            "numpy.core.numeric._frombuffer",
            (np.full(2, 2, np.uint8), PickledCall("numpy.dtype", ("b1",)), (2,), "C"),
        ),
    ],
    KNOWN: [
        array_of(fortran=7),
        PickledCall("numpy.core.multiarray._reconstruct", ()),
        PickledCall(
            "numpy.core.multiarray._reconstruct", (), (1, (2, 3), "f4", False, np.zeros(24, np.uint8))
        ),
        PickledCall(
            "numpy.core.numeric._frombuffer",
            (np.zeros(1, np.uint8), PickledCall("numpy.dtype", ("u1",)), (1,), "K"),
        ),
    ],
    "needs 24 bytes and has none": [
        PickledCall(
            "numpy.core.numeric._frombuffer", (None, PickledCall("numpy.dtype", ("f4",)), (2, 3), "C")
        ),
        PickledCall(
            "numpy.core.numeric._frombuffer", ((1, 2), PickledCall("numpy.dtype", ("f4",)), (2, 3), "C")
        ),
    ],
    "has a text where its bytes must be": [
        PickledCall(
            "numpy.core.numeric._frombuffer",
            ("\u0100" * 24, PickledCall("numpy.dtype", ("f4",)), (2, 3), "C"),
        ),
    ],
    "holds dtype ''": [array_of(code=None), array_of(code=7), array_of(code="")],
    "holds dtype 'f4,f4'": [array_of(code="f4,f4")],
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_arrays(path: Path, message: str):
    path.write_bytes(pickled(Pairs([("x", array_of()), ("y", array_of(fortran=True))])))
    check(path, {name: np.zeros((2, 3), np.float32) for name in "xy"})
    for value in HOSTILE[message]:
        path.write_bytes(pickled(Pairs([("x", value)])))
        with memory() as peak:
            assert message in refusal(read, path)
            assert peak() < 1 << 20


def test_bytes_that_many_arrays_share(path: Path):
    data = b"B" + struct.pack("<I", 80_000) + bytes(80_000) + b"q\x00"
    dtype = b"cnumpy\ndtype\nX\2\0\0\0f8\x85R(K\x03X\1\0\0\0>tb"  # which needs a copy
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01J\x10\x27\0\0\x85" + dtype + b"\x89h\x00tb"
    names = [b"X\1\0\0\0%c" % letter for letter in b"abcdef"]
    path.write_bytes(b"\x80\x04(" + data + b"}" + names[0] + array + b"st.")
    check(path, {"1.a": np.zeros(10_000)})
    path.write_bytes(b"\x80\x04(" + data + b"}(" + b"".join(name + array for name in names) + b"ut.")
    assert refusal(read, path) == "its arrays have more bytes than itself"


BROKEN_SLICES = {
    "'w' is cut into slices that the file does not hold": [
        {"OriginShape": (8,), "slices": ["a", "a"]},
        {"OriginShape": (8,), "slices": ["a", "c"]},
        {"OriginShape": (8,), "slices": []},
        {"OriginShape": (8,), "slices": [("a",)]},
        {"OriginShape": (8,), "slices": "ab"},
        {"OriginShape": (-8,), "slices": ["a", "b"]},
        {"slices": ["a", "b"]},
        {"OriginShape": (8,)},
        7,
    ],
    "'w' of shape (9,) is cut into slices of another size": [{"OriginShape": (9,), "slices": ["a", "b"]}],
}


@pytest.mark.parametrize("message", BROKEN_SLICES)
def test_slices_that_do_not_fit(path: Path, message: str):
    slices = {"a": np.arange(4.0), "b": np.arange(4.0)}
    for info in BROKEN_SLICES[message]:
        assert refusal(read, saved(path, {**slices, "UnpackBigParamInfor@@": {"w": info}})) == message
    none = "'w' is cut into slices that the file does not hold"
    info = {"OriginShape": (8,), "slices": ["a", "b"]}
    for other in [np.zeros((2, 2)), np.zeros(4, np.float32)]:
        assert (
            refusal(read, saved(path, {**slices, "b": other, "UnpackBigParamInfor@@": {"w": info}})) == none
        )
    assert (
        refusal(read, saved(path, {**slices, "w": slices["a"], "UnpackBigParamInfor@@": {"w": info}})) == none
    )
    check(saved(path, {**slices, "UnpackBigParamInfor@@": 7}), slices)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_run(path: Path, protocol: int):
    mark = path.with_name("ran")

    for name, value in {
        "builtins.eval": Runs(eval, f"open({str(mark)!r}, 'w').close()"),
        "io.open": Runs(open, str(mark), "w"),
        "posix.system": Runs(os.system, f"echo > {mark}"),
        "posix.mkdir": Runs(os.mkdir, str(mark)),
    }.items():
        for whole in [value, state_dict({"x": np.zeros(2), "y": value}), {"model": {"w": ("name", value)}}]:
            assert refusal(read, saved(path, whole, protocol)) == (
                f"the file asks to run {name}, which stepnet never does; "
                "save layer.state_dict() on its own, which holds arrays only"
            )
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.is_dir()  # and Python's own reader runs it


def test_files_that_are_none_of_paddle_save(path: Path):
    none = "this is not a file of paddle.save, which writes pickles of protocol 2 and later"
    for data in [b"", b"abc", bytes(100), pickle.dumps({"a": 1}, 0)]:
        path.write_bytes(data)
        assert refusal(read, path) == none
    path.write_bytes(b"\x80\x04")
    assert refusal(read, path) == "its pickle is cut off at byte 2"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_files_that_are_cut_off(path: Path, protocol: int):
    data = pickle.dumps(sliced(state_dict(ARRAYS), 20), protocol)
    for end in [*range(0, len(data), 29), *range(len(data) - 30, len(data))]:
        path.write_bytes(data[:end])
        refusal(read, path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_changed_bytes_never_raise_anything_else(path: Path, protocol: int):
    arrays = {
        "w": ARRAYS["number"],
        "x": ARRAYS["0.cell.bias_ih"],
        "e": ARRAYS["empty"],
        "b": np.array([True]),
    }
    data, draw = pickle.dumps(sliced(state_dict(arrays), 5), protocol), random.Random(protocol)
    refused = 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.choice(
                [draw.randrange(256), 0, 255, ord("h"), ord(")")]
            )
        path.write_bytes(changed)
        try:
            read(path)
        except FileError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_memory_is_that_of_the_arrays(path: Path, protocol: int):
    array = RNG.integers(0, 127, 4_000_000).astype(np.uint8)
    saved(path, {"x": array, "y": array[:1000]}, protocol)
    with memory() as peak:
        found = read(path)
        assert peak() < (1.05 if protocol > 2 else 2.05) * array.nbytes
    with memory() as peak:
        write(path.with_name("other"), found)
        assert peak() < 1 << 20


@pytest.mark.parametrize("code", DTYPES)
def test_what_is_written_paddle_reads(path: Path, code: str):
    dtype = DTYPES[code]
    array = np.frombuffer(RNG.bytes(12 * dtype.itemsize), np.dtype(code)).reshape(3, 4).view(dtype)
    array = array if code != "b1" else RNG.integers(0, 2, (3, 4)).astype(bool)
    arrays = {
        "plain": array,
        "transposed": array.T,
        "number": array[1, 2].reshape(()),
        "empty": array[:0],
        "turned": array.astype(dtype.newbyteorder(">")) if code != "u2" else array,
        "weiß": np.broadcast_to(array[0], (2, 4)),
    }
    write(path, arrays)
    check(path, {name: np.asarray(value, dtype) for name, value in arrays.items()})
    with open(path, "rb") as stream:
        known = pickle.load(stream, encoding="latin1")  # as paddle.load does
    assert list(known) == list(arrays)
    for name, value in arrays.items():
        assert known[name].dtype == np.dtype(code)
        assert known[name].shape == value.shape
        assert known[name].tobytes() == np.asarray(value, dtype).tobytes()


def test_what_is_not_written(path: Path):
    for array, text in [
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.zeros(2, np.uint16), "uint16"),
    ]:
        with pytest.raises(FileError) as caught:
            write(path, {"w": array})
        assert str(caught.value) == f"{path}: 'w' is of dtype {text}, which Paddle does not have"
    with pytest.raises(FileError, match=r"'a\\n' cannot be a name, as it cannot be printed$"):
        write(path, {"a\n": np.zeros(1)})
    assert os.listdir(path.parent) == []
    write(path, {})
    assert read(path) == {}
