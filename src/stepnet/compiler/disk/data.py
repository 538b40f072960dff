"""Serialization of values as plain data. To read it calls only the constructors of known classes.

    JSON     rows: a table of objects, [class, fields...], each after the objects that it refers to; the value
    blobs    the bytes of arrays and of `bytes`, end to end

Numbers, texts, booleans and None are written as in JSON, and a tuple as a list. Everything else is an object
with one key: {"r": row} {"l": list} {"d": pairs of a dict} {"s": members of a frozenset} {"b": bytes} {"a":
array} {"g": index of a value that the reader is given}. Equal objects are written once, and become a single
object again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np

from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.values.records import is_written_at_use

PLAIN = (int, float, str, bool, type(None))
HEAD = 8
"""The bytes of the field with the length of the JSON."""


class Serializer:
    """Serializer of values that consist of objects of given dataclasses.

    shortcuts: for classes whose checks take long, a function that makes an object from its fields without
    checks.

    >>> from stepnet.compiler.net.types import Literal, Type
    >>> form = Serializer(Type, Literal)
    >>> value = {"types": (Type(("rows",), (2,), "float32"),) * 2, "data": b"abc", "numbers": [1, 2.5, None]}
    >>> form.unpacked(form.packed(value)) == value
    True
    """

    def __init__(self, *classes: type, shortcuts: Mapping[type, Callable[..., Any]] | None = None) -> None:
        """Prepares to write and read objects of these dataclasses, by the names of their fields. shortcuts:
        for classes whose checks take long, a function that makes an object without checks.
        """
        self.classes = {class_: index for index, class_ in enumerate(classes)}
        self.names = [[field.name for field in fields(class_)] for class_ in classes]
        self.makers = [(shortcuts or {}).get(class_) or maker_of(class_) for class_ in classes]

    def packed(self, value: Any, given: Sequence[Any] = ()) -> bytes:
        """Serializes a value as bytes, from which `unpacked` restores it. Raises `NotDataError` if it
        contains objects of other classes than those that the serializer was made for.

        given: objects that are not written, as they exist when the value is read; `unpacked` is given others
            in their place.
        """
        writer = ValueWriter(self, given)
        text = json.dumps(
            {"value": writer.to_json(value), "rows": writer.rows}, separators=(",", ":")
        ).encode()
        return b"".join([len(text).to_bytes(HEAD, "little"), text, *writer.blobs])

    def unpacked(self, data: bytes, given: Sequence[Any] = ()) -> Any:
        """Restores a value from the bytes that `packed` made. Raises `NotDataError` for others.

        given: the objects in place of those that `packed` was given, in the same order.
        """
        try:
            end = HEAD + int.from_bytes(data[:HEAD], "little")
            document = json.loads(data[HEAD:end])
            reader = ValueReader(self, memoryview(data)[end:], given)
            for index, *row in document["rows"]:
                reader.objects.append(self.makers[index](*map(reader.read, row)))
            return reader.read(document["value"])
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise NotDataError(f"these bytes are no serialized value: {error}") from error


def maker_of(class_: Any) -> Callable[..., Any]:
    """Returns a function that makes an object of a dataclass from the values of all its fields, in order.

    It does what the constructor does, which the dataclass would write and compile first. A class with a
    constructor of its own is called.
    """
    if not is_written_at_use(class_):
        return class_
    names = [field.name for field in fields(class_)]
    checks = hasattr(class_, "__post_init__")

    def make(*values: Any) -> Any:
        """Makes an object, and checks it as its class does."""
        made: Any = object.__new__(class_)
        attributes: dict[str, Any] = made.__dict__
        attributes.update(zip(names, values, strict=True))
        if checks:
            made.__post_init__()
        return made

    return make


class ValueWriter:
    """Writer of one value as JSON, with a table of objects (`rows`) and bytes stored after it (`blobs`)."""

    def __init__(self, serializer: Serializer, given: Sequence[Any]) -> None:
        """Begins with no rows (objects written so far) and no blobs (bytes stored after the JSON).

        serializer: the one that has the classes that can be written. given: objects that are not written.
        """
        self.serializer = serializer
        self.given = {id(value): index for index, value in enumerate(given)}
        self.rows = list[Any]()
        self.known = dict[str, int]()
        self.seen = dict[int, tuple[Any, int]]()
        self.blobs = list[bytes]()
        self.arrays = dict[int, tuple[np.ndarray, list[Any]]]()  # by `id`, which stays unique
        self.size = 0

    def to_json(self, value: Any) -> Any:
        """Converts a value to values that `json` can write. Anything but plain values and tuples becomes a
        dict with one key, a letter for its type.

        Objects of the serializer's classes are added to the table `rows`, arrays and bytes to `blobs`, and
        the JSON refers to them. Raises `NotDataError` for objects of other classes.
        """
        kind = cast("type[Any]", type(value))
        if kind in PLAIN:
            return value
        if kind is tuple:
            return [self.to_json(item) for item in value]
        if kind is list:
            return {"l": [self.to_json(item) for item in value]}
        if kind is dict:
            return {"d": [[self.to_json(item) for item in pair] for pair in value.items()]}
        if kind is frozenset:
            return {"s": [self.to_json(item) for item in sorted(value)]}
        if kind is bytes:
            return {"b": self.blob(value)}
        if kind is np.ndarray:
            if id(value) not in self.arrays:
                self.arrays[id(value)] = value, self.array(value)
            return {"a": self.arrays[id(value)][1]}
        if id(value) in self.given:
            return {"g": self.given[id(value)]}
        if kind in self.serializer.classes:
            return {"r": self.row(value)}
        raise NotDataError(f"{kind.__qualname__} is not written as data")

    def row(self, value: Any) -> int:
        """Returns the index of an object's row in the table `rows`, by which the JSON refers to the object.

        A row has the index of the object's class and the converted fields. An object that is not in the table
        is added; equal objects share a row.
        """
        if id(value) in self.seen:
            return self.seen[id(value)][1]
        index = self.serializer.classes[type(value)]
        row = [index, *(self.to_json(getattr(value, name)) for name in self.serializer.names[index])]
        number = self.known.setdefault(json.dumps(row), len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
        self.seen[id(value)] = value, number  # keeps the object alive, so that its id stays unique
        return number

    def blob(self, data: bytes) -> list[int]:
        """Adds bytes to those that are stored after the JSON; returns their offset and their number."""
        self.blobs.append(data)
        self.size += len(data)
        return [self.size - len(data), len(data)]

    def array(self, value: np.ndarray) -> list[Any]:
        """Adds an array's bytes to those stored after the JSON; returns the array's dtype and shape, and the
        offset and number of its bytes. Raises `NotDataError` for a dtype that its name alone does not
        describe.
        """
        if value.dtype.names is not None or np.dtype(value.dtype.name) != value.dtype:
            raise NotDataError(f"an array of {value.dtype} is not written as data")
        return [value.dtype.name, list(value.shape), *self.blob(value.tobytes())]


class ValueReader:
    """Reader that restores one value from JSON and the bytes stored after it, to which the JSON refers."""

    def __init__(self, serializer: Serializer, blobs: memoryview, given: Sequence[Any]) -> None:
        """Begins to restore a value. blobs: the bytes stored after the JSON, to which it refers by offset.
        given: the objects that were not written.
        """
        self.serializer, self.blobs, self.given = serializer, blobs, given
        self.objects = list[Any]()
        self.arrays = dict[tuple[Any, ...], np.ndarray]()  # by dtype, shape and the place of their bytes

    def read(self, value: Any) -> Any:
        """Restores a value from its representation in JSON, which `ValueWriter.to_json` made: a list stands
        for a tuple, and a dict has one key, a letter that tells the type to restore.
        """
        kind = value.__class__
        if kind is list:
            return tuple([self.read(item) for item in value])
        if kind is not dict:
            return value
        ((key, inside),) = value.items()
        if key == "r":
            return self.objects[inside]
        if key == "g":
            return self.given[inside]
        if key == "l":
            return [self.read(item) for item in inside]
        if key == "d":
            return {self.read(name): self.read(item) for name, item in inside}
        if key == "s":
            return frozenset(map(self.read, inside))
        if key == "b":
            return self.blob(*inside)
        dtype, shape, *place = inside
        known = dtype, *shape, *place
        if known not in self.arrays:
            self.arrays[known] = np.frombuffer(self.blob(*place), np.dtype(dtype)).reshape(shape)
        return self.arrays[known]

    def blob(self, start: int, count: int) -> bytes:
        """Returns `count` of the bytes that are stored after the JSON, from the offset `start` on."""
        return bytes(self.blobs[start : start + count])
