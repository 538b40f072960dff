"""Reads a .pdmodel: a ProgramDesc of Protocol Buffers.

Source: paddle/fluid/framework/framework.proto of PaddlePaddle 3.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.protobuf import Message, message
from stepnet.layout.files.paddle.program import PaddleOperation, PaddleProgram, Variable, dtype_of
from stepnet.layout.files.store import Store

FEED, FETCH = "feed", "fetch"
NO_TENSORS = (FEED, FETCH)  # the variables that hold the lists of inputs and of outputs


def text(piece: int | memoryview) -> str:
    """Decodes a protobuf value of Paddle that is a text; "" for a number."""
    return bytes(piece).decode("utf-8", "backslashreplace") if not isinstance(piece, int) else ""


def signed(value: int | memoryview) -> int:
    """Converts a protobuf value of Paddle to a whole number, which may be negative; 0 for bytes."""
    number = value if isinstance(value, int) else 0
    return number - (1 << 64) if number >> 63 else number


def single(value: int | memoryview) -> float:
    """Converts the bits of a Paddle protobuf value to the float32 number that they stand for."""
    return struct.unpack("<f", struct.pack("<I", signed(value) & 0xFFFFFFFF))[0]


def double(value: int | memoryview) -> float:
    """Converts the bits of a Paddle protobuf value to the float64 number that they stand for."""
    return struct.unpack("<d", struct.pack("<Q", signed(value) & 0xFFFFFFFFFFFFFFFF))[0]


ATTRIBUTES: Mapping[int, tuple[int, Callable[[Any], Any], bool]] = {
    0: (3, signed, False),
    1: (4, single, False),
    2: (5, text, False),
    3: (6, signed, True),
    4: (7, single, True),
    5: (8, text, True),
    6: (10, bool, False),
    7: (11, bool, True),
    8: (12, signed, False),
    9: (13, signed, False),
    10: (14, signed, True),
    11: (15, signed, True),
    12: (16, double, True),
    13: (17, text, False),
    14: (18, text, True),
    15: (19, double, False),
}
"""For each type of an attribute: its field, the function that reads a value, and whether it is a list."""
SCALARS: Mapping[int, tuple[int, Callable[[Any], Any]]] = {1: (2, bool), 2: (3, signed), 3: (4, double)}
"""For each type of a scalar: its field, and the function that reads it."""
SCALAR, SCALARS_LIST = 16, 17


def read(data: bytes, path: str, store: Store) -> PaddleProgram:
    """Reads the Paddle program in a .pdmodel file; raises `FileError`, without the path, for damaged bytes,
    and for a program with a loop or a condition. The operations that feed and fetch become inputs and
    outputs. path: the path of the file, for messages about the program. store: the limit on memory.
    """
    blocks = list(message(memoryview(data), store).messages(1))
    if not blocks:
        raise FileError("this is not a complete program of Paddle (it has no block)")
    if len(blocks) > 1:
        raise FileError(
            f"its program has {len(blocks)} blocks (a loop or a condition); stepnet reads programs of one"
        )
    variables, persistable = dict[str, Variable](), set[str]()
    for submessage in blocks[0].messages(3):
        declared = variable(submessage)
        if declared is not None:
            variables[declared.name] = declared
            if submessage.number(3):
                persistable.add(declared.name)
    operations = [operation(submessage, index) for index, submessage in enumerate(blocks[0].messages(4))]
    fed = [
        name
        for submessage in operations
        if submessage.type == FEED
        for name in submessage.outputs.get("Out", ())
    ]
    fetched = [
        name
        for submessage in operations
        if submessage.type == FETCH
        for name in submessage.inputs.get("X", ())
    ]
    missing = [name for name in fed if name not in variables]
    if missing:
        raise FileError(f"its input {missing[0]!r} is not one of its variables")
    return PaddleProgram(
        path,
        tuple(variables[name] for name in fed),
        tuple(submessage for submessage in operations if submessage.type not in (FEED, FETCH)),
        {name: name for name in fetched},
        tuple(variables[name] for name in sorted(persistable)),
    )


def variable(message: Message) -> Variable | None:
    """Describes a Paddle program's variable (VarDesc): name, shape and dtype; None if it is no tensor."""
    name, tensor = message.text(1), message.submessage(2).submessage(3)
    if name in NO_TENSORS or not tensor.fields:
        return None
    description = tensor.submessage(1)
    sizes = tuple(max(signed(size), 0) for size in description.fields.get(2, ()))
    return Variable(name, sizes, dtype_of(description.number(1)), tensor.number(2))


def operation(description: Message, index: int) -> PaddleOperation:
    """Converts an OpDesc message, `description`, to an operation of a Paddle program. index: its index in the
    program, for messages.
    """
    attributes = {attribute.text(1): attribute_of(attribute) for attribute in description.messages(4)}
    kind = description.text(3)
    return PaddleOperation(
        kind, slots(description, 1), slots(description, 2), attributes, f"operation {index} ({kind})"
    )


def slots(description: Message, field: int) -> dict[str, tuple[str, ...]]:
    """Returns {slot: names of values} of a Paddle operation's inputs (field 1) or outputs (field 2)."""
    return {slot.text(1): tuple(map(text, slot.pieces(2))) for slot in description.messages(field)}


def attribute_of(attribute: Message) -> Any:
    """Returns the value of a Paddle operation's attribute: a number, a text, a bool or a list of these.
    Raises `FileError` for an unknown type.
    """
    kind = attribute.number(2)
    if kind in (SCALAR, SCALARS_LIST):
        values = [scalar(element) for element in attribute.messages(20 if kind == SCALAR else 21)]
        return values if kind == SCALARS_LIST else values[-1] if values else 0
    if kind not in ATTRIBUTES:
        raise FileError(f"the attribute {attribute.text(1)!r} is of type {kind}, which is unknown")
    field, convert, is_list = ATTRIBUTES[kind]
    values = [convert(value) for value in attribute.fields.get(field, ())]
    if is_list:
        return values
    return values[-1] if values else convert(memoryview(b"") if convert is text else 0)


def scalar(description: Message) -> Any:
    """Returns the number in a Paddle Scalar message, an attribute's value or part of one."""
    field, convert = SCALARS.get(description.number(1), (3, signed))
    values = description.fields.get(field, ())
    return convert(values[-1]) if values else 0
