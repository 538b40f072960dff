"""Every reader counts what it takes: `--most` bounds the arrays of each kind of file, and small files of a
great many arrays take no more memory than is stated.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from originals import Original, originals

from stepnet.errors import FileError
from stepnet.layout.files import read
from stepnet.layout.files.store import SPARE, TIMES
from tests.layout.files.readers import Reading

ORIGINALS = {f"{one.kind} {one.name}": one for one in originals() if one.name.startswith("written")}


def held(original: Original, folder: Path) -> Path:
    for name, data in original.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder / original.main


@pytest.mark.parametrize("name", ORIGINALS)
def test_less_than_the_arrays_of_a_file_is_not_enough(tmp_path: Path, name: str):
    path = held(ORIGINALS[name], tmp_path)
    model = read(path)
    arrays = [array for module in model.modules for array in module.arrays.values()] + [*model.rest.values()]
    most = sum(array.nbytes for array in arrays) - 1
    assert most > 0
    for few in (10, most):
        with pytest.raises(FileError, match=f"would fill more than {few} bytes of memory"):
            read(path, most=few)


def many_in_safetensors(folder: Path, count: int) -> Path:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"b{n}.bias": empty for n in range(count)}, separators=(",", ":")).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder / "model.safetensors"


def many_in_mxnet(folder: Path, count: int) -> Path:
    names = [b"b%d_l0_i2h_bias" % n for n in range(count)]
    array = struct.pack("<Iiiqiii", 0xF993FAC9, 0, 1, 0, 1, 0, 0)
    listed = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    head, middle = struct.pack("<QQQ", 0x112, 0, count), struct.pack("<Q", count)
    (folder / "model.params").write_bytes(head + array * count + middle + listed)
    return folder / "model.params"


@pytest.mark.long
@pytest.mark.parametrize("make", [many_in_safetensors, many_in_mxnet])
def test_many_empty_arrays_take_no_more_than_is_stated(
    tmp_path: Path, reading: Reading, make: Callable[[Path, int], Path], pytestconfig: pytest.Config
):
    path = make(tmp_path, 100_000 if pytestconfig.option.long else 25_000)
    count, _ = reading.taken(path)
    assert count < 2 * SPARE + 2 * TIMES * path.stat().st_size
