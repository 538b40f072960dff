"""A SavedModel of which something is cut off, changed, missing or another model's: refused, or the same."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import unpacked

from stepnet.errors import FileError
from stepnet.files import checksums
from stepnet.files.checksums import crc32c
from stepnet.files.formats import read

SAVED = Path(__file__).parent.parent / "peers" / "corpus" / "saved" / "tensorflow.tar.xz"
INDEX, NUMBERS = "variables/variables.index", "variables/variables.data-00000-of-00001"
METADATA = "keras_metadata.pb"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that Keras 2 saved."""
    folder = tmp_path_factory.mktemp("saved")
    unpacked(SAVED, folder)
    return folder / "saved", folder / "lite"


def held(folder: Path) -> Any:
    """What is read of the layers of a model."""
    return [
        (one.name, one.layouts, one.semantics, {own: array.tobytes() for own, array in one.arrays.items()})
        for one in read(folder).modules
    ]


def spoilt(data: bytes, draw: random.Random) -> bytes:
    """Bytes of which the end or a few are not what they were."""
    if draw.random() < 0.3:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 10))):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("file", [INDEX, NUMBERS, METADATA, "saved_model.pb", "fingerprint.pb"])
def test_what_is_read_of_a_spoilt_model_is_right(models: tuple[Path, Path], tmp_path: Path, file: str):
    """One changed bit of a weight is told by the checksum that the index has of it."""
    folder, refused = tmp_path / "model", 0
    shutil.copytree(models[0], folder)
    whole, data, draw = held(folder), (folder / file).read_bytes(), random.Random(0)
    for _ in range(40):
        (folder / file).write_bytes(spoilt(data, draw))
        try:
            found = held(folder)
        except FileError:
            refused += 1
        else:
            assert found == whole
    assert refused > 20 or file in ("saved_model.pb", "fingerprint.pb")  # which nothing is read of


@pytest.mark.parametrize("file", [INDEX, NUMBERS])
def test_what_is_missing_or_another_models_is_refused(models: tuple[Path, Path], tmp_path: Path, file: str):
    folder = tmp_path / "model"
    shutil.copytree(models[0], folder)
    (folder / file).unlink()
    with pytest.raises(FileError):
        read(folder)
    shutil.copy(models[1] / file, folder / file)
    with pytest.raises(FileError):
        read(folder)


def test_names_that_no_variable_has(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Somebody may have made the checksums anew."""
    folder = tmp_path / "model"
    shutil.copytree(models[0], folder)
    data = (folder / NUMBERS).read_bytes()
    (folder / NUMBERS).write_bytes(data.replace(b"/.ATTRIBUTES/", b"/.ATTRIBUTED/"))
    with pytest.raises(FileError, match="its graph of objects is damaged: its checksum is wrong"):
        read(folder)
    monkeypatch.setattr(checksums, "is_whole", lambda *_: True)
    with pytest.raises(FileError, match=r"kernel is 'variables/0/\.ATTRIBUTED/VARIABLE_VALUE', of which"):
        read(folder)


def one_by_one(data: bytes) -> int:
    """The checksum as RFC 3720 has it, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (checksums.POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [0, 1, 3, 1023, 1024, 1025, 4096, 33_000, (1 << 20) + 2])
def test_checksums_of_any_length(size: int):
    """Of one block, of several, and where the first four bytes lie in two of them."""
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    few = data[: 1 << 13]
    assert crc32c(few) == one_by_one(few)
    table, crc = checksums.bytewise(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    assert crc32c(data) == crc ^ 0xFFFFFFFF
