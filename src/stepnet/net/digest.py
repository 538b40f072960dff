"""A short text that identifies nets and plans by what they compute, down to the bits of their constants."""

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from stepnet.net.ir import Net, Node
from stepnet.net.types import Literal


def digest(*values: Any) -> str:
    """32 hexadecimal digits, the same for equal nets, literals, and values with a complete text.

    The names of nodes and the user's lines make no difference.

    >>> digest(1, ("a", 2)) == digest(1, ("a", 2)), digest(1, 2) == digest(12)
    (True, False)
    """
    hasher = hashlib.blake2b(digest_size=16)
    for part in pieces(values):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def pieces(value: Any) -> list[bytes]:
    """The bytes of a value, piece by piece."""
    if isinstance(value, Net):
        return pieces((value.nodes, value.inputs, value.results))
    if isinstance(value, Node):
        return pieces((value.operation, value.inputs, value.types, value.pairs))
    if isinstance(value, Literal):
        return [f"{value.value.dtype.str}{value.value.shape}".encode(), value.value.tobytes()]
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return [str(len(items)).encode(), *(piece for item in items for piece in pieces(item))]
    kind: type[Any] = type(cast("object", value))
    names = field_names(kind)
    if names:
        return pieces((type(value).__name__, *(getattr(value, name) for name in names)))
    return [repr(value).encode()]


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass; of other types none.

    The `repr` of a dataclass would not do: it marks the object while it is at work, and an interrupt that
    comes just then leaves the mark. The `repr` is "..." from then on.
    """
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
