"""Structures of values as JSON: nested dicts, tuples, lists and named tuples, and their leaves.

{"h": Spec(64), "c": (Spec(2), None)}

{"dict": [["h", LEAF], ["c", {"tuple": [LEAF, null]}]]}
"""

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.structure import DEEPEST
from stepnet.errors import InputError, ModelError
from stepnet.model.stored.fields import Object, count, entries, keyed, mapping, several, text


def structure_data(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """Converts a nested structure (dicts, tuples, lists, named tuples) to JSON. Raises `InputError` for keys
    of dicts other than texts and whole numbers.

    leaf: converts a value of the structure, such as an array, to a JSON object; it is called from left to
    right.
    """
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        pairs = cast("Mapping[Any, Any]", structure).items()
        for key, _ in pairs:
            if type(key) not in (str, int):
                raise InputError(
                    f"a key of a stored model is a text or a whole number, not {short_repr(key)}"
                )
        return {"dict": [[key, structure_data(child, leaf)] for key, child in pairs]}
    if not isinstance(structure, tuple | list):
        return leaf(structure)
    items = cast("list[Any]", structure)
    children = [structure_data(child, leaf) for child in items]
    names: tuple[str, ...] | None = getattr(items, "_fields", None)
    if names is not None:
        return {"named": type(items).__name__, "fields": list(names), "values": children}
    return {"list" if isinstance(structure, list) else "tuple": children}


def structure_of(data: Any, leaf: Callable[[Any], Any], what: str, depth: int = 0) -> Any:
    """Converts JSON back to the nested structure (dicts, tuples, lists, named tuples) from which
    `structure_data` made it; raises `ModelError` for other data.

    leaf: makes a value of the structure, such as an array, from a JSON object, or raises `ModelError`. what:
    the name of the structure in messages. depth: the number of structures around it, which is limited.
    """
    if data is None:
        return None
    if depth > DEEPEST:
        raise ModelError(f"the structure of {what} is nested more than {DEEPEST} deep")

    def inside(children: Any) -> list[Any]:
        """Returns the structures in a list of JSON values."""
        return [structure_of(child, leaf, what, depth + 1) for child in entries(children, what)]

    given: Object = mapping(data, f"the structure of {what}")
    kinds = set(given)
    if kinds == {"tuple"}:
        return tuple(inside(given["tuple"]))
    if kinds == {"list"}:
        return inside(given["list"])
    if kinds == {"dict"}:
        pairs = [several(lambda item, _: item, pair, what) for pair in entries(given["dict"], what)]
        keys = [pair[0] for pair in pairs if len(pair) == 2 and type(pair[0]) in (str, int)]
        if len(set(keys)) < len(pairs):
            raise ModelError(f"the keys of {what} are different texts or whole numbers")
        return dict(zip(keys, inside([pair[1] for pair in pairs]), strict=True))
    if kinds == {"named", "fields", "values"}:
        return named_tuple(given, what)(*inside(given["values"]))
    return leaf(data)


def named_tuple(data: Object, what: str) -> Any:
    """Makes the class of a named tuple of a file; raises `ModelError` for names that Python does not take.

    what: the name of the structure in messages.
    """
    names = several(text, data["fields"], what)
    if len(names) != len(entries(data["values"], what)):
        raise ModelError(f"{what} has {len(names)} names for its values, which are another number")
    name = text(data["named"], what)
    try:
        return class_of(name, names)
    except ValueError as error:
        raise ModelError(f"{what}: {error}") from None


@lru_cache(256)
def class_of(name: str, names: tuple[str, ...]) -> Any:
    """Makes the class of named tuples with this name and these fields; its objects can be pickled.

    Raises `ValueError` for names that Python does not take.
    """
    made: Any = namedtuple(name, names)  # type: ignore[reportUntypedNamedTuple]

    def reduce(values: Any) -> Any:
        """Pickles a named tuple by the names of its class, which no module has."""
        return named_values, (name, names, tuple(values))

    made.__reduce__ = reduce
    return made


def named_values(name: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Restores a pickled named tuple from the name of its class, the names of its fields and its values."""
    return class_of(name, names)(*values)


# ---- leaves ------------------------------------------------------------------------------------------------


def spec_data(spec: Spec) -> Object:
    """Returns a `Spec`, with its dtype, as JSON."""
    return {"shape": list(spec.shape), "dtype": spec.dtype, "levels": spec.levels, "axis": spec.axis}


def spec_of(data: Any, what: str) -> Spec:
    """Reads a `Spec` (features and dtype of a value) from JSON that `spec_data` wrote; raises `ModelError`
    for other data.

    what: the name of the values in messages.
    """
    given = keyed(data, f"a leaf of {what}", "shape", "dtype", "levels", "axis")
    sizes = entries(given["shape"], f"the shape of {what}")
    if dynamic := [size for size in sizes if type(size) is not int or size < 0]:
        raise ModelError(
            f"{what} has a feature of size {short_repr(dynamic[0])}: sizes of features are whole numbers; "
            "only the numbers of sequences and of steps are open"
        )
    try:
        return Spec(
            tuple(sizes),
            text(given["dtype"], f"the dtype of {what}"),
            count(given["levels"], f"the levels of {what}"),
            text(given["axis"], f"the axis of {what}"),
        )
    except InputError as error:
        raise ModelError(f"{what}: {error}") from None


def blank_of(data: Any, what: str) -> int:
    """Returns 0, for the leaf of an output; raises `ModelError` for other data."""
    keyed(data, f"a leaf of {what}")
    return 0
