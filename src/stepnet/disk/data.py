"""Values as bytes, and back: data only, so that to read them runs nothing but what makes them.

    JSON     rows, a table of objects: [class, fields...], each after those that it refers to; and the value
    blobs    the bytes of arrays and of `bytes`, one after the other

A number, a text, a truth value and None stand for themselves, and a tuple is a list. All else is written as
an object of one key: {"r": row} {"l": list} {"d": pairs of a dict} {"s": members of a frozenset}
{"b": bytes} {"a": array}. Equal objects are written once, and are one object when they are read.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

import numpy as np

PLAIN = (int, float, str, bool, type(None))
HEAD = 8
"""The bytes that hold the length of the JSON."""


class NotDataError(Exception):
    """A value that cannot be written as data."""


class Form:
    """The form of values that are made of these dataclasses.

    shortcuts: for classes whose own checks take long, what makes an object of its fields without them.

    >>> from stepnet.net.types import Literal, Type
    >>> form = Form(Type, Literal)
    >>> value = {"types": (Type(("rows",), (2,), "float32"),) * 2, "data": b"abc", "numbers": [1, 2.5, None]}
    >>> form.unpacked(form.packed(value)) == value
    True
    """

    def __init__(self, *classes: type, shortcuts: Mapping[type, Callable[..., Any]] | None = None) -> None:
        self.classes = {each: place for place, each in enumerate(classes)}
        self.names = [[field.name for field in fields(each)] for each in classes]
        self.makers = [(shortcuts or {}).get(each, each) for each in classes]

    def packed(self, value: Any) -> bytes:
        """The bytes of a value; raises `NotDataError` for what is no data."""
        writer = Writer(self)
        text = json.dumps(
            {"value": writer.written(value), "rows": writer.rows}, separators=(",", ":")
        ).encode()
        return b"".join([len(text).to_bytes(HEAD, "little"), text, *writer.blobs])

    def unpacked(self, data: bytes) -> Any:
        """The value that bytes stand for."""
        end = HEAD + int.from_bytes(data[:HEAD], "little")
        document = json.loads(data[HEAD:end])
        reader = Reader(self, memoryview(data)[end:])
        for place, *row in document["rows"]:
            reader.objects.append(self.makers[place](*map(reader.read, row)))
        return reader.read(document["value"])


class Writer:
    """The rows and blobs of a value while it is written."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.rows = list[Any]()
        self.known = dict[str, int]()
        self.seen = dict[int, tuple[Any, int]]()
        self.blobs = list[bytes]()
        self.size = 0

    def written(self, value: Any) -> Any:
        """A value as JSON."""
        kind = cast("type[Any]", type(value))
        if kind in PLAIN:
            return value
        if kind is tuple:
            return [self.written(each) for each in value]
        if kind is list:
            return {"l": [self.written(each) for each in value]}
        if kind is dict:
            return {"d": [[self.written(each) for each in pair] for pair in value.items()]}
        if kind is frozenset:
            return {"s": [self.written(each) for each in sorted(value)]}
        if kind is bytes:
            return {"b": self.blob(value)}
        if kind is np.ndarray:
            return {"a": self.array(value)}
        if kind in self.form.classes:
            return {"r": self.row(value)}
        raise NotDataError(f"{kind.__qualname__} is not written as data")

    def row(self, value: Any) -> int:
        """The number of an object's row."""
        if id(value) in self.seen:
            return self.seen[id(value)][1]
        place = self.form.classes[type(value)]
        row = [place, *(self.written(getattr(value, name)) for name in self.form.names[place])]
        number = self.known.setdefault(json.dumps(row), len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
        self.seen[id(value)] = value, number  # held, so that no other object takes its place
        return number

    def blob(self, data: bytes) -> list[int]:
        """Where bytes begin among the blobs, and how many they are."""
        self.blobs.append(data)
        self.size += len(data)
        return [self.size - len(data), len(data)]

    def array(self, value: np.ndarray) -> list[Any]:
        """An array: its dtype, its shape and where its bytes are."""
        if value.dtype.names is not None or np.dtype(value.dtype.name) != value.dtype:
            raise NotDataError(f"an array of {value.dtype} is not written as data")
        return [value.dtype.name, list(value.shape), *self.blob(value.tobytes())]


class Reader:
    """The objects and blobs while a value is read."""

    def __init__(self, form: Form, blobs: memoryview) -> None:
        self.form, self.blobs = form, blobs
        self.objects = list[Any]()

    def read(self, value: Any) -> Any:
        """The value that JSON stands for."""
        kind = cast("type[Any]", type(value))
        if kind is list:
            return tuple([self.read(each) for each in value])
        if kind is not dict:
            return value
        ((key, inside),) = value.items()
        if key == "r":
            return self.objects[inside]
        if key == "l":
            return [self.read(each) for each in inside]
        if key == "d":
            return {self.read(name): self.read(each) for name, each in inside}
        if key == "s":
            return frozenset(map(self.read, inside))
        if key == "b":
            return self.blob(*inside)
        dtype, shape, *place = inside
        return np.frombuffer(self.blob(*place), np.dtype(dtype)).reshape(shape)

    def blob(self, start: int, count: int) -> bytes:
        """Bytes among the blobs."""
        return bytes(self.blobs[start : start + count])
