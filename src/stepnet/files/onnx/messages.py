"""How much memory a message of protobuf takes once it is read, counted before protobuf reads it.

An empty message is 2 bytes of a file and a hundred times that in memory. So the fields of all messages are
walked over first, by the descriptions that onnx has of them; the bytes of tensors are stepped over.

Source: protobuf.dev/programming-guides/encoding.
"""

from typing import Any

from stepnet.errors import FileError
from stepnet.files.checkpoint.sstable import varint
from stepnet.files.store import Store

MESSAGE = 192  # bytes of a message without its fields, about: a TensorProto's are the most
FIELD = 16  # bytes of a text's place and length, or of a number
WIDE = 8  # bytes that a number of one byte takes in a list of them
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # how the wire says what a field is
FIXED = {EIGHT: 8, FOUR: 4}
TEXTS = (9, 12)  # the types of fields that are texts or bytes


def count(data: bytes, description: Any, store: Store) -> None:
    """Takes what a message will fill from the store; raises `FileError` for what is none, or far too much.

    >>> from onnx import ModelProto
    >>> count(bytes.fromhex("0808 3a04 0a000a00"), ModelProto.DESCRIPTOR, Store(None, 8))
    >>> nodes = bytes.fromhex("3a80897a") + bytes.fromhex("0a00") * 1_000_000
    >>> count(nodes, ModelProto.DESCRIPTOR, Store(None, len(nodes)))
    Traceback (most recent call last):
    stepnet.errors.FileError: with its messages it would fill more than 83108896 bytes of memory, far more ...
    """
    around: list[tuple[int, Any]] = [(len(data), description.fields_by_number)]  # where each message ends
    at, left = 0, store.left - MESSAGE
    while around and left >= 0:
        end, fields = around[-1]
        if at >= end:
            if at > end:
                raise broken(store, "a message in it is cut off")
            around.pop()
            continue
        tag, at = number(data, at, store)
        wire, field = tag & 7, fields.get(tag >> 3)
        left -= FIELD
        if wire == VARINT:
            _, at = number(data, at, store)
        elif wire in FIXED:
            at += FIXED[wire]
        elif wire == BYTES:
            size, at = number(data, at, store)
            if at + size > end:
                raise broken(store, "a message in it is cut off")
            if field is not None and field.message_type is not None:
                around.append((at + size, field.message_type.fields_by_number))
                left -= MESSAGE
            else:
                left -= size if field is None or field.type in TEXTS else WIDE * size
                at += size
        else:
            raise broken(store, f"a message in it has a field of wire type {wire}")
    store.take(store.left - left, "its messages")


def number(data: bytes, at: int, store: Store) -> tuple[int, int]:
    """A number, and where the next thing is."""
    if at < len(data) and data[at] < 0x80:  # as most are
        return data[at], at + 1
    try:
        return varint(memoryview(data), at)
    except FileError as error:
        raise broken(store, str(error)) from None


def broken(store: Store, reason: str) -> FileError:
    """The error for what is no message."""
    return FileError(f"{store.path}: this is no whole ONNX model ({reason})")
