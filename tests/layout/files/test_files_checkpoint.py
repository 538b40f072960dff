"""TensorFlow checkpoints: what TensorFlow wrote comes back whole, the rest gives a FileError and no more."""

import random
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from saved_arrays import saved_arrays

from stepnet.errors import FileError
from stepnet.layout.files.checkpoint import sstable
from stepnet.layout.files.checkpoint.file import is_checkpoint, piece_key, read
from stepnet.layout.files.checksums import crc32c, masked
from stepnet.layout.files.store import Store

DATA = Path(__file__).parent / "data"
NUMBERS = saved_arrays(DATA / "checkpoints.npz")
FILES = ("basic_lstm", "basic_lstm_v1", "lstm", "lstm_v1", "gru", "gru_2", "kinds", "kinds_v1")
TABLES = ("basic_lstm.index", "lstm.index", "gru.index", "gru_2.index", "kinds.index", "lstm_v1", "kinds_v1")


# A writer of checkpoints, in the words of the format


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    return b"".join(
        varint(field << 3) + varint(value)
        if isinstance(value, int)
        else varint(field << 3 | 2) + varint(len(value)) + value
        for field, value in fields
    )


def block(rows: Sequence[tuple[bytes, bytes]], kind: int = 0, pack: bytes | None = None) -> bytes:
    content, before = b"", b""
    for key, value in rows:
        pairs = enumerate(zip(before, key, strict=False))
        shared = next((n for n, (a, b) in pairs if a != b), min(len(before), len(key)))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    content += struct.pack("<II", 0, 1)
    content = (content if pack is None else pack) + bytes([kind])
    return content + struct.pack("<I", masked(crc32c(content)))


def tabled(*blocks: bytes, rows: Sequence[tuple[bytes, bytes]] | None = None) -> bytes:
    """A table of blocks; rows: what its index says of them, if that is not the truth."""
    data, truth = b"", list[tuple[bytes, bytes]]()
    for number, one in enumerate(blocks):
        truth.append((bytes([number]), varint(len(data)) + varint(len(one) - 5)))
        data += one
    index = block(truth if rows is None else rows)
    footer = varint(0) * 2 + varint(len(data)) + varint(len(index) - 5)
    return data + index + footer.ljust(40, b"\0") + sstable.MAGIC.to_bytes(8, "little")


def shape(*dimensions: int) -> bytes:
    return message(*((2, message((1, n))) for n in dimensions))


def entry(dimensions: Sequence[int], start: int, size: int, kind: int = 1, shard: int = 0) -> bytes:
    return message((1, kind), (2, shape(*dimensions)), (3, shard), (4, start), (5, size))


def piece(*places: tuple[int, int] | None) -> bytes:
    parts = (b"" if place is None else message((1, place[0]), (2, place[1])) for place in places)
    return message(*((1, part) for part in parts))


HEADER = message((1, 1), (3, message((1, 1))))


def save(folder: Path, rows: Mapping[bytes, bytes], numbers: bytes, header: bytes = HEADER) -> Path:
    (folder / "made.index").write_bytes(tabled(block(sorted({b"": header, **rows}.items()))))
    (folder / "made.data-00000-of-00001").write_bytes(numbers)
    return folder / "made"


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


# What TensorFlow wrote


@pytest.mark.parametrize("name", FILES)
def test_what_tensorflow_wrote_comes_back(name: str):
    found, start = read(DATA / name), f"{name.removesuffix('_v1')}/"
    wanted = {key.removeprefix(start): NUMBERS[key] for key in NUMBERS if key.startswith(start)}
    assert list(found) == sorted(wanted)
    for key, array in wanted.items():
        assert found[key].shape == array.shape
        dtype = np.float32 if array.dtype == np.float16 else array.dtype
        assert (found[key].dtype, found[key].flags.writeable) == (dtype, True)
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize("name", ["gru", "gru.index", "gru.data-00001-of-00002"])
def test_any_file_of_a_checkpoint_stands_for_it(name: str):
    assert is_checkpoint(DATA / name)
    assert len(read(str(DATA / name))) == 8


def test_what_is_a_checkpoint(tmp_path: Path):
    assert is_checkpoint(DATA / "lstm_v1")
    assert not is_checkpoint(DATA / "checkpoints.npz")
    assert not is_checkpoint(DATA)
    (tmp_path / "short").write_bytes(b"short")
    assert not is_checkpoint(tmp_path / "short")


# What it could have written


def test_numbers_of_a_machine_with_the_other_order_of_bytes(tmp_path: Path):
    big = HEADER + message((2, 1))
    path = save(tmp_path, {b"w": entry([2], 0, 8)}, struct.pack(">2f", 1.5, -2), big)
    np.testing.assert_array_equal(read(path)["w"], np.array([1.5, -2], np.float32))
    assert read(path)["w"].dtype.isnative


def test_pieces_along_every_axis_and_names_with_any_byte(tmp_path: Path):
    name, full = b"a\xff\x00b", np.arange(12, dtype=np.float32).reshape(3, 4)
    places = [((0, 1), None), ((1, 2), (0, 3)), ((1, 2), (3, 1))]
    rows, numbers = {}, b""
    for place in places:
        ends = [(0, n) if part is None else part for part, n in zip(place, full.shape, strict=True)]
        part = full[tuple(slice(start, start + length) for start, length in ends)]
        key = piece_key(name, tuple((0, None) if one is None else one for one in place))
        rows[key] = entry(part.shape, len(numbers), part.nbytes)
        numbers += part.tobytes()
    assert all(key.startswith(b"\0a\xff\0\0\xffb\0\1\1\2") for key in rows)
    whole = message((1, 1), (2, shape(3, 4)), *((7, piece(*place)) for place in places))
    path = save(tmp_path, {**rows, name: whole}, numbers)
    np.testing.assert_array_equal(read(path)["a\\xff\0b"], full)


def test_a_table_of_several_blocks(tmp_path: Path):
    rows = sorted((b"layer/%03d" % n, entry([1], 4 * n, 4)) for n in range(300))
    blocks = [block([(b"", HEADER), *rows[:7]]), *(block(rows[n : n + 100]) for n in range(7, 300, 100))]
    path = save(tmp_path, {}, floats(*range(300)))
    (tmp_path / "made.index").write_bytes(tabled(*blocks))
    found = read(path)
    assert [array.item() for array in found.values()] == list(range(300))


def test_a_table_packed_by_snappy(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    rows = [(b"", HEADER), *((b"layer/%03d" % n, entry([1], 4 * n, 4)) for n in range(300))]
    packed = pyarrow.Codec("snappy").compress(block(rows)[:-5], asbytes=True)
    path = save(tmp_path, {}, floats(*range(300)))
    (tmp_path / "made.index").write_bytes(tabled(block([], 1, packed)))
    assert [array.item() for array in read(path).values()] == list(range(300))


def test_snappy():
    pyarrow = pytest.importorskip("pyarrow")
    draw = random.Random(0)
    for size in (0, 1, 59, 60, 61, 255, 256, 257, 70000):
        for letters in (1, 2, 256):
            data = bytes(draw.randrange(letters) for _ in range(size))
            assert (
                sstable.unsnapped(
                    memoryview(pyarrow.Codec("snappy").compress(data, asbytes=True)), Store(None, len(data))
                )
                == data
            )
    far = b"\x0b\x18abcdefg\x0f\x07\0\0\0"  # as no packer writes it: 7 back in 4 bytes
    assert sstable.unsnapped(memoryview(far), Store(None, 8)) == b"abcdefgabcd"


# What is no checkpoint


def test_files_that_are_not_there(tmp_path: Path):
    with pytest.raises(FileError, match=r"nowhere: there is no such file, nor .*nowhere\.index$"):
        read(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"there is no such file"):
        read(tmp_path / ("long" * 5000))
    with pytest.raises(FileError, match=r"this is a folder, not a file$"):
        read(tmp_path)
    shutil.copy(DATA / "gru.index", tmp_path)
    with pytest.raises(FileError, match=r"gru\.data-00001-of-00002: there is no such file$"):
        read(tmp_path / "gru")
    shutil.copy(DATA / "gru.data-00000-of-00002", tmp_path / "other.data-00000-of-00002")
    with pytest.raises(FileError, match=r"does not end as one, and there is no .*other\.index$"):
        read(tmp_path / "other.data-00000-of-00002")


def test_numbers_that_are_cut_off(tmp_path: Path):
    for file in DATA.glob("gru.*"):
        shutil.copy(file, tmp_path)
    data = (DATA / "gru.data-00001-of-00002").read_bytes()
    (tmp_path / "gru.data-00001-of-00002").write_bytes(data[:-1])
    with pytest.raises(
        FileError, match=r"data-00001-of-00002: it is cut off: 'bid.*' lies at .* of its 215 "
    ):
        read(tmp_path / "gru")


WRONG: dict[str, tuple[dict[bytes, bytes], str]] = {
    "no such file of numbers": ({b"w": entry([2], 0, 8, shard=1)}, r"'w' cannot be 8 bytes of file 1 of 1"),
    "size is not the shape's": ({b"w": entry([3], 0, 8)}, r"'w' cannot be 8 bytes of file 0 of 1"),
    "huge": ({b"w": entry([1 << 40, 1 << 40], 0, 8)}, r"'w' cannot have \(1099511627776, .* numbers"),
    "negative": ({b"w": entry([(1 << 64) - 1], 0, 8)}, r"'w' cannot have \(18446744073709551615,\) numbers"),
    "beyond the end": ({b"w": entry([2], 8, 8)}, r"'w' lies at 8 to 16 of its 8 bytes"),
    "far beyond": ({b"w": entry([2], (1 << 64) - 8, 8)}, r"'w' lies at 18446744073709551608 to"),
    "shared": ({b"v": entry([2], 0, 8), b"w": entry([1], 4, 4)}, r"variables share bytes of it"),
    "unknown kind": ({b"w": entry([2], 0, 8, kind=13)}, r"'w' holds TensorFlow's kind 13 of numbers"),
    "no message": ({b"w": b"\x0a\xff"}, r"a number in it does not end"),
    "a group": ({b"w": b"\x0b"}, r"a message in it has a field of wire type 3"),
    "cut off": ({b"w": b"\x12\x7fabc"}, r"a message in it is cut off"),
    "a piece is missing": (
        {b"w": message((1, 1), (2, shape(2)), (7, piece((0, 2))))},
        r"a piece of 'w' is missing",
    ),
    "a piece is of another kind": (
        {
            b"w": message((1, 1), (2, shape(2)), (7, piece((0, 2)))),
            piece_key(b"w", ((0, 2),)): entry([2], 0, 8, kind=3),
        },
        r"a piece of 'w' holds another kind of numbers",
    ),
    "pieces have the sizes of others": (
        {
            b"w": message((1, 1), (2, shape(2)), (7, piece((0, 2))), (7, piece((0, 0)))),
            piece_key(b"w", ((0, 2),)): entry([1], 0, 4),
            piece_key(b"w", ((0, 0),)): entry([1], 4, 4),
        },
        r"pieces of 'w' overlap",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_entries_that_cannot_be(tmp_path: Path, name: str):
    rows, message = WRONG[name]
    path = save(tmp_path, rows, floats(1, 2))
    with pytest.raises(FileError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([(0, 2), (1, 2)], "pieces of 'w' overlap"),
        ([(0, 2)], "not all pieces of 'w' are in it"),
        ([(0, 2), (3, 2)], "a piece of 'w' does not lie in it"),
        ([(0, 2), None], "pieces of 'w' overlap"),
    ],
)
def test_pieces_that_do_not_fit(tmp_path: Path, places: list[tuple[int, int] | None], problem: str):
    rows = {}
    for place in places:
        key = piece_key(b"w", ((0, None) if place is None else place,))
        rows[key] = entry([2], 8 * len(rows), 8)
    whole = message((1, 1), (2, shape(4)), *((7, piece(place)) for place in places))
    path = save(tmp_path, {**rows, b"w": whole}, floats(1, 2, 3, 4))
    with pytest.raises(FileError, match=problem):
        read(path)


def test_indexes_that_cannot_be(tmp_path: Path):
    path = save(tmp_path, {}, b"")
    wrong = {
        tabled(block([(b"", message((1, 1), (3, message((2, 2)))))])): "one of a newer kind",
        tabled(block([(b"", b"")])): "it is not the index of a checkpoint",
        tabled(block([(b"b", b""), (b"a", b"")])): "its keys are out of order",
        tabled(block([(b"a", b"")]), block([(b"a", b"")])): "its keys are out of order",
        tabled(block([], 7)): "a block is packed in way 7",
        tabled(block([], 1, b"\x05\x00a")): "a block of it is packed wrongly",
        tabled(block([], 1, b"\x05\x01\x01")): "a block of it is packed wrongly",
        tabled(
            block([(b"", HEADER)]), rows=[(b"a", b"\0\x12"), (b"b", b"\0\x12")]
        ): "its blocks overlap|damaged",
        tabled(rows=[(b"a", varint(1 << 60) + b"\1")]): "it is cut off",
        tabled(rows=[(b"a", b"\xff")]): "a number in it does not end",
        tabled(block([], 0, b"ab")): "a block of it is too short",
        tabled(block([], 0, struct.pack("<I", 1 << 30))): "a block of it is too short",
        tabled(block([], 0, b"\5\1\0a" + struct.pack("<I", 0))): "an entry of it goes beyond its block",
        tabled(block([], 0, b"\0\1\7a" + struct.pack("<I", 0))): "an entry of it goes beyond its block",
    }
    for data, problem in wrong.items():
        (tmp_path / "made.index").write_bytes(data)
        with pytest.raises(FileError, match=problem):
            read(path)


def test_a_table_read_over_and_over_is_refused():
    one = block([], 0, bytes(400) + struct.pack("<I", 100))
    rows = [(bytes([n]), varint(0) + varint(len(one) - 5)) for n in range(100)]
    with pytest.raises(FileError, match="its blocks overlap"):
        dict(sstable.table(memoryview(tabled(one, rows=rows)), Store(None, 0)))


def test_keys_that_take_more_than_the_file_are_refused():
    rows = [varint(0) + varint(20000) + varint(0) + b"k" * 20000]
    rows += [varint(20000) + varint(2) + varint(0) + n.to_bytes(2, "big") for n in range(5000)]
    data = tabled(block([], 0, b"".join(rows) + struct.pack("<II", 0, 1)))
    with pytest.raises(FileError, match="with its keys it would fill more than"):
        for _ in sstable.table(memoryview(data), Store(None, len(data))):
            pass


def test_checkpoints_of_one_file_that_cannot_be(tmp_path: Path):
    path = tmp_path / "made"

    def save(*rows: tuple[bytes, bytes]) -> None:
        path.write_bytes(tabled(block(rows)))

    def meta(kind: int, *dimensions: int) -> tuple[bytes, bytes]:
        said = message((1, b"w"), (2, shape(*dimensions)), (3, kind), (4, piece(None)))
        return b"", message((1, message((1, said))))

    def data(field: int, numbers: bytes, name: bytes = b"w") -> tuple[bytes, bytes]:
        return b"\0", message((2, message((1, name), (2, piece(None)), (3, message((field, numbers))))))

    save(meta(1, 2), data(5, floats(1, 2)))
    np.testing.assert_array_equal(read(path)["w"], [1, 2])
    save(meta(3, 2), data(7, varint(300) + varint((1 << 64) - 1)))
    np.testing.assert_array_equal(read(path)["w"], [300, -1])
    save(meta(7, 2), data(8, b"text"))
    assert read(path) == {}
    for rows, problem in {
        (meta(1, 2), data(5, floats(1))): "not all pieces of 'w' are in it",
        (meta(1, 2), data(5, b"abc")): "'w' ends within a number",
        (meta(3, 2), data(7, b"\xff")): "a number in it does not end",
        (meta(3, 2), data(7, b"\x80" * 11 + b"\0")): "a number in it does not end",
        (meta(1, 2), data(5, floats(1, 2), b"v")): "it does not list 'v'",
        (meta(1, 2),): "not all pieces of 'w' are in it",
        (meta(11, 2),): "'w' holds TensorFlow's kind 11 of numbers",
        ((b"x", b""),): "it lists no variables",
    }.items():
        save(*rows)
        with pytest.raises(FileError, match=problem) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", TABLES)
def test_tables_cut_anywhere_are_refused(tmp_path: Path, name: str):
    """Without an end, and with what they end in moved up to the cut."""
    for file in DATA.glob(f"{name.partition('.')[0]}.*"):
        shutil.copy(file, tmp_path)
    whole = (DATA / name).read_bytes()
    for length in range(0, len(whole) - sstable.FOOTER, 7):
        for end in (b"", whole[-sstable.FOOTER :]):
            (tmp_path / name).write_bytes(whole[:length] + end)
            with pytest.raises(FileError) as caught:
                read(tmp_path / name)
            assert str(caught.value).startswith(f"{tmp_path / name}: ")
            assert ("it does not end as one" in str(caught.value)) == (not end)
