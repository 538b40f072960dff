"""The numbers of a constant of a TensorFlow graph.

Source: core/framework/tensor.proto of TensorFlow 2.21.
"""

import math

import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.file import entry, values
from stepnet.layout.files.checkpoint.protobuf import Message
from stepnet.layout.files.model import Array
from stepnet.layout.files.store import OBJECT

CONTENT = 4  # the field of the numbers as bytes
FEW = 64  # the most bytes of integers to read: integers that describe slices are few


def tensor(name: str, proto: Message, integers: bool = False) -> Array | None:
    """Decodes a TensorProto, the constant `name` of a TensorFlow graph, as an array; None unless its numbers
    are floating-point or, with `integers`, a few integers. If there are fewer numbers than the shape demands,
    the last one is repeated. Raises `FileError` if there are more, or other bytes than the shape requires.
    """
    described = entry(name, proto.number(1), proto.submessage(2), ())
    kind = described.kind
    if kind is None or not (kind.kind == "i" if integers else kind.kind == "f" or kind.name == "bfloat16"):
        return None
    if integers and described.bytes > FEW:
        return None
    proto.store.take(described.bytes + OBJECT + len(name), f"the constant {name[:100]!a}")
    count, content = math.prod(described.shape), proto.pieces(CONTENT)
    if content:
        if len(content[-1]) != described.bytes:
            raise FileError(f"the constant {name[:100]!a} has more or fewer bytes than its shape requires")
        return np.frombuffer(content[-1], kind.newbyteorder("<")).reshape(described.shape)
    numbers = values(name, kind, proto)
    if len(numbers) > count:
        raise FileError(f"the constant {name[:100]!a} has more numbers than its shape")
    filled = np.full(count, numbers[-1] if len(numbers) else 0, kind)
    filled[: len(numbers)] = numbers
    return filled.reshape(described.shape)
