"""Imports PyTorch's modules by name, as few of their types are known, or says how to install PyTorch."""

from importlib import import_module
from typing import Any

from stepnet.errors import InputError


def pytorch(name: str) -> Any:
    """Imports a module of PyTorch by name; raises `InputError` if PyTorch is not installed.

    >>> pytorch("torch").tensor(2.0) ** 3
    tensor(8.)
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError("steps written with PyTorch need torch: pip install stepnet[torch]") from error
