"""The values in pickles: records for calls, names and dictionaries, a walk over them, and their writing.

A pickle that was read (`stepnet.layout.files.pickles.opcodes.load`) is a tree of None, bool, int, float, str,
bytearray, tuple, list, `Pairs`, `Name` and `PickledCall`. In a hostile file, parts of it may be shared a
thousandfold or contain themselves, so `leaves` counts its steps.
"""

import math
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import cast

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.store import OBJECT, Store

STEPS = 1 << 22  # the most of a walk over a tree
DEPTH = 100  # the deepest nesting of containers
LEAF = 8 * OBJECT  # approximate bytes of memory per array besides its numbers and its name
NAME = 1000  # characters of an array's name


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A class or a function by its full name, such as `torch.FloatStorage`; nothing is imported."""

    text: str


@dataclass(slots=True, eq=False)
class PickledCall:
    """A call that a pickle asks for, which is never made.

    state: the state to set afterwards. items: items to put into an object of a class made of lists or
    dictionaries.
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
class PersistentReference:
    """A reference to write to a pickle: to a value outside it, by its persistent id."""

    identity: object


Write = Callable[[bytes | memoryview], object]
Inside = Callable[[object], Iterable[tuple[object, object]]]


def leaves(
    root: object, is_wanted: Callable[[object], bool], inside: Inside | None = None
) -> Iterator[tuple[str, object]]:
    """Yields (name, value) for the values of a pickle's tree for which `is_wanted` is true. The name is the
    keys and numbers that lead to the value, joined by dots.

    inside: gives the values in a value, with their keys; by default those of dictionaries, lists and tuples.
    Raises `FileError`, a short sentence without the path, if two wanted values have the same name, if a key
    is no text or number, and if the tree is too deep or too large.

    >>> tree = Pairs([("epoch", 3), ("model", Pairs([("weight", 1.5)])), ("list", [2.5, 3.5])])
    >>> list(leaves(tree, lambda value: isinstance(value, float)))
    [('model.weight', 1.5), ('list.0', 2.5), ('list.1', 3.5)]
    """
    open_containers: list[Iterator[tuple[tuple[object, ...], object]]] = [iter([((), root)])]
    names: set[str] = set()
    store, steps = Store(None, 0), 0
    while open_containers:
        keys, value = next(open_containers[-1], (None, None))
        if keys is None:
            open_containers.pop()
            continue
        steps += 1 + len(keys)  # making the tuple `keys` takes a step for each level
        if steps > STEPS:
            raise FileError("its dictionaries and lists share too many parts, or are too many")
        if is_wanted(value):
            name = array_name(keys)
            if name in names:
                raise FileError(f"it holds two arrays of the name {name!r}")
            store.take(LEAF + len(name), "its arrays and their names")
            names.add(name)
            yield name, value
        elif is_container(value) or (inside and isinstance(value, PickledCall)):
            if len(keys) > DEPTH:
                raise FileError(f"its dictionaries and lists nest deeper than {DEPTH}")
            open_containers.append(prefixed_items(keys, (inside or children)(value)))


def prefixed_items(
    keys: tuple[object, ...], items: Iterable[tuple[object, object]]
) -> Iterator[tuple[tuple[object, ...], object]]:
    """Yields (keys, value) for the items of a container in a pickle, where the keys lead from the root to the
    value. keys: those that lead to the container. items: its items.
    """
    for key, child in items:
        yield (*keys, key), child


def is_container(value: object) -> bool:
    """Returns True if a value of a pickle is a container: a dictionary, list or tuple."""
    return isinstance(value, Pairs | list | tuple)


def children(value: object) -> Iterable[tuple[object, object]]:
    """Returns (key, value) of all values in a container of a pickle; () for any other value."""
    if isinstance(value, Pairs):
        return value.items
    return enumerate(cast(list[object], value)) if isinstance(value, list | tuple) else ()


def tuple_items(value: object) -> tuple[object, ...]:
    """Returns the values in a tuple of a pickle; () for any other value."""
    return cast(tuple[object, ...], value) if isinstance(value, tuple) else ()


def are_counts(value: object) -> bool:
    """Returns True if a value is a tuple of whole numbers that can be a shape, strides or offsets."""
    numbers = tuple_items(value)
    if not isinstance(value, tuple) or len(numbers) > 64:
        return False
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def is_shape(value: object) -> bool:
    """Returns True if a value of a pickle is a shape that a NumPy array can have."""
    return (
        are_counts(value) and math.prod(max(length, 1) for length in cast(tuple[int, ...], value)) < 1 << 58
    )


def array_name(keys: tuple[object, ...]) -> str:
    """Joins the keys that lead to an array in a pickle's nested containers by points; returns the result, the
    array's name. Raises `FileError` for keys other than text, numbers and None, and for a name that is
    unprintable or too long.
    """
    for key in keys:
        if not isinstance(key, str | int | float | None):
            kind = type(key).__name__
            raise FileError(
                f"it holds an array under a key that is a {kind}, which makes no name; use a text"
            )
    if sum(len(key) if isinstance(key, str) else 1 for key in keys) > NAME:
        raise FileError(f"it holds an array with a name of more than {NAME} characters")
    name = ".".join(str(key) for key in keys)
    if not name.isprintable():
        raise FileError(f"it holds an array of the name {name!a}, which cannot be printed")
    return name


def check_writable(
    path: str | Path, arrays: Mapping[str, np.ndarray], dtypes: Container[np.dtype], framework: str
) -> None:
    """Raises `FileError`, with the path, for arrays that a framework cannot hold: for names that cannot be
    printed, and for dtypes outside of `dtypes`. framework: its name, for the message.
    """
    for name, array in arrays.items():
        if not name.isprintable():
            raise FileError(f"{path}: {name!a} cannot be a name, as it cannot be printed")
        if array.dtype.newbyteorder("=") not in dtypes:
            raise FileError(f"{path}: {name!r} is of dtype {array.dtype}, which {framework} does not have")


def dump(value: object, write: Write, protocol: int) -> None:
    r"""Writes a pickle of a tree of `Pairs`, tuples and calls, of an array's bytes, or of a reference.

    write: gets the bytes in pieces. protocol: the pickle's version.

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
    """Writes the opcodes of a pickle that push a value on the stack, the inverse of reading them. write: a
    function that gets the bytes in pieces. Raises `TypeError` for values that `dump` does not take.
    """
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
        case PersistentReference():
            put_all(b"", (value.identity,), b"Q", write)
        case PickledCall(state=None):
            put_all(b"", (Name(value.name), value.arguments), b"R", write)
        case PickledCall():
            put_all(b"", (PickledCall(value.name, value.arguments), value.state), b"b", write)
        case _:
            raise TypeError(f"no pickle of a {type(value).__name__}")


def memory(array: np.ndarray) -> memoryview:
    """Returns the bytes of an array in C order and native byte order, copied only if necessary."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8).data


def put_all(before: bytes, values: tuple[object, ...], after: bytes, write: Write) -> None:
    """Writes the opcodes `before` (if any) to a pickle, then the opcodes that push each of `values`, then
    `after`. write: a function that gets the bytes in pieces.
    """
    if before:
        write(before)
    for value in values:
        put(value, write)
    write(after)
