"""Import of Keras by name, since few of its types are known, with an error that says how to install it."""

from importlib import import_module
from typing import Any

from stepnet.errors import InputError


def installed(name: str = "keras") -> Any:
    """Imports a module of Keras; raises `InputError` where it is not installed.

    >>> installed().backend.backend()
    'torch'
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            "stepnet.keras needs Keras and the backend that it is set to: pip install stepnet[keras,torch]"
        ) from error
