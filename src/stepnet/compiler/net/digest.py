"""A short text that identifies nets and plans by their operations, down to the bits of their constants."""

from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, cast

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import Literal, Type
from stepnet.compiler.values.hashing import blake2b


def digest(*values: Any) -> str:
    """Computes a digest of values: 32 hexadecimal digits, equal for equal values.

    Nets, literals and dataclasses are digested by content, all other values by their `repr`, which must be
    complete.

    The names of nodes and the user's lines make no difference.

    >>> digest(1, ("a", 2)) == digest(1, ("a", 2)), digest(1, 2) == digest(12)
    (True, False)
    """
    hasher = blake2b(digest_size=16)
    for chunk in pieces(values):
        hasher.update(len(chunk).to_bytes(8, "little"))
        hasher.update(chunk)
    return hasher.hexdigest()


def pieces(value: Any) -> list[bytes]:
    """Lists the byte strings that are hashed, one after the other, for the digest of a value."""
    chunks = list[bytes]()
    add_pieces(chunks, value)
    return chunks


def add_pieces(chunks: list[bytes], value: Any) -> None:
    """Appends the bytes of a value that are hashed for its digest (a key of caches) to `chunks`: those of its
    parts for tuples, nets and dataclasses, the array for a literal, else the `repr`. Names and user's lines
    of nodes are left out.
    """
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        chunks.append(str(len(items)).encode())
        for item in items:
            add_pieces(chunks, item)
    elif isinstance(value, Type):
        chunks += pieces_of_type(value)
    elif isinstance(value, Node):
        add_pieces(chunks, (value.operation, value.inputs, value.types, value.pairs))
    elif isinstance(value, Net):
        add_pieces(chunks, (value.nodes, value.inputs, value.results))
    elif isinstance(value, Literal):
        chunks += [f"{value.value.dtype.str}{value.value.shape}".encode(), value.value.tobytes()]
    elif names := field_names(type(cast("object", value))):
        add_pieces(chunks, (type(value).__name__, *(getattr(value, name) for name in names)))
    else:
        chunks.append(repr(value).encode())


@lru_cache(1024)
def pieces_of_type(type_: Type) -> tuple[bytes, ...]:
    """Returns the bytes of a type for a digest; cached, as a net repeats few types many times."""
    return tuple(pieces(("Type", *(getattr(type_, name) for name in field_names(Type)))))


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Returns the names of the fields of a dataclass; empty for other types.

    The `repr` of a dataclass would not be safe here: to stop recursion it marks the object while it runs, and
    an interrupt at that moment leaves the mark. From then on the `repr` is "...".
    """
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
