"""Files spoilt at random, each from its number alone: flipped, cut, doubled, spliced, with extremes."""

import random
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Literal

from originals import Original

Spoil = Callable[[random.Random, bytearray, bytes], None]
EXTREMES = (0, 1, -1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 62) + 1, -(1 << 63))


def place(draw: random.Random, data: bytearray) -> int:
    """A place in the bytes; often one of the first or the last, where lengths and offsets lie."""
    spot = draw.randrange(len(data) + 1)
    return draw.choice(
        [spot, spot, min(spot, draw.randrange(256)), max(spot, len(data) - draw.randrange(256))]
    )


def flip(draw: random.Random, data: bytearray, other: bytes) -> None:
    """A bit turned round, or a byte made any other."""
    if data:
        data[place(draw, data) % len(data)] ^= draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])


def extreme(draw: random.Random, data: bytearray, other: bytes) -> None:
    """A number as small or as large as it can be, or beside a length of the file."""
    width = draw.choice([1, 2, 4, 8])
    number = draw.choice([*EXTREMES, len(data), len(data) + 1, draw.randrange(len(data) + 1)])
    at = min(place(draw, data), max(0, len(data) - width)) // draw.choice([1, width]) * 1
    orders: list[Literal["little", "big"]] = ["little", "little", "big"]
    order = draw.choice(orders)
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)


def remove(draw: random.Random, data: bytearray, other: bytes) -> None:
    """A piece left out."""
    at = place(draw, data)
    del data[at : at + draw.choice([1, 2, 4, 8, 64, draw.randrange(1, 1000)])]


def double(draw: random.Random, data: bytearray, other: bytes) -> None:
    """A piece written twice, or once more elsewhere, now and then a thousand times."""
    at = place(draw, data)
    piece = data[at : at + draw.choice([1, 4, 16, 100, 1000])]
    where = draw.choice([at, place(draw, data)])
    data[where:where] = piece * draw.choice([1, 1, 1, 2, 1000 if len(piece) < 100 else 1])


def splice(draw: random.Random, data: bytearray, other: bytes) -> None:
    """A piece of another file in place of one of its own."""
    at, length = place(draw, data), draw.choice([4, 16, 100, 1000])
    start = draw.randrange(len(other) + 1)
    data[at : at + length] = other[start : start + length]


def truncate(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Cut off."""
    del data[place(draw, data) :]


SPOILS: Sequence[Spoil] = (flip, flip, flip, extreme, extreme, extreme, remove, double, splice, truncate)


def mutant(seed: int, number: int, originals: Sequence[Original]) -> Original:
    """The mutant of that number: one file of an original spoilt in one to four ways; each kind in turn."""
    draw = random.Random(f"{seed}/{number}")
    kinds = sorted({one.kind for one in originals})
    chosen = draw.choice([one for one in originals if one.kind == kinds[number % len(kinds)]])
    name = draw.choice([chosen.main, draw.choice(sorted(chosen.files))])
    other = draw.choice(sorted(draw.choice(originals).files.items()))[1]
    spoilt = (
        spoil_member if zipfile.is_zipfile(BytesIO(chosen.files[name])) and draw.random() < 0.7 else spoil
    )
    return Original(
        f"{number}-{chosen.main}",
        chosen.main,
        {**chosen.files, name: spoilt(draw, chosen.files[name], other)},
    )


def spoil(draw: random.Random, whole: bytes, other: bytes) -> bytes:
    """Bytes spoilt in one to four ways."""
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 2, 4])):
        draw.choice(SPOILS)(draw, data, other)
    return bytes(data)


def spoil_member(draw: random.Random, whole: bytes, other: bytes) -> bytes:
    """A zip with one member spoilt, and its checksum right again."""
    made = BytesIO()
    with zipfile.ZipFile(BytesIO(whole)) as archive, zipfile.ZipFile(made, "w") as new:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
        target = draw.choice(sorted(members))
        for name, data in members.items():
            member = zipfile.ZipInfo(name)
            new.writestr(member, spoil(draw, data, other) if name == target else data)
    return made.getvalue()
