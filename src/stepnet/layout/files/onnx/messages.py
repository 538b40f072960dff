"""The memory that a protobuf message takes, counted before protobuf parses it.

An empty message is 2 bytes in a file and a hundred times that in memory. So a walk over the fields of all
messages, by onnx's descriptions of them, comes first. It skips the bytes of tensors.

Source: protobuf.dev/programming-guides/encoding.
"""

from typing import Any

from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.sstable import varint
from stepnet.layout.files.store import Store

MESSAGE = 192  # approximate bytes of a message without its fields; a TensorProto has the most
FIELD = 16  # bytes of a text's place and length, or of a number
WIDE = 8  # bytes that a number of one byte takes in a list of numbers
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types
FIXED = {EIGHT: 8, FOUR: 4}
TEXTS = (9, 12)  # the types of fields that are texts or bytes


def count(data: bytes, description: Any, store: Store) -> None:
    """Counts the memory of a protobuf message before it is parsed, and takes it from the store, the limit on
    memory; raises `FileError` for a damaged message, or for too much.

    data: the bytes of the message. description: onnx's descriptor of the message's type.

    >>> from onnx import ModelProto
    >>> count(bytes.fromhex("0808 3a04 0a000a00"), ModelProto.DESCRIPTOR, Store(None, 8))
    >>> nodes = bytes.fromhex("3a80897a") + bytes.fromhex("0a00") * 1_000_000
    >>> count(nodes, ModelProto.DESCRIPTOR, Store(None, len(nodes)))
    Traceback (most recent call last):
    stepnet.errors.FileError: with its messages it would fill more than 83108896 bytes of memory, far more ...
    """
    # The open messages: the end of each, and its fields.
    around: list[tuple[int, Any]] = [(len(data), description.fields_by_number)]
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
    """Decodes a varint of a protobuf message at `at`; returns the number and the next position."""
    if at < len(data) and data[at] < 0x80:  # most numbers have one byte
        return data[at], at + 1
    try:
        return varint(memoryview(data), at)
    except FileError as error:
        raise broken(store, str(error)) from None


def broken(store: Store, reason: str) -> FileError:
    """Returns the error for a damaged ONNX model. reason: how it is damaged."""
    return FileError(f"{store.path}: this is not a complete ONNX model ({reason})")
