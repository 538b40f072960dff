"""Copies methods so that they read other globals: one module runs stepnet's functions, and no other does.

    def forward(self, ...):                      the same code, with the globals of its file,
        y = mamba_selective_scan(...)     ->     except mamba_selective_scan

The file of transformers stays as it is. Decorators around a method are copied as well, around the copy.
"""

from collections.abc import Callable, Mapping
from types import CellType, FunctionType
from typing import Any, cast


def innermost(function: Any) -> Any:
    """Follows `__wrapped__` to the function inside all decorators, and returns it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def is_rebindable(function: Any) -> bool:
    """Tells whether `rebound` can copy a method: it and its decorators must be plain functions."""
    while True:
        if not isinstance(function, FunctionType):
            return False
        if not hasattr(function, "__wrapped__"):
            return True
        inner: Any = cast("Any", function).__wrapped__
        if not any(holds(cell, inner) for cell in function.__closure__ or ()):
            return False
        function = inner


def globals_read(function: Any) -> frozenset[str]:
    """Returns the names that the function inside all decorators uses, to find the functions it calls."""
    return frozenset(innermost(function).__code__.co_names)


def rebound(function: Any, others: Mapping[str, Callable[..., Any]]) -> Any:
    """Copies a method (`function`) with its decorators, to patch one class alone: the copy calls the
    functions in `others` in place of the globals of their names.
    """
    inner: Any = getattr(function, "__wrapped__", None)
    if inner is None:
        return copy(function, {**function.__globals__, **others}, function.__closure__)
    new = rebound(inner, others)
    cells: tuple[CellType, ...] = function.__closure__ or ()
    cells = tuple(CellType(new) if holds(cell, inner) else cell for cell in cells)
    made = copy(function, function.__globals__, cells)
    made.__wrapped__ = new
    return made


def holds(cell: CellType, value: Any) -> bool:
    """Tells whether a cell of a closure contains the object `value` itself."""
    try:
        return cell.cell_contents is value
    except ValueError:  # the cell is empty
        return False


def copy(function: Any, names: dict[str, Any], closure: Any) -> Any:
    """Makes a function with the code of another one, but with these globals (`names`) and closure, so that it
    calls other functions.
    """
    made: Any = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__module__, made.__doc__ = function.__module__, function.__doc__
    made.__annotations__ = function.__annotations__
    made.__dict__.update(function.__dict__)
    return made
