"""Checked values of JSON that comes from a file. Each function raises `ModelError` for other values."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError

Object = dict[str, Any]
Value = TypeVar("Value")
LARGEST = 2**62
"""The largest magnitude of a whole number."""


def keyed(value: Any, what: str, *names: str) -> Object:
    """Returns a value of a file's JSON that must be an object with exactly the keys `names`; raises
    `ModelError` for any other. what: its name in messages.
    """
    if set(mapping(value, what)) != set(names):
        raise ModelError(
            f"{what} has {', '.join(names)}, not {', '.join(map(short_repr, value)) or 'nothing'}"
        )
    return value


def mapping(value: Any, what: str) -> Object:
    """Returns a value of a file's JSON that must be an object, or raises `ModelError`. what: its name."""
    if not isinstance(value, dict):
        raise ModelError(f"{what} is an object, not {short_repr(value)}")
    return cast("Object", value)


def entries(value: Any, what: str) -> list[Any]:
    """Returns a value of a file's JSON that must be a list, or raises `ModelError`. what: its name."""
    if not isinstance(value, list):
        raise ModelError(f"{what} is a list, not {short_repr(value)}")
    return cast("list[Any]", value)


def text(value: Any, what: str) -> str:
    """Returns a value of a file's JSON that must be a text, or raises `ModelError`. what: its name."""
    if not isinstance(value, str):
        raise ModelError(f"{what} is a text, not {short_repr(value)}")
    return value


def flag(value: Any, what: str) -> bool:
    """Returns a value of a file's JSON that must be a bool, or raises `ModelError`. what: its name."""
    if not isinstance(value, bool):
        raise ModelError(f"{what} is true or false, not {short_repr(value)}")
    return value


def integer(value: Any, what: str) -> int:
    """Returns a JSON value that must be a 64-bit whole number, or raises `ModelError`. what: its name."""
    if type(value) is not int or not -LARGEST <= value <= LARGEST:
        raise ModelError(f"{what} is a whole number, not {short_repr(value)}")
    return value


def count(value: Any, what: str) -> int:
    """Returns a JSON value that must be a whole number from 0 on, or `ModelError`. what: its name."""
    if integer(value, what) < 0:
        raise ModelError(f"{what} is a whole number from 0 on, not {value}")
    return value


def number(value: Any, what: str) -> int | float:
    """Returns a number, which may be NaN or infinite."""
    return value if type(value) is float else integer(value, what)


def several(read: Callable[[Any, str], Value], value: Any, what: str) -> tuple[Value, ...]:
    """Returns a list as a tuple of checked entries. read: checks one entry."""
    return tuple(read(item, what) for item in entries(value, what))
