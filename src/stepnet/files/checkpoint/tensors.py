"""The numbers of a constant of a TensorFlow graph.

Source: core/framework/tensor.proto of TensorFlow 2.21.
"""

import math

import numpy as np

from stepnet.errors import FileError
from stepnet.files.checkpoint.file import entry, values
from stepnet.files.checkpoint.protobuf import Message
from stepnet.files.model import Array
from stepnet.files.store import OBJECT

CONTENT = 4  # the field of the numbers as bytes
FEW = 64  # bytes of whole numbers, which say where a slice is


def tensor(name: str, said: Message, whole: bool = False) -> Array | None:
    """The numbers of a TensorProto; None where they are no floating-point ones, or with `whole` no few whole
    ones.

    What is there may be less than the shape asks for: the last number is repeated then.
    """
    described = entry(name, said.number(1), said.one(2), ())
    kind = described.kind
    if kind is None or not (kind.kind == "i" if whole else kind.kind == "f" or kind.name == "bfloat16"):
        return None
    if whole and described.bytes > FEW:
        return None
    said.store.take(described.bytes + OBJECT + len(name), f"the constant {name[:100]!a}")
    count, content = math.prod(described.shape), said.pieces(CONTENT)
    if content:
        if len(content[-1]) != described.bytes:
            raise FileError(f"the constant {name[:100]!a} has not the size of its shape")
        return np.frombuffer(content[-1], kind.newbyteorder("<")).reshape(described.shape)
    there = values(name, kind, said)
    if len(there) > count:
        raise FileError(f"the constant {name[:100]!a} has more numbers than its shape")
    made = np.full(count, there[-1] if len(there) else 0, kind)
    made[: len(there)] = there
    return made.reshape(described.shape)
