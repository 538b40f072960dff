"""Pickling of a model for workers, with an error that names the part of it that cannot be pickled.

Ray uses cloudpickle: it pickles lambdas and functions of a script by value, with the values that they use,
and functions of modules by name.
"""

import inspect
from collections.abc import Iterator, Mapping
from pickle import PicklingError
from types import FunctionType
from typing import Any, cast

from stepnet.errors import InputError, StepnetError
from stepnet.ray.installed import installed

cloudpickle: Any = installed("ray.cloudpickle")

REFUSALS = (
    *(TypeError, ValueError, AttributeError, NotImplementedError, RecursionError, PicklingError),
    StepnetError,
)
"""Exceptions of objects that cannot be pickled."""


def pickled(model: Any) -> bytes:
    """Pickles a model for workers; raises `InputError`, naming the part that cannot be pickled.

    >>> from threading import Lock
    >>> lock = Lock()
    >>> pickled(lambda x: (lock, x))
    Traceback (most recent call last):
    stepnet.errors.InputError: the model cannot be sent to workers: `lock` in `<lambda>` is a lock of _thread,
    which cannot be pickled: make it inside the step, or pass what it is made from
    """
    try:
        return cloudpickle.dumps(model)
    except REFUSALS as error:
        names, part = unpicklable_part((), model)
        path = " in ".join(f"`{name}`" for name in reversed(names)) or "it"
        raise InputError(
            f"the model cannot be sent to workers: {path} is a {type(part).__name__} of "
            f"{type(part).__module__}, which cannot be pickled: make it inside the step, or pass what it is "
            "made from"
        ) from error


def unpicklable_part(names: tuple[str, ...], value: Any) -> tuple[tuple[str, ...], Any]:
    """Finds the innermost part of a value that cannot be pickled; returns (names that lead to it, part). Of
    several parts that cannot, it follows the first. names: those that lead to `value`.
    """
    path = (*names, value.__name__) if isinstance(value, FunctionType) else names
    for name, part in parts(value):
        if not picklable(part):
            return unpicklable_part((*path, name) if name else path, part)
    return names, value


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, part) for the parts from which a value is pickled: of a function the variables that it
    uses, its attributes and its defaults; of a dict, list or tuple the entries; of any other object what its
    `__reduce_ex__` returns. The name is "" for parts without one.
    """
    if isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        yield from {**used.nonlocals, **used.globals}.items()
        yield from ((name, part) for name, part in vars(value).items())
        yield from (("", part) for part in value.__defaults__ or ())
    elif isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, tuple | list):
        yield from (("", part) for part in cast("list[Any]", value))
    else:
        try:
            reduced = value.__reduce_ex__(4)
        except REFUSALS:
            return
        if isinstance(reduced, tuple):
            yield from (("", part) for part in cast("tuple[Any, ...]", reduced)[:3])


def picklable(value: Any) -> bool:
    """Tells if a value can be pickled and so be sent to a worker."""
    try:
        cloudpickle.dumps(value)
    except REFUSALS:
        return False
    return True
