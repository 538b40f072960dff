"""Import of Ray by name, since few of its types are known, with an error that says how to install it."""

from typing import Any

from stepnet.compiler.values.entry_points import imported
from stepnet.errors import InputError, pip_command


def installed(name: str) -> Any:
    """Imports the module `name` of Ray; raises `InputError` if it, or a package that it needs, is missing.

    >>> installed("ray.exceptions").RayError.__name__
    'RayError'
    """
    try:
        return imported(name)
    except ImportError as error:
        raise InputError(f"stepnet.ray needs Ray Data ({error}): {pip_command('stepnet[ray]')}") from error
