"""Raw buffers with a JSON beside them: bit by bit, never out of their folder, and a FileError at most."""

import json
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from containers import Array, assert_same, refusal, samples, words_of
from memory import memory

from stepnet.errors import LayoutError
from stepnet.layout.files import Module
from stepnet.layout.files.jsons import LARGEST
from stepnet.layout.files.raw import buffers, read, write, write_buffers

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.json"


def arrays_of(path: Path) -> dict[str, Array]:
    return buffers(path)[0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_read(path: Path, dtype: Any):
    arrays = samples(dtype)
    write_buffers(path, arrays, {"layout": "cudnn.gru"})
    assert_same(arrays_of(path), arrays)
    assert_same(arrays_of(path.with_suffix(".bin")), arrays)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_buffer_is_the_bytes_of_the_arrays(path: Path, dtype: Any):
    """Little-endian, by rows, each array at a multiple of 64 bytes."""
    arrays = samples(dtype)
    write_buffers(path, arrays, {})
    said, data = json.loads(path.read_text()), path.with_suffix(".bin").read_bytes()
    assert (said["format"], said["byteorder"], said["file"]) == ("stepnet raw 1", "little", "weights.bin")
    assert said["dtype"] == np.dtype(dtype).name
    end = 0
    for entry, (name, array) in zip(said["arrays"], arrays.items(), strict=True):
        assert (entry["name"], entry["shape"]) == (name, list(array.shape))
        assert entry["offset"] == end + -end % 64
        end = entry["offset"] + array.nbytes
        words = words_of(array)
        assert data[entry["offset"] : end] == words.astype(words.dtype.newbyteorder("<")).tobytes()
    assert len(data) == end


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", [0, 1, 64])
def test_a_buffer_of_the_other_order_and_anywhere(path: Path, dtype: Any, offset: int):
    plain = samples(dtype)["plain"]
    words = words_of(plain)
    path.with_suffix(".bin").write_bytes(
        bytes(offset) + words.astype(words.dtype.newbyteorder(">")).tobytes()
    )
    path.write_text(said(dtype=np.dtype(dtype).name, byteorder="big", shape=[4, 6], offset=offset))
    assert_same(arrays_of(path), {"weight_space": plain})


def test_a_module_comes_back_with_what_is_said_of_it(path: Path):
    numbers = np.arange(63, dtype="f4")
    sizes, semantics = {"inputs": 2, "hidden": 3, "layers": 1, "directions": 1}, {"reset": "after"}
    module = Module("", ("cudnn.gru",), {"weight_space": numbers}, sizes=sizes, semantics=semantics)
    write(path, (module,), {}, force=False)
    (found,) = read(path).modules
    assert (found.layout, found.sizes, found.semantics) == ("cudnn.gru", sizes, semantics)
    assert_same(found.arrays, {"weight_space": numbers})


NOT_WRITTEN = {
    "two dtypes": (
        {"a": np.ones(1), "b": np.ones(1, "f4")},
        "a raw buffer is of one dtype of float64, float32, float16, bfloat16, not ",
    ),
    "whole numbers": ({"a": np.ones(1, int)}, "float16, bfloat16, not int64"),
    "none": ({}, "a raw buffer is of one dtype of"),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_the_format_lacks_is_not_written(path: Path, name: str):
    arrays, expected = NOT_WRITTEN[name]
    assert expected in refusal(lambda path: write_buffers(path, arrays, {}), path)
    assert not list(path.parent.iterdir())


def test_several_modules_and_other_arrays_are_not_written(path: Path):
    module = Module("", ("cudnn.gru",), {"weight_space": np.ones(63)})
    for modules, rest in [((module, module), {}), ((), {}), ((module,), {"head": np.ones(1)})]:
        said = refusal(lambda path, m=modules, r=rest: write(path, m, r, force=False), path)
        question = "module" if len(modules) != 1 else "rest"
        option = f"--{question} .* [(]Python: {question}="
        assert re.match(f"a raw buffer holds one recurrent module and nothing else; say {option}", said)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("there", ["weights.json", "weights.bin"])
def test_neither_file_is_replaced_unless_forced(path: Path, there: str):
    (path.parent / there).write_text("mine")
    with pytest.raises(Exception, match=f"{there}: the file is there already; --force"):
        write_buffers(path, {"a": np.ones(1)}, {})
    assert [(one.name, one.read_text()) for one in path.parent.iterdir()] == [(there, "mine")]
    write_buffers(path, {"a": np.ones(1)}, {}, force=True)
    assert_same(arrays_of(path), {"a": np.ones(1)})


# ---- what is no such file ----------------------------------------------------------------------------------

KNOWN = {"format": "stepnet raw 1", "layout": "cudnn.gru", "dtype": "float32", "byteorder": "little"}


def said(shape: Any = (4,), offset: Any = 0, **other: Any) -> str:
    entry = {"name": "weight_space", "shape": shape, "offset": offset}
    return json.dumps({**KNOWN, "arrays": [entry], **other})


def entries(*places: tuple[str, Any, Any]) -> str:
    return said(arrays=[{"name": name, "shape": shape, "offset": offset} for name, shape, offset in places])


NO_PLACE = "an array in it has no name, shape and offset"
NO_NAME = "which is no name in its folder"
NO_KIND = "it does not say dtype, byteorder and arrays as a raw buffer's description does"
NO_WORDS = "sizes and semantics are numbers or words by name"
FOREIGN = {
    "empty": ("", "its text is no JSON (Expecting value"),
    "no JSON": ("{", "its text is no JSON (Expecting property name"),
    "deep": ("[" * 100_000, "its text is no JSON (maximum recursion depth exceeded"),
    "many digits": (said(offset=0).replace("0}", "9" * 5000 + "}"), "its text is no JSON (Exceeds the limit"),
    "another JSON": ('{"format": "x"}', 'this is not a description of a raw buffer: it has no "format"'),
    "a list": ("[]", "its text is no JSON object"),
    "up": (said(file="../weights.bin"), f"its file is '../weights.bin', {NO_NAME}"),
    "absolute": (said(file="/etc/passwd"), f"its file is '/etc/passwd', {NO_NAME}"),
    "here": (said(file="."), f"its file is '.', {NO_NAME}"),
    "above": (said(file=".."), f"its file is '..', {NO_NAME}"),
    "below": (said(file="inner/weights.bin"), f"its file is 'inner/weights.bin', {NO_NAME}"),
    "no file": (said(file=""), f"its file is '', {NO_NAME}"),
    "a number": (said(file=5), f"its file is 5, {NO_NAME}"),
    "no layout": (said(layout="cudnn.grus"), "its layout is 'cudnn.grus', which is unknown"),
    "a list of layouts": (said(layout=["cudnn.gru"]), "its layout is ['cudnn.gru'], which is unknown"),
    "a dtype": (said(dtype="int8"), NO_KIND),
    "a list as dtype": (said(dtype=[]), NO_KIND),
    "an order": (said(byteorder="middle"), NO_KIND),
    "no arrays": (said(arrays=None), NO_KIND),
    "arrays that are none": (said(arrays=[5]), NO_PLACE),
    "no place": (said(offset=None), NO_PLACE),
    "below none": (said(offset=-4), NO_PLACE),
    "a fraction": (said(offset=0.5), NO_PLACE),
    "true": (said(shape=[True]), NO_PLACE),
    "a negative shape": (said(shape=[-4, -1]), NO_PLACE),
    "a shape of texts": (said(shape=["4"]), NO_PLACE),
    "a name that is none": (entries((5, [1], 0)), NO_PLACE),  # type: ignore[arg-type]
    "beyond the end": (
        said(offset=241),
        "'weight_space' of shape (4,) at byte 241 does not lie in 256 bytes",
    ),
    "a petabyte": (said(shape=[1 << 48]), f"of shape ({1 << 48},) at byte 0 does not lie in 256 bytes"),
    "a petabyte that is empty": (said(shape=[0, 1 << 62]), f"of shape (0, {1 << 62}) at byte 0 does not lie"),
    "many axes": (said(shape=[1] * 33), "at byte 0 does not lie in 256 bytes"),
    "very many axes": (said(shape=[1] * 100_000), "at byte 0 does not lie in 256 bytes"),
    "far away": (said(offset=1 << 200), "does not lie in 256 bytes"),
    "two of a name": (entries(("a", [1], 0), ("a", [1], 4)), "it has two arrays of the name 'a'"),
    "shared bytes": (entries(("a", [2], 0), ("b", [2], 4)), "arrays in it share bytes"),
    "bytes shared across": (
        entries(("a", [9], 0), ("b", [1], 40), ("c", [1], 8)),
        "arrays in it share bytes",
    ),
    "sizes": (said(sizes=[1]), NO_WORDS),
    "sizes of words": (said(sizes={"hidden": "x"}), NO_WORDS),
    "semantics": (said(semantics={"reset": ["after"]}), NO_WORDS),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_description_is_refused_in_one_sentence(path: Path, name: str):
    text, expected = FOREIGN[name]
    path.write_text(text)
    path.with_suffix(".bin").write_bytes(bytes(256))
    with memory() as peak:
        assert expected in refusal(read, path)
        assert peak() < 16 << 20


def test_arrays_of_no_numbers_share_nothing(path: Path):
    path.with_suffix(".bin").write_bytes(bytes(256))
    path.write_text(entries(("a", [2, 0], 4), ("b", [4], 0), ("c", [0], 4)))
    assert {name: array.shape for name, array in arrays_of(path).items()} == {
        "a": (2, 0),
        "b": (4,),
        "c": (0,),
    }


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"hidden": 0}, "hidden is a whole number from 1 on, not 0"),
        ({"hidden": -3}, "hidden is a whole number from 1 on, not -3"),
        ({"hidden": 10**30}, "hidden is 16777216 at most, not 1000000000000000000000000000000"),
        ({"hiden": 3}, "no size is called 'hiden'; there are inputs, hidden, "),
        ({"hidden": True}, "hidden is a whole number from 1 on, not True"),
    ],
)
def test_sizes_that_cannot_be_are_refused_where_they_are_used(
    path: Path, sizes: dict[str, int], problem: str
):
    path.with_suffix(".bin").write_bytes(bytes(256))
    path.write_text(said(shape=[63], sizes=sizes))
    (module,) = read(path).modules
    with pytest.raises(LayoutError, match=f"^{problem}"):
        module.solved_sizes()


def test_a_buffer_is_never_followed_out_of_its_folder(path: Path, tmp_path: Path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "weights.bin").write_bytes(bytes(256))
    os.symlink("secret/weights.bin", tmp_path / "weights.bin")
    path.write_text(said())
    assert refusal(read, path) == "its file 'weights.bin' is a link out of its folder"
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "real.bin").write_bytes(bytes(256))
    os.symlink("real.bin", tmp_path / "weights.bin")
    assert_same(arrays_of(path), {"weight_space": np.zeros(4, "f4")})


def test_files_that_are_not_there_or_none(path: Path):
    assert refusal(read, path) == "there is no such file"
    path.write_text(said())
    buffer = path.with_suffix(".bin")
    assert refusal(lambda _: read(path), buffer) == "there is no such file"
    buffer.mkdir()
    assert refusal(lambda _: read(path), buffer) == "this is a folder, not a file"
    buffer.rmdir()
    os.mkfifo(buffer)
    assert refusal(lambda _: read(path), buffer) == "this is a device, not a file"
    path.write_text(said(file="a\0b"))
    with pytest.raises(Exception, match="there is no such file"):
        read(path)
    os.truncate(path, LARGEST + 1)
    assert refusal(read, path) == f"it is larger than any index or description ({LARGEST} bytes)"


def written(path: Path) -> bytes:
    arrays = {"a": np.ones((2, 3), "f4"), "b": np.ones(5, "f4")}
    write_buffers(
        path, arrays, {"layout": "cudnn.gru", "sizes": {"hidden": 3}, "semantics": {"reset": "after"}}
    )
    return path.read_bytes().rstrip()
