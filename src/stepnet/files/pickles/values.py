"""What pickles are made of, as plain values: the records, a walk over them, and their writing.

A pickle that was read (`stepnet.files.pickles.opcodes.load`) is a tree of None, bool, int, float, str,
bytearray, tuple, list, `Pairs`, `Name` and `Call`. Parts of a hostile one may be shared a thousandfold, or
hold themselves: so `leaves` counts its steps.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from stepnet.errors import FileError
from stepnet.files.store import OBJECT, Store

STEPS = 1 << 22  # of a walk
DEPTH = 100  # containers within containers
LEAF = 8 * OBJECT  # bytes of what is kept of an array besides its numbers and its name, about
NAME = 1000  # characters of an array's name


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A class or a function by its full name, such as `torch.FloatStorage`; nothing is imported."""

    text: str


@dataclass(slots=True, eq=False)
class Call:
    """What a pickle asks to be called, with the state it wants set afterwards, and the items it wants put
    into a class made of lists or dictionaries; nothing is called.
    """

    name: str
    arguments: tuple[object, ...]
    state: object = None
    items: list[tuple[object, object]] = field(default_factory=list[tuple[object, object]])


@dataclass(slots=True, eq=False)
class Pairs:
    """A dictionary of any kind, as its keys and values in order."""

    items: list[tuple[object, object]]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """For `dump`: what lies outside the pickle, by the identity that it has there."""

    identity: object


Write = Callable[[bytes | memoryview], object]
Inside = Callable[[object], Iterable[tuple[object, object]]]


def leaves(
    root: object, wanted: Callable[[object], bool], inside: Inside | None = None
) -> Iterator[tuple[str, object]]:
    """The wanted values of a tree with their names: the keys and numbers that lead to them, joined by dots.

    inside: the values in one, with their keys; without it, those of dictionaries, lists and tuples. What else
    a tree holds is passed over. Raises `FileError`, a short sentence without the path, where two
    have one name, a key is no text or number, or the tree is too deep or too large.

    >>> tree = Pairs([("epoch", 3), ("model", Pairs([("weight", 1.5)])), ("list", [2.5, 3.5])])
    >>> list(leaves(tree, lambda value: isinstance(value, float)))
    [('model.weight', 1.5), ('list.0', 2.5), ('list.1', 3.5)]
    """
    around: list[Iterator[tuple[tuple[object, ...], object]]] = [iter([((), root)])]
    found: set[str] = set()
    store, steps = Store(None, 0), 0
    while around:
        place, value = next(around[-1], (None, None))
        if place is None:
            around.pop()
            continue
        steps += 1 + len(place)  # places are as long as they are deep
        if steps > STEPS:
            raise FileError("its dictionaries and lists share too many parts, or are too many")
        if wanted(value):
            name = joined(place)
            if name in found:
                raise FileError(f"it holds two arrays of the name {name!r}")
            store.take(LEAF + len(name), "its arrays and their names")
            found.add(name)
            yield name, value
        elif holds(value) or (inside and isinstance(value, Call)):
            if len(place) > DEPTH:
                raise FileError(f"its dictionaries and lists nest deeper than {DEPTH}")
            around.append(below(place, (inside or children)(value)))


def below(
    place: tuple[object, ...], items: Iterable[tuple[object, object]]
) -> Iterator[tuple[tuple[object, ...], object]]:
    """The items of a container, each with its place in place of its key."""
    for key, child in items:
        yield (*place, key), child


def holds(value: object) -> bool:
    """Whether a value is a container."""
    return isinstance(value, Pairs | list | tuple)


def children(value: object) -> Iterable[tuple[object, object]]:
    """The values in a container with their keys."""
    if isinstance(value, Pairs):
        return value.items
    return enumerate(cast(list[object], value)) if isinstance(value, list | tuple) else ()


def parts(value: object) -> tuple[object, ...]:
    """The values in a tuple; none for any other value."""
    return cast(tuple[object, ...], value) if isinstance(value, tuple) else ()


def are_counts(value: object) -> bool:
    """Whether a value is a tuple of numbers from 0 on, as many and as large as an array can have."""
    numbers = parts(value)
    if not isinstance(value, tuple) or len(numbers) > 64:
        return False
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def is_shape(value: object) -> bool:
    """Whether a value is a shape that an array can have, if there is memory for it."""
    return (
        are_counts(value) and math.prod(max(length, 1) for length in cast(tuple[int, ...], value)) < 1 << 58
    )


def joined(place: tuple[object, ...]) -> str:
    """The name of the value at a place, where it can be one: printable and not too long."""
    for key in place:
        if not isinstance(key, str | int | float | None):
            kind = type(key).__name__
            raise FileError(
                f"it holds an array under a key that is a {kind}, which makes no name; use a text"
            )
    if sum(len(key) if isinstance(key, str) else 1 for key in place) > NAME:
        raise FileError(f"it holds an array with a name of more than {NAME} characters")
    name = ".".join(str(key) for key in place)
    if not name.isprintable():
        raise FileError(f"it holds an array of the name {name!a}, which cannot be printed")
    return name


def dump(value: object, write: Write, protocol: int) -> None:
    r"""Writes a pickle of what `leaves` walks over, of a `Reference`, and of an array as its bytes.

    >>> dump(Pairs([("a", (1, None))]), print, 2)
    b'\x80\x02'
    b'}('
    b'X\x01\x00\x00\x00a'
    b'('
    b'J\x01\x00\x00\x00'
    b'N'
    b't'
    b'u'
    b'.'
    """
    write(bytes([0x80, protocol]))
    put(value, write)
    write(b".")


def put(value: object, write: Write) -> None:
    """Writes the opcodes that push a value."""
    match value:
        case None | bool():
            write({None: b"N", True: b"\x88", False: b"\x89"}[value])
        case int():
            short = -(2**31) <= value < 2**31
            write(struct.pack("<ci", b"J", value) if short else struct.pack("<2sq", b"\x8a\x08", value))
        case str():
            write(struct.pack("<cI", b"X", len(value.encode())) + value.encode())
        case Name():
            module, _, name = value.text.rpartition(".")
            write(f"c{module}\n{name}\n".encode())
        case np.ndarray():
            data = memory(value)
            size = data.nbytes
            write(struct.pack("<cI", b"B", size) if size < 2**32 else struct.pack("<cQ", b"\x8e", size))
            write(data)
        case tuple():
            put_all(b"(", cast(tuple[object, ...], value), b"t", write)
        case Pairs():
            put_all(b"}(", tuple(part for pair in value.items for part in pair), b"u", write)
        case Reference():
            put_all(b"", (value.identity,), b"Q", write)
        case Call(state=None):
            put_all(b"", (Name(value.name), value.arguments), b"R", write)
        case Call():
            put_all(b"", (Call(value.name, value.arguments), value.state), b"b", write)
        case _:
            raise TypeError(f"no pickle of a {type(value).__name__}")


def memory(array: np.ndarray) -> memoryview:
    """The bytes of an array, in its axes' order and this machine's; a copy only where they are not so yet."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8).data


def put_all(before: bytes, values: tuple[object, ...], behind: bytes, write: Write) -> None:
    """Writes the opcodes that push some values, between others."""
    if before:
        write(before)
    for value in values:
        put(value, write)
    write(behind)
