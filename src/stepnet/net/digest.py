"""A short text that identifies nets and plans by what they compute, down to the bits of their constants."""

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from stepnet.net.ir import Net, Node
from stepnet.net.types import Literal


def digest(*values: Any) -> str:
    """A digest of the values: 32 hexadecimal digits, equal for equal values.

    Nets, literals and dataclasses are digested by content, all other values by their `repr`, which must be
    complete.

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
    """The bytes to be hashed for a value, as a list of parts."""
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

    The `repr` of a dataclass is not safe here: to stop recursion it marks the object while it runs, and an
    interrupt at that moment leaves the mark. From then on the `repr` is "...".
    """
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
