"""The fields of a message of Protocol Buffers, read without its description.

Source: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stepnet.errors import FileError
from stepnet.files.checkpoint.sstable import varint
from stepnet.files.store import OBJECT, Store

FIELD = 2 * OBJECT  # bytes of a field, be it a number or a view of bytes, about
MESSAGE = 4 * OBJECT  # bytes of a message, about
FIXED = {1: 8, 5: 4}  # bytes of a number of fixed size, by how the wire says it


@dataclass(frozen=True)
class Message:
    """A message's fields by number: every value there was, a number or bytes, in their order.

    store: how much memory the messages in it may take.
    """

    fields: Mapping[int, tuple[int | memoryview, ...]]
    store: Store

    def number(self, field: int) -> int:
        """A field that is a number, the last one as the format asks, 0 where it is left out."""
        values = [value for value in self.fields.get(field, ()) if isinstance(value, int)]
        return values[-1] if values else 0

    def signed(self, field: int) -> int:
        """A field that is a number with a sign."""
        value = self.number(field)
        return value - (1 << 64) if value >> 63 else value

    def pieces(self, field: int) -> tuple[memoryview, ...]:
        """A field that is bytes, as often as it is there."""
        return tuple(value for value in self.fields.get(field, ()) if not isinstance(value, int))

    def messages(self, field: int) -> tuple["Message", ...]:
        """A field that is a message, as often as it is there."""
        pieces = self.pieces(field)
        self.store.room(MESSAGE * len(pieces), "its messages")
        return tuple(message(piece, self.store) for piece in pieces)

    def one(self, field: int) -> "Message":
        """A field that is a message, an empty one where it is left out."""
        pieces = self.pieces(field)
        return message(pieces[-1], self.store) if pieces else Message({}, self.store)

    def text(self, field: int) -> str:
        """A field that is a text."""
        return bytes((self.pieces(field) or (memoryview(b""),))[-1]).decode("utf-8", "backslashreplace")


def message(data: memoryview, store: Store) -> Message:
    """The fields of a message; raises `FileError`, short and without the path, for what is none.

    >>> message(memoryview(bytes.fromhex("089601 1203 616263")), Store(None, 8)).fields[1]
    (150,)
    """
    found: dict[int, list[int | memoryview]] = {}
    at = taken = 0
    while at < len(data):
        taken += FIELD
        store.room(taken, "the fields of its messages")
        tag, at = varint(data, at)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in FIXED or wire == 2:
            size, at = (FIXED[wire], at) if wire in FIXED else varint(data, at)
            if at + size > len(data):
                raise FileError("a message in it is cut off")
            value = data[at : at + size]
            value, at = value if wire == 2 else int.from_bytes(value, "little"), at + size
        else:
            raise FileError(f"a message in it has a field of wire type {wire}")
        found.setdefault(field, []).append(value)
    return Message({field: tuple(values) for field, values in found.items()}, store)
