"""Arrays of every bit pattern and arrangement, and files spoilt in every way, for tests of kinds of files."""

import random
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory import memory

from stepnet.errors import FileError

Array = np.ndarray[Any, np.dtype[Any]]
Reader = Callable[[Path], Any]
Writer = Callable[[Path, Mapping[str, Array]], None]


def savez(path: Path, arrays: Mapping[str, Any], **more: Any) -> None:
    """Writes arrays by name as NumPy does."""
    np.savez(path, **arrays, **more)


def unpacked(archive: Path, folder: Path) -> Path:
    """The folder, with what an archive holds."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


class Runs:
    """A hostile pickle: it asks that something is called as soon as it is read."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


def samples(dtype: Any) -> dict[str, Array]:
    """Arrays of a floating dtype: random bits, NaNs with payloads among them, in every arrangement."""
    kind = np.dtype(dtype)
    words = np.dtype(f"u{kind.itemsize}")
    bits = np.random.default_rng(0).integers(0, np.iinfo(words).max, (4, 6), words, endpoint=True)
    infinity = np.array(np.inf, kind).view(words)
    bits[1, :3] = infinity + 1, infinity + 5, (infinity + 3) | (1 << (8 * kind.itemsize - 1))
    plain = bits.view(kind)
    found = {
        "plain": plain,
        "every.second": plain[:, ::2],
        "turned": plain.T,
        "backwards": plain[::-1, ::-1],
        "cube": plain.reshape(2, 3, 4).transpose(2, 0, 1),
        "number": plain[1, 1].reshape(()),
        "nothing": np.zeros((0, 4), kind),
        "no axis but one": plain[0, :1],
    }
    if kind.kind == "f":  # bfloat16 has one order of bytes
        found["of the other order"] = bits.astype(words.newbyteorder(">")).view(kind.newbyteorder(">"))
    return found


def words_of(array: Array) -> Array:
    """The bits of an array as whole numbers."""
    order = ">" if array.dtype.byteorder == ">" else "="
    return np.ascontiguousarray(array).reshape(array.shape).view(f"{order}u{array.dtype.itemsize}")


def assert_same(found: Mapping[str, Array], given: Mapping[str, Array]) -> None:
    """Asserts that arrays have the same names, dtypes in this machine's order, shapes and bits."""
    assert found.keys() == given.keys()
    for name, array in given.items():
        expected = (name, array.dtype.newbyteorder("="), array.shape)
        assert (name, found[name].dtype, found[name].shape) == expected
        np.testing.assert_array_equal(words_of(found[name]), words_of(array), name)


def refusal(read: Reader, path: Path) -> str:
    """The message about a file, without its path, which is there once."""
    with pytest.raises(FileError) as caught:
        read(path)
    message = str(caught.value)
    assert message.count(str(path)) == 1
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message) < len(str(path)) + 500
    return message.removeprefix(f"{path}: ")


def assert_refused(read: Reader, path: Path, data: bytes, expected: str) -> None:
    """Asserts that a file of these bytes is refused with these words, and before it takes a MiB of memory."""
    path.write_bytes(data)
    with memory() as peak:
        assert expected in refusal(read, path)
        assert peak() < 1 << 20


def assert_not_written(write: Writer, path: Path, arrays: Mapping[str, Array], expected: str) -> None:
    """Asserts that arrays are refused with these words, and that nothing is left in the folder."""
    assert refusal(lambda path: write(path, arrays), path) == expected
    assert not list(path.parent.iterdir())


def cut(whole: bytes, most: int = 400, near: int = 64) -> Iterator[bytes]:
    """Bytes cut off at many places, and at each of the first and last `near`."""
    ends = {*range(0, len(whole), max(1, len(whole) // most)), *range(min(near, len(whole)))}
    ends |= {len(whole) - 1 - place for place in range(min(near, len(whole)))}
    return (whole[:end] for end in sorted(ends))


def changed(whole: bytes, times: int, seed: int = 0) -> Iterator[bytes]:
    """Bytes with some of them changed at random: other values, runs of them, pieces left out or twice."""
    draw = random.Random(seed)
    for _ in range(times):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            start, length = draw.randrange(len(data)), draw.choice([1, 1, 1, 2, 4, 8])
            new = draw.choice(
                [draw.randbytes(length), b"\xff" * length, b"\0" * length, b"", bytes(data[:16])]
            )
            data[start : start + length] = new
        yield bytes(data)


def refused(read: Reader, path: Path, spoilt: Iterable[bytes]) -> int:
    """The number of spoilt files that are refused, each by a `FileError` with a path in their folder once,
    and by nothing else.
    """
    messages: list[str] = []
    for data in spoilt:
        path.write_bytes(data)
        try:
            read(path)
        except FileError as error:
            messages.append(str(error))
    for message in messages:
        assert message.startswith(f"{path.parent}/")
        assert (message.count(str(path.parent)), message.count("\n")) == (1, 0)
    return len(messages)
