"""Nested dicts, tuples, lists and namedtuples of leaves: taken apart, put together, and named for people.

`None` is an empty structure, so a step may return `None` for "no output".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

Structure = Any


def leaves(structure: Structure) -> list[Any]:
    """The leaves from left to right; dicts in the order of their keys.

    >>> leaves({"h": 1, "c": (2, [3])})
    [1, 2, 3]
    """
    return [leaf for _, leaf in named_leaves(structure)]


def named_leaves(structure: Structure, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with the name a person would give it.

    >>> list(named_leaves({"h": 1, "c": (2, 3)}))
    [('h', 1), ('c.0', 2), ('c.1', 3)]
    """
    children = _children(structure)
    if children is None:
        yield name, structure
        return
    for key, child in children:
        yield from named_leaves(child, f"{name}.{key}" if name else str(key))


def rebuild(structure: Structure, values: Sequence[Any]) -> Structure:
    """The same structure with `values` for its leaves.

    >>> rebuild({"h": 0, "c": (0, 0)}, [1, 2, 3])
    {'h': 1, 'c': (2, 3)}
    """
    remaining = iter(values)
    return transform(lambda _: next(remaining), structure)


def transform(function: Callable[[Any], Any], structure: Structure) -> Structure:
    """The same structure with `function` applied to every leaf."""
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        mapping = cast("Mapping[Any, Any]", structure)
        return {key: transform(function, child) for key, child in mapping.items()}
    if isinstance(structure, tuple | list):
        items = [transform(function, child) for child in cast("Sequence[Any]", structure)]
        if hasattr(structure, "_fields"):
            return type(cast(Any, structure))(*items)
        return items if isinstance(structure, list) else tuple(items)
    return function(structure)


def skeleton(structure: Structure) -> str:
    """The structure as text with its leaves left out: what two structures are compared by.

    >>> skeleton({"h": 1, "c": (2, 3)})
    '{h: *, c: (*, *)}'
    """
    children = _children(structure)
    if children is None:
        return "*"
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{key}: {skeleton(child)}" for key, child in children) + "}"
    if structure is None:
        return "None"
    return "(" + ", ".join(skeleton(child) for _, child in children) + ")"


def _children(structure: Structure) -> list[tuple[Any, Any]] | None:
    """The named children of one level, or None for a leaf."""
    if structure is None:
        return []
    if isinstance(structure, Mapping):
        return list(cast("Mapping[Any, Any]", structure).items())
    if isinstance(structure, tuple | list):
        items = cast("Sequence[Any]", structure)
        fields = cast("Sequence[str]", getattr(items, "_fields", range(len(items))))
        return list(zip(fields, items, strict=True))
    return None
