"""Reads the fields of messages of Protocol Buffers, without their descriptions.

Source: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Mapping

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.sstable import varint
from stepnet.layout.files.store import OBJECT, Store

FIELD = 2 * OBJECT  # approximate bytes of memory for a field, a number or a view of bytes
MESSAGE = 4 * OBJECT  # approximate bytes of memory for a message
FIXED = {1: 8, 5: 4}  # bytes of a number of fixed size, by its wire type


@dataclass(frozen=True)
class Message:
    """The fields of a protobuf message by number: all values of each, numbers or bytes, in order.

    store: the limit on the memory of the messages in it.
    """

    fields: Mapping[int, tuple[int | memoryview, ...]]
    store: Store

    def number(self, field: int) -> int:
        """Returns field `field` of a protobuf message as a whole number, its last value; 0 if missing."""
        values = [value for value in self.fields.get(field, ()) if isinstance(value, int)]
        return values[-1] if values else 0

    def signed(self, field: int) -> int:
        """Returns field number `field` of a protobuf message as a signed 64-bit number; 0 if missing."""
        value = self.number(field)
        return value - (1 << 64) if value >> 63 else value

    def pieces(self, field: int) -> tuple[memoryview, ...]:
        """Returns views of all byte values of a protobuf message's repeated field. field: its number."""
        return tuple(value for value in self.fields.get(field, ()) if not isinstance(value, int))

    def messages(self, field: int) -> tuple["Message", ...]:
        """Parses all values of field number `field` of a protobuf message, which are messages too; () if it
        is missing. Raises `FileError` if they need more memory than the limit for the file leaves.
        """
        pieces = self.pieces(field)
        self.store.room(MESSAGE * len(pieces), "its messages")
        return tuple(message(piece, self.store) for piece in pieces)

    def submessage(self, field: int) -> "Message":
        """Parses field `field` of a protobuf message, a message too; an empty one if it is missing."""
        pieces = self.pieces(field)
        return message(pieces[-1], self.store) if pieces else Message({}, self.store)

    def text(self, field: int) -> str:
        """Returns field number `field` of a protobuf message as text; "" if it is missing."""
        return bytes((self.pieces(field) or (memoryview(b""),))[-1]).decode("utf-8", "backslashreplace")


def message(data: memoryview, store: Store) -> Message:
    """Parses a message of Protocol Buffers to its fields by number; raises `FileError`, without the path, for
    damaged bytes. store: the limit on memory.

    >>> message(memoryview(bytes.fromhex("089601 1203 616263")), Store(None, 8)).fields[1]
    (150,)
    """
    fields: dict[int, list[int | memoryview]] = {}
    position = memory = 0
    while position < len(data):
        memory += FIELD
        store.room(memory, "the fields of its messages")
        tag, position = varint(data, position)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = varint(data, position)
        elif wire in FIXED or wire == 2:
            size, position = (FIXED[wire], position) if wire in FIXED else varint(data, position)
            if position + size > len(data):
                raise FileError("a message in it is cut off")
            value = data[position : position + size]
            value, position = value if wire == 2 else int.from_bytes(value, "little"), position + size
        else:
            raise FileError(f"a message in it has a field of wire type {wire}")
        fields.setdefault(field, []).append(value)
    return Message({field: tuple(values) for field, values in fields.items()}, store)
