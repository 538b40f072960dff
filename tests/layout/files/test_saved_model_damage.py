"""A SavedModel of which something is missing or another model's is refused; the checksums of TensorFlow."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from containers import unpacked

from stepnet.errors import FileError
from stepnet.layout.files import checksums, read

SAVED = Path(__file__).parents[2] / "peers" / "corpus" / "saved" / "tensorflow.tar.xz"
INDEX, NUMBERS = "variables/variables.index", "variables/variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that Keras 2 saved."""
    folder = tmp_path_factory.mktemp("saved")
    unpacked(SAVED, folder)
    return folder / "saved", folder / "lite"


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
    assert checksums.crc32c(few) == one_by_one(few)
    table, crc = checksums.bytewise(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    assert checksums.crc32c(data) == crc ^ 0xFFFFFFFF
