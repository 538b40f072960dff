"""Ray's modules: imported by name, since few of their types are known, or an error that says how to get
them.
"""

from importlib import import_module
from typing import Any

from stepnet.errors import InputError


def installed(name: str) -> Any:
    """A module of Ray; raises `InputError` where it, or what `ray.data` needs, is not installed.

    >>> installed("ray.exceptions").RayError.__name__
    'RayError'
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"stepnet.ray needs Ray Data ({error}): pip install stepnet[ray]") from error
