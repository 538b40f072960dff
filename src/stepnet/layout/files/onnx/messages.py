"""The classes of ONNX's messages, and the memory that a message takes, counted before protobuf parses it.

An empty message is 2 bytes in a file and a hundred times that in memory. So a walk over the fields of all
messages, by onnx's descriptions of them, comes first. It skips the bytes of tensors.

Source: protobuf.dev/programming-guides/encoding.
"""

import os
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any

from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.sstable import varint
from stepnet.layout.files.paths import library
from stepnet.layout.files.store import Store

MESSAGE = 192  # approximate bytes of a message without its fields; a TensorProto has the most
FIELD = 16  # bytes of a text's place and length, or of a number
WIDE = 8  # bytes that a number of one byte takes in a list of numbers
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types
FIXED = {EIGHT: 8, FOUR: 4}
TEXTS = (9, 12)  # the types of fields that are texts or bytes
NEWEST = "metadata_props"  # a field of nodes that onnx has had since version 1.16


def classes() -> Any:
    """Returns the module of the package onnx that has the classes of messages: alone, unless the package is
    imported, which takes 150 modules and a third of the time of reading a file. Raises `FileError` if it is
    missing, and `LibraryError` if it is too old.
    """
    found = None
    with suppress(ImportError):  # a finder of the program may refuse it, and the import below says so
        found = None if "onnx" in sys.modules else find_spec("onnx")
    folders = [] if found is None else found.submodule_search_locations or []
    return next((known for each in folders if (known := alone(each))), None) or library(
        "onnx", "an .onnx file", "onnx"
    )


@cache
def alone(folder: str) -> Any:
    """Runs the module of messages in the folder of the package onnx; None if it is of an old version, or if
    something is missing.
    """
    spec = spec_from_file_location("onnx.onnx_ml_pb2", os.path.join(folder, "onnx_ml_pb2.py"))
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, FileNotFoundError):  # the whole package is imported then, and says what is missing
        return None
    return module if NEWEST in module.NodeProto.DESCRIPTOR.fields_by_name else None


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
    """Decodes a varint at position `at` of a protobuf message; returns the number and the next position.
    store: has the path of the model, for messages.
    """
    if at < len(data) and data[at] < 0x80:  # most numbers have one byte
        return data[at], at + 1
    try:
        return varint(memoryview(data), at)
    except FileError as error:
        raise broken(store, str(error)) from None


def broken(store: Store, reason: str) -> FileError:
    """Returns the error for a damaged ONNX model. store: has its path. reason: how it is damaged."""
    return FileError(f"{store.path}: this is not a complete ONNX model ({reason})")
