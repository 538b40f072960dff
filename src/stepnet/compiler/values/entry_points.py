"""Parts that other packages bring: modules of those that extras install, and entry points, by which packages
add parts to stepnet: `stepnet.targets` and `stepnet.patches`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import LibraryError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def imported(name: str) -> Any:
    """Imports a module of a package that an extra of stepnet installs. Raises `ImportError` if it is missing,
    and `LibraryError` if its version is older than the lowest one that works.

    >>> imported("json").loads("[1]")
    [1]
    """
    module = import_module(name)
    with IMPORTS:  # the table of packages takes time, and few processes need it
        from stepnet.compiler.values.packages import check_version
    check_version(module)
    return module


@cache
def installed(group: str) -> "Mapping[str, EntryPoint]":
    """Finds the entry points of a group in all installed packages, by name; it imports none of them."""
    with IMPORTS:  # it takes time, and few processes need it
        from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def load_object(point: "EntryPoint", noun: str) -> Any:
    """Imports the object of an entry point; raises `LibraryError` if it cannot be imported.

    noun: the kind of object, such as "target", for the message.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise LibraryError(
            f"the {noun} {point.name!r} cannot be imported from {point.value}: {error}; repair or remove the "
            "package that has it"
        ) from error
