"""Nested dicts, tuples, lists and namedtuples of leaves: their leaves, names of leaves, and rebuilding.

`None` is an empty structure, so a step may return `None` for "no output". Dicts with the same keys in
different orders are the same structure: see `arranged`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

import numpy as np

from stepnet.errors import InputError

Structure = Any

DEEPEST = 64
"""The deepest nesting of structures; one that contains itself would be endless."""


def leaves(structure: Structure) -> list[Any]:
    """Lists the leaves of a structure (nested dicts, tuples and lists) from left to right.

    >>> leaves({"h": 1, "c": (2, [3])})
    [1, 2, 3]
    """
    return [leaf for _, leaf in named_leaves(structure)]


def named_leaves(structure: Structure, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields each leaf of a structure with its name: the keys and positions that lead to it, joined by dots.

    name, depth: the name of the structure in an outer one, and the number of structures around it.

    >>> list(named_leaves({"h": 1, "c": (2, 3)}))
    [('h', 1), ('c.0', 2), ('c.1', 3)]
    """
    children = _children(structure, depth)
    if children is None:
        yield name, structure
        return
    for key, child in children:
        yield from named_leaves(child, f"{name}.{key}" if name else str(key), depth + 1)


def titled_leaves(structure: Structure, argument: str) -> Iterator[tuple[str, Any]]:
    """Yields each leaf of a function's argument with its name for messages: the keys of dicts that lead to
    it, as users write them, or after the name of the argument where these begin with a position.

    argument: the name of the argument. It is the name of a leaf that is in no structure.

    >>> list(titled_leaves(5, "state")), list(titled_leaves({"h": 5}, "state"))
    ([('state', 5)], [('h', 5)])
    >>> list(titled_leaves((1, {"h": 2}), "state"))
    [('state.0', 1), ('state.1.h', 2)]
    """
    fields = isinstance(structure, tuple) and hasattr(cast("Any", structure), "_fields")
    return named_leaves(structure, "" if fields or isinstance(structure, Mapping) else argument)


def rebuild(structure: Structure, values: Sequence[Any]) -> Structure:
    """Replaces the leaves of a structure, from left to right, by the given values.

    >>> rebuild({"h": 0, "c": (0, 0)}, [1, 2, 3])
    {'h': 1, 'c': (2, 3)}
    """
    remaining = iter(values)
    return transform(lambda _: next(remaining), structure)


def rebuilder(structure: Structure, first: int = 0) -> Callable[[Sequence[Any]], Structure]:
    """Makes a function that puts values in place of the leaves of this structure, in a fifth of the time of
    `rebuild`: it is compiled from a display of the structure, such as `{key0: values[0], key1: values[1]}`.

    first: the position of the first leaf among the values.

    >>> rebuilder({"h": 0, "c": (0, 0)})([1, 2, 3])
    {'h': 1, 'c': (2, 3)}
    """
    named = dict[str, Any]()
    return eval(f"lambda values: {_display(structure, named, count(first), 0)}", named)


def _display(structure: Structure, named: dict[str, Any], numbers: Iterator[int], depth: int) -> str:
    """Writes an expression of Python that makes a structure again, with entries of a sequence `values` as its
    leaves.

    named: gets the keys and types in the structure, by the names that the expression has for them. numbers:
    gives the index of each leaf. depth: the number of structures around this one, which is limited.
    """

    def name_of(value: Any, kind: str) -> str:
        """Returns a new name for a key or a type in the structure."""
        name = f"{kind}{len(named)}"
        named[name] = value
        return name

    children = _children(structure, depth)
    if children is None:
        return f"values[{next(numbers)}]"
    inside = [(key, _display(child, named, numbers, depth + 1)) for key, child in children]
    if structure is None:
        return "None"
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{name_of(key, 'key')}: {text}" for key, text in inside) + "}"
    items = "".join(f"{text}, " for _, text in inside)
    if isinstance(structure, list):
        return f"[{items}]"
    is_named = hasattr(structure, "_fields")
    return f"{name_of(type(structure), 'type')}({items})" if is_named else f"({items})"


def transform(
    function: Callable[[Any], Any],
    structure: Structure,
    is_leaf: Callable[[Any], bool] | None = None,
    depth: int = 0,
) -> Structure:
    """Applies a function to every leaf of a structure (nested dicts, tuples and lists), and returns a
    structure of the same form with the results as leaves.

    is_leaf: tells whether an inner structure is to be treated as a leaf; None if none is.
    depth: the number of structures around this one, which is limited.
    """
    children = None if is_leaf is not None and is_leaf(structure) else _children(structure, depth)
    if children is None:
        return function(structure)
    inside = depth + 1
    return _like(structure, {key: transform(function, child, is_leaf, inside) for key, child in children})


def arranged(structure: Structure, like: Structure) -> Structure:
    """Reorders the dicts in a structure like those in `like`, if the keys are the same, so that leaves match.

    >>> arranged({"c": 1, "h": {"b": 2, "a": 3}}, {"h": {"a": 0, "b": 0}, "c": 0})
    {'h': {'a': 3, 'b': 2}, 'c': 1}
    """
    mine, its = _children(structure), _children(like)
    if not mine or not its or len(mine) != len(its):
        return structure
    held, same = dict(mine), isinstance(structure, Mapping) and isinstance(like, Mapping)
    if same and held.keys() == dict(its).keys():
        return {key: arranged(held[key], child) for key, child in its}
    pairs = zip(mine, its, strict=True)
    return _like(structure, {key: arranged(child, other) for (key, child), (_, other) in pairs})


def leaves_as(structure: Structure, like: Structure) -> list[Any] | None:
    """Lists the leaves of a structure in the order of the leaves of `like`; None if the structures differ.

    `like` is made of dicts, tuples and lists.

    It neither names leaves nor raises errors, and so is fast.

    >>> leaves_as({"c": 1, "h": (2, 3)}, {"h": (0, 0), "c": 0}), leaves_as((1, 2), (0, 0, 0))
    ([2, 3, 1], None)
    """
    if like is None:
        return [] if structure is None else None
    if isinstance(like, dict):
        expected, held = cast("dict[Any, Any]", like), cast("dict[Any, Any]", structure)
        if not isinstance(structure, dict) or held.keys() != expected.keys():
            return None
        pairs = [(held[key], child) for key, child in expected.items()]
    elif isinstance(like, tuple | list):
        children, items = cast("Sequence[Any]", like), cast("Sequence[Any]", structure)
        if not isinstance(structure, tuple | list) or len(items) != len(children):
            return None
        pairs = [*zip(items, children, strict=True)]
    else:
        return [structure]
    inside = [leaves_as(child, other) for child, other in pairs]
    return (
        None
        if None in inside
        else [leaf for inner_leaves in inside if inner_leaves is not None for leaf in inner_leaves]
    )


def _like(structure: Structure, children: dict[Any, Any]) -> Structure:
    """Makes a structure of the type of `structure` from other children, given by key or position in order.
    All mappings become dicts.
    """
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        return children
    items = list(children.values())
    if isinstance(structure, list):
        return items
    return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)


def skeleton(structure: Structure, depth: int = 0) -> str:
    """Writes a structure as text without its leaves. Structures are equal if their texts are equal. Lists are
    written as tuples. depth: the number of structures around it, which is limited.

    >>> skeleton({"h": 1, "c": (2, 3)})
    '{h: array, c: (array, array)}'
    """
    children = _children(structure, depth)
    if children is None:
        return "array"
    inside = depth + 1
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{key}: {skeleton(child, inside)}" for key, child in children) + "}"
    if structure is None:
        return "None"
    return "(" + ", ".join(skeleton(child, inside) for _, child in children) + ")"


def _children(structure: Structure, depth: int = 0) -> list[tuple[Any, Any]] | None:
    """Returns the pairs (key or position, child) of a structure's top level; None for a leaf. Raises
    `InputError` if there are too many structures around it (`depth`).
    """
    if structure is None:
        return []
    if isinstance(structure, np.ndarray):  # by far the most common, and slow to tell from an abstract class
        return None
    if depth > DEEPEST:
        raise InputError(
            f"a {type(structure).__name__} is given that nests more than {DEEPEST} deep, or contains itself; "
            "give arrays in dicts, lists and tuples that end"
        )
    if isinstance(structure, (dict, Mapping)):
        return list(cast("Mapping[Any, Any]", structure).items())
    if isinstance(structure, tuple | list):
        items = cast("Sequence[Any]", structure)
        if not hasattr(items, "_fields"):
            return list(enumerate(items))
        return list(zip(cast("Any", items)._fields, items, strict=True))
    return None
